//! From a question to a job in the queue: what is refused, what is surveyed, what is kept.

use super::action::{Action, Change, QuoteOrder, Reply, RoomOrder};
use super::config::{KEY_MS, RETRY_AFTER_S, SURVEY_MS_MAX};
use super::entry::{Entry, WeighedRoom};
use super::event::{Asker, QueryId, Quoted, RoomTimes, SlotId, Ticket};
use super::job::{
    ErrorCode, JobError, JobId, JobOrder, JobRecord, JobState, KeptJson, OnDisconnect,
    RECORD_VERSION,
};
use super::{Desk, Then};
use crate::job::JobRequest;

/// What waits for the surveyor.
#[derive(Debug)]
pub enum Question {
    /// A job that is to be accepted.
    Submit {
        /// Who is answered.
        ticket: Ticket,
        /// Its name.
        id: JobId,
        /// What is asked.
        order: Box<JobOrder>,
        /// Whether the client waits for its end.
        wait: bool,
    },
    /// Only a quote.
    Plan {
        /// Who is answered.
        ticket: Ticket,
    },
}

impl Question {
    fn ticket(&self) -> Ticket {
        match self {
            Question::Submit { ticket, .. } | Question::Plan { ticket } => *ticket,
        }
    }
}

/// A question to the surveyor that is not answered yet.
#[derive(Debug)]
pub struct SurveyQuestion {
    /// Whose it is.
    pub question: Question,
    /// What is asked of the surveyor; its models that are unloaded are chosen first.
    pub order: QuoteOrder,
    /// The daemon's name of what makes it.
    pub model: String,
    /// The choices that are weighed.
    choices: Vec<Vec<SlotId>>,
    /// When it is not waited for any more.
    pub until_ms: u64,
}

impl Desk {
    pub(super) fn submit(&mut self, ticket: Ticket, id: JobId, order: JobOrder, wait: bool) {
        if let Some(known) = self.known_key(&order) {
            return self.attach(ticket, known, &order, wait);
        }
        if let Err((error, retry_after_s)) = self.may_enter(&order, wait) {
            return self.refuse(ticket, error, retry_after_s);
        }
        let request = order.request.clone();
        let model = order.model.clone();
        let order = Box::new(order);
        self.survey(request, &model, false, Question::Submit { ticket, id, order, wait });
    }

    pub(super) fn plan_only(
        &mut self,
        ticket: Ticket,
        request: JobRequest,
        model: String,
        explain: bool,
    ) {
        if let Err(error) = self.check_model(&model) {
            return self.refuse(ticket, error, None);
        }
        self.survey(request, &model, explain, Question::Plan { ticket });
    }

    /// Asks what a job takes; where other models are loaded, which of them go is weighed first.
    fn survey(&mut self, request: JobRequest, model: &str, explain: bool, question: Question) {
        let query = self.ids.query();
        let busy = self.is_busy();
        let slot = self.find_slot(model);
        let loaded =
            self.slots.iter().filter(|(id, other)| Some(**id) != slot && other.is_loaded());
        let others: Vec<SlotId> = loaded.map(|(id, _)| *id).collect();
        let mut order = QuoteOrder { request, explain, slot, unloaded: others, busy };
        let mut choices = Vec::new();
        if order.unloaded.is_empty() || !self.config.several_loaded {
            self.out.push(Action::Survey(query, Box::new(order.clone())));
        } else {
            choices = self.room_choices(&std::mem::take(&mut order.unloaded));
            let (request, choices) = (order.request.clone(), choices.clone());
            let room = RoomOrder { request, slot, choices, running: Vec::new(), busy };
            self.out.push(Action::Weigh(query, Box::new(room)));
        }
        let (model, until_ms) = (model.to_owned(), self.now.ms + SURVEY_MS_MAX);
        let open = SurveyQuestion { question, order, model, choices, until_ms };
        self.questions.insert(query, open);
    }

