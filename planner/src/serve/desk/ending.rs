//! How jobs end: done, failed, cancelled; and what of them is kept.

use super::action::{Action, Change, Note, Reply};
use super::config::REMOVED_MS;
use super::entry::{EndReason, Entry};
use super::event::{Asker, FiledPicture, SlotId, Ticket};
use super::job::{ErrorCode, JobError, JobId, JobState};
use super::retention::surplus;
use super::{Desk, Then};

impl Desk {
    /// A run's pictures are encoded, and on the disk as far as they can be.
    pub(super) fn filed(&mut self, id: &JobId, pictures: Vec<FiledPicture>, error: Option<String>) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        entry.filing = entry.filing.saturating_sub(1);
        let records = pictures.iter().map(|picture| picture.record.clone());
        entry.record_mut().pictures.extend(records);
        if !entry.waiters.is_empty() {
            entry.filed.extend(pictures);
        }
        if let Some(because) = error {
            let message = format!("the pictures were made, and could not be written: {because}");
            entry.disk_error.get_or_insert(JobError::new(ErrorCode::Disk, message));
        }
        if entry.state != JobState::Filing || entry.filing > 0 {
            return;
        }
        let all_made = entry.made >= entry.record.wanted();
        match (entry.disk_error.take(), entry.ending.filter(|_| !all_made)) {
            (Some(error), _) => self.end_job(id, JobState::Failed, Some(error)),
            (None, Some(reason)) => self.ended_early(id, reason),
            (None, None) => self.end_job(id, JobState::Done, None),
        }
    }

    /// A job that was to end before its time, and now does.
    pub(super) fn ended_early(&mut self, id: &JobId, reason: EndReason) {
        // Of an earlier run, some are being written: the job ends when they are.
        if let Some(entry) = self.jobs.get_mut(id)
            && entry.filing > 0
        {
            entry.ending = Some(reason);
            return self.set_state(id, JobState::Filing);
        }
        match reason {
            EndReason::Cancelled => self.end_job(id, JobState::Cancelled, None),
            EndReason::Stop => {
                if let Some(entry) = self.jobs.get_mut(id) {
                    entry.ending = None;
                }
                self.requeue(id, JobState::Queued);
            }
            EndReason::Deadline => {
                let message = "the deadline passed; hint: a later one, fewer steps, a smaller size";
                let error = JobError::new(ErrorCode::Deadline, message);
                self.end_job(id, JobState::Failed, Some(error));
            }
        }
    }

    /// Keeps the job's end; who waits is told when it is on the disk.
    pub(super) fn end_job(&mut self, id: &JobId, state: JobState, error: Option<JobError>) {
        let unix_ms = self.now.unix_ms;
        let Some(entry) = self.jobs.get_mut(id) else { return };
        entry.closing = true;
        entry.want = None;
        let record = entry.record_mut();
        record.state = state;
        record.error = error;
        record.ended_at = Some(unix_ms);
        let record = record.clone();
        self.store(Change::Put(Box::new(record)), Then::End(id.clone()));
    }

    /// Its end is on the disk.
    pub(super) fn ended(&mut self, id: &JobId) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        entry.closing = false;
        entry.state = entry.record.state;
        self.answer_waiters(id);
        self.tell_state(id);
        self.jobs.get_mut(id).into_iter().for_each(Entry::shorten);
        self.remove_surplus();
    }

    /// Answers who waits for a job's end.
    pub(super) fn answer_waiters(&mut self, id: &JobId) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        let (waiters, filed) =
            (std::mem::take(&mut entry.waiters), std::mem::take(&mut entry.filed));
        for ticket in waiters {
            let mut view = self.view(id);
            view.state = view.record.state;
            let reply = Reply::Ended(Box::new(view), filed.clone());
            self.out.push(Action::Answer(ticket, reply));
        }
    }

    /// Puts a job back in the queue, and keeps that.
    pub(super) fn requeue(&mut self, id: &JobId, state: JobState) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        entry.state = state;
        let record = entry.record_mut();
        record.state = JobState::Queued;
        let record = record.clone();
        self.store(Change::Put(Box::new(record)), Then::Requeue(id.clone()));
    }

    pub(super) fn requeued(&mut self, id: &JobId) {
        self.tell_state(id);
    }

    /// Ends a job that is not wanted: at once where it waits, soon where it runs.
    pub(super) fn cancel_job(&mut self, id: &JobId, reason: EndReason) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        if entry.state.is_ended() || entry.closing || entry.coming {
            return;
        }
        if entry.is_queued() {
            return self.ended_early(id, reason);
        }
        // The first reason counts, but that the daemon ends gives way to the user's.
        let before = entry.ending;
        if before.is_none() || before == Some(EndReason::Stop) {
            entry.ending = Some(reason);
        }
        if before.is_none()
            && let Some(slot) = entry.run.as_ref().map(|run| run.slot)
        {
            self.cancel_run(slot, id, reason);
        }
    }

    /// Ends a job's run. Where it runs with others, these go on, and it has ended.
    fn cancel_run(&mut self, slot: SlotId, id: &JobId, reason: EndReason) {
        let Some(runs) = self.slots.get_mut(&slot) else { return };
        if runs.members().iter().all(|other| other == id) {
            return self.out.push(Action::Cancel(slot));
        }
        for member in runs.jobs.iter_mut().filter(|member| member.id == *id) {
            member.gone = true;
        }
        self.end_run(id);
        self.ended_early(id, reason);
    }

    pub(super) fn cancel_asked(&mut self, ticket: Ticket, asker: &Asker, id: &JobId) {
        let Some(entry) = self.visible(ticket, asker, id) else { return };
        if entry.state.is_ended() || entry.closing {
            let message = format!("job {id} has ended already");
            return self.refuse(ticket, JobError::new(ErrorCode::Finished, message), None);
        }
        self.cancel_job(id, EndReason::Cancelled);
        let view = Box::new(self.view(id));
        self.out.push(Action::Answer(ticket, Reply::Job(view)));
    }

    /// Ends what this client runs over A1111's routes.
    pub(super) fn interrupt_sdapi(&mut self, ticket: Ticket, asker: &Asker) {
        let own = self.jobs.iter().filter(|(_, entry)| {
            let order = &entry.record.order;
            let is_theirs = order.client == asker.client;
            !entry.state.is_ended() && order.api == super::job::Api::Sdapi && is_theirs
        });
        for id in own.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.cancel_job(&id, EndReason::Cancelled);
        }
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    pub(super) fn delete(&mut self, ticket: Ticket, asker: &Asker, id: &JobId) {
        let Some(entry) = self.visible(ticket, asker, id) else { return };
        if !entry.state.is_ended() {
            let message = format!("job {id} has not ended; hint: cancel it first");
            return self.refuse(ticket, JobError::new(ErrorCode::BadValue, message), None);
        }
        self.remove(id);
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    /// Forgets an ended job, and its files.
    fn remove(&mut self, id: &JobId) {
        let Some(entry) = self.jobs.remove(id) else { return };
        self.removed.insert(id.clone(), self.now.unix_ms);
        self.store(Change::Remove(id.clone()), Then::Nothing);
        self.out.push(Action::Erase(Box::new((*entry.record).clone())));
    }

    /// Forgets the oldest ended jobs where there are too many, or their pictures take too much.
    fn remove_surplus(&mut self) {
        // What is on its way to the disk as ended is not ended yet.
        let settled = self.jobs.values().filter(|entry| !entry.closing);
        let records = settled.map(|entry| &*entry.record);
        for id in surplus(records, self.config.keep_jobs, self.config.keep_bytes) {
            self.remove(&id);
        }
        let unix_ms = self.now.unix_ms;
        self.removed.retain(|_, at| unix_ms.saturating_sub(*at) < REMOVED_MS);
    }

    /// Moves a job to another state, and tells of it.
    pub(super) fn set_state(&mut self, id: &JobId, state: JobState) {
        let Some(entry) = self.jobs.get_mut(id) else { return };
        if entry.state != state {
            entry.state = state;
            self.tell_state(id);
        }
    }

    pub(super) fn tell_state(&mut self, id: &JobId) {
        let view = Box::new(self.view(id));
        self.out.push(Action::Tell(Note::State(view)));
    }
}
