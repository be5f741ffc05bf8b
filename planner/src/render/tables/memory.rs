//! The memory of a plan: devices by phases, each with a bar of its budget. Sizes are rounded for
//! people; the exact ones stand in the JSON document.

use protocol::plan::{DevicePlan, HostPlan, PhaseBytes};
use protocol::usage::{BusyMs, DeviceUsage, GpuUsage, MemorySource};
use protocol::{Bytes, Plan, UsageReport};

use super::{table, text_of};
use crate::render::bar::{bar, legend, percent};
use crate::solve::{PlanReport, shown_ms};

/// Phases of one memory that the plan uses.
struct MemoryPhases<'a> {
    id: &'a str,
    phases: &'a [PhaseBytes],
    fixed_bytes: Bytes,
    budget_bytes: Bytes,
}

/// The memories of a plan, with what was measured of them where it ran; then what of the devices it
/// does not use.
pub fn memory(plan: &Plan, report: &PlanReport, usage: Option<&UsageReport>) -> String {
    let mut header = vec!["", "phase", "", "used", "peak"];
    header.extend(["weights", "compute", "staging", "fixed"]);
    header.extend(usage.map(|_| "measured"));
    let mut rows = table(&header, 3);
    let (used, unused): (Vec<_>, Vec<_>) = plan.devices.iter().partition(|d| is_used(d));
    let memories = used.iter().map(|device| MemoryPhases::of_device(device));
    for memory in memories.chain([MemoryPhases::of_host(&plan.host)]) {
        for (index, entry) in memory.phases.iter().enumerate() {
            let mut row = vec![memory.label(index)];
            row.extend(memory.cells(entry));
            row.extend(usage.map(|usage| measured(usage, memory.id, entry)));
            rows.add_row(row);
        }
    }
    let mut text = format!("{}\n{}", legend(), text_of(&rows));
    for gpu in usage.iter().flat_map(|usage| &usage.gpus) {
        text.push_str(&format!("\n{}", of_gpu(gpu)));
    }
    for device in unused {
        text.push_str(&format!("\nnot used: {}{}", device.id, why_unused(device, report)));
    }
    text
}

fn is_used(device: &DevicePlan) -> bool {
    device.peak_bytes > Bytes::ZERO
}

fn why_unused(device: &DevicePlan, report: &PlanReport) -> String {
    let budget = format!(" ({}, budget {})", device.name, device.budget_bytes);
    // As the solver names what it leaves out altogether.
    let name = format!("anything on {}", device.id);
    match report.rejected.iter().find(|rejected| rejected.placement == name) {
        Some(rejected) => format!("{budget}: {}", rejected.because),
        None => budget,
    }
}

