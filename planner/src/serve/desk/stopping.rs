//! What time does, and how the daemon pauses and ends; and how it takes up what it left.

use super::action::{Action, Change, EvictReason, Reply};
use super::config::DAEMON_DEATHS_MAX;
use super::entry::{EndReason, Entry};
use super::event::Ticket;
use super::job::{ErrorCode, JobError, JobId, JobRecord, JobState, OnDisconnect};
use super::{Desk, Then};

/// The daemon's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// When what still runs is cancelled.
    at_ms: u64,
    /// Whether that was done.
    cancelled: bool,
    /// Whether all is over.
    exits: bool,
}

impl Desk {
    /// Takes up a job of an earlier daemon.
    pub(super) fn restore(&mut self, mut record: JobRecord) {
        let id = record.id.clone();
        if record.state.is_ended() {
            self.jobs.insert(id, Entry::new(record, self.now.ms));
            return;
        }
        let ran = record.state != JobState::Queued;
        if ran {
            record.daemon_deaths += 1;
        }
        // Pictures that were made count: the next run goes on behind them.
        record.state = JobState::Queued;
        let order = &record.order;
        let nobody_waits = record.synchronous
            && order.on_disconnect == OnDisconnect::Cancel
            && order.idempotency.is_none();
        let killer = record.daemon_deaths >= DAEMON_DEATHS_MAX;
        let mut entry = Entry::new(record.clone(), self.now.ms);
        if ran {
            self.fronts += 1;
            entry.front = self.fronts;
            // Whichever of several ended the daemon, it ends no other with it again.
            entry.runs_alone = true;
        }
        self.jobs.insert(id.clone(), entry);
        if killer {
            let message = format!(
                "the daemon ended {DAEMON_DEATHS_MAX} times while this job ran; hint: see its log"
            );
            let error = JobError::new(ErrorCode::Internal, message);
            self.end_job(&id, JobState::Failed, Some(error));
        } else if nobody_waits {
            let message = "the daemon ended before the job, and its client is gone";
            let error = JobError::new(ErrorCode::Interrupted, message);
            self.end_job(&id, JobState::Failed, Some(error));
        } else if ran {
            self.store(Change::Put(Box::new(record)), Then::Nothing);
        }
    }

    /// Does what is due.
    pub(super) fn expire(&mut self) {
        let now_ms = self.now.ms;
        self.retry_writes();
        self.expire_weighing();
        self.expire_gain();
        self.expire_questions();
        let late = self.jobs.iter().filter(|(_, entry)| {
            !entry.state.is_ended()
                && entry.ending.is_none()
                && entry.deadline_at.is_some_and(|at| now_ms >= at)
        });
        for id in late.map(|(id, _)| id.clone()).collect::<Vec<JobId>>() {
            self.cancel_job(&id, EndReason::Deadline);
        }
        let idle = self.idle_slots().into_iter();
        let expired = idle.filter(|id| self.slots[id].expires_at.is_some_and(|at| now_ms >= at));
        for id in expired.collect::<Vec<_>>() {
            self.evict(id, EvictReason::Idle);
        }
    }

    /// Sets the timer to the next time at which something is due.
    pub(super) fn set_timer(&mut self) {
        if self.stop.is_some_and(|stop| stop.exits) {
            return;
        }
        let now_ms = self.now.ms;
        let open = self.jobs.values().filter(|entry| !entry.state.is_ended());
        let jobs = open.flat_map(|entry| {
            let deadline = entry.deadline_at.filter(|_| entry.ending.is_none() && !entry.closing);
            [deadline, entry.want.as_ref().map(|want| want.until_ms)]
        });
        let slots = self.slots.values();
        let slots = slots.flat_map(|slot| [slot.expires_at, Some(slot.not_before)]);
        let stop = self.stop.filter(|stop| !stop.cancelled).map(|stop| stop.at_ms);
        let weighed = self.weighing.as_ref().map(|weighing| weighing.until_ms);
        let questions = self.questions.values().map(|open| Some(open.until_ms));
        let gain = [self.gain.as_ref().map(|gain| gain.until_ms()), self.gain_due()];
        let rest = [stop, self.retry_store_at, weighed, self.company.wait_until()];
        let times = jobs.chain(slots).chain(questions).chain(rest).chain(gain).flatten();
        let next = times.filter(|at| *at > now_ms).min();
        if next != self.wake_at
            && let Some(at) = next
        {
            self.wake_at = next;
            self.out.push(Action::Wake(at - now_ms));
        }
    }

    pub(super) fn pause(&mut self, ticket: Ticket, unload: bool) {
        self.set_paused(true);
        if unload {
            for id in self.idle_slots() {
                self.evict(id, EvictReason::Asked);
            }
        }
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    pub(super) fn resume(&mut self, ticket: Ticket) {
        self.set_paused(false);
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    fn set_paused(&mut self, paused: bool) {
        if self.settings.paused != paused {
            self.settings.paused = paused;
            self.store(Change::Settings(self.settings.clone()), Then::Nothing);
        }
    }

    pub(super) fn drain(&mut self, ticket: Ticket) {
        self.begin_stop();
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    fn begin_stop(&mut self) {
        let at_ms = self.now.ms.saturating_add(self.config.drain_ms);
        self.stop.get_or_insert(Stop { at_ms, cancelled: false, exits: false });
    }

    /// The first signal lets what runs end; the second one does not.
    pub(super) fn stop_signal(&mut self) {
        match &mut self.stop {
            None => self.begin_stop(),
            Some(stop) => stop.at_ms = stop.at_ms.min(self.now.ms),
        }
    }

    /// Ends what is idle, in time what runs, and then the daemon.
    pub(super) fn go_on_stopping(&mut self) {
        let Some(stop) = self.stop.filter(|stop| !stop.exits) else { return };
        if self.now.ms >= stop.at_ms && !stop.cancelled {
            self.stop = Some(Stop { cancelled: true, ..stop });
            let open = self.jobs.iter().filter(|(_, entry)| entry.run.is_some());
            for id in open.map(|(id, _)| id.clone()).collect::<Vec<JobId>>() {
                self.cancel_job(&id, EndReason::Stop);
            }
            // A model that is loaded ahead has no job.
            let loads =
                self.slots.iter().filter(|(_, slot)| slot.is_busy() && slot.jobs.is_empty());
            for id in loads.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.out.push(Action::Cancel(id));
            }
        }
        for id in self.idle_slots() {
            self.evict(id, EvictReason::Asked);
        }
        let slots_gone = self.slots.values().all(|slot| !slot.has_executor());
        let filed = self.jobs.values().all(|entry| entry.filing == 0);
        let stored = self.writes.is_empty();
        // Where nothing can be written, waiting does not help.
        if slots_gone && filed && stored {
            self.stop = self.stop.map(|stop| Stop { exits: true, ..stop });
            self.out.push(Action::Exit(0));
        }
    }
}
