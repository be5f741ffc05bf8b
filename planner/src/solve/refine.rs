//! A better plan than one that was found, where there is one: with rings that were left out, and in
//! layouts next to those that were chosen.
//!
//! Over many kinds of devices a component has thousands of layouts, and each has hundreds of rings:
//! all of them would take seconds. So most layouts have one at first, in which all weights are
//! streamed. For each, what its rings take at least is known from its bytes and the budgets alone;
//! where that is little, and would make a better plan, they are made, and searched among.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::profile::LayoutBytes;
use protocol::{Division, Placement};
use rayon::prelude::*;

use super::candidates::{
    LayoutQuery, OpenLayout, Within, likely_layers, neighbours, new_layouts, open_layouts,
    other_heads, rings_within,
};
use super::place::{ComponentLayout, Place, WeightResidency};
use super::search::{self, Allowance, Choices, KnownChoices, Limits, Score};
use super::{Problem, Solution, better};
use crate::policy::Objective;

/// Layouts of the largest component whose rings are made, of each kind of split over as many
/// devices: those that may take the least. Over four unlike cards with 3, 5 and 12 GiB of each, 16
/// found what all of them have, 8 did not; over three on a slow disk it took 64.
const LAYOUTS_MAX: usize = 64;

/// The same of the others.
const LAYOUTS_MAX_OF_OTHERS: usize = 8;

/// How many layouts of a component have their rings made before a plan is looked for; then twice as
/// many, and so on. A better plan leaves less to look at.
const LAYOUTS_FIRST: usize = 16;

/// How often each component is looked at, while plans get better.
const ROUNDS: usize = 2;

/// How often each kind of [`NextLayouts`] is looked at, while plans get better.
const NEXT_ROUNDS: usize = 3;

/// The same of other heads: of many kinds of devices few shares are tried at first.
const HEADS_ROUNDS: usize = 6;

/// A split that takes more than this times what was chosen, each by itself, is not moved on from.
const LONGER_MAX: f64 = 1.05;

/// A plan by heads that takes more than this times the best one is not moved on from. With 1.005 a
/// host of four unlike cards had plans that were 2.3 and 2.9 % slower, with 3 and 4 GiB of each.
const HEADS_LONGER_MAX: f64 = 1.05;

/// Layouts that are asked for at most, in all rounds, where such a plan is not the best one: each
/// takes two to four milliseconds of a core. Over two devices a round has eight, over four up to
/// 48.
const HEADS_ASKED_MAX: usize = 32;

/// Layouts in which a better plan may be, of each component.
pub struct OpenLayouts(Vec<Open>);

impl OpenLayouts {
    /// Those of a problem of which rings were left out. `bytes` answer `wanted`, all its layouts.
    fn left_out(
        problem: &Problem<'_>,
        wanted: &[LayoutQuery],
        bytes: &[LayoutBytes],
    ) -> OpenLayouts {
        let components = 0..problem.places.len();
        let largest = largest(problem);
        let of = |component| {
            let most = if Some(component) == largest { LAYOUTS_MAX } else { LAYOUTS_MAX_OF_OTHERS };
            let mut open = Open::default();
            open.renew(open_layouts(problem, component, wanted, bytes), most);
            open
        };
        OpenLayouts(components.map(of).collect())
    }

