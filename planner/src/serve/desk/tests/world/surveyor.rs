//! What the made-up world's surveyor says of jobs.

use std::sync::Arc;

use serde_json::Value;

use super::super::super::action::RoomOrder;
use super::super::super::event::{DeskEvent, QueryId, Quoted};
use super::super::super::job::{ErrorCode, JobError, Offer};
use super::super::offer;
use super::{World, memory};
use crate::engine::lanes::Lanes;

impl World {
    pub(super) fn survey(&mut self, query: QueryId) {
        let result = match self.random.below(20) {
            0 => Err(JobError::new(ErrorCode::DoesNotFit, "too large")),
            _ => {
                let load_ms = [0.0, 900.0, 4000.0][self.random.below(3) as usize];
                let run_ms = 500.0 + self.random.below(4000) as f64;
                let batch = 1 + self.random.below(3) as u32;
                let plan = Arc::new(Value::Null);
                let lanes = match self.random.below(8) {
                    0 => Lanes::default(),
                    _ => memory::names(memory::some_lanes(&mut self.random)),
                };
                let offer = Offer { lanes, ..offer(load_ms, run_ms, batch) };
                Ok(Box::new(Quoted { offer, plan }))
            }
        };
        // Some answers come when nobody waits for them any more, and some never.
        let late = self.random.of_thousand(self.faults.deaths);
        if late && self.random.below(2) == 0 {
            return;
        }
        let in_ms = if late { 4_900 } else { 10 } + self.random.below(200);
        self.event(in_ms, DeskEvent::Quoted { query, result });
    }

    pub(super) fn weigh(&mut self, query: QueryId, order: &RoomOrder) {
        let fails = self.random.of_thousand(self.faults.deaths);
        let result = match fails {
            true => Err(JobError::new(ErrorCode::ExecutorDied, "it died of the question")),
            false => Ok(self.room_times(order)),
        };
        // Some answers come when nobody waits for them any more.
        let late = if self.random.of_thousand(self.faults.deaths) { 15_000 } else { 10 };
        let in_ms = late + self.random.below(200);
        self.event(in_ms, DeskEvent::Weighed { query, result });
    }
}
