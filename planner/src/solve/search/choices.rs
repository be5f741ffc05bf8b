//! Choices: the places of each component that fit alone, sorted for the search, with what each adds
//! to a score.

use std::cmp::Reverse;
use std::sync::Arc;

use protocol::Phase;
use protocol::limits::DEVICES_MAX;
use rayon::prelude::*;

use super::super::Problem;
use super::super::compose::Composition;
use super::super::place::{Place, PlacePart};
use super::super::timeline::{LoadInterval, PhaseSums, TimeStep, position};
use super::choice::{Choice, Simplicity, TieBreak};
use super::covered::undominated;

/// Orders in which choices are looked at.
pub const ORDERS: usize = 3;

/// What each order is by: the sum of what a choice adds to its own phase, and the least that it
/// adds to the sums of the phases after it, and before it.
pub const KEYS: [fn(&PhaseSums) -> u64; ORDERS] =
    [|sums| sums.own, |sums| sums.after, |sums| sums.before];

/// A choice in one of the orders, with what decides most often that it is passed by: a search looks
/// at thousands in a row.
#[derive(Debug, Clone, Copy)]
pub struct OrderedChoice {
    /// Its number among the choices.
    pub number: u32,
    /// What the order is by.
    pub key: u64,
    /// What it adds to the timeline's sums.
    pub sums: PhaseSums,
}

/// The choices of a problem: made once, searched often.
#[derive(Debug, Clone)]
pub struct Choices {
    /// By component.
    pub of: Vec<Arc<ComponentChoices>>,
    /// Components in the order in which to decide them: the largest first, as what it takes of the
    /// devices decides most what others may have.
    pub order: Vec<usize>,
    /// The step of the problem's times.
    pub step: TimeStep,
    /// By component, where they are sorted by time.
    timed: Vec<Arc<TimedPlaces>>,
}

/// The choices of components in problems that have some places in common.
#[derive(Default)]
pub struct KnownChoices(Vec<KnownChoice>);

struct KnownChoice {
    places: Arc<[Place]>,
    /// The bytes of a job without components, and without its own buffers.
    empty: Composition,
    timed: Arc<TimedPlaces>,
    choices: Option<Arc<ComponentChoices>>,
}

impl KnownChoices {
    /// What is known of each component of a problem. What is not known yet is made, all at once.
    fn of(&mut self, problem: &Problem<'_>, step: TimeStep) -> Vec<&KnownChoice> {
        let empty = Composition::without_buffers(problem);
        let components = 0..problem.places.len();
        let new: Vec<usize> =
            components.filter(|at| self.get(&problem.places[*at], &empty).is_none()).collect();
        let made = new.into_par_iter().map(|component| {
            let places = &problem.places[component];
            let timed = TimedPlaces::new(problem, step, component);
            let choices = ComponentChoices::by_time(undominated(timed.fitting(), places));
            let (places, empty) = (Arc::clone(places), empty.clone());
            KnownChoice { places, empty, timed: Arc::new(timed), choices }
        });
        self.0.par_extend(made);
        let all = problem.places.iter();
        all.map(|places| self.get(places, &empty).expect("it was made")).collect()
    }

    fn get(&self, places: &Arc<[Place]>, empty: &Composition) -> Option<&KnownChoice> {
        self.0.iter().find(|known| Arc::ptr_eq(&known.places, places) && known.empty == *empty)
    }
}

/// The choices of one component.
#[derive(Debug)]
pub struct ComponentChoices {
    /// Those that are searched among, the fastest first.
    pub all: Vec<Choice>,
    /// By what they load and compute together, by how long they keep the storage busy, and by what
    /// they compute and load too late to hide it; where time is of no account, only one, by bytes.
    pub orders: Vec<Vec<OrderedChoice>>,
    /// The least that any loads while others compute.
    pub least_load: u64,
    /// The least that any computes.
    pub least_compute: u64,
    /// The least of each that any has.
    pub least: TieBreak,
}

impl ComponentChoices {
    /// Of choices with the fastest first; `None` where there are none.
    fn by_time(all: Vec<Choice>) -> Option<Arc<ComponentChoices>> {
        let orders = (0..ORDERS).into_par_iter().map(|order| {
            let keyed = all.iter().zip(0..);
            let keyed = keyed.map(|(choice, number)| (KEYS[order](&choice.phase_sums), number));
            let mut keyed: Vec<(u64, u32)> = keyed.collect();
            if order > 0 {
                keyed.sort_unstable();
            }
            ordered(&all, keyed)
        });
        let orders: Vec<Vec<OrderedChoice>> = orders.collect();
        ComponentChoices::new(all, orders)
    }

    /// `None` where there are none.
    fn as_they_are(all: Vec<Choice>) -> Option<Arc<ComponentChoices>> {
        let keyed = all.iter().zip(0..).map(|(choice, number)| (choice.alone.0, number));
        let orders = vec![ordered(&all, keyed.collect())];
        ComponentChoices::new(all, orders)
    }

