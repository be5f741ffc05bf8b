//! What text encoders gave for earlier jobs: the next job with the same prompt runs none, whatever
//! is loaded, and makes the same picture.

use planner::job::JobRequest;
use planner::serve::desk::event::{FinishedWork, Said};
use protocol::Phase;
use serde_json::{Value, json};

use crate::bench::{Bench, loads, one_device, request, started};
use crate::client::Server;
use crate::support::lora::write_lora;
use crate::support::wide::Wide;
use crate::support::{Home, fixture};

fn with_prompt(prompt: &str) -> JobRequest {
    let mut request = request();
    request.prompts.prompt = Some(prompt.to_owned());
    request
}

/// The components that ran, and whether the phase of the text encoders did.
fn ran(work: &FinishedWork) -> (Vec<&str>, bool) {
    let components = work.usage.components.iter().filter(|component| component.calls > 0);
    let has_phase = |device: &protocol::usage::DeviceUsage| {
        device.phases.iter().any(|phase| phase.phase == Phase::Condition)
    };
    (components.map(|c| c.name.as_str()).collect(), work.usage.devices.iter().any(has_phase))
}

/// Whether anybody was told of the phase of the text encoders.
fn told_of_encoders(heard: &[Said]) -> bool {
    heard
        .iter()
        .any(|said| matches!(said, Said::Progress(progress) if progress.phase == Phase::Condition))
}

const ALL: [&str; 4] = ["clip", "t5", "dit", "vae"];

#[test]
fn the_second_job_with_a_prompt_runs_no_text_encoder() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let (heard, first) = bench.done(request());
    assert!(told_of_encoders(&heard));
    assert_eq!(ran(&first), (ALL.to_vec(), true));
    let known = bench.quote(request()).expect("it fits").offer;
    let new = bench.quote(with_prompt("a blue square")).expect("it fits").offer;
    assert!(known.warm && new.warm && known.run_ms < new.run_ms, "{known:?}, {new:?}");
    let (heard, second) = bench.done(request());
    assert!(!told_of_encoders(&heard) && loads(&heard) == [false], "{heard:?}");
    assert_eq!(ran(&second), (vec!["dit", "vae"], false));
    assert_eq!(second.predicted_ms, known.run_ms);
    let [one, other] = [&first, &second].map(|work| &work.pictures[0]);
    assert!(one.pixels == other.pixels && one.settings == other.settings);
    // Another seed and size have the same embeddings; another length has not.
    let mut other = request();
    (other.seed, other.shape.width) = (Some(planner::job::seed::Seed::Given(8)), Some(96));
    assert_eq!(ran(&bench.done(other).1), (vec!["dit", "vae"], false));
    let mut longer = request();
    longer.shape.max_sequence_length = Some(48);
    assert_eq!(ran(&bench.done(longer).1), (ALL.to_vec(), true));
    assert_eq!(ran(&bench.done(with_prompt("a blue square")).1), (ALL.to_vec(), true));
    assert_eq!(ran(&bench.done(with_prompt("a blue square")).1), (vec!["dit", "vae"], false));
}

