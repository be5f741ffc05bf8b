//! What is said where a number is out of its range: golden text.

use std::fs;

use crate::support::{Home, fixture, golden};

/// A host with so much memory free.
fn host(available: &str, cores: u32) -> String {
    format!(
        "name = \"small\"\n[host]\nmemory = \"1GiB\"\navailable = \"{available}\"\ncores = {cores}\n"
    )
}

#[test]
fn cores_beyond_the_limit_are_told_by_file_and_key() {
    let home = Home::new();
    fs::write(home.path("many.toml"), host("900MiB", 2048)).expect("the home can be written");
    golden::run("profile-cores", &home, &["plan", "--dry-run", "--host", "./many.toml"]);
}

#[test]
fn a_margin_that_takes_all_is_told_as_the_margin() {
    let home = Home::new();
    fs::write(home.path("small.toml"), host("300MiB", 2)).expect("the home can be written");
    let plan = ["plan", "--dry-run", "--host", "./small.toml"];
    golden::run("all-is-margin", &home, &plan);
    // What is proposed helps.
    let ended = home.run(&[&plan[..], &["--max-ram=-128MiB"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_strength_that_runs_no_step_is_told_with_one_that_does() {
    let home = Home::new();
    let picture = fixture("pictures/rgb.png");
    fs::copy(picture, home.path("from.png")).expect("the home can be written");
    let from = ["generate", "--prompt", "a", "--width", "64", "--height", "64"];
    let from = [&from[..], &["--init-image", "from.png"]].concat();
    golden::run("strength-0", &home, &[&from[..], &["--strength", "0"]].concat());
    let ended = home.run(&[&from[..], &["--strength", "0.09"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_side_below_the_least_is_told_only_what_is_possible() {
    golden::run("width-8", &Home::new(), &["plan", "--dry-run", "--width", "8"]);
}
