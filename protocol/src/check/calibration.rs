//! The checker of devices that are to be measured.

use super::Violations;
use super::device::Devices;
use crate::calibration::CalibrationDevice;
use crate::limits::DEVICES_MAX;

/// Checks devices that are to be measured. What the executor can reach is narrower.
///
/// # Errors
/// The rules that they break.
pub fn check_calibration(devices: &[CalibrationDevice]) -> Result<(), Violations> {
    let mut found = Violations::default();
    let mut seen = Devices::new(devices.len(), &mut found);
    for device in devices.iter().take(DEVICES_MAX) {
        let CalibrationDevice { id, backend, budget_bytes, overhead_bytes, pinned_bytes } = device;
        let sizes = [*budget_bytes, *overhead_bytes, *pinned_bytes];
        seen.check(id, backend, &sizes, &mut found);
    }
    found.result()
}
