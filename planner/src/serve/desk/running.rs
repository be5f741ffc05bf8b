//! Runs: which job begins where, and what its executor tells.

use std::sync::Arc;

use protocol::Phase;
use protocol::message::Progress;
use serde_json::Value;

use super::action::{Action, Change, FileOrder, Note, RunOrder, SlotState};
use super::config::ROOM_RETRY_MS;
use super::entry::{EndReason, RunState, Want};
use super::event::{FinishedWork, PreviewImage, Said, SlotId};
use super::job::{ErrorCode, JobError, JobId, JobState, KeepAlive, KeptPlan};
use super::queue::{Waiter, choose, sort};
use super::room::RoomFor;
use super::{Desk, Then};
use crate::job::seed::Seed;
use crate::job::{FailedAttempt, JobRequest};

impl Desk {
    /// Lets the next job begin, if one may.
    pub(super) fn dispatch(&mut self) {
        let evicting = self.slots.values().any(|slot| slot.state == SlotState::Evicting);
        let may_start = self.stop.is_none() && !self.settings.paused && self.store_fault.is_none();
        // What there is, is known soon after the start.
        let waits = evicting || self.weighing.is_some() || self.busy_slot().is_some();
        if waits || !may_start || self.models.is_empty() {
            return;
        }
        if let Some((id, passed)) = self.next_job() {
            return self.begin(&id, &passed);
        }
        // Models are loaded ahead only where nobody waits.
        if self.jobs.values().all(|entry| !entry.is_queued())
            && let Some((model, keep_alive)) = self.loads.pop_front()
        {
            self.begin_load(&model, keep_alive);
        }
    }

    /// Jobs that wait, in the order of their turns.
    pub(super) fn waiters(&self) -> Vec<Waiter> {
        let queued = self.jobs.iter().filter(|(_, entry)| entry.is_queued());
        let mut waiters: Vec<Waiter> = queued
            .map(|(id, entry)| Waiter {
                id: id.clone(),
                class: entry.record.order.class,
                since_ms: entry.since_ms,
                deadline_at: entry.deadline_at,
                front: entry.front,
                passed: entry.passed,
                passed_since: entry.passed_since,
                warm: self.is_warm(entry.model()),
                run_ms: entry.record.offer.run_ms,
                load_ms: self.load_ms.get(entry.model()).copied().unwrap_or(0.0),
            })
            .collect();
        sort(&mut waiters, self.now.ms);
        waiters
    }

    /// The job whose turn it is, and those that it passes.
    fn next_job(&self) -> Option<(JobId, Vec<JobId>)> {
        let mut ready = self.waiters();
        ready.retain(|waiter| self.may_begin(&waiter.id));
        let place = choose(&ready, self.now.ms)?;
        let mut ids = ready.into_iter().map(|waiter| waiter.id);
        let passed: Vec<JobId> = ids.by_ref().take(place).collect();
        ids.next().map(|id| (id, passed))
    }

    fn count_pass(&mut self, passed: &[JobId]) {
        let now_ms = self.now.ms;
        for id in passed {
            if let Some(entry) = self.jobs.get_mut(id) {
                entry.passed += 1;
                entry.passed_since.get_or_insert(now_ms);
            }
        }
    }

    /// Whether nothing holds a job back but its turn.
    fn may_begin(&self, id: &JobId) -> bool {
        let entry = &self.jobs[id];
        let in_time = entry.want.as_ref().is_none_or(|want| self.now.ms >= want.until_ms);
        let slot = self.find_slot(entry.model()).map(|slot| &self.slots[&slot]);
        in_time && slot.is_none_or(|slot| self.now.ms >= slot.not_before)
    }

