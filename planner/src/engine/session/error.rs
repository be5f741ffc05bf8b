//! How a session's commands fail, with the words for people.

use protocol::{DeviceId, Failure, FailureKind};

use super::death::Cause;

/// How a command ended other than by its answer.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The executor answered that it failed; it still runs.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The executor is dead.
    #[error("the executor died in the {phase}: {status}{}", last_lines(lines))]
    Died {
        /// The phase it was in, with the step.
        phase: String,
        /// Why, as far as it is known.
        cause: Cause,
        /// Its exit status or signal, for people.
        status: String,
        /// The last lines that it wrote.
        lines: Vec<String>,
    },
    /// The executor's process is there and says nothing; it was ended.
    #[error(
        "the executor was silent for {seconds} s in the {phase}, and was ended; hint: where it is only slow, --patience SECONDS waits longer, --patient without end{}",
        last_lines(lines)
    )]
    Silent {
        /// The phase it was in, with the step.
        phase: String,
        /// How long, in seconds.
        seconds: u64,
        /// The last lines that it wrote.
        lines: Vec<String>,
    },
    /// The user asked for the end.
    #[error("cancelled")]
    Cancelled,
    /// The executor could not be started.
    #[error("cannot start the executor {program}: {message}{}", last_lines(lines))]
    Start {
        /// Its path, as it was to be started.
        program: String,
        /// Why.
        message: String,
        /// The last lines that it wrote.
        lines: Vec<String>,
    },
    /// The executor said what makes no sense here.
    #[error(
        "the executor answered {got} to {command}; hint: use planner and executor from one release"
    )]
    Confused {
        /// What was asked of it.
        command: &'static str,
        /// The answer.
        got: &'static str,
    },
    /// A command that is too large to be meant.
    #[error(transparent)]
    TooLong(#[from] protocol::limits::TooLong),
}

impl SessionError {
    /// Whether a job ended because it was to end.
    pub fn is_cancellation(&self) -> bool {
        match self {
            SessionError::Cancelled => true,
            SessionError::Failed(failure) => failure.kind == FailureKind::Cancelled,
            _ => false,
        }
    }

    /// The device that the executor lost, and ended by.
    pub fn lost_device(&self) -> Option<&DeviceId> {
        match self {
            SessionError::Failed(Failure { kind: FailureKind::DeviceLost { device }, .. }) => {
                Some(device)
            }
            _ => None,
        }
    }

    /// The device that failed, where one did.
    pub fn failed_device(&self) -> Option<&DeviceId> {
        match self {
            SessionError::Failed(Failure {
                kind: FailureKind::DeviceFailed { device }, ..
            }) => Some(device),
            _ => None,
        }
    }

    /// Whether the executor was killed as memory ran out.
    pub fn is_for_want_of_memory(&self) -> bool {
        matches!(self, SessionError::Died { cause: Cause::OutOfMemory, .. })
    }
}

fn last_lines(lines: &[String]) -> String {
    if lines.is_empty() {
        String::new()
    } else {
        format!("; its last lines:\n  {}", lines.join("\n  "))
    }
}
