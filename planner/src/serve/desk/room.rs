//! Room: which loaded models give way to a job of another one.
//!
//! Each choice of models that are unloaded is weighed by the surveyor. It costs what the job takes
//! then; and over the next ten minutes, with each model asked for as often as of late, more jobs of
//! this model and the loads of those that were unloaded:
//!
//! ```text
//! cost(E) = job + H·λ·next + Σ over E of H·λᵢ·loadᵢ
//! ```
//! The least cost wins, then fewer models, then the older slots (serve.md, section 4).

use std::collections::BTreeMap;

use super::Desk;
use super::action::{Action, EvictReason, RoomOrder, SlotState};
use super::config::{
    DEMAND_HALF_LIFE_MS, DEMAND_HORIZON_MS, WEIGH_MS_MAX, WEIGHED_EACH_MAX, WEIGHED_MS_MAX,
};
use super::event::{QueryId, RoomTimes, SlotId};
use super::job::{JobError, JobId};
use crate::job::JobRequest;

/// How often models are asked for.
#[derive(Debug, Clone, Default)]
pub struct Demand(BTreeMap<String, Arrivals>);

/// A model's jobs. Each counts half as much after each half-life.
#[derive(Debug, Clone, Copy)]
struct Arrivals {
    weight: f64,
    at_ms: u64,
}

impl Demand {
    /// A job of a model came.
    pub fn count(&mut self, model: &str, now_ms: u64) {
        let weight = self.weight(model, now_ms) + 1.0;
        self.0.insert(model.to_owned(), Arrivals { weight, at_ms: now_ms });
    }

    /// Jobs of a model that come within the horizon, as they came of late.
    pub fn expected(&self, model: &str, now_ms: u64) -> f64 {
        // So many a millisecond: the integral of the decay is the half-life over ln 2.
        let rate = self.weight(model, now_ms) * std::f64::consts::LN_2 / DEMAND_HALF_LIFE_MS;
        rate * DEMAND_HORIZON_MS
    }

    fn weight(&self, model: &str, now_ms: u64) -> f64 {
        self.0.get(model).map_or(0.0, |arrivals| {
            let age_ms = now_ms.saturating_sub(arrivals.at_ms) as f64;
            arrivals.weight * (-age_ms / DEMAND_HALF_LIFE_MS).exp2()
        })
    }
}

/// Whom room is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoomFor {
    /// A job that is about to begin.
    Job(JobId),
    /// A model that is loaded ahead.
    Load(String),
}

/// A question of the desk's own that the surveyor weighs.
#[derive(Debug)]
pub struct Weighing {
    pub query: QueryId,
    /// Who begins once it is answered.
    pub room_for: RoomFor,
    /// The model of that.
    pub model: String,
    /// Models that would be unloaded.
    pub choices: Vec<Vec<SlotId>>,
    /// What ran and was loaded, where the job is to begin beside it.
    pub beside: Option<u64>,
    /// When it is not waited for any more.
    pub until_ms: u64,
}

impl Desk {
    /// Frees what is to give way; returns whether nothing is left to be freed. Where that is to be
    /// weighed first, nothing else begins until it is.
    pub(super) fn make_room(
        &mut self,
        slot: SlotId,
        room_for: RoomFor,
        request: &JobRequest,
    ) -> bool {
        let others: Vec<SlotId> =
            self.idle_slots().into_iter().filter(|other| *other != slot).collect();
        if others.is_empty() || self.room_made.as_ref() == Some(&room_for) {
            self.room_made = None;
            return true;
        }
        let needs_all = match &room_for {
            RoomFor::Job(id) => self.jobs.get(id).is_some_and(|entry| entry.needs_all),
            RoomFor::Load(_) => false,
        };
        if needs_all || !self.config.several_loaded {
            others.iter().for_each(|other| self.evict(*other, EvictReason::Room));
            return false;
        }
        if let Some(unloaded) = self.weighed_before(&room_for, &others) {
            if unloaded.is_empty() {
                self.room_made = None;
                return true;
            }
            self.unload_for(room_for, &unloaded);
            return false;
        }
        let query = self.ids.query();
        let choices = self.room_choices(&others);
        let order = RoomOrder {
            request: request.clone(),
            slot: Some(slot),
            choices: choices.clone(),
            running: Vec::new(),
            busy: false,
        };
        self.out.push(Action::Weigh(query, Box::new(order)));
        let model = self.slots[&slot].model.clone();
        let until_ms = self.now.ms + WEIGH_MS_MAX;
        let beside = None;
        self.weighing = Some(Weighing { query, room_for, model, choices, beside, until_ms });
        false
    }

    /// The models that give way to a job, where that was weighed for its quote a moment ago, with
    /// the same ones loaded.
    fn weighed_before(&self, room_for: &RoomFor, others: &[SlotId]) -> Option<Vec<SlotId>> {
        let RoomFor::Job(id) = room_for else { return None };
        let weighed = self.jobs.get(id)?.weighed.as_ref()?;
        let is_fresh = self.now.ms.saturating_sub(weighed.at_ms) <= WEIGHED_MS_MAX;
        (is_fresh && weighed.others == others).then(|| weighed.unloaded.clone())
    }

