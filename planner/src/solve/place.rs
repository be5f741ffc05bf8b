//! Places: where a component may be, with its exact bytes there.
//!
//! A [`ComponentLayout`] says where each segment computes and what that takes; a [`Place`] adds
//! when weights are there. Nothing is chosen here.

use std::sync::Arc;

use protocol::profile::{ComponentProfile, LayoutPart};
use protocol::{Bytes, Division, LayoutBytes, Placement, Residency};

use super::component_ms::ComponentMs;
use super::lanes::{LaneSet, SlotCounts};

/// A component laid out over devices: where each segment computes, and its exact bytes there.
#[derive(Debug, Clone, PartialEq)]
pub struct ComponentLayout {
    /// The devices in order: indices in the inventory, `None` for the host.
    pub devices: Vec<Option<usize>>,
    /// What of it computes on which of them.
    pub division: Division,
    /// What it takes on each device, then on the host where that computes what a device cannot.
    pub parts: Arc<[LayoutPart]>,
    /// Activations that cross between devices, and between them and the host, in one call.
    pub crossing_bytes: Bytes,
}

/// The exact bytes of a layout, as the executor states them. Components that are laid out so over
/// devices that are alike have them in common.
#[derive(Debug, Clone)]
pub struct SizedLayout {
    /// What it takes on each device, then on the host where that computes what a device cannot.
    pub parts: Arc<[LayoutPart]>,
    /// Activations that cross between devices, and between them and the host, in one call.
    pub crossing_bytes: Bytes,
}

impl From<LayoutBytes> for SizedLayout {
    fn from(LayoutBytes { parts, crossing_bytes }: LayoutBytes) -> SizedLayout {
        SizedLayout { parts: parts.into(), crossing_bytes }
    }
}

impl ComponentLayout {
    /// A component as a whole on one device, or on the host, with the bytes of its profile there.
    /// `compute_bytes` is its arena on the device's kind.
    pub fn whole(
        component: &ComponentProfile,
        device: Option<usize>,
        compute_bytes: Bytes,
    ) -> ComponentLayout {
        let segment_bytes = component.segments.iter().map(|s| s.weights_bytes).collect();
        ComponentLayout {
            devices: vec![device],
            division: Division::One,
            parts: Arc::new([LayoutPart { compute_bytes, segment_bytes }]),
            crossing_bytes: if device.is_some() { component.boundary_bytes } else { Bytes::ZERO },
        }
    }

    /// Its placement's name.
    pub fn placement(&self) -> Placement {
        self.division.placement(self.devices == [None])
    }

    /// Whether all of it is on the host.
    pub fn is_on_host(&self) -> bool {
        self.placement() == Placement::Host
    }

    /// How many segments the component has.
    pub fn segments(&self) -> usize {
        self.parts[0].segment_bytes.len()
    }

    /// The index in `devices` of where a segment computes; of a row split, where all does that is
    /// not split.
    pub fn lane(&self, segment: usize) -> usize {
        self.division.lane(segment).expect("each segment has a device")
    }

    /// The device of each part: those of the spread, then the host.
    pub fn part_device(&self, part: usize) -> Option<usize> {
        self.devices.get(part).copied().flatten()
    }

    /// Weights of a segment on all devices.
    pub fn segment_bytes(&self, segment: usize) -> Bytes {
        self.parts.iter().map(|part| part.segment_bytes[segment]).sum()
    }

    /// Weights of all segments on all devices.
    pub fn weights_bytes(&self) -> Bytes {
        (0..self.segments()).map(|segment| self.segment_bytes(segment)).sum()
    }

    /// Weights of all segments in a part.
    pub fn part_bytes(&self, part: usize) -> Bytes {
        self.parts[part].segment_bytes.iter().copied().sum()
    }

    /// The lanes with weights of a segment, unless the host computes it from their mapping.
    pub fn streamable(&self, segment: usize) -> LaneSet {
        let mut lanes = LaneSet::NONE;
        if !self.is_mapped(segment) {
            for (lane, part) in self.parts[..self.devices.len()].iter().enumerate() {
                let has_some = part.segment_bytes[segment] > Bytes::ZERO;
                lanes.set(LaneSet::from(lane), has_some);
            }
        }
        lanes
    }

    /// Whether a segment is computed by the host within a component that is not on the host: from
    /// the file mapping, whatever the component's residency.
    pub fn is_mapped(&self, segment: usize) -> bool {
        self.maps_on(self.lane(segment))
    }

