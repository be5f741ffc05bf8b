//! The tables of a plan: where components are, what that takes, and what it took.

use protocol::plan::{ComponentPlan, PartPlan, SegmentPlan};
use protocol::{Bytes, Division, Phase, Plan, Residency, UsageReport};

use super::memory::memory;
use super::{table, text_of};
use crate::demo::shown_name;
use crate::render::advice;
use crate::solve::{PlanReport, shown_ms, slots};

/// A plan, with what it used where it ran.
pub fn plan(plan: &Plan, report: &PlanReport, usage: Option<&UsageReport>) -> String {
    let job = &plan.job;
    let mut text = format!(
        "{} ({}), {}x{}, {} steps, batch {}, {} text tokens\n",
        shown_name(&plan.model),
        plan.family,
        job.width,
        job.height,
        job.steps,
        job.batch,
        job.max_sequence_length
    );
    text.push_str(&options(plan));
    text.push('\n');
    text.push_str(&components(plan));
    text.push_str("\n\n");
    text.push_str(&memory(plan, report, usage));
    if plan.host.mapped_bytes > Bytes::ZERO {
        let mapped = plan.host.mapped_bytes;
        text.push_str(&format!(
            "\n{mapped} of weights are computed in place from their files: page cache, in no budget"
        ));
    }
    text.push_str("\n\n");
    text.push_str(&predicted(plan));
    text.push_str(&advice::lines(plan, &report.advice));
    text
}

/// What the job is expected to take.
fn predicted(plan: &Plan) -> String {
    let ms = &plan.predicted_ms;
    let part = |&phase: &Phase| match phase {
        Phase::Denoise => {
            let (steps, calls) = (plan.job.steps_run(), plan.job.calls_run());
            // Where the model is called more often than there are steps, its calls take that.
            let what = if calls == steps { "steps" } else { "model calls" };
            format!("{calls} {what} of {}", shown_ms(ms.phases[phase]))
        }
        _ => format!("{} to {phase}", shown_ms(ms.phases[phase])),
    };
    let parts: Vec<String> = [Phase::Load].iter().chain(plan.job.timeline()).map(part).collect();
    let next = match ms.next_total {
        0.0 => String::new(),
        next => format!(", {} for the next one", shown_ms(next)),
    };
    format!("predicted: {} from start to picture{next}\n  {}", shown_ms(ms.total), parts.join(", "))
}

fn components(plan: &Plan) -> String {
    let mut rows = table(&["component", "phase", "on", "residency", "weights", "compute"], 4);
    for component in &plan.components {
        let on: Vec<&str> = component.devices.iter().map(|device| device.0.as_str()).collect();
        let compute: Bytes = component.parts.iter().map(|part| part.compute_bytes).sum();
        rows.add_row([
            component.name.clone(),
            component.phase.to_string(),
            on.join("&"),
            residency(component),
            component.weights_bytes.to_string(),
            compute.to_string(),
        ]);
        let several = component.parts.len() > 1;
        for (index, part) in component.parts.iter().enumerate().filter(|_| several) {
            let weights: Bytes = component.segments.iter().map(|s| s.part_bytes[index]).sum();
            rows.add_row([
                String::new(),
                String::new(),
                format!("  {}", part.device),
                share(component, index, part) + &ring(component, index, part),
                weights.to_string(),
                part.compute_bytes.to_string(),
            ]);
        }
    }
    text_of(&rows)
}