    /// The choices among models that may be unloaded: every set of a few; of many the cheapest one,
    /// two, and so on.
    pub(super) fn room_choices(&self, others: &[SlotId]) -> Vec<Vec<SlotId>> {
        let mut choices = vec![others.to_vec()];
        if others.len() > WEIGHED_EACH_MAX {
            let mut sorted = others.to_vec();
            let loss = |id: &SlotId| self.loss_ms(*id) / (self.idle_sum(*id) as f64).max(1.0);
            sorted.sort_by(|a, b| loss(a).total_cmp(&loss(b)).then(a.cmp(b)));
            choices.extend((0..sorted.len()).map(|count| sorted[..count].to_vec()));
            return choices;
        }
        let whole = (1_u32 << others.len()) - 1;
        let mut sets: Vec<u32> = (0..whole).collect();
        sets.sort_by_key(|set| set.count_ones());
        let slots = |set: &u32| {
            let chosen = others.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
            chosen.map(|(_, id)| *id).collect()
        };
        choices.extend(sets.iter().map(slots));
        choices
    }

    /// Bytes that a slot holds between jobs, of all memories.
    fn idle_sum(&self, slot: SlotId) -> u64 {
        self.slots[&slot].idle_bytes.iter().map(|(_, bytes)| bytes.0).sum()
    }

    /// Milliseconds that it is expected to cost within the horizon that a slot's model is not
    /// loaded.
    fn loss_ms(&self, slot: SlotId) -> f64 {
        let model = &self.slots[&slot].model;
        let load_ms = self.load_ms.get(model).copied().unwrap_or(0.0);
        self.demand.expected(model, self.now.ms) * load_ms
    }

    /// The choice that costs the least; all where none was weighed.
    pub(super) fn cheapest(
        &self,
        model: &str,
        choices: &[Vec<SlotId>],
        times: &[Option<RoomTimes>],
    ) -> Vec<SlotId> {
        let all = choices.first().cloned().unwrap_or_default();
        self.cheapest_of(model, choices, times).map_or(all, |(_, choice)| choice)
    }

    /// The same with what the job takes then; `None` where none was weighed.
    fn cheapest_of(
        &self,
        model: &str,
        choices: &[Vec<SlotId>],
        times: &[Option<RoomTimes>],
    ) -> Option<(RoomTimes, Vec<SlotId>)> {
        let more = self.demand.expected(model, self.now.ms);
        let cost = |choice: &[SlotId], times: &RoomTimes| {
            let known = choice.iter().filter(|slot| self.slots.contains_key(slot));
            let loads: f64 = known.map(|slot| self.loss_ms(*slot)).sum();
            times.job_ms + more * times.next_ms + loads
        };
        let weighed = choices
            .iter()
            .zip(times)
            .filter_map(|(choice, times)| times.as_ref().zip(Some(choice)));
        let costs = weighed.map(|(times, choice)| (cost(choice, times), choice, times));
        let cheapest = costs.min_by(|(cost, choice, _), (other_cost, other, _)| {
            cost.total_cmp(other_cost).then(choice.len().cmp(&other.len())).then(choice.cmp(other))
        });
        cheapest.map(|(_, choice, times)| (times.clone(), choice.clone()))
    }

    /// The surveyor has weighed: what is to go goes.
    pub(super) fn weighed(
        &mut self,
        query: QueryId,
        result: Result<Vec<Option<RoomTimes>>, JobError>,
    ) {
        if self.questions.contains_key(&query) {
            return self.weighed_question(query, result.unwrap_or_default());
        }
        let Some(weighing) = self.weighing.take_if(|weighing| weighing.query == query) else {
            return;
        };
        let Weighing { room_for, model, choices, beside, .. } = weighing;
        if let (Some(standing), RoomFor::Job(id)) = (beside, &room_for) {
            let times = self.cheapest_of(&model, &choices, &result.unwrap_or_default());
            return self.weighed_beside(id, standing, times);
        }
        let unloaded = self.cheapest(&model, &choices, &result.unwrap_or_default());
        self.unload_for(room_for, &unloaded);
    }

    /// What takes too long to be weighed is not waited for: everything goes, or the job waits for
    /// what runs.
    pub(super) fn expire_weighing(&mut self) {
        let now_ms = self.now.ms;
        let Some(late) = self.weighing.take_if(|weighing| now_ms >= weighing.until_ms) else {
            return;
        };
        if let (Some(standing), RoomFor::Job(id)) = (late.beside, &late.room_for) {
            self.weighed_beside(id, standing, None);
        } else {
            self.unload_for(late.room_for, &late.choices[0]);
        }
    }

    pub(super) fn unload_for(&mut self, room_for: RoomFor, unloaded: &[SlotId]) {
        // Meanwhile it may not be wanted any more.
        if let RoomFor::Job(id) = &room_for
            && !self.jobs.get(id).is_some_and(|entry| entry.is_queued())
        {
            return;
        }
        self.room_made = Some(room_for);
        for slot in unloaded {
            if self.slots.get(slot).is_some_and(|slot| slot.state == SlotState::Warm) {
                self.evict(*slot, EvictReason::Room);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_asked_for_every_minute_is_expected_ten_times() {
        let mut demand = Demand::default();
        for minute in 0..120 {
            demand.count("one", minute * 60_000);
        }
        let now_ms = 119 * 60_000;
        let expected = demand.expected("one", now_ms);
        assert!((9.5..10.6).contains(&expected), "{expected}");
        // After two half-lives without one, a quarter of it.
        let later = demand.expected("one", now_ms + 2 * DEMAND_HALF_LIFE_MS as u64);
        assert!((later - expected / 4.0).abs() < 1e-9, "{later}");
        assert_eq!(demand.expected("two", now_ms), 0.0);
    }
}
