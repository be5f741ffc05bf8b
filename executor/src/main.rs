//! `berth-executor`: the executor as a program of its own. `berth` starts it, or runs itself in its
//! place.

use std::process::ExitCode;

fn main() -> ExitCode {
    executor::main(std::env::args().skip(1))
}
