//! The checker of components: their order, where they are, when their weights are there.

use std::collections::BTreeSet;

use super::rule::{ComponentRule, Finder};
use super::{ListRule, Violations, part, segment};
use crate::division::Placement;
use crate::limits::{
    COMPONENTS_MAX, DEVICES_MAX, LOOKAHEAD_MAX, ROW_SHARE_MAX, SEGMENTS_MAX, STRING_BYTES_MAX,
};
use crate::phase::Phase;
use crate::plan::{ComponentPlan, DeviceId, Plan, Residency, SegmentPlan};
use crate::units::Bytes;

/// Checks the components of a plan.
pub(super) fn check_components(plan: &Plan, found: &mut Violations) {
    let count = plan.components.len();
    found.ensure((1..=COMPONENTS_MAX).contains(&count), || ListRule::Components { count });
    let mut names = BTreeSet::new();
    let mut phase = Phase::Load;
    for component in plan.components.iter().take(COMPONENTS_MAX) {
        let first = names.insert(&component.name);
        found.ensure(first, || ListRule::ComponentTwice { component: component.name.clone() });
        let finder = &mut Finder::new(component, found);
        finder.ensure(phase <= component.phase, || ComponentRule::Order);
        phase = component.phase;
        check_component(plan, component, finder);
    }
}

fn check_component(plan: &Plan, component: &ComponentPlan, found: &mut Finder<'_>) {
    let phase = component.phase;
    let timed = plan.job.timeline().contains(&phase);
    found.ensure(timed, || ComponentRule::Phase { phase });
    for text in [&component.name, &component.reason] {
        let length = text.len();
        found.ensure(length <= STRING_BYTES_MAX, || ComponentRule::Text { length });
    }
    for ms in [component.predicted_load_ms, component.predicted_compute_ms] {
        found.ensure(ms.is_finite() && ms >= 0.0, || ComponentRule::Predicted { ms });
    }
    check_devices(plan, component, found);
    check_parts(component, found);
    check_shares(component, found);
    check_items(plan, component, found);
    check_residency(plan, component, found);
    let count = component.segments.len();
    let few = (1..=SEGMENTS_MAX).contains(&count);
    found.ensure(few, || ComponentRule::Segments { count });
    // Sums of more than may be are of no use, and take time.
    if few && component.parts.len() <= DEVICES_MAX + 2 {
        segment::check_segments(component, found);
        (0..component.parts.len()).for_each(|index| part::check_part(component, index, found));
    }
}

fn check_devices(plan: &Plan, component: &ComponentPlan, found: &mut Finder<'_>) {
    let (placement, count) = (component.placement(), component.devices.len());
    let counts = match placement {
        Placement::Host | Placement::One => 1..=1,
        Placement::Row | Placement::Tensor | Placement::Items | Placement::Pipeline => {
            2..=DEVICES_MAX
        }
        Placement::Layer => 2..=DEVICES_MAX + 1,
    };
    found.ensure(counts.contains(&count), || ComponentRule::Devices { count, placement });
    let mut seen = BTreeSet::new();
    for device in component.devices.iter().take(DEVICES_MAX + 1) {
        let first = seen.insert(device);
        found.ensure(first, || ComponentRule::DeviceTwice { device: device.clone() });
        let known = plan.devices.iter().any(|d| d.id == *device);
        let takes_host = matches!(placement, Placement::Host | Placement::Layer);
        let can_be = if device.is_host() { takes_host } else { known };
        found.ensure(can_be, || ComponentRule::Device { device: device.clone(), placement });
    }
}

/// Its parts are on its devices, then on the host, where that does what a device cannot.
fn check_parts(component: &ComponentPlan, found: &mut Finder<'_>) {
    let devices = &component.devices;
    let planned = component.parts.iter().map(|part| &part.device);
    let there = planned.clone().take(devices.len()).eq(devices);
    found.ensure(there, || ComponentRule::PartsElsewhere);
    let host = DeviceId::host();
    let mut more = planned.skip(devices.len());
    let none_but_host = match (more.next(), more.next()) {
        (None, _) => true,
        (Some(device), None) => *device == host && !devices.contains(&host),
        (Some(_), Some(_)) => false,
    };
    found.ensure(none_but_host, || ComponentRule::PartsBeyond);
}