    /// Refuses what the surveyor does not answer in time: it hangs, or others' questions take long.
    pub(super) fn expire_questions(&mut self) {
        let now_ms = self.now.ms;
        let late = self.questions.iter().filter(|(_, open)| now_ms >= open.until_ms);
        for query in late.map(|(query, _)| *query).collect::<Vec<_>>() {
            let Some(open) = self.questions.remove(&query) else { continue };
            let message = "what the job would take is not known in time; hint: ask again soon";
            let error = JobError::new(ErrorCode::QueueFull, message);
            self.refuse(open.question.ticket(), error, Some(SURVEY_MS_MAX / 1000));
        }
    }

    /// It is weighed which models go for a question: now it is asked what the job takes then.
    pub(super) fn weighed_question(&mut self, query: QueryId, times: Vec<Option<RoomTimes>>) {
        let Some(mut open) = self.questions.remove(&query) else { return };
        open.order.unloaded = self.cheapest(&open.model, &open.choices, &times);
        self.out.push(Action::Survey(query, Box::new(open.order.clone())));
        self.questions.insert(query, open);
    }

    /// The job that a client's key stands for.
    fn known_key(&self, order: &JobOrder) -> Option<JobId> {
        let key = order.idempotency.as_ref()?;
        let is_same = |other: &JobOrder| {
            let other_key = other.idempotency.as_ref().map(|other| &other.key);
            other.client == order.client && other_key == Some(&key.key)
        };
        let asked = self.questions.values().find_map(|open| match &open.question {
            Question::Submit { id, order, .. } if is_same(order) => Some(id.clone()),
            _ => None,
        });
        let young = |entry: &Entry| {
            self.now.unix_ms.saturating_sub(entry.record.created_at) < KEY_MS
                && is_same(&entry.record.order)
        };
        asked.or_else(|| {
            let found = self.jobs.iter().find(|(_, entry)| young(entry));
            found.map(|(id, _)| id.clone())
        })
    }

    /// Answers a request that was sent before by the job that it made.
    fn attach(&mut self, ticket: Ticket, known: JobId, order: &JobOrder, wait: bool) {
        let body = |order: &JobOrder| order.idempotency.as_ref().map(|k| k.body_sha256.clone());
        let is_coming = |entry: &Entry| entry.coming && entry.record.synchronous != wait;
        if self.jobs.get(&known).is_none_or(is_coming) {
            let message = "a request with this Idempotency-Key is being looked at; hint: send it \
                           again in a second";
            let error = JobError::new(ErrorCode::QueueFull, message);
            return self.refuse(ticket, error, Some(RETRY_AFTER_S[0]));
        }
        let Some(entry) = self.jobs.get_mut(&known) else { return };
        if body(&entry.record.order) != body(order) {
            let message = format!(
                "this Idempotency-Key was used with another body, for job {known}; hint: use a new \
                 key for a new request"
            );
            let error = JobError::new(ErrorCode::IdempotencyMismatch, message);
            return self.refuse(ticket, error, None);
        }
        if entry.coming || (wait && !entry.state.is_ended()) {
            entry.waiters.push(ticket);
            return;
        }
        let view = Box::new(self.view(&known));
        let reply = match wait {
            true => Reply::Ended(view, Vec::new()),
            false => Reply::Job(view),
        };
        self.out.push(Action::Answer(ticket, reply));
    }

    fn may_enter(&self, order: &JobOrder, wait: bool) -> Result<(), (JobError, Option<u64>)> {
        let refused = |code, message: String| JobError::new(code, message);
        if self.stop.is_some() {
            let message = "the daemon is about to end; hint: send the request again in a minute";
            return Err((refused(ErrorCode::Draining, message.into()), Some(RETRY_AFTER_S[1])));
        }
        if let Some(because) = &self.store_fault {
            let message = format!("jobs cannot be kept: {because}");
            return Err((refused(ErrorCode::Store, message), Some(RETRY_AFTER_S[1])));
        }
        let min_free = self.config.min_free;
        if let Some(free) = self.disk_free.filter(|free| *free < min_free) {
            let message = format!(
                "{free} are free where pictures are kept, less than {min_free}; hint: free some, or remove old jobs"
            );
            return Err((refused(ErrorCode::Store, message), Some(RETRY_AFTER_S[1])));
        }
        if wait && self.settings.paused {
            let message = "the queue is paused; hint: POST /v1/queue/resume";
            return Err((refused(ErrorCode::Paused, message.into()), Some(RETRY_AFTER_S[1])));
        }
        self.check_model(&order.model).map_err(|error| (error, None))?;
        let is_job = |open: &&SurveyQuestion| matches!(open.question, Question::Submit { .. });
        let coming = self.questions.values().filter(is_job).count();
        let queued = self.jobs.values().filter(|entry| entry.coming || entry.is_queued()).count();
        if queued + coming >= self.config.queue_max {
            let message = format!("{queued} jobs wait, and no more may");
            return Err((refused(ErrorCode::QueueFull, message), Some(self.retry_after_s())));
        }
        self.check_quota(order).map_err(|error| (error, Some(self.retry_after_s())))
    }

