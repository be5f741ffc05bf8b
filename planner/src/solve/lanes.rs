//! What differs from one of a component's devices to another: which of them hold a segment, and how
//! many stream slots each has. A lane is a device by its position among those of its component.

use protocol::limits::{DEVICES_MAX, LOOKAHEAD_MAX};

/// Some of a component's lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneSet(u32);

impl LaneSet {
    /// How many lanes a component has at most: its devices and the host.
    pub const LANES_MAX: usize = DEVICES_MAX + 1;

    /// No lane.
    pub const NONE: LaneSet = LaneSet(0);

    /// Every lane that a component may have.
    pub const ALL: LaneSet = LaneSet(u32::MAX);

    /// All lanes, or none.
    pub const fn all_if(all: bool) -> LaneSet {
        if all { LaneSet::ALL } else { LaneSet::NONE }
    }

    /// Whether a lane is among them.
    pub const fn has(self, lane: usize) -> bool {
        self.0 >> lane & 1 == 1
    }

    /// These without some others.
    pub const fn without(self, others: LaneSet) -> LaneSet {
        LaneSet(self.0 & !others.0)
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many there are.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Their numbers, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let lowest = left.trailing_zeros();
            left &= left.checked_sub(1)?;
            Some(lowest as usize)
        })
    }

    /// Takes some lanes in, or out.
    pub const fn set(&mut self, lanes: LaneSet, are_in: bool) {
        self.0 = if are_in { self.0 | lanes.0 } else { self.0 & !lanes.0 };
    }
}

impl From<usize> for LaneSet {
    /// One lane.
    fn from(lane: usize) -> LaneSet {
        const { assert!(DEVICES_MAX < u32::BITS as usize) };
        LaneSet(1 << lane)
    }
}

/// The stream slots of each lane, where it streams as many segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotCounts([u8; LaneSet::LANES_MAX]);

impl SlotCounts {
    /// As many on each lane; no more than may be.
    pub fn alike(slots: u32) -> SlotCounts {
        SlotCounts([slots.min(LOOKAHEAD_MAX) as u8; LaneSet::LANES_MAX])
    }

    /// Those of a lane.
    pub fn on(&self, lane: usize) -> u32 {
        u32::from(self.0[lane])
    }

    /// With another number on one lane.
    pub fn with(mut self, lane: usize, slots: u32) -> SlotCounts {
        self.0[lane] = slots.min(LOOKAHEAD_MAX) as u8;
        self
    }
}
