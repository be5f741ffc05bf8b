//! The daemon over a store that is damaged, and over disks that are full.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Server;
use crate::support::Home;

/// How long the daemon may take to end where nothing runs.
const SOON: Duration = Duration::from_secs(20);

fn short(seed: u64) -> Value {
    json!({"prompt": "a red circle", "seed": seed, "steps": 2})
}

fn folder(home: &Home) -> PathBuf {
    home.beside("state").join("berth/serve")
}

/// A daemon whose words on standard error are in the file `log`.
fn told(home: &Home) -> Server {
    let mut command = home.berth(&["serve", "--host", "virtual-2x2g"]);
    command.stderr(File::create(home.path("log")).expect("a file"));
    Server::run(command)
}

fn ends(server: Server) {
    server.process.send(Signal::TERM);
    assert_eq!(server.ends(SOON), Some(0));
}

fn warnings(server: &Server) -> Vec<Value> {
    server.get("/readyz")["warnings"].as_array().expect("a list").clone()
}

#[test]
fn a_damaged_store_is_put_aside_and_told_until_that_is_acknowledged() {
    let damages: [fn(&mut Vec<u8>); 2] =
        [|bytes| bytes.truncate(bytes.len() / 2 + 100), |bytes| bytes.fill(0xa5)];
    for damage in damages {
        let home = Home::new();
        let server = told(&home);
        let lost = server.submit(&short(1));
        server.done(&lost);
        ends(server);
        let store = folder(&home).join("jobs.redb");
        let mut bytes = fs::read(&store).expect("the store");
        damage(&mut bytes);
        fs::write(&store, &bytes).expect("it is written");

        let server = told(&home);
        let told_now = warnings(&server);
        assert!(told_now.len() == 1 && told_now[0].as_str().is_some_and(|w| w.contains("damaged")));
        let log = fs::read_to_string(home.path("log")).expect("its words");
        assert!(log.contains("berth: the job store was damaged"), "{log}");
        let entries = fs::read_dir(folder(&home)).expect("its folder").flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let aside = names.find(|name| name.starts_with("jobs.redb.damaged-"));
        let aside = folder(&home).join(aside.expect("it is kept"));
        assert!(fs::read(aside).expect("the damaged file") == bytes);
        assert_eq!(server.ask("GET", &format!("/v1/jobs/{lost}"), None).status, 404);
        server.done(&server.submit(&short(2)));
        assert_eq!(warnings(&server), told_now, "until it is acknowledged");
        let answer = server.ask("POST", "/v1/warnings/acknowledge", None);
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        assert_eq!(warnings(&server), [] as [Value; 0]);
        server.kill();
        // Not again where nothing is damaged.
        let server = Server::start(&home, &[]);
        assert_eq!(warnings(&server), [] as [Value; 0]);
    }
}

/// A daemon whose jobs and pictures are on a small disk of its own, and that disk as the test sees
/// it; `None` where nobody may mount one.
fn on_small_disk(home: &Home, size: &str, min_free: &str) -> Option<(Server, PathBuf)> {
    let disk = home.path("disk");
    fs::create_dir_all(&disk).expect("a folder");
    let config = home.path("serve.toml");
    fs::write(&config, format!("min_free = \"{min_free}\"\n")).expect("a configuration");
    let mount = format!("mount -t tmpfs -o size={size} none '{}'", disk.display());
    let may = Command::new("unshare").args(["-rm", "sh", "-c", &mount]).status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("passed over: nobody may mount a small disk here");
        return None;
    }
    let (disk, config) = (disk.display().to_string(), config.display().to_string());
    let arguments = ["serve", "--host", "virtual-2x2g", "--state", &disk, "--config", &config];
    let berth = home.berth(&arguments);
    let mut command = home.berth(&[]);
    let then = format!("{mount} && exec \"$@\"");
    let mut mounted = Command::new("unshare");
    mounted.args(["-rm", "sh", "-c", &then, "sh"]).arg(berth.get_program());
    mounted.args(berth.get_args()).current_dir(command.get_current_dir().expect("the home"));
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => mounted.env(key, value),
            None => mounted.env_remove(key),
        };
    }
    command = mounted;
    let server = Server::run(command);
    let seen = PathBuf::from(format!("/proc/{}/root{disk}", server.process.pid));
    Some((server, seen))
}

/// Takes all that is free but so many bytes.
fn fill(disk: &Path, but_bytes: u64) -> PathBuf {
    let path = disk.join("filler");
    let mut file = File::create(&path).expect("a file");
    while file.write_all(&[7; 4096]).is_ok() {}
    let length = file.metadata().expect("its length").len();
    file.set_len(length.saturating_sub(but_bytes)).expect("it is cut");
    path
}

#[test]
fn no_job_is_accepted_while_little_is_free() {
    let home = Home::new();
    let Some((server, disk)) = on_small_disk(&home, "24m", "4MiB") else { return };
    server.done(&server.submit(&short(1)));
    let filler = fill(&disk, 2 << 20);
    let answer = server.until_answer("/readyz", |answer| answer.status == 503);
    let reason = answer.json()["reasons"][0].as_str().expect("a reason").to_owned();
    assert!(reason.contains("free where pictures are kept"), "{reason}");
    let refused = server.ask("POST", "/v1/jobs", Some(&short(2)));
    assert_eq!(refused.status, 503, "{}", String::from_utf8_lossy(&refused.body));
    fs::remove_file(filler).expect("it is there");
    server.until_answer("/readyz", |answer| answer.status == 200);
    server.done(&server.submit(&short(3)));
}

#[test]
fn a_full_disk_costs_the_files_and_not_the_answer() {
    let home = Home::new();
    let Some((server, disk)) = on_small_disk(&home, "24m", "1B") else { return };
    server.done(&server.submit(&short(1)));
    let slow = json!({
        "prompt": "a red circle", "seed": 3, "num_inference_steps": 150, "size": "256x256",
    });
    let (answer, filler) = std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.ask("POST", "/v1/images/generations", Some(&slow)));
        server.until_answer("/v1/queue", |answer| answer.json()["jobs"][0]["state"] == "running");
        let filler = fill(&disk, 0);
        (asked.join().expect("it is answered"), filler)
    });
    let document = answer.json();
    assert_eq!(answer.status, 200, "{document}");
    let picture = document["data"][0]["b64_json"].as_str().expect("the picture");
    assert!(picture.starts_with("iVBORw0KGgo"), "a PNG file");
    let notices = document["berth"]["notices"].to_string();
    assert!(notices.contains("could not be written"), "{document}");
    // Nothing is accepted until there is room.
    server.until_answer("/readyz", |answer| answer.status == 503);
    let refused = server.ask("POST", "/v1/jobs", Some(&short(2)));
    assert_eq!(refused.status, 503, "{}", String::from_utf8_lossy(&refused.body));
    fs::remove_file(filler).expect("it is there");
    server.until_answer("/readyz", |answer| answer.status == 200);
    let id = document["berth"]["job"].as_str().expect("its name").to_owned();
    let job = server.until(&id, &["failed"]);
    assert_eq!(job["error"]["code"], "disk", "{job}");
    server.done(&server.submit(&short(4)));
}
