//! `berth generate --server` beside `berth generate`: what a person sees is the same.

use crate::client::Server;
use crate::daemon::endless;
use crate::support::terminal::on_a_terminal;
use crate::support::{Home, SLOW_HOST, pixels};

fn url(server: &Server) -> String {
    format!("http://{}", server.address)
}

#[test]
fn a_picture_is_made_again_by_a_daemon_from_its_settings() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let local = ["generate", "--host", "virtual-2x2g", "-p", "a red circle", "--seed", "7"];
    let more = ["--steps", "4", "--width", "80", "--batch", "2", "--output", "made-{index}.png"];
    let made = home.run(&[&local[..], &more].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let url = url(&server);
    let again = ["generate", "--server", &url, "--settings", "made-2.png"];
    let alone = home.run(&[&again[..], &["--output", "again.png"]].concat());
    assert_eq!((alone.code, alone.stderr.as_str()), (Some(0), ""), "nothing differs");
    assert!(pixels(&home.path("again.png")) == pixels(&home.path("made-2.png")));
    // What is given goes before what was recorded.
    let other = ["--seed", "9", "--batch", "1", "--output", "other.png", "--json"];
    let other = home.json(&[&again[..], &other].concat());
    assert_eq!(other["seeds"], serde_json::json!([9]), "{other}");
    assert!(pixels(&home.path("other.png")) != pixels(&home.path("made-2.png")));
    let gone = home.run(&["generate", "--server", &url, "--settings", "gone.png"]);
    assert_eq!(gone.code, Some(2), "{}", gone.stderr);
}

#[test]
fn a_picture_to_start_from_goes_along_with_its_settings() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let local = ["generate", "--host", "virtual-2x2g", "-p", "a", "--seed", "7", "--steps", "4"];
    let made = home.run(&[&local[..], &["--output", "first.png"]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let more = ["--init-image", "first.png", "--strength", "0.5", "--output", "second.png"];
    let made = home.run(&[&local[..], &more].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let url = url(&server);
    let again = ["generate", "--server", &url, "--settings", "second.png", "--output", "b.png"];
    let made = home.run(&again);
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(pixels(&home.path("b.png")) == pixels(&home.path("second.png")));
    std::fs::remove_file(home.path("first.png")).expect("it was there");
    let made = home.run(&again);
    assert_eq!(made.code, Some(2), "{}", made.stderr);
    assert!(made.stderr.contains("--init-image"), "{}", made.stderr);
}

#[test]
fn a_long_job_of_a_daemon_is_asked_for_too() {
    let home = Home::new();
    std::fs::write(home.path("slow.toml"), SLOW_HOST).expect("written");
    let server = Server::start_on(&home, "./slow.toml", &[]);
    let url = url(&server);
    let arguments = ["generate", "--server", &url, "-p", "a", "--steps", "8"];
    let (status, said) = on_a_terminal(home.berth(&arguments), "go on? [y/N] ", "n\n");
    assert!(!status.success() && said.contains("predicted to take "), "{said}");
    let jobs = || server.get("/v1/jobs")["data"].as_array().map(Vec::len);
    assert_eq!(jobs(), Some(0), "nothing was asked of the daemon");
    let (status, said) = on_a_terminal(home.berth(&arguments), "go on? [y/N] ", "y\n");
    assert!(status.success() && home.path("berth.png").exists(), "{said}");
    // Scripts are warned, and not asked.
    let ended = home.run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("predicted to take "), "{}", ended.stderr);
    assert!(!ended.stderr.contains("go on?"), "{}", ended.stderr);
    assert_eq!(jobs(), Some(2));
}

#[test]
fn jobs_are_listed_and_cancelled_wherever_the_daemon_is_named() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let url = url(&server);
    for cancel in [["jobs", "--server", &url, "cancel"], ["jobs", "cancel", "--server", &url]] {
        let id = server.submit(&endless());
        server.until_denoising(&id);
        let listed = home.run(&["jobs", "--server", &url]);
        assert!(listed.code == Some(0) && listed.stdout.contains(&id), "{}", listed.stdout);
        let ended = home.run(&[&cancel[..], &[&id]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let job = server.until(&id, &["done", "failed", "cancelled"]);
        assert_eq!(job["state"], "cancelled", "{job}");
    }
}
