//! More free: when a loaded model is planned anew because memory has become free since its plan was
//! made, so that it holds more of its weights and its jobs are sooner done.
//!
//! ```text
//! Free: more than planned ─► for 30 s, nothing waits ─► Regain ─► Regained
//!                              H·λ·saved > load ─► the model is loaded anew
//!                              else ─► asked again in some minutes, if it is still so
//! ```
//! A job that runs or waits comes first, and so does a model that is to be loaded (serve.md,
//! section 4).

use super::Desk;
use super::action::{Action, GainOrder, RunOrder, SlotState};
use super::config::{
    MORE_FREE_AGAIN_MS, MORE_FREE_MIN, MORE_FREE_MS, MORE_FREE_SHARE, WEIGH_MS_MAX,
};
use super::event::{FreeMemory, GainTimes, QueryId, SlotFree, SlotId};
use super::job::JobError;

/// What is known of more free memory than a slot's plan was made for.
#[derive(Debug, Default)]
pub struct MoreFree {
    /// Since when there is.
    since_ms: Option<u64>,
    /// When it is asked what that is worth, at the earliest.
    not_before: u64,
    /// When the model was to be unloaded, while it is loaded anew.
    expiry: Option<Option<u64>>,
}

impl MoreFree {
    /// When a model that was loaded anew is to be unloaded, as before; `None` for others.
    pub fn take_expiry(&mut self) -> Option<Option<u64>> {
        self.expiry.take()
    }

    /// When it is to be asked what it is worth.
    fn due_ms(&self) -> Option<u64> {
        Some((self.since_ms? + MORE_FREE_MS).max(self.not_before))
    }
}

/// A question to the surveyor.
#[derive(Debug)]
pub struct GainQuestion {
    query: QueryId,
    slot: SlotId,
    /// When it is not waited for any more.
    until_ms: u64,
}

impl GainQuestion {
    /// When it is not waited for any more.
    pub fn until_ms(&self) -> u64 {
        self.until_ms
    }
}

impl Desk {
    /// What loaded models could have was read.
    pub(super) fn free_seen(&mut self, seen: &[SlotFree]) {
        let now_ms = self.now.ms;
        for (id, slot) in &mut self.slots {
            let of_slot = seen.iter().find(|seen| seen.slot == *id);
            let is_more = of_slot.is_some_and(|seen| seen.memories.iter().any(is_more));
            let since_ms = slot.more_free.since_ms.unwrap_or(now_ms);
            slot.more_free.since_ms = is_more.then_some(since_ms);
        }
    }

    /// When a slot is the next to be asked about.
    pub(super) fn gain_due(&self) -> Option<u64> {
        let idle = self.slots.values().filter(|slot| slot.state == SlotState::Warm);
        idle.filter_map(|slot| slot.more_free.due_ms()).min()
    }

    /// Asks what more free memory is worth, where there is some and nothing else is to be done.
    pub(super) fn ask_gain(&mut self) {
        if self.gain.is_some() || !self.is_at_leisure() {
            return;
        }
        let now_ms = self.now.ms;
        let due = self.slots.iter_mut().find(|(_, slot)| {
            let is_due = slot.more_free.due_ms().is_some_and(|due| now_ms >= due);
            is_due && slot.state == SlotState::Warm
        });
        let Some((slot, due)) = due else { return };
        due.more_free.not_before = now_ms + MORE_FREE_AGAIN_MS;
        let Some(request) = due.last_request.clone() else { return };
        let (slot, query, until_ms) = (*slot, self.ids.query(), now_ms + WEIGH_MS_MAX);
        self.gain = Some(GainQuestion { query, slot, until_ms });
        self.out.push(Action::Regain(query, Box::new(GainOrder { request, slot })));
    }

    /// Whether no job waits, runs or is about to come.
    fn is_at_leisure(&self) -> bool {
        let open = self.jobs.values().any(|entry| entry.is_queued() || entry.coming);
        !open && self.questions.is_empty() && !self.is_busy()
    }

    /// The surveyor has looked: where the next jobs gain more than the load takes, it is done.
    pub(super) fn regained(&mut self, query: QueryId, result: Result<Option<GainTimes>, JobError>) {
        let Some(gain) = self.gain.take_if(|gain| gain.query == query) else { return };
        if let Err(error) = &result {
            tracing::warn!(error = error.message, "it is not known what more memory is worth");
        }
        let Some(times) = result.ok().flatten() else { return };
        let may_start = self.stop.is_none() && !self.settings.paused && self.store_fault.is_none();
        let evicting = self.slots.values().any(|slot| slot.state == SlotState::Evicting);
        if may_start && !evicting && self.is_at_leisure() {
            self.load_anew(gain.slot, times);
        }
    }

    fn load_anew(&mut self, id: SlotId, times: GainTimes) {
        let now_ms = self.now.ms;
        let Some(slot) = self.slots.get_mut(&id).filter(|slot| slot.state == SlotState::Warm)
        else {
            return;
        };
        let is_worth = self.demand.expected(&slot.model, now_ms) * times.saved_ms > times.load_ms;
        let is_more = slot.more_free.since_ms.is_some();
        let Some(request) = slot.last_request.clone().filter(|_| is_worth && is_more) else {
            return;
        };
        slot.more_free = MoreFree { expiry: Some(slot.expires_at), ..MoreFree::default() };
        let (company, model) = (Vec::new(), slot.model.clone());
        self.start(id, RunOrder { job: None, request, company, model, anew: true });
    }

    /// What takes too long to be looked at is not waited for.
    pub(super) fn expire_gain(&mut self) {
        let now_ms = self.now.ms;
        self.gain.take_if(|gain| now_ms >= gain.until_ms);
    }
}

/// Whether enough more is free than the plan was made for.
fn is_more(memory: &FreeMemory) -> bool {
    let FreeMemory { planned, now } = memory;
    let least = MORE_FREE_MIN.0.max(planned.0 / MORE_FREE_SHARE);
    now.0 >= planned.0.saturating_add(least)
}
