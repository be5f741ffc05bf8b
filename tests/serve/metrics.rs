//! What Prometheus reads of a daemon that has worked, and what docs and dashboard say of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::api::routes;
use crate::client::Server;
use crate::open_metrics::{Exposition, read};
use crate::support::{Home, root};

/// What each label may be, in all of these jobs.
const LABELS: [(&str, &[&str]); 13] = [
    ("outcome", &["done", "failed", "cancelled"]),
    ("api", &["native", "openai", "sdapi"]),
    ("model", &["demo"]),
    ("priority", &["interactive", "batch", "background"]),
    ("phase", &["load", "encode", "condition", "denoise", "decode", "total"]),
    ("op", &["put", "remove", "settings"]),
    ("of", &["wait", "load", "denoise_step", "decode", "total", "peak_bytes"]),
    ("how", &["asked", "failed", "replaced", "died"]),
    ("reason", &["idle", "room", "asked", "failed", "shape", "short", "device", "death"]),
    ("source", &["job", "ahead"]),
    ("version", &[env!("CARGO_PKG_VERSION")]),
    (
        "what",
        &[
            "total",
            "free",
            "idle",
            "margin",
            "ours",
            "others",
            "budget",
            "planned_peak",
            "measured_peak",
            "compute",
            "weights",
            "activations",
        ],
    ),
    ("method", &["GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS", "other"]),
];

/// Figures of devices with clocks of their own: GPUs.
const ELSEWHERE: [&str; 1] = ["berth_device_busy_seconds"];

/// A daemon that has done, refused, failed and cancelled, and what it says of that.
fn after_work(server: &Server) -> (Exposition, String) {
    let job = |seed: u64| json!({"prompt": "a red circle", "seed": seed, "steps": 4, "n": 2});
    server.done(&server.submit(&job(1)));
    server.done(&server.submit(&job(2)));
    server.done(&server.submit(&json!({"prompt": "a", "steps": 2, "width": 128})));
    let made = json!({"prompt": "a", "size": "64x64", "steps": 2});
    assert_eq!(server.ask("POST", "/v1/images/generations", Some(&made)).status, 200);
    let made = json!({"prompt": "a", "width": 64, "height": 64, "steps": 2});
    assert_eq!(server.ask("POST", "/sdapi/v1/txt2img", Some(&made)).status, 200);
    let endless = json!({"prompt": "a", "steps": 1000, "width": 512, "height": 512});
    let cancelled = server.submit(&endless);
    server.until_denoising(&cancelled);
    let queued = server.submit(&job(3));
    for id in [&cancelled, &queued] {
        assert_eq!(server.ask("POST", &format!("/v1/jobs/{id}/cancel"), None).status, 200);
        server.until(id, &["cancelled"]);
    }
    assert_eq!(server.ask("POST", "/v1/models/demo/unload", None).status, 200);
    server.until_model("demo", "cold");
    server.get("/v1/queue");
    assert_eq!(server.ask("GET", "/somebody/elses", None).status, 404);
    let answer = server.ask("GET", "/metrics", None);
    let text = String::from_utf8(answer.body).expect("text");
    (read(&text), text)
}

/// The sum of a family's figures of this name with these labels.
fn sum(all: &Exposition, name: &str, labels: &[(&str, &str)]) -> f64 {
    let samples = all.values().flat_map(|family| &family.samples);
    let wanted = samples.filter(|sample| {
        let has = |(name, value): &(&str, &str)| {
            sample.labels.get(*name).is_some_and(|other| other == value)
        };
        sample.name == name && labels.iter().all(has)
    });
    wanted.map(|sample| sample.value).sum()
}

