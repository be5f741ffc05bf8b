//! That every wait has an end: for an executor that does not shake hands, or is stopped, for a lock
//! that another process holds, for descriptors that are not there. And that a wait with a reason is
//! not ended.

use std::io::{PipeReader, PipeWriter, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;

use crate::failure::{FAST, SOON, STAGES, Stage, assert_nothing_left, generate, profile, script};
use crate::support::watched::{PATIENCE, Watched};
use crate::support::{Home, golden};

/// What an end may take beside a wait that is part of it.
const BESIDE: Duration = Duration::from_secs(3);

/// The denoising of 200 steps.
const DENOISE: &Stage = &STAGES[2];

#[test]
fn an_executor_that_does_not_shake_hands_is_given_up() {
    let home = Home::new();
    script(&home, "exec sleep 600");
    let arguments = ["inspect", "--executor", "./executor", "--patience", "2"];
    let begun = Instant::now();
    let ended = Watched::start(home.berth(&arguments)).end(Duration::from_secs(2) + BESIDE);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    golden::said("handshake", &home, &arguments, &ended, &[]);
    assert_nothing_left(&home, &[]);
}

#[test]
fn a_stopped_executor_is_told_and_then_ended() {
    let home = Home::new();
    let mut command = DENOISE.command(&home, DENOISE.link);
    command.args(["--patience", "4"]);
    let mut berth = Watched::start(command);
    let executor = berth.executor();
    berth.line(DENOISE.begun);
    executor.send(Signal::STOP);
    berth.line("berth: the executor has not answered for 2 s");
    let ended = berth.end(Duration::from_secs(2) + BESIDE);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let last = ended.stderr.lines().find(|line| line.contains("was silent"));
    let last = last.unwrap_or_else(|| panic!("{}", ended.stderr));
    let told = "berth: the executor was silent for 4 s in the denoise phase (";
    assert!(last.starts_with(told), "{last}");
    let hint = " of 200 done), and was ended; hint: where it is only slow, --patience SECONDS waits longer, --patient without end";
    assert!(last.contains(hint), "{last}");
    assert!(!ended.stderr.contains("trying again"), "{}", ended.stderr);
    assert_nothing_left(&home, &[&executor]);
}

#[test]
fn a_patient_user_gets_the_picture_of_an_executor_that_was_stopped() {
    let home = Home::new();
    let mut command = DENOISE.command(&home, DENOISE.link);
    command.arg("--patient").env("BERTH_PATIENCE_S", "2");
    let mut berth = Watched::start(command);
    let executor = berth.executor();
    berth.line(DENOISE.begun);
    executor.send(Signal::STOP);
    berth.line("berth: the executor has not answered for 1 s");
    assert!(!berth.process.ends_within(Duration::from_secs(2)), "it was not patient");
    executor.send(Signal::CONT);
    berth.line("berth: the executor answers again");
    let ended = berth.end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.json()["attempts"], 1);
}

/// All weights are loaded over a link that takes longer for them than the patience: nothing is said
/// meanwhile but that the executor lives. The planner itself is stopped for longer than that, too.
#[test]
fn a_long_load_is_not_ended_and_the_planners_own_standstill_is_not_the_executors() {
    let home = Home::new();
    let load = &STAGES[0];
    let mut command = load.command(&home, "1MiB/s");
    command.args(["--patience", "2", "--steps", "1"]);
    let mut berth = Watched::start(command);
    berth.executor();
    berth.line(load.begun);
    berth.process.send(Signal::STOP);
    assert!(!berth.process.ends_within(Duration::from_millis(2500)));
    berth.process.send(Signal::CONT);
    let ended = berth.end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("answer"), "{}", ended.stderr);
}

#[test]
fn a_lock_that_another_process_holds_is_given_up_and_told() {
    let home = Home::new();
    let state = home.beside("state").join("berth");
    std::fs::create_dir_all(&state).unwrap();
    let lock = std::fs::File::create(state.join("calibration.lock")).unwrap();
    lock.lock().unwrap();
    let ended = Watched::start(home.berth(&["generate", "--prompt", "x", "--output", "a.png"]))
        .end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let told = format!(
        "berth: nothing is learned from this run: cannot write the calibration {}/calibration.toml: another process \
         has held calibration.lock beside it for 1 s; hint: BERTH_STATE_DIR names another directory, or none if empty",
        state.display()
    );
    assert_eq!(ended.stderr, told);
    assert!(home.path("a.png").exists());
    assert!(!state.join("calibration.toml").exists());
}

/// `berth inspect` that can open so many files, by a shell, whose limits its programs have.
fn limited(home: &Home, files: u32) -> Command {
    let berth = home.berth(&["inspect"]);
    let mut shell = Command::new("sh");
    for (name, value) in berth.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.args(["-c", &format!("ulimit -n {files} && exec \"$0\" inspect")]);
    shell.arg(berth.get_program()).current_dir(home.path("")).stdin(Stdio::null());
    shell
}

#[test]
fn too_few_descriptors_are_told_before_anything_waits_for_one() {
    let home = Home::new();
    for files in [8, 12, 16, 24, 40, 64] {
        let ended = Watched::start(limited(&home, files)).end(PATIENCE);
        let number = format!("limit is {files};");
        golden::said("descriptors", &home, &["inspect"], &ended, &[(&number, "limit is N;")]);
    }
    assert_nothing_left(&home, &[]);
}

/// A pipe that takes no more bytes.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let flags = fcntl_getfl(&writer).expect("flags");
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).expect("flags");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl_setfl(&writer, flags).expect("flags");
    (reader, writer)
}

#[test]
fn a_signal_ends_a_planner_that_waits_for_the_reader_of_its_messages() {
    let home = Home::new();
    let (_reader, writer) = full_pipe();
    let mut command = home.berth(&["inspect"]);
    command.env("BERTH_LOG", "debug").stderr(Stdio::from(writer)).stdout(Stdio::null());
    let mut child = command.spawn().expect("berth starts");
    let process = crate::support::watched::Process::open(child.id());
    let waits = !process.ends_within(Duration::from_millis(500));
    process.send(Signal::TERM);
    let ended = process.ends_within(SOON);
    if !ended {
        process.send(Signal::KILL);
    }
    let code = child.wait().expect("it can be waited for").code();
    assert!(waits && ended, "it waits: {waits}, the signal ended it: {ended}");
    assert_eq!(code, Some(143));
}

#[test]
fn a_signal_in_the_first_moments_is_heard() {
    let home = Home::new();
    script(&home, "exec sleep 5");
    profile(&home, false, &[FAST], "");
    // The start's first moments: the handler may not be there yet.
    for wait_ms in [0, 2, 4, 8, 16, 32] {
        let berth = Watched::start(generate(&home, &["--prompt", "x", "--executor", "./executor"]));
        let early = !berth.process.ends_within(Duration::from_millis(wait_ms));
        berth.process.send(Signal::TERM);
        let ended = berth.end(BESIDE);
        assert!(early && matches!(ended.code, Some(143) | None), "{:?}", ended.code);
    }
}
