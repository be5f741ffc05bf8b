//! Bodies as other programs send them, in `tests/clients`, read as the routes read them.
//!
//! Each request has a `route`, a `body`, and what comes of it: parts of the `job`, its `seed`, what
//! was `substituted`, all `notices`; or the `checkpoint` that is set; or how it is `refused`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::openai::delivery::ImagesRoute;
use crate::serve::edge::openai::request as openai;
use crate::serve::edge::openai::testing::{object, settings};
use crate::serve::edge::sdapi::request::{self as sdapi, SdapiRoute};
use crate::serve::edge::sdapi::{errors, options};

#[test]
fn bodies_of_other_programs_come_to_what_they_mean() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients");
    let mut replayed = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for request in document["requests"].as_array().unwrap() {
            let says = format!("{}: {}", document["client"], request["says"]);
            replay(request, &says);
            replayed += 1;
        }
    }
    assert!(replayed >= 16, "{replayed} requests");
}

fn replay(request: &Value, says: &str) {
    let got = read(request["route"].as_str().unwrap(), request["body"].clone());
    let known = ["says", "route", "body", "job", "seed", "substituted", "notices", "checkpoint"];
    for (key, expected) in request.as_object().unwrap() {
        match (key.as_str(), &got) {
            ("says" | "route" | "body", _) => {}
            ("job", Ok(got)) => contains(&got["job"], expected, says),
            ("refused", Err(refused)) => assert_eq!(refused, expected, "{says}"),
            (key, Ok(got)) if known.contains(&key) => assert_eq!(&got[key], expected, "{says}"),
            (key, got) => panic!("{says}: {key}: {got:?}"),
        }
    }
    let mut told = got.as_ref().map(|got| got["notices"].clone()).unwrap_or(Value::Null);
    if told.is_null() {
        told = json!([]);
    }
    let expected = request.get("notices").cloned().unwrap_or(json!([]));
    assert_eq!(told, expected, "{says}");
}

/// What a body comes to; else status and field of its refusal.
fn read(route: &str, body: Value) -> Result<Value, Value> {
    let (settings, body) = (settings(), object(body));
    let openai = |route, body| {
        let read = openai::read(route, body, &settings)
            .map_err(|error| json!({"status": error.status.as_u16(), "param": error.param}))?;
        Ok(json!({"job": read.job, "seed": read.seed, "notices": read.notices}))
    };
    let refused =
        |error: EdgeError| json!({"status": errors::status(&error).as_u16(), "param": error.param});
    match route {
        "POST /v1/images/generations" => openai(ImagesRoute::Generations, body),
        "POST /v1/images/edits" => openai(ImagesRoute::Edits, body),
        "POST /sdapi/v1/txt2img" => {
            let read = sdapi::read(SdapiRoute::Txt2Img, body, &settings, None).map_err(refused)?;
            let (job, seed, notices) = (read.job, read.seed, read.notices);
            let substituted = read.substituted;
            Ok(json!({"job": job, "seed": seed, "notices": notices, "substituted": substituted}))
        }
        "POST /sdapi/v1/options" => {
            let checkpoint = options::read(body, &settings).map_err(refused)?;
            Ok(json!({ "checkpoint": checkpoint }))
        }
        other => panic!("no route {other}"),
    }
}

/// Whether a document has all that another one says.
fn contains(got: &Value, expected: &Value, says: &str) {
    match expected {
        Value::Object(members) => {
            for (key, value) in members {
                contains(&got[key], value, &format!("{says}: {key}"));
            }
        }
        expected => assert_eq!(got, expected, "{says}"),
    }
}
