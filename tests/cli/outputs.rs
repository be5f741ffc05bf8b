//! Where outputs go and what they hold: files behind links, pipes and terminals, what is refused;
//! formats, names, settings in each format; and what a killed planner leaves. By the real program;
//! every node is made by the tests.

mod destinations;
mod formats;
mod leftovers;
mod names;
mod refused;
mod streams;

use crate::support::{Ended, Home};

/// A job that takes a moment. An output's name follows.
const GENERATE: [&str; 10] = [
    "generate",
    "--prompt",
    "a red circle",
    "--width",
    "32",
    "--height",
    "32",
    "--steps",
    "1",
    "--output",
];

/// Ends a job's outputs where its picture must be another run's.
const SEED: [&str; 2] = ["--seed", "5"];

/// Runs that job with these outputs.
fn generate(home: &Home, outputs: &[&str]) -> Ended {
    home.run(&[&GENERATE[..], outputs].concat())
}

/// Runs that job with these outputs, which must succeed.
fn generated(home: &Home, outputs: &[&str]) -> Ended {
    let ended = generate(home, outputs);
    assert_eq!(ended.code, Some(0), "{outputs:?}: {}", ended.stderr);
    ended
}

/// What beginnings of files are there.
const PNG: &[u8] = b"\x89PNG";
const JPEG: &[u8] = &[0xff, 0xd8, 0xff];
const WEBP: &[u8] = b"RIFF";

/// The names in a home, without the folders that every run makes.
fn made(home: &Home) -> Vec<String> {
    let own = ["cache", "tmp"];
    home.files().into_iter().filter(|name| !own.contains(&name.as_str())).collect()
}
