//! Parts of a GPU: devices with a total, a budget and streams of their own, on processors, a link
//! and a context that all parts of the GPU share. Who divides a GPU is a host profile.
//!
//! Invariants: what is free of all parts of a GPU is together at most what is free of it; the
//! context of a GPU counts once, on the first of its parts, whichever of them a plan uses.

use std::collections::BTreeMap;

use protocol::plan::DeviceBackend;
use protocol::{Bytes, Plan};
use serde::Serialize;

use super::{Device, Inventory};

/// Which part of which GPU a device is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The GPU: its UUID, or how the profile names one that is not here.
    pub gpu: String,
    /// Its place among the parts of that GPU, from 0.
    pub index: usize,
    /// The most that can be free of the part.
    pub room_bytes: Bytes,
    /// All memory of the GPU.
    pub gpu_total_bytes: Bytes,
    /// What is free of the GPU.
    pub gpu_free_bytes: Bytes,
}

/// Gives each part its share of what is free of its GPU: all that it has room for, or less in
/// proportion.
pub(crate) fn share(devices: &mut [Device]) {
    let mut rooms: BTreeMap<String, Bytes> = BTreeMap::new();
    for part in devices.iter().filter_map(|device| device.part.as_ref()) {
        *rooms.entry(part.gpu.clone()).or_default() += part.room_bytes;
    }
    for device in devices {
        let Some(part) = &device.part else { continue };
        let (room, all) = (u128::from(part.room_bytes.0), u128::from(rooms[&part.gpu].0));
        let portion = u128::from(part.gpu_free_bytes.0) * room / all.max(1);
        device.free_bytes = part.room_bytes.min(Bytes(portion as u64));
        device.used_by_others_bytes = device.total_bytes - device.free_bytes;
    }
}

impl Device {
    /// What the device is known by across inventories: its UUID, with its place among the parts of
    /// that GPU; without a UUID its id.
    pub fn lasting_name(&self) -> String {
        match (&self.uuid, &self.part) {
            (Some(uuid), Some(part)) => format!("{uuid}/{}", part.index),
            (Some(uuid), None) => uuid.clone(),
            (None, _) => self.id.clone(),
        }
    }

    /// Whether both are parts of one GPU: they have one processor, one memory and one link.
    pub fn shares_gpu(&self, other: &Device) -> bool {
        let both = self.part.as_ref().zip(other.part.as_ref());
        both.is_some_and(|(own, other)| own.gpu == other.gpu)
    }

    /// Whether the context of its GPU counts on it.
    pub fn has_context(&self) -> bool {
        self.part.as_ref().is_none_or(|part| part.index == 0)
    }
}

impl Inventory {
    /// The device on which the context counts that a device needs: itself, or the first part of its
    /// GPU.
    pub fn context_of(&self, device: usize) -> usize {
        let Some(part) = &self.devices[device].part else { return device };
        let is_first =
            |other: &Device| other.part.as_ref().is_some_and(|o| o.gpu == part.gpu && o.index == 0);
        self.devices.iter().position(is_first).expect("a GPU's parts are counted from 0")
    }

    /// For each of some devices, `None` for the host, the first of them that is a part of the same
    /// GPU, by its place among them: its own where none is.
    pub fn gpus(&self, devices: &[Option<usize>]) -> Vec<usize> {
        let device = |at: usize| devices[at].map(|index| &self.devices[index]);
        let alike = |a: usize, b: usize| {
            device(a).zip(device(b)).is_some_and(|(one, other)| one.shares_gpu(other))
        };
        let first = |at: usize| (0..at).find(|other| alike(at, *other)).unwrap_or(at);
        (0..devices.len()).map(first).collect()
    }

    /// The device that each device of a plan is here, by index; `None` where it is not here.
    ///
    /// A GPU is known by its UUID, since ids may change from one look to the next. Parts of a GPU
    /// stand in a plan in the order of their profile: each is the part here of the same place, or
    /// the whole GPU where that is not divided here.
    pub fn places_of(&self, plan: &Plan) -> Vec<Option<usize>> {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let places = plan.devices.iter().map(|planned| {
            let DeviceBackend::Cuda { uuid: Some(uuid), .. } = &planned.backend else {
                return self.devices.iter().position(|device| device.id == planned.id.0);
            };
            let count = seen.entry(uuid).or_default();
            let index = *count;
            *count += 1;
            self.devices.iter().position(|device| {
                device.uuid.as_ref() == Some(uuid)
                    && device.part.as_ref().is_none_or(|part| part.index == index)
            })
        });
        places.collect()
    }
}
