//! Devices that fail, and that lack operations: the job goes on without them, or says why it
//! cannot.

use serde_json::Value;

use super::{FAST, assert_error, assert_nothing_left, generate, pictures, profile};
use crate::support::watched::{PATIENCE, Watched};
use crate::support::{Ended, Home};

/// A slower device than [`FAST`], which is taken where that is not there.
pub const SLOWER: &str = "link = \"1GiB/s\"\n";

/// Runs a job on these devices, beside a host that only feeds them.
pub fn run(home: &Home, devices: &[&str], arguments: &[&str]) -> Ended {
    profile(home, false, devices, "");
    let arguments = [&["--prompt", "a large red circle", "--seed", "7"], arguments].concat();
    let ended = Watched::start(generate(home, &arguments)).end(PATIENCE);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended
}

pub fn fast(keys: &str) -> String {
    format!("{FAST}{keys}\n")
}

/// The devices of each component of a finished job's plan.
fn devices_of(document: &Value) -> Vec<String> {
    let components = document["plan"]["components"].as_array().expect("a plan has components");
    let names = components.iter().flat_map(|c| c["devices"].as_array().expect("devices"));
    names.map(|name| name.as_str().expect("a name").to_owned()).collect()
}

/// The picture of a finished job, which is taken away.
pub fn picture(home: &Home) -> Vec<u8> {
    assert_eq!(pictures(home).len(), 1);
    let path = home.path("picture.png");
    let bytes = std::fs::read(&path).expect("the picture");
    std::fs::remove_file(path).expect("the picture is there");
    assert_nothing_left(home, &[]);
    bytes
}

#[test]
fn a_job_goes_on_without_a_device_that_failed() {
    let home = Home::new();
    let expected = run(&home, &[FAST, SLOWER], &[]);
    assert_eq!(expected.code, Some(0), "{}", expected.stderr);
    let expected = picture(&home);
    // Copies of weights, and later ones of activations.
    for number in [1, 2, 5, 9] {
        let failing = fast(&format!("fail_copy = {number}"));
        let ended = run(&home, &[&failing, SLOWER], &[]);
        assert_eq!(ended.code, Some(0), "copy {number}: {}", ended.stderr);
        assert!(ended.stderr.contains("trying again"), "copy {number}: {}", ended.stderr);
        let document = ended.json();
        assert_eq!(document["attempts"], 2, "copy {number}: {}", ended.stderr);
        assert!(devices_of(&document).iter().all(|name| name == "virtual1"), "{document}");
        assert!(picture(&home) == expected, "copy {number}: another picture");
    }
}

#[test]
fn a_device_that_failed_is_named_where_nothing_can_replace_it() {
    let home = Home::new();
    let failing = fast("fail_copy = 1");
    let pinned = run(&home, &[&failing, SLOWER], &["--backend", "dit=virtual0"]);
    assert_error(&pinned);
    for part in ["virtual0 failed, and dit is pinned to it", "hint: name another device"] {
        assert!(pinned.stderr.contains(part), "no {part:?} in {}", pinned.stderr);
    }
    let only = run(&home, &[&failing], &[]);
    assert_eq!(only.code, Some(1), "{}", only.stderr);
    assert!(only.stderr.contains("virtual0: it failed"), "{}", only.stderr);
    assert_nothing_left(&home, &[]);
}

#[test]
fn what_a_device_cannot_do_the_host_does() {
    let home = Home::new();
    let lacking = fast("unsupported = [\"Conv2d\"]");
    // A host that only feeds devices does nothing in their place.
    let ended = run(&home, &[&lacking], &[]);
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let helped = |arguments: &[&str]| {
        profile(&home, true, &[&lacking], "");
        let arguments = [&["--prompt", "x", "--seed", "7", "--steps", "2"], arguments].concat();
        let ended = Watched::start(generate(&home, &arguments)).end(PATIENCE);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        (ended.json(), picture(&home))
    };
    let (_, expected) = helped(&["--backend", "all=cpu"]);
    let (document, found) = helped(&["--backend", "all=virtual0"]);
    assert!(found == expected, "another picture");
    let components = document["plan"]["components"].as_array().expect("components");
    let vae = components.iter().find(|c| c["name"] == "vae").expect("a decoder");
    let parts: Vec<&Value> = vae["parts"].as_array().expect("parts").iter().collect();
    assert_eq!(parts.len(), 2, "{vae:#}");
    assert_eq!((&parts[0]["device"], &parts[1]["device"]), (&"virtual0".into(), &"host".into()));
}