    /// The least that any adds to its own phase, and to those after it.
    pub fn least_own_and_after(&self) -> [u64; 2] {
        let least = |order: &Vec<OrderedChoice>| order.first().map_or(0, |choice| choice.key);
        std::array::from_fn(|order| self.orders.get(order).map_or(0, least))
    }

    fn new(all: Vec<Choice>, orders: Vec<Vec<OrderedChoice>>) -> Option<Arc<ComponentChoices>> {
        let early = |choice: &Choice| choice.interval.both() - choice.phase_sums.before;
        let least_load = all.iter().map(early).min()?;
        let least_compute = all.iter().map(|choice| choice.interval.compute).min()?;
        let least = all.iter().map(|choice| choice.tie_break).reduce(TieBreak::least)?;
        Some(Arc::new(ComponentChoices { all, orders, least_load, least_compute, least }))
    }
}

/// Choices in the order of these keys, each with the number of its choice.
fn ordered(all: &[Choice], keyed: Vec<(u64, u32)>) -> Vec<OrderedChoice> {
    let one = |(key, number)| OrderedChoice { number, key, sums: all[number as usize].phase_sums };
    keyed.into_iter().map(one).collect()
}

impl Choices {
    /// Sorted by time; `None` where a component has no place that fits even alone. `known` has
    /// those of other problems with the same budgets, and gets these.
    pub fn by_time(problem: &Problem<'_>, known: &mut KnownChoices) -> Option<Choices> {
        let step = TimeStep::of(problem);
        let known = known.of(problem, step);
        let of = known.iter().map(|known| known.choices.clone());
        let timed = known.iter().map(|known| Arc::clone(&known.timed)).collect();
        Some(Choices::new(problem, step, of.collect::<Option<_>>()?, timed))
    }

    /// The same with the budgets of a problem that differs in these only, without places that take
    /// longer than this by themselves.
    pub fn no_longer_than(&self, problem: &Problem<'_>, ticks_max: u64) -> Option<Choices> {
        let of = self.timed.iter().enumerate().map(|(component, timed)| {
            let places = &problem.places[component];
            let phase = problem.profile.components[component].phase;
            let empty = Composition::without_buffers(problem);
            let mut bytes = empty.clone();
            let fits = |choice: &Choice| {
                put_alone(problem, phase, &places[choice.index], &empty, &mut bytes);
                bytes.fits(problem)
            };
            let fitting = timed.no_longer_than(ticks_max).iter().copied().filter(fits);
            ComponentChoices::by_time(undominated(fitting, places))
        });
        Some(self.among(of.collect::<Option<_>>()?))
    }

    /// Sorted by bytes, and of places of which one takes no less than another one anywhere only the
    /// other: for questions in which time is of no account. What is `known` is not made anew.
    pub fn by_bytes(problem: &Problem<'_>, known: &KnownChoices) -> Option<Choices> {
        let (step, empty) = (TimeStep::of(problem), Composition::without_buffers(problem));
        let of = problem.places.par_iter().enumerate().map(|(component, places)| {
            let mut all: Vec<Choice> = match known.get(places, &empty) {
                Some(known) => known.timed.fitting().collect(),
                None => {
                    let all = each(problem, step, component).into_iter();
                    all.filter(|(_, fits)| *fits).map(|(choice, _)| choice).collect()
                }
            };
            all.sort_unstable_by_key(|choice| (choice.alone, choice.index));
            let mut kept: Vec<(u32, Choice)> = Vec::new();
            for choice in all {
                let place = &places[choice.index];
                let own = device_bits(place);
                let covers = |(bits, other): &(u32, Choice)| {
                    bits & !own == 0 && takes_no_more(&places[other.index], place)
                };
                if !kept.iter().any(covers) {
                    kept.push((own, choice));
                }
            }
            ComponentChoices::as_they_are(kept.into_iter().map(|(_, choice)| choice).collect())
        });
        let of: Vec<Option<Arc<ComponentChoices>>> = of.collect();
        let of = of.into_iter().collect::<Option<_>>()?;
        Some(Choices::new(problem, step, of, Vec::new()))
    }

    fn new(
        problem: &Problem<'_>,
        step: TimeStep,
        of: Vec<Arc<ComponentChoices>>,
        timed: Vec<Arc<TimedPlaces>>,
    ) -> Choices {
        let weights = |component: usize| problem.profile.components[component].weights_bytes;
        let mut order: Vec<usize> = (0..of.len()).collect();
        order.sort_by_key(|component| Reverse(weights(*component)));
        Choices { of, order, step, timed }
    }

    /// The same with other choices of the components.
    fn among(&self, of: Vec<Arc<ComponentChoices>>) -> Choices {
        Choices { of, order: self.order.clone(), step: self.step, timed: self.timed.clone() }
    }