    fn check_quota(&self, order: &JobOrder) -> Result<(), JobError> {
        let own = self.jobs.values().filter(|entry| !entry.state.is_ended());
        let own = own.filter(|entry| entry.record.order.client == order.client);
        let own: Vec<&Entry> = own.filter(|entry| entry.coming || entry.is_queued()).collect();
        let coming = self.questions.values().filter(|open| match &open.question {
            Question::Submit { order: other, .. } => other.client == order.client,
            Question::Plan { .. } => false,
        });
        let count = own.len() + coming.count();
        let seconds: f64 = own.iter().map(|entry| entry.record.offer.run_ms / 1e3).sum();
        let message = if count >= self.config.client_queued_max {
            format!("{} has {count} jobs in the queue, and no more may be", order.client)
        } else if seconds >= self.config.client_queued_s_max {
            format!(
                "the jobs of {} in the queue take {seconds:.0} s, as much as may be",
                order.client
            )
        } else {
            return Ok(());
        };
        Err(JobError::new(ErrorCode::Quota, message))
    }

    pub(super) fn check_model(&self, model: &str) -> Result<(), JobError> {
        if let Some((_, because)) = self.broken.get(model) {
            return Err(JobError::new(ErrorCode::BadModel, because.clone()));
        }
        match self.models.contains_key(model) {
            true => Ok(()),
            false => {
                let known: Vec<&str> = self.models.keys().map(String::as_str).collect();
                let message = format!("no model `{model}`; hint: there are {}", known.join(", "));
                let error = JobError::new(ErrorCode::NoModel, message);
                Err(JobError { param: Some("model".to_owned()), ..error })
            }
        }
    }

    /// Predicted seconds until a job more may wait.
    pub(super) fn retry_after_s(&self) -> u64 {
        let [least, most] = RETRY_AFTER_S;
        let first_start = self.first_left_ms();
        ((first_start / 1e3).ceil() as u64).clamp(least, most)
    }

    pub(super) fn quoted(&mut self, query: QueryId, result: Result<Box<Quoted>, JobError>) {
        let Some(open) = self.questions.remove(&query) else { return };
        let SurveyQuestion { question, order, model, choices, .. } = open;
        let unloaded = order.unloaded;
        let quoted = match result {
            Ok(quoted) => quoted,
            Err(error) => return self.refuse(question.ticket(), error, None),
        };
        match question {
            Question::Plan { ticket } => {
                let wait_ms = self.wait_ms_of_new(&model, &quoted.offer.lanes);
                let known = unloaded.iter().filter_map(|slot| self.slots.get(slot));
                let evicts = known.map(|slot| slot.model.clone()).collect();
                let reply = Reply::Quote { quoted, wait_ms, evicts };
                self.out.push(Action::Answer(ticket, reply));
            }
            Question::Submit { ticket, id, order, wait } => {
                let (at_ms, admitted) = (self.now.ms, id.clone());
                let weighed = choices.into_iter().next();
                let weighed = weighed.map(|others| WeighedRoom { at_ms, others, unloaded });
                self.admit(ticket, id, *order, wait, *quoted);
                if let Some(entry) = self.jobs.get_mut(&admitted) {
                    entry.weighed = weighed;
                }
            }
        }
    }

