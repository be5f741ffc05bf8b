//! When jobs that wait will begin: the desk's own choices, made on a copy of the queue. Each is
//! taken to run alone: jobs that run together are done sooner.

use std::collections::{BTreeMap, BTreeSet};

use super::Desk;
use super::job::JobId;
use super::queue::{Waiter, choose};

/// The first jobs of a queue, whose turns are chosen one by one; those behind them follow in their
/// order (serve.md, section 5).
const CHOSEN_MAX: usize = 64;

/// A job's turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Its place among all that wait, from 1.
    pub place: usize,
    /// Predicted milliseconds from now to its start.
    pub start_ms: f64,
}

impl Desk {
    /// The turns of all jobs that wait.
    pub(super) fn turns(&self) -> BTreeMap<JobId, Turn> {
        self.forecast().turns
    }

    /// Predicted milliseconds until a job that came now would begin.
    pub(super) fn wait_ms_of_new(&self) -> f64 {
        self.forecast().start_ms
    }

    fn forecast(&self) -> Forecast<'_> {
        let mut waiters = self.waiters();
        let behind = waiters.split_off(waiters.len().min(CHOSEN_MAX));
        let mut forecast = Forecast::new(self);
        while !waiters.is_empty() {
            let next = forecast.choose(&mut waiters);
            forecast.take(&next);
        }
        behind.iter().for_each(|waiter| forecast.take(waiter));
        forecast
    }

    /// Predicted milliseconds until what runs is done: one job, or some in one run.
    pub(super) fn busy_left_ms(&self) -> f64 {
        let runs = self.jobs.values().filter_map(|entry| entry.run.as_ref());
        runs.map(|run| run.left_ms(self.now.ms)).fold(0.0, f64::max)
    }
}

/// What is known of the turns so far.
struct Forecast<'a> {
    desk: &'a Desk,
    turns: BTreeMap<JobId, Turn>,
    /// Models whose weights are taken to be loaded then.
    loaded: BTreeSet<&'a str>,
    /// When the next job begins, in milliseconds from now.
    start_ms: f64,
}

impl<'a> Forecast<'a> {
    fn new(desk: &'a Desk) -> Forecast<'a> {
        let slots = desk.slots.values().filter(|slot| slot.has_executor());
        Forecast {
            desk,
            turns: BTreeMap::new(),
            loaded: slots.map(|slot| slot.model.as_str()).collect(),
            start_ms: desk.busy_left_ms(),
        }
    }

    /// The job of some whose turn it is; it is taken out of them.
    fn choose(&self, waiters: &mut Vec<Waiter>) -> Waiter {
        let now_ms = self.desk.now.ms + self.start_ms as u64;
        for waiter in waiters.iter_mut() {
            waiter.warm = self.loaded.contains(self.desk.jobs[&waiter.id].model());
        }
        let place = choose(waiters, now_ms).unwrap_or(0);
        for passed in &mut waiters[..place] {
            passed.passed += 1;
            passed.passed_since.get_or_insert(now_ms);
        }
        waiters.remove(place)
    }

    /// A job has its turn.
    fn take(&mut self, waiter: &Waiter) {
        let model = self.desk.jobs[&waiter.id].model();
        let turn = Turn { place: self.turns.len() + 1, start_ms: self.start_ms };
        self.turns.insert(waiter.id.clone(), turn);
        if !self.loaded.contains(model) {
            self.start_ms += waiter.load_ms;
            // Which of several would stay is known when it is weighed: here all do.
            if !self.desk.config.several_loaded {
                self.loaded.clear();
            }
            self.loaded.insert(model);
        }
        self.start_ms += waiter.run_ms;
    }
}
