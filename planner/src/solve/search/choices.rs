//! Choices: the places of each component that fit alone, sorted for the search, with what each adds
//! to a score.

use std::collections::BTreeMap;
use std::rc::Rc;

use protocol::Bytes;

use super::super::Problem;
use super::super::compose::Composition;
use super::super::place::{Place, PlacePart};
use super::super::timeline::{Early, Spell, position};

/// Orders in which choices are looked at.
pub const ORDERS: usize = 3;

/// A place with what it adds to a score.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// Its index among the component's places.
    pub index: usize,
    /// What it adds to the timeline.
    pub spell: Spell,
    /// What is compared after its time.
    pub lesser: Lesser,
    /// Peaks of all devices and the host with nothing else.
    pub alone: Bytes,
}

/// What is compared after time, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Lesser {
    /// Whether weights are loaded anew for each job.
    pub reloads: u64,
    /// Whether it is a copy in RAM of what could be mapped.
    pub copies: u64,
    /// How far it fills the fullest device.
    pub fullness: u64,
}

impl Lesser {
    /// Both together.
    pub fn plus(self, other: Lesser) -> Lesser {
        Lesser {
            reloads: self.reloads + other.reloads,
            copies: self.copies + other.copies,
            fullness: self.fullness.saturating_add(other.fullness),
        }
    }

    /// The least of both in every respect.
    fn least(self, other: Lesser) -> Lesser {
        Lesser {
            reloads: self.reloads.min(other.reloads),
            copies: self.copies.min(other.copies),
            fullness: self.fullness.min(other.fullness),
        }
    }
}

/// The choices of a problem: made once, searched often.
#[derive(Debug, Clone)]
pub struct Choices {
    /// By component.
    pub of: Vec<Rc<Sorted>>,
    /// Components in the order in which to decide them: those between whose places most is to be
    /// won first.
    pub order: Vec<usize>,
}

/// The choices of one component.
#[derive(Debug)]
pub struct Sorted {
    /// All of them.
    pub all: Vec<Choice>,
    /// Their numbers by what they load and compute together, by how long they keep the storage
    /// busy, and by what they compute; where time is of no account, in their order.
    pub orders: [Vec<u32>; ORDERS],
    /// The least that any loads.
    pub least_load: u64,
    /// The least that any loads anew, copies and fills.
    pub least: Lesser,
    /// How much is to be won between them.
    weight: u64,
}

impl Sorted {
    /// `None` where there are none.
    fn by_time(all: Vec<Choice>) -> Option<Rc<Sorted>> {
        let ticks = || all.iter().map(|choice| choice.spell.both());
        let weight = ticks().max()? - ticks().min()?;
        let keys: [fn(&Spell) -> u64; ORDERS] = [Spell::both, Spell::stored, |spell| spell.compute];
        let orders = keys.map(|key| {
            let mut numbers: Vec<u32> = (0..all.len() as u32).collect();
            numbers.sort_by_key(|number| key(&all[*number as usize].spell));
            numbers
        });
        Sorted::new(all, orders, weight)
    }

    /// `None` where there are none.
    fn as_they_are(all: Vec<Choice>) -> Option<Rc<Sorted>> {
        let (weight, count) = (all.first()?.alone.0, all.len() as u32);
        Sorted::new(all, std::array::from_fn(|_| (0..count).collect()), weight)
    }

    fn new(all: Vec<Choice>, orders: [Vec<u32>; ORDERS], weight: u64) -> Option<Rc<Sorted>> {
        let least_load = all.iter().map(|choice| choice.spell.load).min()?;
        let least = all.iter().map(|choice| choice.lesser).reduce(Lesser::least)?;
        Some(Rc::new(Sorted { all, orders, least_load, least, weight }))
    }
}

impl Choices {
    /// Sorted by time; `None` where a component has no place that fits even alone.
    pub fn by_time(problem: &Problem<'_>) -> Option<Choices> {
        let of = problem.places.iter().enumerate().map(|(component, places)| {
            Sorted::by_time(undominated(some(problem, component, 0..places.len()), places))
        });
        Some(Choices::new(of.collect::<Option<_>>()?))
    }

    /// Sorted by bytes, and of places of which one takes no less than another one anywhere only the
    /// other: for questions in which time is of no account.
    pub fn by_bytes(problem: &Problem<'_>) -> Option<Choices> {
        let of = problem.places.iter().enumerate().map(|(component, places)| {
            let mut all = some(problem, component, 0..places.len());
            all.sort_by_key(|choice| (choice.alone, choice.index));
            let mut kept: Vec<Choice> = Vec::new();
            for choice in all {
                let place = &places[choice.index];
                if !kept.iter().any(|other| takes_no_more(&places[other.index], place)) {
                    kept.push(choice);
                }
            }
            Sorted::as_they_are(kept)
        });
        Some(Choices::new(of.collect::<Option<_>>()?))
    }