    /// A plan with places in these layouts that is better than another plan of this problem.
    fn better(
        &mut self,
        problem: &Problem<'_>,
        solution: &Solution,
        generation: u64,
        known: &mut KnownChoices,
    ) -> Option<Solution> {
        let OpenLayouts(open) = self;
        let chosen = solution.chosen.as_ref()?;
        let mut problem = problem.clone();
        add_places(&mut problem, &chosen.places);
        let mut order: Vec<usize> = (0..open.len()).collect();
        order.retain(|component| !open[*component].least.is_empty());
        let weights = |component: usize| problem.profile.components[component].weights_bytes;
        order.sort_by_key(|component| Reverse(weights(*component)));
        let count = order.len();
        let mut best: Option<Solution> = None;
        let mut fruitless = 0;
        for component in order.into_iter().cycle().take(ROUNDS * count) {
            let than = best.as_ref().unwrap_or(solution);
            let found = open[component].better(&problem, component, than, generation, known);
            let Some(mut new) = found else {
                fruitless += 1;
                // Of the last one that was better all is known.
                if fruitless + usize::from(best.is_some()) >= count {
                    break;
                }
                continue;
            };
            let places = new.chosen.as_mut()?;
            places.problem = chosen.problem;
            add_places(&mut problem, &places.places);
            (best, fruitless) = (Some(new), 0);
        }
        best
    }

    /// The layouts of the largest component next to its place in a solution, and next to the best
    /// of its other splits by layers, as far as they are new. Little is won with others of smaller
    /// components.
    fn neighbours(&self, problem: &Problem<'_>, solution: &Solution) -> Vec<LayoutQuery> {
        let Some((component, place, _)) = largest_chosen(problem, solution) else {
            return Vec::new();
        };
        let open = &self.0[component];
        let from = open.best_of_layers(place).into_iter();
        open.new_ones(from.flat_map(|layout| neighbours(problem, component, layout)))
    }

    /// The layer splits of the largest component that may be better than a solution, as far as they
    /// are new.
    fn likely(&self, problem: &Problem<'_>, solution: &Solution) -> Vec<LayoutQuery> {
        let Some((component, place, _)) = largest_chosen(problem, solution) else {
            return Vec::new();
        };
        let open = &self.0[component];
        let known = problem.places[component].iter().chain(open.least.iter());
        let known: Vec<&ComponentLayout> = known.map(|place| &*place.spread).collect();
        let longest_ms = LONGER_MAX * (place.ms.first_read + place.ms.compute);
        open.new_ones(likely_layers(problem, component, &known, longest_ms).into_iter())
    }

    /// The layouts of the largest component with some heads on other devices than in a solution,
    /// or, if it is not split so there, than in the best plan in which it is, as far as they are
    /// new.
    fn other_heads(
        &self,
        problem: &Problem<'_>,
        solution: &Solution,
        known: &mut KnownChoices,
    ) -> Vec<LayoutQuery> {
        let Some((component, place, score)) = largest_chosen(problem, solution) else {
            return Vec::new();
        };
        let open = &self.0[component];
        let place = match is_by_heads(place) {
            true => Some(place.clone()),
            false => open.best_by_heads(problem, component, score, known),
        };
        let near = place.iter().flat_map(|place| other_heads(problem, component, &place.spread));
        open.new_ones(near)
    }

    /// A plan that is better than another one, with the largest component in the same layout, but
    /// with other rings. Until then only those were tried that leave little of the budgets free, so
    /// that other budgets had other rings.
    fn with_all_rings(
        &mut self,
        problem: &Problem<'_>,
        than: &Solution,
        generation: u64,
        known: &mut KnownChoices,
    ) -> Option<Solution> {
        let (component, place, _) = largest_chosen(problem, than)?;
        let chosen = than.chosen.as_ref()?;
        let is_whole = place.spread.placement() == Placement::One;
        if is_whole && place.spread.weights_bytes() <= problem.locked_max() {
            return None;
        }
        let mut problem = problem.clone();
        add_places(&mut problem, &chosen.places);
        let choices = Choices::by_time(&problem, known)?;
        let ticks_max = chosen.score.ticks_max(choices.step);
        let allowance = Allowance::beside(&problem, &choices, component, ticks_max);
        let within = Within::Allowance(&allowance);
        let rings = rings_within(&problem, component, &[&place.spread], within).concat();
        self.0[component].before.extend_from_slice(&rings);
        problem.places[component] = rings.into();
        let mut found = better(&[problem], generation, Some(than), known)?;
        found.chosen.as_mut()?.problem = chosen.problem;
        Some(found)
    }