    /// Keeps a job's slot and its record; it runs when that is on the disk.
    fn begin(&mut self, id: &JobId, passed: &[JobId]) {
        let model = self.jobs[id].model().to_owned();
        if let Err(error) = self.check_model(&model) {
            // It went, or was found to be damaged, while the job waited.
            return self.end_job(id, JobState::Failed, Some(error));
        }
        let slot = self.slot_of(&model);
        let request = self.jobs[id].record.order.request.clone();
        if !self.make_room(slot, RoomFor::Job(id.clone()), &request) {
            return;
        }
        self.count_pass(passed);
        self.set_slot(slot, SlotState::Kept);
        if let Some(kept) = self.slots.get_mut(&slot) {
            kept.job = Some(id.clone());
        }
        let unix_ms = self.now.unix_ms;
        let Some(entry) = self.jobs.get_mut(id) else { return };
        entry.want = None;
        entry.state = JobState::Loading;
        let record = entry.record_mut();
        record.state = JobState::Running;
        record.attempts += 1;
        record.started_at.get_or_insert(unix_ms);
        let record = record.clone();
        self.store(Change::Put(Box::new(record)), Then::Run(id.clone(), slot));
    }

    fn begin_load(&mut self, model: &str, keep_alive: Option<KeepAlive>) {
        if !self.models.contains_key(model) || self.broken.contains_key(model) {
            return;
        }
        let slot = self.slot_of(model);
        let is_cold = self.slots[&slot].state == SlotState::Cold;
        if !is_cold {
            return;
        }
        let request = JobRequest {
            model: crate::job::model::ModelName::Name(model.to_owned()),
            seed: Some(Seed::Given(0)),
            ..JobRequest::default()
        };
        let room_for = RoomFor::Load(model.to_owned());
        let in_time = self.now.ms >= self.slots[&slot].not_before;
        if !in_time || !self.make_room(slot, room_for, &request) {
            self.loads.push_front((model.to_owned(), keep_alive));
            return;
        }
        let order = RunOrder { job: None, request, model: model.to_owned() };
        self.start(slot, order);
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.load_keep_alive = keep_alive;
        }
    }

    /// Gives a slot's executor its order; one that is started anew is of the next epoch.
    fn start(&mut self, slot: SlotId, order: RunOrder) {
        let was_cold = self.slots[&slot].pid.is_none();
        let epoch = if was_cold { self.ids.epoch() } else { self.slots[&slot].epoch };
        let now_ms = self.now.ms;
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.epoch = epoch;
            slot.started_ms = was_cold.then_some(now_ms);
        }
        self.set_slot(slot, SlotState::Loading);
        self.out.push(Action::Run(slot, epoch, Box::new(order)));
    }

    /// The job's record is on the disk: it runs, unless it is not wanted any more.
    pub(super) fn begin_run(&mut self, id: &JobId, slot: SlotId) {
        let now_ms = self.now.ms;
        let Some(entry) = self.jobs.get_mut(id) else { return };
        if let Some(reason) = entry.ending {
            self.set_slot_after_kept(slot);
            return self.ended_early(id, reason);
        }
        let Some(order) = self.next_run(id) else { return };
        let load_ms = match self.slots[&slot].pid {
            Some(_) => 0.0,
            None => self.load_ms.get(&order.model).copied().unwrap_or(0.0),
        };
        self.start(slot, order);
        let Some(entry) = self.jobs.get_mut(id) else { return };
        let predicted_ms = load_ms + entry.record.offer.run_ms;
        entry.run =
            Some(RunState { slot, begun_ms: now_ms, predicted_ms, progress: None, preview: None });
        self.tell_state(id);
    }

    /// A slot that was kept for a job that does not run.
    fn set_slot_after_kept(&mut self, slot: SlotId) {
        match self.slots[&slot].pid {
            Some(_) => self.set_idle(slot, None),
            None => self.slot_gone(slot),
        }
    }

    /// What the job's next run makes.
    fn next_run(&self, id: &JobId) -> Option<RunOrder> {
        let entry = self.jobs.get(id)?;
        let order = &entry.record.order;
        let left = entry.record.wanted().saturating_sub(entry.made);
        let mut request = order.request.clone();
        request.shape.batch = Some(left.min(entry.record.offer.batch).max(1));
        if let Some(Seed::Given(seed)) = request.seed {
            request.seed = Some(Seed::Given(seed.wrapping_add(u64::from(entry.made))));
        }
        Some(RunOrder { job: Some(id.clone()), request, model: order.model.clone() })
    }

    /// What a slot's executor tells; what was said before its last start does not count.
    pub(super) fn said(&mut self, id: SlotId, epoch: u64, said: Said) {
        let Some(slot) = self.slots.get(&id).filter(|slot| slot.epoch == epoch) else { return };
        let job = slot.job.clone();
        match said {
            Said::Started { pid } => {
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.pid = Some(pid);
                    slot.failed_starts = 0;
                }
            }
            Said::Planned { plan, loads } => self.planned(id, job.as_ref(), &plan, loads),
            Said::Progress(progress) => self.progressed(id, job.as_ref(), progress),
            Said::Preview(preview) => self.previewed(job.as_ref(), preview),
            Said::Retrying { because } => {
                if let Some(entry) = job.as_ref().and_then(|job| self.jobs.get_mut(job)) {
                    entry.record_mut().notices.push(because);
                }
            }
            Said::Done(work) => self.run_done(id, job, *work),
            Said::Damaged { because } => self.damaged(id, because),
            Said::Cancelled => self.run_cancelled(id, job),
            Said::Failed { error, failures } => self.run_failed(id, job, *error, failures),
            Said::Gone => self.executor_gone(id, job),
            Said::Lost => self.executor_lost(id),
        }
    }

    fn planned(&mut self, slot: SlotId, job: Option<&JobId>, plan: &Arc<Value>, loads: bool) {
        self.set_slot(slot, if loads { SlotState::Loading } else { SlotState::Running });
        let Some(id) = job else { return };
        let Some(entry) = self.jobs.get_mut(id) else { return };
        entry.record_mut().plan = Some(KeptPlan::of(plan));
        let state = if loads { JobState::Loading } else { JobState::Running };
        self.out.push(Action::Tell(Note::Plan(id.clone(), Arc::clone(plan))));
        self.set_state(id, state);
    }

    fn progressed(&mut self, slot: SlotId, job: Option<&JobId>, progress: Progress) {
        let now_ms = self.now.ms;
        let computes = progress.phase != Phase::Load;
        if computes {
            self.note_load(slot);
            self.set_slot(slot, SlotState::Running);
        }
        let Some(id) = job else { return };
        if computes {
            self.set_state(id, JobState::Running);
        }
        let Some(entry) = self.jobs.get_mut(id) else { return };
        if let Some(run) = &mut entry.run {
            run.progress = Some(progress);
        }
        if let Some(view) = entry.progress(now_ms) {
            self.out.push(Action::Tell(Note::Progress(id.clone(), view)));
        }
    }

    /// What a start and a load took counts in place of what a load was predicted to take.
    fn note_load(&mut self, slot: SlotId) {
        let Some(slot) = self.slots.get_mut(&slot) else { return };
        if let Some(started_ms) = slot.started_ms.take() {
            let took_ms = self.now.ms.saturating_sub(started_ms) as f64;
            self.load_ms.insert(slot.model.clone(), took_ms);
        }
    }

    fn previewed(&mut self, job: Option<&JobId>, preview: Arc<PreviewImage>) {
        let Some(id) = job else { return };
        let Some(run) = self.jobs.get_mut(id).and_then(|entry| entry.run.as_mut()) else { return };
        run.preview = Some(Arc::clone(&preview));
        self.out.push(Action::Tell(Note::Preview(id.clone(), preview)));
    }

    fn run_done(&mut self, slot: SlotId, job: Option<JobId>, work: FinishedWork) {
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.idle_bytes = work.idle_bytes;
        }
        let Some(id) = job.filter(|id| self.jobs.contains_key(id)) else {
            let keep_alive = self.slots.get(&slot).and_then(|slot| slot.load_keep_alive);
            return self.set_idle(slot, keep_alive);
        };
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let keep_alive = entry.record.order.keep_alive;
        let (first, created_at) = (entry.made, entry.record.created_at);
        entry.made += work.pictures.len() as u32;
        entry.filing += 1;
        let record = entry.record_mut();
        record.usage = Some(work.usage);
        record.failures.extend(work.failures);
        record.notices.extend(work.notices);
        let all_made = entry.made >= entry.record.wanted();
        let pictures = work.pictures;
        let order = FileOrder { job: id.clone(), created_at, first, pictures };
        self.out.push(Action::File(Box::new(order)));
        let ends_early = self.jobs.get(&id).is_some_and(|entry| entry.ending.is_some());
        if all_made || ends_early {
            self.set_idle(slot, keep_alive);
            self.end_run(&id);
            self.set_state(&id, JobState::Filing);
            return;
        }
        // The next run of the same job, with no other between.
        if let Some(order) = self.next_run(&id) {
            self.start(slot, order);
        }
    }

    fn run_cancelled(&mut self, slot: SlotId, job: Option<JobId>) {
        self.set_idle(slot, None);
        let Some(id) = job.filter(|id| self.jobs.contains_key(id)) else { return };
        self.end_run(&id);
        let reason = self.jobs.get(&id).and_then(|entry| entry.ending);
        self.ended_early(&id, reason.unwrap_or(EndReason::Cancelled));
    }

    fn run_failed(
        &mut self,
        slot: SlotId,
        job: Option<JobId>,
        error: JobError,
        failures: Vec<FailedAttempt>,
    ) {
        if self.slots[&slot].pid.is_none() {
            self.back_off(slot);
        }
        self.slot_gone(slot);
        let Some(id) = job.filter(|id| self.jobs.contains_key(id)) else { return };
        self.end_run(&id);
        if let Some(entry) = self.jobs.get_mut(&id) {
            entry.record_mut().failures.extend(failures);
        }
        match self.jobs[&id].ending {
            Some(reason) => self.ended_early(&id, reason),
            None if self.may_wait_for_room(&id, &error) => self.wait_for_room(&id, &error),
            None => self.end_job(&id, JobState::Failed, Some(error)),
        }
    }

    /// A slot's model cannot be used as long as its files stay as they are.
    fn damaged(&mut self, slot: SlotId, because: String) {
        let model = self.slots[&slot].model.clone();
        if let Some(served) = self.models.get(&model) {
            self.broken.insert(model, (served.modified_ms, because));
        }
    }

    /// Whether what is short may come back: it fitted when the job was accepted.
    fn may_wait_for_room(&self, id: &JobId, error: &JobError) -> bool {
        let is_short = matches!(error.code, ErrorCode::DoesNotFit | ErrorCode::OutOfMemory);
        let since_ms = self.jobs[id].short_since.unwrap_or(self.now.ms);
        let waited_ms = self.now.ms - since_ms;
        is_short && waited_ms < self.config.room_wait_ms
    }

    fn wait_for_room(&mut self, id: &JobId, error: &JobError) {
        let now_ms = self.now.ms;
        // What other models hold is had at once.
        let may_have_more = !self.idle_slots().is_empty();
        let Some(entry) = self.jobs.get_mut(id) else { return };
        let because = error.message.lines().next().unwrap_or_default().to_owned();
        let mut until_ms = now_ms + ROOM_RETRY_MS;
        if may_have_more && !entry.needs_all {
            entry.needs_all = true;
            until_ms = now_ms;
        } else {
            entry.short_since.get_or_insert(now_ms);
        }
        entry.want = Some(Want { until_ms, because });
        self.requeue(id, JobState::Waiting);
    }

    /// A run is over.
    pub(super) fn end_run(&mut self, id: &JobId) {
        if let Some(entry) = self.jobs.get_mut(id) {
            entry.run = None;
        }
    }

    /// The executor is gone: by the desk's word, or by itself.
    fn executor_gone(&mut self, slot: SlotId, job: Option<JobId>) {
        let was_asked = self.slots[&slot].state == SlotState::Evicting;
        if !was_asked && self.slots[&slot].pid.is_none() {
            self.back_off(slot);
        }
        self.slot_gone(slot);
        let Some(id) = job.filter(|id| self.jobs.contains_key(id)) else { return };
        self.end_run(&id);
        match self.jobs[&id].ending {
            Some(reason) => self.ended_early(&id, reason),
            None => {
                let error = JobError::new(ErrorCode::ExecutorDied, "the executor is gone");
                self.end_job(&id, JobState::Failed, Some(error));
            }
        }
    }
}