    /// Whether a part, by index, is computed by the host within a component that is not on the
    /// host.
    fn maps_part(&self, index: usize) -> bool {
        index >= self.devices.len() || self.maps_on(index)
    }

    /// Whether a lane is the host's beside others, which has its segments in place.
    fn maps_on(&self, lane: usize) -> bool {
        matches!(self.division, Division::Layer { .. }) && self.devices[lane].is_none()
    }
}

/// When the weights of a spread component are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightResidency {
    /// All of them alike: resident, lazy, or mapped.
    All(Residency),
    /// Some stay, the others pass through a ring of slots.
    Some {
        /// When those that stay are there: resident or lazy.
        residency: Residency,
        /// For each segment, the lanes on which its weights stay.
        stays: Arc<[LaneSet]>,
        /// For each segment, whether what is streamed of it comes from page-locked copies; `None`
        /// where nothing does.
        locked: Option<Arc<[bool]>>,
        /// Slots of the ring on each lane.
        slots: SlotCounts,
    },
}

/// A candidate place of one component.
#[derive(Debug, Clone, PartialEq)]
pub struct Place {
    /// Where it computes.
    pub spread: Arc<ComponentLayout>,
    /// When its weights are there.
    pub held: WeightResidency,
    /// Whether the weights that it holds are on their way before its phase: resident ones while any
    /// phase before it computes, lazy ones during the phase just before, which then holds them too.
    pub early: bool,
    /// What it takes, by part.
    pub parts: Arc<[PlacePart]>,
    /// What it is predicted to take.
    pub ms: ComponentMs,
    /// How far the fullest device of a split is filled by its weights: parts in 2^20 of its memory.
    /// 0 without a split.
    pub fullness: u64,
}

/// What a place takes on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacePart {
    /// Index in the inventory; `None` for the host.
    pub device: Option<usize>,
    /// Weights held in all phases.
    pub resident_bytes: Bytes,
    /// Weights held in the component's phase.
    pub lazy_bytes: Bytes,
    /// Weights that are held in the phase before it too, as they come early.
    pub early_bytes: Bytes,
    /// The largest streamed segment, which each slot has room for.
    pub slot_bytes: Bytes,
    /// How many segments are there or on their way at once.
    pub slots: u32,
    /// Page-locked copies of streamed weights, in the host's memory in all phases.
    pub locked_bytes: Bytes,
    /// Weights that the host reads in place from their files in the component's phase: page cache,
    /// in no budget.
    pub mapped_bytes: Bytes,
    /// Activations and workspaces.
    pub compute_bytes: Bytes,
}

impl PlacePart {
    /// Nothing, on a device or on the host.
    pub fn nothing(device: Option<usize>) -> PlacePart {
        PlacePart {
            device,
            resident_bytes: Bytes::ZERO,
            lazy_bytes: Bytes::ZERO,
            early_bytes: Bytes::ZERO,
            slot_bytes: Bytes::ZERO,
            slots: 0,
            locked_bytes: Bytes::ZERO,
            mapped_bytes: Bytes::ZERO,
            compute_bytes: Bytes::ZERO,
        }
    }

    /// The arena of a component's part, by index.
    fn without_weights(spread: &ComponentLayout, index: usize) -> PlacePart {
        let compute_bytes = spread.parts[index].compute_bytes;
        PlacePart { compute_bytes, ..PlacePart::nothing(spread.part_device(index)) }
    }

    /// A component's part, by index, with a ring of `slots`. Segments of `stays` are held, the
    /// others are streamed: those of `locked` from page-locked copies.
    pub fn with_ring(
        spread: &ComponentLayout,
        index: usize,
        residency: Residency,
        (stays, locked): (&[LaneSet], Option<&[bool]>),
        slots: SlotCounts,
    ) -> PlacePart {
        let mut taken = PlacePart::without_weights(spread, index);
        if spread.maps_part(index) {
            taken.mapped_bytes = spread.part_bytes(index);
            return taken;
        }
        let mut held_bytes = Bytes::ZERO;
        for (segment, bytes) in spread.parts[index].segment_bytes.iter().enumerate() {
            if stays[segment].has(index) {
                held_bytes += *bytes;
            } else if *bytes > Bytes::ZERO {
                taken.slot_bytes = taken.slot_bytes.max(*bytes);
                taken.slots += 1;
                if locked.is_some_and(|locked| locked[segment]) {
                    taken.locked_bytes += *bytes;
                }
            }
        }
        // It has no more slots than segments that are streamed.
        taken.slots = taken.slots.min(slots.on(index));
        taken.hold(spread, index, residency, held_bytes);
        taken
    }

