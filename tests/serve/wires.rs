//! The two foreign protocols over the real daemon: by their clients' own libraries where
//! `BERTH_PYTHON` names a Python that has them, and what only a job that computes shows.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::client::{Server, token};
use crate::open_metrics;
use crate::support::watched::PATIENCE;
use crate::support::{Home, fixture, root};

/// Set where the clients' packages are.
const PYTHON: &str = "BERTH_PYTHON";

/// A job that does not end within a test.
fn endless() -> Value {
    json!({"prompt": "a", "steps": 1000, "width": 512, "height": 512})
}

#[test]
fn a_web_ui_sees_the_picture_on_its_way() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    // The model is loaded by a job without previews, and stays so.
    server.done(&server.submit(&json!({"prompt": "a", "steps": 2})));
    std::thread::scope(|threads| {
        let asked = threads.spawn(|| server.ask("POST", "/sdapi/v1/txt2img", Some(&endless())));
        let deadline = Instant::now() + PATIENCE;
        let picture = loop {
            let progress = server.get("/sdapi/v1/progress");
            if let Some(picture) = progress["current_image"].as_str() {
                break base64::decode(picture).expect("base64");
            }
            assert!(Instant::now() < deadline && !asked.is_finished(), "{progress}");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(png::Decoder::new(&mut std::io::Cursor::new(picture)).read_info().is_ok());
        let without = server.get("/sdapi/v1/progress?skip_current_image=true");
        assert_eq!(without["current_image"], Value::Null);
        assert!(without["progress"].as_f64().is_some_and(|part| part > 0.0), "{without}");
        assert_eq!(server.ask("POST", "/sdapi/v1/interrupt", None).status, 200);
        let answer = asked.join().expect("an answer");
        assert_eq!((answer.status, &answer.json()["images"]), (200, &json!([])));
    });
    let text = String::from_utf8(server.ask("GET", "/metrics", None).body).expect("text");
    let loads = &open_metrics::read(&text)["berth_model_loads"].samples;
    assert!(matches!(&loads[..], [one] if one.value == 1.0), "{loads:?}");
}

#[test]
fn the_clients_own_libraries_agree_with_the_daemon() {
    let Some(python) = std::env::var_os(PYTHON) else {
        eprintln!("passed over: {PYTHON} names no Python with the clients' packages");
        return;
    };
    let scripts = root().join("tests/clients");
    let run = |script: &str, server: &Server, more: &[&str]| {
        let mut command = Command::new(&python);
        let url = format!("http://{}", server.address);
        let output = command.arg(scripts.join(script)).arg(url).args(more).output();
        let output = output.expect("python starts");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script} {more:?}: {told}");
        println!("{}", String::from_utf8_lossy(&output.stdout));
    };
    let home = Home::new();
    let models = home.path("models");
    fs::create_dir(&models).expect("a folder");
    std::os::unix::fs::symlink(fixture("flux_schnell"), models.join("other")).expect("a link");
    let server = Server::start(&home, &["--models", "models"]);
    run("openai_client.py", &server, &[]);
    run("webuiapi_client.py", &server, &["--other", "other"]);
    let guarded_home = Home::new();
    let (token, file) = token(&guarded_home);
    let guarded = Server::start(&guarded_home, &["--token-file", &file]);
    run("webuiapi_client.py", &guarded, &["--token", &token]);
}
