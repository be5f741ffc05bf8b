//! Executors and devices that fail under the daemon, and memory that others take from it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Server;
use crate::support::Home;
use crate::support::watched::Process;

/// How soon the death of an idle executor is known.
const AT_ONCE: Duration = Duration::from_secs(3);

fn job(seed: u64, steps: u32) -> Value {
    json!({"prompt": "a red circle", "seed": seed, "steps": steps})
}

/// Writes a profile of a host and these devices; what it is called.
fn profile(home: &Home, host: &str, devices: &[&str]) -> String {
    let mut text = format!("name = \"test\"\n[host]\nstorage_bandwidth = \"9GB/s\"\n{host}");
    for keys in devices {
        text += &format!("[[device]]\nkind = \"virtual\"\n{keys}");
    }
    let path = home.path("test.toml");
    fs::write(&path, text).expect("a profile");
    path.display().to_string()
}

/// The devices of a job's plan that hold anything.
pub fn devices_of(job: &Value) -> Vec<String> {
    let components = job["plan"]["components"].as_array().expect("a plan has components");
    let names = components.iter().flat_map(|c| c["devices"].as_array().expect("devices"));
    names.map(|name| name.as_str().expect("a name").to_owned()).collect()
}

/// The executor of the only slot: the surveyor's was started before it.
fn slots_executor(server: &Server) -> Process {
    let newest = server.executors().into_iter().max_by_key(|process| process.pid);
    newest.expect("executors run")
}

#[test]
fn the_death_of_an_idle_executor_is_known_at_once_and_costs_no_job() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    server.done(&server.submit(&job(1, 2)));
    server.until_model("demo", "warm");
    let killed = Instant::now();
    server.executors().iter().for_each(|executor| executor.send(Signal::KILL));
    server.until_model("demo", "cold");
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
    let id = server.submit(&job(2, 2));
    let done = server.done(&id);
    assert_eq!((done["attempts"].as_u64(), &done["failures"]), (Some(1), &json!([])), "{done}");
    server.until_model("demo", "warm");
}

#[test]
fn a_job_on_an_executor_that_hangs_ends_in_time_and_the_next_one_runs() {
    let home = Home::new();
    let server = Server::start(&home, &["--patience", "3"]);
    let slow = json!({"prompt": "a", "seed": 1, "steps": 1000, "width": 256, "height": 256});
    let (hung, next) = (server.submit(&slow), server.submit(&job(2, 2)));
    server.until_denoising(&hung);
    let stopped = Instant::now();
    slots_executor(&server).send(Signal::STOP);
    let ended = server.until(&hung, &["done", "failed", "cancelled"]);
    assert!(stopped.elapsed() < Duration::from_secs(20), "{:?}", stopped.elapsed());
    assert_eq!(ended["error"]["code"], "executor_died", "{ended}");
    server.done(&next);
    // One that hangs while nothing runs is found out by the next job, and by no other.
    server.until_model("demo", "warm");
    slots_executor(&server).send(Signal::STOP);
    let found_out = server.submit(&job(3, 2));
    let ended = server.until(&found_out, &["done", "failed"]);
    assert_eq!(ended["error"]["code"], "executor_died", "{ended}");
    server.done(&server.submit(&job(4, 2)));
}

#[test]
fn a_surveyor_that_hangs_or_dies_costs_an_answer_and_no_job() {
    let home = Home::new();
    let server = Server::start(&home, &["--patience", "8"]);
    server.done(&server.submit(&job(1, 2)));
    server.until_model("demo", "warm");
    // The slot's executor is the younger one.
    let surveyor = server.executors().into_iter().min_by_key(|process| process.pid);
    let surveyor = surveyor.expect("executors run");
    surveyor.send(Signal::STOP);
    let (asked, mut larger) = (Instant::now(), job(2, 2));
    larger["width"] = json!(128);
    let refused = server.ask("POST", "/v1/jobs", Some(&larger));
    let took = asked.elapsed();
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (503, Some("queue_full"))
    );
    assert!((Duration::from_secs(5)..Duration::from_secs(8)).contains(&took), "{took:?}");
    surveyor.send(Signal::CONT);
    server.done(&server.submit(&larger));
    // Between questions, and in the middle of one: another executor is asked.
    surveyor.send(Signal::KILL);
    larger["height"] = json!(96);
    server.done(&server.submit(&larger));
}

