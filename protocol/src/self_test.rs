//! The self-test of GPUs: what the executor answers of each family of kernels, and of copies
//! between two GPUs.

use serde::{Deserialize, Serialize};

use crate::plan::DeviceId;

/// A share of the self-test's cases, where several executors have one each: a driver compiles for
/// one process as fast as for several at once, and within one process one kernel after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfTestShare {
    /// Which one, from 0. The first one tests copies too.
    pub index: u32,
    /// Of how many; at least 1.
    pub count: u32,
}

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
    /// What it took in milliseconds, with the compilation of kernels by the driver; of shares of
    /// a test the longest.
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

impl SelfTest {
    /// Adds what another share of the same test found, of the same devices.
    pub fn add(&mut self, other: SelfTest) {
        for (device, of_other) in self.devices.iter_mut().zip(other.devices) {
            for family in of_other.families {
                if !device.families.contains(&family) {
                    device.families.push(family);
                }
            }
            device.ms = device.ms.max(of_other.ms);
            device.differences.extend(of_other.differences);
        }
        self.copies.extend(other.copies);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_test_are_one() {
        let found = |families: &[&str], ms| SelfTest {
            devices: vec![TestedDevice {
                id: DeviceId("cuda0".to_owned()),
                families: families.iter().map(|&family| family.to_owned()).collect(),
                ms,
                differences: vec![Difference {
                    family: families[0].to_owned(),
                    kernels: Vec::new(),
                    operations: Vec::new(),
                    element: 0,
                    elements: 1,
                    expected: 1.0,
                    got: 2.0,
                }],
            }],
            copies: Vec::new(),
        };
        let mut whole = found(&["norm", "linear_few"], 7.0);
        whole.add(found(&["linear_few", "tables"], 9.0));
        let device = &whole.devices[0];
        assert_eq!(device.families, ["norm", "linear_few", "tables"]);
        assert_eq!((device.ms, device.differences.len()), (9.0, 2));
    }
}
