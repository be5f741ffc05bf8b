//! Jobs that are alike and run as one batch: each has the very picture that it has alone.

use planner::job::JobRequest;
use planner::job::seed::Seed;
use planner::serve::desk::event::{MadePicture, Said};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bench::{Bench, one_device, request};
use crate::client::Server;
use crate::support::wide::Wide;
use crate::support::{Home, fixture};

/// A device that streams the weights of [`Wide::bf16`] by a slow link.
fn streaming() -> String {
    one_device(12, "64MiB/s")
}

fn job(prompt: &str, seed: u64, count: u32) -> JobRequest {
    let mut request = request();
    request.prompts.prompt = Some(prompt.to_owned());
    request.seed = Some(Seed::Given(seed));
    request.shape.batch = Some(count);
    request
}

/// What a picture is, wherever it was made.
fn told(picture: &MadePicture) -> (u32, u64, &[u8], String) {
    (picture.index, picture.seed, &picture.pixels, format!("{:?}", picture.settings))
}

#[test]
fn jobs_of_one_run_have_the_pictures_and_settings_that_each_has_alone() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let long = "a very long tail of words ".repeat(40);
    let jobs = [job("a blue square", 5, 1), job(&long, 900, 2), job("a blue square", 17, 1)];
    let alone = jobs.clone().map(|job| bench.done(job).1);
    let [first, company @ ..] = jobs;
    bench.order_joined(first, company.to_vec());
    let Some(Said::Done(together)) = bench.heard().pop() else { panic!("it is done") };
    let expected: Vec<_> = alone.iter().flat_map(|work| &work.pictures).map(told).collect();
    assert_eq!(together.pictures.len(), 4);
    assert!(together.pictures.iter().map(told).collect::<Vec<_>>() == expected);
    let notices: Vec<_> = alone.iter().map(|work| work.notices[0].clone()).collect();
    assert_eq!(together.notices, notices, "each is told of its own prompt");
    assert!(notices[0].is_empty() && !notices[1].is_empty(), "{notices:?}");
    // All of them are known by now: no text encoder runs.
    let ran = together.usage.components.iter().filter(|component| component.calls > 0);
    assert_eq!(ran.map(|c| c.name.as_str()).collect::<Vec<_>>(), ["dit", "vae"]);
}

#[test]
fn jobs_gain_by_a_batch_where_weights_are_streamed() {
    let home = Home::new();
    Wide::bf16().write(&home.path("model")).expect("a file system with room");
    let mut bench = Bench::with_model(&streaming(), &home.path("model"));
    let prompts = ["one", "two", "three", "four"];
    let jobs = prompts.map(|prompt| job(prompt, 7, 1));
    let alone = bench.quote(jobs[0].clone()).expect("it fits").offer;
    let times = bench.joined(jobs.to_vec()).expect("an answer").expect("they gain");
    assert_eq!(times.jobs, [0, 1, 2, 3]);
    assert!(times.run_ms <= 0.9 * 4.0 * alone.run_ms, "{times:?}, alone {}", alone.run_ms);
    // Another size is another run.
    let mut other = job("two", 7, 1);
    other.shape.width = Some(96);
    let mixed = vec![jobs[0].clone(), other, jobs[2].clone()];
    let times = bench.joined(mixed).expect("an answer").expect("two gain");
    assert_eq!(times.jobs, [0, 2]);
}

#[test]
fn prompts_of_their_own_join_only_where_the_family_takes_them() {
    let mut bench = Bench::with_model(&one_device(3, "64MiB/s"), &fixture("zimage_turbo"));
    let jobs = ["one", "two", "one"].map(|prompt| job(prompt, 7, 1));
    let times = bench.joined(jobs.to_vec()).expect("an answer");
    assert!(times.is_none_or(|times| times.jobs == [0, 2]), "two prompts are one batch");
}

/// A daemon whose weights are streamed.
fn server(home: &Home) -> Server {
    std::fs::write(home.path("streaming.toml"), streaming()).expect("a scratch file");
    let config = format!("models = [{:?}]\n", home.path("models"));
    std::fs::write(home.path("serve.toml"), config).expect("a scratch file");
    Server::start_on(home, "./streaming.toml", &["--config", "serve.toml"])
}

fn home() -> Home {
    let home = Home::new();
    std::fs::create_dir(home.path("models")).expect("a scratch folder");
    Wide::bf16().write(&home.path("models/wide")).expect("a file system with room");
    home
}

const PROMPTS: [&str; 4] = ["a red circle", "a blue square", "a green tree", "nothing at all"];

/// Jobs of these prompts that wait, and begin together.
fn begun_together(server: &Server, steps: u32) -> Vec<String> {
    assert_eq!(server.ask("POST", "/v1/queue/pause", None).status, 200);
    let job = |seed: u64, prompt: &str| {
        json!({
            "prompt": prompt, "seed": seed, "steps": steps, "width": 64, "height": 64,
            "max_sequence_length": 32, "model": "wide",
        })
    };
    let ids: Vec<String> =
        (3..).zip(PROMPTS).map(|(seed, prompt)| server.submit(&job(seed, prompt))).collect();
    // A quote comes after the answer about the batch: the surveyor takes one after the other.
    assert_eq!(server.ask("POST", "/v1/plan", Some(&job(1, "another one"))).status, 200);
    assert_eq!(server.ask("POST", "/v1/queue/resume", None).status, 200);
    ids
}

