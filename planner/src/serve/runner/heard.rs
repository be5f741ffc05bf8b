//! What a run tells, on its way to the desk.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use protocol::Plan;
use serde_json::Value;

use super::super::desk::event::{PreviewImage, Said};
use super::super::shared::ServedHost;
use super::switch::RunSwitch;
use super::told::RunTeller;
use crate::inventory::Inventory;
use crate::job::JobEvent;
use crate::render::document::PlanDocument;
use crate::solve::PlanReport;

/// Hears what a run tells.
pub struct HeardRun<'a> {
    teller: &'a RunTeller,
    switch: &'a RunSwitch,
    shared: &'a ServedHost,
    /// Of the plan that is loaded, or about to be.
    pub document: Option<Arc<Value>>,
    /// Whether the desk knows of the plan.
    told: bool,
    /// When the last plan was about to be loaded, if any was.
    load_began: Option<Instant>,
    ended_at: Option<Instant>,
}

impl<'a> HeardRun<'a> {
    /// One that has heard nothing yet; `document` is of the plan that is loaded.
    pub fn new(
        teller: &'a RunTeller,
        switch: &'a RunSwitch,
        shared: &'a ServedHost,
        document: Option<Arc<Value>>,
    ) -> HeardRun<'a> {
        HeardRun { teller, switch, shared, document, told: false, load_began: None, ended_at: None }
    }

    /// Takes up what the run tells; it is to end where the order was cancelled. `inventory` is what
    /// its last plan was made for.
    pub fn hear(&mut self, event: JobEvent, inventory: Option<&Inventory>) -> ControlFlow<()> {
        match event {
            JobEvent::Planned { plan, report } => {
                if self.switch.is_cancelled() {
                    return ControlFlow::Break(());
                }
                self.planned(&plan, &report, inventory);
            }
            JobEvent::Progress(progress) => {
                if let (false, Some(plan)) = (self.told, self.document.clone()) {
                    self.told = true;
                    self.teller.tell(Said::Planned { plan, loads: false });
                }
                self.teller.in_phase(progress.phase);
                self.teller.tell(Said::Progress(progress));
            }
            JobEvent::Preview { width, height, pixels } => {
                let preview = Arc::new(PreviewImage { width, height, pixels });
                self.teller.tell(Said::Preview(preview));
            }
            JobEvent::Retrying { because, device } => {
                self.document = None;
                if let (Some(device), Some(inventory)) = (device, inventory) {
                    self.shared.device_failed(inventory, &device, &because);
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

    fn planned(&mut self, plan: &Plan, report: &PlanReport, inventory: Option<&Inventory>) {
        self.teller.planned(plan.generation);
        self.load_began = Some(Instant::now());
        self.ended_at = None;
        let document = inventory.and_then(|inventory| {
            serde_json::to_value(PlanDocument::new(plan, report, inventory)).ok()
        });
        self.document = document.map(Arc::new);
        if let Some(plan_document) = self.document.clone() {
            self.told = true;
            let loads = plan.keeps_weights_of.is_none();
            self.teller.tell(Said::Planned { plan: plan_document, loads });
        }
    }
}