    fn admit(&mut self, ticket: Ticket, id: JobId, order: JobOrder, wait: bool, quoted: Quoted) {
        let offer = quoted.offer;
        let wait_ms = self.wait_ms_of_new(&order.model, &offer.lanes);
        let end_ms = wait_ms + offer.load_ms + offer.run_ms;
        if order.deadline_ms.is_some_and(|deadline| end_ms > deadline as f64) {
            let message = format!(
                "it would be done in {:.1} s; hint: a later deadline, fewer steps, or a smaller size",
                end_ms / 1e3
            );
            let error = JobError::new(ErrorCode::Deadline, message);
            let error = JobError { param: Some("deadline_ms".to_owned()), ..error };
            return self.refuse(ticket, error, None);
        }
        if offer.load_ms > 0.0 {
            self.load_ms.entry(order.model.clone()).or_insert(offer.load_ms);
        }
        let record = JobRecord {
            v: RECORD_VERSION,
            id: id.clone(),
            synchronous: wait,
            state: JobState::Queued,
            created_at: self.now.unix_ms,
            started_at: None,
            ended_at: None,
            predicted_wait_ms: wait_ms,
            attempts: 0,
            daemon_deaths: 0,
            failures: Vec::new(),
            pictures: Vec::new(),
            plan: Some(KeptJson::of(&quoted.plan)),
            usage: None,
            notices: offer.notices.clone(),
            error: None,
            offer,
            order,
        };
        let mut entry = Entry::new(record.clone(), self.now.ms);
        entry.waiters.push(ticket);
        entry.coming = true;
        self.jobs.insert(id.clone(), entry);
        self.store(Change::Put(Box::new(record)), Then::Accept(id));
    }

    /// Its record is on the disk: it is in the queue.
    pub(super) fn accepted(&mut self, id: &JobId) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        entry.coming = false;
        let model = entry.record.order.model.clone();
        self.demand.count(&model, self.now.ms);
        let Some(entry) = self.jobs.get_mut(id) else { return };
        if entry.record.synchronous {
            // Its client left before it was accepted.
            if entry.waiters.is_empty()
                && entry.record.order.on_disconnect == OnDisconnect::Cancel
                && entry.record.order.idempotency.is_none()
            {
                self.end_job(id, JobState::Cancelled, None);
                return;
            }
        } else {
            let waiters = std::mem::take(&mut entry.waiters);
            for ticket in waiters {
                let view = Box::new(self.view(id));
                self.out.push(Action::Answer(ticket, Reply::Job(view)));
            }
        }
        self.tell_state(id);
    }

    pub(super) fn not_accepted(&mut self, id: &JobId) {
        let Some(entry) = self.jobs.remove(id) else { return };
        let because = self.store_fault.clone().unwrap_or_default();
        for ticket in entry.waiters {
            let error = JobError::new(ErrorCode::Store, format!("the job is not kept: {because}"));
            self.refuse(ticket, error, Some(RETRY_AFTER_S[1]));
        }
    }

    /// The same job again, under another name.
    pub(super) fn retry(&mut self, ticket: Ticket, asker: &Asker, id: &JobId, new: JobId) {
        let Some(entry) = self.visible(ticket, asker, id) else { return };
        if !entry.state.is_ended() {
            let message =
                format!("job {id} has not ended; hint: it can be tried again when it has");
            let error = JobError::new(ErrorCode::BadValue, message);
            return self.refuse(ticket, error, None);
        }
        let order = JobOrder { idempotency: None, ..entry.record.order.clone() };
        self.submit(ticket, new, order, false);
    }

    /// Whoever asked has gone.
    pub(super) fn left(&mut self, ticket: Ticket) {
        self.questions.retain(|_, open| open.question.ticket() != ticket);
        let waiting = self.jobs.iter_mut().find(|(_, entry)| entry.waiters.contains(&ticket));
        let Some((id, entry)) = waiting else { return };
        entry.waiters.retain(|other| *other != ticket);
        let order = &entry.record.order;
        let goes_on = order.on_disconnect == OnDisconnect::Finish || order.idempotency.is_some();
        if entry.record.synchronous && entry.waiters.is_empty() && !goes_on && !entry.coming {
            let id = id.clone();
            self.cancel_job(&id, super::entry::EndReason::Cancelled);
        }
    }
}
