//! The checker of devices: those of a plan, and those that are to be measured.
//!
//! Not here: what components take of them.

use std::collections::BTreeSet;

use super::{ListRule, Violation, Violations};
use crate::faults::Faults;
use crate::limits::{DEVICES_MAX, SPEED_MIN, STRING_BYTES_MAX, THREADS_MAX, UNSUPPORTED_MAX};
use crate::phase::Phase;
use crate::plan::{DeviceBackend, DeviceId, Plan};
use crate::units::Bytes;

rules! {
    /// What holds of a device's description; told after its id.
    pub enum DeviceRule {
        Text { length: usize } = ": a text of {length} bytes",
        Free = ": more free than total",
        Budget = ": budget above free",
        Speed { speed: f64 } = ": a speed of {speed}",
        Threads { threads: u32 } = ": {threads} threads of its own",
        Link { link: f64 } = ": a link of {link} B/s",
        Fault { what: &'static str } = ": {what} 0 is to fail, they count from 1",
        TakenInLoad = ": memory is taken in no phase of a job",
        Unsupported { count: usize } = ": {count} unsupported operations",
        Operation = ": an operation's name that is too long",
        Uuid { length: usize } = ": a UUID of {length} bytes",
    }
}

/// Whether the names of operations that a device cannot do are few enough, and short enough.
pub(super) fn unsupported(names: &[String]) -> [bool; 2] {
    let short = names.iter().all(|name| name.len() <= STRING_BYTES_MAX);
    [names.len() <= UNSUPPORTED_MAX, short]
}

/// Checks the devices of a plan.
pub(super) fn check_devices(plan: &Plan, found: &mut Violations) {
    let mut seen = Devices::new(plan.devices.len(), found);
    for device in plan.devices.iter().take(DEVICES_MAX) {
        let sizes = [device.total_bytes, device.overhead_bytes, device.pinned_bytes];
        seen.check(&device.id, &device.backend, &sizes, found);
        let mut ensure = |holds, rule| {
            let device = device.id.clone();
            found.ensure(holds, || Violation::Device { device, rule });
        };
        for text in [&device.name, &device.overhead_source] {
            let length = text.len();
            ensure(length <= STRING_BYTES_MAX, DeviceRule::Text { length });
        }
        ensure(device.free_bytes <= device.total_bytes, DeviceRule::Free);
        ensure(device.budget_bytes <= device.free_bytes, DeviceRule::Budget);
    }
}

/// The devices of a list that were seen.
pub(super) struct Devices<'d>(BTreeSet<&'d DeviceId>);

impl<'d> Devices<'d> {
    /// None yet, of a list of so many.
    pub(super) fn new(count: usize, found: &mut Violations) -> Devices<'d> {
        found.ensure(count <= DEVICES_MAX, || ListRule::Devices { count });
        Devices(BTreeSet::new())
    }

    /// Checks a device against those that were seen before it.
    pub(super) fn check(
        &mut self,
        id: &'d DeviceId,
        backend: &DeviceBackend,
        sizes: &[Bytes],
        found: &mut Violations,
    ) {
        found.ensure(!id.is_host(), || ListRule::HostAmongDevices);
        let length = id.0.len();
        found.ensure(length <= STRING_BYTES_MAX, || ListRule::DeviceIdLength { length });
        let first = self.0.insert(id);
        found.ensure(first, || ListRule::DeviceTwice { device: id.clone() });
        check_backend(id, backend, found);
        found.ensure_memory(&id.0, sizes);
    }
}

fn check_backend(id: &DeviceId, backend: &DeviceBackend, found: &mut Violations) {
    let mut ensure = |holds, rule| {
        found.ensure(holds, || Violation::Device { device: id.clone(), rule });
    };
    match backend {
        DeviceBackend::Virtual { link_bytes_per_s, faults, speed, threads, unsupported: names } => {
            let (link, speed) = (*link_bytes_per_s, *speed);
            ensure((SPEED_MIN..=1.0).contains(&speed), DeviceRule::Speed { speed });
            if let Some(threads) = *threads {
                ensure((1..=THREADS_MAX).contains(&threads), DeviceRule::Threads { threads });
            }
            ensure(link.is_finite() && link > 0.0, DeviceRule::Link { link });
            let Faults { fail_allocation, fail_copy, taken_bytes, taken_in } = *faults;
            for (what, number) in [("allocation", fail_allocation), ("copy", fail_copy)] {
                ensure(number != Some(0), DeviceRule::Fault { what });
            }
            ensure(taken_in != Some(Phase::Load), DeviceRule::TakenInLoad);
            let [few, short] = unsupported(names);
            ensure(few, DeviceRule::Unsupported { count: names.len() });
            ensure(short, DeviceRule::Operation);
            found.ensure_memory(&id.0, &[taken_bytes]);
        }
        DeviceBackend::Cuda { uuid, unsupported: names } => {
            let length = uuid.as_ref().map_or(0, String::len);
            ensure(length <= STRING_BYTES_MAX, DeviceRule::Uuid { length });
            let [few, short] = unsupported(names);
            ensure(few, DeviceRule::Unsupported { count: names.len() });
            ensure(short, DeviceRule::Operation);
        }
    }
}
