//! What a running job tells, as plain data: the same for a terminal, a stream of events and a log.

use protocol::message::Progress;
use protocol::notice::Notice;
use protocol::{Bytes, DeviceId, Phase, Plan};
use serde::{Deserialize, Serialize};

use crate::solve::PlanReport;

/// One thing that happened to a job or to the executor that it runs on.
///
/// ```text
/// ExecutorStarted ─► ((Planned | Reused) ─► (Progress | Preview | Noticed)* ─► Retrying?)*
///                 ─► Output* ─► NotLearned? ─► Ended
/// at any time: ExecutorSilent, ExecutorAnswers, ExecutorDied ─► ExecutorStarted
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum JobEvent {
    /// A process that computes has answered.
    ExecutorStarted {
        /// Its process id.
        pid: u32,
    },
    /// An executor died, and another one is about to start.
    ExecutorDied {
        /// Its end, as a sentence.
        because: String,
    },
    /// The executor has said nothing for so long; it is still waited for.
    ExecutorSilent {
        /// How long, in seconds.
        seconds: u64,
    },
    /// An executor that was silent is heard again.
    ExecutorAnswers,
    /// A plan is about to be loaded.
    Planned {
        /// What is about to be loaded.
        plan: Box<Plan>,
        /// Why it is so, and what the user should know of it.
        report: Box<PlanReport>,
    },
    /// The plan that is loaded is about to be used as it is.
    Reused,
    /// The job got further.
    Progress(Progress),
    /// What the first picture will be like.
    Preview {
        /// Pixels of a row.
        width: u32,
        /// How many rows of pixels.
        height: u32,
        /// Rows from the top, 3 bytes RGB a pixel.
        #[serde(skip)]
        pixels: Vec<u8>,
    },
    /// The user should know of something, which is told once.
    Noticed {
        /// What of.
        notice: Notice,
    },
    /// An attempt failed, and another one follows by the same executor.
    Retrying {
        /// How it failed, as a sentence.
        because: String,
        /// The device that failed, by its name in the plan; the job goes on without it.
        device: Option<DeviceId>,
    },
    /// A picture is done. Its pixels are in the job's outcome.
    Output {
        /// Its place in the batch, from 0.
        index: u32,
        /// The seed of its noise.
        seed: u64,
        /// Pixels of a row.
        width: u32,
        /// How many rows of pixels.
        height: u32,
    },
    /// The job is done, but its times could not be kept for later plans.
    NotLearned {
        /// Why not, as a sentence.
        because: String,
    },
    /// Nothing follows.
    Ended {
        /// How the job failed, as a sentence; `None` for one that is done.
        error: Option<String>,
    },
}

/// An attempt at a job that failed, and was followed by another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// The generation of its plan.
    pub generation: u64,
    /// The phase in which it failed; `None` before it was loaded.
    pub phase: Option<Phase>,
    /// The device that failed, or had too little memory.
    pub device: Option<DeviceId>,
    /// How it failed, as a sentence.
    pub reason: String,
    /// Where memory was short: what was asked for.
    pub requested_bytes: Option<Bytes>,
    /// Where memory was short: what was free, if that is known.
    pub free_bytes: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use protocol::notice::Notice;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_says_what_it_is_and_leaves_pixels_out() {
        let path = "a.gguf".to_owned();
        for (event, document) in [
            (JobEvent::ExecutorStarted { pid: 7 }, json!({"event": "executor_started", "pid": 7})),
            (JobEvent::ExecutorAnswers, json!({"event": "executor_answers"})),
            (
                JobEvent::Progress(Progress { phase: Phase::Denoise, step: 1, of: 4 }),
                json!({"event": "progress", "phase": "denoise", "step": 1, "of": 4}),
            ),
            (
                JobEvent::Preview { width: 2, height: 1, pixels: vec![0; 6] },
                json!({"event": "preview", "width": 2, "height": 1}),
            ),
            (
                JobEvent::Noticed { notice: Notice::FileChanged { path } },
                json!({"event": "noticed", "notice": {"FileChanged": {"path": "a.gguf"}}}),
            ),
            (JobEvent::Ended { error: None }, json!({"event": "ended", "error": null})),
        ] {
            assert_eq!(serde_json::to_value(&event).expect("plain data"), document);
        }
    }
}
