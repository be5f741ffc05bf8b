//! Each of our own routes: what it answers, and what it refuses.

use serde_json::{Value, json};

use super::fake_desk::{DONE, REMOVED, RUNNING};
use super::*;
use crate::serve::edge::routes::table;

#[test]
fn each_native_route_answers() {
    let server = Server::start();
    server.handle().set_reading(json!({"devices": [{"id": "cuda0"}]}));
    let job = |end: &str| format!("/v1/jobs/{RUNNING}{end}");
    let nothing = json!({});
    for (method, path, body, status) in [
        ("POST", "/v1/plan".to_owned(), json!({"prompt": "a house"}), 200),
        ("POST", "/v1/jobs".to_owned(), json!({"prompt": "a house"}), 202),
        ("GET", "/v1/jobs?limit=2&state=running".to_owned(), Value::Null, 200),
        ("GET", job(""), Value::Null, 200),
        ("PATCH", job(""), json!({"front": true}), 200),
        ("DELETE", job(""), Value::Null, 204),
        ("POST", job("/cancel"), nothing.clone(), 200),
        ("POST", job("/retry"), nothing.clone(), 202),
        ("GET", format!("/v1/jobs/{DONE}/events"), Value::Null, 200),
        ("GET", format!("/v1/jobs/{DONE}/pictures/0"), Value::Null, 200),
        ("GET", "/v1/models".to_owned(), Value::Null, 200),
        ("GET", "/v1/models/demo".to_owned(), Value::Null, 200),
        ("POST", "/v1/models/other-name/load".to_owned(), json!({"keep_alive": "1m"}), 202),
        ("POST", "/v1/models/demo/unload".to_owned(), nothing.clone(), 200),
        ("POST", "/v1/models/rescan".to_owned(), nothing.clone(), 200),
        ("GET", "/v1/devices".to_owned(), Value::Null, 200),
        ("GET", "/v1/timeline?seconds=60".to_owned(), Value::Null, 200),
        ("GET", "/v1/queue".to_owned(), Value::Null, 200),
        ("POST", "/v1/queue/pause".to_owned(), json!({"unload": true}), 200),
        ("POST", "/v1/queue/resume".to_owned(), nothing.clone(), 200),
        ("POST", "/v1/drain".to_owned(), nothing.clone(), 202),
        ("POST", "/v1/warnings/acknowledge".to_owned(), nothing.clone(), 200),
        ("GET", "/healthz".to_owned(), Value::Null, 200),
        ("GET", "/readyz".to_owned(), Value::Null, 200),
        ("GET", "/metrics".to_owned(), Value::Null, 200),
        ("GET", "/openapi.json".to_owned(), Value::Null, 200),
        ("POST", "/login".to_owned(), json!({"token": "x"}), 204),
    ] {
        let sent = if body.is_null() { String::new() } else { body.to_string() };
        let answer = server.client().send(method, &path, &[], sent.as_bytes());
        let shown = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, status, "{method} {path}: {shown}");
        let id = answer.header("x-request-id").unwrap_or_default();
        assert_eq!(id.len(), 26, "{method} {path}: {:?}", answer.headers);
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert!(
            answer.header("content-security-policy").unwrap().starts_with("default-src 'none'")
        );
    }
}

#[test]
fn the_document_has_the_routes_and_each_knows_options() {
    let server = Server::start();
    let document = server.get("/openapi.json").json();
    for operation in table().operations() {
        let method = operation.method.as_str().to_lowercase();
        assert!(document["paths"][operation.path][&method].is_object(), "{}", operation.path);
        let path = operation.path.replace("{id}", RUNNING).replace("{n}", "0");
        let options = server.client().send("OPTIONS", &path, &[], b"");
        assert_eq!(options.status, 204, "{path}");
        let other = server.client().send("PUT", &path, &[], b"");
        assert_eq!(other.code(), (405, "no_route".to_owned()), "{path}");
        assert!(other.header("allow").unwrap().contains(operation.method.as_str()), "{path}");
    }
    assert_eq!(server.get("/nothing").code(), (404, "no_route".to_owned()));
    assert_eq!(server.client().send("OPTIONS", "/nothing", &[], b"").status, 404);
}