#[test]
fn a_device_that_failed_is_left_out_by_the_jobs_that_follow() {
    let home = Home::new();
    let fast = "total = \"64MiB\"\nlink = \"8GiB/s\"\nflops = \"1TFLOP/s\"\n\
                memory_bandwidth = \"1TB/s\"\nfail_copy = 5\n";
    let host = "compute = false\nflops = \"1GFLOP/s\"\nmemory_bandwidth = \"1GB/s\"\n";
    let profile = profile(&home, host, &[fast, "total = \"64MiB\"\nlink = \"1GiB/s\"\n"]);
    let server = Server::start_on(&home, &profile, &[]);
    let first = server.done(&server.submit(&job(1, 2)));
    let failures = first["failures"].as_array().expect("a list");
    assert_eq!((failures.len(), failures[0]["device"].as_str()), (1, Some("virtual0")), "{first}");
    // The next one does not try it again, whatever its size, and loads nothing anew.
    let second = server.done(&server.submit(&job(2, 2)));
    assert_eq!(second["quote"]["warm"], true, "{second}");
    let mut larger = job(3, 2);
    larger["width"] = json!(128);
    for done in [second, server.done(&server.submit(&larger))] {
        assert_eq!(done["failures"], json!([]), "{done}");
        assert!(devices_of(&done).iter().all(|name| name == "virtual1"), "{done}");
    }
    let answer = server.until_answer("/v1/devices", |answer| {
        answer.json()["devices"][0]["left_out"] != Value::Null
    });
    let devices = answer.json()["devices"].clone();
    let left_out = &devices[0]["left_out"];
    let seconds = left_out["seconds"].as_f64().expect("a time");
    assert!((1.0..=60.0).contains(&seconds), "{left_out}");
    assert!(left_out["because"].as_str().is_some_and(|because| because.contains("virtual0")));
    assert_eq!(devices[1]["left_out"], Value::Null);
}

/// Memory that another process of Berth has planned, as its file in the registry says.
pub struct OtherProcess {
    path: PathBuf,
    _file: File,
}

impl OtherProcess {
    fn hold(home: &Home, host_bytes: u64) -> OtherProcess {
        OtherProcess::hold_of(home, host_bytes, &[])
    }

    /// Of the host, and of GPUs by their UUIDs.
    pub fn hold_of(home: &Home, host_bytes: u64, gpus: &[(&str, u64)]) -> OtherProcess {
        let folder = home.beside("runtime").join("berth/plans");
        fs::create_dir_all(&folder).expect("the registry");
        let path = folder.join("1-other-0.toml");
        // Locked before it has its name, as they all are.
        let before = folder.join("1-other-0.before");
        let mut text = format!("pid = 1\nhost = {host_bytes}\n[devices]\n");
        gpus.iter().for_each(|(uuid, bytes)| text += &format!("{uuid} = {bytes}\n"));
        fs::write(&before, text).expect("it is written");
        let file = File::open(&before).expect("it is there");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
        fs::rename(&before, &path).expect("it is there");
        OtherProcess { path, _file: file }
    }

    pub fn end(self) {
        fs::remove_file(&self.path).expect("it is held");
    }
}

fn total_bytes(server: &Server) -> u64 {
    let reading = server.until_answer("/v1/devices", |answer| answer.status == 200).json();
    reading["host"]["total_bytes"].as_u64().expect("bytes")
}

#[test]
fn jobs_wait_for_memory_that_another_process_took_and_go_on() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    server.done(&server.submit(&job(1, 2)));
    let slow = json!({"prompt": "a", "seed": 1, "steps": 100, "width": 256, "height": 256});
    let running = server.submit(&slow);
    // Of another size: it is planned anew.
    let mut waiting = job(2, 2);
    waiting["width"] = json!(128);
    let waiting = server.submit(&waiting);
    server.until_denoising(&running);
    let other = OtherProcess::hold(&home, total_bytes(&server));
    server.done(&running);
    let waits = server.until(&waiting, &["waiting", "done", "failed"]);
    assert_eq!(waits["state"], "waiting", "{waits}");
    assert!(waits["waiting"].as_str().is_some_and(|why| why.contains("host")), "{waits}");
    other.end();
    let done = server.done(&waiting);
    assert_eq!(done["error"], Value::Null, "{done}");
}

#[test]
fn a_job_that_waited_in_vain_fails_with_what_would_fit() {
    let home = Home::new();
    fs::write(home.path("serve.toml"), "room_wait = \"3s\"\n").expect("a configuration");
    let server = Server::start(&home, &["--config", "serve.toml"]);
    let slow = json!({"prompt": "a", "seed": 1, "steps": 100, "width": 256, "height": 256});
    let running = server.submit(&slow);
    let waiting = server.submit(&job(2, 2));
    server.until_denoising(&running);
    let other = OtherProcess::hold(&home, total_bytes(&server));
    server.done(&running);
    let failed = server.until(&waiting, &["done", "failed"]);
    assert_eq!(failed["error"]["code"], "does_not_fit", "{failed}");
    assert!(!failed["error"]["nearest"].is_null(), "{failed}");
    other.end();
    server.done(&server.submit(&job(3, 2)));
}
