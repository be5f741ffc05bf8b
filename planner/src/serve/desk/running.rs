//! Runs: which jobs begin where.

use super::action::{Action, Change, RunOrder, SlotState};
use super::beside::NextTurn;
use super::entry::RunState;
use super::event::SlotId;
use super::job::{JobId, JobState, KeepAlive};
use super::queue::{Waiter, sort};
use super::room::RoomFor;
use super::slots::RunMember;
use super::{Desk, Then};
use crate::job::JobRequest;
use crate::job::seed::Seed;

impl Desk {
    /// Lets the next job begin, if one may: beside what runs where that is free for it.
    pub(super) fn dispatch(&mut self) {
        let evicting = self.slots.values().any(|slot| slot.state == SlotState::Evicting);
        let may_start = self.stop.is_none() && !self.settings.paused && self.store_fault.is_none();
        // What there is, is known soon after the start.
        let waits = evicting || self.weighing.is_some();
        if waits || !may_start || self.models.is_empty() {
            return;
        }
        if let Some(NextTurn { id, passed }) = self.next_start() {
            return self.begin(&id, &passed);
        }
        self.company.end_wait();
        if self.is_busy() {
            return;
        }
        // Models are loaded ahead only where nobody waits.
        if self.jobs.values().all(|entry| !entry.is_queued())
            && let Some((model, keep_alive)) = self.loads.pop_front()
        {
            return self.begin_load(&model, keep_alive);
        }
        self.ask_gain();
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
    pub(super) fn may_begin(&self, id: &JobId) -> bool {
        let entry = &self.jobs[id];
        let in_time = entry.want.as_ref().is_none_or(|want| self.now.ms >= want.until_ms);
        let slot = self.find_slot(entry.model()).map(|slot| &self.slots[&slot]);
        in_time && slot.is_none_or(|slot| self.now.ms >= slot.not_before)
    }

    /// Keeps a slot and the records of a job, and of those that run with it; they run when these
    /// are on the disk.
    fn begin(&mut self, id: &JobId, passed: &[JobId]) {
        let model = self.jobs[id].model().to_owned();
        if let Err(error) = self.check_model(&model) {
            // It went, or was found to be damaged, while the job waited.
            return self.end_job(id, JobState::Failed, Some(error));
        }
        let Some(company) = self.company_now(id) else { return };
        let slot = self.slot_of(&model);
        let has_room = match self.is_busy() {
            true => self.make_room_beside(slot, id),
            false => {
                let request = self.jobs[id].record.order.request.clone();
                self.make_room(slot, RoomFor::Job(id.clone()), &request)
            }
        };
        if !has_room {
            return;
        }
        let passed_by_company = self.passed_by(id, &company);
        let more = passed_by_company.iter().filter(|other| !passed.contains(other));
        self.count_pass(&passed.iter().chain(more).cloned().collect::<Vec<_>>());
        self.set_slot(slot, SlotState::Kept);
        let runs_alone = self.jobs[id].needs_machine();
        let jobs: Vec<JobId> = [id.clone()].into_iter().chain(company.jobs).collect();
        if let Some(kept) = self.slots.get_mut(&slot) {
            kept.jobs = jobs.iter().cloned().map(RunMember::new).collect();
            kept.joined_ms = company.run_ms;
            kept.runs_alone = runs_alone;
        }
        jobs.iter().for_each(|id| self.keep_begin(id, slot));
    }

    /// Keeps that a job is begun.
    fn keep_begin(&mut self, id: &JobId, slot: SlotId) {
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
        let order = RunOrder {
            job: None,
            request,
            company: Vec::new(),
            model: model.to_owned(),
            anew: false,
        };
        self.start(slot, order);
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.load_keep_alive = keep_alive;
        }
    }

    /// Gives a slot's executor its order; one that is started anew is of the next epoch.
    pub(super) fn start(&mut self, slot: SlotId, order: RunOrder) {
        let was_cold = self.slots[&slot].pid.is_none();
        let epoch = if was_cold { self.ids.epoch() } else { self.slots[&slot].epoch };
        let now_ms = self.now.ms;
        if let Some(slot) = self.slots.get_mut(&slot) {
            slot.epoch = epoch;
            slot.last_request = Some(order.request.clone());
            slot.started_ms = was_cold.then_some(now_ms);
            slot.lanes = None;
        }
        self.set_slot(slot, SlotState::Loading);
        self.out.push(Action::Run(slot, epoch, Box::new(order)));
    }

    /// A job's record is on the disk: it runs when those of all that run with it are, unless it is
    /// not wanted any more.
    pub(super) fn begin_run(&mut self, id: &JobId, slot: SlotId) {
        let Some(kept) = self.slots.get_mut(&slot) else { return };
        for member in kept.jobs.iter_mut().filter(|member| member.id == *id) {
            member.kept = true;
        }
        if kept.jobs.iter().any(|member| !member.kept) {
            return;
        }
        let is_wanted = |member: &RunMember| {
            self.jobs.get(&member.id).is_some_and(|entry| entry.ending.is_none())
        };
        let (jobs, unwanted): (Vec<_>, Vec<_>) =
            std::mem::take(&mut kept.jobs).into_iter().partition(is_wanted);
        kept.jobs = jobs;
        let is_empty = kept.jobs.is_empty();
        if is_empty {
            self.set_slot_after_kept(slot);
        }
        for member in unwanted {
            if let Some(reason) = self.jobs.get(&member.id).and_then(|entry| entry.ending) {
                self.ended_early(&member.id, reason);
            }
        }
        if !is_empty {
            self.start_jobs(slot);
        }
    }

    /// Starts what a slot is kept for.
    fn start_jobs(&mut self, slot: SlotId) {
        let now_ms = self.now.ms;
        let Some(order) = self.next_run(slot) else { return };
        let load_ms = match self.slots[&slot].pid {
            Some(_) => 0.0,
            None => self.load_ms.get(&order.model).copied().unwrap_or(0.0),
        };
        self.start(slot, order);
        let joined_ms = self.slots[&slot].joined_ms;
        for id in self.slots[&slot].members() {
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            let predicted_ms = load_ms + joined_ms.unwrap_or(entry.record.offer.run_ms);
            entry.run = Some(RunState {
                slot,
                begun_ms: now_ms,
                predicted_ms,
                progress: None,
                preview: None,
            });
            self.tell_state(&id);
        }
    }

    /// A slot that was kept for a job that does not run.
    fn set_slot_after_kept(&mut self, slot: SlotId) {
        match self.slots[&slot].pid {
            Some(_) => self.set_idle(slot, None),
            None => self.slot_gone(slot),
        }
    }

    /// What a slot's next run makes of its jobs.
    pub(super) fn next_run(&mut self, slot: SlotId) -> Option<RunOrder> {
        let kept = self.slots.get_mut(&slot)?;
        let mut requests = Vec::new();
        for member in &mut kept.jobs {
            let request = self.jobs.get(&member.id)?.next_request();
            member.pictures = request.shape.batch.unwrap_or(1);
            requests.push(request);
        }
        let (job, model) = (kept.jobs.first()?.id.clone(), kept.model.clone());
        let company = requests.split_off(1);
        let request = requests.pop()?;
        Some(RunOrder { job: Some(job), request, company, model, anew: false })
    }
}
