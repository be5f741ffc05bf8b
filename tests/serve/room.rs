//! Several models loaded at a time, within one budget.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use crate::bench::one_device;
use crate::client::Server;
use crate::support::Home;

/// Models whose weights do not fit on one device of [`CAP`] together.
const MODELS: [&str; 2] = ["flux_schnell", "zimage_turbo"];

/// Of each device, in MiB.
const CAP_MIB: u64 = 4;

/// A daemon with the models of the fixtures, which encodes every prompt anew.
fn server(home: &Home, several_loaded: bool) -> Server {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let models = models.canonicalize().expect("the fixtures");
    let config = format!(
        "models = [{models:?}]\nseveral_loaded = {several_loaded}\nconditioning_cache = \"0B\"\n"
    );
    std::fs::write(home.path("serve.toml"), config).expect("a scratch file");
    let cap = format!("{CAP_MIB}MiB");
    Server::start(home, &["--config", "serve.toml", "--max-vram", &cap])
}

/// A job of each model in turns; as they were done.
fn in_turns(server: &Server, rounds: u64) -> Vec<Value> {
    let jobs = (0..rounds).flat_map(|seed| MODELS.map(|model| (seed, model)));
    let run = |(seed, model): (u64, &str)| {
        let job = json!({
            "prompt": "a red circle", "model": model, "seed": seed, "steps": 2, "width": 64, "height": 64,
        });
        server.done(&server.submit(&job))
    };
    jobs.map(run).collect()
}

/// Bytes of weights that were sent to devices for jobs.
fn sent_bytes(jobs: &[Value]) -> u64 {
    let components = jobs.iter().flat_map(|job| job["usage"]["components"].as_array());
    components.flatten().filter_map(|component| component["sent_bytes"].as_u64()).sum()
}

/// What plans take together of each device: all hold their idle bytes, and one of them takes more.
fn together(jobs: &[Value]) -> BTreeMap<String, u64> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for job in jobs {
        for device in job["plan"]["devices"].as_array().expect("its plan") {
            let bytes = |key: &str| device[key].as_u64().expect("bytes");
            let (idle, peak) = (bytes("idle_bytes"), bytes("peak_bytes"));
            let id = device["id"].as_str().expect("a name").to_owned();
            let (idles, active) = sums.entry(id).or_default();
            (*idles, *active) = (*idles + idle, (*active).max(peak - idle));
        }
    }
    sums.into_iter().map(|(id, (idles, active))| (id, idles + active)).collect()
}

#[test]
fn two_models_that_fit_together_are_loaded_once_and_stay_within_the_budget() {
    let home = Home::new();
    let server = server(&home, true);
    let jobs = in_turns(&server, 3);
    assert!(sent_bytes(&jobs[..2]) > 0, "{:?}", jobs[0]["usage"]);
    assert_eq!(sent_bytes(&jobs[2..]), 0, "later jobs load nothing");
    for (device, bytes) in together(&jobs[jobs.len() - 2..]) {
        assert!(bytes <= CAP_MIB << 20, "{bytes} B of {device}");
    }
    let models = server.get("/v1/models");
    let models = models["data"].as_array().expect("a list");
    let loaded = models.iter().filter(|model| model["berth"]["state"] == "warm");
    let loaded: Vec<&str> = loaded.filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(loaded, MODELS);
}

#[test]
fn one_at_a_time_each_is_loaded_anew() {
    let home = Home::new();
    let server = server(&home, false);
    let jobs = in_turns(&server, 2);
    assert_eq!(sent_bytes(&jobs[..2]), sent_bytes(&jobs[2..]));
}

/// Loads of the only model, for jobs.
fn loads(server: &Server) -> f64 {
    let text = String::from_utf8(server.ask("GET", "/metrics", None).body).expect("text");
    let line = text.lines().find(|line| line.starts_with("berth_model_loads_total{"));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no loads in {text}"))
}

/// The loads of the demo model for jobs of two sizes in turns, where the larger one leaves no room
/// for all weights; and what their quotes said of the load.
fn loads_of_two_sizes(model: &str) -> (f64, Vec<bool>) {
    let home = Home::new();
    std::fs::write(home.path("one.toml"), one_device(64, "1GiB/s")).expect("a scratch file");
    let config = format!("conditioning_cache = \"0B\"\n{model}");
    std::fs::write(home.path("serve.toml"), config).expect("a scratch file");
    let more = ["--config", "serve.toml", "--max-vram", "15MiB"];
    let server = Server::start_on(&home, "one.toml", &more);
    let mut warm = Vec::new();
    for width in [64, 256, 64, 256] {
        let job = json!({
            "prompt": "a red circle", "seed": 1, "steps": 2, "width": width, "height": width,
        });
        let planned = server.ask("POST", "/v1/plan", Some(&job)).json();
        warm.push(planned["quote"]["warm"] == true);
        server.done(&server.submit(&job));
    }
    (loads(&server), warm)
}

#[test]
fn a_model_that_is_placed_for_the_larger_size_is_loaded_once() {
    // Measured times decide whether the smaller size moves them back.
    let (loads, warm) = loads_of_two_sizes("");
    assert!(loads > 1.0 && warm[..2] == [false; 2], "{loads} loads, {warm:?}");
    let (loads, warm) = loads_of_two_sizes("[model.demo]\nplan_for = [\"256x256\"]\n");
    assert_eq!((loads, warm), (1.0, vec![false, true, true, true]));
}

#[test]
fn a_model_beside_another_one_makes_the_same_picture_as_alone() {
    let home = Home::new();
    let pictures = |several_loaded| {
        let server = server(&home, several_loaded);
        let jobs = in_turns(&server, 1);
        let ids = jobs.iter().map(|job| job["id"].as_str().expect("a name"));
        ids.map(|id| server.picture(id, 0)).collect::<Vec<_>>()
    };
    assert!(pictures(true) == pictures(false));
}