#[test]
fn a_job_is_accepted_with_its_name_and_notices() {
    let server = Server::start();
    let body = json!({
        "model": "other-name", "prompt": "a house", "width": 512, "priority": "interactive",
        "colour": "red", "user": "bob", "image": base64::encode(png()), "strength": 0.5,
    });
    let headers = [("Idempotency-Key", "key-1"), ("Content-Type", "application/json")];
    let sent = body.to_string();
    let answer = server.client().send("POST", "/v1/jobs", &headers, sent.as_bytes());
    let job = answer.json();
    let id = job["id"].as_str().unwrap();
    assert_eq!(answer.header("location").unwrap(), format!("/v1/jobs/{id}"));
    assert_eq!((&job["state"], &job["request"]["image"]), (&json!("queued"), &json!(true)));
    assert_eq!(job["notices"], json!(["\"colour\" is not known, and has no effect"]));
    let order = server.desk.orders.lock().unwrap()[0].clone();
    assert_eq!((order.model.as_str(), order.client.as_str()), ("demo", "bob"));
    let image = order.request.start.image.unwrap();
    assert!(image.starts_with(server.folder.path().join("inputs")));
    assert_eq!(fs::read(image).unwrap(), png());
    let key = order.idempotency.unwrap();
    assert_eq!(key.key, "key-1");
    assert_eq!(key.body_sha256, crate::fingerprint::sha256_of(sent.as_bytes()));
}

