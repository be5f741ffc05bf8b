//! Tables for people.

mod calibration;
mod curve;
mod explain;
mod memory;
mod plan;
mod settings;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use protocol::profile::{FileDescription, TypeBytes};
use protocol::{Bytes, ModelDescription};

use crate::demo;
use crate::inventory::{Inventory, Rate};

pub use calibration::calibration;
pub use curve::curve;
pub use explain::explanation;
pub use memory::{busy, of_gpu};
pub use plan::plan;
pub use settings::settings;

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

/// A table whose columns are all aligned to the left.
pub fn plain(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut shown = table(header, header.len());
    shown.add_rows(rows);
    text_of(&shown)
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
        shown_rate(host.speeds.f32_flops_per_s, "FLOP/s"),
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
            shown_rate(device.speeds.f32_flops_per_s, "FLOP/s"),
        ]);
    }
    text.push_str(&text_of(&rows));
    for device in &inventory.devices {
        let facts = [
            device.uuid.clone(),
            device.pcie.clone(),
            device.driver.as_ref().map(|driver| format!("driver {driver}")),
            device.part.as_ref().map(|part| format!("part {} of that GPU", part.index)),
            device.integrated.then(|| "integrated: shares the host's memory".to_owned()),
            device.missing.clone(),
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
    let mut text = format!("{} ({})", demo::shown_name(&description.model), description.family);
    for file in &description.files {
        text.push_str(&format!("\n{}: {}", file.path, given(file)));
        for TypeBytes { name, tensors, bytes } in &file.types {
            let tensors = match tensors {
                1 => "1 tensor".to_owned(),
                count => format!("{count} tensors"),
            };
            text.push_str(&format!("\n  {name}: {tensors}, {bytes}"));
        }
    }
    if !description.components.is_empty() {
        text.push('\n');
        text.push_str(&components(description));
    }
    for (index, lacks) in description.lacks.iter().enumerate() {
        let heading = if index == 0 { "\nlacks for a whole model:" } else { "" };
        text.push_str(&format!("{heading}\n  {lacks}"));
    }
    text
}

fn given(file: &FileDescription) -> String {
    let gives = match file.gives.as_slice() {
        [] => "gives nothing".to_owned(),
        gives => format!("gives {}", gives.join(", ")),
    };
    match file.holds.as_slice() {
        [] => gives,
        holds => format!("{gives}; also holds {}, unused", holds.join(", ")),
    }
}

fn components(description: &ModelDescription) -> String {
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
    // They are the DiT's: without it they are nobody's.
    if !description.lacks.is_empty() {
        return text_of(&rows);
    }
    let defaults = &description.defaults;
    format!(
        "{}\ndefaults: {}x{}, {} steps, {} text tokens",
        text_of(&rows),
        defaults.width,
        defaults.height,
        defaults.steps,
        defaults.max_sequence_length
    )
}
