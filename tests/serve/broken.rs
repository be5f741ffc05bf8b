//! GPUs whose contexts break under the daemon: executors end, jobs go on. On simulated machines.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::client::Server;
use crate::devices::devices_of;
use crate::support::Home;
use crate::support::simulator::Machine;

fn job(seed: u64) -> Value {
    json!({"prompt": "a red circle", "seed": seed, "steps": 2, "width": 64, "height": 64})
}

/// What runs teach would have the host compute so small a model: it does not.
const GPUS_ONLY: &str = "name = \"gpus\"\ndevices = \"detect\"\n[host]\ncompute = false\n";

/// A daemon on two GPUs. A context on the first one breaks in the middle of a job.
fn server(home: &Home, passing: u32) -> Server {
    let folder = home.path("gpus");
    fs::create_dir(&folder).expect("a folder");
    fs::write(home.path("gpus.toml"), GPUS_ONLY).expect("a profile");
    let mut command = home.berth(&["serve", "--host", "./gpus.toml"]);
    let machine = Machine::new(2).with("memory", "1GiB").with("lost", "0:300:702");
    machine.with("passing", passing).shared(&folder).apply(&mut command);
    command.stderr(Stdio::inherit());
    Server::run(command)
}

fn failed_on(job: &Value) -> Vec<&str> {
    let failures = job["failures"].as_array().expect("a list");
    failures.iter().map(|failure| failure["device"].as_str().expect("a device")).collect()
}

/// Waits until `is_it` holds of what the daemon says of the first GPU's being left out.
fn until_left_out(server: &Server, is_it: impl Fn(&Value) -> bool) {
    server.until_answer("/v1/devices", |answer| {
        answer.status == 200 && is_it(&answer.json()["devices"][0]["left_out"])
    });
}

#[test]
fn a_context_that_breaks_once_costs_a_new_process_and_no_device() {
    let home = Home::new();
    let server = server(&home, 1);
    let waiting = [1, 2, 1].map(|seed| server.submit(&job(seed)));
    let [first, second, again] = waiting.each_ref().map(|id| server.done(id));
    assert_eq!(failed_on(&first), ["cuda0"], "{first}");
    until_left_out(&server, Value::is_null);
    for job in [&first, &second, &again] {
        assert!(devices_of(job).contains(&"cuda0".to_owned()), "{job}");
    }
    assert_eq!([failed_on(&second), failed_on(&again)], [[""; 0]; 2], "{second} {again}");
    // Made in the middle of it, and by an executor that nothing broke.
    assert_eq!(server.picture(&waiting[0], 0), server.picture(&waiting[2], 0));
}

#[test]
fn a_gpu_that_breaks_every_context_is_left_out_and_the_other_makes_all_pictures() {
    let home = Home::new();
    let server = server(&home, 0);
    let waiting = [1, 2].map(|seed| server.submit(&job(seed)));
    let [first, second] = waiting.each_ref().map(|id| server.done(id));
    assert_eq!(failed_on(&first), ["cuda0", "cuda0"], "{first}");
    assert_eq!(failed_on(&second), [""; 0], "{second}");
    for job in [&first, &second] {
        let devices = devices_of(job);
        assert!(devices.iter().all(|name| name == "cuda1"), "{devices:?}");
    }
    until_left_out(&server, |out| {
        out["because"].as_str().is_some_and(|why| why.contains("is lost to this process"))
    });
}
