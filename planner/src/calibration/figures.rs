//! What was measured beside what would have been counted with, one figure after the other.

use protocol::calibration::Calibration;
use serde::Serialize;

use super::content::SpeedSection;
use crate::inventory::{Inventory, Rate, Source, Speeds};

/// A rate or a size of one processor, with what it was before.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// The device, or `host`.
    pub device: String,
    /// Its name, as in the calibration file; the unit is at its end.
    pub figure: &'static str,
    /// What this run found.
    pub measured: f64,
    /// What plans counted with before anything was measured.
    pub before: f64,
    /// How that was known; what is declared stays.
    pub before_source: Source,
}

/// All figures of an answer: the host's, then each device's. `inventory` is without any
/// calibration.
pub fn figures(inventory: &Inventory, measured: &Calibration) -> Vec<Figure> {
    let mut figures = Vec::new();
    let host = &inventory.host;
    let mut add = |device: &str, name, value: Option<f64>, before: Rate| {
        figures.extend(value.map(|measured| Figure {
            device: device.to_owned(),
            figure: name,
            measured,
            before: before.value,
            before_source: before.source,
        }));
    };
    add_speeds(&mut add, "host", &SpeedSection::of(&measured.host), &host.speeds);
    let storage = measured.storage_bytes_per_s;
    add("host", "storage_bytes_per_s", storage, host.storage_bytes_per_s);
    let page_cache = Some(measured.page_cache_bytes_per_s);
    add("host", "page_cache_bytes_per_s", page_cache, host.page_cache_bytes_per_s);
    for answer in &measured.devices {
        let Some(device) = inventory.device(&answer.id.0) else { continue };
        let (id, link, back) = (&device.id, answer.link_bytes_per_s, answer.link_back_bytes_per_s);
        add_speeds(&mut add, id, &SpeedSection::of(&answer.speeds), &device.speeds);
        add(id, "link_bytes_per_s", Some(link), device.link_bytes_per_s);
        add(id, "link_back_bytes_per_s", Some(back), device.link_back_bytes_per_s);
        let overhead = answer.overhead_bytes.map(|bytes| bytes.0 as f64);
        let before = device.overhead_bytes.0 as f64;
        add(id, "overhead_bytes", overhead, Rate { value: before, source: device.overhead_source });
    }
    figures
}

fn add_speeds(
    add: &mut impl FnMut(&str, &'static str, Option<f64>, Rate),
    device: &str,
    measured: &SpeedSection,
    before: &Speeds,
) {
    add(device, "f32_flops_per_s", measured.f32_flops_per_s, before.f32_flops_per_s);
    add(device, "half_flops_per_s", measured.half_flops_per_s, before.half_flops_per_s);
    let bf16 = before.bf16_flops_per_s.unwrap_or(before.half_flops_per_s);
    add(device, "bf16_flops_per_s", measured.bf16_flops_per_s, bf16);
    let integer = measured.integer_flops_per_s;
    let decoded = before.integer_flops_per_s.unwrap_or(before.half_flops_per_s);
    add(device, "integer_flops_per_s", integer, decoded);
    let attention = measured.attention_flops_per_s;
    add(device, "attention_flops_per_s", attention, before.attention_flops_per_s);
    let convolution = measured.convolution_flops_per_s;
    add(device, "convolution_flops_per_s", convolution, before.convolution_flops_per_s);
    add(device, "memory_bytes_per_s", measured.memory_bytes_per_s, before.memory_bytes_per_s);
    add(device, "starts_per_s", measured.starts_per_s, before.starts_per_s);
}
