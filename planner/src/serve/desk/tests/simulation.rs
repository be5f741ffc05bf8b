//! Random days: whatever executors, disks and clients do, the invariants hold after each step, and
//! every job ends. `BERTH_DESK_EVENTS` says how many events; a coarse number is the default, and
//! `scripts/check.sh`, which CI runs, has it do a million.

use super::super::job::{ErrorCode, JobState};
use super::chance::Faults;
use super::world::World;

/// Events of all days together.
fn events() -> u64 {
    let asked = std::env::var("BERTH_DESK_EVENTS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(60_000)
}

/// A day until its end; returns the world as it is then.
fn day(seed: u64, faults: Faults, clients: u64) -> World {
    let mut world = World::new(seed, faults, clients);
    while world.go_on() {}
    world.finish();
    world
}

#[test]
fn every_job_ends_and_nothing_is_answered_twice() {
    let (mut steps, mut seed) = (0, 0);
    while steps < events() {
        seed += 1;
        let world = day(seed, Faults::MANY, 60);
        steps += world.steps;
        assert_eq!(world.unfinished(), Vec::<&_>::new(), "seed {seed}");
        assert_eq!(world.open_tickets(), 0, "seed {seed}: who asks is answered");
        for record in world.records() {
            let made = record.pictures.len() as u32;
            if record.state == JobState::Done {
                assert_eq!(made, record.wanted(), "seed {seed}: {}", record.id);
                let seeds: Vec<u64> = record.pictures.iter().map(|p| p.seed).collect();
                let expected: Vec<u64> = (0..u64::from(made)).map(|index| 7 + index).collect();
                assert_eq!(seeds, expected, "seed {seed}: {}", record.id);
            }
            let errors = record.state == JobState::Failed;
            assert_eq!(record.error.is_some(), errors, "seed {seed}: {record:?}");
        }
    }
}

#[test]
fn without_faults_every_accepted_job_is_done_once() {
    let (mut joined, mut regained, mut beside) = (0, 0, 0);
    for seed in 0..20 {
        let world = day(seed, Faults::NONE, 60);
        let mut done = 0;
        for record in world.records() {
            let late = record.error.as_ref().is_some_and(|e| e.code == ErrorCode::Deadline);
            assert!(record.state == JobState::Done || late, "seed {seed}: {record:?}");
            if record.state == JobState::Done {
                let made = &world.made[&record.id];
                assert!(made.values().all(|times| *times == 1), "seed {seed}: made twice");
                done += 1;
            }
        }
        assert!(done > 20, "seed {seed}: {done} jobs were done");
        joined += world.joined;
        regained += world.regained;
        beside += world.beside;
        assert_eq!(world.in_the_way, 0, "seed {seed}: what is planned beside others fits there");
    }
    assert!(beside > 100, "{beside} runs began beside others");
    assert!(joined > 20, "{joined} jobs ran with another one");
    assert!(regained > 0, "no model was loaded anew for more memory");
}

#[test]
fn the_same_events_give_the_same_actions() {
    let [one, other] = [(); 2].map(|()| day(3, Faults::MANY, 60).digest());
    assert_eq!(one, other);
    assert_ne!(one, day(4, Faults::MANY, 60).digest());
}

#[test]
fn who_stops_it_waits_no_longer_than_the_drain() {
    for seed in 0..60 {
        let mut world = World::new(seed, Faults::MANY, 30);
        for _ in 0..50 + seed * 5 {
            world.go_on();
        }
        let (asked_ms, kills) = (world.now_ms(), world.kills);
        world.stop();
        while !world.exited && world.kills == kills && world.go_on() {}
        if world.kills > kills {
            // Another daemon began, which nobody has stopped.
            continue;
        }
        assert!(world.exited, "seed {seed}");
        // The drain, the longest cancel of this world, its longest end, and writes.
        let took_ms = world.now_ms() - asked_ms;
        assert!(took_ms <= 120_000 + 9_005 + 3_005 + 5_000, "seed {seed}: {took_ms} ms");
    }
}

#[test]
fn a_whole_day_of_clients_comes_to_its_end() {
    // A client every three seconds, on average.
    let clients = if events() >= 1_000_000 { 28_800 } else { 1_000 };
    let world = day(1, Faults::MANY, clients);
    assert!(world.now_ms() > clients * 2_500, "{} ms", world.now_ms());
    assert_eq!(world.unfinished(), Vec::<&_>::new());
}
