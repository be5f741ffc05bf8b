//! How people name a device: by its id, by its lasting name (`uuid`), or by a start of either that
//! means only one.
//!
//! Not here: what a list of names is for, and the errors of it, which say where the name stood.

use std::collections::BTreeSet;

use super::Device;

/// The names of the host, beside the devices of an inventory.
pub const HOST_NAMES: [&str; 2] = ["cpu", "host"];

/// A name that means no device, or several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameError {
    /// None; there are these.
    Unknown(Vec<String>),
    /// Any of these.
    Several(Vec<String>),
}

/// The device that a name means, by index; letters' case does not count. A whole id or uuid wins
/// over those that it begins.
pub fn device(name: &str, devices: &[Device]) -> Result<usize, NameError> {
    find(name, devices, &[]).map(|index| index.expect("the host is not among them"))
}

/// As [`device`], with the host among them: `None`.
pub fn device_or_host(name: &str, devices: &[Device]) -> Result<Option<usize>, NameError> {
    find(name, devices, &HOST_NAMES)
}

/// Whether a name is the host's.
pub fn is_host(name: &str) -> bool {
    HOST_NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn find(name: &str, devices: &[Device], hosts: &[&str]) -> Result<Option<usize>, NameError> {
    let ids = || devices.iter().enumerate().map(|(index, d)| (d.id.as_str(), Some(index)));
    let uuids =
        devices.iter().enumerate().filter_map(|(index, d)| Some((d.uuid.as_deref()?, Some(index))));
    let shown = || ids().chain(hosts.iter().map(|name| (*name, None)));
    let names: Vec<(String, Option<usize>)> =
        shown().chain(uuids).map(|(known, index)| (known.to_lowercase(), index)).collect();
    let name = name.trim().to_lowercase();
    let known = |only: &[Option<usize>]| {
        let named = shown().filter(|(_, index)| only.is_empty() || only.contains(index));
        named.map(|(known, _)| known.to_owned()).collect()
    };
    let meant = |is_it: &dyn Fn(&str) -> bool| {
        let meant = names.iter().filter(|(known, _)| is_it(known)).map(|(_, index)| *index);
        meant.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    // Parts of one GPU have the same uuid.
    let mut meant_by = meant(&|known| known == name);
    if meant_by.is_empty() && !name.is_empty() {
        meant_by = meant(&|known| known.starts_with(&name));
    }
    match meant_by.as_slice() {
        [index] => Ok(*index),
        [] => Err(NameError::Unknown(known(&[]))),
        several => Err(NameError::Several(known(several))),
    }
}

#[cfg(test)]
mod tests {
    use protocol::Bytes;

    use super::*;
    use crate::inventory::tests::device_of;

    fn devices() -> Vec<Device> {
        let uuids = [Some("GPU-ab12"), Some("GPU-AB34"), None, None];
        let ids = ["cuda0", "cuda1", "virtual1", "virtual10"];
        let device = |(id, uuid): (&str, Option<&str>)| Device {
            uuid: uuid.map(str::to_owned),
            ..device_of(id, Bytes::gib(1), Bytes::gib(1))
        };
        ids.into_iter().zip(uuids).map(device).collect()
    }

    #[test]
    fn a_device_is_known_by_any_start_that_means_only_it() {
        for (name, index) in [
            ("cuda0", 0),
            (" CUDA1 ", 1),
            ("virtual1", 2),
            ("virtual10", 3),
            ("GPU-ab12", 0),
            ("gpu-AB3", 1),
        ] {
            assert_eq!(device(name, &devices()), Ok(index), "{name}");
        }
        let several = |names: &[&str]| {
            Err(NameError::Several(names.iter().map(|name| (*name).to_owned()).collect()))
        };
        assert_eq!(device("cuda", &devices()), several(&["cuda0", "cuda1"]));
        assert_eq!(device("GPU-ab", &devices()), several(&["cuda0", "cuda1"]));
        assert_eq!(device("v", &devices()), several(&["virtual1", "virtual10"]));
        for name in ["", " ", "cuda2", "cuda00", "GPU-c", "host", "é"] {
            let error = device(name, &devices()).expect_err(name);
            assert!(matches!(&error, NameError::Unknown(known) if known.len() == 4), "{name}");
        }
    }

    #[test]
    fn the_host_is_one_of_them_only_where_it_may_be() {
        for name in ["host", "CPU", "h", "cp"] {
            assert_eq!(device_or_host(name, &devices()), Ok(None), "{name}");
            assert!(device(name, &devices()).is_err(), "{name}");
        }
        let error = device_or_host("c", &devices()).expect_err("cuda or cpu");
        assert!(
            matches!(error, NameError::Several(names) if names == ["cuda0", "cuda1", "cpu", "host"])
        );
        assert!(is_host("Host") && is_host("cpu") && !is_host("h"));
    }
}
