//! A value for each device, as people write it: `8`, `cuda0=12,cuda1=6.5`, or `8,cuda1=6`.
//!
//! A value without a name is for every memory that no entry names, and stands first: `cuda0=1,5` is
//! more often a decimal comma than two entries. Whether there are such devices is said when the
//! list meets an inventory.

use super::cap::CapError;
use crate::inventory::Device;
use crate::inventory::names::{self, NameError};

/// Values by device, and one for those without.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DeviceValues<T> {
    pub each: Option<T>,
    pub named: Vec<(String, T)>,
}

impl<T> Default for DeviceValues<T> {
    fn default() -> DeviceValues<T> {
        DeviceValues { each: None, named: Vec::new() }
    }
}

impl<T: Copy> DeviceValues<T> {
    /// Reads a list whose values `value` reads.
    pub fn parse(
        text: &str,
        value: impl Fn(&str) -> Result<T, CapError>,
    ) -> Result<DeviceValues<T>, CapError> {
        let mut list = DeviceValues::default();
        for (position, entry) in text.split(',').enumerate() {
            let Some((device, written)) = entry.split_once('=') else {
                if position > 0 {
                    return Err(CapError::unnamed(entry));
                }
                list.each = Some(value(entry)?);
                continue;
            };
            let device = device.trim().to_lowercase();
            if device.is_empty() {
                return Err(CapError::unnamed(entry));
            }
            if list.named.iter().any(|(known, _)| *known == device) {
                return Err(CapError::twice(&device));
            }
            list.named.push((device, value(written)?));
        }
        Ok(list)
    }

    /// The value of each device that an entry names, in their order; names of the host are left
    /// out.
    pub fn of_devices(&self, devices: &[Device]) -> Result<Vec<Option<T>>, CapError> {
        let mut found = vec![None; devices.len()];
        for (name, value) in self.named.iter().filter(|(name, _)| !names::is_host(name)) {
            let index = names::device(name, devices).map_err(|unclear| match unclear {
                NameError::Unknown(known) => CapError::unknown(name, known),
                NameError::Several(several) => CapError::several(name, several),
            })?;
            if found[index].replace(*value).is_some() {
                return Err(CapError::twice(&devices[index].id));
            }
        }
        Ok(found)
    }

    /// The value that an entry gives to the host.
    pub fn of_host(&self) -> Option<T> {
        self.named.iter().find(|(name, _)| names::is_host(name)).map(|(_, value)| *value)
    }
}
