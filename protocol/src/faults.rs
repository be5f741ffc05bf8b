//! What a virtual device lets fail or go, for tests of failure.

use serde::{Deserialize, Serialize};

use crate::phase::Phase;
use crate::units::Bytes;

/// What fails on a virtual device, and what someone else takes of it. Nothing by default, and never
/// on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Faults {
    /// This allocation (counted from 1) fails as if the device were full.
    pub fail_allocation: Option<u32>,
    /// This copy over the link (counted from 1) fails as if the device were gone.
    pub fail_copy: Option<u32>,
    /// Bytes that someone else takes between the plan and its load.
    pub taken_bytes: Bytes,
    /// The phase at whose start they are taken; `None` for before the load.
    pub taken_in: Option<Phase>,
}
