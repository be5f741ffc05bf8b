//! What signals do: a job ends in order with 128 and the signal's number, a second signal ends it
//! at once, and nothing is left behind.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::failure::{
    FAST, SILENT, SOON, STAGES, assert_nothing_left, generate, in_each_phase, profile, script,
};
use crate::support::watched::{Process, Watched};
use crate::support::{Ended, Home};

/// The job was cancelled by this signal.
fn assert_cancelled(ended: &Ended, signal: Signal) {
    assert_eq!(ended.code, Some(128 + signal.as_raw()), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    assert_eq!(ended.stdout, "", "a cancelled job has no document");
    assert!(ended.stderr.ends_with("berth: cancelled"), "{}", ended.stderr);
    assert_eq!(ended.stderr.matches("cancelled").count(), 1, "{}", ended.stderr);
}

#[test]
fn a_signal_cancels_within_a_second_and_leaves_nothing() {
    in_each_phase(|stage| {
        for signal in [Signal::INT, Signal::TERM] {
            let home = Home::new();
            let mut berth = Watched::start(stage.command(&home, stage.link));
            let executor = berth.executor();
            berth.line(stage.begun);
            berth.process.send(signal);
            let ended = berth.end(SOON);
            assert_cancelled(&ended, signal);
            assert!(!ended.stderr.contains("trying again"), "{}", ended.stderr);
            assert_nothing_left(&home, &[&executor]);
        }
    });
}

#[test]
fn a_second_interrupt_ends_an_executor_that_does_not_answer() {
    let home = Home::new();
    let mut berth = Watched::start(STAGES[2].command(&home, STAGES[2].link));
    let executor = berth.executor();
    berth.line(STAGES[2].begun);
    executor.send(Signal::STOP);
    berth.process.send(Signal::INT);
    // Two signals in a row may arrive as one.
    let first = Instant::now();
    while first.elapsed() < SOON && !berth.process.ends_within(Duration::from_millis(50)) {
        berth.process.send(Signal::INT);
    }
    let ended = berth.end(Duration::ZERO);
    assert_cancelled(&ended, Signal::INT);
    assert_nothing_left(&home, &[&executor]);
}

/// Interrupts a program whose present executor is a silent one.
fn interrupt_the_start(home: &Home, mut berth: Watched) {
    let line = berth.line("waiting: ");
    let executor = Process::open(line["waiting: ".len()..].parse().unwrap());
    berth.process.send(Signal::INT);
    let soon = berth.process.ends_within(SOON);
    let orphaned = soon && !executor.ends_within(Duration::ZERO);
    if !executor.ends_within(Duration::ZERO) {
        executor.send(Signal::KILL);
    }
    assert!(soon, "the interrupt was not heard");
    assert!(!orphaned, "an executor that did not connect outlived the planner");
    assert_cancelled(&berth.end(SOON), Signal::INT);
    assert_nothing_left(home, &[&executor]);
}

#[test]
fn an_interrupt_before_the_executor_has_connected_leaves_nothing() {
    let home = Home::new();
    script(&home, SILENT);
    profile(&home, false, &[FAST], "");
    let arguments = ["--prompt", "x", "--executor", "./executor", "--verbose"];
    interrupt_the_start(&home, Watched::start(generate(&home, &arguments)));
}

#[test]
fn an_interrupt_before_the_second_executor_has_connected_leaves_nothing() {
    let home = Home::new();
    let berth = env!("CARGO_BIN_EXE_berth");
    let first = format!("touch cache/second\nexec {berth} executor \"$@\"");
    script(&home, &format!("if [ ! -e cache/second ]; then\n{first}\nfi\n{SILENT}"));
    let stage = &STAGES[2];
    let mut command = stage.command(&home, stage.link);
    command.args(["--executor", "./executor"]);
    let mut berth = Watched::start(command);
    let first = berth.executor();
    berth.line(stage.begun);
    first.send(Signal::KILL);
    interrupt_the_start(&home, berth);
}
