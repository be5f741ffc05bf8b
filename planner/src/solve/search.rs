//! The search: exact, by branch and bound over the places of each component in turn.
//!
//! A branch is cut when its bytes are over a budget already, or when what it has and the least of what is still open
//! cannot beat the best so far. Both only grow, so nothing better is lost. Places that cannot matter are left out
//! before (`prune`), and components between whose places most time is to be won come first.

use protocol::Bytes;

use super::compose::Composition;
use super::place::Place;
use super::{Problem, prune};
use crate::policy::Objective;

/// Times are compared in parts of a millisecond, so that sums of the same times are equal in any order: 2^-20 ms is
/// about a nanosecond.
const TICKS_PER_MS: f64 = (1 << 20) as f64;

/// What is compared, in this order: smaller is better. Times are equal for weights that are loaded once at
/// the start or once for their phase: then what stays for the next job is better; of splits the one that fills the
/// fullest device least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Score {
    bytes: Bytes,
    ticks: u64,
    reloads: u64,
    copies: u64,
    fullness: u64,
    total: Bytes,
}

/// A place with its part of the score.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// Its index among the component's places.
    pub index: usize,
    /// Its part of the score; bytes are the composition's.
    pub score: Score,
}

/// The choices of a problem, by component: made once, searched often.
pub struct Choices<'a> {
    problem: &'a Problem<'a>,
    /// Whether any combination that fits is as good as another.
    any: bool,
    all: Vec<Vec<Choice>>,
}

impl<'a> Choices<'a> {
    /// The choices for the best combination.
    pub fn of(problem: &'a Problem<'a>) -> Choices<'a> {
        Choices::new(problem, false)
    }

    fn new(problem: &'a Problem<'a>, any: bool) -> Choices<'a> {
        let mut choices = Choices { problem, any, all: Vec::new() };
        for (component, places) in problem.places.iter().enumerate() {
            let indices: Vec<usize> = (0..places.len()).collect();
            let some = choices.some(component, &indices);
            choices.all.push(some);
        }
        choices
    }

    /// The choices among some of a component's places, the most promising first.
    fn some(&self, component: usize, indices: &[usize]) -> Vec<Choice> {
        let Choices { problem, any, .. } = *self;
        let places = &problem.places[component];
        let phase = problem.profile.components[component].phase;
        let mut alone: Vec<(Bytes, Choice)> = Vec::new();
        for &index in indices {
            let mut bytes = Composition::new(problem);
            bytes.add(problem, phase, &places[index]);
            // What is over a budget alone is so in any company.
            if bytes.fits(problem) {
                let score = Score::of(problem, &places[index]);
                let score = if any { Score::default() } else { score };
                alone.push((bytes.total(), Choice { index, score }));
            }
        }
        let by_bytes = any || problem.objective == Objective::Memory;
        alone.sort_by_key(|(total, choice)| {
            (if by_bytes { *total } else { Bytes::ZERO }, choice.score, choice.index)
        });
        prune::undominated(alone.into_iter().map(|(_, choice)| choice), places)
    }

    /// The best combination of places that fits: an index for each component.
    pub fn best(&self) -> Option<Vec<usize>> {
        self.search(self.all.iter().map(Vec::as_slice).collect())
    }

    /// The best combination in which one component has one of some places.
    pub fn best_with(&self, component: usize, indices: &[usize]) -> Option<Vec<usize>> {
        let some = self.some(component, indices);
        let mut choices: Vec<&[Choice]> = self.all.iter().map(Vec::as_slice).collect();
        choices[component] = &some;
        self.search(choices)
    }

    fn search(&self, choices: Vec<&[Choice]>) -> Option<Vec<usize>> {
        let Choices { problem, any, .. } = *self;
        let spread = |component: &usize| {
            let ticks = choices[*component].iter().map(|choice| choice.score.ticks);
            ticks.clone().max().unwrap_or(0) - ticks.min().unwrap_or(0)
        };
        let mut order: Vec<usize> = (0..choices.len()).collect();
        order.sort_by_key(|component| std::cmp::Reverse(spread(component)));
        let mut search = Search {
            problem,
            any,
            least: choices
                .iter()
                .map(|of| of.iter().map(|c| c.score).min().unwrap_or_default())
                .collect(),
            chosen: vec![0; choices.len()],
            choices,
            order,
            best: None,
        };
        let bytes = Composition::new(problem);
        let first = vec![0; search.order.len()];
        search.descend(0, Score::default(), &bytes, first);
        search.best.map(|(_, places)| places)
    }
}