    /// The same with some places only of one component; `None` where none of them fits alone.
    pub fn with(&self, component: usize, indices: &[usize]) -> Option<Choices> {
        let timed = &self.timed[component];
        let mut wanted = vec![false; timed.all.len()];
        for index in indices {
            wanted[*index] = true;
        }
        let chosen = timed.fitting().filter(|choice| wanted[choice.index]);
        let mut of = self.of.clone();
        of[component] = ComponentChoices::by_time(chosen.collect())?;
        Some(self.among(of))
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
            ComponentChoices::by_time(all.copied().collect())
        });
        Some(self.among(of.collect::<Option<_>>()?))
    }
}

/// All places of a component, whatever they take.
#[derive(Debug)]
struct TimedPlaces {
    /// The fastest first, and of these by what is compared after their times.
    all: Vec<Choice>,
    /// Which of them fit alone.
    fit: Vec<bool>,
}

impl TimedPlaces {
    fn new(problem: &Problem<'_>, step: TimeStep, component: usize) -> TimedPlaces {
        let each = each(problem, step, component);
        // Numbers are moved while they are sorted: choices are large.
        let times = |Choice { interval, .. }: &Choice| (interval.both(), interval.compute);
        let keyed = each.iter().zip(0..).map(|((choice, _), number)| (times(choice), number));
        let mut keyed: Vec<((u64, u64), usize)> = keyed.collect();
        let of_equals = |number: usize| {
            let Choice { tie_break, alone, index, .. } = each[number].0;
            (tie_break, alone, index)
        };
        keyed.par_sort_unstable_by(|a, b| {
            a.0.cmp(&b.0).then_with(|| of_equals(a.1).cmp(&of_equals(b.1)))
        });
        let (all, fit) = keyed.into_iter().map(|(_, number)| each[number]).unzip();
        TimedPlaces { all, fit }
    }

    /// Those that fit alone, in their order.
    fn fitting(&self) -> impl Iterator<Item = Choice> {
        let all = self.all.iter().zip(&self.fit);
        all.filter(|(_, fits)| **fits).map(|(choice, _)| *choice)
    }

    /// Those that take no longer than this by themselves.
    fn no_longer_than(&self, ticks_max: u64) -> &[Choice] {
        let count = self.all.partition_point(|choice| choice.interval.both() <= ticks_max);
        &self.all[..count]
    }
}

/// Each of a component's places, and whether it fits alone: what is over a budget alone is so in
/// any company.
fn each(problem: &Problem<'_>, step: TimeStep, component: usize) -> Vec<(Choice, bool)> {
    let phase = problem.profile.components[component].phase;
    let at = position(problem.job.timeline(), phase);
    let empty = Composition::without_buffers(problem);
    let places = problem.places[component].par_iter().enumerate();
    let each = places.map_init(
        || empty.clone(),
        |bytes, (index, place)| {
            put_alone(problem, phase, place, &empty, bytes);
            let interval = LoadInterval::counted(problem.objective, place, at, step);
            let choice = Choice {
                index,
                interval,
                phase_sums: interval.phase_sums(),
                tie_break: TieBreak {
                    again: LoadInterval::warm(place, at, step).both(),
                    simplicity: Simplicity {
                        copies: u64::from(place.copies()),
                        locked: place.parts.iter().map(|part| part.locked_bytes.0).sum(),
                        parts: place.parts_more(),
                        fullness: place.fullness,
                    },
                },
                alone: bytes.total(),
            };
            (choice, bytes.fits(problem))
        },
    );
    each.collect()
}

/// The bytes of a job with one place. `empty`: those of a job without components.
fn put_alone(
    problem: &Problem<'_>,
    phase: Phase,
    place: &Place,
    empty: &Composition,
    bytes: &mut Composition,
) {
    bytes.copy_from(empty);
    bytes.add(problem, phase, place);
}

/// A bit for each device of a place, and one for the host. What takes no more than another place
/// has none that the other lacks.
fn device_bits(place: &Place) -> u32 {
    const { assert!(DEVICES_MAX < u32::BITS as usize) };
    place.parts.iter().fold(0, |bits, part| bits | 1 << part.device.map_or(0, |index| index + 1))
}

/// Whether a place takes no more than another one on any device in any phase.
fn takes_no_more(a: &Place, b: &Place) -> bool {
    a.parts.iter().all(|part| {
        let mut others = b.parts.iter().filter(|other| other.device == part.device);
        others.any(|other| part_takes_no_more(part, other))
    })
}

/// The same of one device, and of what is page-locked for it: in every phase, in the one before its
/// own, in its own without and with what is mapped, and of activations.
fn part_takes_no_more(a: &PlacePart, b: &PlacePart) -> bool {
    a.resident_bytes <= b.resident_bytes
        && a.resident_bytes + a.early_bytes <= b.resident_bytes + b.early_bytes
        && a.held_bytes() <= b.held_bytes()
        && a.held_bytes() + a.mapped_bytes <= b.held_bytes() + b.mapped_bytes
        && a.compute_bytes <= b.compute_bytes
        && a.locked_bytes <= b.locked_bytes
}
