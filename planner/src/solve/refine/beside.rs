//! A problem with the places of plans that were found: what other places are searched beside.

use std::sync::Arc;

use super::super::Problem;
use super::super::place::Place;

/// A problem, and places that it has not. Lists are long, so one is copied only where it is needed.
pub struct Beside<'p, 'a> {
    problem: &'p Problem<'a>,
    /// By component.
    added: Vec<Vec<Place>>,
    /// The problem's places with those; none where they have not been needed yet.
    lists: Vec<Option<Arc<[Place]>>>,
}

impl<'p, 'a> Beside<'p, 'a> {
    /// With the places of a plan, one for each component.
    pub fn new(problem: &'p Problem<'a>, places: &[Place]) -> Beside<'p, 'a> {
        let components = problem.places.len();
        let (added, lists) = (vec![Vec::new(); components], vec![None; components]);
        let mut beside = Beside { problem, added, lists };
        beside.add(places);
        beside
    }

    /// Takes in those of a better one.
    pub fn add(&mut self, places: &[Place]) {
        for (component, place) in places.iter().enumerate() {
            let mut known = self.problem.places[component].iter().chain(&self.added[component]);
            if !known.any(|other| other == place) {
                self.added[component].push(place.clone());
                self.lists[component] = None;
            }
        }
    }

    /// The problem for new places of one component: all others have theirs.
    pub fn of(&mut self, component: usize) -> Problem<'a> {
        let mut problem = self.problem.clone();
        for other in (0..self.added.len()).filter(|other| *other != component) {
            let added = &self.added[other];
            if added.is_empty() {
                continue;
            }
            let all = || problem.places[other].iter().chain(added).cloned().collect();
            let list = Arc::clone(self.lists[other].get_or_insert_with(all));
            problem.places[other] = list;
        }
        problem
    }
}
