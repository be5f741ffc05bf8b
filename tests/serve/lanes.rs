//! Jobs of different models that compute at once, each on a device with threads of its own.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Server;
use crate::support::Home;
use crate::support::watched::PATIENCE;

/// Models by name, as the fixtures have them.
pub const MODELS: [&str; 2] = ["flux_schnell", "zimage_turbo"];

/// Two devices of 64 MiB, each with a thread of its own, and a host that only feeds them. Their
/// links are too slow for a model to be split over both.
const PROFILE: &str = "name = \"two\"\n[host]\ncompute = false\nstorage_bandwidth = \"9GB/s\"\n\
    [[device]]\nkind = \"virtual\"\ntotal = \"64MiB\"\noverhead = \"1MiB\"\nlink = \"128MiB/s\"\nthreads = 1\n\
    [[device]]\nkind = \"virtual\"\ntotal = \"64MiB\"\noverhead = \"1MiB\"\nlink = \"128MiB/s\"\nthreads = 1\n";

pub fn home() -> Home {
    let home = Home::new();
    std::fs::write(home.path("two.toml"), PROFILE).expect("a scratch file");
    home
}

fn fixtures() -> String {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    models.canonicalize().expect("the fixtures").display().to_string()
}

pub fn server(home: &Home, more: &str) -> Server {
    let config = format!("models = [{:?}]\n{more}", fixtures());
    std::fs::write(home.path("serve.toml"), config).expect("a scratch file");
    Server::start_on(home, "./two.toml", &["--config", "serve.toml"])
}

/// A job of some seconds.
pub fn long(model: &str, seed: u64) -> Value {
    json!({
        "prompt": "a red circle", "model": model, "seed": seed, "steps": 300, "width": 256, "height": 256,
    })
}

/// The devices that a job's plan computes on.
fn devices(job: &Value) -> Vec<String> {
    let components = job["plan"]["components"].as_array().expect("its plan");
    let devices = components.iter().flat_map(|component| component["devices"].as_array());
    let mut devices: Vec<String> =
        devices.flatten().filter_map(|id| Some(id.as_str()?.to_owned())).collect();
    devices.sort();
    devices.dedup();
    devices
}

/// Waits until both jobs denoise in one answer about the queue.
fn until_both_denoise(server: &Server, ids: &[String; 2]) {
    server.until_answer("/v1/queue", |answer| {
        let queue = answer.json();
        let jobs = queue["jobs"].as_array().expect("a list");
        let denoises = |id: &String| {
            jobs.iter().any(|job| {
                job["id"] == **id
                    && job["state"] == "running"
                    && job["position"] == 0
                    && job["progress"]["phase"] == "denoise"
            })
        };
        let both = ids.iter().all(denoises);
        for id in ids.iter().filter(|_| !both) {
            let job = server.job(id);
            assert!(job["ended_at"].is_null(), "it ended before both ran: {job}");
        }
        both
    });
}

/// Two jobs that compute at once.
pub fn both(server: &Server) -> [String; 2] {
    let ids = MODELS.map(|model| server.submit(&long(model, 7)));
    until_both_denoise(server, &ids);
    ids
}

