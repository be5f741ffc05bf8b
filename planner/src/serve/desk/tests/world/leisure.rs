//! That nothing waits which could begin.

use super::super::super::action::SlotState;
use super::super::super::entry::Entry;
use super::World;

impl World {
    /// After each step: what could begin does, but for reasons that are known. They are a pause, an
    /// end, a store that cannot write; a model that is about to be gone, a question to the surveyor
    /// that is open, a wait for company; and a run whose plan is not known yet.
    pub(super) fn check_nothing_idles(&self) {
        let desk = &self.desk;
        let ends = desk.slots.values().any(|slot| slot.state == SlotState::Evicting);
        let is_kept = desk.stop.is_some() || desk.settings.paused || desk.store_fault.is_some();
        let asks = desk.weighing.is_some() || desk.company.wait_until().is_some();
        if self.exited || ends || is_kept || asks || desk.models.is_empty() {
            return;
        }
        let ready = desk.ready_jobs();
        let Some(first) = ready.first() else { return };
        if !desk.is_busy() {
            panic!("{} waits, and nothing runs", first.id);
        }
        let entry = &desk.jobs[&first.id];
        if self.may_begin_beside(entry) {
            // The surveyor was asked, and has nothing for it.
            let known = entry.beside.as_ref().expect("the surveyor is asked about the first one");
            assert!(known.standing == desk.standing && known.times.is_none(), "{entry:?} waits");
        }
    }

    /// Whether the first job's own lanes are free, and nothing else keeps it.
    fn may_begin_beside(&self, entry: &Entry) -> bool {
        let desk = &self.desk;
        let mut runs = 0;
        for (_, slot) in desk.busy_slots() {
            let Some(taken) = &slot.lanes else { return false };
            let own = &entry.record.offer.lanes;
            if slot.runs_alone || slot.model == entry.model() || own.shares(taken) {
                return false;
            }
            let client = &entry.record.order.client;
            let theirs = slot.members();
            let theirs = theirs.iter().filter_map(|id| desk.jobs.get(id));
            runs += usize::from(theirs.into_iter().any(|job| job.record.order.client == *client));
        }
        let is_known = !entry.record.offer.lanes.is_empty();
        is_known && runs < desk.config.client_running_max && !entry.needs_quiet()
    }
}
