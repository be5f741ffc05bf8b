//! Lanes and memories of the made-up world: what plans take, and what must hold of all of them.

use super::super::super::action::RoomOrder;
use super::super::super::event::{RoomTimes, SlotId};
use super::super::chance::Random;
use super::World;
use crate::engine::lanes::Lanes;

/// Every lane but the last is a device with a memory of its own; all plans take some of the host's.
pub const LANES: [&str; 3] = ["gpu0", "gpu1", "host"];

/// Bytes of each memory.
const BUDGET: u64 = 100;

/// What an executor has loaded, or is about to.
#[derive(Debug, Clone, PartialEq)]
pub struct MadePlan {
    /// By place in [`LANES`], whether it computes there.
    on: [bool; 3],
    /// Of each memory between runs, and at most.
    bytes: [[u64; 2]; 3],
}

impl MadePlan {
    pub fn lanes(&self) -> Lanes {
        Lanes::named((0..3).filter(|at| self.on[*at]).map(|at| LANES[at]))
    }

    fn shares(&self, other: &MadePlan) -> bool {
        (0..3).any(|at| self.on[at] && other.on[at])
    }

    fn active(&self, at: usize) -> u64 {
        self.bytes[at][1] - self.bytes[at][0]
    }
}

/// Some lanes, at least one.
pub fn some_lanes(random: &mut Random) -> [bool; 3] {
    let mut on = [0, 1, 2].map(|_| random.below(3) == 0);
    on[random.below(3) as usize] = true;
    on
}

pub fn names(on: [bool; 3]) -> Lanes {
    Lanes::named((0..3).filter(|at| on[*at]).map(|at| LANES[at]))
}

impl World {
    /// Plans of all slots but one, and whether they run.
    fn others(&self, slot: Option<SlotId>) -> Vec<(&MadePlan, bool)> {
        let others = self.executors.iter().filter(|(id, _)| Some(**id) != slot);
        others
            .filter_map(|(_, executor)| Some((executor.plan.as_ref()?, executor.claimed)))
            .collect()
    }

    /// Whether a plan may run beside what the others take now.
    pub(super) fn is_free_for(&self, slot: SlotId, plan: &MadePlan) -> bool {
        let others = self.others(Some(slot));
        let free_lanes = others.iter().all(|(other, runs)| !runs || !other.shares(plan));
        let limits = self.limits(Some(slot));
        let fits = (0..3).all(|at| {
            let [idle, peak] = plan.bytes[at];
            (idle <= limits[at][0] && peak <= limits[at][1]) || [idle, peak] == [0, 0]
        });
        free_lanes && fits
    }

    /// What a slot may hold of each memory, and take at most of it, beside the others.
    fn limits(&self, slot: Option<SlotId>) -> [[u64; 2]; 3] {
        let others = self.others(slot);
        [0, 1, 2].map(|at| {
            let now: u64 =
                others.iter().map(|(plan, runs)| plan.bytes[at][usize::from(*runs)]).sum();
            let idle: u64 = others.iter().map(|(plan, _)| plan.bytes[at][0]).sum();
            let active = others.iter().map(|(plan, _)| plan.active(at)).max().unwrap_or(0);
            [BUDGET.saturating_sub(idle + active), BUDGET.saturating_sub(now)]
        })
    }

    /// A plan for what is left beside the others, on lanes of theirs too.
    pub(super) fn made_plan_anywhere(&mut self, slot: SlotId) -> Option<MadePlan> {
        let on = some_lanes(&mut self.random);
        self.made_plan_on(slot, on)
    }

    /// The same on lanes that are free; `None` where none fits.
    pub(super) fn made_plan(&mut self, slot: SlotId) -> Option<MadePlan> {
        let mut on = some_lanes(&mut self.random);
        for (other, runs) in self.others(Some(slot)) {
            (0..3).for_each(|at| on[at] &= !(runs && other.on[at]));
        }
        self.made_plan_on(slot, on)
    }

    fn made_plan_on(&mut self, slot: SlotId, on: [bool; 3]) -> Option<MadePlan> {
        let limits = self.limits(Some(slot));
        let mut bytes = [[0, 0]; 3];
        for at in (0..3).filter(|at| on[*at] || *at == 2) {
            let peak = (1 + self.random.below(60)).min(limits[at][1]);
            let idle = self.random.below(1 + peak).min(limits[at][0]);
            if peak == 0 {
                return None;
            }
            bytes[at] = [idle, peak];
        }
        on.contains(&true).then_some(MadePlan { on, bytes })
    }

    /// What the surveyor says of each choice; honest of lanes where others run.
    pub(super) fn room_times(&mut self, order: &RoomOrder) -> Vec<Option<RoomTimes>> {
        let mut taken = [false; 3];
        for slot in &order.running {
            let executor = &self.executors[slot];
            let plan = executor.plan.as_ref().filter(|_| executor.claimed);
            let plan = plan.expect("a job is planned beside plans that are known");
            (0..3).for_each(|at| taken[at] |= plan.on[at]);
        }
        let mut times = || {
            let next_ms = 500.0 + self.random.below(4000) as f64;
            let job_ms = next_ms + self.random.below(4000) as f64;
            let mut on = some_lanes(&mut self.random);
            (0..3).for_each(|at| on[at] &= !taken[at]);
            let fits = self.random.below(4) > 0 && on.contains(&true);
            fits.then_some(RoomTimes { job_ms, next_ms, lanes: names(on) })
        };
        order.choices.iter().map(|_| times()).collect()
    }

    /// Invariants 3 and 4 of serve.md.
    pub(super) fn check_room(&self) {
        let all = self.others(None);
        let running: Vec<&MadePlan> =
            all.iter().filter(|(_, runs)| *runs).map(|(plan, _)| *plan).collect();
        for (at, plan) in running.iter().enumerate() {
            let shares = running[..at].iter().find(|other| other.shares(plan));
            assert!(shares.is_none(), "two plans that run share a lane: {running:?}");
        }
        for (at, lane) in LANES.iter().enumerate() {
            let idle: u64 = all.iter().map(|(plan, _)| plan.bytes[at][0]).sum();
            let active = running.iter().map(|plan| plan.active(at));
            let active: u64 = active.sum();
            assert!(idle + active <= BUDGET, "{lane}: {idle} + {active}: {all:?}");
            if at < 2 {
                let largest = all.iter().map(|(plan, _)| plan.active(at)).max().unwrap_or(0);
                assert!(idle + largest <= BUDGET, "{lane}: {idle} + {largest}: {all:?}");
            }
        }
    }
}
