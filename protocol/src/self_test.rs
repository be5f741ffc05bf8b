//! The self-test of GPUs: what the executor answers of each family of kernels, and of copies
//! between two GPUs.

use serde::{Deserialize, Serialize};

use crate::plan::DeviceId;

/// What the self-test found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// The devices, in the order in which they were asked for.
    pub devices: Vec<TestedDevice>,
    /// Each device of them to each other one.
    pub copies: Vec<TestedCopy>,
}

/// What was found on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestedDevice {
    /// The device.
    pub id: DeviceId,
    /// Families of kernels that computed something.
    pub families: Vec<String>,
    /// What it took in milliseconds, with the compilation of kernels by the driver.
    pub ms: f64,
    /// What it computed otherwise than the host.
    pub differences: Vec<Difference>,
}

/// A result that is not the host's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The case, by its family of kernels.
    pub family: String,
    /// The kernels that took part, in order.
    pub kernels: Vec<String>,
    /// The operations that are computed by them.
    pub operations: Vec<String>,
    /// The element that is furthest off.
    pub element: u64,
    /// How many elements the result has.
    pub elements: u64,
    /// What the host computed there.
    pub expected: f32,
    /// What the device computed there.
    pub got: f32,
}

/// A pattern that was copied from one device to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestedCopy {
    /// Where it was written.
    pub from: DeviceId,
    /// Where it was read.
    pub to: DeviceId,
    /// Whether they reach each other's memory directly.
    pub direct: bool,
    /// The first byte that arrived changed.
    pub changed: Option<ChangedByte>,
}

/// A byte that was changed on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedByte {
    /// Its place in the pattern.
    pub at: u64,
    /// What was written.
    pub expected: u8,
    /// What was read.
    pub got: u8,
}

impl Difference {
    /// What differs, as a clause.
    pub fn told(&self) -> String {
        let Difference { family, kernels, element, elements, expected, got, .. } = self;
        format!(
            "{family} ({}): element {element} of {elements} is {got:?}, the host computes {expected:?}",
            kernels.join(", ")
        )
    }
}
