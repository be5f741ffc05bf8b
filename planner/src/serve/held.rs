//! What executors hold, as far as others must know: what each slot has loaded, and by which plan it
//! runs.
//!
//! ```text
//! begin ─► claim(plan): its lanes are nobody's ─► (claim of the next attempt's plan)* ─► end
//!              │ else
//!              └─► the run ends before anything is loaded
//! ```
//! Invariant: no two plans that are claimed share a lane, whoever claims at the same time.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::Plan;

use super::desk::event::SlotId;
use crate::engine::lanes::Lanes;
use crate::engine::room::OtherPlan;
use crate::engine::warm::Loaded;

/// What executors hold.
#[derive(Default)]
pub struct HeldPlans {
    /// What is loaded since the slot's last run.
    pub loaded: BTreeMap<SlotId, Arc<Loaded>>,
    running: BTreeMap<SlotId, RunningSlot>,
    /// How often a plan was claimed.
    claims: u64,
}

/// A slot in which something runs, or whose executor is being ended.
#[derive(Default)]
struct RunningSlot {
    orders: usize,
    plan: Option<Arc<Plan>>,
}

/// What other slots hold at one moment.
#[derive(Debug, Default)]
pub struct OtherPlans {
    plans: Vec<(Arc<Plan>, bool)>,
    /// How often a plan had been claimed by then.
    pub claims: u64,
}

impl OtherPlans {
    /// Each, and whether it runs.
    pub fn each(&self) -> Vec<OtherPlan<'_>> {
        let plans = self.plans.iter();
        plans.map(|(plan, runs)| OtherPlan { plan, runs: *runs }).collect()
    }

    /// Whether one of them computes now, or is about to.
    pub fn run(&self) -> bool {
        self.plans.iter().any(|(_, runs)| *runs)
    }

    /// Those that run, or those that are idle.
    pub fn that(&self, run: bool) -> Vec<&Plan> {
        let plans = self.plans.iter().filter(|(_, runs)| *runs == run);
        plans.map(|(plan, _)| &**plan).collect()
    }

    /// The same as if none ran.
    pub fn idle(mut self) -> OtherPlans {
        self.plans.iter_mut().for_each(|(_, runs)| *runs = false);
        self
    }
}

impl HeldPlans {
    /// Something begins to run, or to be ended.
    pub fn begin(&mut self, slot: SlotId) {
        self.running.entry(slot).or_default().orders += 1;
    }

    /// It has ended, and this is what the slot has loaded from then on.
    pub fn end(&mut self, slot: SlotId, loaded: Option<Loaded>) {
        if let Some(running) = self.running.get_mut(&slot) {
            running.orders = running.orders.saturating_sub(1);
            running.plan = None;
        }
        self.running.retain(|_, running| running.orders > 0);
        match loaded {
            Some(loaded) => self.loaded.insert(slot, Arc::new(loaded)),
            None => self.loaded.remove(&slot),
        };
    }

    /// Whether a slot computes, or its executor is being ended.
    pub fn runs(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether anything runs in another slot than this one.
    pub fn runs_beside(&self, own: Option<SlotId>) -> bool {
        self.running.keys().any(|slot| Some(*slot) != own)
    }

    /// What all slots but some hold: of those that run the plan that they run by.
    pub fn others(&self, left_out: &[SlotId]) -> OtherPlans {
        let mut plans: BTreeMap<SlotId, (Arc<Plan>, bool)> = BTreeMap::new();
        for (slot, loaded) in &self.loaded {
            let runs = self.running.contains_key(slot);
            plans.insert(*slot, (Arc::new(loaded.plan.clone()), runs));
        }
        for (slot, running) in &self.running {
            if let Some(plan) = &running.plan {
                plans.insert(*slot, (Arc::clone(plan), true));
            }
        }
        plans.retain(|slot, _| !left_out.contains(slot));
        OtherPlans { plans: plans.into_values().collect(), claims: self.claims }
    }

    /// A slot is about to run by a plan, which was made when `claims` plans had been claimed; false
    /// where another run computes on one of its lanes, or has claimed something since.
    pub fn claim(&mut self, slot: SlotId, plan: &Plan, claims: u64) -> bool {
        let lanes = Lanes::of(plan);
        let others = self.running.iter().filter(|(other, _)| **other != slot);
        let mut others = others.filter_map(|(_, running)| running.plan.as_ref()).peekable();
        // It was made for what was free before.
        let is_outdated = claims != self.claims && others.peek().is_some();
        if is_outdated || others.any(|other| Lanes::of(other).shares(&lanes)) {
            return false;
        }
        self.claims += 1;
        self.running.entry(slot).or_default().plan = Some(Arc::new(plan.clone()));
        true
    }
}

impl std::fmt::Debug for HeldPlans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let loaded: Vec<&SlotId> = self.loaded.keys().collect();
        let running: Vec<&SlotId> = self.running.keys().collect();
        f.debug_struct("HeldPlans").field("loaded", &loaded).field("running", &running).finish()
    }
}

#[cfg(test)]
mod tests {
    use protocol::Residency;
    use protocol::plan::DeviceBackend;

    use super::*;
    use crate::engine::supervise::retry::tests::plan;

    const SLOTS: [SlotId; 2] = [SlotId(1), SlotId(2)];

    /// A plan on this GPU alone.
    fn on(uuid: &str) -> Plan {
        let mut plan = plan(Residency::Resident);
        plan.devices[0].backend =
            DeviceBackend::Cuda { uuid: Some(uuid.to_owned()), unsupported: Vec::new() };
        let device = plan.devices[0].id.clone();
        for component in &mut plan.components {
            component.parts.iter_mut().for_each(|part| part.device = device.clone());
        }
        plan
    }

    #[test]
    fn who_runs_keeps_its_lanes_until_its_end() {
        let mut held = HeldPlans::default();
        SLOTS.iter().for_each(|slot| held.begin(*slot));
        assert!(held.claim(SLOTS[0], &on("GPU-1"), 0));
        assert!(!held.claim(SLOTS[1], &on("GPU-1"), 1), "the same lane");
        assert!(!held.claim(SLOTS[1], &on("GPU-2"), 0), "made before the other one was known");
        assert!(held.claim(SLOTS[1], &on("GPU-2"), 1));
        // Another attempt of the first one.
        assert!(!held.claim(SLOTS[0], &on("GPU-2"), 2));
        assert!(held.claim(SLOTS[0], &on("GPU-3"), 2));
        let others = held.others(&[SLOTS[1]]);
        assert!(others.run() && Lanes::of(others.that(true)[0]).shares(&Lanes::named(["GPU-3"])));
        held.end(SLOTS[0], None);
        assert!(held.claim(SLOTS[1], &on("GPU-3"), 0), "alone, whenever it was made");
        assert!(held.runs_beside(Some(SLOTS[0])) && !held.runs_beside(Some(SLOTS[1])));
        held.end(SLOTS[1], None);
        assert!(!held.runs());
    }
}
