//! The search: exact, by branch and bound over the places of each component in turn.
//!
//! A branch is cut when its bytes are over a budget already, or when what it has and the least of
//! what is still open cannot beat the best so far. Both only grow, so nothing better is lost. What
//! is still open is taken to load and to compute the least that fits beside what is decided, each
//! for itself, and what it loads too late to hide it counts as computed; with these the timeline is
//! no longer than with any of its places, and neither is any of the timeline's chains, which know
//! the least of both together.
//!
//! With more devices than [`DEVICES_EXACT`] the search ends after so many branches; the plans of
//! one device alone are looked at before, so that it is never worse than these.

mod allowance;
mod choice;
mod choices;
mod covered;

use protocol::Bytes;

use super::Problem;
use super::compose::{Composition, Headroom};
use super::timeline::{self, LoadInterval, PHASES_MAX, PhaseSums, TimeStep, position};
use crate::policy::Objective;
use choice::{Simplicity, TieBreak};
use choices::{ComponentChoices, ORDERS, OrderedChoice};

pub use allowance::Allowance;
pub use choices::{Choices, KnownChoices};

/// Up to so many devices the search is exact.
pub const DEVICES_EXACT: usize = 4;

/// Branches of a search that is not exact: some tens of milliseconds.
const BRANCHES_MAX: u64 = 20_000;

/// What is compared, in this order: smaller is better. Times are equal for weights that are loaded
/// once at the start or once for their phase: then what takes the next job less time is better,
/// then what is simpler, then the split that fills the fullest device least. Of equals the first
/// one that is found stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Score {
    /// The job's time, [as it is compared](timeline::TimeStep::compared).
    time: u64,
    /// The next job's, likewise.
    again: u64,
    simplicity: Simplicity,
    /// The job's time in ticks.
    pub ticks: u64,
}

impl Score {
    fn new(step: TimeStep, ticks: u64, tie_break: TieBreak) -> Score {
        let TieBreak { again, simplicity } = tie_break;
        let (time, again) = (step.compared(ticks), step.compared(again));
        Score { time, again, simplicity, ticks }
    }

    /// A score that a job of `ticks_max` ticks or fewer beats, and no job that is compared by more.
    pub fn just_beaten_by(step: TimeStep, ticks_max: u64) -> Score {
        let time = step.most(step.compared(ticks_max)).saturating_add(1);
        Score { time, ..Score::default() }
    }

    /// The most ticks of a job that may be better.
    pub fn ticks_max(&self, step: TimeStep) -> u64 {
        step.most(self.time)
    }
}

/// A combination of places: an index for each component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it is compared by.
    pub score: Score,
    /// Peaks of all devices and the host.
    pub total: Bytes,
    /// The place of each component.
    pub places: Vec<usize>,
}

/// Whether any combination fits.
pub fn any(problem: &Problem<'_>) -> bool {
    Choices::by_bytes(problem, &KnownChoices::default())
        .is_some_and(|choices| Search::new(problem, &choices, Goal::Any).run(None).is_some())
}

/// The best combination that fits and beats another one's score, if there is one. With `memory` as
/// the objective the least bytes are found first, then the least time with these.
pub fn best(problem: &Problem<'_>, choices: &Choices, limits: Limits) -> Option<Found> {
    let mut best: Option<Found> = None;
    let beat = |best: &Option<Found>| best.as_ref().map(|found| found.score).or(limits.beat);
    let goal = Goal::Best { total_max: limits.total_max };
    if problem.inventory.devices.len() > DEVICES_EXACT && limits.branches_max.is_none() {
        for device in 0..problem.inventory.devices.len() {
            if let Some(choices) = choices.on_one(problem, device) {
                let found = Search::new(problem, &choices, goal).run(beat(&best));
                best = found.or(best);
            }
        }
    }
    let mut search = Search::new(problem, choices, goal);
    if let Some(most) = limits.branches_max {
        search.fruitless_left = BRANCHES_MAX;
        search.branches_left = search.branches_left.min(most);
    }
    search.run(beat(&best)).or(best)
}