/// A figure of the only model.
fn figure(server: &Server, name: &str) -> f64 {
    let text = String::from_utf8(server.ask("GET", "/metrics", None).body).expect("text");
    let mut lines = text.lines().filter_map(|line| line.split_once("{model=\"wide\"} "));
    let value = lines.find(|(known, _)| *known == name).map(|(_, value)| value);
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The file that `generate` makes of one of the prompts.
fn generated(home: &Home, at: usize, steps: u32) -> Vec<u8> {
    let (seed, steps) = ((3 + at).to_string(), steps.to_string());
    let model = home.path("models/wide").display().to_string();
    let output = format!("{at}.png");
    let made = home.run(&[
        "generate",
        &model,
        "-p",
        PROMPTS[at],
        "--seed",
        &seed,
        "--steps",
        &steps,
        "--width",
        "64",
        "--height",
        "64",
        "--max-sequence-length",
        "32",
        "--host",
        "./streaming.toml",
        "--output",
        &output,
    ]);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    std::fs::read(home.path(&output)).expect("it was written")
}

#[test]
fn four_jobs_of_a_streamed_model_run_as_one_batch() {
    let home = home();
    let server = server(&home);
    let ids = begun_together(&server, 4);
    let jobs: Vec<Value> = ids.iter().map(|id| server.done(id)).collect();
    assert_eq!(figure(&server, "berth_batch_size_sum"), 4.0);
    assert_eq!(figure(&server, "berth_batch_size_count"), 1.0);
    for (at, (id, job)) in ids.iter().zip(&jobs).enumerate() {
        assert!(server.picture(id, 0) == generated(&home, at, 4), "{job}");
        assert_eq!(job["pictures"].as_array().map(Vec::len), Some(1));
        let notices = job["notices"].to_string();
        assert!(notices.contains("in one batch with 3 more"), "{notices}");
        assert_eq!(job["plan"]["job"]["batch"], 4);
        let alone_ms = job["quote"]["run_ms"].as_f64().expect("a time");
        let together_ms = job["plan"]["predicted_ms"]["next_total"].as_f64().expect("a time");
        assert!(together_ms <= 0.9 * 4.0 * alone_ms, "{together_ms} ms, alone {alone_ms} ms");
        assert_eq!(job["attempts"], 1, "{job}");
    }
}

#[test]
fn one_of_a_batch_is_cancelled_and_the_others_are_done() {
    let home = home();
    let server = server(&home);
    let ids = begun_together(&server, 12);
    server.until_denoising(&ids[1]);
    let answer = server.ask("POST", &format!("/v1/jobs/{}/cancel", ids[1]), None);
    assert!(answer.status < 300, "{}", String::from_utf8_lossy(&answer.body));
    let cancelled = server.until(&ids[1], &["cancelled", "done", "failed"]);
    assert_eq!(cancelled["state"], "cancelled");
    let others = server.job(&ids[0]);
    assert_ne!(others["state"], "done", "it ends before them");
    for at in [0, 2, 3] {
        server.done(&ids[at]);
        assert!(server.picture(&ids[at], 0) == generated(&home, at, 12), "{at}");
    }
    assert_eq!(figure(&server, "berth_batch_size_count"), 1.0);
}

#[test]
fn a_batch_survives_its_daemon_and_each_job_runs_alone_then() {
    let home = home();
    let first = server(&home);
    let ids = begun_together(&first, 12);
    first.until_denoising(&ids[0]);
    first.kill();
    let server = server(&home);
    for (at, id) in ids.iter().enumerate() {
        let job = server.done(id);
        assert_eq!(job["attempts"], 2, "{job}");
        assert_eq!(job["pictures"].as_array().map(Vec::len), Some(1));
        assert!(server.picture(id, 0) == generated(&home, at, 12), "{at}");
    }
    assert_eq!(figure(&server, "berth_batch_size_sum"), 4.0);
    assert_eq!(figure(&server, "berth_batch_size_count"), 4.0);
    let listed = server.get("/v1/jobs");
    assert_eq!(listed["data"].as_array().map(Vec::len), Some(4), "{listed}");
}

#[test]
fn a_batch_survives_its_executor() {
    let home = home();
    let server = server(&home);
    let ids = begun_together(&server, 12);
    server.until_denoising(&ids[0]);
    let computing = server.get("/v1/devices");
    for executor in server.executors() {
        executor.send(Signal::KILL);
    }
    for (at, id) in ids.iter().enumerate() {
        let job = server.done(id);
        assert!(!job["failures"].as_array().expect("a list").is_empty(), "{job} {computing}");
        assert!(server.picture(id, 0) == generated(&home, at, 12), "{at}");
    }
}
