//! Runs of the made-up world's executors.

use std::sync::Arc;

use protocol::message::Progress;
use protocol::{Bytes, Phase, UsageReport};
use serde_json::Value;

use super::super::super::action::{GainOrder, JoinOrder, RunOrder};
use super::super::super::event::{
    DeskEvent, FinishedWork, FreeMemory, GainTimes, JoinTimes, MadePicture, QueryId, Said,
    SlotFree, SlotId,
};
use super::super::super::job::{ErrorCode, JobError};
use super::{Coming, Executor, World};
use crate::job::infotext::Settings;
use crate::job::seed::Seed;

impl World {
    pub(super) fn run(&mut self, slot: SlotId, epoch: u64, order: RunOrder) {
        let requests = [&order.request].into_iter().chain(&order.company);
        requests.for_each(|request| assert!(request.seed.is_some(), "a run has a seed"));
        assert!(order.company.iter().all(|other| order.request.runs_with(other)), "{order:?}");
        self.joined += order.company.len() as u64;
        self.regained += u64::from(order.anew);
        let executor = self.executors.entry(slot).or_default();
        assert!(executor.running.is_none(), "a run within a run");
        let was_alive = executor.alive && executor.epoch == epoch;
        let old = executor.epoch;
        let plan = executor.plan.take().filter(|_| was_alive);
        let follows = self.desk.jobs.get(order.job.as_ref().unwrap_or(&super::super::job_id(0)));
        let follows = follows.is_some_and(|entry| entry.made > 0 && was_alive);
        let running = Some(order);
        *executor = Executor { epoch, alive: true, running, follows, plan, ..Executor::default() };
        let mut at = 1;
        let mut say = |world: &mut World, after: u64, said: Said| {
            at += after;
            world.event(at, DeskEvent::Runner { slot, epoch, said });
        };
        // What an executor of before says late counts for nothing.
        if !was_alive && old != epoch && self.random.of_thousand(300) {
            self.event(2, DeskEvent::Runner { slot, epoch: old, said: Said::Gone });
        }
        let fails_to_start = !was_alive && self.random.of_thousand(self.faults.deaths);
        if fails_to_start {
            let error = JobError::new(ErrorCode::ExecutorDied, "it does not start");
            let said = Said::Failed { error: Box::new(error), failures: Vec::new() };
            return say(self, 50, said);
        }
        if !was_alive {
            say(self, 50, Said::Started { pid: epoch as u32 });
        }
        self.at(at + 20, Coming::Planning(slot, epoch));
    }

    /// The run's plan is made for what there is now: the one that is loaded where it still does.
    pub(super) fn plan(&mut self, slot: SlotId, epoch: u64) {
        let Some(executor) = self.executors.get(&slot) else { return };
        let Some(order) = executor.running.clone().filter(|_| executor.epoch == epoch) else {
            return;
        };
        let anew = order.anew || self.random.below(4) == 0;
        let loaded = executor.plan.clone().filter(|plan| !anew && self.is_free_for(slot, plan));
        let loads = loaded.is_none();
        if loads && let Some(executor) = self.executors.get_mut(&slot) {
            executor.plan = None;
        }
        let Some(plan) = loaded.or_else(|| self.made_plan(slot)) else {
            let error = JobError::new(ErrorCode::DoesNotFit, "others took more");
            let said = Said::Failed { error: Box::new(error), failures: Vec::new() };
            return self.event(0, DeskEvent::Runner { slot, epoch, said });
        };
        let beside = self.executors.values().any(|executor| executor.claimed);
        self.beside += u64::from(beside);
        let lanes = plan.lanes();
        if let Some(executor) = self.executors.get_mut(&slot) {
            (executor.plan, executor.claimed) = (Some(plan), true);
        }
        self.check_room();
        let said = Said::Planned { plan: Arc::new(Value::Null), lanes, loads, because: None };
        self.event(0, DeskEvent::Runner { slot, epoch, said });
        self.go_on_with(slot, epoch, &order);
    }

