//! From a calibration into an inventory: measured figures in the place of assumed ones.

use std::collections::BTreeMap;

use protocol::Bytes;

use super::Calibration;
use super::content::{CalibratedDevice, SpeedSection};
use super::key::DeviceKey;
use super::smooth::{Correction, within};
use crate::inventory::{Device, DeviceKind, HostFacts, Inventory, Rate, Source, Speeds};

impl Calibration {
    /// Puts what was measured into an inventory: rates and overhead of its devices, of the host
    /// where it is this machine, and the corrections of a `model`, by its path.
    ///
    /// A virtual device of which nothing was measured has its part of the host's measured speeds,
    /// still as an assumption.
    pub fn apply(&self, inventory: &mut Inventory, model: Option<&str>) {
        let keys: Vec<Option<DeviceKey>> =
            inventory.devices.iter().map(|device| DeviceKey::of(inventory, device)).collect();
        let Inventory { host, devices, .. } = inventory;
        let this_machine = self.machine.is(host);
        if this_machine {
            self.apply_to_host(host, model);
        }
        for (device, key) in devices.iter_mut().zip(keys) {
            if this_machine && is_assumed(device) {
                device.speeds = host.virtual_speeds(device.speed, device.threads);
            }
            if let Some(section) = key.and_then(|key| self.content.of(&key)) {
                apply_to_device(section, device, model);
            }
        }
        share_corrections(this_machine.then_some(host), devices);
    }

    fn apply_to_host(&self, host: &mut HostFacts, model: Option<&str>) {
        let section = &self.content.host;
        put(&mut host.storage_bytes_per_s, section.storage_bytes_per_s);
        put(&mut host.page_cache_bytes_per_s, section.page_cache_bytes_per_s);
        match self.machine.part(host) {
            None => put_speeds(&mut host.speeds, section.speeds, &section.correction, model),
            Some(part) => {
                if let Some(section) = self.content.of(&part) {
                    put_speeds(&mut host.speeds, section.speeds, &section.correction, model);
                }
            }
        }
    }
}

fn apply_to_device(section: &CalibratedDevice, device: &mut Device, model: Option<&str>) {
    put(&mut device.link_bytes_per_s, section.link_bytes_per_s);
    put(&mut device.link_back_bytes_per_s, section.link_back_bytes_per_s);
    put_speeds(&mut device.speeds, section.speeds, &section.correction, model);
    let declared = device.overhead_source == Source::Declared;
    if let (Some(overhead), false) = (section.overhead, declared) {
        device.overhead_bytes = if device.has_context() { overhead.bytes() } else { Bytes::ZERO };
        device.overhead_source = Source::Measured;
    }
}

fn put_speeds(
    speeds: &mut Speeds,
    measured: Option<SpeedSection>,
    corrections: &[Correction],
    model: Option<&str>,
) {
    let measured = measured.unwrap_or_default();
    // What a profile declares of half precision it declares of bf16 too.
    let half_is_free = speeds.half_flops_per_s.source != Source::Declared;
    put(&mut speeds.f32_flops_per_s, measured.f32_flops_per_s);
    put(&mut speeds.half_flops_per_s, measured.half_flops_per_s);
    if let (Some(measured), true) = (measured.bf16_flops_per_s, half_is_free) {
        speeds.bf16_flops_per_s = Some(Rate::measured(measured));
    }
    match &mut speeds.integer_flops_per_s {
        Some(rate) => put(rate, measured.integer_flops_per_s),
        none => *none = measured.integer_flops_per_s.map(Rate::measured),
    }
    put(&mut speeds.attention_flops_per_s, measured.attention_flops_per_s);
    put(&mut speeds.convolution_flops_per_s, measured.convolution_flops_per_s);
    put(&mut speeds.memory_bytes_per_s, measured.memory_bytes_per_s);
    put(&mut speeds.starts_per_s, measured.starts_per_s);
    let of_model = corrections.iter().filter(|correction| Some(&*correction.model) == model);
    speeds.corrections = of_model.map(|c| (c.component.clone(), c.ratio)).collect();
}

/// What a profile declares stays.
fn put(rate: &mut Rate, measured: Option<f64>) {
    if let (Some(measured), true) = (measured, rate.source != Source::Declared) {
        *rate = Rate::measured(measured);
    }
}

/// Whether a device is taken to compute as the host does.
fn is_assumed(device: &Device) -> bool {
    let Speeds { f32_flops_per_s, half_flops_per_s, memory_bytes_per_s, .. } = &device.speeds;
    let rates = [f32_flops_per_s, half_flops_per_s, memory_bytes_per_s];
    device.kind == DeviceKind::Virtual && rates.iter().all(|rate| rate.source == Source::Assumed)
}

/// Processors whose rates are wrong in the same way: by their kernels, and by whether the rates
/// were measured.
type ProcessorGroup<'a> = (&'a str, Source);

/// Gives a processor without a correction for a component the mean of those alike. Without it, a
/// device on which a component ran longer than predicted would look slower than its twin, on which
/// it never ran.
fn share_corrections(host: Option<&mut HostFacts>, devices: &mut [Device]) {
    let mut processors: Vec<(String, &mut Speeds)> = Vec::new();
    for device in devices {
        let kernels = match device.kind {
            DeviceKind::Virtual => String::new(),
            DeviceKind::Cuda => device.name.clone(),
        };
        processors.push((kernels, &mut device.speeds));
    }
    processors.extend(host.map(|host| (String::new(), &mut host.speeds)));

    // By likeness and component: the logarithms' sum, and their number.
    let mut known: BTreeMap<(ProcessorGroup<'_>, String), (f64, f64)> = BTreeMap::new();
    for (kernels, speeds) in &processors {
        for (component, ratio) in &speeds.corrections {
            let likeness = (kernels.as_str(), speeds.f32_flops_per_s.source);
            let (sum, count) = known.entry((likeness, component.clone())).or_default();
            *sum += ratio.ln();
            *count += 1.0;
        }
    }
    let means: Vec<((String, Source), String, f64)> = known
        .into_iter()
        .map(|(((kernels, source), component), (sum, count))| {
            ((kernels.to_owned(), source), component, within((sum / count).exp()))
        })
        .collect();
    for (kernels, speeds) in &mut processors {
        let likeness = (kernels.clone(), speeds.f32_flops_per_s.source);
        for (_, component, mean) in means.iter().filter(|(alike, ..)| *alike == likeness) {
            speeds.corrections.entry(component.clone()).or_insert(*mean);
        }
    }
}
