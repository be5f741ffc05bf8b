//! The search: exact, by branch and bound over the places of each component in turn.
//!
//! A branch is cut when its bytes are over a budget already, or when its time and the least times of what is
//! still open cannot beat the best so far. Both only grow, so nothing better is lost.

use protocol::{Bytes, Residency};

use super::{Place, Problem, compose, time};
use crate::policy::Objective;

/// Sums of the same times in another order differ by less than this part of themselves: a few units in the last
/// of 53 bits.
const ROUNDING: f64 = 1e-12;

/// What is compared, in this order: smaller is better. Times are equal for weights that are loaded once at
/// the start or once for their phase: then what stays for the next job is better.
#[derive(Debug, Clone, PartialEq, PartialOrd)]
struct Score {
    bytes: Bytes,
    ms: f64,
    reloads: usize,
    copies: usize,
    total: Bytes,
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    places: Vec<Vec<(Place, f64)>>,
    least_ms: Vec<f64>,
    best: Option<(Score, Vec<Place>)>,
}

/// The best combination of places that fits, one for each component.
pub fn best(problem: &Problem<'_>) -> Option<Vec<Place>> {
    best_with(problem, None)
}

/// The best combination in which one component, by index, has a given place.
pub fn best_with(problem: &Problem<'_>, fixed: Option<(usize, Place)>) -> Option<Vec<Place>> {
    let components = &problem.profile.components;
    let timed = |(index, component)| {
        let place_ms = |place: Place| {
            let ms = time::component_ms(problem, component, place);
            (place, ms.counted(problem.objective, place.residency))
        };
        let places = match fixed {
            Some((at, place)) if at == index => vec![place],
            _ => problem.places(component),
        };
        places.into_iter().map(place_ms).collect::<Vec<_>>()
    };
    let places: Vec<Vec<(Place, f64)>> = components.iter().enumerate().map(timed).collect();
    // least_ms[i]: the least that components i and later can take.
    let mut least_ms = vec![0.0; places.len() + 1];
    for (index, options) in places.iter().enumerate().rev() {
        let least = options.iter().map(|(_, ms)| *ms).fold(f64::INFINITY, f64::min);
        least_ms[index] = least + least_ms[index + 1];
    }
    let mut search = Search { problem, places, least_ms, best: None };
    search.descend(&mut Vec::new(), 0.0);
    search.best.map(|(_, places)| places)
}

impl Search<'_> {
    fn descend(&mut self, chosen: &mut Vec<Place>, ms: f64) {
        let bytes = compose::bytes(self.problem, chosen);
        if bytes.over(self.problem).is_some() {
            return;
        }
        let depth = chosen.len();
        if depth == self.places.len() {
            self.offer(chosen, ms, bytes.total());
            return;
        }
        let by_bytes = self.problem.objective == Objective::Memory;
        let least_bytes = if by_bytes { bytes.total() } else { Bytes::ZERO };
        // Lowered by more than rounding can add: a branch that ties in time may still win by what comes after.
        let least_ms = (ms + self.least_ms[depth]) * (1.0 - ROUNDING);
        if let Some((best, _)) = &self.best
            && (least_bytes, least_ms) > (best.bytes, best.ms)
        {
            return;
        }
        for option in 0..self.places[depth].len() {
            let (place, place_ms) = self.places[depth][option];
            chosen.push(place);
            self.descend(chosen, ms + place_ms);
            chosen.pop();
        }
    }

    fn offer(&mut self, chosen: &[Place], ms: f64, total: Bytes) {
        let by_bytes = self.problem.objective == Objective::Memory;
        let score = Score {
            bytes: if by_bytes { total } else { Bytes::ZERO },
            ms,
            reloads: chosen.iter().filter(|place| place.residency == Residency::Lazy).count(),
            copies: chosen
                .iter()
                .filter(|p| p.device.is_none() && p.residency != Residency::Mapped)
                .count(),
            total,
        };
        // Strictly better only: among equals the first in the inventory's order stays.
        if self.best.as_ref().is_none_or(|(best, _)| score < *best) {
            self.best = Some((score, chosen.to_vec()));
        }
    }
}
