//! When jobs that wait will begin: the desk's own choices, made on a copy of the queue. Each is
//! taken to run alone, as jobs that run together are done sooner; and by its quote's plan, once the
//! lanes of that are free of all that go before it.

use std::collections::{BTreeMap, BTreeSet};

use super::Desk;
use super::event::SlotId;
use super::job::JobId;
use super::queue::{Waiter, choose};
use crate::engine::lanes::Lanes;

/// The first jobs of a queue, whose turns are chosen one by one; those behind them follow in their
/// order (serve.md, section 5).
const CHOSEN_MAX: usize = 64;

/// When a job begins, and how many do before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Turn {
    /// Its place among all that wait, from 1: by when they begin.
    pub place: usize,
    /// Predicted milliseconds from now to its start.
    pub start_ms: f64,
}

impl Desk {
    /// The turns of all jobs that wait.
    pub(super) fn turns(&self) -> BTreeMap<JobId, Turn> {
        let mut starts = self.forecast().starts;
        starts.sort_by(|(_, one), (_, other)| one.total_cmp(other));
        let turn = |(at, (id, start_ms))| (id, Turn { place: at + 1, start_ms });
        starts.into_iter().enumerate().map(turn).collect()
    }

    /// Predicted milliseconds until a job that came now would begin, of a model and by a plan on
    /// these lanes.
    pub(super) fn wait_ms_of_new(&self, model: &str, lanes: &Lanes) -> f64 {
        self.forecast().start_of(model, lanes)
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

    /// Predicted milliseconds until the first of what runs is done.
    pub(super) fn first_left_ms(&self) -> f64 {
        let left = self.busy_slots().map(|(id, _)| self.left_ms(id));
        left.min_by(f64::total_cmp).unwrap_or_default()
    }

    /// Predicted milliseconds until a slot's run is done: of one job, or of some together.
    pub(super) fn left_ms(&self, id: SlotId) -> f64 {
        let runs = self.slots[&id].jobs.iter().filter_map(|member| self.jobs.get(&member.id));
        let runs = runs.filter_map(|entry| entry.run.as_ref());
        runs.map(|run| run.left_ms(self.now.ms)).fold(0.0, f64::max)
    }
}

/// What is known of the turns so far.
struct Forecast<'a> {
    desk: &'a Desk,
    /// When each begins, in milliseconds from now, in the order in which they were chosen.
    starts: Vec<(JobId, f64)>,
    /// Models whose weights are taken to be loaded then.
    loaded: BTreeSet<&'a str>,
    /// The ends of all runs so far.
    ends: Vec<RunEnd<'a>>,
}

/// The end of a run; of runs on the same lanes and of the same model only the last one counts.
struct RunEnd<'a> {
    model: &'a str,
    /// None where they are not known: it is in everybody's way.
    lanes: Lanes,
    end_ms: f64,
}

impl<'a> Forecast<'a> {
    fn new(desk: &'a Desk) -> Forecast<'a> {
        let slots = desk.slots.values().filter(|slot| slot.has_executor());
        let ends = desk.busy_slots().map(|(id, slot)| RunEnd {
            model: &slot.model,
            lanes: slot.lanes.clone().unwrap_or_default(),
            end_ms: desk.left_ms(id),
        });
        Forecast {
            desk,
            starts: Vec::new(),
            loaded: slots.map(|slot| slot.model.as_str()).collect(),
            ends: ends.collect(),
        }
    }

    /// When a job begins, in milliseconds from now.
    fn start_of(&self, model: &str, lanes: &Lanes) -> f64 {
        let in_its_way = self.ends.iter().filter(|run| {
            !self.desk.config.several_loaded
                || run.model == model
                || lanes.is_empty()
                || run.lanes.is_empty()
                || run.lanes.shares(lanes)
        });
        in_its_way.map(|run| run.end_ms).fold(0.0, f64::max)
    }

    fn lanes_of(&self, waiter: &Waiter) -> &'a Lanes {
        &self.desk.jobs[&waiter.id].record.offer.lanes
    }

    /// The job of some whose turn it is; it is taken out of them.
    fn choose(&self, waiters: &mut Vec<Waiter>) -> Waiter {
        let first = &self.desk.jobs[&waiters[0].id];
        let lanes = &first.record.offer.lanes;
        let start_ms = self.start_of(first.model(), lanes);
        let now_ms = self.desk.now.ms + start_ms as u64;
        for waiter in waiters.iter_mut() {
            waiter.warm = self.loaded.contains(self.desk.jobs[&waiter.id].model());
        }
        // Only who wants the same lanes passes it.
        let rivals: Vec<usize> =
            (0..waiters.len()).filter(|at| self.lanes_of(&waiters[*at]) == lanes).collect();
        let of_rivals: Vec<Waiter> = rivals.iter().map(|at| waiters[*at].clone()).collect();
        let place = choose(&of_rivals, now_ms).unwrap_or(0);
        for at in &rivals[..place] {
            waiters[*at].passed += 1;
            waiters[*at].passed_since.get_or_insert(now_ms);
        }
        waiters.remove(rivals[place])
    }

    /// A job has its turn.
    fn take(&mut self, waiter: &Waiter) {
        let (model, lanes) = (self.desk.jobs[&waiter.id].model(), self.lanes_of(waiter));
        let start_ms = self.start_of(model, lanes);
        self.starts.push((waiter.id.clone(), start_ms));
        let mut end_ms = start_ms + waiter.run_ms;
        if !self.loaded.contains(model) {
            end_ms += waiter.load_ms;
            // Which of several would stay is known when it is weighed: here all do.
            if !self.desk.config.several_loaded {
                self.loaded.clear();
            }
            self.loaded.insert(model);
        }
        let same = |run: &&mut RunEnd<'_>| run.model == model && run.lanes == *lanes;
        match self.ends.iter_mut().find(same) {
            Some(run) => run.end_ms = end_ms,
            None => self.ends.push(RunEnd { model, lanes: lanes.clone(), end_ms }),
        }
    }
}
