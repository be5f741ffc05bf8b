//! The checker of devices that are to be measured.

use std::collections::BTreeSet;

use super::Violation;
use super::device::check_device;
use crate::calibration::CalibrationDevice;
use crate::limits::DEVICES_MAX;

/// Checks devices that are to be measured. What the executor can reach is narrower.
pub fn check_calibration(devices: &[CalibrationDevice]) -> Result<(), Violation> {
    ensure!(devices.len() <= DEVICES_MAX, "{} devices", devices.len());
    let mut seen = BTreeSet::new();
    for device in devices {
        let CalibrationDevice { id, backend, budget_bytes, overhead_bytes, pinned_bytes } = device;
        check_device(&mut seen, id, backend, &[*budget_bytes, *overhead_bytes, *pinned_bytes])?;
    }
    Ok(())
}
