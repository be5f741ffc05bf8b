//! The timeline: how long a job takes, from the times of its components and from what is loaded
//! early.
//!
//! Loads go one after the other, as storage is one. What is not early is waited for before its
//! phase computes; what is early comes while earlier phases compute, in the order in which it is
//! needed, and its phase waits for the rest. While streamed weights are read from the storage,
//! nothing else is.
//!
//! Times are whole ticks, so that sums are the same in any order and ties are ties.

use std::cmp::Ordering;

use protocol::Phase;
use protocol::limits::COMPONENTS_MAX;

use super::place::Place;
use super::time::ComponentMs;
use crate::policy::Objective;

/// A tick is 2^-20 ms, about a nanosecond.
const TICKS_PER_MS: f64 = (1 << 20) as f64;

/// Phases of the longest timeline.
pub const PHASES_MAX: usize = 4;

/// When a load may be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// In its own phase only.
    No,
    /// In the phase before it too.
    PhaseBefore,
    /// In any phase before it.
    Any,
}

/// What one component adds to the timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spell {
    /// Its phase's place in the timeline.
    pub phase: usize,
    /// Its held weights on their way, in ticks.
    pub load: u64,
    /// Its calls, in ticks.
    pub compute: u64,
    /// How much of `compute` leaves the storage to the loads of others.
    pub hides: u64,
    /// When its load may be on its way.
    pub early: Early,
}

impl Spell {
    /// A place's spell in a job that starts cold.
    pub fn cold(place: &Place, phase: usize) -> Spell {
        let ComponentMs { load, first_read, compute, storage, .. } = place.ms;
        Spell::new(phase, load, first_read + compute, storage, early(place))
    }

    /// The same on a warm executor: what is resident is there, and files are in the page cache.
    pub fn warm(place: &Place, phase: usize) -> Spell {
        let ComponentMs { load, first_read, compute, storage, .. } =
            place.ms.again(place.reloads());
        Spell::new(phase, load, first_read + compute, storage, early(place))
    }

    fn new(phase: usize, load: f64, compute: f64, storage: f64, early: Early) -> Spell {
        let (compute, hides) = (ticks(compute), ticks((compute - storage).max(0.0)));
        Spell { phase, load: ticks(load), compute, hides: hides.min(compute), early }
    }

    /// The least of a component that loads and computes no less than this.
    pub fn least(phase: usize, load: u64, compute: u64) -> Spell {
        Spell { phase, load, compute, hides: compute, early: Early::Any }
    }

    /// The one of these that an objective counts.
    pub fn counted(objective: Objective, place: &Place, phase: usize) -> Spell {
        match objective {
            Objective::Throughput => Spell::warm(place, phase),
            Objective::Latency | Objective::Memory => Spell::cold(place, phase),
        }
    }

    /// The sum of both.
    pub fn both(&self) -> u64 {
        self.load.saturating_add(self.compute)
    }

    /// How long the storage is busy with its weights.
    pub fn stored(&self) -> u64 {
        self.load.saturating_add(self.compute - self.hides)
    }

    /// What it adds to the sum that belongs to a phase: see [`Chained`].
    pub fn chained(&self) -> Chained {
        let waits = if self.early == Early::No { self.load } else { 0 };
        let before = self.compute.saturating_add(waits);
        Chained { phase: self.phase, before, own: self.both(), after: self.stored() }
    }
}

/// What a component adds to the sums that belong to phases; each of these sums is a lower bound of
/// [`total`]. That of a phase holds all work of the storage that must be done by then, what is
/// computed from then on, and what waits for a later phase anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chained {
    /// The component's phase.
    pub phase: usize,
    /// To the sum of a phase before its own.
    pub before: u64,
    /// To that of its own.
    pub own: u64,
    /// To that of a phase after its own.
    pub after: u64,
}

impl Chained {
    /// What it adds to the sum of a phase.
    pub fn at(&self, phase: usize) -> u64 {
        match phase.cmp(&self.phase) {
            Ordering::Less => self.before,
            Ordering::Equal => self.own,
            Ordering::Greater => self.after,
        }
    }
}

/// When a place's load may be on its way.
fn early(place: &Place) -> Early {
    match (place.early, place.reloads()) {
        (false, _) => Early::No,
        (true, true) => Early::PhaseBefore,
        (true, false) => Early::Any,
    }
}

