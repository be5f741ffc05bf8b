//! Budgets: how much memory Berth may use of each device and of the host.
//!
//! `budget = min(cap, free − margin)`, at most what is free. A cap is what the user allows, the
//! margin what stays free for others. Caps come from the command line or a profile as text, and are
//! applied to an inventory later: a name is checked then. Not here: whether a model fits, and the
//! share of the context ([`Device::overhead_bytes`] lies inside the budget).

mod cap;
mod list;

use protocol::Bytes;

pub use cap::{Cap, CapError, parse_limit, parse_margin};

use crate::inventory::{Device, DeviceKind, HostFacts, names};
use list::DeviceValues;

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

/// One part of this many of the host's memory may be page-locked: what Windows shares with GPUs
/// ("Calculating Graphics Memory", Microsoft's driver documentation). The rest is for everything
/// else that runs.
pub const PINNED_PART: u64 = 2;

/// The caps of `--max-vram`: one for each device, some by name, or both.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct VramCaps(DeviceValues<Cap>);

impl VramCaps {
    /// Reads one cap for each device (see [`Cap::parse`]), a list of them by device, as
    /// `cuda0=12,cuda1=6.5`, or both, as `8,cuda1=6`: 6 GiB of `cuda1`, 8 of each other. Devices
    /// that no entry is for are not capped. A device is named by its id, its uuid, or the start of
    /// either.
    ///
    /// # Errors
    /// A cap is unreadable or zero, a device is named twice, an entry after the first has no name,
    /// or one is the host's.
    pub fn parse(text: &str) -> Result<VramCaps, CapError> {
        let list = DeviceValues::parse(text, Cap::parse)?;
        match list.named.iter().find(|(name, _)| names::is_host(name)) {
            Some((name, _)) => Err(CapError::Host { name: name.clone() }),
            None => Ok(VramCaps(list)),
        }
    }

    /// The cap of each device, in their order.
    ///
    /// # Errors
    /// A name means none of them, or several, or two names mean the same.
    pub fn of(&self, devices: &[Device]) -> Result<Vec<Option<Cap>>, CapError> {
        let named = self.0.of_devices(devices)?;
        Ok(named.into_iter().map(|cap| cap.or(self.0.each)).collect())
    }
}

/// What stays free of each memory, as a host profile says it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Margins(DeviceValues<Bytes>);

impl Margins {
    /// Reads one margin for each memory, the host's among them (see [`parse_margin`]), a list of
    /// them by name, as `cuda0=1,host=2`, or both, as `512MiB,host=2`.
    ///
    /// # Errors
    /// A margin is no size, a name stands twice, or an entry after the first has no name.
    pub fn parse(text: &str) -> Result<Margins, CapError> {
        let list = DeviceValues::parse(text, parse_margin)?;
        match list.named.iter().filter(|(name, _)| names::is_host(name)).count() {
            0..=1 => Ok(Margins(list)),
            _ => Err(CapError::twice("the host")),
        }
    }

    /// The margin of each device, in their order. What an entry says of a device by name is over
    /// what the device's own section says ([`Device::margin_bytes`]), that over the margin for all,
    /// and that over [`default_margin`].
    ///
    /// # Errors
    /// A name means none of them, or several, or two names mean the same.
    pub fn of(&self, devices: &[Device]) -> Result<Vec<Bytes>, CapError> {
        let named = self.0.of_devices(devices)?.into_iter().zip(devices);
        let margin = |(named, device): (Option<Bytes>, &Device)| {
            let said = named.or(device.margin_bytes).or(self.0.each);
            said.unwrap_or_else(|| default_margin(device))
        };
        Ok(named.map(margin).collect())
    }

    /// The margin of the host: by name, over the margin for all, over [`default_host_margin`].
    pub fn of_host(&self, host: &HostFacts) -> Bytes {
        self.0.of_host().or(self.0.each).unwrap_or_else(|| default_host_margin(host))
    }
}

/// The budget of each device, in their order: the least of its cap and of what is free less its
/// margin. A negative cap replaces the margin. Zero where nothing is left.
///
/// # Errors
/// The caps or the margins name a device that is not among them.
pub fn budgets(
    devices: &[Device],
    caps: &VramCaps,
    margins: &Margins,
) -> Result<Vec<Bytes>, CapError> {
    let limits = caps.of(devices)?.into_iter().zip(margins.of(devices)?);
    let budget = |(device, (cap, margin)): (&Device, (Option<Cap>, Bytes))| {
        within(cap, device.total_bytes, device.free_bytes, margin)
    };
    Ok(devices.iter().zip(limits).map(budget).collect())
}

/// What Berth may use of the host's memory: the least of the cap and of what is available less the
/// margin. A percentage is of all memory that the process could have: the total, or the control
/// group's limit. A negative cap replaces the margin.
pub fn host_budget(host: &HostFacts, max_ram: Option<Cap>, margins: &Margins) -> Bytes {
    within(max_ram, host_total(host), host.available_bytes, margins.of_host(host))
}

/// How much of the host's `budget` may be page-locked under a limit.
pub fn pinned_budget(host: &HostFacts, max_pinned: Cap, budget: Bytes) -> Bytes {
    within(Some(max_pinned), host_total(host), budget, Bytes::ZERO)
}

/// How much of the host's memory may be page-locked where nobody says otherwise, beside what its
/// budget allows: a [`PINNED_PART`]th of what the process could have.
pub fn default_pinned_budget(host: &HostFacts) -> Bytes {
    Bytes(host_total(host).0 / PINNED_PART)
}

/// All memory that a process of the host could have.
fn host_total(host: &HostFacts) -> Bytes {
    host.cgroup_limit_bytes.map_or(host.total_bytes, |limit| limit.min(host.total_bytes))
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
pub fn default_host_margin(host: &HostFacts) -> Bytes {
    HOST_MARGIN_MIN.max(Bytes(host_total(host).0 / HOST_MARGIN_PART))
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
