//! The layouts of a component that lack some of their rings, and the rings that were made since.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::{Division, Placement};
use rayon::prelude::*;

use super::super::candidates::{LayoutQuery, OpenLayout, Within, rings_within};
use super::super::place::{ComponentLayout, Place, WeightResidency};
use super::super::search::{self, Allowance, Choices, KnownChoices, Limits, Score};
use super::super::{Problem, Solution, better};
use super::{is_by_heads, largest};

/// How many layouts of a component have their rings made before a plan is looked for; then twice as
/// many, and so on. A better plan leaves less to look at.
const LAYOUTS_FIRST: usize = 16;

/// A split that takes more than this times what was chosen, each by itself, is not moved on from.
/// With 1.05 none of 96 plans was better, for shipped hosts and five made-up ones, with 2 to 10 GiB
/// of each card.
pub const LONGER_MAX: f64 = 1.02;

/// In a split that takes more than this times what was chosen, devices get no slots of their own:
/// these saved 0.3 % at most, over up to five unlike cards with 2 to 16 GiB of each.
const SLOTS_LONGER_MAX: f64 = 1.005;

/// Devices get slots of their own in the chosen split, and in at most this many others.
const SPLITS_MAX: usize = 3;

/// A plan by heads that takes more than this times the best one is not moved on from. With 1.005 a
/// host of four unlike cards had plans that were 2.3 and 2.9 % slower, with 3 and 4 GiB of each.
pub const HEADS_LONGER_MAX: f64 = 1.05;

/// The open layouts of a component.
#[derive(Default)]
pub(super) struct Open {
    /// What stands for the rings of each, the fastest first.
    pub least: Arc<[Place]>,
    /// Other places of all.
    others: Vec<Place>,
    /// The rings of those that were looked at.
    rings: BTreeMap<usize, Vec<Place>>,
    /// What was made in layouts that were open before.
    pub before: Vec<Place>,
    /// All layouts until now.
    seen: BTreeSet<(Vec<Option<usize>>, Division)>,
}

impl Open {
    /// Goes on to these layouts, to `most` of each kind.
    pub fn renew(&mut self, mut layouts: Vec<OpenLayout>, most: usize) {
        layouts.sort_by(|a, b| alone_ms(&a.least).total_cmp(&alone_ms(&b.least)));
        let mut of_kind: BTreeMap<(Placement, usize), usize> = BTreeMap::new();
        layouts.retain(|OpenLayout { least, .. }| {
            let count = of_kind.entry(kind(least)).or_default();
            *count += 1;
            *count <= most
        });
        self.before.extend(std::mem::take(&mut self.rings).into_values().flatten());
        self.before.append(&mut self.others);
        let (least, others): (Vec<Place>, Vec<Vec<Place>>) =
            layouts.into_iter().map(|layout| (layout.least, layout.others)).unzip();
        let layouts = least.iter().map(|Place { spread, .. }| spread);
        self.seen.extend(layouts.map(|layout| (layout.devices.clone(), layout.division.clone())));
        (self.least, self.others) = (least.into(), others.concat());
    }

    /// Those of some layouts that were not among all until now, each once.
    pub fn new_ones(&self, layouts: impl Iterator<Item = LayoutQuery>) -> Vec<LayoutQuery> {
        let is_new = |LayoutQuery { devices, layout, .. }: &LayoutQuery| {
            !self.seen.contains(&(devices.clone(), layout.division.clone()))
        };
        let mut new: Vec<LayoutQuery> = layouts.filter(is_new).collect();
        new.sort_by(|a, b| (&a.devices, &a.layout).cmp(&(&b.devices, &b.layout)));
        new.dedup();
        new
    }

    /// All places that were made.
    pub fn places(&self) -> impl Iterator<Item = &Place> + Clone {
        self.before.iter().chain(&self.others).chain(self.rings.values().flatten())
    }

    /// The layout of a place, and of other splits by layers over as many devices the one that takes
    /// the least by itself, if that is not much longer.
    pub fn best_of_layers<'o>(&'o self, chosen: &'o Place) -> Vec<&'o ComponentLayout> {
        let source = |place: &Place| {
            let locked = matches!(place.held, WeightResidency::Some { locked: Some(_), .. });
            (kind(place), locked)
        };
        let others = self.places().filter(|place| {
            place.spread.placement() == Placement::Layer && source(place) != source(chosen)
        });
        let mut best = fastest_of_each(others, source);
        best.retain(|_, place| alone_ms(place) < LONGER_MAX * alone_ms(chosen));
        best.into_values().chain([chosen]).map(|place| &*place.spread).collect()
    }

