//! The rules of components, for the checkers of their parts.

use super::{Violation, Violations};
use crate::division::Placement;
use crate::limits::ROW_SHARE_MAX;
use crate::phase::Phase;
use crate::plan::{ComponentPlan, DeviceId, Residency};
use crate::units::Bytes;

rules! {
    /// What holds of a component; told after its name.
    pub enum ComponentRule {
        Text { length: usize } = ": a component's text of {length} bytes",
        Phase { phase: Phase } = ": the job has no {phase} phase to compute in",
        Order = " stands after a later phase's component",
        Predicted { ms: f64 } = " is predicted to take {ms} ms",
        Devices { count: usize, placement: Placement } =
            " names {count} devices for placement {placement}",
        DeviceTwice { device: DeviceId } = " names {device} twice",
        Device { device: DeviceId, placement: Placement } =
            " with placement {placement} is on {device}, which cannot be",
        PartsElsewhere = ": its parts are on other devices",
        PartsBeyond = " has parts beyond its devices",
        Shares { shares: usize, devices: usize } = " has {shares} shares for {devices} devices",
        Share = ": a share is not within 1 to {ROW_SHARE_MAX}",
        ItemCounts { counts: usize, devices: usize } =
            " has {counts} counts of items for {devices} devices",
        Groups { counts: usize } = " has {counts} groups of items that follow one another",
        NoItems = " has a device or a group without items",
        ItemsIn { phase: Phase } = " is split by items in the {phase} phase, which has none",
        StreamedInGroups =
            " is streamed: groups that follow one another would need all weights once for each",
        Replicas { segment: String } = ": its devices have different weights of {segment}",
        Items { dealt: u64, items: u64 } = " deals out {dealt} items, each step has {items}",
        Mapped = " is mapped, and not on the host",
        StreamedToHost = " is streamed to the host",
        Lookahead { residency: Residency, lookahead: u32 } =
            ", {residency}, has a lookahead of {lookahead}",
        SegmentResidency { segment: String } = ": segment {segment} has another residency",
        DeviceResidencies { segment: String } =
            ": segment {segment} has other residencies than its devices",
        NotStreamed = " is streamed without a streamed segment",
        Prefetch = " has nothing to prefetch, or no phase to do it in",
        Segments { count: usize } = " has {count} segments",
        Placed { placed: usize, all: usize } = ": {placed} segments have a device of {all}",
        SegmentOrder = ": its segments are elsewhere, or in another order",
        Sum { held: u64, weights: u64 } = ": segments hold {held} B of {weights} B",
        TensorBytes = ": more tensor bytes than weights",
        SegmentName { length: usize } = ": a segment's name of {length} bytes",
        SegmentParts { segment: String, parts: usize } = ": segment {segment} has {parts} parts",
        SegmentAlignment { segment: String, bytes: u64 } =
            ": {bytes} B of {segment} is not aligned",
        SegmentElsewhere { segment: String, device: DeviceId } =
            ": weights of {segment} lie on {device}",
        SegmentSum { segment: String, held: u64, stated: u64 } =
            ": segment {segment} holds {held} B of {stated} B",
        Part { device: DeviceId, what: &'static str, stated: u64, expected: u64 } =
            " on {device}: {stated} for {what}, its segments give {expected}",
        PartAlignment { device: DeviceId, bytes: u64 } = " on {device}: {bytes} B is not aligned",
    }
}

/// Notes what one component breaks.
pub(super) struct Finder<'a> {
    component: &'a ComponentPlan,
    found: &'a mut Violations,
}

impl<'a> Finder<'a> {
    /// For a component, whose name stands with all that is found.
    pub(super) fn new(component: &'a ComponentPlan, found: &'a mut Violations) -> Finder<'a> {
        Finder { component, found }
    }

    pub(super) fn ensure(&mut self, holds: bool, rule: impl FnOnce() -> ComponentRule) {
        let component = &self.component.name;
        self.found
            .ensure(holds, || Violation::Component { component: component.clone(), rule: rule() });
    }

    pub(super) fn ensure_memory(&mut self, bytes: Bytes) {
        self.found.ensure_memory(&self.component.name, &[bytes]);
    }
}
