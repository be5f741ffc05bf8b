//! Budgets: how much memory Berth may use of each device and of the host.
//!
//! `budget = min(cap, free − margin)`, at most what is free. A cap is what the user allows, the
//! margin what stays free for others. Caps come from the command line or a profile as text, and are
//! applied to an inventory later: a name is checked then. Not here: whether a model fits, and the
//! share of the context ([`Device::overhead_bytes`] lies inside the budget).

mod cap;

use protocol::Bytes;

pub use cap::{Cap, CapError, parse_margin};

use crate::inventory::{Device, DeviceKind, Host};

/// The least margin on a GPU: what a desktop's windows and a driver's bookkeeping may grow by
/// during a run.
pub const DEVICE_MARGIN_MIN: Bytes = Bytes::mib(256);

/// One part of this many of a GPU's memory is its margin, where that is more: larger cards serve
/// larger screens.
pub const DEVICE_MARGIN_PART: u64 = 50;

/// The least margin on the host: a process that takes the last of the memory makes the kernel kill
/// somebody.
pub const HOST_MARGIN_MIN: Bytes = Bytes::mib(512);

/// One part of this many of the host's memory is its margin, where that is more.
pub const HOST_MARGIN_PART: u64 = 20;

/// The caps of `--max-vram`: one for each device, or some by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VramCaps {
    each: Option<Cap>,
    named: Vec<(String, Cap)>,
}

impl VramCaps {
    /// Reads one cap for each device (see [`Cap::parse`]), or a list of them by device:
    /// `cuda0=12,cuda1=6.5`. Devices that a list does not name are not capped.
    ///
    /// # Errors
    /// A cap is unreadable or zero, a device is named twice, or the two forms are mixed.
    pub fn parse(text: &str) -> Result<VramCaps, CapError> {
        if !text.contains(['=', ',']) {
            return Ok(VramCaps { each: Some(Cap::parse(text)?), named: Vec::new() });
        }
        let mut named: Vec<(String, Cap)> = Vec::new();
        for entry in text.split(',') {
            let (device, cap) = entry.split_once('=').ok_or_else(|| CapError::unnamed(entry))?;
            let device = device.trim();
            if device.is_empty() {
                return Err(CapError::unnamed(entry));
            }
            if named.iter().any(|(known, _)| known == device) {
                return Err(CapError::Twice { device: device.to_owned() });
            }
            named.push((device.to_owned(), Cap::parse(cap)?));
        }
        Ok(VramCaps { each: None, named })
    }

    /// The cap of one device.
    pub fn of(&self, device_id: &str) -> Option<Cap> {
        self.named.iter().find(|(id, _)| id == device_id).map(|(_, cap)| *cap).or(self.each)
    }

    /// Whether every device that the caps name is one of `devices`.
    ///
    /// # Errors
    /// A name is not among them: the error lists those that are.
    pub fn check(&self, devices: &[Device]) -> Result<(), CapError> {
        match self.named.iter().find(|(id, _)| devices.iter().all(|device| device.id != *id)) {
            None => Ok(()),
            Some((id, _)) => Err(CapError::UnknownDevice {
                device: id.clone(),
                known: devices.iter().map(|device| device.id.clone()).collect(),
            }),
        }
    }
}

/// What Berth may use of `device`: the least of its cap and of what is free less the margin
/// (`None`: [`default_margin`]). A negative cap replaces the margin. Zero where nothing is left.
pub fn budget(device: &Device, caps: &VramCaps, margin: Option<Bytes>) -> Bytes {
    let margin = margin.unwrap_or_else(|| default_margin(device));
    within(caps.of(&device.id), device.total_bytes, device.free_bytes, margin)
}

/// The budget of each device, in their order.
///
/// # Errors
/// The caps name a device that is not among them.
pub fn budgets(
    devices: &[Device],
    caps: &VramCaps,
    margin: Option<Bytes>,
) -> Result<Vec<Bytes>, CapError> {
    caps.check(devices)?;
    Ok(devices.iter().map(|device| budget(device, caps, margin)).collect())
}

/// What Berth may use of the host's memory: the least of the cap and of what is available less the
/// margin (`None`: [`default_host_margin`]). A percentage is of all memory that the process could
/// have: the total, or the control group's limit. A negative cap replaces the margin.
pub fn host_budget(host: &Host, max_ram: Option<Cap>, margin: Option<Bytes>) -> Bytes {
    let total =
        host.cgroup_limit_bytes.map_or(host.total_bytes, |limit| limit.min(host.total_bytes));
    let margin = margin.unwrap_or_else(|| default_host_margin(host));
    within(max_ram, total, host.available_bytes, margin)
}

/// What stays free on a device where nobody says otherwise: nothing on a virtual one, which nobody
/// else can fill; on a GPU [`DEVICE_MARGIN_MIN`] or a [`DEVICE_MARGIN_PART`]th of its memory; on an
/// integrated one the host's share, as the memory is the host's.
pub fn default_margin(device: &Device) -> Bytes {
    match (device.kind, device.integrated) {
        (DeviceKind::Virtual, _) => Bytes::ZERO,
        (DeviceKind::Cuda, false) => {
            DEVICE_MARGIN_MIN.max(Bytes(device.total_bytes.0 / DEVICE_MARGIN_PART))
        }
        (DeviceKind::Cuda, true) => {
            HOST_MARGIN_MIN.max(Bytes(device.total_bytes.0 / HOST_MARGIN_PART))
        }
    }
}

/// What stays free on the host where nobody says otherwise: [`HOST_MARGIN_MIN`] or a
/// [`HOST_MARGIN_PART`]th of what the process could have.
pub fn default_host_margin(host: &Host) -> Bytes {
    let total =
        host.cgroup_limit_bytes.map_or(host.total_bytes, |limit| limit.min(host.total_bytes));
    HOST_MARGIN_MIN.max(Bytes(total.0 / HOST_MARGIN_PART))
}

fn within(cap: Option<Cap>, total: Bytes, free: Bytes, margin: Bytes) -> Bytes {
    match cap {
        None => free.saturating_sub(margin),
        Some(Cap::Bytes(cap)) => cap.min(free.saturating_sub(margin)),
        Some(Cap::Percent(percent)) => {
            // Below the total, which is far below 2^53: exact enough, and never above.
            let cap = Bytes((total.0 as f64 * percent / 100.0) as u64);
            cap.min(free.saturating_sub(margin))
        }
        Some(Cap::FreeLess(kept)) => free.saturating_sub(kept),
    }
}

#[cfg(test)]
mod tests;
