//! What is shown of jobs, of the queue and of models; and what is changed by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::action::{Action, Change, EvictReason, JobView, ModelView, Note, Reply, SlotState};
use super::event::{Asker, JobFilter, Ticket};
use super::forecast::Turn;
use super::job::{Class, ErrorCode, JobError, JobId, KeepAlive};
use super::{Desk, Then};

impl Desk {
    /// A job that the asker may see; else the question is answered by an error.
    pub(super) fn visible(
        &mut self,
        ticket: Ticket,
        asker: &Asker,
        id: &JobId,
    ) -> Option<&super::entry::Entry> {
        let sees = |entry: &super::entry::Entry| {
            !entry.coming && (asker.admin || entry.record.order.client == asker.client)
        };
        if self.jobs.get(id).is_some_and(sees) {
            return self.jobs.get(id);
        }
        let error = match self.removed.contains_key(id) {
            true => JobError::new(ErrorCode::Expired, format!("job {id} was removed")),
            false => {
                let message = format!("no job {id}; hint: GET /v1/jobs lists them");
                JobError::new(ErrorCode::NoJob, message)
            }
        };
        self.refuse(ticket, error, None);
        None
    }

    /// A job as it is now.
    pub(super) fn view(&self, id: &JobId) -> JobView {
        // Sorting a long queue for a job that does not wait would be in vain.
        let turns = match self.jobs[id].is_queued() {
            true => self.turns(),
            false => BTreeMap::new(),
        };
        self.view_among(id, &turns)
    }

    fn view_among(&self, id: &JobId, turns: &BTreeMap<JobId, Turn>) -> JobView {
        let entry = &self.jobs[id];
        let turn = turns.get(id).copied();
        let position = entry.run.as_ref().map(|_| 0).or(turn.map(|turn| turn.place));
        let starts_in_ms = turn.map(|turn| turn.start_ms);
        let left_ms = entry.run.as_ref().map(|run| run.left_ms(self.now.ms));
        let run_ms = entry.record.offer.run_ms;
        let load_ms = self.load_ms.get(entry.model()).copied().unwrap_or(0.0);
        let load_ms = if self.is_warm(entry.model()) { 0.0 } else { load_ms };
        JobView {
            record: Arc::clone(&entry.record),
            whole: entry.whole,
            state: entry.state,
            position,
            progress: entry.progress(self.now.ms),
            waiting: entry.want.as_ref().map(|want| want.because.clone()),
            starts_in_ms,
            ends_in_ms: left_ms.or(starts_in_ms.map(|start_ms| start_ms + load_ms + run_ms)),
            preview: entry.run.as_ref().and_then(|run| run.preview.clone()),
        }
    }

    pub(super) fn show(&mut self, ticket: Ticket, asker: &Asker, id: &JobId) {
        if self.visible(ticket, asker, id).is_some() {
            let view = Box::new(self.view(id));
            self.out.push(Action::Answer(ticket, Reply::Job(view)));
        }
    }

    pub(super) fn list(&mut self, ticket: Ticket, asker: &Asker, filter: &JobFilter) {
        let JobFilter { state, model, before, limit, label } = filter;
        let wanted = self.jobs.iter().rev().filter(|(id, entry)| {
            let order = &entry.record.order;
            !entry.coming
                && (asker.admin || order.client == asker.client)
                && state.is_none_or(|state| entry.state == state)
                && model.as_ref().is_none_or(|model| order.model == *model)
                && before.as_ref().is_none_or(|before| *id < before)
                && (label.is_none() || order.label == *label)
        });
        let turns = self.turns();
        let views = wanted.take(*limit).map(|(id, _)| self.view_among(id, &turns)).collect();
        self.out.push(Action::Answer(ticket, Reply::Jobs(views)));
    }

    pub(super) fn show_queue(&mut self, ticket: Ticket, asker: &Asker) {
        let running = self.jobs.iter().filter(|(_, entry)| entry.run.is_some());
        let running = running.map(|(id, _)| id.clone());
        let turns = self.turns();
        let mut waiting: Vec<(usize, JobId)> =
            turns.iter().map(|(id, turn)| (turn.place, id.clone())).collect();
        waiting.sort();
        let waiting = waiting.into_iter().map(|(_, id)| id);
        let is_seen = |id: &JobId| asker.admin || self.jobs[id].record.order.client == asker.client;
        let ids = running.chain(waiting).filter(is_seen);
        let jobs = ids.map(|id| self.view_among(&id, &turns)).collect();
        let reply = Reply::Queue { jobs, paused: self.settings.paused };
        self.out.push(Action::Answer(ticket, reply));
    }

