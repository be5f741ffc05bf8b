//! One layer of a profile, in which everything is optional, and one layer over another.

use super::{HostProfile, Profile, ProfileDevices};
use crate::inventory::Inventory;
use crate::policy::PolicyText;

/// What one file, or one profile, says.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layer {
    pub name: Option<String>,
    pub description: String,
    pub host: HostProfile,
    /// `None` where it says nothing of them.
    pub devices: Option<ProfileDevices>,
    pub policy: PolicyText,
}

impl Layer {
    /// This layer's keys, and those of `below` of which it says nothing.
    pub fn over(self, below: Layer) -> Layer {
        Layer {
            name: self.name.or(below.name),
            description: match self.description.is_empty() {
                true => below.description,
                false => self.description,
            },
            host: self.host.or(below.host),
            devices: self.devices.or(below.devices),
            policy: self.policy.over(&below.policy),
        }
    }
}

impl From<Profile> for Layer {
    fn from(profile: Profile) -> Layer {
        let Profile { name, description, host, devices, policy } = profile;
        Layer { name: Some(name), description, host, devices: Some(devices), policy }
    }
}

/// Without a word on them, name and devices are this machine's.
impl From<Layer> for Profile {
    fn from(layer: Layer) -> Profile {
        let Layer { name, description, host, devices, policy } = layer;
        Profile {
            name: name.unwrap_or_else(|| Inventory::THIS_MACHINE.to_owned()),
            description,
            host,
            devices: devices.unwrap_or(ProfileDevices::Detect),
            policy,
        }
    }
}
