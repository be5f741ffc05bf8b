//! How a component is divided over its devices.
//!
//! The one form in which plan, profile, solver and schedule say it. Which devices those are stands
//! beside it; a component on the host is an undivided one on that device.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What of a component computes on which of its devices, by their index in its list of devices.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Division {
    /// All of it on the only one.
    One,
    /// Contiguous segments on several devices, one after the other.
    Layer {
        /// For each segment, the index of its device.
        segments: Vec<u32>,
    },
    /// The rows of each large matrix on several devices; everything else on the first of them.
    Row {
        /// Each device's share of the rows, in proportion.
        shares: Vec<u32>,
    },
}

impl Division {
    /// The index of the device on which a segment computes: for a row split, the one of all that is
    /// not split. `None` where nothing is said of this segment.
    pub fn lane(&self, segment: usize) -> Option<usize> {
        match self {
            Division::One | Division::Row { .. } => Some(0),
            Division::Layer { segments } => segments.get(segment).map(|&lane| lane as usize),
        }
    }

    /// Shares of a row split, by device; of no other division.
    pub fn row_shares(&self) -> Option<&[u32]> {
        match self {
            Division::Row { shares } => Some(shares),
            Division::One | Division::Layer { .. } => None,
        }
    }

    /// Its name in documents. `on_host`: whether its only device is the host.
    pub const fn placement(&self, on_host: bool) -> Placement {
        match self {
            Division::One if on_host => Placement::Host,
            Division::One => Placement::One,
            Division::Layer { .. } => Placement::Layer,
            Division::Row { .. } => Placement::Row,
        }
    }
}

/// Where a component computes, in a word for documents and people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// On one device.
    One,
    /// [`Division::Layer`].
    Layer,
    /// [`Division::Row`].
    Row,
    /// On the host's processor, in its RAM.
    Host,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::One => "one",
            Placement::Layer => "layer",
            Placement::Row => "row",
            Placement::Host => "host",
        })
    }
}