/// Ticks of a job with these spells, in the order in which components run. Less to load or to
/// compute, with all of that hiding loads, or a load that may be on its way earlier, never makes it
/// longer.
///
/// # Panics
/// There are more than [`COMPONENTS_MAX`] spells.
pub fn total(spells: &[Spell]) -> u64 {
    let mut left = [0_u64; COMPONENTS_MAX];
    for (left, spell) in left.iter_mut().zip(spells) {
        *left = spell.load;
    }
    assert!(spells.len() <= left.len(), "{} components", spells.len());
    let mut total = 0_u64;
    for phase in 0..PHASES_MAX {
        let mut hides = 0_u64;
        for (spell, left) in spells.iter().zip(&mut left).filter(|(s, _)| s.phase == phase) {
            total = total.saturating_add(std::mem::take(left)).saturating_add(spell.compute);
            hides = hides.saturating_add(spell.hides);
        }
        // What is needed first comes first.
        for later in phase + 1..PHASES_MAX {
            for (spell, left) in spells.iter().zip(&mut left).filter(|(s, _)| s.phase == later) {
                let comes = match spell.early {
                    Early::No => false,
                    Early::PhaseBefore => later == phase + 1,
                    Early::Any => true,
                };
                let now = if comes { hides.min(*left) } else { 0 };
                (*left, hides) = (*left - now, hides - now);
            }
        }
    }
    total
}

/// A time in ticks.
fn ticks(ms: f64) -> u64 {
    (ms * TICKS_PER_MS).round() as u64
}

/// Ticks as a time.
pub fn ms(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_MS
}

/// The place of a phase in a timeline.
pub fn position(timeline: &[Phase], phase: Phase) -> usize {
    timeline.iter().position(|known| *known == phase).expect("components compute in the timeline")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(phase: usize, load: u64, compute: u64, early: Early) -> Spell {
        Spell { phase, load, compute, hides: compute, early }
    }

    #[test]
    fn what_is_early_comes_while_earlier_phases_compute() {
        let job = |early| total(&[spell(0, 5, 10, Early::No), spell(1, 30, 7, early)]);
        assert_eq!(job(Early::No), 5 + 10 + 30 + 7);
        assert_eq!(job(Early::PhaseBefore), 5 + 10 + 20 + 7);
        assert_eq!(job(Early::Any), 5 + 10 + 20 + 7);
        // Two phases before it, only what is resident may come.
        let job = |early| {
            total(&[spell(0, 0, 10, Early::No), spell(1, 0, 4, Early::No), spell(2, 9, 1, early)])
        };
        assert_eq!((job(Early::No), job(Early::PhaseBefore), job(Early::Any)), (24, 20, 15));
    }

    #[test]
    fn loads_share_one_storage_and_the_first_needed_goes_first() {
        let spells =
            [spell(0, 0, 10, Early::No), spell(2, 8, 1, Early::Any), spell(1, 6, 2, Early::Any)];
        // 6 and 4 of the 8 come in the first phase, 2 more in the second.
        assert_eq!(total(&spells), 10 + 2 + 2 + 1);
    }

    #[test]
    fn the_chains_bound_the_total_from_below_and_less_is_never_longer() {
        let mut state = 7_u64;
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % end
        };
        for _ in 0..50_000 {
            let mut spells: Vec<Spell> = (0..1 + below(6))
                .map(|_| {
                    let early = [Early::No, Early::PhaseBefore, Early::Any][below(3) as usize];
                    let spell = spell(below(4) as usize, below(50), below(50), early);
                    Spell { hides: below(spell.compute + 1), ..spell }
                })
                .collect();
            let before = total(&spells);
            let bound_of = spells.clone();
            let which = below(spells.len() as u64) as usize;
            let Spell { phase, load, compute, .. } = spells[which];
            spells[which] = Spell::least(phase, below(load + 1), below(compute + 1));
            assert!(total(&spells) <= before, "{bound_of:?}, less: {spells:?}");
            let bound = (0..PHASES_MAX)
                .map(|phase| spells.iter().map(|spell| spell.chained().at(phase)).sum::<u64>())
                .max();
            assert!(bound <= Some(total(&spells)), "{spells:?}");
        }
    }
}