/// Whether any combination fits and beats another one's score: as far as a search finds it.
pub fn any_better(problem: &Problem<'_>, choices: &Choices, limits: Limits) -> bool {
    let mut search = Search::new(problem, choices, Goal::Best { total_max: limits.total_max });
    search.branches_left = 0;
    search.run(limits.beat).is_some()
}

/// The least bytes of any combination that fits.
fn least_total(problem: &Problem<'_>, known: &mut KnownChoices) -> Option<Bytes> {
    // Its places are put in order once, for this and for the search by time that follows.
    Choices::by_time(problem, known)?;
    let choices = Choices::by_bytes(problem, known)?;
    Search::new(problem, &choices, Goal::LeastTotal).run(None).map(|found| found.total)
}

/// What a combination must do beside fitting.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// It has a better score than this.
    pub beat: Option<Score>,
    /// It takes no more bytes than this.
    pub total_max: Option<Bytes>,
    /// After so many branches the search ends with the best that it has, or with the first that it
    /// finds then.
    pub branches_max: Option<u64>,
}

impl Limits {
    /// The limits of an objective: `memory` allows no more bytes than the least. `known` has
    /// choices of these problems, and gets those that are made.
    pub fn of(problems: &[Problem<'_>], known: &mut KnownChoices) -> Limits {
        let memory = problems.iter().any(|problem| problem.objective == Objective::Memory);
        let mut least = || problems.iter().filter_map(|problem| least_total(problem, known)).min();
        let total_max = if memory { least() } else { None };
        Limits { total_max, ..Limits::default() }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    Any,
    LeastTotal,
    Best { total_max: Option<Bytes> },
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    choices: &'a Choices,
    goal: Goal,
    chosen: Vec<usize>,
    /// What each component adds to the timeline: what it was given, or the least where it is open.
    intervals: Vec<LoadInterval>,
    /// The same in the timeline's sums.
    phase_sums: Vec<PhaseSums>,
    best: Option<Found>,
    beat: Option<Score>,
    branches_left: u64,
    /// The same for a search that has something to beat, and did not yet.
    fruitless_left: u64,
    scratch: Composition,
}

/// What all components but one add to the longest sum of a phase: that one's own, those after it,
/// and those before it.
struct OtherSums {
    own: u64,
    after: Option<u64>,
    before: Option<u64>,
}

impl OtherSums {
    /// Of the sums of all phases, for a component that computes in this one.
    fn of(sums: &[u64; PHASES_MAX], own: usize) -> OtherSums {
        let longest = |sums: &[u64]| sums.iter().copied().max();
        OtherSums {
            own: sums[own],
            after: longest(&sums[own + 1..]),
            before: longest(&sums[..own]),
        }
    }

    /// The longest sum with what the one adds.
    fn longest(&self, sums: &PhaseSums) -> u64 {
        let beside = |others: Option<u64>, sum: u64| others.map_or(0, |o| o.saturating_add(sum));
        let own = self.own.saturating_add(sums.own);
        own.max(beside(self.after, sums.after)).max(beside(self.before, sums.before))
    }
}

/// For each component, in each order, the first choice that may fit beside what is decided.
type First = Vec<[usize; ORDERS]>;

impl<'a> Search<'a> {
    fn new(problem: &'a Problem<'a>, choices: &'a Choices, goal: Goal) -> Search<'a> {
        let timeline = problem.job.timeline();
        let components = &problem.profile.components;
        let exact = problem.inventory.devices.len() <= DEVICES_EXACT;
        let phases = components.iter().map(|component| position(timeline, component.phase));
        let intervals = phases.map(|phase| LoadInterval::least(phase, 0, 0));
        Search {
            problem,
            choices,
            goal,
            chosen: vec![0; components.len()],
            phase_sums: intervals.clone().map(|interval| interval.phase_sums()).collect(),
            intervals: intervals.collect(),
            best: None,
            beat: None,
            branches_left: if exact { u64::MAX } else { BRANCHES_MAX },
            fruitless_left: if exact { u64::MAX } else { BRANCHES_MAX },
            scratch: Composition::new(problem),
        }
    }

    fn run(mut self, beat: Option<Score>) -> Option<Found> {
        self.beat = beat;
        let bytes = Composition::new(self.problem);
        if !bytes.fits(self.problem) {
            return None;
        }
        let first = vec![[0; ORDERS]; self.chosen.len()];
        self.descend(0, TieBreak::default(), &bytes, first);
        self.best
    }

    /// Whether there were enough branches. Only a search that has nothing to beat goes on until it
    /// finds something.
    fn is_over(&self) -> bool {
        match self.best {
            Some(_) => self.branches_left == 0,
            None => self.fruitless_left == 0 && self.beat.is_some(),
        }
    }

    /// Whether nothing with at least this score and the bytes of this composition is wanted any
    /// more.
    fn is_beaten(&self, bound: Score, bytes: &Composition) -> bool {
        match self.goal {
            Goal::Any => self.best.is_some(),
            Goal::LeastTotal => {
                self.best.as_ref().is_some_and(|found| bytes.total() >= found.total)
            }
            Goal::Best { total_max } => {
                self.beat.is_some_and(|score| bound >= score)
                    || total_max.is_some_and(|most| bytes.total() > most)
            }
        }
    }

    /// The least time of a job with the present intervals, of whose chains this is the longest; or
    /// enough of it to be beaten.
    fn bound_ticks(&self, longest: u64) -> u64 {
        if !self.is_timed() {
            return 0;
        }
        if self.is_too_long(longest) {
            return longest;
        }
        longest.max(timeline::total(&self.intervals))
    }

    /// Whether a job of at least so many ticks is beaten.
    fn is_too_long(&self, ticks: u64) -> bool {
        self.beat.is_some_and(|score| ticks > score.ticks_max(self.choices.step))
    }

    /// What all components, or all but one, add to the sum that belongs to a phase.
    fn chain(&self, phase: usize, without: Option<usize>) -> u64 {
        let sums = self.phase_sums.iter().enumerate();
        let others = sums.filter(|(component, _)| Some(*component) != without);
        others.map(|(_, sums)| sums.at(phase)).fold(0, u64::saturating_add)
    }

    fn is_timed(&self) -> bool {
        matches!(self.goal, Goal::Best { .. })
    }

    /// Goes on from places that fit together.
    fn descend(
        &mut self,
        depth: usize,
        tie_break: TieBreak,
        bytes: &Composition,
        mut first: First,
    ) {
        let choices = self.choices;
        let Some(&component) = choices.order.get(depth) else {
            return self.offer(tie_break, bytes);
        };
        let before = (self.intervals.clone(), self.phase_sums.clone());
        let Some(open) = self.open(depth, bytes, &mut first) else {
            (self.intervals, self.phase_sums) = before;
            return;
        };
        let phase = self.problem.profile.components[component].phase;
        let mut bytes_with = bytes.clone();
        let headroom = Headroom::beside(bytes, self.problem, phase);
        let others = self.others(component);
        let order = self.shortest(component, &first[component], &others);
        for ordered in &choices.of[component].orders[order][first[component][order]..] {
            if self.is_over() || self.ends(ordered, order, &others) {
                break;
            }
            let longest = others.longest(&ordered.sums);
            if self.is_timed() && self.is_too_long(longest) {
                continue;
            }
            let choice = &choices.of[component].all[ordered.number as usize];
            (self.intervals[component], self.phase_sums[component]) =
                (choice.interval, ordered.sums);
            let sum = tie_break.plus(choice.tie_break);
            let bound = |ticks| Score::new(self.choices.step, ticks, sum.plus(open));
            // The timeline takes longer to add up than its chains.
            if self.is_timed() && self.beat.is_some_and(|score| bound(longest) >= score) {
                continue;
            }
            let bound = bound(self.bound_ticks(longest));
            if self.is_beaten(bound, bytes) {
                continue;
            }
            let place = &self.problem.places[component][choice.index];
            if !headroom.takes(place, &mut self.scratch) {
                continue;
            }
            bytes_with.copy_from(bytes);
            bytes_with.add(self.problem, phase, place);
            if !self.is_beaten(bound, &bytes_with) {
                self.branches_left = self.branches_left.saturating_sub(1);
                self.fruitless_left = self.fruitless_left.saturating_sub(1);
                self.chosen[component] = choice.index;
                self.descend(depth + 1, sum, &bytes_with, first.clone());
            }
        }
        (self.intervals, self.phase_sums) = before;
    }

    /// The order in which the fewest of a component's choices are left before one ends it; the
    /// first where time is of no account.
    fn shortest(&self, component: usize, first: &[usize; ORDERS], others: &OtherSums) -> usize {
        let orders = &self.choices.of[component].orders;
        let left = |order: &usize| {
            let ordered = &orders[*order][first[*order]..];
            ordered.partition_point(|choice| !self.ends(choice, *order, others))
        };
        if self.is_timed() { (0..ORDERS).min_by_key(left).unwrap_or(0) } else { 0 }
    }

    /// Whether a choice and all that follow it in an order are beaten: they have no less of what
    /// the order is by.
    fn ends(&self, choice: &OrderedChoice, order: usize, others: &OtherSums) -> bool {
        match self.goal {
            Goal::Any => self.best.is_some(),
            Goal::LeastTotal => self.best.as_ref().is_some_and(|found| choice.key >= found.total.0),
            Goal::Best { .. } => {
                let chain = [Some(others.own), others.after, others.before][order];
                chain.is_some_and(|chain| self.is_too_long(chain.saturating_add(choice.key)))
            }
        }
    }

    /// What the components but one add to the sums of phases.
    fn others(&self, component: usize) -> OtherSums {
        let sums: [u64; PHASES_MAX] =
            std::array::from_fn(|phase| self.chain(phase, Some(component)));
        OtherSums::of(&sums, self.intervals[component].phase)
    }

    /// The least that components after this depth add to what is compared after time, with their
    /// least times set, or `None` where one of them has no place that fits, or where that takes too
    /// long. Moves `first` on to what fits.
    fn open(&mut self, depth: usize, bytes: &Composition, first: &mut First) -> Option<TieBreak> {
        let mut open = TieBreak::default();
        let choices = self.choices;
        for (later, &component) in choices.order.iter().enumerate().skip(depth) {
            let phase = self.problem.profile.components[component].phase;
            let ComponentChoices { all, orders, least, least_load, .. } = &*choices.of[component];
            let headroom = Headroom::beside(bytes, self.problem, phase);
            let total_max = match self.goal {
                Goal::Best { total_max } => total_max,
                Goal::Any | Goal::LeastTotal => None,
            };
            let mut fits = |choice: &OrderedChoice| {
                let place = &self.problem.places[component][all[choice.number as usize].index];
                if !headroom.takes(place, &mut self.scratch) {
                    return false;
                }
                let Some(total_max) = total_max else { return true };
                self.scratch.copy_from(bytes);
                self.scratch.add(self.problem, phase, place);
                self.scratch.total() <= total_max
            };
            // The one that is decided now needs its own order only; bytes alone have no others.
            let timed = matches!(self.goal, Goal::Best { .. });
            let needed = if later == depth || !timed { 1 } else { ORDERS };
            let mut least_keys = [0; ORDERS];
            for (order, ordered) in orders.iter().enumerate().take(needed) {
                let from = &mut first[component][order];
                *from += ordered[*from..].iter().position(&mut fits)?;
                least_keys[order] = ordered[*from].key;
            }
            if later > depth {
                open = open.plus(*least);
                let [own, after, before] = least_keys;
                let interval = &mut self.intervals[component];
                let phase = interval.phase;
                // A load that is not early is waited for as if it were computed.
                *interval = LoadInterval::least(phase, *least_load, before);
                self.phase_sums[component] = PhaseSums { phase, before, own, after };
                let longest =
                    (0..PHASES_MAX).map(|phase| self.chain(phase, None)).fold(0, u64::max);
                if self.is_too_long(self.bound_ticks(longest)) {
                    return None;
                }
            }
        }
        Some(open)
    }

    /// A combination that fits.
    fn offer(&mut self, tie_break: TieBreak, bytes: &Composition) {
        let ticks = if self.is_timed() { timeline::total(&self.intervals) } else { 0 };
        let score = Score::new(self.choices.step, ticks, tie_break);
        if !self.is_beaten(score, bytes) {
            self.beat = Some(score);
            self.best = Some(Found { score, total: bytes.total(), places: self.chosen.clone() });
        }
    }
}