/// Whether any combination fits.
pub fn any(problem: &Problem<'_>) -> bool {
    Choices::new(problem, true).best().is_some()
}

impl Score {
    /// A place's part, without bytes.
    fn of(problem: &Problem<'_>, place: &Place) -> Score {
        let ms = place.ms.counted(problem.objective, place.reloads());
        Score {
            ticks: (ms * TICKS_PER_MS).round() as u64,
            reloads: u64::from(place.reloads()),
            copies: u64::from(place.copies()),
            fullness: place.fullness,
            ..Score::default()
        }
    }

    /// Both together, with the bytes of a composition.
    fn with(self, other: Score, problem: &Problem<'_>, total: Bytes) -> Score {
        let by_bytes = problem.objective == Objective::Memory;
        Score {
            bytes: if by_bytes { total } else { Bytes::ZERO },
            ticks: self.ticks.saturating_add(other.ticks),
            reloads: self.reloads + other.reloads,
            copies: self.copies + other.copies,
            fullness: self.fullness.saturating_add(other.fullness),
            total,
        }
    }

    /// Whether it is no more than the other in any respect but bytes.
    pub fn covers(&self, other: &Score) -> bool {
        self.ticks <= other.ticks
            && self.reloads <= other.reloads
            && self.copies <= other.copies
            && self.fullness <= other.fullness
    }
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    choices: Vec<&'a [Choice]>,
    /// Components in the order in which they are decided.
    order: Vec<usize>,
    /// The least score of each component's choices.
    least: Vec<Score>,
    any: bool,
    chosen: Vec<usize>,
    best: Option<(Score, Vec<usize>)>,
}

impl Search<'_> {
    /// Goes on from places that fit together. `first` has for each depth the first choice that may fit beside
    /// what was decided above.
    fn descend(&mut self, depth: usize, score: Score, bytes: &Composition, mut first: Vec<usize>) {
        if !bytes.fits(self.problem) {
            return;
        }
        let total = bytes.total();
        let Some(&component) = self.order.get(depth) else {
            return self.offer(score.with(Score::default(), self.problem, total));
        };
        let Some(open) = self.open(depth, bytes, &mut first) else { return };
        let phase = self.problem.profile.components[component].phase;
        for option in first[depth]..self.choices[component].len() {
            if self.any && self.best.is_some() {
                return;
            }
            let choice = self.choices[component][option];
            let sum = score.with(choice.score, self.problem, total);
            let least = sum.with(open, self.problem, total);
            if self.best.as_ref().is_some_and(|(best, _)| least > *best) {
                continue;
            }
            let mut bytes = bytes.clone();
            bytes.add(self.problem, phase, &self.problem.places[component][choice.index]);
            self.chosen[component] = choice.index;
            self.descend(depth + 1, sum, &bytes, first.clone());
        }
    }

    /// The least that components after this depth add, or `None` where one of them has no place that fits. Moves
    /// `first` on to what fits.
    fn open(&self, depth: usize, bytes: &Composition, first: &mut [usize]) -> Option<Score> {
        let mut open = Score::default();
        for later in depth..self.order.len() {
            let component = self.order[later];
            let phase = self.problem.profile.components[component].phase;
            let fits = |choice: &Choice| {
                let mut bytes = bytes.clone();
                bytes.add(self.problem, phase, &self.problem.places[component][choice.index]);
                bytes.fits(self.problem)
            };
            let choices = self.choices[component];
            first[later] += choices[first[later]..].iter().position(fits)?;
            if later > depth {
                // Sorted by score, the first that fits is the least; sorted by bytes it need not be.
                let by_score = self.problem.objective != Objective::Memory;
                let least =
                    if by_score { choices[first[later]].score } else { self.least[component] };
                open = open.with(least, self.problem, Bytes::ZERO);
            }
        }
        Some(open)
    }

    /// A combination that fits.
    fn offer(&mut self, score: Score) {
        // Among equals the first in the inventory's order.
        let better = |(best, at): &(Score, Vec<usize>)| (score, &self.chosen) < (*best, at);
        if self.best.as_ref().is_none_or(better) {
            self.best = Some((score, self.chosen.clone()));
        }
    }
}
