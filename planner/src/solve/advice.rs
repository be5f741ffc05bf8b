//! What other plans would take, as plain data: `planning` solves them beside the plan that was
//! asked for.

use protocol::DeviceId;
use serde::Serialize;

/// Plans beside the one that was made.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Advice {
    /// What each integrated device changes.
    pub integrated: Vec<Integrated>,
    /// For a job that takes long: what would be faster, the least change of each kind.
    pub faster: Vec<Faster>,
}

/// An integrated device, and what the plan would take that has it, or that does without it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Integrated {
    /// Which one it is.
    pub device: DeviceId,
    /// Whether the plan uses it; then the other plan is without it.
    pub used: bool,
    /// Where the plan does not use it: the arguments of the plan that does.
    pub arguments: Option<String>,
    /// What the other plan takes from start to picture, in milliseconds; `None` where none fits.
    pub other_total_ms: Option<f64>,
}

/// A change by which a job takes less time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Faster {
    /// What is changed, as a clause: the arguments, or what it needs beside these.
    pub what: String,
    /// What the job takes then from start to picture, in milliseconds.
    pub total_ms: f64,
}
