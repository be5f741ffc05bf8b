//! Room: what one component more may take beside a combination of places, for the many places that
//! a search asks about.
//!
//! Says the same as adding the component and asking whether every budget holds, where all hold
//! without it.

use protocol::{Bytes, Phase};

use super::super::Problem;
use super::super::place::{Place, PlacePart};
use super::super::timeline::position;
use super::Composition;

/// What a component of one phase may take of each memory.
pub struct Headroom<'a> {
    composition: &'a Composition,
    problem: &'a Problem<'a>,
    phase: Phase,
    /// The devices in the inventory's order, then the host.
    memories: Vec<MemoryHeadroom>,
    /// What is left of the host in the phase in which least is.
    host_least: u64,
    /// What more of it may be page-locked.
    pinned: u64,
}

/// What is left of one memory, in bytes; below zero where its overhead, not yet counted, does not
/// fit.
#[derive(Debug, Clone, Copy)]
struct MemoryHeadroom {
    /// What of the host is page-locked with the first component there, in bytes: the weights of a
    /// device pass through it.
    first_pinned: u64,
    /// In the component's own phase, beside all but arenas.
    now: i64,
    /// The largest arena of that phase so far.
    compute: u64,
    /// In the phase before it.
    before: i64,
    /// In the other phases, where least is left.
    others: i64,
}

impl<'a> Headroom<'a> {
    /// The room for a component that computes in this phase, beside what is in a composition that
    /// fits.
    pub fn beside(
        composition: &'a Composition,
        problem: &'a Problem<'a>,
        phase: Phase,
    ) -> Headroom<'a> {
        let now = position(composition.timeline, phase);
        let phases = composition.timeline.len();
        let memories = composition.memories.iter().enumerate().map(|(index, memory)| {
            let device = (index + 1 < composition.memories.len()).then_some(index);
            let unused = device.filter(|_| !memory.used);
            let overhead = unused.map(|device| problem.inventory.devices[device].overhead_bytes);
            let budget = problem.budget(device).0 as i64 - overhead.unwrap_or_default().0 as i64;
            let left = |at: usize| budget - memory.peak_bytes(at).0 as i64;
            let others = (0..phases).filter(|at| *at != now && *at + 1 != now).map(left).min();
            MemoryHeadroom {
                first_pinned: unused
                    .map_or(0, |device| problem.inventory.devices[device].pinned_bytes.0),
                now: left(now) + memory.compute[now].0 as i64,
                compute: memory.compute[now].0,
                before: now.checked_sub(1).map_or(i64::MAX, left),
                others: others.unwrap_or(i64::MAX),
            }
        });
        let memories: Vec<MemoryHeadroom> = memories.collect();
        let host = &composition.memories[composition.memories.len() - 1];
        let peak = (0..phases).map(|at| host.peak_bytes(at)).max().unwrap_or_default();
        let host_least = problem.budgets.host.saturating_sub(peak).0;
        let pinned = problem
            .budgets
            .pinned
            .map_or(u64::MAX, |limit| limit.saturating_sub(composition.pinned_bytes).0);
        Headroom { composition, problem, phase, memories, host_least, pinned }
    }

    /// Whether every budget holds with the component in a place. `scratch` is a composition of the
    /// same problem.
    pub fn takes(&self, place: &Place, scratch: &mut Composition) -> bool {
        let Composition { pooled, parted, .. } = self.composition;
        let mut added = |place: &Place| {
            scratch.copy_from(self.composition);
            scratch.add(self.problem, self.phase, place);
            scratch.fits(self.problem)
        };
        if *pooled || *parted || self.problem.budgets.idle.is_some() {
            return added(place);
        }
        let (mut pinned, mut on_host) = (0, None);
        for part in place.parts.iter() {
            pinned += part.locked_bytes.0;
            let Some(device) = part.device else {
                if on_host.replace(part).is_some() {
                    return added(place);
                }
                continue;
            };
            let memory = &self.memories[device];
            pinned += memory.first_pinned;
            if !memory.takes(part, 0) {
                return false;
            }
        }
        pinned <= self.pinned
            && match on_host {
                None => pinned <= self.host_least,
                Some(part) => self.memories[self.memories.len() - 1].takes(part, pinned),
            }
    }
}

impl MemoryHeadroom {
    /// Whether there is room for a part, and for this beside it.
    fn takes(&self, part: &PlacePart, beside: u64) -> bool {
        let resident = (part.resident_bytes.0 + beside) as i64;
        let here = part.lazy_bytes + part.staging_bytes();
        let compute = part.compute_bytes.max(Bytes(self.compute));
        resident <= self.others
            && resident + part.early_bytes.0 as i64 <= self.before
            && resident + (here + compute).0 as i64 <= self.now
    }
}
