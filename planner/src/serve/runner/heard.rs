//! What a run tells, on its way to the desk.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use protocol::Plan;
use serde_json::Value;

use super::super::desk::event::{FreeChange, PreviewImage, Said, SlotId};
use super::super::shared::ServedHost;
use super::switch::RunSwitch;
use super::told::RunTeller;
use crate::engine::lanes::Lanes;
use crate::engine::warm::Loaded;
use crate::job::JobEvent;
use crate::planning::Request;
use crate::render::document::PlanDocument;
use crate::solve::PlanReport;

/// What a plan is made for.
pub struct AskedPlan {
    /// The question.
    pub request: Request,
    /// How many plans had been claimed when others' were looked at.
    pub claims: u64,
}

/// What there is before a run.
pub struct BeforeRun {
    /// Where it is.
    pub slot: SlotId,
    /// Of the plan that is loaded.
    pub document: Option<Arc<Value>>,
    /// What is loaded.
    pub loaded: Option<Loaded>,
    /// Whether a better plan than that is looked for.
    pub anew: bool,
}

/// Hears what a run tells.
pub struct HeardRun<'a> {
    teller: &'a RunTeller,
    switch: &'a RunSwitch,
    shared: &'a ServedHost,
    slot: SlotId,
    /// Whether it was ended because its plan is in another run's way.
    pub is_in_the_way: bool,
    /// Of the plan that is loaded, or about to be.
    pub document: Option<Arc<Value>>,
    /// What was loaded before, until another plan takes its place.
    loaded: Option<Loaded>,
    anew: bool,
    /// When the last plan was about to be loaded, if any was.
    load_began: Option<Instant>,
    ended_at: Option<Instant>,
}

impl<'a> HeardRun<'a> {
    /// One that has heard nothing yet.
    pub fn new(
        teller: &'a RunTeller,
        switch: &'a RunSwitch,
        shared: &'a ServedHost,
        before: BeforeRun,
    ) -> HeardRun<'a> {
        let BeforeRun { slot, document, loaded, anew } = before;
        HeardRun {
            teller,
            switch,
            shared,
            slot,
            is_in_the_way: false,
            document,
            loaded,
            anew,
            load_began: None,
            ended_at: None,
        }
    }

    /// Takes up what the run tells; it is to end where the order was cancelled, or its plan is in
    /// another run's way. `asked` is what its last plan was made for.
    pub fn hear(&mut self, event: JobEvent, asked: Option<&AskedPlan>) -> ControlFlow<()> {
        let request = asked.map(|asked| &asked.request);
        match event {
            JobEvent::Planned { plan, report } => {
                if self.switch.is_cancelled() || !self.claims(&plan, asked) {
                    return ControlFlow::Break(());
                }
                self.planned(&plan, &report, request);
            }
            JobEvent::Reused => {
                let Some(loaded) = self.loaded.take() else { return ControlFlow::Continue(()) };
                if self.switch.is_cancelled() || !self.claims(&loaded.plan, asked) {
                    return ControlFlow::Break(());
                }
                self.tell_plan(&loaded.plan, false, None);
            }
            JobEvent::Progress(progress) => {
                self.teller.in_phase(progress.phase);
                self.teller.tell(Said::Progress(progress));
            }
            JobEvent::Preview { width, height, pixels } => {
                let preview = Arc::new(PreviewImage { width, height, pixels });
                self.teller.tell(Said::Preview(preview));
            }
            JobEvent::Retrying { because, device } => {
                self.document = None;
                if let (Some(device), Some(request)) = (device, request) {
                    self.shared.device_failed(&request.inventory, &device, &because);
                }
                self.teller.retrying(because);
            }
            JobEvent::NotLearned { because } => {
                tracing::warn!(%because, "the run's times are not kept");
            }
            JobEvent::Output { .. } | JobEvent::Ended { .. } => {
                self.ended_at.get_or_insert_with(Instant::now);
            }
            // Told to the session's listener, or part of the result.
            JobEvent::ExecutorStarted { .. }
            | JobEvent::ExecutorDied { .. }
            | JobEvent::ExecutorSilent { .. }
            | JobEvent::ExecutorAnswers
            | JobEvent::Noticed { .. } => {}
        }
        ControlFlow::Continue(())
    }

    /// Milliseconds from the last load, if there was any, to the run's end.
    pub fn since_load_ms(&self) -> Option<f64> {
        let ended_at = self.ended_at.unwrap_or_else(Instant::now);
        self.load_began.map(|began| ended_at.duration_since(began).as_secs_f64() * 1e3)
    }

    fn planned(&mut self, plan: &Plan, report: &PlanReport, request: Option<&Request>) {
        self.teller.planned(plan.generation);
        self.load_began = Some(Instant::now());
        self.ended_at = None;
        let because = self.because(request);
        let document = request.and_then(|request| {
            serde_json::to_value(PlanDocument::new(plan, report, &request.inventory)).ok()
        });
        self.document = document.map(Arc::new);
        self.tell_plan(plan, plan.keeps_weights_of.is_none(), because);
    }

    fn tell_plan(&self, plan: &Plan, loads: bool, because: Option<FreeChange>) {
        if let Some(document) = self.document.clone() {
            let lanes = Lanes::of(plan);
            self.teller.tell(Said::Planned { plan: document, lanes, loads, because });
        }
    }

    /// Whether the run may go on by a plan.
    fn claims(&mut self, plan: &Plan, asked: Option<&AskedPlan>) -> bool {
        let claims = asked.map(|asked| asked.claims).unwrap_or_default();
        self.is_in_the_way = !self.shared.claim(self.slot, plan, claims);
        !self.is_in_the_way
    }

    /// Whether the loaded plan gives way to one for the same question, and why.
    fn because(&mut self, request: Option<&Request>) -> Option<FreeChange> {
        let loaded = self.loaded.take()?;
        match request? {
            _ if self.anew => Some(FreeChange::More),
            request => loaded.is_too_large(request).then_some(FreeChange::Less),
        }
    }
}
