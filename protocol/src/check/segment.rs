//! The checker of a component's segments: where they compute, and their weights.

use super::rule::{ComponentRule, Finder};
use super::runs;
use crate::limits::STRING_BYTES_MAX;
use crate::plan::{ALIGNMENT_BYTES, ComponentPlan};

/// Checks the segments against each other and against the component's own sums.
pub(super) fn check_segments(component: &ComponentPlan, found: &mut Finder<'_>) {
    check_layers(component, found);
    (0..component.segments.len()).for_each(|index| check_segment(component, index, found));
    let held = component.segments.iter().map(|segment| segment.weights_bytes.0);
    let held = held.fold(0u64, u64::saturating_add);
    let weights = component.weights_bytes;
    found.ensure(held == weights.0, || ComponentRule::Sum { held, weights: weights.0 });
    found.ensure(component.tensor_bytes <= weights, || ComponentRule::TensorBytes);
    found.ensure_memory(weights);
}

/// Layers name each segment's device once, and lie together, in the order of the devices.
fn check_layers(component: &ComponentPlan, found: &mut Finder<'_>) {
    let Some(segments) = component.division.segments() else { return };
    let (placed, all) = (segments.len(), component.segments.len());
    found.ensure(placed == all, || ComponentRule::Placed { placed, all });
    let order = runs(segments.iter().map(|&lane| lane as usize)).into_iter();
    let in_order = order.eq(0..component.devices.len());
    found.ensure(in_order, || ComponentRule::SegmentOrder);
}

fn check_segment(component: &ComponentPlan, index: usize, found: &mut Finder<'_>) {
    let (segment, on) = (&component.segments[index], component.segment_device(index));
    let name = || segment.name.clone();
    let length = segment.name.len();
    found.ensure(length <= STRING_BYTES_MAX, || ComponentRule::SegmentName { length });
    let parts = segment.part_bytes.len();
    let has_all = parts == component.parts.len();
    found.ensure(has_all, || ComponentRule::SegmentParts { segment: name(), parts });
    let mut held = 0u64;
    for (part, bytes) in component.parts.iter().zip(&segment.part_bytes) {
        let (device, bytes) = (&part.device, bytes.0);
        let aligned = bytes.is_multiple_of(ALIGNMENT_BYTES);
        found.ensure(aligned, || ComponentRule::SegmentAlignment { segment: name(), bytes });
        // The host takes what a device cannot do; else only rows and replicas lie elsewhere than
        // their segment.
        let on_each = component.division.is_on_each();
        let belongs = on_each || Some(device) == on || device.is_host();
        found.ensure(belongs || bytes == 0, || ComponentRule::SegmentElsewhere {
            segment: name(),
            device: device.clone(),
        });
        held = held.saturating_add(bytes);
    }
    let stated = segment.weights_bytes.0;
    found.ensure(held == stated, || ComponentRule::SegmentSum { segment: name(), held, stated });
}
