//! A better plan than one that was found, where there is one: with rings that were left out, and in
//! layouts next to those that were chosen.
//!
//! Over many kinds of devices a component has thousands of layouts, and each has hundreds of rings:
//! all of them would take seconds. So most layouts have one at first, in which all weights are
//! streamed. For each, what its rings take at least is known from its bytes and the budgets alone;
//! where that is little, and would make a better plan, they are made, and searched among.

mod beside;
mod open;

use std::cmp::Reverse;
use std::sync::Arc;

use protocol::Placement;
use rayon::prelude::*;

use super::candidates::{
    LayoutQuery, NearbySplit, StepsBegun, Within, fastest_heads, heads_left_out, held_whole,
    likely_heads, likely_layers, most_promising, nearby, neighbours, new_layouts, open_layouts,
    other_heads, own_slots, own_slots_in, rings_within,
};
use super::place::{ComponentLayout, Place, SizedLayout};
use super::search::{Allowance, Choices, KnownChoices, Score};
use super::{Problem, Solution, better};
use crate::policy::Objective;
use beside::Beside;
use open::{HEADS_LONGER_MAX, LONGER_MAX, Open};

/// Layouts of the largest component whose rings are made, of each kind of split over as many
/// devices: those that may take the least. Over four unlike cards with 3, 5 and 12 GiB of each, 16
/// found what all of them have, 8 did not; over three on a slow disk it took 64.
const LAYOUTS_MAX: usize = 64;

/// The same of the others.
const LAYOUTS_MAX_OF_OTHERS: usize = 8;

/// How often each component is looked at, while plans get better.
const ROUNDS: usize = 2;

/// How often each kind of [`NextLayouts`] is looked at, while plans get better.
const NEXT_ROUNDS: usize = 3;

/// The same of other heads: of many kinds of devices few shares are tried at first.
const HEADS_ROUNDS: usize = 4;

/// How often splits near a plan's are looked at, while plans get better.
const NEARBY_ROUNDS: usize = 3;

/// Layouts in which a better plan may be, of each component.
pub struct OpenLayouts(Vec<Open>);