    /// Goes on to other layouts. `bytes` answer `wanted`.
    fn renew(&mut self, problem: &Problem<'_>, wanted: &[LayoutQuery], bytes: &[LayoutBytes]) {
        for (component, open) in self.0.iter_mut().enumerate() {
            let asked = wanted.iter().zip(bytes);
            let asked = asked.filter(|(wanted, _)| wanted.component == component);
            open.renew(new_layouts(problem, component, asked), usize::MAX);
        }
    }

    /// A problem with all places that were made in these layouts.
    pub fn add_to(&self, problem: &mut Problem<'_>) {
        for (open, places) in self.0.iter().zip(&mut problem.places) {
            let made = open.places();
            if made.clone().next().is_some() {
                *places = places.iter().chain(made).cloned().collect();
            }
        }
    }
}

/// A plan of the same problem that is better than the best of these, as long as one is found; else
/// that. `wanted` and `bytes` are all layouts of that problem, `size` asks for the bytes of others.
/// The answer has the layouts that were looked at too.
///
/// The least memory is not found by times: with that as the objective nothing is looked at.
///
/// # Errors
/// Those of `size`.
pub fn refined<E>(
    problems: &[Problem<'_>],
    mut solution: Solution,
    (wanted, bytes): (&[LayoutQuery], &[LayoutBytes]),
    mut size: impl FnMut(&[LayoutQuery]) -> Result<Vec<LayoutBytes>, E>,
    generation: u64,
    known: &mut KnownChoices,
) -> Result<(Solution, Option<OpenLayouts>), E> {
    let Some(at) = solution.problem() else { return Ok((solution, None)) };
    let problem = &problems[at];
    if problem.objective == Objective::Memory {
        return Ok((solution, None));
    }
    let mut open = OpenLayouts::left_out(problem, wanted, bytes);
    solution = open.better(problem, &solution, generation, known).unwrap_or(solution);
    // Heads come last: what is moved on from is near the best plan until then, and splits by layers
    // that would get better on their way are not.
    for next in [NextLayouts::Likely, NextLayouts::Neighbours, NextLayouts::OtherHeads] {
        let mut left = next.asked_max(problem, &solution);
        for _ in 0..next.rounds() {
            let wanted = match next {
                NextLayouts::Likely => open.likely(problem, &solution),
                NextLayouts::Neighbours => open.neighbours(problem, &solution),
                NextLayouts::OtherHeads => open.other_heads(problem, &solution, known),
            };
            if wanted.is_empty() || wanted.len() > left {
                break;
            }
            left -= wanted.len();
            let bytes = size(&wanted)?;
            open.renew(problem, &wanted, &bytes);
            let better = open.better(problem, &solution, generation, known);
            // What is likely follows from the best plan; neighbours are of other plans too.
            if better.is_none() && next == NextLayouts::Likely {
                break;
            }
            solution = better.unwrap_or(solution);
        }
    }
    solution = open.with_all_rings(problem, &solution, generation, known).unwrap_or(solution);
    Ok((solution, Some(open)))
}

/// Which layouts of the largest component are looked at next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextLayouts {
    /// Layer splits over any devices, in the order of about what they take.
    Likely,
    /// The best plans' layouts with other orders, or a segment on another device.
    Neighbours,
    /// A split by heads with some of these on another device.
    OtherHeads,
}

impl NextLayouts {
    fn rounds(self) -> usize {
        match self {
            NextLayouts::Likely | NextLayouts::Neighbours => NEXT_ROUNDS,
            NextLayouts::OtherHeads => HEADS_ROUNDS,
        }
    }

    /// How many such layouts are asked for at most.
    fn asked_max(self, problem: &Problem<'_>, solution: &Solution) -> usize {
        let is_by_heads =
            || largest_chosen(problem, solution).is_some_and(|(_, place, _)| is_by_heads(place));
        match self {
            NextLayouts::OtherHeads if !is_by_heads() => HEADS_ASKED_MAX,
            _ => usize::MAX,
        }
    }
}