fn check_shares(component: &ComponentPlan, found: &mut Finder<'_>) {
    let Some(dealt) = component.division.shares() else { return };
    let (shares, devices) = (dealt.len(), component.devices.len());
    found.ensure(shares == devices, || ComponentRule::Shares { shares, devices });
    let in_range = dealt.iter().all(|share| (1..=ROW_SHARE_MAX).contains(share));
    found.ensure(in_range, || ComponentRule::Share);
}

/// Each device has items, or each group of a pipeline, all of them together the job's; only what
/// denoises has any.
fn check_items(plan: &Plan, component: &ComponentPlan, found: &mut Finder<'_>) {
    let Some(item_counts) = component.division.item_counts() else { return };
    let (counts, devices) = (item_counts.len(), component.devices.len());
    let is_replicated = component.division.is_replicated();
    let enough = if is_replicated { counts == devices } else { counts >= 2 };
    found.ensure(enough, || match is_replicated {
        true => ComponentRule::ItemCounts { counts, devices },
        false => ComponentRule::Groups { counts },
    });
    found.ensure(!item_counts.contains(&0), || ComponentRule::NoItems);
    let dealt: u64 = item_counts.iter().map(|&count| u64::from(count)).sum();
    let items = u64::from(plan.job.passes()) * u64::from(plan.job.batch);
    let phase = component.phase;
    found.ensure(phase == Phase::Denoise, || ComponentRule::ItemsIn { phase });
    found.ensure(dealt == items, || ComponentRule::Items { dealt, items });
    if !is_replicated || component.parts.len() > component.devices.len() {
        // A pipeline has each weight once; or the host has what some of the devices cannot compute
        // with.
        return;
    }
    for segment in component.segments.iter().take(SEGMENTS_MAX) {
        let alike = segment.part_bytes.windows(2).all(|pair| pair[0] == pair[1]);
        found.ensure(alike, || ComponentRule::Replicas { segment: segment.name.clone() });
    }
}

fn check_residency(plan: &Plan, component: &ComponentPlan, found: &mut Finder<'_>) {
    let residency = component.residency;
    let on_host = component.placement() == Placement::Host;
    found.ensure(on_host || residency != Residency::Mapped, || ComponentRule::Mapped);
    let streamed = residency == Residency::Streamed;
    found.ensure(!on_host || !streamed, || ComponentRule::StreamedToHost);
    let slots = if streamed { 1..=LOOKAHEAD_MAX } else { 0..=0 };
    let lookahead = component.lookahead;
    let has_slots = slots.contains(&lookahead);
    found.ensure(has_slots, || ComponentRule::Lookahead { residency, lookahead });
    for (index, segment) in component.segments.iter().enumerate().take(SEGMENTS_MAX) {
        let of_host = component.segment_device(index).is_some_and(DeviceId::is_host);
        let allowed: &[Residency] = match residency {
            _ if of_host && !on_host => &[Residency::Mapped],
            Residency::Streamed => {
                use Residency::{Lazy, Locked, Resident, Streamed};
                &[Streamed, Locked, Resident, Lazy]
            }
            Residency::Resident => &[Residency::Resident],
            Residency::Lazy => &[Residency::Lazy],
            Residency::Mapped => &[Residency::Mapped],
            Residency::Locked => &[],
        };
        let agrees = segment.residencies.iter().all(|residency| allowed.contains(residency));
        let name = || segment.name.clone();
        found.ensure(agrees, || ComponentRule::SegmentResidency { segment: name() });
        let alike = segment.residencies.windows(2).all(|pair| pair[0] == pair[1]);
        let of_each = segment.residencies.len() == component.devices.len()
            && (alike || component.division.is_on_each());
        found.ensure(of_each, || ComponentRule::DeviceResidencies { segment: name() });
    }
    let in_groups = component.placement() == Placement::Pipeline;
    found.ensure(!in_groups || !streamed, || ComponentRule::StreamedInGroups);
    let weighs = |s: &SegmentPlan| s.weights_bytes > Bytes::ZERO;
    let streams = component.segments.iter().any(|s| s.is_streamed() && weighs(s));
    found.ensure(streams == streamed, || ComponentRule::NotStreamed);
    let first = component.phase == plan.job.timeline()[0];
    let early = !component.prefetch
        || residency == Residency::Resident
        || (residency != Residency::Mapped && !first);
    found.ensure(early, || ComponentRule::Prefetch);
}
