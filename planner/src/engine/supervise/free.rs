//! Whether a plan still fits into what is free, looked at again just before it is loaded. Pure.
//!
//! Only what has shrunk since the plan was made counts: a plan never takes more than was free then.

use protocol::{Bytes, DeviceId, Failure, FailureKind, Plan};

use crate::inventory::Inventory;

/// Checks every device that a plan uses, and the host with the devices that share its memory,
/// against what is free now. Devices that the inventory does not have are the executor's to refuse.
///
/// # Errors
/// `OutOfMemory` for the first that has less than the plan's peak.
pub fn check(plan: &Plan, now: &Inventory) -> Result<(), Failure> {
    let mut host = plan.host.peak_bytes;
    // By device that is here: several of a plan may be parts of one.
    let mut needed = vec![Bytes::ZERO; now.devices.len()];
    for (planned, place) in plan.devices.iter().zip(now.places_of(plan)) {
        let Some(place) = place.filter(|_| planned.peak_bytes > Bytes::ZERO) else { continue };
        let device = &now.devices[place];
        needed[place] += planned.peak_bytes;
        enough(&planned.id, needed[place], device.free_bytes)?;
        if device.integrated {
            host += planned.peak_bytes;
        }
    }
    enough(&DeviceId::host(), host, now.host.available_bytes)
}

fn enough(device: &DeviceId, needed: Bytes, free: Bytes) -> Result<(), Failure> {
    if needed <= free {
        return Ok(());
    }
    let message = format!(
        "{device} has {free} free just before loading, and the plan takes {needed}: someone else uses more of it \
         than when the plan was made"
    );
    let kind = FailureKind::OutOfMemory {
        device: device.clone(),
        region: "the plan".to_owned(),
        requested_bytes: needed,
        free_bytes: Some(free),
    };
    Err(Failure { kind, message })
}

#[cfg(test)]
mod tests {
    use protocol::Residency;
    use protocol::plan::DeviceBackend;

    use super::super::retry::tests::{plan, request};
    use super::*;

    /// The device that is short of what the plan takes, with what it has.
    fn short(plan: &Plan, now: &Inventory) -> Option<(String, Bytes)> {
        let Failure { kind, message } = check(plan, now).err()?;
        let FailureKind::OutOfMemory { device, requested_bytes, free_bytes, .. } = kind else {
            panic!("{message}");
        };
        let free_bytes = free_bytes.expect("it was looked at");
        assert!(requested_bytes > free_bytes && message.starts_with(&device.0), "{message}");
        Some((device.0, free_bytes))
    }

    /// The inventory that the plan was made from, with one figure changed.
    fn now(change: impl Fn(&mut Inventory)) -> Inventory {
        let mut inventory = request().inventory;
        change(&mut inventory);
        inventory
    }

    #[test]
    fn one_byte_less_than_the_peak_is_too_little() {
        let plan = plan(Residency::Resident);
        assert_eq!(short(&plan, &request().inventory), None);
        let (enough, less) = (plan.devices[0].peak_bytes, plan.devices[0].peak_bytes - Bytes(1));
        assert_eq!(short(&plan, &now(|now| now.devices[0].free_bytes = enough)), None);
        let short_device = short(&plan, &now(|now| now.devices[0].free_bytes = less));
        assert_eq!(short_device, Some(("virtual0".to_owned(), less)));
        // The plan does not use the others.
        assert_eq!(short(&plan, &now(|now| now.devices[1].free_bytes = Bytes::ZERO)), None);
        let less = plan.host.peak_bytes - Bytes(1);
        let short_host = short(&plan, &now(|now| now.host.available_bytes = less));
        assert_eq!(short_host, Some(("host".to_owned(), less)));
    }

    #[test]
    fn an_integrated_device_shares_the_hosts_memory() {
        let plan = plan(Residency::Resident);
        let both = plan.host.peak_bytes + plan.devices[0].peak_bytes;
        let with = |available: Bytes, integrated| {
            now(|now| {
                now.devices[0].integrated = integrated;
                now.host.available_bytes = available;
            })
        };
        assert_eq!(short(&plan, &with(both, true)), None);
        let less = both - Bytes(1);
        assert_eq!(short(&plan, &with(less, true)), Some(("host".to_owned(), less)));
        assert_eq!(short(&plan, &with(less, false)), None);
    }

    #[test]
    fn a_device_is_known_by_its_uuid() {
        let mut plan = plan(Residency::Resident);
        plan.devices[0].backend =
            DeviceBackend::Cuda { uuid: Some("GPU-1".to_owned()), unsupported: Vec::new() };
        let at = |index: usize| {
            now(|now| {
                now.devices[index].uuid = Some("GPU-1".to_owned());
                now.devices[index].free_bytes = Bytes::ZERO;
            })
        };
        for index in [0, 3] {
            assert_eq!(short(&plan, &at(index)), Some(("virtual0".to_owned(), Bytes::ZERO)));
        }
        // Another device of the same id, and none of that name.
        assert_eq!(short(&plan, &now(|now| now.devices[0].free_bytes = Bytes::ZERO)), None);
    }
}
