//! Executors and daemons that are killed at any moment: no job is lost, none is done twice, and the
//! pictures are those of an undisturbed run. `BERTH_KILLS_MANY=50` kills a daemon so often, and
//! executors twice as often; else it is some.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::client::Server;
use crate::support::Home;
use crate::support::kills::{many, moment};
use crate::support::watched::Process;

/// Kills of a daemon in a quick run; of executors there are twice as many.
const SOME: usize = 3;

/// Jobs in the queue at each kill of a daemon.
const JOBS: u64 = 8;

/// A job during which the daemon ended so often is failed: `DAEMON_DEATHS_MAX` of the desk.
const DAEMON_DEATHS_MAX: u64 = 2;

/// Jobs of several sizes and numbers of pictures, about a tenth of a second each.
fn job(number: u64) -> Value {
    let (steps, n) = (20 + number % 3 * 20, 1 + number % 2);
    let width = [64, 128, 64][number as usize % 3];
    json!({"prompt": "a red circle", "seed": number * 10, "steps": steps, "width": width, "n": n})
}

fn pictures_of(server: &Server, id: &str) -> Vec<Vec<u8>> {
    let job = server.job(id);
    let count = job["pictures"].as_array().expect("its pictures").len();
    (0..count).map(|index| server.picture(id, index)).collect()
}

/// Submits all jobs, each of which must be accepted.
fn submit_all(server: &Server) -> Vec<String> {
    (0..JOBS).map(|number| server.submit(&job(number))).collect()
}

/// The pictures of all jobs in an undisturbed run, and how long that took.
fn undisturbed() -> (Vec<Vec<Vec<u8>>>, Duration) {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    server.done(&server.submit(&job(0)));
    let began = std::time::Instant::now();
    let ids = submit_all(&server);
    ids.iter().for_each(|id| drop(server.done(id)));
    let took = began.elapsed();
    (ids.iter().map(|id| pictures_of(&server, id)).collect(), took)
}

/// All files of pictures that a daemon keeps, by their jobs.
fn gallery(home: &Home) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    let days =
        fs::read_dir(home.beside("state").join("berth/serve/pictures")).into_iter().flatten();
    let files = days.flatten().flat_map(|day| fs::read_dir(day.path()).into_iter().flatten());
    let paths: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    for path in paths.iter().filter(|path| is(path, "png")) {
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let (job, _) = name.rsplit_once('-').expect("a job's picture");
        *found.entry(job.to_owned()).or_default() += 1;
    }
    // What was on its way at a death is gone by the next start.
    let others = paths.iter().filter(|path| !is(path, "png") && !is(path, "json"));
    assert_eq!(others.collect::<Vec<_>>(), [] as [&PathBuf; 0]);
    found
}

fn is(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found == ending)
}

#[test]
fn a_daemon_that_is_killed_at_any_moment_loses_no_job_and_does_none_twice() {
    let (expected, took) = undisturbed();
    let home = Home::new();
    Server::start(&home, &[]).kill();
    for index in 0..many(SOME) {
        let server = Server::start(&home, &[]);
        let ids = submit_all(&server);
        // From the first job's load to the last one's pictures, and a bit beyond.
        std::thread::sleep(took.mul_f64(moment(index) * 1.2));
        let executors = server.executors();
        server.kill();
        for executor in &executors {
            assert!(executor.ends_within(Duration::from_secs(10)), "it outlives its daemon");
        }
        let server = Server::start(&home, &[]);
        for (id, expected) in ids.iter().zip(&expected) {
            let job = server.done(id);
            let pictures = pictures_of(&server, id);
            assert!(pictures == *expected, "kill {index}: other pictures: {job}");
            // What ran, and what was not known to be written, began again.
            assert!((1..=2).contains(&job["attempts"].as_u64().expect("a count")), "{job}");
        }
        let kept = gallery(&home);
        for (id, expected) in ids.iter().zip(&expected) {
            assert_eq!(kept.get(id), Some(&expected.len()), "kill {index}: files of {id}");
            let gone = server.ask("DELETE", &format!("/v1/jobs/{id}"), None);
            assert_eq!(gone.status, 204, "{}", String::from_utf8_lossy(&gone.body));
        }
        let listed = server.get("/v1/jobs?limit=100");
        assert_eq!(listed["data"], json!([]), "kill {index}: a job that nobody asked for");
        server.process.send(Signal::TERM);
        assert_eq!(server.ends(Duration::from_secs(20)), Some(0));
        assert_eq!(gallery(&home), BTreeMap::new(), "kill {index}: files of no job");
    }
}

