//! Runs that must stay small and end by themselves: under a limit on memory and on time, so that a
//! test fails where the program would read or grow without end.

use std::process::{Command, Stdio};

use crate::support::{Ended, Home};

/// Address space of each process, in KiB. A run of the test model maps well under 1 GiB on few
/// cores; each thread may reserve some more.
const ADDRESS_KIB: u64 = 4 << 20;

/// Seconds that a run may take.
const SECONDS: u32 = 120;

/// Runs `berth` under the limits; one that is ended by them has exit code 124 or dies.
pub fn run(home: &Home, arguments: &[&str]) -> Ended {
    let berth = home.berth(arguments);
    let script = format!("ulimit -v {ADDRESS_KIB} && exec timeout {SECONDS} \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).arg(berth.get_program()).args(berth.get_args());
    for (name, value) in berth.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(directory) = berth.get_current_dir() {
        shell.current_dir(directory);
    }
    Ended::of(shell.stdin(Stdio::null()).output().expect("a shell starts"))
}
