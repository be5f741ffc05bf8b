//! Lanes: what computes one thing at a time. Plans that share none of them run at once. Pure.
//!
//! ```text
//! host, virtual devices without threads of their own   one lane: the host's threads
//! a virtual device with threads of its own             a lane
//! a GPU, with all parts that a profile makes of it     a lane
//! ```
//! A plan is on the lanes of all devices that compute any part of it: on the host's too where that
//! computes a text encoder, or what a device cannot. Weights that a GPU is fed from the page cache
//! are none of the host's computing.

use std::collections::BTreeSet;

use protocol::plan::DeviceBackend;
use protocol::{DeviceId, Plan};
use serde::{Deserialize, Serialize};

use crate::inventory::Device;

/// Lanes by name: `host`, a GPU's UUID, a device's name where it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lanes(BTreeSet<String>);

impl Lanes {
    /// Those that a plan computes on.
    pub fn of(plan: &Plan) -> Lanes {
        let parts = plan.components.iter().flat_map(|component| &component.parts);
        let lane = |id: &DeviceId| match plan.devices.iter().find(|device| device.id == *id) {
            Some(device) => lane(&id.0, &device.backend),
            None => id.0.clone(),
        };
        Lanes(parts.map(|part| lane(&part.device)).collect())
    }

    /// The one of a device.
    pub fn of_device(device: &Device) -> Lanes {
        Lanes::named([lane(&device.id, &device.backend())])
    }

    /// These.
    pub fn named<T: Into<String>>(names: impl IntoIterator<Item = T>) -> Lanes {
        Lanes(names.into_iter().map(Into::into).collect())
    }

    /// Whether it is not known which, or there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any is also one of the others.
    pub fn shares(&self, others: &Lanes) -> bool {
        !self.0.is_disjoint(&others.0)
    }

    /// Whether all of these are among the others. False where there are none.
    pub fn is_within(&self, others: &Lanes) -> bool {
        !self.is_empty() && self.0.is_subset(&others.0)
    }

    /// With those of others.
    pub fn join(&mut self, others: &Lanes) {
        self.0.extend(others.0.iter().cloned());
    }

    /// Whether any of them, of devices that compute beside the host, is none of the others.
    pub fn has_device_beside(&self, others: &Lanes) -> bool {
        self.0.difference(&others.0).any(|lane| lane != HOST)
    }
}

/// The host's threads.
const HOST: &str = "host";

fn lane(id: &str, backend: &DeviceBackend) -> String {
    match backend {
        DeviceBackend::Virtual { threads: None, .. } => HOST.to_owned(),
        // Parts of a GPU have its UUID.
        DeviceBackend::Cuda { uuid: Some(uuid), .. } => uuid.clone(),
        DeviceBackend::Virtual { .. } | DeviceBackend::Cuda { .. } => id.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Faults, Residency};

    use super::super::supervise::retry::tests::plan;
    use super::*;

    fn virtual_device(threads: Option<u32>) -> DeviceBackend {
        DeviceBackend::Virtual {
            link_bytes_per_s: 1e9,
            faults: Faults::default(),
            speed: 1.0,
            threads,
            unsupported: Vec::new(),
        }
    }

    #[test]
    fn a_plan_is_on_the_lanes_of_what_computes_it() {
        let mut plan = plan(Residency::Resident);
        let used = plan.components[0].parts[0].device.clone();
        let at = plan.devices.iter().position(|device| device.id == used).expect("it is used");
        let mut on = |backend: DeviceBackend| {
            plan.devices[at].backend = backend;
            Lanes::of(&plan)
        };
        assert!(on(virtual_device(None)) == Lanes::named(["host"]));
        let own = on(virtual_device(Some(1)));
        assert!(own.shares(&Lanes::named([used.0.as_str()])), "{own:?}");
        let gpu =
            on(DeviceBackend::Cuda { uuid: Some("GPU-1".to_owned()), unsupported: Vec::new() });
        assert!(gpu.shares(&Lanes::named(["GPU-1"])) && !gpu.shares(&own), "{gpu:?}");
        // What the device cannot do, the host does.
        let mut part = plan.components[0].parts[0].clone();
        part.device = DeviceId::host();
        plan.components[0].parts.push(part);
        assert!(Lanes::of(&plan).shares(&Lanes::named(["host"])));
    }

    #[test]
    fn a_device_beside_the_host_is_free_where_none_of_the_others_is_it() {
        let all = Lanes::named(["host", "one", "two"]);
        assert!(all.has_device_beside(&Lanes::named(["one"])));
        assert!(!all.has_device_beside(&Lanes::named(["one", "two"])));
    }
}
