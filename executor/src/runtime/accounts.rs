//! What a job used: peaks by device and phase, and times.

use std::collections::BTreeMap;

use protocol::usage::{BusyMs, ComponentUsage, DeviceUsage, PhaseUsage, UsageReport};
use protocol::{Bytes, DeviceId, MeasuredMs, Phase, PhaseMs, Plan};

use super::gpus::SeenGpu;

/// Measurements of one job.
#[derive(Debug, Default)]
pub struct Accounts {
    /// Time spent waiting for weights, in milliseconds.
    pub load_ms: f64,
    /// Times of the components that ran or were loaded, in the order of the plan.
    pub components: Vec<ComponentUsage>,
    gpus: Vec<SeenGpu>,
    peaks: BTreeMap<(DeviceId, Phase), Bytes>,
    busy: BTreeMap<(DeviceId, Phase), BusyMs>,
    phases_ms: PhaseMs,
}

impl Accounts {
    /// Records the most that a device held in a phase.
    pub fn record_peak(&mut self, device: &DeviceId, phase: Phase, peak: Bytes) {
        self.peaks.insert((device.clone(), phase), peak);
    }

    /// Records how long a device worked in a phase.
    pub fn record_busy(&mut self, device: &DeviceId, phase: Phase, busy: BusyMs) {
        self.busy.insert((device.clone(), phase), busy);
    }

    /// Records what GPUs showed at the end of a phase.
    pub fn record_gpus(&mut self, seen: Vec<SeenGpu>) {
        for gpu in seen {
            match self.gpus.iter_mut().find(|known| known.devices == gpu.devices) {
                Some(known) => known.join(&gpu),
                None => self.gpus.push(gpu),
            }
        }
    }

    /// Records how long a phase computed.
    pub fn record_ms(&mut self, phase: Phase, ms: f64) {
        self.phases_ms[phase] = ms;
    }

    /// The report beside the plan's figures.
    pub fn report(&self, plan: &Plan, total_ms: f64) -> UsageReport {
        let host = (DeviceId::host(), &plan.host.phases);
        let devices = plan.devices.iter().map(|device| (device.id.clone(), &device.phases));
        let devices = devices.chain([host]).filter_map(|(id, predicted)| {
            let phases: Vec<PhaseUsage> = predicted
                .iter()
                .filter_map(|entry| {
                    let key = (id.clone(), entry.phase);
                    let measured = self.peaks.get(&key)?;
                    Some(PhaseUsage {
                        phase: entry.phase,
                        predicted_peak_bytes: entry.peak_bytes,
                        measured_peak_bytes: *measured,
                        busy_ms: self.busy.get(&key).copied(),
                    })
                })
                .collect();
            (!phases.is_empty()).then_some(DeviceUsage { id, phases, idle: None })
        });
        let gpus = self.gpus.iter().map(|seen| seen.usage(plan));
        let mut phases = self.phases_ms;
        phases[Phase::Load] = self.load_ms;
        phases[Phase::Denoise] /= f64::from(plan.job.calls_run());
        UsageReport {
            devices: devices.collect(),
            components: self.components.clone(),
            gpus: gpus.collect(),
            measured_ms: MeasuredMs { phases, total: total_ms },
        }
    }
}
