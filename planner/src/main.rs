//! `berth`: the command line. The only planner file that names the executor, which it becomes when
//! its planner starts it with the hidden subcommand.

use std::process::ExitCode;

use planner::engine::session::EXECUTOR_SUBCOMMAND;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == EXECUTOR_SUBCOMMAND) {
        return executor::main(std::env::args().skip(2));
    }
    planner::cli::main()
}