#[test]
fn a_job_that_ends_its_daemon_again_and_again_is_given_up() {
    let home = Home::new();
    let endless = json!({"prompt": "a", "seed": 1, "steps": 1000, "width": 512, "height": 512});
    let mut server = Server::start(&home, &[]);
    let killer = server.submit(&endless);
    let other = server.submit(&job(1));
    for _ in 0..DAEMON_DEATHS_MAX {
        server.until_denoising(&killer);
        server.kill();
        server = Server::start(&home, &[]);
    }
    let failed = server.until(&killer, &["done", "failed"]);
    assert_eq!(failed["error"]["code"], "internal", "{failed}");
    server.done(&other);
}

/// The phases of a job as the daemon tells them.
const PHASES: [&str; 4] = ["load", "condition", "denoise", "decode"];

/// Waits until a job is in a phase, or has ended before that was seen.
fn until_phase(server: &Server, id: &str, phase: &str) {
    server.until_answer(&format!("/v1/jobs/{id}"), |answer| {
        let job = answer.json();
        let state = job["state"].as_str().expect("a state");
        let is_there = match phase {
            "load" => state == "loading",
            phase => job["progress"]["phase"] == phase,
        };
        is_there || matches!(state, "filing" | "done" | "failed" | "cancelled")
    });
}

#[test]
fn executors_that_are_killed_in_each_phase_lose_no_job() {
    let home = Home::new();
    let profile = "name = \"slow\"\n[host]\ncompute = false\nstorage_bandwidth = \"9GB/s\"\n\
                   [[device]]\nkind = \"virtual\"\ntotal = \"64MiB\"\nlink = \"8MiB/s\"\n";
    fs::write(home.path("slow.toml"), profile).expect("a profile");
    let server = Server::start_on(&home, "./slow.toml", &[]);
    let kept = |number: u64| {
        let mut job = job(number);
        job["n"] = json!(1);
        job
    };
    let expected: Vec<Vec<u8>> = (0..3)
        .map(|number| {
            let id = server.submit(&kept(number));
            server.done(&id);
            server.picture(&id, 0)
        })
        .collect();
    let mut deaths = 0;
    for index in 0..2 * many(SOME) {
        let ids: Vec<String> = (0..3).map(|number| server.submit(&kept(number))).collect();
        let victim = &ids[index / PHASES.len() % 3];
        // Weights are loaded again after a kill only.
        until_phase(&server, victim, PHASES[index % PHASES.len()]);
        let executors = server.executors();
        let aimed_at: Vec<&Process> = match index % 3 {
            0 => executors.iter().collect(),
            _ => executors.iter().max_by_key(|process| process.pid).into_iter().collect(),
        };
        aimed_at.iter().for_each(|executor| executor.send(Signal::KILL));
        for (id, expected) in ids.iter().zip(&expected) {
            let job = server.done(id);
            deaths += job["failures"].as_array().expect("a list").len();
            assert_eq!(job["pictures"].as_array().map(Vec::len), Some(1), "kill {index}: {job}");
            assert!(server.picture(id, 0) == *expected, "kill {index}: another picture: {job}");
        }
    }
    assert!(deaths > 0, "no kill met a job");
}