/// What the command line makes on one device. What was measured beside another job may say that two
/// take less time together, and a split by heads adds up in another order.
fn generated(home: &Home, model: &str) -> Vec<u8> {
    let source = format!("{}/{model}", fixtures());
    let output = format!("{model}.png");
    let made = home.run(&[
        "generate",
        &source,
        "-p",
        "a red circle",
        "--seed",
        "7",
        "--steps",
        "300",
        "--width",
        "256",
        "--height",
        "256",
        "--host",
        "./two.toml",
        "--backend",
        "all=virtual0",
        "--output",
        &output,
    ]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    std::fs::read(home.path(&output)).expect("it was written")
}

/// What `/metrics` says of a device's memory.
fn memory(text: &str, device: &str, what: &str) -> f64 {
    let line =
        format!("berth_device_memory_bytes{{device=\"{device}\",uuid=\"\",what=\"{what}\"}} ");
    let value = text.lines().find_map(|found| found.strip_prefix(&line));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {line} in {text}"))
}

#[test]
fn models_on_devices_of_their_own_compute_at_once_and_make_the_same_pictures() {
    let home = home();
    let server = server(&home, "");
    let ids = both(&server);
    let [one, two] = [&ids[0], &ids[1]].map(|id| server.done(id));
    assert_eq!((devices(&one).len(), devices(&two).len()), (1, 1), "{one} {two}");
    assert_ne!(devices(&one), devices(&two));
    for job in [&one, &two] {
        assert_eq!((&job["attempts"], &job["failures"]), (&json!(1), &json!([])), "{job}");
    }
    let text = String::from_utf8(server.ask("GET", "/metrics", None).body).expect("text");
    for device in ["virtual0", "virtual1"] {
        let [peak, budget] = ["measured_peak", "budget"].map(|what| memory(&text, device, what));
        assert!(0.0 < peak && peak <= budget, "{device}: {peak} of {budget}");
    }
    // The next jobs find their models where they are, and compute at once again.
    let again = both(&server);
    for (id, before) in again.iter().zip([&one, &two]) {
        let job = server.done(id);
        assert_eq!(devices(&job), devices(before));
        assert_eq!(job["plan"]["generation"], before["plan"]["generation"], "nothing is loaded");
    }
    for (id, model) in ids.iter().zip(MODELS) {
        assert!(server.picture(id, 0) == generated(&home, model), "{model}");
    }
}

#[test]
fn one_at_a_time_where_the_operator_says_so() {
    let home = home();
    let server = server(&home, "[quota]\nrunning = 1\n");
    let [first, second] = MODELS.map(|model| server.submit(&long(model, 7)));
    server.until_denoising(&first);
    server.until_answer("/v1/queue", |answer| {
        let queue = answer.json();
        let jobs = queue["jobs"].as_array().expect("a list");
        let runs = |id: &str| {
            let job = jobs.iter().find(|job| job["id"] == id);
            job.is_some_and(|job| job["state"] == "loading" || job["state"] == "running")
        };
        assert!(!(runs(&first) && runs(&second)), "{queue}");
        runs(&second)
    });
    server.done(&first);
    server.done(&second);
}

#[test]
fn an_executor_that_is_killed_leaves_the_other_ones_job_alone() {
    let home = home();
    let server = server(&home, "");
    let pids = |server: &Server| -> Vec<_> {
        server.executors().into_iter().map(|executor| executor.pid).collect()
    };
    let first = server.submit(&long(MODELS[0], 7));
    server.until_denoising(&first);
    let before = pids(&server);
    let second = server.submit(&long(MODELS[1], 7));
    until_both_denoise(&server, &[first.clone(), second.clone()]);
    let new = server.executors().into_iter().filter(|executor| !before.contains(&executor.pid));
    let new: Vec<_> = new.collect();
    assert_eq!(new.len(), 1, "the second model's executor");
    new[0].send(Signal::KILL);
    let second = server.done(&second);
    assert_eq!(second["failures"].as_array().map(Vec::len), Some(1), "{second}");
    let first = server.done(&first);
    assert_eq!((&first["attempts"], &first["failures"]), (&json!(1), &json!([])), "{first}");
}

#[test]
fn neither_of_two_running_jobs_is_lost_with_the_daemon() {
    let home = home();
    let server = server(&home, "");
    let ids = both(&server);
    let executors = server.executors();
    server.kill();
    for executor in executors {
        assert!(executor.ends_within(PATIENCE), "executors end with their daemon");
    }
    let server = self::server(&home, "");
    for id in &ids {
        let job = server.done(id);
        assert_eq!(job["attempts"], 2, "{job}");
        assert_eq!(job["pictures"].as_array().map(Vec::len), Some(1), "{job}");
        server.picture(id, 0);
    }
    let listed = server.get("/v1/jobs?limit=100");
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(ids.len()), "{listed}");
}