#[test]
fn a_cold_slot_loads_no_text_encoder_for_a_known_prompt() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let (_, first) = bench.done(request());
    bench.end();
    let known = bench.quote(request()).expect("it fits");
    assert!(!known.offer.warm);
    let planned = |plan: &Value| -> Vec<String> {
        let components = plan["components"].as_array().expect("a list");
        components.iter().map(|c| c["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(planned(&known.plan), ["dit", "vae"]);
    assert_eq!(known.plan["job"]["conditioned"], true);
    let new = bench.quote(with_prompt("a blue square")).expect("it fits");
    assert_eq!(planned(&new.plan), ALL);
    let (heard, again) = bench.done(request());
    assert!(started(&heard).is_some() && loads(&heard) == [true], "{heard:?}");
    assert_eq!(ran(&again), (vec!["dit", "vae"], false));
    let [one, other] = [&first, &again].map(|work| &work.pictures[0]);
    assert!(one.pixels == other.pixels && one.settings == other.settings);
    // A new prompt adds the text encoders, and leaves the rest where it is.
    let (heard, new) = bench.done(with_prompt("a blue square"));
    assert_eq!((loads(&heard), ran(&new)), (vec![false], (ALL.to_vec(), true)));
    let sent = new.usage.components.iter().filter(|component| component.sent_bytes.0 > 0);
    assert_eq!(sent.map(|c| c.name.as_str()).collect::<Vec<_>>(), ["clip", "t5"]);
}

#[test]
fn who_says_where_text_encoders_compute_is_answered_by_what_they_give_there() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let mut pinned = request();
    pinned.policy.backend = Some("te=virtual0,dit=virtual0".to_owned());
    assert_eq!(ran(&bench.done(request()).1), (ALL.to_vec(), true));
    let (_, first) = bench.done(pinned.clone());
    assert_eq!(ran(&first), (ALL.to_vec(), true));
    // What is said of them has no effect on a plan that has none.
    bench.end();
    let (_, again) = bench.done(pinned);
    assert_eq!(ran(&again), (vec!["dit", "vae"], false));
    assert!(again.pictures[0].pixels == first.pictures[0].pixels);
}

#[test]
fn a_lora_is_part_of_what_a_prompt_is_known_by() {
    let home = Home::new();
    Wide::bf16().write(&home.path("model")).expect("a file system with room");
    let style = home.path("style.safetensors");
    write_lora(&style, 1);
    let mut bench = Bench::with_model(&one_device(64, "1GiB/s"), &home.path("model"));
    let with_lora = |weight: &str| {
        let mut request = request();
        request.policy.lora = Some(vec![format!("{}:{weight}", style.display())]);
        request
    };
    let new = (ALL.to_vec(), true);
    let known = (vec!["dit", "vae"], false);
    assert_eq!(ran(&bench.done(request()).1), new);
    let (_, first) = bench.done(with_lora("0.8"));
    assert_eq!(ran(&first), new);
    let (_, second) = bench.done(with_lora("0.8"));
    assert_eq!(ran(&second), known);
    assert!(second.pictures[0].pixels == first.pictures[0].pixels);
    assert_eq!(ran(&bench.done(with_lora("0.5")).1), new);
    // A plan without text encoders changes none of their weights.
    bench.end();
    let (_, third) = bench.done(with_lora("0.8"));
    assert_eq!(ran(&third), known);
    assert!(third.pictures[0].pixels == first.pictures[0].pixels);
    assert_eq!(third.pictures[0].settings, first.pictures[0].settings);
    let held = |work: &FinishedWork| {
        let host = work.usage.devices.iter().find(|device| device.id.is_host());
        let idle = host.and_then(|host| host.idle).expect("what stays is looked at");
        assert_eq!(idle.predicted_bytes, idle.measured_bytes);
        idle.measured_bytes
    };
    assert!(held(&third) < held(&first), "changed text encoders stay in RAM");
    write_lora(&style, 2);
    assert_eq!(ran(&bench.done(with_lora("0.8")).1), new);
    assert_eq!(ran(&bench.done(request()).1), known);
}

#[test]
fn text_encoders_that_were_changed_are_asked_again() {
    let home = Home::new();
    let copy = home.path("model");
    let copied = std::process::Command::new("cp")
        .arg("-rL")
        .arg(fixture("flux_schnell"))
        .arg(&copy)
        .status();
    assert!(copied.expect("cp").success());
    let mut bench = Bench::with_model(&one_device(64, "1GiB/s"), &copy);
    bench.done(request());
    assert_eq!(ran(&bench.done(request()).1), (vec!["dit", "vae"], false));
    let touch = |path: &str| {
        let path = copy.join(path);
        let bytes = std::fs::read(&path).expect("a file of the model");
        std::fs::remove_file(&path).expect("it is a copy");
        std::fs::write(&path, bytes).expect("it can be written");
    };
    touch("text_encoder/model.safetensors");
    assert_eq!(ran(&bench.done(request()).1), (ALL.to_vec(), true));
    // Weights of others are not theirs.
    touch("vae/diffusion_pytorch_model.safetensors");
    assert_eq!(ran(&bench.done(request()).1), (vec!["dit", "vae"], false));
}

/// A figure without labels.
fn figure(server: &Server, name: &str) -> u64 {
    let answer = server.ask("GET", "/metrics", None);
    let text = String::from_utf8(answer.body).expect("text");
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let value = lines.find(|(known, _)| *known == name).map(|(_, value)| value);
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn components_that_ran(job: &Value) -> Vec<&str> {
    let components = job["usage"]["components"].as_array().expect("what was used");
    let ran = components.iter().filter(|component| component["calls"] != 0);
    ran.map(|component| component["name"].as_str().expect("a name")).collect()
}

#[test]
fn the_daemon_tells_what_it_keeps_and_how_often_it_was_of_use() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let job = |seed: u64| json!({"prompt": "a red circle", "seed": seed, "steps": 2});
    let first = server.done(&server.submit(&job(1)));
    assert_eq!(components_that_ran(&first), ALL);
    let counts = |server: &Server| {
        ["hits_total", "misses_total", "evictions_total"]
            .map(|name| figure(server, &format!("berth_conditioning_{name}")))
    };
    assert_eq!(counts(&server), [0, 1, 0]);
    let held = figure(&server, "berth_conditioning_cache_bytes");
    assert!(held > 0, "nothing is kept");
    let next = server.submit(&job(2));
    assert_eq!(components_that_ran(&server.done(&next)), ["dit", "vae"]);
    assert_eq!(counts(&server), [1, 1, 0]);
    assert_eq!(figure(&server, "berth_conditioning_cache_bytes"), held);
    let picture = server.picture(&next, 0);
    // It is the one of a daemon that keeps nothing.
    server.kill();
    let file = home.path("serve.toml");
    std::fs::write(&file, "conditioning_cache = \"0B\"\n").expect("a configuration");
    let state = home.path("other").display().to_string();
    let server =
        Server::start(&home, &["--config", &file.display().to_string(), "--state", &state]);
    for _ in 0..2 {
        let again = server.submit(&job(2));
        assert_eq!(components_that_ran(&server.done(&again)), ALL);
        assert!(server.picture(&again, 0) == picture);
    }
    assert_eq!(counts(&server), [0, 0, 0]);
    assert_eq!(figure(&server, "berth_conditioning_cache_bytes"), 0);
}