fn add_places(problem: &mut Problem<'_>, new: &[Place]) {
    for (places, place) in problem.places.iter_mut().zip(new) {
        if !places.contains(place) {
            *places = places.iter().chain([place]).cloned().collect();
        }
    }
}

/// The open layouts of a component.
#[derive(Default)]
struct Open {
    /// What stands for the rings of each, the fastest first.
    least: Arc<[Place]>,
    /// Other places of all.
    others: Vec<Place>,
    /// The rings of those that were looked at.
    rings: BTreeMap<usize, Vec<Place>>,
    /// What was made in layouts that were open before.
    before: Vec<Place>,
    /// All layouts until now.
    seen: BTreeSet<(Vec<Option<usize>>, Division)>,
}

impl Open {
    /// Goes on to these layouts, to `most` of each kind.
    fn renew(&mut self, mut layouts: Vec<OpenLayout>, most: usize) {
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
    fn new_ones(&self, layouts: impl Iterator<Item = LayoutQuery>) -> Vec<LayoutQuery> {
        let is_new = |LayoutQuery { devices, layout, .. }: &LayoutQuery| {
            !self.seen.contains(&(devices.clone(), layout.division.clone()))
        };
        let mut new: Vec<LayoutQuery> = layouts.filter(is_new).collect();
        new.sort_by(|a, b| (&a.devices, &a.layout).cmp(&(&b.devices, &b.layout)));
        new.dedup();
        new
    }

    /// All places that were made.
    fn places(&self) -> impl Iterator<Item = &Place> + Clone {
        self.before.iter().chain(&self.others).chain(self.rings.values().flatten())
    }

    /// The layout of a place, and of other splits by layers over as many devices the one that takes
    /// the least by itself, if that is not much longer.
    fn best_of_layers<'o>(&'o self, chosen: &'o Place) -> Vec<&'o ComponentLayout> {
        let source = |place: &Place| {
            let locked = matches!(place.held, WeightResidency::Some { locked: Some(_), .. });
            (kind(place), locked)
        };
        let mut best: BTreeMap<_, &Place> = BTreeMap::new();
        let others = self.places().filter(|place| {
            place.spread.placement() == Placement::Layer && source(place) != source(chosen)
        });
        for place in others {
            let best = best.entry(source(place)).or_insert(place);
            if alone_ms(place) < alone_ms(best) {
                *best = place;
            }
        }
        best.retain(|_, place| alone_ms(place) < LONGER_MAX * alone_ms(chosen));
        best.into_values().chain([chosen]).map(|place| &*place.spread).collect()
    }

    /// The component's place in the best plan in which it is split by heads, if that takes not much
    /// longer than a plan with this score.
    fn best_by_heads(
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

    /// A plan with the rings of these layouts, and with the component's other places in them, that
    /// is better than another one: the most promising first, some at a time.
    fn better(
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

/// The component with most weights.
fn largest(problem: &Problem<'_>) -> Option<usize> {
    let components = problem.profile.components.iter().enumerate();
    components.max_by_key(|(_, component)| component.weights_bytes).map(|(index, _)| index)
}

/// The place of that component in a solution, and what this is compared by.
fn largest_chosen<'s>(
    problem: &Problem<'_>,
    solution: &'s Solution,
) -> Option<(usize, &'s Place, Score)> {
    let (chosen, component) = (solution.chosen.as_ref()?, largest(problem)?);
    Some((component, &chosen.places[component], chosen.score))
}

/// What kind of split a place has, and over how many devices.
fn kind(place: &Place) -> (Placement, usize) {
    (place.spread.placement(), place.spread.devices.len())
}

fn is_by_heads(place: &Place) -> bool {
    place.spread.placement() == Placement::Tensor
}

/// What a place takes by itself.
fn alone_ms(place: &Place) -> f64 {
    place.ms.load + place.ms.first_read + place.ms.compute
}
