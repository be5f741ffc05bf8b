//! Pins that are changed for another plan beside the one that was asked for.

use protocol::profile::ComponentProfile;

use super::resolve::indices;
use super::subject::reach;
use super::{ALL, BACKEND, Entry, PinError, Pins, devices, entries};
use crate::inventory::{Inventory, names};

impl Pins {
    /// The value of `--backend` that also puts everything on a device that it does not speak of, or
    /// that is on the host with all; `None` where it puts all elsewhere.
    pub fn with_rest_on(&self, device: &str) -> Option<String> {
        let (all, others): (Vec<_>, Vec<_>) =
            self.backend.iter().partition(|entry| entry.subject == ALL);
        let is_host = |(name, _): &(String, Option<u32>)| names::is_host(name);
        if all.iter().any(|entry| !entry.value.iter().all(is_host)) {
            return None;
        }
        let rest = format!("{ALL}={device}");
        let entries = others.iter().map(|entry| entry.text.as_str());
        Some(entries.chain([rest.as_str()]).collect::<Vec<_>>().join(","))
    }

    /// These pins without entries that mean none of the components.
    pub fn of_components(&self, components: &[ComponentProfile]) -> Pins {
        Pins {
            backend: meant(&self.backend, components),
            params: meant(&self.params, components),
            split: meant(&self.split, components),
            lookahead: meant(&self.lookahead, components),
            allow: meant(&self.allow, components),
            forbid: meant(&self.forbid, components),
        }
    }

    /// These pins with another value of `--backend`.
    ///
    /// # Errors
    /// It is no list of `component=devices`.
    pub fn with_backend(&self, backend: &str) -> Result<Pins, PinError> {
        Ok(Pins { backend: entries(BACKEND, Some(backend), devices)?, ..self.clone() })
    }

    /// These pins without what pins anything to a device.
    ///
    /// # Errors
    /// A name in them is no device's, or several devices'.
    pub fn without(&self, device: usize, inventory: &Inventory) -> Result<Pins, PinError> {
        let mut pins = self.clone();
        pins.backend.clear();
        for entry in &self.backend {
            if !indices(entry, inventory)?.contains(&Some(device)) {
                pins.backend.push(entry.clone());
            }
        }
        Ok(pins)
    }
}

/// The entries that mean any of the components.
fn meant<T: Clone>(entries: &[Entry<T>], components: &[ComponentProfile]) -> Vec<Entry<T>> {
    let means = |entry: &&Entry<T>| {
        (0..components.len()).any(|at| reach(&entry.subject, components, at).is_some())
    };
    entries.iter().filter(means).cloned().collect()
}

#[cfg(test)]
mod tests {
    use protocol::Bytes;

    use super::*;
    use crate::inventory::tests::{device_of, host_of};

    fn pins(backend: &str) -> Pins {
        Pins::parse(Some(backend), None, None, None).expect("good pins")
    }

    #[test]
    fn the_rest_is_put_where_nothing_is_said() {
        assert_eq!(Pins::default().with_rest_on("cuda0").as_deref(), Some("all=cuda0"));
        let more = pins("te=cpu, VAE=cuda1").with_rest_on("cuda0").expect("there is a rest");
        assert_eq!(more, "te=cpu,VAE=cuda1,all=cuda0");
        assert!(pins("te=cpu").with_backend(&more).is_ok());
        let moved = pins("vae=cuda1,all=cpu").with_rest_on("cuda0");
        assert_eq!(moved.as_deref(), Some("vae=cuda1,all=cuda0"));
        assert_eq!(pins("cuda1").with_rest_on("cuda0"), None);
    }

    #[test]
    fn a_device_is_taken_out_with_all_that_is_pinned_to_it() {
        let device = |id: &str| device_of(id, Bytes::gib(8), Bytes::gib(8));
        let inventory = Inventory {
            source: "test".to_owned(),
            devices: vec![device("cuda0"), device("cuda1")],
            host: host_of(Bytes::gib(32), Bytes::gib(16)),
            why_no_devices: None,
        };
        let left = pins("dit=cuda0&cuda1,vae=cuda1,te=cpu").without(0, &inventory);
        assert_eq!(left, Ok(pins("vae=cuda1,te=cpu")));
    }
}
