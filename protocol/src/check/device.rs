//! The checker of devices: those of a plan, and those that are to be measured.
//!
//! Not here: what components take of them.

use std::collections::BTreeSet;

use super::{Violation, check_memory};
use crate::limits::{DEVICES_MAX, SPEED_MIN, STRING_BYTES_MAX, UNSUPPORTED_MAX};
use crate::plan::{DeviceBackend, DeviceId, Phase, Plan};
use crate::units::Bytes;

/// Checks the operations that a device cannot do.
pub(super) fn check_unsupported(owner: &str, names: &[String]) -> Result<(), Violation> {
    ensure!(names.len() <= UNSUPPORTED_MAX, "{owner}: {} unsupported operations", names.len());
    let short = names.iter().all(|name| name.len() <= STRING_BYTES_MAX);
    ensure!(short, "{owner}: an operation's name that is too long");
    Ok(())
}

/// Checks the devices of a plan.
pub(super) fn check_devices(plan: &Plan) -> Result<(), Violation> {
    ensure!(plan.devices.len() <= DEVICES_MAX, "{} devices", plan.devices.len());
    let mut seen = BTreeSet::new();
    for device in &plan.devices {
        let sizes = [device.total_bytes, device.overhead_bytes, device.pinned_bytes];
        check_device(&mut seen, &device.id, &device.backend, &sizes)?;
        for text in [&device.name, &device.overhead_source] {
            let length = text.len();
            ensure!(length <= STRING_BYTES_MAX, "{}: a text of {length} bytes", device.id);
        }
        ensure!(device.free_bytes <= device.total_bytes, "{}: more free than total", device.id);
        ensure!(device.budget_bytes <= device.free_bytes, "{}: budget above free", device.id);
    }
    Ok(())
}

/// Checks a device against those that were seen before it.
pub(super) fn check_device<'d>(
    seen: &mut BTreeSet<&'d DeviceId>,
    id: &'d DeviceId,
    backend: &DeviceBackend,
    sizes: &[Bytes],
) -> Result<(), Violation> {
    ensure!(!id.is_host(), "the host stands among the devices");
    ensure!(id.0.len() <= STRING_BYTES_MAX, "a device id of {} bytes", id.0.len());
    ensure!(seen.insert(id), "device {id} stands twice");
    check_backend(id, backend)?;
    check_memory(&id.0, sizes)
}

fn check_backend(id: &DeviceId, backend: &DeviceBackend) -> Result<(), Violation> {
    match backend {
        DeviceBackend::Virtual {
            link_bytes_per_s: link,
            fail_allocation,
            fail_copy,
            taken_bytes,
            taken_in,
            speed,
            unsupported,
        } => {
            ensure!((SPEED_MIN..=1.0).contains(speed), "{id}: a speed of {speed}");
            ensure!(link.is_finite() && *link > 0.0, "{id}: a link of {link} B/s");
            for (what, number) in [("allocation", fail_allocation), ("copy", fail_copy)] {
                ensure!(*number != Some(0), "{id}: {what} 0 is to fail, they count from 1");
            }
            ensure!(*taken_in != Some(Phase::Load), "{id}: memory is taken in no phase of a job");
            check_memory(&id.0, &[*taken_bytes])?;
            check_unsupported(&id.0, unsupported)
        }
        DeviceBackend::Cuda { uuid } => {
            let length = uuid.as_ref().map_or(0, String::len);
            ensure!(length <= STRING_BYTES_MAX, "{id}: a UUID of {length} bytes");
            Ok(())
        }
    }
}