    pub(super) fn show_models(&mut self, ticket: Ticket) {
        let views = self.models.values().map(|model| {
            let slot = self.find_slot(&model.name).map(|id| &self.slots[&id]);
            let expires_at = slot.and_then(|slot| slot.expires_at);
            ModelView {
                model: model.clone(),
                state: slot.map_or(SlotState::Cold, |slot| slot.state),
                idle_bytes: slot.map(|slot| slot.idle_bytes.clone()).unwrap_or_default(),
                expires_in_ms: expires_at.map(|at| at.saturating_sub(self.now.ms)),
                problem: self.broken.get(&model.name).map(|(_, because)| because.clone()),
            }
        });
        let views = views.collect();
        self.out.push(Action::Answer(ticket, Reply::Models(views)));
    }

    pub(super) fn reorder(
        &mut self,
        ticket: Ticket,
        asker: &Asker,
        id: &JobId,
        class: Option<Class>,
        front: Option<bool>,
    ) {
        let Some(entry) = self.visible(ticket, asker, id) else { return };
        if !entry.is_queued() {
            let message = format!("job {id} does not wait; hint: only waiting jobs are reordered");
            let error = JobError::new(ErrorCode::Finished, message);
            return self.refuse(ticket, error, None);
        }
        if front == Some(true) {
            self.fronts += 1;
        }
        let fronts = self.fronts;
        let Some(entry) = self.jobs.get_mut(id) else { return };
        match front {
            Some(true) => entry.front = fronts,
            Some(false) => entry.front = 0,
            None => {}
        }
        if let Some(class) = class {
            entry.record_mut().order.class = class;
        }
        let (class, record) = (entry.record.order.class, (*entry.record).clone());
        self.store(Change::Put(Box::new(record)), Then::Nothing);
        self.out.push(Action::Tell(Note::Reordered(id.clone(), class)));
        let view = Box::new(self.view(id));
        self.out.push(Action::Answer(ticket, Reply::Job(view)));
    }

    pub(super) fn load_model(
        &mut self,
        ticket: Ticket,
        model: String,
        keep_alive: Option<KeepAlive>,
    ) {
        if !self.models.contains_key(&model) {
            let error = JobError::new(ErrorCode::NoModel, format!("no model `{model}`"));
            return self.refuse(ticket, error, None);
        }
        if let Some((_, because)) = self.broken.get(&model) {
            let error = JobError::new(ErrorCode::BadModel, because.clone());
            return self.refuse(ticket, error, None);
        }
        self.loads.retain(|(other, _)| *other != model);
        self.loads.push_back((model, keep_alive));
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    pub(super) fn unload_model(&mut self, ticket: Ticket, model: &str) {
        self.loads.retain(|(other, _)| other != model);
        let slot = self.find_slot(model);
        let state = slot.map(|slot| self.slots[&slot].state);
        match (slot, state) {
            (Some(slot), Some(SlotState::Warm)) => self.evict(slot, EvictReason::Asked),
            (_, Some(SlotState::Kept | SlotState::Loading | SlotState::Running)) => {
                let message = format!("a job of {model} runs; hint: cancel it first");
                let error = JobError::new(ErrorCode::BadValue, message);
                return self.refuse(ticket, error, None);
            }
            _ => {}
        }
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    pub(super) fn checkpoint(&mut self, ticket: Ticket, model: Option<String>) {
        if let Some(model) = model {
            if !self.models.contains_key(&model) {
                let error = JobError::new(ErrorCode::NoModel, format!("no model `{model}`"));
                return self.refuse(ticket, error, None);
            }
            if self.settings.checkpoint.as_ref() != Some(&model) {
                self.settings.checkpoint = Some(model.clone());
                self.store(Change::Settings(self.settings.clone()), Then::Nothing);
                self.loads.retain(|(other, _)| *other != model);
                self.loads.push_back((model, None));
            }
        }
        let reply = Reply::Checkpoint(self.settings.checkpoint.clone());
        self.out.push(Action::Answer(ticket, reply));
    }

    pub(super) fn acknowledge(&mut self, ticket: Ticket) {
        self.warnings.clear();
        self.out.push(Action::Answer(ticket, Reply::Accepted));
    }

    pub(super) fn ready(&mut self, ticket: Ticket) {
        let mut reasons = Vec::new();
        if self.stop.is_some() {
            reasons.push("the daemon is about to end".to_owned());
        }
        if let Some(because) = &self.store_fault {
            reasons.push(format!("jobs cannot be kept: {because}"));
        }
        if let Some(free) = self.disk_free.filter(|free| *free < self.config.min_free) {
            reasons.push(format!("only {free} are free where pictures are kept"));
        }
        if self.models.keys().all(|model| self.broken.contains_key(model)) {
            reasons.push("no model can be used".to_owned());
        }
        let warnings = self.warnings.clone();
        self.out.push(Action::Answer(ticket, Reply::Ready { reasons, warnings }));
    }
}