/// When a component's weights are there.
fn residency(component: &ComponentPlan) -> String {
    let mut text = match component.division {
        Division::One => String::new(),
        Division::Layer { .. } => "layers, ".to_owned(),
        Division::Row { .. } => "rows, ".to_owned(),
        Division::Tensor { .. } => "heads, ".to_owned(),
        Division::Items { .. } => "items, ".to_owned(),
        Division::Pipeline { .. } => "pipeline, ".to_owned(),
    };
    text.push_str(&component.residency.to_string());
    if component.residency == Residency::Streamed {
        let streamed = component.segments.iter().filter(|s| s.is_streamed());
        let (streamed, all) = (streamed.count(), component.segments.len());
        text.push_str(&format!(" {streamed} of {all}, {}", slots(component.lookahead)));
        match locked(component) {
            0 => {}
            count => text.push_str(&format!(", {count} locked")),
        }
        let lazy = component.segments.iter().any(|s| s.residencies.contains(&Residency::Lazy));
        text.push_str(if lazy { ", others lazy" } else { "" });
    }
    if component.prefetch {
        text.push_str(", loaded early");
    }
    text
}

/// How many of its segments are streamed from page-locked copies.
pub fn locked(component: &ComponentPlan) -> usize {
    component.segments.iter().filter(|s| s.residencies.contains(&Residency::Locked)).count()
}

/// What of a component is on one of its devices.
fn share(component: &ComponentPlan, index: usize, part: &PartPlan) -> String {
    if index >= component.devices.len() {
        return "what the device cannot do".to_owned();
    }
    if let Some(shares) = component.division.row_shares() {
        let all: u32 = shares.iter().sum();
        return format!("{} of {all} rows", shares[index]);
    }
    if let Some(shares) = component.division.tensor_shares() {
        let all: u32 = shares.iter().sum();
        return format!("share {} of {all}", shares[index]);
    }
    let segments = 0..component.segments.len();
    let segments = segments.filter(|s| component.division.lane(*s) == Some(index)).count();
    match (component.division.item_counts(), component.division.is_replicated()) {
        (Some(counts), true) => {
            let all: u32 = counts.iter().sum();
            return format!("{} of {all} items", counts[index]);
        }
        (Some(counts), false) => return format!("{segments} segments, {} groups", counts.len()),
        (None, _) => {}
    }
    let mapped = if part.device.is_host() { ", mapped" } else { "" };
    format!("{segments} segments{mapped}")
}

/// What one of a split's devices streams, where others have another number of segments or slots.
fn ring(component: &ComponentPlan, index: usize, part: &PartPlan) -> String {
    let on = |device: usize| {
        let streams = |s: &&SegmentPlan| {
            s.residencies[device].is_streamed() && s.part_bytes[device] > Bytes::ZERO
        };
        component.segments.iter().filter(streams).count()
    };
    let devices = component.devices.len();
    let rings: Vec<(usize, u32)> =
        (0..devices).map(|device| (on(device), component.parts[device].slots)).collect();
    let alike = match component.division.is_on_each() {
        true => rings.windows(2).all(|pair| pair[0] == pair[1]),
        // How many segments each has is another number anyway.
        false => rings.iter().all(|(on, slots)| component.lookahead.min(*on as u32) == *slots),
    };
    match rings.get(index) {
        Some((0, _)) if !alike => ", none streamed".to_owned(),
        Some((streamed, _)) if !alike => format!(", {streamed} streamed, {}", slots(part.slots)),
        _ => String::new(),
    }
}

/// What beside the sizes decides what is computed.
fn options(plan: &Plan) -> String {
    let options = &plan.options;
    let mut text = String::new();
    if let Some(tile) = options.vae_tile {
        let (width, height, overlap) = (tile.width, tile.height, tile.overlap);
        text.push_str(&format!("VAE in tiles of {width}x{height}, overlap {overlap}\n"));
    }
    if let Some(storage) = options.weights_as {
        text.push_str(&format!("weights as if stored in {storage}; there are no such files\n"));
    }
    if options.exact_matmul {
        text.push_str("all weights are multiplied as f32\n");
    }
    for lora in &options.loras {
        text.push_str(&format!("LoRA {} at {}\n", lora.path, lora.weight));
    }
    if !options.loras.is_empty() && !options.lora_runtime.is_empty() {
        let names = options.lora_runtime.join(", ");
        text.push_str(&format!("LoRA products are added while these run: {names}\n"));
    }
    text
}