    /// A place, and of each kind of split over other devices, or in another order, the one that
    /// takes the least by itself, if that is hardly longer: some of them. `others` are places as
    /// well.
    pub fn best_of_splits<'o>(&'o self, others: &'o [Place], chosen: &'o Place) -> Vec<&'o Place> {
        fn list(place: &Place) -> (Placement, &[Option<usize>]) {
            (place.spread.placement(), &place.spread.devices)
        }
        let longest_ms = SLOTS_LONGER_MAX * alone_ms(chosen);
        let near = others.iter().chain(self.places()).filter(|place| {
            place.spread.devices.len() > 1
                && list(place) != list(chosen)
                && alone_ms(place) <= longest_ms
                && matches!(place.held, WeightResidency::Some { .. })
        });
        let mut near: Vec<&Place> = fastest_of_each(near, list).into_values().collect();
        near.sort_by(|a, b| alone_ms(a).total_cmp(&alone_ms(b)));
        near.truncate(SPLITS_MAX);
        near.push(chosen);
        near
    }

    /// The layout of a place that is split by heads, and for each other order of its devices the
    /// one that takes the least by itself, if that is not much longer. `others` are places as well.
    pub fn best_of_heads<'o>(
        &'o self,
        others: &'o [Place],
        chosen: &'o Place,
    ) -> Vec<&'o ComponentLayout> {
        let sorted = |place: &Place| {
            let mut devices = place.spread.devices.clone();
            devices.sort_unstable();
            devices
        };
        let (devices, longest_ms) = (sorted(chosen), LONGER_MAX * alone_ms(chosen));
        let turned = others.iter().chain(self.places()).filter(|place| {
            is_by_heads(place)
                && place.spread.devices != chosen.spread.devices
                && alone_ms(place) <= longest_ms
                && sorted(place) == devices
        });
        let best = fastest_of_each(turned, |place: &Place| place.spread.devices.clone());
        [chosen].into_iter().chain(best.into_values()).map(|place| &*place.spread).collect()
    }

    /// The component's place in the best plan in which it is split by heads, if that takes not much
    /// longer than a plan with this score.
    pub fn best_by_heads(
        &self,
        problem: &Problem<'_>,
        component: usize,
        score: Score,
        known: &mut KnownChoices,
    ) -> Option<Place> {
        let mut by_heads = problem.clone();
        let places = problem.places[component].iter().chain(self.places());
        by_heads.places[component] = places.filter(|place| is_by_heads(place)).cloned().collect();
        let choices = Choices::by_time(&by_heads, known)?;
        let ticks_max = HEADS_LONGER_MAX * score.ticks_max(choices.step) as f64;
        let beat = Some(Score::just_beaten_by(choices.step, ticks_max as u64));
        let found = search::best(&by_heads, &choices, Limits { beat, ..Limits::default() })?;
        Some(by_heads.places[component][found.places[component]].clone())
    }

    /// All layouts that are split by heads, each once. `others` are places as well.
    pub fn by_heads<'o>(&'o self, others: &'o [Place]) -> Vec<&'o ComponentLayout> {
        let places = others.iter().chain(self.places()).chain(self.least.iter());
        let mut seen = BTreeSet::new();
        let new =
            places.filter(|place| is_by_heads(place) && seen.insert(Arc::as_ptr(&place.spread)));
        new.map(|place| &*place.spread).collect()
    }

    /// A plan with the rings of these layouts, and with the component's other places in them, that
    /// is better than another one: the most promising first, some at a time.
    pub fn better(
        &mut self,
        problem: &Problem<'_>,
        component: usize,
        than: &Solution,
        generation: u64,
        known: &mut KnownChoices,
    ) -> Option<Solution> {
        let mut with_least = problem.clone();
        with_least.places[component] = Arc::clone(&self.least);
        let choices = Choices::by_time(&with_least, known)?;
        // Of others than the largest component nothing is moved on from.
        let longer_max = if largest(problem) == Some(component) { LONGER_MAX } else { 1.0 };
        let mut best: Option<Solution> = None;
        let (mut others, mut end) = (self.others.clone(), 0);
        while end < self.least.len() {
            let batch = end..self.least.len().min(2 * end + LAYOUTS_FIRST);
            end = batch.end;
            let score = best.as_ref().unwrap_or(than).chosen.as_ref()?.score;
            let limits = Limits { beat: Some(score), ..Limits::default() };
            let may_beat = |at: &usize| {
                let only = choices.with(component, &[*at]);
                only.is_some_and(|only| search::any_better(&with_least, &only, limits))
            };
            let may_beat: Vec<usize> = batch.into_par_iter().filter(may_beat).collect();
            let ticks_max = longer_max * score.ticks_max(choices.step) as f64;
            let allowance = Allowance::beside(problem, &choices, component, ticks_max as u64);
            self.make_rings(problem, component, &may_beat, &allowance);
            let rings = may_beat.iter().flat_map(|at| &self.rings[at]);
            let places: Arc<[Place]> = rings.chain(&others).cloned().collect();
            others.clear();
            if places.is_empty() {
                continue;
            }
            let mut with_rings = problem.clone();
            with_rings.places[component] = places;
            let than = best.as_ref().unwrap_or(than);
            best = better(&[with_rings], generation, Some(than), known).or(best);
        }
        best
    }

    /// Makes the rings of some layouts that have none yet.
    fn make_rings(
        &mut self,
        problem: &Problem<'_>,
        component: usize,
        layouts: &[usize],
        allowance: &Allowance,
    ) {
        let new = layouts.iter().copied().filter(|at| !self.rings.contains_key(at));
        let new: Vec<usize> = new.collect();
        let spreads: Vec<&Arc<ComponentLayout>> =
            new.iter().map(|at| &self.least[*at].spread).collect();
        let within = Within::Budgets(Some(allowance));
        let made = rings_within(problem, component, &spreads, within);
        self.rings.extend(new.into_iter().zip(made));
    }
}

/// What kind of split a place has, and over how many devices.
fn kind(place: &Place) -> (Placement, usize) {
    (place.spread.placement(), place.spread.devices.len())
}

/// For each key the place that takes the least by itself, the first among equals.
fn fastest_of_each<'p, K: Ord>(
    places: impl Iterator<Item = &'p Place>,
    key: impl Fn(&'p Place) -> K,
) -> BTreeMap<K, &'p Place> {
    let mut best: BTreeMap<K, &Place> = BTreeMap::new();
    for place in places {
        let best = best.entry(key(place)).or_insert(place);
        if alone_ms(place) < alone_ms(best) {
            *best = place;
        }
    }
    best
}

/// What a place takes by itself.
fn alone_ms(place: &Place) -> f64 {
    place.ms.alone()
}
