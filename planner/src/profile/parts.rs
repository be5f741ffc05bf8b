//! GPUs of this machine that a profile means, and GPUs that it uses as several devices.
//!
//! A profile names a GPU by its UUID or by its ordinal. Listed once and with all of its memory,
//! that GPU is an ordinary device. Listed several times, or with less memory, each entry is a
//! [`Part`]. Nothing here looks at a GPU: what is here is given.
//!
//! Invariant: a part has at most what its entry declares.

use std::collections::BTreeMap;

use protocol::Bytes;

use super::DeviceProfile;
use crate::inventory::parts::{Part, share};
use crate::inventory::{Device, DeviceKind, Source};

impl DeviceProfile {
    /// How it names a GPU of the machine, for people; `None` for a device that is imagined, or
    /// virtual.
    pub fn named_gpu(&self) -> Option<String> {
        let named = self.uuid.clone().or_else(|| self.ordinal.map(|n| format!("ordinal {n}")));
        named.filter(|_| self.kind == DeviceKind::Cuda)
    }

    /// The one that it names of the GPUs that are here.
    pub fn gpu<'a>(&self, here: &'a [Device]) -> Option<&'a Device> {
        self.named_gpu()?;
        here.iter().find(|gpu| match &self.uuid {
            Some(uuid) => gpu.uuid.as_ref() == Some(uuid),
            None => gpu.ordinal == self.ordinal,
        })
    }
}

/// Makes parts of the devices that a profile lists of one GPU, or of less than one, and gives all
/// that are here the memory that they have now. `devices` are those of the list, in its order.
pub fn divide(listed: &[DeviceProfile], devices: &mut [Device], here: &[Device]) {
    let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, profile) in listed.iter().enumerate() {
        let found = profile.gpu(here).and_then(|gpu| gpu.uuid.clone());
        if let Some(gpu) = found.or_else(|| profile.named_gpu()) {
            groups.entry(gpu).or_default().push(index);
        }
    }
    for (name, members) in groups {
        let gpu = here.iter().find(|gpu| gpu.uuid.as_ref() == Some(&name));
        match (members.as_slice(), gpu) {
            ([only], Some(gpu)) if devices[*only].total_bytes >= gpu.total_bytes => {
                let device = &mut devices[*only];
                device.total_bytes = gpu.total_bytes;
                device.free_bytes = gpu.free_bytes;
                device.used_by_others_bytes = gpu.used_by_others_bytes;
            }
            // Imagined, and as its entry says.
            ([_], None) => {}
            (members, gpu) => divide_gpu(&name, members, gpu, devices),
        }
    }
    share(devices);
}

fn divide_gpu(name: &str, members: &[usize], gpu: Option<&Device>, devices: &mut [Device]) {
    let sum = |of: &dyn Fn(&Device) -> Bytes| members.iter().map(|at| of(&devices[*at])).sum();
    // One that is not here has what its parts have.
    let gpu_total_bytes =
        gpu.map_or_else(|| sum(&|device| device.total_bytes), |gpu| gpu.total_bytes);
    let gpu_free_bytes = gpu.map_or_else(|| sum(&|device| device.free_bytes), |gpu| gpu.free_bytes);
    let declared = members.iter().map(|at| &devices[*at]);
    let declared = declared.filter(|device| device.overhead_source == Source::Declared);
    let declared = declared.map(|device| device.overhead_bytes).max();
    for (index, at) in members.iter().enumerate() {
        let device = &mut devices[*at];
        device.total_bytes = device.total_bytes.min(gpu_total_bytes);
        let room_bytes = if gpu.is_some() { device.total_bytes } else { device.free_bytes };
        if let Some(bytes) = declared {
            (device.overhead_bytes, device.overhead_source) = (bytes, Source::Declared);
        }
        if index > 0 {
            device.overhead_bytes = Bytes::ZERO;
        }
        let gpu = name.to_owned();
        device.part = Some(Part { gpu, index, room_bytes, gpu_total_bytes, gpu_free_bytes });
    }
}

#[cfg(test)]
mod tests;
