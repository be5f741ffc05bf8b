//! Memory in one phase.

use serde::{Deserialize, Serialize};

use crate::phase::Phase;
use crate::units::Bytes;

/// Memory of one device, or of the host, in one phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseBytes {
    /// The phase.
    pub phase: Phase,
    /// Parameters, alignment included.
    pub weights_bytes: Bytes,
    /// Activations and workspaces: one arena.
    pub compute_bytes: Bytes,
    /// Stream slots; on the host: buffers that feed devices.
    pub staging_bytes: Bytes,
    /// Their sum with the overhead.
    pub peak_bytes: Bytes,
}
