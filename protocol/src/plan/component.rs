//! One component's assignment: where it computes, when its weights are there, what that takes.

mod document;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::device::DeviceId;
use crate::division::{Division, Placement};
use crate::phase::Phase;
use crate::units::Bytes;

/// Stream slots where nothing else is said: one is computed from while the next is copied.
pub const LOOKAHEAD: u32 = 2;

/// The assignment of one component.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "document::ComponentDocument")]
pub struct ComponentPlan {
    /// The component's name, as `dit`.
    pub name: String,
    /// The phase in which it computes.
    pub phase: Phase,
    /// The devices it computes on, in order. The first of a row split, and of a tensor split, holds
    /// all that is not split.
    pub devices: Vec<DeviceId>,
    /// What of it computes on which of them.
    pub division: Division,
    /// When its weights are there.
    pub residency: Residency,
    /// For [`Residency::Streamed`], the most slots that its ring has on any device; else 0.
    pub lookahead: u32,
    /// Whether its weights are on their way before its phase: resident ones while the phases before
    /// it compute, lazy ones during the phase just before it, which then holds them too.
    pub prefetch: bool,
    /// What it takes on each of its devices, in their order; then on the host, where that computes
    /// what a device cannot.
    pub parts: Vec<PartPlan>,
    /// Its segments in order.
    pub segments: Vec<SegmentPlan>,
    /// Its weights as held in memory, on all devices: tensor bytes and alignment.
    pub weights_bytes: Bytes,
    /// Its weights as in the file.
    pub tensor_bytes: Bytes,
    /// Waiting for the weights that it holds, in milliseconds, as `ComponentUsage::load_ms` will
    /// count it.
    pub predicted_load_ms: f64,
    /// Its calls, in milliseconds, as `ComponentUsage::compute_ms` will count them: with the wait
    /// for streamed weights and with what crosses between devices. 0 where nothing is predicted.
    pub predicted_compute_ms: f64,
    /// Why this assignment was chosen.
    pub reason: String,
}

impl ComponentPlan {
    /// Its placement's name in documents and tables.
    pub fn placement(&self) -> Placement {
        self.division.placement(self.devices.first().is_some_and(DeviceId::is_host))
    }

    /// Where a segment computes; for a row split or a tensor split, the device of all that is not
    /// split. `None` where the plan does not say.
    pub fn segment_device(&self, segment: usize) -> Option<&DeviceId> {
        self.devices.get(self.division.lane(segment)?)
    }

    /// Page-locked copies of its streamed weights, for all of its devices.
    pub fn locked_bytes(&self) -> Bytes {
        let parts = self.segments.iter().flat_map(|s| s.residencies.iter().zip(&s.part_bytes));
        let locked = parts.filter(|(residency, _)| **residency == Residency::Locked);
        Bytes(locked.fold(0, |sum, (_, bytes)| sum.saturating_add(bytes.0)))
    }
}

/// What a component takes on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartPlan {
    /// The device.
    pub device: DeviceId,
    /// Weights held in all phases.
    pub resident_bytes: Bytes,
    /// Weights held in the component's phase.
    pub lazy_bytes: Bytes,
    /// Size of one stream slot: the largest of the segments that pass through the ring here.
    /// Smaller ones take their own bytes of the ring only.
    pub slot_bytes: Bytes,
    /// Stream slots: no more than the lookahead, nor than the streamed segments here.
    pub slots: u32,
    /// Activations and workspaces, while it runs.
    pub compute_bytes: Bytes,
}

impl PartPlan {
    /// The ring of slots.
    pub fn staging_bytes(&self) -> Bytes {
        Bytes(self.slot_bytes.0.saturating_mul(u64::from(self.slots)))
    }
}

/// The assignment of one segment. Where it computes is said by its component's division.
#[derive(Debug, Clone, PartialEq)]
pub struct SegmentPlan {
    /// The segment's name, usually its block's.
    pub name: String,
    /// When its weights are there, on each of the component's devices. They are alike but where
    /// each device has some of every segment ([`Division::is_on_each`]).
    pub residencies: Vec<Residency>,
    /// Its weights as held in memory, on all devices.
    pub weights_bytes: Bytes,
    /// The same by part of the component.
    pub part_bytes: Vec<Bytes>,
}

impl SegmentPlan {
    /// One word for all devices: that it is streamed, where any of them streams it.
    pub fn residency(&self) -> Residency {
        self.residencies.iter().copied().max().unwrap_or(Residency::Resident)
    }

    /// Whether any device streams it.
    pub fn is_streamed(&self) -> bool {
        self.residencies.iter().any(|residency| residency.is_streamed())
    }
}

/// When a component's weights are where it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// In all phases: loaded once, kept for the next job.
    Resident,
    /// Loaded for the component's own phase, freed after it.
    Lazy,
    /// Copied for each call, into a ring of slots, while earlier segments compute. A component is
    /// streamed if any of its segments is; the others of its segments stay.
    Streamed,
    /// A segment that is streamed, from a page-locked copy in RAM: its first way to the device
    /// leaves one there, which is held in all phases and kept for the next job. A device copies
    /// from it at the rate of its link, without staging.
    Locked,
    /// Computed in place from the file mapping; host only, no allocation.
    Mapped,
}

impl Residency {
    /// Whether weights pass through a ring of slots, wherever they come from.
    pub const fn is_streamed(self) -> bool {
        matches!(self, Residency::Streamed | Residency::Locked)
    }
}

impl fmt::Display for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Residency::Resident => "resident",
            Residency::Lazy => "lazy",
            Residency::Streamed => "streamed",
            Residency::Locked => "locked",
            Residency::Mapped => "mapped",
        })
    }
}
