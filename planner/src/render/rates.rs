//! How the figures are known that predictions rest on: measured here, declared by a profile, or
//! assumed.

use protocol::{DeviceId, Plan};
use serde::Serialize;

use crate::inventory::{Device, HostFacts, Inventory, Source, Speeds};

/// How the figures of one processor and its memory are known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// The device, or `host`.
    pub device: String,
    /// Its rates of computing: as the least certain of them.
    pub compute: Source,
    /// Where the rate of its memory comes from.
    pub memory: Source,
    /// Devices only: the link's rates, as the less certain of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Source>,
    /// Devices only: what context and libraries take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Source>,
    /// Host only: the rate of files outside of the page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Source>,
    /// Host only: the rate of files in the page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache: Option<Source>,
    /// Components whose times were measured in runs, here or on a processor alike: predictions go
    /// by those.
    pub runs_of: Vec<String>,
}

/// The host's, then each device's in the order of the inventory.
pub fn rates(inventory: &Inventory) -> Vec<Rates> {
    let devices = inventory.devices.iter().map(Rates::of_device);
    [Rates::of_host(&inventory.host)].into_iter().chain(devices).collect()
}

/// A line for the host and for each device; with a plan, for the devices that it uses.
pub fn text(inventory: &Inventory, plan: Option<&Plan>) -> String {
    let is_used = |rates: &&Rates| match plan {
        Some(plan) => rates.storage.is_some() || plan.uses(&DeviceId(rates.device.clone())),
        None => true,
    };
    let lines: Vec<String> = rates(inventory).iter().filter(is_used).map(Rates::line).collect();
    lines.join("\n")
}

impl Rates {
    fn of_host(host: &HostFacts) -> Rates {
        Rates {
            storage: Some(host.storage_bytes_per_s.source),
            page_cache: Some(host.page_cache_bytes_per_s.source),
            ..Rates::of(DeviceId::host().0, &host.speeds)
        }
    }

    fn of_device(device: &Device) -> Rates {
        let links = [device.link_bytes_per_s, device.link_back_bytes_per_s];
        Rates {
            link: links.iter().map(|rate| rate.source).max(),
            overhead: Some(device.overhead_source),
            ..Rates::of(device.id.clone(), &device.speeds)
        }
    }

    fn of(device: String, speeds: &Speeds) -> Rates {
        let compute = [
            speeds.f32_flops_per_s,
            speeds.half_flops_per_s,
            speeds.attention_flops_per_s,
            speeds.convolution_flops_per_s,
        ];
        Rates {
            device,
            // The later a source stands in its declaration, the less certain it is.
            compute: compute.map(|rate| rate.source).into_iter().max().expect("four of them"),
            memory: speeds.memory_bytes_per_s.source,
            link: None,
            overhead: None,
            storage: None,
            page_cache: None,
            runs_of: speeds.corrections.keys().cloned().collect(),
        }
    }

    fn line(&self) -> String {
        let Rates { device, compute, memory, .. } = self;
        let mut line = format!("rates: {device}: compute {compute}, memory {memory}");
        for (name, source) in [
            ("link", self.link),
            ("overhead", self.overhead),
            ("storage", self.storage),
            ("page cache", self.page_cache),
        ] {
            if let Some(source) = source {
                line.push_str(&format!(", {name} {source}"));
            }
        }
        if !self.runs_of.is_empty() {
            line.push_str(&format!("; measured in runs: {}", self.runs_of.join(", ")));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use protocol::Bytes;

    use super::*;
    use crate::inventory::Rate;
    use crate::inventory::tests::{device_of, host_of};

    #[test]
    fn the_least_certain_rate_counts() {
        let mut device = device_of("virtual0", Bytes::gib(1), Bytes::gib(1));
        device.link_back_bytes_per_s = Rate::assumed(1e9);
        device.speeds.corrections.insert("dit".to_owned(), 1.5);
        let host = host_of(Bytes::gib(8), Bytes::gib(8));
        let inventory = Inventory {
            source: "test".to_owned(),
            host,
            devices: vec![device],
            why_no_devices: None,
        };
        assert_eq!(
            text(&inventory, None),
            "rates: host: compute assumed, memory measured, storage measured, page cache measured\n\
             rates: virtual0: compute assumed, memory declared, link assumed, overhead declared; \
             measured in runs: dit"
        );
        let json = serde_json::to_value(rates(&inventory)).expect("plain data");
        assert_eq!(json[1]["link"], "assumed");
        assert_eq!(json[1]["runs_of"], serde_json::json!(["dit"]));
        assert_eq!(json[1].get("storage"), None);
        assert_eq!(json[0].get("link"), None);
    }
}