#[test]
fn of_an_ended_job_the_rest_comes_from_the_store() {
    let server = Server::start();
    let job = server.get(&format!("/v1/jobs/{DONE}")).json();
    assert_eq!((&job["state"], &job["plan"]), (&json!("done"), &json!({"feasible": true})));
    let events = server.get(&format!("/v1/jobs/{DONE}/events"));
    let text = String::from_utf8(events.body).unwrap();
    assert!(text.contains(r#""plan":{"feasible":true}"#), "{text}");
}

#[test]
fn the_table_of_errors_is_answered() {
    let server = Server::start();
    let job = |prompt: &str| server.post("/v1/jobs", &json!({"prompt": prompt}));
    for (answer, status, code, header) in [
        (server.post("/v1/jobs", &json!({"width": 0})), 400, "bad_value", None),
        (server.post("/v1/jobs", &json!({"sampler": "x"})), 400, "unsupported_value", None),
        (server.post("/v1/jobs", &json!({"model": "demos"})), 404, "no_model", None),
        (server.post("/v1/jobs", &json!({"image": "http://a/b"})), 400, "bad_value", None),
        (server.get("/v1/jobs/01ARZ3NDEKTSV4RRFFQ69G5FAV"), 404, "no_job", None),
        (server.get("/v1/jobs/..%2f..%2fetc"), 404, "no_job", None),
        (server.get(&format!("/v1/jobs/{REMOVED}")), 410, "expired", None),
        (
            server.post(&format!("/v1/jobs/{DONE}/cancel"), &json!({})),
            409,
            "finished",
            Some(("x-should-retry", "false")),
        ),
        (job("huge"), 422, "does_not_fit", None),
        (job("again"), 422, "idempotency_mismatch", None),
        (job("quota"), 429, "quota", Some(("retry-after", "9"))),
        (job("full"), 503, "queue_full", Some(("retry-after", "7"))),
        (server.get(&format!("/v1/jobs/{DONE}/pictures/1")), 404, "no_route", None),
        (
            server.get(&format!("/v1/jobs/{DONE}/pictures/0?format=gif")),
            400,
            "unsupported_value",
            None,
        ),
        (server.get("/v1/jobs?limit=0"), 400, "bad_value", None),
        (server.get("/v1/devices"), 503, "not_read", None),
    ] {
        assert_eq!(answer.code(), (status, code.to_owned()));
        if let Some((name, value)) = header {
            assert_eq!(answer.header(name), Some(value), "{code}");
        }
    }
    let nearest = job("huge").json()["error"]["berth"]["nearest"].clone();
    assert_eq!(nearest, json!({"width": 512}));
    let message = server.post("/v1/jobs", &json!({"model": "demos"})).json();
    assert!(message["error"]["message"].as_str().unwrap().contains("name one of demo"));
}

#[test]
fn a_plan_is_an_answer_also_where_nothing_fits() {
    let server = Server::start();
    let plan = server.post("/v1/plan", &json!({"prompt": "x", "max_vram": "8GiB"})).json();
    assert_eq!((&plan["feasible"], &plan["quote"]["evicts"]), (&json!(true), &json!(["large"])));
    assert_eq!(plan["quote"]["wait_ms"], 250.0);
    let none = server.post("/v1/plan", &json!({"prompt": "huge"}));
    assert_eq!((none.status, &none.json()["nearest"]), (200, &json!({"width": 512})));
    let broken = server.post("/v1/plan", &json!({"prompt": "broken"}));
    assert_eq!(broken.code(), (422, "bad_model".to_owned()));
    let wrong = server.post("/v1/plan", &json!({"max_vram": "much"}));
    assert_eq!(wrong.json()["error"]["param"], "max_vram");
}

#[test]
fn a_picture_comes_as_it_was_filed_and_in_other_formats() {
    let server = Server::start();
    let path = format!("/v1/jobs/{DONE}/pictures/0");
    let filed = server.get(&path);
    assert_eq!((filed.body.clone(), filed.header("content-type")), (png(), Some("image/png")));
    assert_eq!(filed.header("cache-control"), Some("private, max-age=31536000, immutable"));
    for (query, kind, format) in [
        ("?format=jpeg", "image/jpeg", PictureFormat::Jpeg),
        ("?format=webp&thumb=16", "image/webp", PictureFormat::WebP),
    ] {
        let answer = server.get(&format!("{path}{query}"));
        assert_eq!(answer.header("content-type"), Some(kind));
        assert_eq!(PictureFormat::of_bytes(&answer.body), Some(format));
    }
}

#[test]
fn models_are_listed_as_openai_does() {
    let server = Server::start();
    let list = server.get("/v1/models").json();
    assert_eq!((&list["object"], list["data"].as_array().unwrap().len()), (&json!("list"), 2));
    let model = &server.get("/v1/models/other-name").json();
    assert_eq!((&model["id"], &model["created"]), (&json!("demo"), &json!(5)));
    assert_eq!(model["berth"]["state"], "warm");
    assert_eq!(model["berth"]["aliases"], json!(["other-name"]));
    assert_eq!(server.get("/v1/models/none").code(), (404, "no_model".to_owned()));
}

#[test]
fn readiness_tells_what_is_missing() {
    let server = Server::start();
    server.desk.not_ready.lock().unwrap().push("the store is closed".to_owned());
    let answer = server.get("/readyz");
    assert_eq!((answer.status, &answer.json()["reasons"][0]), (503, &json!("the store is closed")));
    assert_eq!(answer.json()["warnings"], json!(["mind the gap"]));
    assert_eq!(server.get("/healthz").status, 200);
}

#[test]
fn figures_count_requests_by_their_route() {
    let server = Server::start();
    server.get(&format!("/v1/jobs/{RUNNING}"));
    server.get("/nothing");
    let answer = server.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = String::from_utf8(answer.body).unwrap();
    for line in [
        "berth_http_requests_total{route=\"/v1/jobs/{id}\",method=\"GET\",code=\"200\"} 1",
        "berth_http_requests_total{route=\"none\",method=\"GET\",code=\"404\"} 1",
    ] {
        assert!(text.contains(line), "{text}");
    }
}
