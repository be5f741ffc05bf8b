//! The command line: arguments in, exit code out. 0 done, 1 does not fit, 2 error, 130 and 143
//! cancelled.

mod answer;
mod calibrate;
mod completions;
mod confirm;
mod devices;
mod generate;
mod given;
mod heap;
mod inspect;
mod interrupt;
mod jobs;
mod listen;
mod log;
mod model;
mod named;
mod number;
mod outputs;
mod placement;
mod plan;
mod preview;
mod serve;
mod server;
mod setup;
mod shape;
mod tune;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Error, Result, anyhow};
use clap::{Args, Parser, Subcommand};

use crate::engine::session::patience::{PATIENCE_S, PATIENCE_S_MAX, PATIENCE_S_MIN};
use crate::engine::session::{SessionError, folder};
use crate::planning::PlanError;
use crate::policy::Objective;

/// The plan does not fit.
const EXIT_INFEASIBLE: u8 = 1;

/// Anything else that went wrong.
const EXIT_ERROR: u8 = 2;

/// Ends the help.
const EXIT_CODES: &str =
    "Exit codes: 0 done, 1 does not fit, 2 error, 130 cancelled by SIGINT (Ctrl-C), 143 by SIGTERM";

/// Put diffusion models onto the devices that are here, exactly as planned.
#[derive(Debug, Parser)]
#[command(name = "berth", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Debug, Subcommand)]
enum Subcommands {
    /// What is here: memory, budgets, links, rates; and why nothing, if nothing
    Devices(devices::Devices),
    /// How fast everything is, measured once, for better plans
    Calibrate(calibrate::Calibrate),
    /// What a model is made of, and what is missing; of a picture, how it was made
    Inspect(inspect::Inspect),
    /// Where every byte will go, and why
    Plan(Box<plan::Plan>),
    /// Make pictures from a prompt
    Generate(Box<generate::Generate>),
    /// How much faster a job gets with more device memory
    Tune(Box<tune::Tune>),
    /// Make pictures for whoever asks over HTTP: OpenAI's and A1111's routes, and a page
    Serve(Box<serve::Serve>),
    /// What a daemon does, has done, and will do
    Jobs(jobs::Jobs),
    /// What makes a shell complete this command line
    Completions(completions::Completions),
    #[command(hide = true, name = "man")]
    Manual(completions::Manual),
}

/// How to start the executor, and what to tell of it.
#[derive(Debug, Args)]
struct ExecutorArguments {
    /// The executor's program [default: this one, run again]
    #[arg(long, value_name = "PATH", env = "BERTH_EXECUTOR")]
    executor: Option<PathBuf>,
    /// Tell of every step on standard error
    #[arg(short, long)]
    verbose: bool,
    /// Seconds that the executor may be silent, as where it is stopped, before it is ended: 2 to
    /// 86400
    #[arg(long, value_name = "SECONDS", env = "BERTH_PATIENCE_S", default_value_t = PATIENCE_S,
        value_parser = number::within(PATIENCE_S_MIN..=PATIENCE_S_MAX))]
    patience: u64,
    /// Never end an executor because it is silent
    #[arg(long)]
    patient: bool,
}

/// What may be used.
#[derive(Debug, Args)]
struct PolicyArguments {
    /// Device memory that may be used: 8 (GiB), 6144MiB, 80%, -1 (free minus 1 GiB),
    /// cuda0=12,cuda1=6.5, 8,cuda1=6 [default: what is free, less a margin]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    max_vram: Option<String>,
    /// Host memory that may be used: one amount, as for --max-vram [default: what is available,
    /// less a margin]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    max_ram: Option<String>,
    /// A host profile: a file, or the name of a shipped one, as virtual-2x2g [default: this
    /// machine]
    #[arg(long, value_name = "PROFILE", env = "BERTH_HOST")]
    host: Option<String>,
    /// What the plan is to be best at [default: latency]
    #[arg(long, value_enum)]
    optimize: Option<Objective>,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let is_daemon = std::env::args_os().nth(1).is_some_and(|word| word == "serve");
    heap::begin_with_one(is_daemon);
    let result = run();
    folder::remove();
    match result {
        Ok(code) => code,
        Err(error) if is_cancelled(&error) || server::is_cancelled(&error) => {
            interrupt::cancelled()
        }
        Err(error) => {
            eprintln!("berth: {error:#}");
            match error.downcast_ref() {
                Some(PlanError::Infeasible(_) | PlanError::NoRoom(_)) => {
                    ExitCode::from(EXIT_INFEASIBLE)
                }
                _ if server::is_infeasible(&error) => ExitCode::from(EXIT_INFEASIBLE),
                _ => ExitCode::from(EXIT_ERROR),
            }
        }
    }
}

fn run() -> Result<ExitCode> {
    interrupt::install().map_err(|error| {
        anyhow!(
            "cannot listen for signals: {error}; hint: `ulimit -n 1024` lets more files be opened"
        )
    })?;
    log::begin()?;
    let arguments = Arguments::try_parse().unwrap_or_else(|error| number::refuse(&error));
    let done = match arguments.command {
        Subcommands::Serve(command) => return command.run(),
        Subcommands::Jobs(command) => command.run(),
        Subcommands::Devices(command) => command.run(),
        Subcommands::Calibrate(command) => command.run(),
        Subcommands::Inspect(command) => command.run(),
        Subcommands::Plan(command) => command.run(),
        Subcommands::Generate(command) => command.run(),
        Subcommands::Tune(command) => command.run(),
        Subcommands::Completions(command) => command.run(),
        Subcommands::Manual(command) => command.run(),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Whether it is a signal that ended the command.
fn is_cancelled(error: &Error) -> bool {
    let is_it = |error: &SessionError| matches!(error, SessionError::Cancelled);
    match error.downcast_ref() {
        Some(PlanError::Session(error)) => is_it(error),
        _ => error.downcast_ref().is_some_and(is_it),
    }
}