    /// What becomes of a run whose plan is made.
    fn go_on_with(&mut self, slot: SlotId, epoch: u64, order: &RunOrder) {
        let requests = [&order.request].into_iter().chain(&order.company);
        let jobs = requests.map(|request| match request.seed {
            Some(Seed::Given(seed)) => (request.shape.batch.unwrap_or(1), seed),
            _ => panic!("a run has a seed"),
        });
        let jobs: Vec<(u32, u64)> = jobs.collect();
        let mut at = 0;
        let mut say = |world: &mut World, after: u64, said: Said| {
            at += after;
            world.event(at, DeskEvent::Runner { slot, epoch, said });
        };
        // An attempt fails, and the next one's plan is in another run's way.
        if self.random.of_thousand(self.faults.short) {
            let in_ms = 50 + self.random.below(1500);
            return self.at(in_ms, Coming::Again(slot, epoch));
        }
        let short = self.random.of_thousand(self.faults.short);
        let dies = self.random.of_thousand(self.faults.deaths);
        if short {
            let error = JobError::new(ErrorCode::OutOfMemory, "too little is free");
            let said = Said::Failed { error: Box::new(error), failures: Vec::new() };
            return say(self, 300, said);
        }
        for step in 1..=4 {
            let progress = Progress { phase: Phase::Denoise, step, of: 4 };
            let in_ms = 50 + self.random.below(500);
            say(self, in_ms, Said::Progress(progress));
        }
        if dies {
            // Half of them without a word of the failure.
            if self.random.below(2) == 0 {
                let error = JobError::new(ErrorCode::ExecutorDied, "it died");
                let said = Said::Failed { error: Box::new(error), failures: Vec::new() };
                say(self, 10, said);
            } else {
                say(self, 10, Said::Gone);
            }
            return;
        }
        let picture = |first: u64, index: u32| MadePicture {
            index,
            seed: first + u64::from(index),
            width: 8,
            height: 8,
            pixels: Arc::default(),
            settings: Settings::default(),
        };
        let pictures = jobs
            .iter()
            .flat_map(|(count, first)| (0..*count).map(move |index| picture(*first, index)));
        let work = FinishedWork {
            pictures: pictures.collect(),
            usage: UsageReport::default(),
            predicted_ms: 1.0,
            measured_ms: 1.0,
            idle_bytes: vec![("host".to_owned(), Bytes(1))],
            failures: Vec::new(),
            notices: Vec::new(),
        };
        say(self, 100, Said::Done(Box::new(work)));
        if self.random.of_thousand(self.faults.deaths) {
            let in_ms = at + self.random.below(2000);
            self.at(in_ms, Coming::Loss(slot, epoch));
        }
    }

    /// A run's next attempt has another plan: on the lanes of others, too, where they are free.
    pub(super) fn again(&mut self, slot: SlotId, epoch: u64) {
        let Some(executor) = self.executors.get_mut(&slot) else { return };
        let Some(order) = executor.running.clone().filter(|_| executor.epoch == epoch) else {
            return;
        };
        (executor.plan, executor.claimed) = (None, false);
        let plan = self.made_plan_anywhere(slot);
        let said = match plan.filter(|plan| self.is_free_for(slot, plan)) {
            None => {
                self.in_the_way += 1;
                Said::InTheWay
            }
            Some(plan) => {
                let lanes = plan.lanes();
                if let Some(executor) = self.executors.get_mut(&slot) {
                    (executor.plan, executor.claimed) = (Some(plan), true);
                }
                Said::Planned { plan: Arc::new(Value::Null), lanes, loads: true, because: None }
            }
        };
        let goes_on = matches!(said, Said::Planned { .. });
        self.event(0, DeskEvent::Runner { slot, epoch, said });
        if goes_on {
            self.go_on_with(slot, epoch, &order);
        }
    }

