//! Names from templates, and that nobody's file is overwritten by them.

use std::fs;
use std::process::Stdio;

use super::{GENERATE, generated, made};
use crate::support::{Home, golden};

/// Processes that count up in one folder at the same time.
const AT_ONCE: usize = 4;

#[test]
fn fields_become_values() {
    let home = Home::new();
    let batch = ["--batch", "2", "--seed", "7"];
    for (template, expected) in [
        ("s{seed}.png", ["s7.png", "s8.png"]),
        ("i{index}.png", ["i1.png", "i2.png"]),
        ("n{n}.png", ["n1.png", "n2.png"]),
        ("{n}{{x}}{index}.png", ["1{x}1.png", "1{x}2.png"]),
        ("plain.png", ["plain-1.png", "plain-2.png"]),
    ] {
        let ended = generated(&home, &[&[template][..], &batch].concat());
        assert!(ended.stdout.starts_with(&expected.join(", ")), "{template}: {}", ended.stdout);
        for name in expected {
            assert!(home.path(name).is_file(), "{template}: {name}");
        }
    }
}

#[test]
fn the_model_and_the_day_are_values() {
    let home = Home::new();
    // As the program sees the day: it may change between two looks.
    let day = || jiff::Zoned::now().date().to_string();
    let days = [day(), {
        generated(&home, &["{date} {model}.jpg"]);
        day()
    }];
    let name = made(&home).remove(0);
    assert!(days.iter().any(|day| name.starts_with(&format!("{day} demo"))), "{name}");
    assert!(name.ends_with(".jpg"));
}

#[test]
fn numbers_count_past_files_that_are_there() {
    let home = Home::new();
    for name in ["a1.png", "a2.png", "a4.png"] {
        fs::write(home.path(name), "old").unwrap();
    }
    std::os::unix::fs::symlink("nowhere", home.path("a5.png")).unwrap();
    let ended = generated(&home, &["a{n}.png", "--batch", "2"]);
    assert!(ended.stdout.starts_with("a3.png, a6.png: "), "{}", ended.stdout);
    for name in ["a1.png", "a2.png", "a4.png"] {
        assert_eq!(fs::read(home.path(name)).unwrap(), b"old");
    }
}

#[test]
fn processes_that_count_at_once_take_numbers_of_their_own() {
    let home = Home::new();
    generated(&home, &["first.png"]);
    let outputs = ["{n}.png", "--batch", "3"];
    let start = |_| {
        let mut berth = home.berth(&[&GENERATE[..], &outputs].concat());
        berth.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = (0..AT_ONCE).map(start).collect();
    let mut told = Vec::new();
    for child in running {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let summary = String::from_utf8(output.stdout).unwrap();
        let (names, _) = summary.split_once(": ").unwrap();
        told.extend(names.split(", ").map(str::to_owned));
    }
    told.sort();
    let mut there = made(&home);
    there.retain(|name| name != "first.png");
    assert_eq!(told, there);
    assert_eq!(told.len(), 3 * AT_ONCE, "{told:?}");
}

#[test]
fn what_is_no_template_is_refused() {
    let home = Home::new();
    for (name, output) in [("field", "{prompt}.png"), ("brace", "a{seed.png")] {
        let ended =
            golden::run(&format!("outputs-{name}"), &home, &[&GENERATE[..], &[output]].concat());
        assert_eq!(ended.code, Some(2));
    }
    assert_eq!(made(&home), [""; 0]);
}
