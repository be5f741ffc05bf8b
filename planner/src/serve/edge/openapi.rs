//! `/openapi.json`: our own routes as an OpenAPI 3.1 document, made from the router's own table.

use axum::http::Method;
use serde_json::{Map, Value, json};

/// Where the document is.
pub const PATH: &str = "/openapi.json";

/// What one method of an address does.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Of HTTP.
    pub method: Method,
    /// With its parameters in braces.
    pub path: &'static str,
    /// A line for people.
    pub summary: &'static str,
    /// What may be asked behind `?`: names, and what each means.
    pub query: &'static [(&'static str, &'static str)],
    /// The name of the schema of its body, one of `schemas`; empty for none.
    pub body: &'static str,
    /// The status where all went well.
    pub status: u16,
    /// The kind of what it answers.
    pub media: &'static str,
}

impl Operation {
    /// One that answers 200 with JSON and takes nothing.
    pub const fn new(method: Method, path: &'static str, summary: &'static str) -> Operation {
        let (query, body, status, media) = (&[] as &[_], "", 200, "application/json");
        Operation { method, path, summary, query, body, status, media }
    }

    /// The same with a body.
    pub fn body(self, body: &'static str) -> Operation {
        Operation { body, ..self }
    }

    /// The same with another status.
    pub fn status(self, status: u16) -> Operation {
        Operation { status, ..self }
    }

    /// The same with what may be asked behind `?`.
    pub fn query(self, query: &'static [(&'static str, &'static str)]) -> Operation {
        Operation { query, ..self }
    }

    /// The same with another kind of answer.
    pub fn media(self, media: &'static str) -> Operation {
        Operation { media, ..self }
    }
}

/// The document of these operations.
pub fn document(operations: &[Operation]) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_ascii_lowercase()] = described(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Berth",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Jobs for diffusion models on the devices of this host.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
                "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"bearer": []}, {"basic": []}, {"api_key": []}, {}],
    })
}

fn described(operation: &Operation) -> Value {
    let error = json!({
        "description": "why not",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    });
    let mut answers = Map::new();
    let mut answer = json!({"description": "done"});
    if operation.status != 204 {
        answer["content"] = json!({ operation.media: {} });
    }
    answers.insert(operation.status.to_string(), answer);
    answers.insert("default".to_owned(), error);
    let mut described = json!({
        "summary": operation.summary,
        "operationId": operation_id(operation),
        "parameters": parameters(operation),
        "responses": answers,
    });
    if !operation.body.is_empty() {
        let schema = json!({"$ref": format!("#/components/schemas/{}", operation.body)});
        described["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
    }
    described
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let in_path = operation.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        let schema = json!({"type": "string"});
        Some(json!({"name": name, "in": "path", "required": true, "schema": schema}))
    });
    let in_query = operation.query.iter().map(|(name, meaning)| {
        let schema = json!({"type": "string"});
        json!({"name": name, "in": "query", "description": meaning, "schema": schema})
    });
    in_path.chain(in_query).collect()
}

/// A name for programs: `post_v1_jobs_id_cancel`.
fn operation_id(operation: &Operation) -> String {
    let words = operation.path.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    let method = operation.method.as_str().to_ascii_lowercase();
    std::iter::once(method.as_str()).chain(words).collect::<Vec<_>>().join("_")
}

/// What bodies hold, by name.
fn schemas() -> Value {
    let text = || json!({"type": "string"});
    let whole = || json!({"type": "integer", "minimum": 1});
    let number = || json!({"type": "number", "minimum": 0});
    let lora =
        json!({"type": "object", "properties": {"name": text(), "weight": {"type": "number"}}});
    let shape = json!({
        "model": text(), "prompt": text(), "negative_prompt": text(), "prompt_2": text(),
        "width": whole(), "height": whole(), "steps": whole(), "n": whole(),
        "seed": {"type": "integer", "minimum": -1, "description": "-1: drawn"},
        "guidance_scale": number(), "true_cfg_scale": number(), "sampler": text(),
        "scheduler": text(), "sigmas": {"type": "array", "items": number()},
        "eta": {"type": "number", "minimum": 0, "maximum": 1},
        "max_sequence_length": whole(), "strength": {"type": "number", "minimum": 0, "maximum": 1},
        "image": {"type": "string", "description": "PNG, JPEG or WebP in base64, or a data URL of it"},
        "lora": {"type": "array", "items": lora},
    });
    let policy = json!({
        "priority": {"enum": ["interactive", "batch", "background"]},
        "deadline_ms": whole(), "keep_alive": {"type": ["string", "integer"]},
        "on_disconnect": {"enum": ["cancel", "finish"]}, "preview_every": whole(),
    });
    let both = |a: &Value, b: &Value| {
        let (a, b) = (a.as_object(), b.as_object());
        let all: Map<String, Value> =
            a.into_iter().chain(b).flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        json!({"type": "object", "properties": all})
    };
    let question = json!({"max_vram": text(), "explain": {"type": "boolean"}});
    let object = |properties: Value| json!({"type": "object", "properties": properties});
    json!({
        "Job": both(&shape, &policy),
        "PlanQuestion": both(&shape, &question),
        "Place": object(json!({"priority": policy["priority"], "front": {"type": "boolean"}})),
        "Load": object(json!({"keep_alive": policy["keep_alive"]})),
        "Pause": object(json!({"unload": {"type": "boolean"}})),
        "Login": object(json!({"token": text()})),
        "Error": object(json!({"error": object(json!({
            "message": text(), "type": text(), "param": {"type": ["string", "null"]},
            "code": text(), "berth": {"type": "object"},
        }))})),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::edge::routes::table;

    #[test]
    fn each_operation_is_described_once_with_its_parameters() {
        let table = table();
        let document = document(table.operations());
        let paths = document["paths"].as_object().unwrap();
        let count: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
        assert_eq!(count, table.operations().len());
        let mut ids = std::collections::BTreeSet::new();
        for operation in table.operations() {
            let method = operation.method.as_str().to_ascii_lowercase();
            let described = &paths[operation.path][method];
            assert!(ids.insert(described["operationId"].as_str().unwrap().to_owned()));
            let in_path = operation.path.matches('{').count();
            let parameters = described["parameters"].as_array().unwrap();
            let required = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
            assert_eq!(required, in_path, "{}", operation.path);
            if !operation.body.is_empty() {
                let schema = &document["components"]["schemas"][operation.body];
                assert!(schema.is_object(), "{}", operation.body);
            }
        }
    }
}