    /// Some of the jobs gain by running together, as random numbers have it.
    pub(super) fn join(&mut self, query: QueryId, order: &JoinOrder) {
        let result = match self.random.of_thousand(self.faults.deaths) {
            true => Err(JobError::new(ErrorCode::ExecutorDied, "it died of the question")),
            false => {
                let mut jobs: Vec<usize> = (1..order.requests.len()).collect();
                jobs.retain(|_| self.random.below(4) > 0);
                jobs.insert(0, 0);
                let run_ms = 500.0 + self.random.below(4000) as f64;
                let gains = jobs.len() > 1 && self.random.below(4) > 0;
                Ok(gains.then_some(JoinTimes { jobs, load_ms: 0.0, run_ms }))
            }
        };
        // Some answers come when nobody waits for them any more.
        let in_ms = 2 + self.random.below(60);
        self.event(in_ms, DeskEvent::Joined { query, result });
    }

    /// What loaded models could have, where nothing runs: most of the time more than before.
    pub(super) fn reading(&mut self) {
        let idle = self.executors.values().all(|executor| executor.running.is_none());
        if idle {
            let loaded = self.executors.iter().filter(|(_, executor)| executor.alive);
            let slots: Vec<SlotId> = loaded.map(|(slot, _)| *slot).collect();
            let more = |world: &mut World| Bytes::gib(4 + u64::from(world.random.below(9) > 0));
            let free = slots.into_iter().map(|slot| SlotFree {
                slot,
                memories: vec![FreeMemory { planned: Bytes::gib(4), now: more(self) }],
            });
            let free = free.collect();
            self.step(DeskEvent::Free(free));
        }
        if self.clients_left > 0 {
            self.at(5_000, Coming::Reading);
        }
    }

    /// Some plans are worth their load, as random numbers have it.
    pub(super) fn regain(&mut self, query: QueryId, order: &GainOrder) {
        assert!(self.executors.values().all(|executor| executor.running.is_none()), "{order:?}");
        let result = match self.random.of_thousand(self.faults.deaths) {
            true => Err(JobError::new(ErrorCode::ExecutorDied, "it died of the question")),
            false => {
                let saved_ms = self.random.below(4000) as f64;
                Ok((saved_ms > 500.0).then_some(GainTimes { load_ms: 2000.0, saved_ms }))
            }
        };
        // Some answers come when nobody waits for them any more.
        let late = if self.random.of_thousand(self.faults.deaths) { 15_000 } else { 10 };
        let in_ms = late + self.random.below(200);
        self.event(in_ms, DeskEvent::Regained { query, result });
    }

    /// An idle executor is gone. The desk hears of it later, when it may have ordered the next run,
    /// which starts another one.
    pub(super) fn lose(&mut self, slot: SlotId, epoch: u64) {
        let Some(executor) = self.executors.get_mut(&slot) else { return };
        if executor.running.is_some() || !executor.alive || executor.epoch != epoch {
            return;
        }
        executor.alive = false;
        executor.plan = None;
        let in_ms = self.random.below(30);
        self.event(in_ms, DeskEvent::Runner { slot, epoch, said: Said::Lost });
    }

    /// The run ends soon: what it would have said is not said any more.
    pub(super) fn cancel(&mut self, slot: SlotId) {
        let Some(executor) = self.executors.get_mut(&slot) else { return };
        if executor.running.is_none() || executor.cancelled {
            return;
        }
        executor.cancelled = true;
        let epoch = executor.epoch;
        self.coming.retain(|_, coming| {
            let of_slot = matches!(
                coming,
                Coming::Event(DeskEvent::Runner { slot: other, epoch: of, said })
                    if *other == slot && *of == epoch && !matches!(said, Said::Started { .. })
            ) || matches!(
                coming,
                Coming::Planning(other, _) | Coming::Again(other, _) if *other == slot
            );
            !of_slot
        });
        let in_ms = 5 + self.random.below(9000);
        self.event(in_ms, DeskEvent::Runner { slot, epoch, said: Said::Cancelled });
    }
}