#[test]
fn the_figures_of_a_daemon_are_well_formed_and_right() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let (all, text) = after_work(&server);
    assert!(all.keys().all(|name| name.starts_with("berth_")), "{:?}", all.keys());
    for (name, labels, expected) in [
        ("berth_jobs_total", &[("outcome", "done"), ("api", "native")][..], 3.0),
        ("berth_jobs_total", &[("outcome", "done"), ("api", "openai"), ("model", "demo")], 1.0),
        ("berth_jobs_total", &[("outcome", "done"), ("api", "sdapi")], 1.0),
        ("berth_jobs_total", &[("outcome", "cancelled")], 2.0),
        ("berth_open_jobs", &[], 0.0),
        ("berth_images_total", &[("model", "demo")], 7.0),
        ("berth_model_evictions_total", &[("model", "demo"), ("reason", "asked")], 1.0),
        ("berth_executor_exits_total", &[("how", "asked")], 1.0),
        ("berth_models", &[("state", "cold")], 1.0),
        ("berth_http_requests_total", &[("route", "/v1/models/{id}/unload"), ("code", "200")], 1.0),
        ("berth_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1.0),
    ] {
        assert_eq!(sum(&all, name, labels), expected, "{name}{labels:?} in\n{text}");
    }
    for name in [
        "berth_queue_wait_seconds_count",
        "berth_job_seconds_count",
        "berth_denoise_step_seconds_count",
        "berth_http_request_seconds_count",
        "berth_store_seconds_count",
        "berth_event_lag_seconds_count",
        "berth_prediction_ratio_count",
        "berth_batch_size_count",
        "berth_model_load_seconds_count",
        "berth_model_loads_total",
        "berth_replans_total",
        "berth_streamed_bytes_total",
        "berth_device_memory_bytes",
        "berth_host_memory_bytes",
        "berth_start_time_seconds",
    ] {
        assert!(sum(&all, name, &[]) > 0.0, "{name} says nothing in\n{text}");
    }
    for of in ["wait", "load", "denoise_step", "decode", "total", "peak_bytes"] {
        assert!(sum(&all, "berth_prediction_ratio_count", &[("of", of)]) > 0.0, "{of}\n{text}");
    }
    check_labels(&all, &server);
}

/// Holds every label against what it may be.
fn check_labels(all: &Exposition, server: &Server) {
    let closed: BTreeMap<&str, &[&str]> = LABELS.into_iter().collect();
    let routes: BTreeSet<String> = routes(server).into_iter().map(path_of).collect();
    for sample in all.values().flat_map(|family| &family.samples) {
        for (name, value) in &sample.labels {
            let known = match name.as_str() {
                "route" => routes.contains(value) || value == "none",
                "le" | "uuid" | "protocol" => true,
                "device" => ["virtual0", "virtual1"].contains(&value.as_str()),
                "code" | "state" => value.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'),
                name => closed.get(name).is_some_and(|values| values.contains(&value.as_str())),
            };
            assert!(known, "{name}={value:?} of {sample:?}");
        }
    }
}

fn path_of(route: String) -> String {
    route.split_once(' ').map(|(_, path)| path.to_owned()).unwrap_or(route)
}

/// Names of figures in a text: `berth_…`, without what histograms and counters add.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_part(c)).filter(|word| word.starts_with("berth_"));
    words.map(|word| family(word).to_owned()).collect()
}

fn family(name: &str) -> &str {
    let suffixes = ["_total", "_bucket", "_sum", "_count"];
    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name)
}

#[test]
fn docs_and_dashboard_name_what_there_is() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let there: BTreeSet<String> = after_work(&server).0.into_keys().collect();
    let file = |name: &str| std::fs::read_to_string(root().join(name)).expect(name);
    let docs = file("docs/serve.md");
    let begin = docs.find("## What is counted").expect("the section");
    let section = &docs[begin..];
    let end = section[3..].find("\n## ").map_or(section.len(), |end| end + 3);
    let told: BTreeSet<String> = named(&section[..end]);
    let not_here = there.difference(&told).collect::<Vec<_>>();
    assert!(not_here.is_empty(), "docs/serve.md says nothing of {not_here:?}");
    let unmade: Vec<&str> =
        told.difference(&there).map(String::as_str).filter(|n| !ELSEWHERE.contains(n)).collect();
    assert!(unmade.is_empty(), "docs/serve.md tells of {unmade:?}");
    let dashboard = file("docs/grafana-berth.json");
    let document: Value = serde_json::from_str(&dashboard).expect("JSON");
    assert!(document["panels"].as_array().is_some_and(|panels| panels.len() > 5));
    let shown = named(&dashboard);
    assert!(shown.is_subset(&told), "{:?}", shown.difference(&told));
}
