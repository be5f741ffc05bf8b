//! Which jobs there are, and where each was when it was last told of: each end counts once.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::serve::desk::action::JobView;
use crate::serve::desk::job::{Api, Class, ErrorCode, JobId, JobState};

/// Ended jobs that are remembered, so that one that is told twice counts once.
const ENDED_KEPT: usize = 1024;

/// Jobs that are followed at a time: more than a queue holds.
const JOBS_MAX: usize = 1 << 16;

/// What a job's state tells.
pub enum Moved {
    /// It is no longer there.
    From(&'static str, &'static str),
    /// It is there now.
    To(&'static str, &'static str),
    /// Its first run has begun.
    Started {
        /// How soon it was wanted.
        class: &'static str,
        /// From its acceptance, in milliseconds.
        waited_ms: f64,
        /// As it was predicted then.
        predicted_ms: f64,
    },
    /// It has ended, with these labels.
    Ended([(&'static str, String); 4]),
}

/// Jobs that have not ended.
#[derive(Default)]
pub struct JobLedger {
    open: HashMap<JobId, OpenJob>,
    ended: HashSet<JobId>,
    order: VecDeque<JobId>,
}

struct OpenJob {
    state: &'static str,
    class: &'static str,
    started: bool,
}

impl JobLedger {
    /// What is new by this state of a job.
    pub fn follow(&mut self, view: &JobView) -> Vec<Moved> {
        let record = &*view.record;
        let (id, state, class) = (&record.id, state(view.state), class(record.order.class));
        if self.ended.contains(id) {
            return Vec::new();
        }
        let mut moved = Vec::new();
        let before = self.open.remove(id);
        let mut started = before.as_ref().is_some_and(|job| job.started);
        moved.extend(before.map(|job| Moved::From(job.state, job.class)));
        if let Some(at) = record.started_at.filter(|_| !started) {
            started = true;
            let waited_ms = at.saturating_sub(record.created_at) as f64;
            let predicted_ms = record.predicted_wait_ms;
            moved.push(Moved::Started { class, waited_ms, predicted_ms });
        }
        if view.state.is_ended() {
            self.remember(id.clone());
            moved.push(Moved::Ended(labels(view)));
        } else if self.open.len() < JOBS_MAX {
            self.open.insert(id.clone(), OpenJob { state, class, started });
            moved.push(Moved::To(state, class));
        }
        moved
    }

    fn remember(&mut self, id: JobId) {
        self.order.push_back(id.clone());
        self.ended.insert(id);
        if self.order.len() > ENDED_KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }
}

fn labels(view: &JobView) -> [(&'static str, String); 4] {
    let record = &*view.record;
    let code = record.error.as_ref().map_or(String::new(), |error| code(error.code));
    [
        ("outcome", state(view.state).to_owned()),
        ("code", code),
        ("api", api(record.order.api).to_owned()),
        ("model", record.order.model.clone()),
    ]
}

/// A code as it is written everywhere.
fn code(code: ErrorCode) -> String {
    let written = serde_json::to_value(code).ok();
    written.as_ref().and_then(|code| code.as_str()).unwrap_or_default().to_owned()
}

fn api(api: Api) -> &'static str {
    match api {
        Api::Native => "native",
        Api::OpenAi => "openai",
        Api::Sdapi => "sdapi",
    }
}

fn class(class: Class) -> &'static str {
    match class {
        Class::Interactive => "interactive",
        Class::Batch => "batch",
        Class::Background => "background",
    }
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Queued => "queued",
        JobState::Waiting => "waiting",
        JobState::Loading => "loading",
        JobState::Running => "running",
        JobState::Filing => "filing",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}
