//! What is counted and measured, as Prometheus reads it (serve.md §10): the main loop tells of each
//! event and action, the edge of each request. Pure bookkeeping: nothing here decides anything.
//!
//! Invariant: labels are bounded. Models are the configured ones, everything else a closed set.

mod ledger;
mod registry;
mod runs;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use protocol::Bytes;

use super::conditioning::ConditioningFigures;
use super::desk::action::{Action, Change, Note};
use super::desk::event::{DeskEvent, Said, SlotId, WriteId};
use ledger::{JobLedger, Moved};
use registry::{Figures, Labelled};
use runs::{SlotRuns, observe_work};

/// Writes whose answer is awaited at a time; more are not timed.
const WRITES_MAX: usize = 4096;

/// What a device holds now, for the gauges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// As plans call it.
    pub device: String,
    /// A GPU's own name, which stays the same over restarts; empty for others.
    pub uuid: String,
    /// By kind: `total`, `free`, `budget`, `margin`, `idle`, `planned_peak`, `measured_peak`,
    /// `ours`, `others`.
    pub bytes: Vec<(&'static str, Bytes)>,
}

/// All figures.
pub struct Metrics {
    registry: Registry,
    figures: Figures,
    state: Mutex<Followed>,
}

/// What has to be remembered between two events.
#[derive(Default)]
struct Followed {
    jobs: JobLedger,
    slots: HashMap<SlotId, SlotRuns>,
    writes: HashMap<WriteId, (&'static str, Instant)>,
    models: HashMap<String, &'static str>,
}

impl Metrics {
    /// Figures that begin now; `protocol` is the version of the executors' protocol.
    pub fn new(protocol: u32) -> Metrics {
        let (registry, figures) = registry::figures(protocol);
        Metrics { registry, figures, state: Mutex::default() }
    }

    /// Looks at what the desk is about to be told.
    pub fn observe_event(&self, event: &DeskEvent) {
        let mut state = self.lock();
        match event {
            DeskEvent::Runner { slot, said, .. } => {
                let run = state.slots.entry(*slot).or_default();
                self.said(run, said);
                if matches!(said, Said::Gone) {
                    state.slots.remove(slot);
                }
            }
            DeskEvent::Stored { write, .. } => {
                if let Some((op, began)) = state.writes.remove(write) {
                    let seconds = began.elapsed().as_secs_f64();
                    self.figures.store_seconds.with(&[("op", op)]).observe(seconds);
                }
            }
            _ => {}
        }
    }

    /// Looks at what the desk has done.
    pub fn observe_action(&self, action: &Action) {
        let mut state = self.lock();
        match action {
            Action::Run(slot, _, order) => {
                state.slots.entry(*slot).or_default().begins(&order.model);
            }
            Action::End(slot) => state.slots.entry(*slot).or_default().is_to_end = true,
            Action::Store(write, change) if state.writes.len() < WRITES_MAX => {
                let op = match change {
                    Change::Put(_) => "put",
                    Change::Remove(_) => "remove",
                    Change::Settings(_) => "settings",
                };
                state.writes.insert(*write, (op, Instant::now()));
            }
            Action::Tell(Note::State(view)) => {
                for moved in state.jobs.follow(view) {
                    self.moved(&moved);
                }
            }
            Action::Tell(Note::Model(model, slot)) => {
                let new = registry::slot_state(*slot);
                if let Some(old) = state.models.insert(model.clone(), new) {
                    self.figures.models.with(&[("state", old)]).dec();
                }
                self.figures.models.with(&[("state", new)]).inc();
            }
            _ => {}
        }
    }

    /// Counts an answered request. `route` is the address with its parameters' names.
    pub fn request(&self, route: &str, method: &'static str, code: u16, took: Duration) {
        let by = [("route", route), ("method", method)];
        self.figures.http_request_seconds.with(&by).observe(took.as_secs_f64());
        let code = code.to_string();
        let by = [("route", route), ("method", method), ("code", &code)];
        self.figures.http_requests.with(&by).inc();
    }

    /// Measures how long an event waited for the main loop.
    pub fn event_lag(&self, waited: Duration) {
        self.figures.event_lag_seconds.observe(waited.as_secs_f64());
    }

    /// Shows what devices hold; those that are not named any more keep their last figures.
    pub fn devices(&self, devices: &[DeviceMemory]) {
        for device in devices {
            for (what, bytes) in &device.bytes {
                let by = [("device", &*device.device), ("uuid", &*device.uuid), ("what", what)];
                self.figures.device_memory_bytes.with(&by).set(gauge(*bytes));
            }
        }
    }

    /// Shows what the host's RAM holds, by kind, and how much of it is page-locked.
    pub fn host(&self, bytes: &[(&'static str, Bytes)], pinned: Bytes) {
        for (what, bytes) in bytes {
            self.figures.host_memory_bytes.with(&[("what", what)]).set(gauge(*bytes));
        }
        self.figures.pinned_bytes.set(gauge(pinned));
    }

    /// Shows what is kept of text encoders' results, and how often it was of use.
    pub fn conditioning(&self, now: ConditioningFigures) {
        let ConditioningFigures { held, hits, misses, evictions } = now;
        let figures = &self.figures;
        figures.conditioning_cache_bytes.set(gauge(held));
        for (counter, count) in [
            (&figures.conditioning_hits, hits),
            (&figures.conditioning_misses, misses),
            (&figures.conditioning_evictions, evictions),
        ] {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// All of it, as OpenMetrics text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // A text takes all that is written to it.
        let _ = encode(&mut text, &self.registry);
        text
    }

    fn said(&self, run: &mut SlotRuns, said: &Said) {
        let figures = &self.figures;
        let model = run.model.clone();
        match said {
            Said::Planned { loads: true, .. } => {
                run.loads = Some(Instant::now());
                figures.model_loads.with(&[("model", &model)]).inc();
            }
            Said::Progress(_) => {
                if run.computes(said)
                    && let Some(began) = run.loads.take()
                {
                    let seconds = began.elapsed().as_secs_f64();
                    figures.model_load_seconds.with(&[("model", &model)]).observe(seconds);
                }
            }
            Said::Done(work) => observe_work(figures, &model, work),
            Said::Failed { failures, .. } => runs::observe_failures(figures, failures),
            Said::Gone => {
                let how = if run.is_to_end { "asked" } else { "died" };
                figures.executor_exits.with(&[("how", how)]).inc();
                if run.is_to_end && !model.is_empty() {
                    figures.model_evictions.with(&[("model", &model)]).inc();
                }
            }
            _ => {}
        }
    }

    fn moved(&self, moved: &Moved) {
        let figures = &self.figures;
        match moved {
            Moved::From(state, class) => {
                figures.open_jobs.with(&[("state", state), ("priority", class)]).dec();
            }
            Moved::To(state, class) => {
                figures.open_jobs.with(&[("state", state), ("priority", class)]).inc();
            }
            Moved::Started { class, waited_ms, predicted_ms } => {
                let waited = figures.queue_wait_seconds.with(&[("priority", class)]);
                waited.observe(waited_ms / 1e3);
                runs::ratio(figures, "wait", *waited_ms, *predicted_ms);
            }
            Moved::Ended(labels) => {
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(name, value)| (*name, &**value)).collect();
                figures.jobs.with(&labels).inc();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Followed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes as a gauge holds them: no memory has 2⁶³.
fn gauge(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