impl<'a> MemoryPhases<'a> {
    fn of_device(device: &'a DevicePlan) -> MemoryPhases<'a> {
        MemoryPhases {
            id: &device.id.0,
            phases: &device.phases,
            fixed_bytes: device.overhead_bytes,
            budget_bytes: device.budget_bytes,
        }
    }

    fn of_host(host: &'a HostPlan) -> MemoryPhases<'a> {
        MemoryPhases {
            id: "host",
            phases: &host.phases,
            fixed_bytes: host.job_bytes,
            budget_bytes: host.budget_bytes,
        }
    }

    /// What stands before a row: the memory's name before its first, its budget before its second.
    fn label(&self, row: usize) -> String {
        match (row, self.phases.len()) {
            (0, 1) => format!("{} {}", self.id, self.budget_bytes),
            (0, _) => self.id.to_owned(),
            (1, _) => format!("  {}", self.budget_bytes),
            _ => String::new(),
        }
    }

    fn cells(&self, entry: &PhaseBytes) -> [String; 8] {
        let PhaseBytes { phase, weights_bytes, compute_bytes, staging_bytes, peak_bytes } = entry;
        let uses = [*weights_bytes, *compute_bytes, *staging_bytes, self.fixed_bytes];
        let [weights, compute, staging, fixed] = uses.map(|bytes| match bytes {
            Bytes::ZERO => "-".to_owned(),
            bytes => bytes.to_string(),
        });
        [
            phase.to_string(),
            bar(uses.map(|bytes| bytes.0), self.budget_bytes.0),
            percent(peak_bytes.0, self.budget_bytes.0),
            peak_bytes.to_string(),
            weights,
            compute,
            staging,
            fixed,
        ]
    }
}

/// What was measured, beside what the plan says.
fn measured(usage: &UsageReport, id: &str, entry: &PhaseBytes) -> String {
    let device = usage.devices.iter().find(|device| device.id.0 == id);
    let phase = device.and_then(|d| d.phases.iter().find(|p| p.phase == entry.phase));
    let Some(phase) = phase else { return "not used".to_owned() };
    let (measured, planned) = (phase.measured_peak_bytes, entry.peak_bytes);
    match measured.cmp(&planned) {
        std::cmp::Ordering::Equal => "as planned".to_owned(),
        std::cmp::Ordering::Less => format!("{} less", planned - measured),
        std::cmp::Ordering::Greater => format!("{} more", measured - planned),
    }
}

/// How long a device worked in each phase, where it told.
pub fn busy(device: &DeviceUsage) -> Option<String> {
    let phases = device.phases.iter().filter_map(|usage| {
        let BusyMs { compute, weights, activations } = usage.busy_ms?;
        let [compute, weights, activations] = [compute, weights, activations].map(shown_ms);
        let phase = usage.phase;
        Some(format!("{phase} {compute} + weights {weights} + activations {activations}"))
    });
    let phases: Vec<String> = phases.collect();
    (!phases.is_empty()).then(|| format!("{} was busy: {}", device.id, phases.join("; ")))
}

/// What the process took of a GPU in all, beside what was planned.
pub fn of_gpu(gpu: &GpuUsage) -> String {
    let devices: Vec<&str> = gpu.devices.iter().map(|device| device.0.as_str()).collect();
    let source = match gpu.source {
        MemorySource::Process => "of this process",
        MemorySource::Free => "by what is free",
    };
    format!(
        "{} as NVML tells it {source}: {}, {} planned; context and libraries {}, {} planned",
        devices.join("&"),
        gpu.measured_peak_bytes,
        gpu.predicted_peak_bytes,
        gpu.measured_overhead_bytes,
        gpu.predicted_overhead_bytes
    )
}

#[cfg(test)]
mod tests {
    use protocol::usage::PhaseUsage;
    use protocol::{DeviceId, Phase};

    use super::*;
    use crate::render::testing::{device, plan};
    use crate::solve::Rejected;

    #[test]
    fn each_memory_has_its_phases_and_unused_devices_a_line() {
        let mut plan = plan();
        let mut idle = device("cuda1", [0; 3]);
        idle.name = "Card".to_owned();
        plan.devices.push(idle);
        let rejected = Rejected {
            placement: "anything on cuda1".to_owned(),
            because: "it sleeps".to_owned(),
            ..Rejected::default()
        };
        let report = PlanReport { rejected: vec![rejected], ..PlanReport::default() };
        let text = memory(&plan, &report, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + 3 + 3 + 1, "{text}");
        assert!(lines[2].starts_with("cuda0 ") && lines[2].contains("condition"), "{text}");
        assert!(lines[3].starts_with("  10.0 GiB"), "{text}");
        assert!(lines[2].contains("██████████▓▓▓▓▓▓▓▓▓▓  100%  10.0 GiB"), "{text}");
        assert!(lines[5].starts_with("host ") && lines[5].contains(" <1% "), "{text}");
        assert_eq!(lines[8], "not used: cuda1 (Card, budget 10.0 GiB): it sleeps");
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn a_gpu_is_told_as_a_whole() {
        let gpu = GpuUsage {
            devices: ["cuda0", "cuda1"].map(|id| DeviceId(id.to_owned())).to_vec(),
            source: MemorySource::Free,
            predicted_overhead_bytes: Bytes::mib(576),
            measured_overhead_bytes: Bytes::mib(300),
            predicted_peak_bytes: Bytes::gib(8),
            measured_peak_bytes: Bytes::gib(7),
        };
        let usage = UsageReport { gpus: vec![gpu], ..UsageReport::default() };
        let text = memory(&plan(), &PlanReport::default(), Some(&usage));
        let said = "cuda0&cuda1 as NVML tells it by what is free: 7.00 GiB, 8.00 GiB planned; \
                    context and libraries 300 MiB, 576 MiB planned";
        assert!(text.lines().any(|line| line == said), "{text}");
    }

    #[test]
    fn what_was_measured_is_told_as_a_difference() {
        let plan = plan();
        let measured = [Bytes::gib(10), Bytes::gib(5), Bytes::gib(7)];
        let phases = plan.devices[0].phases.iter().zip(measured);
        let phases = phases.map(|(entry, measured_peak_bytes)| PhaseUsage {
            phase: entry.phase,
            predicted_peak_bytes: entry.peak_bytes,
            measured_peak_bytes,
            busy_ms: None,
        });
        let phases: Vec<PhaseUsage> = phases.collect();
        assert_eq!(phases[1].phase, Phase::Denoise);
        let usage = UsageReport {
            devices: vec![DeviceUsage { id: DeviceId("cuda0".to_owned()), phases, idle: None }],
            ..UsageReport::default()
        };
        let text = memory(&plan, &PlanReport::default(), Some(&usage));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[2].ends_with("as planned"), "{text}");
        assert!(lines[3].ends_with("1.00 GiB less"), "{text}");
        assert!(lines[4].ends_with("3.00 GiB more"), "{text}");
        assert!(lines[5].ends_with("not used"), "{text}");
    }

    #[test]
    fn how_long_a_gpu_was_busy_is_told_by_phase() {
        let phase = |phase, busy_ms| PhaseUsage {
            phase,
            predicted_peak_bytes: Bytes::gib(1),
            measured_peak_bytes: Bytes::gib(1),
            busy_ms,
        };
        let worked = BusyMs { compute: 2500.0, weights: 40.0, activations: 0.25 };
        let phases = vec![phase(Phase::Condition, None), phase(Phase::Denoise, Some(worked))];
        let mut device = DeviceUsage { id: DeviceId("cuda0".to_owned()), phases, idle: None };
        let said = "cuda0 was busy: denoise 2.5 s + weights 40 ms + activations 0.25 ms";
        assert_eq!(busy(&device).as_deref(), Some(said));
        device.phases.pop();
        assert_eq!(busy(&device), None, "a host has no clock of its own");
    }
}
