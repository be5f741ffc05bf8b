//! The program itself, from a request to the picture's file, and over the deaths of its executors
//! and its own.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Server;
use crate::support::Home;

/// How long the daemon may take to end where nothing runs.
const SOON: Duration = Duration::from_secs(20);

/// A job of some tens of milliseconds.
fn short(seed: u64) -> Value {
    json!({"prompt": "a red circle", "seed": seed, "steps": 4})
}

/// A job of some seconds.
fn long(seed: u64) -> Value {
    json!({"prompt": "a red circle", "seed": seed, "steps": 150, "width": 256, "height": 256})
}

/// A job that does not end within a test.
pub fn endless() -> Value {
    json!({"prompt": "a red circle", "seed": 1, "steps": 1000, "width": 512, "height": 512})
}

/// Bytes of weights that were sent to devices for a job.
fn sent_bytes(job: &Value) -> u64 {
    let components = job["usage"]["components"].as_array().expect("what was used");
    components.iter().map(|component| component["sent_bytes"].as_u64().expect("a count")).sum()
}

#[test]
fn a_job_is_what_generate_makes_and_the_next_one_loads_nothing() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let first = server.submit(&short(7));
    let job = server.done(&first);
    assert_eq!((job["quote"]["warm"].as_bool(), sent_bytes(&job) > 0), (Some(false), true));
    let picture = server.picture(&first, 0);
    let made = home.run(&[
        "generate",
        "-p",
        "a red circle",
        "--seed",
        "7",
        "--steps",
        "4",
        "--host",
        "virtual-2x2g",
        "--output",
        "same.png",
    ]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(picture == std::fs::read(home.path("same.png")).expect("it was written"));
    let next = server.submit(&short(7));
    let job = server.done(&next);
    assert_eq!((job["quote"]["warm"].as_bool(), sent_bytes(&job)), (Some(true), 0), "{job}");
    assert!(server.picture(&next, 0) == picture);
    let models = server.get("/v1/models");
    assert_eq!(models["data"][0]["berth"]["state"], "warm", "{models}");
    server.process.send(Signal::TERM);
    assert_eq!(server.ends(SOON), Some(0));
}

#[test]
fn pictures_of_one_job_have_seeds_one_after_the_other() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let job = server.submit(&json!({"prompt": "a", "seed": 5, "steps": 2, "n": 3}));
    let job = server.done(&job);
    let pictures = job["pictures"].as_array().expect("its pictures");
    let seeds: Vec<u64> = pictures.iter().filter_map(|picture| picture["seed"].as_u64()).collect();
    assert_eq!(seeds, [5, 6, 7]);
}

#[test]
fn what_cannot_be_done_is_refused_before_it_is_accepted() {
    let home = Home::new();
    let server = Server::start(&home, &["--max-vram", "3MiB"]);
    let answer = server.ask("POST", "/v1/jobs", Some(&endless()));
    let error = &answer.json()["error"];
    assert_eq!((answer.status, error["code"].as_str()), (422, Some("does_not_fit")), "{error}");
    assert!(error["berth"]["nearest"]["max_vram_bytes"].is_u64(), "{error}");
    let wrong = json!({"prompt": "a", "width": 65});
    let answer = server.ask("POST", "/v1/jobs", Some(&wrong));
    assert_eq!(answer.status, 400, "{}", String::from_utf8_lossy(&answer.body));
    let unknown = json!({"prompt": "a", "model": "none"});
    assert_eq!(server.ask("POST", "/v1/jobs", Some(&unknown)).status, 404);
}

#[test]
fn a_running_job_is_cancelled_and_the_next_one_runs() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let (running, waiting) = (server.submit(&endless()), server.submit(&short(1)));
    server.until_denoising(&running);
    assert_eq!(server.job(&waiting)["position"], 1);
    let cancel = server.ask("POST", &format!("/v1/jobs/{running}/cancel"), None);
    assert_eq!(cancel.status, 200, "{}", String::from_utf8_lossy(&cancel.body));
    let job = server.until(&running, &["done", "failed", "cancelled"]);
    assert_eq!(job["state"], "cancelled", "{job}");
    server.done(&waiting);
}

#[test]
fn a_job_outlives_its_executor() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let job = server.submit(&long(3));
    server.until_denoising(&job);
    let executors = server.executors();
    assert!(executors.len() >= 2, "the surveyor's and the slot's");
    for executor in executors {
        executor.send(Signal::KILL);
    }
    let job = server.done(&job);
    assert_eq!(job["failures"].as_array().map(Vec::len), Some(1), "{job}");
    // The surveyor's was killed too.
    server.done(&server.submit(&short(1)));
}

#[test]
fn a_daemon_that_is_to_end_finishes_what_runs_and_keeps_the_rest() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let running = server.submit(&long(3));
    let queued: Vec<String> = (0..3).map(|seed| server.submit(&short(seed))).collect();
    server.until_denoising(&running);
    server.process.send(Signal::TERM);
    assert_eq!(server.ends(Duration::from_secs(120)), Some(0));
    let server = Server::start(&home, &[]);
    let job = server.job(&running);
    assert_eq!((job["state"].as_str(), job["attempts"].as_u64()), (Some("done"), Some(1)), "{job}");
    for id in &queued {
        server.done(id);
    }
    // The second signal does not wait for what runs, which is done after the next start.
    let running = server.submit(&endless());
    server.until_denoising(&running);
    server.process.send(Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    server.process.send(Signal::TERM);
    assert_eq!(server.ends(SOON), Some(0));
    let server = Server::start(&home, &[]);
    let states = ["queued", "loading", "running"];
    server.until(&running, &states);
}

#[test]
fn no_job_is_lost_with_the_daemon() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let running = server.submit(&long(3));
    let mut jobs: Vec<String> = (0..8).map(|seed| server.submit(&short(seed))).collect();
    server.until_denoising(&running);
    jobs.push(running.clone());
    let executors = server.executors();
    server.kill();
    for executor in executors {
        assert!(executor.ends_within(SOON), "executors end with their daemon");
    }
    let server = Server::start(&home, &[]);
    let mut pictures = BTreeSet::new();
    for id in &jobs {
        let job = server.done(id);
        assert_eq!(job["pictures"].as_array().map(Vec::len), Some(1), "{job}");
        pictures.insert(server.picture(id, 0));
        let attempts = if *id == running { 2 } else { 1 };
        assert_eq!(job["attempts"], attempts, "{job}");
    }
    assert_eq!(pictures.len(), jobs.len());
    let listed = server.get("/v1/jobs?limit=100");
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(jobs.len()), "{listed}");
}

#[test]
fn one_daemon_has_a_directory() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let second = home.run(&["serve", "--listen", "127.0.0.1:0", "--host", "virtual-2x2g"]);
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    assert!(second.stderr.contains("another `berth serve`"), "{}", second.stderr);
    server.done(&server.submit(&short(1)));
}