    fn new(of: Vec<Rc<Sorted>>) -> Choices {
        let mut order: Vec<usize> = (0..of.len()).collect();
        order.sort_by_key(|component| std::cmp::Reverse(of[*component].weight));
        Choices { of, order }
    }

    /// The same with some places only of one component; `None` where none of them fits alone.
    pub fn with(
        &self,
        problem: &Problem<'_>,
        component: usize,
        indices: &[usize],
    ) -> Option<Choices> {
        let mut of = self.of.clone();
        of[component] = Sorted::by_time(some(problem, component, indices.iter().copied()))?;
        Some(Choices::new(of))
    }

    /// The same with the places only that one device, or the host, has alone; `None` where a
    /// component has none.
    pub fn on_one(&self, problem: &Problem<'_>, device: usize) -> Option<Choices> {
        let there = |component: usize, choice: &&Choice| {
            let devices = &problem.places[component][choice.index].spread.devices;
            devices.iter().all(|at| at.is_none_or(|index| index == device))
        };
        let of = self.of.iter().enumerate().map(|(component, sorted)| {
            let all = sorted.all.iter().filter(|choice| there(component, choice));
            Sorted::by_time(all.copied().collect())
        });
        Some(Choices::new(of.collect::<Option<_>>()?))
    }
}

/// The choices among some of a component's places, the fastest first.
fn some(
    problem: &Problem<'_>,
    component: usize,
    indices: impl Iterator<Item = usize>,
) -> Vec<Choice> {
    let places = &problem.places[component];
    let phase = problem.profile.components[component].phase;
    let at = position(problem.job.timeline(), phase);
    let empty = Composition::new(problem);
    let mut bytes = empty.clone();
    let mut choices: Vec<Choice> = Vec::new();
    for index in indices {
        let place = &places[index];
        bytes.copy_from(&empty);
        bytes.add(problem, phase, place);
        // What is over a budget alone is so in any company.
        if bytes.fits(problem) {
            choices.push(Choice {
                index,
                spell: Spell::counted(problem.objective, place, at),
                lesser: Lesser {
                    reloads: u64::from(place.reloads()),
                    copies: u64::from(place.copies()),
                    fullness: place.fullness,
                },
                alone: bytes.total(),
            });
        }
    }
    choices.sort_by_key(|choice| {
        let Choice { spell, lesser, alone, index } = *choice;
        (spell.both(), spell.compute, lesser, alone, index)
    });
    choices
}

/// The choices without those of one device, or of the host, that another one there covers: it takes
/// no more time in any respect, and no more bytes in any phase. With the other one instead, a
/// combination is no worse.
fn undominated(choices: Vec<Choice>, places: &[Place]) -> Vec<Choice> {
    let covers = |a: &Choice, b: &Choice| {
        let rank = |early| match early {
            Early::No => 0,
            Early::PhaseBefore => 1,
            Early::Any => 2,
        };
        a.spell.load <= b.spell.load
            && a.spell.compute <= b.spell.compute
            // Of what it computes less, it need hide no loads.
            && a.spell.hides + (b.spell.compute - a.spell.compute) >= b.spell.hides
            && rank(a.spell.early) >= rank(b.spell.early)
            && a.lesser.least(b.lesser) == a.lesser
            && takes_no_more(&places[a.index], &places[b.index])
    };
    let mut kept: BTreeMap<Option<usize>, Vec<Choice>> = BTreeMap::new();
    let mut all = Vec::new();
    // What covers another choice comes before it in their order, or is its equal.
    for choice in choices {
        if let [device] = places[choice.index].spread.devices.as_slice() {
            let there = kept.entry(*device).or_default();
            if there.iter().any(|other| covers(other, &choice)) {
                continue;
            }
            there.push(choice);
        }
        all.push(choice);
    }
    all
}

/// Whether a place takes no more than another one on any device in any phase.
fn takes_no_more(a: &Place, b: &Place) -> bool {
    let no_more = |a: &PlacePart, b: &PlacePart| {
        let now = |p: &PlacePart| p.resident_bytes + p.lazy_bytes + p.staging_bytes();
        let with_mapped = |p: &PlacePart| now(p) + p.mapped_bytes;
        let before = |p: &PlacePart| p.resident_bytes + p.early_bytes;
        a.resident_bytes <= b.resident_bytes
            && before(a) <= before(b)
            && now(a) <= now(b)
            && with_mapped(a) <= with_mapped(b)
            && a.compute_bytes <= b.compute_bytes
    };
    a.parts.iter().all(|part| {
        let mut others = b.parts.iter().filter(|other| other.device == part.device);
        others.any(|other| no_more(part, other))
    })
}
