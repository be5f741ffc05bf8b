//! Executors by model.

use protocol::Bytes;

use super::Desk;
use super::action::{Action, EvictReason, Note, SlotState};
use super::config::BACKOFF_MS;
use super::event::SlotId;
use super::job::{JobId, KeepAlive};
use super::regain::MoreFree;
use crate::engine::lanes::Lanes;
use crate::job::JobRequest;

/// A job of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunMember {
    /// Which.
    pub id: JobId,
    /// Whether its record says that it is begun, on the disk.
    pub kept: bool,
    /// How many pictures the run makes of it.
    pub pictures: u32,
    /// Whether it has ended: what the run makes of it is dropped.
    pub gone: bool,
}

impl RunMember {
    /// A job that is about to be begun.
    pub fn new(id: JobId) -> RunMember {
        RunMember { id, kept: false, pictures: 0, gone: false }
    }
}

/// A model's place for an executor.
#[derive(Debug)]
pub struct Slot {
    /// Its model's name.
    pub model: String,
    /// Where it is.
    pub state: SlotState,
    /// The jobs that it is kept for, or that run, in the order of their pictures.
    pub jobs: Vec<RunMember>,
    /// What its run computes on, once that is known.
    pub lanes: Option<Lanes>,
    /// Whether nothing begins beside its run.
    pub runs_alone: bool,
    /// What several jobs were predicted to take together, without a load.
    pub joined_ms: Option<f64>,
    /// The start of its executor that is heard; 0 before the first.
    pub epoch: u64,
    /// The executor's process id.
    pub pid: Option<u32>,
    /// When its executor was started, until that computes.
    pub started_ms: Option<u64>,
    /// What the executor keeps between jobs, by device.
    pub idle_bytes: Vec<(String, Bytes)>,
    /// When it is unloaded, where nothing runs.
    pub expires_at: Option<u64>,
    /// How long the model that is loaded ahead stays.
    pub load_keep_alive: Option<KeepAlive>,
    /// What it made last, or was loaded for.
    pub last_request: Option<JobRequest>,
    /// What is known of more free memory than its plan was made for.
    pub more_free: MoreFree,
    /// How often its executor did not start, one after the other.
    pub failed_starts: u32,
    /// When it may be started again.
    pub not_before: u64,
}

impl Slot {
    /// Whether there is an executor, or is about to be.
    pub fn has_executor(&self) -> bool {
        self.state != SlotState::Cold
    }

    /// Its jobs that have not ended.
    pub fn members(&self) -> Vec<JobId> {
        let there = self.jobs.iter().filter(|member| !member.gone);
        there.map(|member| member.id.clone()).collect()
    }

    /// Whether its weights are in their places.
    pub fn is_loaded(&self) -> bool {
        matches!(self.state, SlotState::Running | SlotState::Warm)
    }

    /// Whether a job computes, or is about to.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, SlotState::Kept | SlotState::Loading | SlotState::Running)
    }
}

impl Desk {
    /// The slot of a model, made where there is none.
    pub(super) fn slot_of(&mut self, model: &str) -> SlotId {
        if let Some(id) = self.find_slot(model) {
            return id;
        }
        let id = self.ids.slot();
        let slot = Slot {
            model: model.to_owned(),
            state: SlotState::Cold,
            jobs: Vec::new(),
            lanes: None,
            runs_alone: false,
            joined_ms: None,
            epoch: 0,
            pid: None,
            started_ms: None,
            idle_bytes: Vec::new(),
            expires_at: None,
            load_keep_alive: None,
            last_request: None,
            more_free: MoreFree::default(),
            failed_starts: 0,
            not_before: 0,
        };
        self.slots.insert(id, slot);
        id
    }

    pub(super) fn find_slot(&self, model: &str) -> Option<SlotId> {
        self.slots.iter().find(|(_, slot)| slot.model == model).map(|(id, _)| *id)
    }

    /// Whether a model's weights are in their places, or on their way.
    pub(super) fn is_warm(&self, model: &str) -> bool {
        let slot = self.find_slot(model).map(|id| &self.slots[&id]);
        slot.is_some_and(|slot| {
            matches!(slot.state, SlotState::Loading | SlotState::Running | SlotState::Warm)
        })
    }

    /// The slots whose jobs compute, or are about to.
    pub(super) fn busy_slots(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().filter(|(_, slot)| slot.is_busy()).map(|(id, slot)| (*id, slot))
    }

    /// Whether any job computes, or is about to.
    pub(super) fn is_busy(&self) -> bool {
        self.busy_slots().next().is_some()
    }

    /// Moves a slot to another state, and tells of it.
    pub(super) fn set_slot(&mut self, id: SlotId, state: SlotState) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        if slot.state == state {
            return;
        }
        let (was, is) = (
            slot.is_busy(),
            matches!(state, SlotState::Kept | SlotState::Loading | SlotState::Running),
        );
        slot.state = state;
        if state != SlotState::Warm {
            slot.expires_at = None;
        }
        if !is {
            slot.lanes = None;
            slot.runs_alone = false;
        }
        let model = slot.model.clone();
        if !was || !is {
            self.standing_changed();
        }
        self.out.push(Action::Tell(Note::Model(model, state)));
    }

    /// A slot whose run is over: idle from now on.
    pub(super) fn set_idle(&mut self, id: SlotId, keep_alive: Option<KeepAlive>) {
        let model = self.slots.get(&id).and_then(|slot| self.models.get(&slot.model));
        let configured = model.and_then(|model| model.keep_alive);
        let keep_ms = match keep_alive.or(configured) {
            Some(KeepAlive::Ms(ms)) => Some(ms),
            Some(KeepAlive::Always) => None,
            None => self.config.keep_alive_ms,
        };
        self.set_slot(id, SlotState::Warm);
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.jobs.clear();
            slot.expires_at = keep_ms.map(|ms| self.now.ms.saturating_add(ms));
        }
    }

    /// Ends an idle slot's executor.
    pub(super) fn evict(&mut self, id: SlotId, reason: EvictReason) {
        debug_assert!(!self.slots[&id].is_busy(), "a slot with a job is not ended for another");
        self.set_slot(id, SlotState::Evicting);
        self.out.push(Action::End(id, reason));
    }

    /// Slots that are loaded, and whose jobs are done.
    pub(super) fn idle_slots(&self) -> Vec<SlotId> {
        let idle = self.slots.iter().filter(|(_, slot)| slot.state == SlotState::Warm);
        idle.map(|(id, _)| *id).collect()
    }

    /// A slot's executor is gone.
    pub(super) fn slot_gone(&mut self, id: SlotId) {
        self.set_slot(id, SlotState::Cold);
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.jobs.clear();
            slot.pid = None;
            slot.started_ms = None;
            slot.idle_bytes.clear();
            slot.more_free = MoreFree::default();
        }
    }

    /// An executor ended by itself while nothing ran. A slot that is kept for a job stays so: the
    /// job starts another one.
    pub(super) fn executor_lost(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        slot.pid = None;
        slot.idle_bytes.clear();
        if slot.state == SlotState::Warm {
            self.slot_gone(id);
        }
    }

    /// Its executor did not start: the next try waits longer.
    pub(super) fn back_off(&mut self, id: SlotId) {
        let now_ms = self.now.ms;
        if let Some(slot) = self.slots.get_mut(&id) {
            let [first, most] = BACKOFF_MS;
            let wait_ms = (first << slot.failed_starts.min(16)).min(most);
            slot.failed_starts += 1;
            slot.not_before = now_ms + wait_ms;
        }
    }
}
