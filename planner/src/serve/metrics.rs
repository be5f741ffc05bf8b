//! What is counted and measured, as Prometheus reads it (serve.md §10): the main loop tells of each
//! event and action, the edge of each request. Pure bookkeeping: nothing here decides anything.
//!
//! Invariant: labels are bounded. Models are the configured ones, everything else a closed set.

mod ledger;
mod plans;
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
use plans::{DeviceNames, gauge};
use registry::{Figures, Labelled};
use runs::{SlotRuns, observe_said};

/// Writes whose answer is awaited at a time; more are not timed.
const WRITES_MAX: usize = 4096;

/// What a device holds now, for the gauges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMemory {
    /// As plans call it.
    pub device: String,
    /// A GPU's own name, which stays the same over restarts; empty for others.
    pub uuid: String,
    /// By kind: `total`, `free`, `idle`, `margin`, `ours`, `others`. What plans say and runs
    /// measure is added to them.
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
    devices: DeviceNames,
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
                let state = &mut *state;
                let run = state.slots.entry(*slot).or_default();
                observe_said(&self.figures, &state.devices, run, said);
                if matches!(said, Said::Gone) {
                    state.slots.remove(slot);
                }
                if matches!(said, Said::Planned { .. } | Said::Failed { .. } | Said::Gone) {
                    let plans = state.slots.values().filter_map(|run| run.plan.as_deref());
                    plans::show(&self.figures, &state.devices, plans);
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
                state.slots.entry(*slot).or_default().begins(&order.model, order.job.is_some());
            }
            Action::End(slot, reason) => {
                state.slots.entry(*slot).or_default().is_to_end = Some(*reason);
            }
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

    /// Measures how long a client's question waited for the main loop; all events wait in the same
    /// queue.
    pub fn event_lag(&self, waited: Duration) {
        self.figures.event_lag_seconds.observe(waited.as_secs_f64());
    }

    /// Shows what devices hold; those that are not named any more keep their last figures.
    pub fn devices(&self, devices: &[DeviceMemory]) {
        let mut state = self.lock();
        for device in devices {
            state.devices.insert(device.device.clone(), device.uuid.clone());
            for (what, bytes) in &device.bytes {
                plans::set_device(&self.figures, &state.devices, &device.device, what, *bytes);
            }
        }
    }

    /// Shows what the host's RAM has, by kind: `total`, `free`.
    pub fn host(&self, bytes: &[(&'static str, Bytes)]) {
        for (what, bytes) in bytes {
            plans::set_host(&self.figures, what, *bytes);
        }
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

#[cfg(test)]
mod tests;
