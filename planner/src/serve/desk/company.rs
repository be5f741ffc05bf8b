//! Company: jobs that are alike run as one batch, where the surveyor says that this is faster.
//!
//! ```text
//! turn of a job known ─► Join ─► Joined          while something else runs, or the queue is paused
//! its turn comes      ─► the answer is there: they begin together
//!                        it is on its way, or a job like it is: wait, at most 20 ms, then alone
//! ```
//! A job that comes along passes those before it that it is not like, within the limits of passing
//! (`queue`), and none of another class. Nobody's deadline is missed for it.

use super::Desk;
use super::accept::Question;
use super::action::{Action, JoinOrder};
use super::config::{COMPANY_ASKED_MS_MAX, COMPANY_MS_MAX, JOINED_JOBS_MAX};
use super::entry::Entry;
use super::event::{JoinTimes, QueryId};
use super::job::{JobError, JobId, JobOrder};

/// What is known of the company of the job whose turn it is.
#[derive(Debug, Default)]
pub struct Company {
    /// The last question that was answered.
    known: Option<Candidates>,
    /// The one that is not.
    asked: Option<(QueryId, Candidates)>,
    /// Until when the job whose turn it is waits at most.
    waits: Option<u64>,
}

/// Jobs that may run together, the one whose turn it is first.
#[derive(Debug)]
struct Candidates {
    jobs: Vec<JobId>,
    asked_ms: u64,
    /// Those that gain by it.
    times: Option<JoinTimes>,
}

/// Who runs with a job, and what that takes.
#[derive(Debug, Default)]
pub struct ChosenCompany {
    /// The others.
    pub jobs: Vec<JobId>,
    /// What all take together, without a load; `None` for one that runs alone.
    pub run_ms: Option<f64>,
}

impl Company {
    /// When a job that waits for company begins anyway.
    pub fn wait_until(&self) -> Option<u64> {
        self.waits
    }

    /// Nobody waits for company.
    pub fn end_wait(&mut self) {
        self.waits = None;
    }

    fn is_asked(&self, jobs: &[JobId]) -> bool {
        self.asked.as_ref().is_some_and(|(_, asked)| asked.jobs == jobs)
    }
}

impl Desk {
    /// Asks who may run with the job whose turn is next, unless that is known.
    pub(super) fn ask_company(&mut self) {
        if !self.config.join_jobs || self.stop.is_some() {
            return;
        }
        let Some(id) = self.next_in_turn() else { return };
        let jobs = self.candidates(&id);
        let now_ms = self.now.ms;
        let is_known = |known: &Candidates| {
            known.jobs == jobs && now_ms.saturating_sub(known.asked_ms) < COMPANY_ASKED_MS_MAX
        };
        let is_alone = jobs.len() == 1;
        if is_alone || self.company.known.as_ref().is_some_and(is_known) {
            self.company.asked = None;
            return;
        }
        if self.company.is_asked(&jobs) {
            return;
        }
        let query = self.ids.query();
        let slot = self.find_slot(self.jobs[&id].model());
        let others =
            self.slots.iter().filter(|(id, other)| Some(**id) != slot && other.is_loaded());
        // Which of several would stay is known when it is weighed: here all do.
        let unloaded = match self.config.several_loaded {
            true => Vec::new(),
            false => others.map(|(id, _)| *id).collect(),
        };
        let requests = jobs.iter().map(|id| self.jobs[id].next_request()).collect();
        let busy = self.is_busy();
        let order = JoinOrder { requests, slot, unloaded, busy };
        self.out.push(Action::Join(query, Box::new(order)));
        self.company.asked = Some((query, Candidates { jobs, asked_ms: now_ms, times: None }));
    }

    /// The surveyor has looked at them.
    pub(super) fn joined(&mut self, query: QueryId, result: Result<Option<JoinTimes>, JobError>) {
        let Some((_, asked)) = self.company.asked.take_if(|(asked, _)| *asked == query) else {
            return;
        };
        if let Err(error) = &result {
            tracing::warn!(error = error.message, "it is not known which jobs gain by a batch");
        }
        let times = result.ok().flatten();
        self.company.known = Some(Candidates { times, ..asked });
    }

