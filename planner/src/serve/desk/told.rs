//! What executors tell of runs, and what becomes of the jobs of each.
//!
//! Jobs that run together have one run and nothing else in common: each has its own pictures,
//! record and end. After a run of several that failed each goes on alone, so that none fails for
//! another's sake.

use std::sync::Arc;

use protocol::Phase;
use protocol::message::Progress;
use serde_json::Value;

use super::Desk;
use super::action::{Action, FileOrder, Note, SlotState};
use super::config::ROOM_RETRY_MS;
use super::entry::{EndReason, Want};
use super::event::{FinishedWork, MadePicture, PreviewImage, Said, SlotId};
use super::job::{ErrorCode, JobError, JobId, JobState, KeptJson};
use crate::job::FailedAttempt;

impl Desk {
    /// What a slot's executor tells; what was said before its last start does not count.
    pub(super) fn said(&mut self, id: SlotId, epoch: u64, said: Said) {
        let Some(slot) = self.slots.get(&id).filter(|slot| slot.epoch == epoch) else { return };
        let jobs = slot.members();
        match said {
            Said::Started { pid } => {
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.pid = Some(pid);
                    slot.failed_starts = 0;
                }
            }
            Said::Planned { plan, lanes, loads, .. } => {
                self.planned(id, &jobs, &plan, loads);
                self.set_lanes(id, lanes);
            }
            Said::Progress(progress) => self.progressed(id, &jobs, progress),
            Said::Preview(preview) => self.previewed(&jobs, &preview),
            Said::Retrying { because } => {
                for job in &jobs {
                    if let Some(entry) = self.jobs.get_mut(job) {
                        entry.record_mut().notices.push(because.clone());
                    }
                }
            }
            Said::Done(work) => self.run_done(id, &jobs, *work),
            Said::Damaged { because } => self.damaged(id, because),
            Said::Cancelled => self.run_cancelled(id, &jobs),
            Said::InTheWay => self.run_in_the_way(id, &jobs),
            Said::Failed { error, failures } => self.run_failed(id, &jobs, &error, &failures),
            Said::Gone => self.executor_gone(id, &jobs),
            Said::Lost => self.executor_lost(id),
        }
    }

    fn planned(&mut self, slot: SlotId, jobs: &[JobId], plan: &Arc<Value>, loads: bool) {
        self.set_slot(slot, if loads { SlotState::Loading } else { SlotState::Running });
        let state = if loads { JobState::Loading } else { JobState::Running };
        let kept = KeptJson::of(plan);
        for id in jobs {
            let Some(entry) = self.jobs.get_mut(id) else { continue };
            entry.record_mut().plan = Some(kept.clone());
            self.out.push(Action::Tell(Note::Plan(id.clone(), Arc::clone(plan))));
            self.set_state(id, state);
        }
    }

    fn progressed(&mut self, slot: SlotId, jobs: &[JobId], progress: Progress) {
        let now_ms = self.now.ms;
        let computes = progress.phase != Phase::Load;
        if computes {
            self.note_load(slot);
            self.set_slot(slot, SlotState::Running);
        }
        for id in jobs {
            if computes {
                self.set_state(id, JobState::Running);
            }
            let Some(entry) = self.jobs.get_mut(id) else { continue };
            if let Some(run) = &mut entry.run {
                run.progress = Some(progress);
            }
            if let Some(view) = entry.progress(now_ms) {
                self.out.push(Action::Tell(Note::Progress(id.clone(), view)));
            }
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

    /// Jobs that want previews run alone.
    fn previewed(&mut self, jobs: &[JobId], preview: &Arc<PreviewImage>) {
        let [id] = jobs else { return };
        let Some(run) = self.jobs.get_mut(id).and_then(|entry| entry.run.as_mut()) else { return };
        run.preview = Some(Arc::clone(preview));
        self.out.push(Action::Tell(Note::Preview(id.clone(), Arc::clone(preview))));
    }

    fn run_done(&mut self, slot: SlotId, jobs: &[JobId], mut work: FinishedWork) {
        let Some(ran) = self.slots.get_mut(&slot) else { return };
        ran.idle_bytes = std::mem::take(&mut work.idle_bytes);
        let members = ran.jobs.clone();
        let first = jobs.first().and_then(|id| self.jobs.get(id));
        let Some(first) = first else {
            return self.load_done(slot);
        };
        let keep_alive = first.record.order.keep_alive;
        let mut pictures = std::mem::take(&mut work.pictures).into_iter();
        let mut notices = std::mem::take(&mut work.notices).into_iter();
        for member in &members {
            let own = pictures.by_ref().take(member.pictures as usize).collect();
            let notices = notices.next().unwrap_or_default();
            if !member.gone {
                self.take_work(&member.id, members.len(), own, notices, &work);
            }
        }
        if let [id] = jobs
            && self.jobs.get(id).is_some_and(|e| e.made < e.record.wanted() && e.ending.is_none())
        {
            // The next run of the same job, with no other between.
            if let Some(slot) = self.slots.get_mut(&slot) {
                slot.jobs.retain(|member| !member.gone);
            }
            if let Some(order) = self.next_run(slot) {
                self.start(slot, order);
            }
            return;
        }
        self.set_idle(slot, keep_alive);
        for id in jobs {
            self.end_run(id);
            self.set_state(id, JobState::Filing);
        }
    }

    /// A model is loaded, and no job runs: it stays for as long as it was to stay before, or as it
    /// is loaded ahead.
    fn load_done(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let (keep_alive, before) = (slot.load_keep_alive, slot.more_free.take_expiry());
        self.set_idle(id, keep_alive);
        if let (Some(slot), Some(expires_at)) = (self.slots.get_mut(&id), before) {
            slot.expires_at = expires_at;
        }
    }

    /// Takes what a run of so many jobs made of one, and has it filed.
    fn take_work(
        &mut self,
        id: &JobId,
        joined: usize,
        pictures: Vec<MadePicture>,
        notices: Vec<String>,
        work: &FinishedWork,
    ) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        let (first, created_at) = (entry.made, entry.record.created_at);
        entry.made += pictures.len() as u32;
        entry.filing += 1;
        let record = entry.record_mut();
        record.usage = Some(work.usage.clone());
        record.failures.extend(work.failures.iter().cloned());
        record.notices.extend(notices);
        if joined > 1 {
            let sentence =
                format!("it ran in one batch with {} more: what it took is of all", joined - 1);
            record.notices.push(sentence);
        }
        let order = FileOrder { job: id.clone(), created_at, first, pictures };
        self.out.push(Action::File(Box::new(order)));
    }

    fn run_cancelled(&mut self, slot: SlotId, jobs: &[JobId]) {
        self.set_idle(slot, None);
        for id in jobs {
            self.end_run(id);
            if let Some(entry) = self.jobs.get(id) {
                let reason = entry.ending.unwrap_or(EndReason::Cancelled);
                self.ended_early(id, reason);
            }
        }
    }

    fn run_failed(
        &mut self,
        slot: SlotId,
        jobs: &[JobId],
        error: &JobError,
        failures: &[FailedAttempt],
    ) {
        if self.slots[&slot].pid.is_none() {
            self.back_off(slot);
        }
        self.jobs_failed(slot, jobs, error, failures);
    }

    /// The run of a slot's jobs failed, and its executor is gone.
    fn jobs_failed(
        &mut self,
        slot: SlotId,
        jobs: &[JobId],
        error: &JobError,
        failures: &[FailedAttempt],
    ) {
        let joined = self.slots[&slot].jobs.len() > 1;
        self.slot_gone(slot);
        for id in jobs {
            self.end_run(id);
            let Some(entry) = self.jobs.get_mut(id) else { continue };
            entry.record_mut().failures.extend(failures.iter().cloned());
            entry.runs_alone |= joined;
            let ending = entry.ending;
            match ending {
                Some(reason) => self.ended_early(id, reason),
                None if joined => self.requeue(id, JobState::Queued),
                None if self.may_wait_for_room(id, error) => self.wait_for_room(id, error),
                None => self.end_job(id, JobState::Failed, Some(error.clone())),
            }
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
        // What other models hold is had at once, or when those that run are done.
        let may_have_more = !self.idle_slots().is_empty() || self.is_busy();
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

    /// A job's run is over.
    pub(super) fn end_run(&mut self, id: &JobId) {
        if let Some(entry) = self.jobs.get_mut(id) {
            entry.run = None;
        }
    }

    /// The executor is gone: by the desk's word, or by itself.
    fn executor_gone(&mut self, slot: SlotId, jobs: &[JobId]) {
        let was_asked = self.slots[&slot].state == SlotState::Evicting;
        if !was_asked && self.slots[&slot].pid.is_none() {
            self.back_off(slot);
        }
        let error = JobError::new(ErrorCode::ExecutorDied, "the executor is gone");
        self.jobs_failed(slot, jobs, &error, &[]);
    }
}
