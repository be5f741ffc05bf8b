//! Where components may not compute: what a host profile's `allow` and `forbid` leave of a machine.
//!
//! ```text
//! allow   cond=cuda1&host        nowhere else
//! forbid  all=host,vae=cuda0     not there
//! ```
//! Of `allow` the narrowest entry that means a component counts, of `forbid` all do. Neither
//! chooses a place, and no place is chosen or pinned against them.

use protocol::profile::ComponentProfile;

use super::resolve::{check_subjects, chosen, device};
use super::subject::reach;
use super::{Entry, Flag, Pin, PinError, Pins};
use crate::inventory::Inventory;

/// Devices as written.
pub(super) type DeviceNames = Vec<String>;

pub(super) const ALLOW: Flag = Flag {
    name: "the host profile's allow",
    example: "write the devices that components may have, as cond=cuda1&host",
};
pub(super) const FORBID: Flag = Flag {
    name: "the host profile's forbid",
    example: "write the devices that components must not have, as dit=host,vae=cuda1",
};

/// Reads `cuda1&host`.
pub(super) fn places(text: &str) -> Result<DeviceNames, String> {
    let name = |name: &str| match name.trim() {
        "" => Err("a device has no name".to_owned()),
        name => Ok(name.to_lowercase()),
    };
    text.split('&').map(name).collect()
}

impl Pins {
    /// Whether all devices that the limits name are there.
    ///
    /// # Errors
    /// A name is no device's, or several devices'.
    pub(super) fn check_limits(&self, inventory: &Inventory) -> Result<(), PinError> {
        let allowed = self.allow.iter().map(|entry| indices(ALLOW, entry, inventory));
        let forbidden = self.forbid.iter().map(|entry| indices(FORBID, entry, inventory));
        allowed.chain(forbidden).try_for_each(|found| found.map(drop))
    }

    /// Fills in where each component must not be.
    ///
    /// # Errors
    /// A name is unknown or means several; or a component is left nothing at all.
    pub(super) fn limit(
        &self,
        components: &[ComponentProfile],
        inventory: &Inventory,
        pins: &mut [Pin],
    ) -> Result<(), PinError> {
        check_subjects(ALLOW, &self.allow, components)?;
        check_subjects(FORBID, &self.forbid, components)?;
        let all = || (0..inventory.devices.len()).map(Some).chain([None]);
        for (index, pin) in pins.iter_mut().enumerate() {
            let mut forbidden = Vec::new();
            let allowed = chosen(ALLOW, &self.allow, components, index)?;
            if let Some(entry) = allowed {
                let allowed = indices(ALLOW, entry, inventory)?;
                forbidden.extend(all().filter(|place| !allowed.contains(place)));
            }
            let mut last = allowed.map(|entry| (ALLOW, entry));
            for entry in &self.forbid {
                if reach(&entry.subject, components, index).is_some() {
                    forbidden.extend(indices(FORBID, entry, inventory)?);
                    last = Some((FORBID, entry));
                }
            }
            pin.forbidden = all().filter(|place| forbidden.contains(place)).collect();
            let possible = |place: &Option<usize>| place.is_some() || inventory.host.compute;
            if let (Some((flag, entry)), true) =
                (last, all().filter(possible).all(|place| pin.forbidden.contains(&place)))
            {
                let problem = format!("{} may be on no device at all", components[index].name);
                return Err(flag.hinted(&entry.text, problem, "leave it a device, or the host"));
            }
        }
        Ok(())
    }

    /// Which of the profile's keys keeps a component from a place, as written.
    pub(super) fn forbidding(
        &self,
        components: &[ComponentProfile],
        index: usize,
        place: Option<usize>,
        inventory: &Inventory,
    ) -> Result<Option<String>, PinError> {
        for entry in &self.forbid {
            let means = reach(&entry.subject, components, index).is_some();
            if means && indices(FORBID, entry, inventory)?.contains(&place) {
                return Ok(Some(format!("forbid = \"{}\"", entry.text)));
            }
        }
        let allowed = chosen(ALLOW, &self.allow, components, index)?;
        match allowed {
            Some(entry) if !indices(ALLOW, entry, inventory)?.contains(&place) => {
                Ok(Some(format!("allow = \"{}\"", entry.text)))
            }
            _ => Ok(None),
        }
    }
}

fn indices(
    flag: Flag,
    entry: &Entry<DeviceNames>,
    inventory: &Inventory,
) -> Result<Vec<Option<usize>>, PinError> {
    entry.value.iter().map(|name| device(flag, name, &entry.text, inventory)).collect()
}