    /// Who runs with a job that can begin now; `None` where it waits for company.
    pub(super) fn company_now(&mut self, id: &JobId) -> Option<ChosenCompany> {
        if !self.config.join_jobs {
            return Some(ChosenCompany::default());
        }
        let jobs = self.candidates(id);
        let is_known = self.company.known.as_ref().is_some_and(|known| known.jobs == jobs);
        let is_coming = (jobs.len() > 1 && !is_known) || self.is_like_coming(id);
        let now_ms = self.now.ms;
        if is_coming && now_ms < *self.company.waits.get_or_insert(now_ms + COMPANY_MS_MAX) {
            return None;
        }
        self.company.waits = None;
        Some(self.chosen(id, &jobs).unwrap_or_default())
    }

    /// Who runs with a job, by what is known: as long as all of them still may.
    fn chosen(&self, id: &JobId, jobs: &[JobId]) -> Option<ChosenCompany> {
        let known = self.company.known.as_ref().filter(|known| known.jobs.first() == Some(id))?;
        let times = known.times.as_ref()?;
        let mut chosen = Vec::new();
        for at in &times.jobs {
            chosen.push(known.jobs.get(*at).filter(|other| jobs.contains(other))?.clone());
        }
        let end_ms = self.now.ms as f64 + times.load_ms + times.run_ms;
        let in_time =
            |id: &JobId| self.jobs[id].deadline_at.is_none_or(|deadline| end_ms <= deadline as f64);
        let is_first = chosen.first() == Some(id);
        if !is_first || chosen.len() < 2 || !chosen.iter().all(in_time) {
            return None;
        }
        Some(ChosenCompany { jobs: chosen.split_off(1), run_ms: Some(times.run_ms) })
    }

    /// A job with those that may run with it, in the order of their turns.
    fn candidates(&self, id: &JobId) -> Vec<JobId> {
        let mut jobs = vec![id.clone()];
        let Some(first) = self.jobs.get(id).filter(|first| may_join(first)) else { return jobs };
        let now_ms = self.now.ms;
        let (mut class, mut is_free) = (None, true);
        for waiter in self.ready_jobs() {
            if jobs.len() == JOINED_JOBS_MAX || waiter.id == *id {
                continue;
            }
            let entry = &self.jobs[&waiter.id];
            let own = waiter.class_now(now_ms);
            let same_class = class.is_none_or(|passed| passed == own);
            if is_free && same_class && may_join(entry) && is_like(first, entry) {
                jobs.push(waiter.id);
            } else {
                class = class.or(Some(own));
                is_free &= waiter.may_be_passed_by_company(now_ms);
            }
        }
        jobs
    }

    /// Those that a job's company passes.
    pub(super) fn passed_by(&self, id: &JobId, company: &ChosenCompany) -> Vec<JobId> {
        let mut ids: Vec<JobId> = self.ready_jobs().into_iter().map(|waiter| waiter.id).collect();
        let last = ids.iter().rposition(|id| company.jobs.contains(id)).unwrap_or(0);
        ids.truncate(last);
        ids.retain(|other| other != id && !company.jobs.contains(other));
        ids
    }

    /// Whether a job that may run with this one is about to be accepted.
    fn is_like_coming(&self, id: &JobId) -> bool {
        let Some(first) = self.jobs.get(id).filter(|first| may_join(first)) else { return false };
        let asked = self.questions.values().any(|open| match &open.question {
            Question::Submit { order, .. } => are_alike(&first.record.order, order),
            Question::Plan { .. } => false,
        });
        let mut coming = self.jobs.values().filter(|entry| entry.coming);
        asked || coming.any(|entry| is_like(first, entry))
    }
}

/// Whether a job may run with others: nothing went wrong with it yet, and one run makes the rest of
/// it.
fn may_join(entry: &Entry) -> bool {
    let is_whole = entry.left() <= entry.record.offer.batch;
    !entry.runs_alone && !entry.needs_all && entry.short_since.is_none() && is_whole
}

fn is_like(first: &Entry, other: &Entry) -> bool {
    are_alike(&first.record.order, &other.record.order)
}

/// Whether two jobs have everything in common that one run must have.
fn are_alike(one: &JobOrder, other: &JobOrder) -> bool {
    (&one.model, one.keep_alive) == (&other.model, other.keep_alive)
        && one.request.runs_with(&other.request)
}
