//! What a run teaches: by how much each component's calls were mispredicted, where that tells
//! something of a processor; and what the context of each GPU took.
//!
//! Nothing is learned from loads: how much of one came from the disk and how much from the page
//! cache is not known afterwards, so that a long one says nothing of either's rate. `berth
//! calibrate` measures those.

use protocol::plan::{ComponentPlan, PartPlan};
use protocol::usage::{ComponentUsage, GpuUsage};
use protocol::{Bytes, Plan, UsageReport};

use super::content::Content;
use super::key::{DeviceKey, Machine};
use super::limits::{CORRECTIONS_MAX, NAME_BYTES_MAX, OVERHEAD};
use super::smooth::{Correction, Overhead, within};
use crate::inventory::Inventory;

/// Part of a streamed component's predicted time up to which the way of its weights over a link is
/// taken to be hidden behind the computation. Where the link is nearer to being the bound, the time
/// says nothing of the processor.
const LINK_PART_MAX: f64 = 0.5;

/// How many times longer one component's calls took on one processor than its rates say.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredRatio {
    /// The device; `None` for the host with all of its cores.
    pub device: Option<DeviceKey>,
    /// Whose calls they were.
    pub component: String,
    /// The factor, over the rates alone.
    pub ratio: f64,
}

/// What a run teaches of the overhead of each GPU, where NVML told it and it makes sense.
pub fn overheads(inventory: &Inventory, usage: &UsageReport) -> Vec<(DeviceKey, Bytes)> {
    let overhead = |gpu: &GpuUsage| {
        let device = inventory.device(&gpu.devices.first()?.0)?;
        let bytes = gpu.measured_overhead_bytes.max(*OVERHEAD.start());
        OVERHEAD.contains(&bytes).then_some((DeviceKey::of(inventory, device)?, bytes))
    };
    usage.gpus.iter().filter_map(overhead).collect()
}

/// What a run teaches of times. `inventory` is the one that its plan was made for: its corrections
/// are in the predictions. A component over several processors teaches each of them the same.
pub fn lessons(
    machine: &Machine,
    inventory: &Inventory,
    plan: &Plan,
    usage: &UsageReport,
) -> Vec<MeasuredRatio> {
    let mut lessons = Vec::new();
    for component in &plan.components {
        let used = usage.components.iter().find(|used| used.name == component.name);
        let Some(ratio) = used.and_then(|used| misprediction(inventory, component, used)) else {
            continue;
        };
        for part in &component.parts {
            lessons.extend(lesson(machine, inventory, component, part, ratio));
        }
    }
    lessons
}

/// How many times longer than predicted a component computed, where both say something.
fn misprediction(
    inventory: &Inventory,
    component: &ComponentPlan,
    used: &ComponentUsage,
) -> Option<f64> {
    let predicted_ms = component.predicted_compute_ms;
    let ratio = used.compute_ms / predicted_ms;
    let telling = predicted_ms > 0.0 && used.compute_ms > 0.0 && ratio.is_finite();
    let links_ms = f64::from(used.calls) * slowest_link_ms(inventory, component);
    (telling && links_ms <= LINK_PART_MAX * predicted_ms).then_some(ratio)
}

/// How long the streamed weights of one call are on their way at the least.
fn slowest_link_ms(inventory: &Inventory, component: &ComponentPlan) -> f64 {
    let of_part = |(index, part): (usize, &PartPlan)| {
        let link = inventory.device(&part.device.0)?.link_bytes_per_s.value;
        let streamed = component
            .segments
            .iter()
            .filter(|s| s.residencies.get(index).is_some_and(|r| r.is_streamed()));
        let bytes: f64 = streamed.map(|segment| segment.part_bytes[index].0 as f64).sum();
        Some(1e3 * bytes / link)
    };
    component.parts.iter().enumerate().filter_map(of_part).fold(0.0, f64::max)
}

/// A host that is only imagined, and a device that nothing is kept of, learn nothing.
fn lesson(
    machine: &Machine,
    inventory: &Inventory,
    component: &ComponentPlan,
    part: &PartPlan,
    ratio: f64,
) -> Option<MeasuredRatio> {
    let (device, speeds) = if part.device.is_host() {
        let host = &inventory.host;
        machine.is(host).then_some((machine.part(host), &host.speeds))?
    } else {
        let device = inventory.device(&part.device.0)?;
        (Some(DeviceKey::of(inventory, device)?), &device.speeds)
    };
    let ratio = within(ratio * speeds.correction(&component.name));
    Some(MeasuredRatio { device, component: component.name.clone(), ratio })
}

impl Content {
    /// Takes in what was measured of a GPU's overhead.
    pub fn learn_overhead(&mut self, key: &DeviceKey, bytes: Bytes) {
        let section = self.section(key.clone());
        let first = Overhead::first(bytes);
        section.overhead = Some(section.overhead.map_or(first, |overhead| overhead.then(bytes)));
    }

    /// Refines the corrections of a model.
    pub fn learn(&mut self, model: &str, lessons: &[MeasuredRatio]) {
        for MeasuredRatio { device, component, ratio } in lessons {
            if model.len() + component.len() > NAME_BYTES_MAX {
                continue;
            }
            let corrections = match device {
                None => &mut self.host.correction,
                Some(key) => &mut self.section(key.clone()).correction,
            };
            let is_it = |c: &Correction| c.model == model && c.component == *component;
            let refined = match corrections.iter().position(is_it) {
                Some(index) => corrections.remove(index).then(*ratio),
                None => Correction::first(model, component, *ratio),
            };
            if corrections.len() >= CORRECTIONS_MAX {
                corrections.remove(0);
            }
            corrections.push(refined);
        }
    }
}
