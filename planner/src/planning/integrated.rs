//! Integrated devices: when one is used without being named.
//!
//! Its memory is the host's, so using it takes memory from everything else on the machine: somebody
//! should want it. Where nothing else there computes at a comparable speed, there is nothing to be
//! asked.

use crate::inventory::Inventory;

/// A processor with less than one part of this many of all computes at no comparable speed.
const COMPARABLE_PART: f64 = 10.0;

/// Whether a device is the only processor with more than a tenth of what all devices and the host
/// compute together. Only devices that `works` holds for count.
pub fn is_alone(inventory: &Inventory, device: usize, works: impl Fn(usize) -> bool) -> bool {
    let rate = |index: usize| match works(index) {
        true => inventory.devices[index].speeds.half_products_per_s(),
        false => 0.0,
    };
    let host = match inventory.host.compute {
        true => inventory.host.speeds.half_products_per_s(),
        false => 0.0,
    };
    let rates: Vec<f64> = (0..inventory.devices.len()).map(rate).chain([host]).collect();
    let all: f64 = rates.iter().sum();
    let comparable = |rate: f64| rate * COMPARABLE_PART > all;
    rates.iter().enumerate().all(|(index, rate)| comparable(*rate) == (index == device))
}

#[cfg(test)]
mod tests {
    use protocol::Bytes;

    use super::*;
    use crate::inventory::Rate;
    use crate::inventory::tests::{device_of, host_of};

    /// A machine whose host and devices compute at these rates.
    fn machine(host: f64, devices: &[f64]) -> Inventory {
        let mut inventory = Inventory {
            source: "test".to_owned(),
            devices: Vec::new(),
            host: host_of(Bytes::gib(32), Bytes::gib(16)),
            why_no_devices: None,
        };
        inventory.host.speeds.half_flops_per_s = Rate::declared(host);
        for (index, rate) in devices.iter().enumerate() {
            let mut device = device_of(&format!("cuda{index}"), Bytes::gib(8), Bytes::gib(8));
            device.speeds.half_flops_per_s = Rate::declared(*rate);
            inventory.devices.push(device);
        }
        inventory
    }

    #[test]
    fn only_one_that_leaves_all_others_far_behind_is_alone() {
        let alone = |inventory: &Inventory, device| is_alone(inventory, device, |_| true);
        assert!(alone(&machine(1.0, &[42.0]), 0));
        assert!(alone(&machine(1.0, &[10.0]), 0), "the host has an eleventh");
        assert!(alone(&machine(1.0, &[9.0]), 0), "the host has a tenth and no more");
        assert!(!alone(&machine(1.0, &[8.0]), 0), "the host has a ninth");
        assert!(!alone(&machine(1.0, &[42.0, 40.0]), 0));
        assert!(!alone(&machine(1.0, &[4.0, 40.0]), 0));
        assert!(alone(&machine(1.0, &[4.0, 40.0]), 1));
    }

    #[test]
    fn what_does_not_compute_does_not_count() {
        let mut inventory = machine(40.0, &[42.0, 100.0]);
        assert!(!is_alone(&inventory, 0, |index| index == 0));
        inventory.host.compute = false;
        assert!(is_alone(&inventory, 0, |index| index == 0));
        assert!(!is_alone(&inventory, 1, |index| index == 0), "it does not work");
    }
}