impl OpenLayouts {
    /// Those of a problem of which rings were left out. `bytes` answer `wanted`, all its layouts.
    fn left_out(
        problem: &Problem<'_>,
        wanted: &[LayoutQuery],
        bytes: &[SizedLayout],
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
        let mut beside = Beside::new(problem, &chosen.places);
        let mut order: Vec<usize> = (0..open.len()).collect();
        order.retain(|component| !open[*component].least.is_empty());
        let weights = |component: usize| problem.profile.components[component].weights_bytes;
        order.sort_by_key(|component| Reverse(weights(*component)));
        let count = order.len();
        let mut best: Option<Solution> = None;
        let mut fruitless = 0;
        for component in order.into_iter().cycle().take(ROUNDS * count) {
            let than = best.as_ref().unwrap_or(solution);
            let problem = beside.of(component);
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
            beside.add(&places.places);
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

    /// The splits of the largest component by heads that were left out, and may be about as fast as
    /// a solution, as far as they are new. `bytes` answer `wanted`.
    fn left_out_heads(
        &self,
        problem: &Problem<'_>,
        solution: &Solution,
        asked: (&[LayoutQuery], &[SizedLayout]),
    ) -> Vec<LayoutQuery> {
        let Some((component, place, _)) = largest_chosen(problem, solution) else {
            return Vec::new();
        };
        let left_out = heads_left_out(problem, component, asked, place.ms.alone());
        self.0[component].new_ones(left_out.into_iter())
    }

    /// The layouts of the largest component with some heads on other devices than in a solution;
    /// or, if it is not split so there, than in the best plan in which it is, and than in the split
    /// that should take the least. They are new, and may take no longer.
    fn other_heads(
        &self,
        problem: &Problem<'_>,
        solution: &Solution,
        known: &mut KnownChoices,
    ) -> Vec<LayoutQuery> {
        let Some((component, place, score)) = largest_chosen(problem, solution) else {
            return Vec::new();
        };
        let (open, own) = (&self.0[component], &problem.places[component]);
        let best = match is_by_heads(place) {
            true => Some(place.clone()),
            false => open.best_by_heads(problem, component, score, known),
        };
        let mut splits = best.as_ref().map_or_else(Vec::new, |best| open.best_of_heads(own, best));
        if !is_by_heads(place) {
            let longest_ms = HEADS_LONGER_MAX * place.ms.alone();
            splits.extend(fastest_heads(problem, component, open.by_heads(own), longest_ms));
        }
        let others = splits.iter().flat_map(|split| other_heads(problem, component, split));
        likely_heads(problem, component, &splits, open.new_ones(others))
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
        let is_whole = place.spread.placement() == Placement::One;
        if is_whole && place.spread.weights_bytes() <= problem.locked_max(&place.spread.devices) {
            return None;
        }
        let (problem, allowance) = no_slower(problem, component, than, known)?;
        let within = Within::Allowance(&allowance);
        let rings = rings_within(&problem, component, &[&place.spread], within).concat();
        self.better_with(problem, (component, rings), than, generation, known)
    }

    /// The same, with another number of slots on each device; also in layouts that would take about
    /// as long as the chosen one.
    fn with_own_slots(
        &mut self,
        problem: &Problem<'_>,
        than: &Solution,
        generation: u64,
        known: &mut KnownChoices,
    ) -> Option<Solution> {
        let (component, place, _) = largest_chosen(problem, than)?;
        let (beside, allowance) = no_slower(problem, component, than, known)?;
        let near = self.0[component].best_of_splits(&problem.places[component], place);
        let near = near.into_par_iter().with_max_len(1);
        let own = |place: &Place| own_slots(problem, component, place, Some(&allowance));
        let rings: Vec<Place> = near.flat_map_iter(own).collect();
        if rings.is_empty() {
            return None;
        }
        self.better_with(beside, (component, rings), than, generation, known)
    }

    /// Splits of the largest component which may take less than those that they are near: its place
    /// in a solution, some others that would take about as long, and the best one by heads.
    fn nearby(
        &self,
        problem: &Problem<'_>,
        solution: &Solution,
        steps: &mut StepsBegun,
        known: &mut KnownChoices,
    ) -> Vec<NearbySplit> {
        let Some((component, place, score)) = largest_chosen(problem, solution) else {
            return Vec::new();
        };
        let open = &self.0[component];
        let by_heads = match is_by_heads(place) {
            true => None,
            false => open.best_by_heads(problem, component, score, known),
        };
        let near = open.best_of_splits(&problem.places[component], place).into_iter();
        let near = near.map(|from| (from, place.ms.alone()));
        let by_heads = by_heads.iter().map(|from| (from, from.ms.alone()));
        let near = by_heads.chain(near).flat_map(|from| nearby(problem, component, from, steps));
        most_promising(near.collect())
    }

    /// A plan that is better than another one, with the largest component in one of these splits.
    /// `bytes` are theirs.
    fn better_nearby(
        &mut self,
        problem: &Problem<'_>,
        (splits, bytes): (&[NearbySplit], &[SizedLayout]),
        than: &Solution,
        generation: u64,
        known: &mut KnownChoices,
    ) -> Option<Solution> {
        let (component, _, _) = largest_chosen(problem, than)?;
        let (beside, allowance) = no_slower(problem, component, than, known)?;
        let rings = splits.par_iter().zip(bytes).with_max_len(1).flat_map_iter(|(split, bytes)| {
            let spread = Arc::new(split.query.answered(bytes));
            let from = (&spread, split.slots, split.locks);
            let mut places = own_slots_in(problem, component, from, Some(&allowance));
            places.extend(held_whole(problem, component, &spread));
            places
        });
        let rings: Vec<Place> = rings.collect();
        self.better_with(beside, (component, rings), than, generation, known)
    }

    /// A plan that is better than another one, with a component in one of these places.
    fn better_with(
        &mut self,
        mut problem: Problem<'_>,
        (component, places): (usize, Vec<Place>),
        than: &Solution,
        generation: u64,
        known: &mut KnownChoices,
    ) -> Option<Solution> {
        self.0[component].before.extend_from_slice(&places);
        problem.places[component] = places.into();
        let mut found = better(&[problem], generation, Some(than), known)?;
        found.chosen.as_mut()?.problem = than.chosen.as_ref()?.problem;
        Some(found)
    }

    /// Goes on to other layouts. `bytes` answer `wanted`.
    fn renew(&mut self, problem: &Problem<'_>, wanted: &[LayoutQuery], bytes: &[SizedLayout]) {
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
/// The least memory is not found by times: with that as the objective nothing is looked at. Where
/// the best plan is needed to a part `longer_max` of its time only, how a split is streamed is left
/// as it was found.
///
/// # Errors
/// Those of `size`.
pub fn refined<E>(
    problems: &[Problem<'_>],
    mut solution: Solution,
    (wanted, bytes): (&[LayoutQuery], &[SizedLayout]),
    mut size: impl FnMut(&[LayoutQuery]) -> Result<Vec<SizedLayout>, E>,
    (generation, longer_max): (u64, f64),
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
    for next in NextLayouts::ALL {
        for _ in 0..next.rounds() {
            let wanted = match next {
                NextLayouts::LeftOutHeads => {
                    open.left_out_heads(problem, &solution, (wanted, bytes))
                }
                NextLayouts::Likely => open.likely(problem, &solution),
                NextLayouts::Neighbours => open.neighbours(problem, &solution),
                NextLayouts::OtherHeads => open.other_heads(problem, &solution, known),
            };
            if wanted.is_empty() {
                break;
            }
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
    if longer_max > 0.0 {
        return Ok((solution, Some(open)));
    }
    solution = open.with_all_rings(problem, &solution, generation, known).unwrap_or(solution);
    solution = open.with_own_slots(problem, &solution, generation, known).unwrap_or(solution);
    let (mut asked, mut steps): (Vec<NearbySplit>, _) = (Vec::new(), StepsBegun::default());
    for _ in 0..NEARBY_ROUNDS {
        let mut splits = open.nearby(problem, &solution, &mut steps, known);
        splits.retain(|split| !asked.iter().any(|other| split.is_like(other)));
        if splits.is_empty() {
            break;
        }
        asked.extend_from_slice(&splits);
        let wanted: Vec<LayoutQuery> = splits.iter().map(|split| split.query.clone()).collect();
        let bytes = size(&wanted)?;
        let near = (splits.as_slice(), bytes.as_slice());
        let better = open.better_nearby(problem, near, &solution, generation, known);
        let Some(better) = better else { break };
        solution = better;
    }
    Ok((solution, Some(open)))
}

/// Which layouts of the largest component are looked at next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextLayouts {
    /// Splits by heads over many kinds of devices, with other shares than the first ones.
    LeftOutHeads,
    /// Layer splits over any devices, in the order of about what they take.
    Likely,
    /// The best plans' layouts with other orders, or a segment on another device.
    Neighbours,
    /// A split by heads with some of these on another device.
    OtherHeads,
}

impl NextLayouts {
    const ALL: [NextLayouts; 4] = [
        NextLayouts::LeftOutHeads,
        NextLayouts::Likely,
        NextLayouts::Neighbours,
        NextLayouts::OtherHeads,
    ];

    fn rounds(self) -> usize {
        match self {
            NextLayouts::LeftOutHeads => 1,
            NextLayouts::Likely | NextLayouts::Neighbours => NEXT_ROUNDS,
            NextLayouts::OtherHeads => HEADS_ROUNDS,
        }
    }
}

/// The problem of a component's place beside the others of a plan, and what it may take in a plan
/// that is no slower.
fn no_slower<'a>(
    problem: &Problem<'a>,
    component: usize,
    than: &Solution,
    known: &mut KnownChoices,
) -> Option<(Problem<'a>, Allowance)> {
    let chosen = than.chosen.as_ref()?;
    let problem = Beside::new(problem, &chosen.places).of(component);
    let choices = Choices::by_time(&problem, known)?;
    let ticks_max = chosen.score.ticks_max(choices.step);
    let allowance = Allowance::beside(&problem, &choices, component, ticks_max);
    Some((problem, allowance))
}

/// The component with most weights.
pub fn largest(problem: &Problem<'_>) -> Option<usize> {
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

fn is_by_heads(place: &Place) -> bool {
    place.spread.placement() == Placement::Tensor
}
