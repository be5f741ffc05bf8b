//! What a killed planner leaves is gone after the next run, and nothing else is.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::{GENERATE, generated, made};
use crate::support::Home;

/// Kills, at moments spread over a run.
const KILLS: u32 = 12;

/// What is in the folder of the demo model.
fn folders(home: &Home) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(home.path("cache/berth")).unwrap().map(|entry| entry.unwrap().path())
}

#[test]
fn what_nobody_holds_is_removed_and_what_is_held_stays() {
    let home = Home::new();
    generated(&home, &["a.png"]);
    // Of a process that is alive, by number; what counts is that it holds no lock.
    let dead = format!(".berth-{}-abc123.part", std::process::id());
    let held = ".berth-1-abc123.part";
    let others = [".berth-abc123.part", "berth-1-a.part", ".berth-1-abc.png"];
    for name in others.iter().copied().chain([dead.as_str(), held]) {
        fs::write(home.path(name), "half").unwrap();
    }
    fs::create_dir_all(home.path("cache/berth/.berth-1-abc.new/model")).unwrap();
    let lock = File::open(home.path(held)).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    generated(&home, &["a.png"]);
    let mut expected = [&others[..], &[held, "a.png"]].concat();
    expected.sort_unstable();
    assert_eq!(made(&home), expected);
    assert_eq!(folders(&home).count(), 1, "the demo model alone");
    drop(lock);
    generated(&home, &["a.png"]);
    assert!(!home.path(held).exists());
}

#[test]
fn killed_planners_leave_nothing_after_the_next_run() {
    let home = Home::new();
    generated(&home, &["a.png"]);
    let begun = Instant::now();
    generated(&home, &["a.png"]);
    let whole = begun.elapsed();
    for kill in 0..KILLS {
        // Every second one has the demo model to write.
        if kill % 2 == 0 {
            let model = folders(&home).find(|path| !path.to_string_lossy().contains("/.berth-"));
            model.iter().for_each(|model| fs::remove_dir_all(model).unwrap());
        }
        let mut berth = home.berth(&[&GENERATE[..], &["a.png"]].concat());
        let mut child = berth.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * kill / KILLS + Duration::from_millis(1));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    generated(&home, &["a.png"]);
    assert_eq!(made(&home), ["a.png"]);
    assert_eq!(folders(&home).count(), 1, "the demo model alone");
    let state = home.beside("state").join("berth");
    for entry in fs::read_dir(state).into_iter().flatten() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.starts_with(".berth-"), "{name}");
    }
}
