//! Tables for people.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use protocol::plan::PhaseBytes;
use protocol::{Bytes, ModelDescription, Plan, Residency, UsageReport};

use crate::inventory::{Inventory, Rate};
use crate::solve::PlanReport;
use crate::solve::shown_ms;

/// A table whose columns from `numbers_from` on are aligned to the right.
fn table(header: &[&str], numbers_from: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.to_vec());
    for index in numbers_from..header.len() {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn text_of(table: &Table) -> String {
    // The preset pads each cell with a space on both sides.
    let line = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    table.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn shown_rate(rate: Rate, unit: &str) -> String {
    let (value, prefix) = match rate.value {
        v if v >= 1e12 => (v / 1e12, "T"),
        v if v >= 1e9 => (v / 1e9, "G"),
        v => (v / 1e6, "M"),
    };
    format!("{value:.1} {prefix}{unit} ({})", rate.source)
}

/// The host and its devices.
pub fn inventory(inventory: &Inventory, budgets: &[Bytes], host_budget: Bytes) -> String {
    let host = &inventory.host;
    let mut text = format!("{}: {}, {} cores\n", inventory.source, host.cpu, host.cores);
    let header = ["device", "name", "total", "free", "others", "budget", "link", "f32"];
    let mut rows = table(&header, 2);
    rows.add_row([
        "host".to_owned(),
        host.name.clone(),
        host.total_bytes.to_string(),
        host.available_bytes.to_string(),
        String::new(),
        host_budget.to_string(),
        String::new(),
        shown_rate(host.f32_flops_per_s, "FLOP/s"),
    ]);
    for (device, budget) in inventory.devices.iter().zip(budgets) {
        rows.add_row([
            device.id.clone(),
            device.name.clone(),
            device.total_bytes.to_string(),
            device.free_bytes.to_string(),
            device.used_by_others_bytes.to_string(),
            budget.to_string(),
            shown_rate(device.link_bytes_per_s, "B/s"),
            shown_rate(device.f32_flops_per_s, "FLOP/s"),
        ]);
    }
    text.push_str(&text_of(&rows));
    for device in &inventory.devices {
        let facts = [
            device.uuid.clone(),
            device.pcie.clone(),
            device.driver.as_ref().map(|driver| format!("driver {driver}")),
            device.integrated.then(|| "integrated: shares the host's memory".to_owned()),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        if !facts.is_empty() {
            text.push_str(&format!("\n{}: {}", device.id, facts.join(", ")));
        }
    }
    if let Some(limit) = host.cgroup_limit_bytes {
        text.push_str(&format!("\nhost: a cgroup limits memory to {limit}"));
    }
    if let Some(why) = &inventory.why_no_devices {
        text.push_str(&format!("\nno devices: {why}"));
    }
    text
}

/// What is in a model.
pub fn description(description: &ModelDescription) -> String {
    let mut text = format!("{} ({})\n", description.model, description.family);
    let header = ["component", "class", "types", "tensors", "parameters", "bytes", "unused"];
    let mut rows = table(&header, 3);
    for component in &description.components {
        let types: Vec<String> =
            component.storage.iter().map(|entry| entry.storage.to_string()).collect();
        rows.add_row([
            component.name.clone(),
            component.class.clone(),
            types.join("+"),
            component.tensors.to_string(),
            component.parameters.to_string(),
            component.tensor_bytes.to_string(),
            component.unused_bytes.to_string(),
        ]);
    }
    text.push_str(&text_of(&rows));
    let defaults = &description.defaults;
    text.push_str(&format!(
        "\ndefaults: {}x{}, {} steps, {} text tokens",
        defaults.width, defaults.height, defaults.steps, defaults.max_sequence_length
    ));
    for problem in &description.problems {
        text.push_str(&format!("\nproblem: {problem}"));
    }
    text
}

/// A plan, with what it used where it ran.
pub fn plan(plan: &Plan, usage: Option<&UsageReport>) -> String {
    let job = &plan.job;
    let mut text = format!(
        "{} ({}), {}x{}, {} steps, batch {}, {} text tokens\n\n",
        plan.model,
        plan.family,
        job.width,
        job.height,
        job.steps,
        job.batch,
        job.max_sequence_length
    );
    text.push_str(&components(plan));
    text.push_str("\n\n");
    text.push_str(&memory(plan, usage));
    if plan.components.iter().any(|component| component.residency == Residency::Mapped) {
        let mapped = plan.host.mapped_bytes;
        text.push_str(&format!("\n{mapped} of weights are computed in place from their files"));
    }
    let ms = &plan.predicted_ms;
    text.push_str(&format!(
        "\n\npredicted: {} to load, {} to condition, {} a step, {} to decode, {} in all",
        shown_ms(ms.load),
        shown_ms(ms.condition),
        shown_ms(ms.denoise_step),
        shown_ms(ms.decode),
        shown_ms(ms.total)
    ));
    text
}

fn components(plan: &Plan) -> String {
    let mut rows = table(&["component", "phase", "on", "residency", "weights", "compute"], 4);
    for component in &plan.components {
        let on: Vec<&str> = component.devices.iter().map(|device| device.0.as_str()).collect();
        rows.add_row([
            component.name.clone(),
            component.phase.to_string(),
            on.join("&"),
            component.residency.to_string(),
            component.weights_bytes.to_string(),
            component.compute_bytes.to_string(),
        ]);
    }
    text_of(&rows)
}

fn memory(plan: &Plan, usage: Option<&UsageReport>) -> String {
    let mut header =
        vec!["device", "phase", "weights", "compute", "staging", "fixed", "peak", "budget"];
    if usage.is_some() {
        header.push("measured");
    }
    let mut rows = table(&header, 2);
    let host = &plan.host;
    let host = ("host".to_owned(), &host.phases, host.job_bytes, host.budget_bytes);
    let devices = plan.devices.iter();
    let devices = devices.map(|d| (d.id.to_string(), &d.phases, d.overhead_bytes, d.budget_bytes));
    for (id, phases, fixed, budget) in devices.chain([host]) {
        for entry in phases {
            let mut row = vec![
                id.clone(),
                entry.phase.to_string(),
                entry.weights_bytes.to_string(),
                entry.compute_bytes.to_string(),
                entry.staging_bytes.to_string(),
                fixed.to_string(),
                entry.peak_bytes.to_string(),
                budget.to_string(),
            ];
            if let Some(usage) = usage {
                row.push(measured(usage, &id, entry));
            }
            rows.add_row(row);
        }
    }
    text_of(&rows)
}

fn measured(usage: &UsageReport, id: &str, entry: &PhaseBytes) -> String {
    let device = usage.devices.iter().find(|device| device.id.0 == id);
    let phase = device.and_then(|d| d.phases.iter().find(|p| p.phase == entry.phase));
    match phase {
        Some(phase) if phase.measured_peak_bytes == entry.peak_bytes => "as planned".to_owned(),
        Some(phase) => format!("{} B", phase.measured_peak_bytes.0),
        None => "not used".to_owned(),
    }
}

/// Why a plan is as it is.
pub fn explanation(plan: &Plan, report: &PlanReport) -> String {
    let mut text = String::from("why:");
    for component in &plan.components {
        text.push_str(&format!("\n  {}: {}", component.name, component.reason));
    }
    text.push_str("\nrejected:");
    for rejected in &report.rejected {
        text.push_str(&format!("\n  {}: {}", rejected.placement, rejected.because));
    }
    text
}
