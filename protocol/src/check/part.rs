//! The checker of what a component takes on each of its devices.

use super::rule::{ComponentRule, Finder};
use super::{PlanRule, Violations};
use crate::division::Placement;
use crate::plan::{ALIGNMENT_BYTES, ComponentPlan, PartPlan, Plan, Residency, SegmentPlan};

/// Whether a part computes its weights in place from the file mapping.
fn is_mapped(component: &ComponentPlan, part: &PartPlan) -> bool {
    let elsewhere = component.placement() != Placement::Host;
    part.device.is_host() && (elsewhere || component.residency == Residency::Mapped)
}

/// What a segment has in a part; nothing where the plan does not say.
fn bytes_in(segment: &SegmentPlan, part: usize) -> u64 {
    segment.part_bytes.get(part).map_or(0, |bytes| bytes.0)
}

/// A part's sizes against the segments that it has.
pub(super) fn check_part(component: &ComponentPlan, index: usize, found: &mut Finder<'_>) {
    let part = &component.parts[index];
    let mapped = is_mapped(component, part);
    let of = |is_it: fn(Residency) -> bool| {
        let here = move |segment: &&SegmentPlan| segment.residencies.get(index).copied();
        let held = component.segments.iter().filter(move |s| !mapped && here(s).is_some_and(is_it));
        held.map(|segment| bytes_in(segment, index))
    };
    let sum = |is_it| of(is_it).fold(0u64, u64::saturating_add);
    let streamed = || of(Residency::is_streamed).filter(|&bytes| bytes > 0);
    let slots_max = streamed().count().min(component.lookahead as usize) as u64;
    let stated_slots = u64::from(part.slots);
    for (what, stated, expected) in [
        ("resident", part.resident_bytes.0, sum(|residency| residency == Residency::Resident)),
        ("lazy", part.lazy_bytes.0, sum(|residency| residency == Residency::Lazy)),
        ("a slot", part.slot_bytes.0, streamed().max().unwrap_or(0)),
        ("slots", stated_slots, stated_slots.clamp(slots_max.min(1), slots_max)),
    ] {
        let device = || part.device.clone();
        found.ensure(stated == expected, || ComponentRule::Part {
            device: device(),
            what,
            stated,
            expected,
        });
    }
    let bytes = part.compute_bytes.0;
    found.ensure(bytes.is_multiple_of(ALIGNMENT_BYTES), || ComponentRule::PartAlignment {
        device: part.device.clone(),
        bytes,
    });
}

/// The mapped bytes leave the alignment out, so that they are no sum of a plan's own parts.
pub(super) fn check_mapped(plan: &Plan, found: &mut Violations) {
    let mut held = 0u64;
    for component in &plan.components {
        let parts = component.parts.iter().enumerate();
        for (index, _) in parts.filter(|(_, part)| is_mapped(component, part)) {
            let bytes = component.segments.iter().map(|segment| bytes_in(segment, index));
            held = bytes.fold(held, u64::saturating_add);
        }
    }
    let stated = plan.host.mapped_bytes.0;
    found.ensure(stated <= held, || PlanRule::Mapped { stated, held });
}