    /// Weights and slots in the component's own phase.
    pub fn held_bytes(&self) -> Bytes {
        self.resident_bytes + self.lazy_bytes + self.staging_bytes()
    }

    /// Weights of a component's part, by index, that do not pass through slots.
    fn hold(&mut self, spread: &ComponentLayout, index: usize, residency: Residency, bytes: Bytes) {
        match residency {
            _ if spread.maps_part(index) => self.mapped_bytes += bytes,
            Residency::Resident => self.resident_bytes += bytes,
            Residency::Lazy => self.lazy_bytes += bytes,
            Residency::Mapped => self.mapped_bytes += bytes,
            Residency::Streamed | Residency::Locked => unreachable!("streamed weights have slots"),
        }
    }

    /// The ring of slots.
    pub fn staging_bytes(&self) -> Bytes {
        Bytes(self.slot_bytes.0.saturating_mul(u64::from(self.slots)))
    }
}

impl Place {
    /// One word for all of its weights.
    pub fn residency(&self) -> Residency {
        match self.held {
            WeightResidency::All(residency) => residency,
            WeightResidency::Some { .. } => Residency::Streamed,
        }
    }

    /// When the weights of one segment are there, on each device.
    pub fn residencies(&self, segment: usize) -> impl Iterator<Item = Residency> {
        let lanes = 0..self.spread.devices.len();
        let is_mapped = self.spread.is_mapped(segment);
        lanes.map(move |lane| residency_on(&self.held, is_mapped, lane, segment))
    }

    /// The most slots of the ring on any device; 0 where nothing is streamed.
    pub fn lookahead(&self) -> u32 {
        match self.held {
            WeightResidency::All(_) => 0,
            WeightResidency::Some { slots, .. } => {
                (0..self.spread.devices.len()).map(|lane| slots.on(lane)).max().unwrap_or(0)
            }
        }
    }

    /// Whether any of its weights are loaded anew for each job.
    pub fn reloads(&self) -> bool {
        self.parts.iter().any(|part| part.lazy_bytes > Bytes::ZERO)
            || self.held == WeightResidency::All(Residency::Lazy)
    }

    /// How much more there is to it than one device that holds its weights: the devices beside the
    /// first, and one where weights are streamed.
    pub fn parts_more(&self) -> u64 {
        let devices = self.spread.devices.len() as u64 - 1;
        devices + u64::from(self.residency() == Residency::Streamed)
    }

    /// Whether it is a copy in RAM of what could be computed from the mapping.
    pub fn copies(&self) -> bool {
        self.spread.is_on_host() && self.residency() != Residency::Mapped
    }
}

/// When a segment's weights are there on a lane; `is_mapped` where the host computes it from their
/// mapping.
fn residency_on(held: &WeightResidency, is_mapped: bool, lane: usize, segment: usize) -> Residency {
    match held {
        _ if is_mapped => Residency::Mapped,
        WeightResidency::All(residency) => *residency,
        WeightResidency::Some { residency, stays, .. } if stays[segment].has(lane) => *residency,
        WeightResidency::Some { locked: Some(locked), .. } if locked[segment] => Residency::Locked,
        WeightResidency::Some { .. } => Residency::Streamed,
    }
}

/// What a spread component takes by part, its weights held so. What the host computes in place of a
/// device, it computes from the mapping: only activations count there. `early`: lazy weights come
/// in the phase before.
pub fn parts(spread: &ComponentLayout, held: &WeightResidency, early: bool) -> Vec<PlacePart> {
    let part = |index: usize| {
        let mut taken = match held {
            WeightResidency::All(residency) => {
                let mut taken = PlacePart::without_weights(spread, index);
                taken.hold(spread, index, *residency, spread.part_bytes(index));
                taken
            }
            WeightResidency::Some { residency, stays, locked, slots } => {
                let locked = locked.as_deref();
                PlacePart::with_ring(spread, index, *residency, (stays, locked), *slots)
            }
        };
        if early {
            taken.early_bytes = taken.lazy_bytes;
        }
        taken
    };
    (0..spread.parts.len()).map(part).collect()
}
