//! GPUs whose memory others take, and whose driver falls silent, on a simulated machine.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::client::Server;
use crate::devices::{OtherProcess, devices_of};
use crate::support::Home;
use crate::support::simulator::{Machine, Simulator};

/// A configuration by which all is on the only GPU.
const ON_GPU: &str = "[policy]\nbackend = \"all=cuda0\"\n";

fn job(seed: u64, steps: u32) -> Value {
    json!({"prompt": "a red circle", "seed": seed, "steps": steps, "width": 64, "height": 64})
}

/// A daemon on a machine with one GPU, whose NVML is looked for in a folder of its own.
fn server(home: &Home) -> Server {
    fs::write(home.path("serve.toml"), ON_GPU).expect("a configuration");
    let driver = home.path("driver");
    fs::create_dir_all(&driver).expect("a folder");
    fs::copy(Simulator::built().nvml(), nvml(home)).expect("a library");
    let mut command = home.berth(&["serve", "--config", "serve.toml"]);
    Machine::new(1).with("memory", "1GiB").apply(&mut command);
    command.env("LD_LIBRARY_PATH", driver).stderr(Stdio::inherit());
    Server::run(command)
}

fn nvml(home: &Home) -> std::path::PathBuf {
    home.path("driver/libnvidia-ml.so.1")
}

/// Of the only GPU in a job's plan.
fn bytes(job: &Value, key: &str) -> u64 {
    let bytes = job["plan"]["devices"][0][key].as_u64();
    bytes.unwrap_or_else(|| panic!("{key} of {job}"))
}

fn unload(server: &Server) {
    let answer = server.ask("POST", "/v1/models/demo/unload", None);
    assert!(answer.status < 300, "{}", answer.status);
    server.until_model("demo", "cold");
}

#[test]
fn a_loaded_model_is_planned_smaller_where_others_take_the_memory() {
    let home = Home::new();
    let server = server(&home);
    server.done(&server.submit(&job(1, 2)));
    // What context and libraries take is known to the next plan.
    unload(&server);
    let whole = server.done(&server.submit(&job(2, 2)));
    let running = server.submit(&job(3, 40));
    let waiting = server.submit(&job(4, 2));
    server.until_denoising(&running);
    // All but what context and libraries take, and half of the rest of the plan.
    let (overhead, peak) = (bytes(&whole, "overhead_bytes"), bytes(&whole, "peak_bytes"));
    let left = overhead + (peak - overhead) / 2;
    let gpu =
        server.get("/v1/devices")["devices"][0]["uuid"].as_str().expect("it has one").to_owned();
    let other = OtherProcess::hold_of(&home, 0, &[(&gpu, bytes(&whole, "budget_bytes") - left)]);
    let undisturbed = server.done(&running);
    assert_eq!(bytes(&undisturbed, "peak_bytes"), peak, "who runs is left alone");
    let smaller = server.done(&waiting);
    assert!(bytes(&smaller, "peak_bytes") <= left, "{smaller}");
    assert_eq!(smaller["failures"], json!([]));
    assert!(devices_of(&smaller).iter().all(|name| name == "cuda0"), "{smaller}");
    // What is made of the same request is the same.
    other.end();
    let again = server.submit(&job(4, 2));
    server.done(&again);
    assert_eq!(server.picture(&waiting, 0), server.picture(&again, 0));
}

#[test]
fn a_driver_that_falls_silent_costs_no_job() {
    let home = Home::new();
    let server = server(&home);
    server.done(&server.submit(&job(1, 2)));
    fs::rename(nvml(&home), home.path("driver/away")).expect("it is there");
    // The loaded plan, one of another size, and another executor.
    let mut larger = job(2, 2);
    larger["width"] = json!(128);
    for request in [&job(2, 2), &larger] {
        let done = server.done(&server.submit(request));
        assert!(devices_of(&done).iter().all(|name| name == "cuda0"), "{done}");
    }
    unload(&server);
    let done = server.done(&server.submit(&job(3, 2)));
    assert!(devices_of(&done).iter().all(|name| name == "cuda0"), "{done}");
}
