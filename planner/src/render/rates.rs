//! How the figures are known that predictions rest on: measured here, declared by a profile, or
//! assumed.

use protocol::{DeviceId, Phase, Plan};
use serde::Serialize;

use crate::inventory::efficiency::{
    ATTENTION, BLOCK_PRODUCTS, BYTE_PRODUCTS, CONVOLUTION, HALF_PRODUCTS, INTEGER_PRODUCTS, MEMORY,
    TIMES_SPREAD,
};
use crate::inventory::{Device, HostFacts, Inventory, Rate, Source, Speeds};
use crate::solve::shown_ms;

/// How the figures of one processor and its memory are known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rates {
    /// The device, or `host`.
    pub device: String,
    /// Its rates of computing: as the least certain of them.
    pub compute: Source,
    /// Where the rate of its memory comes from.
    pub memory: Source,
    /// Of rates from a datasheet, the parts that predictions count with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reached: Option<ReachedParts>,
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

/// The parts of a datasheet's figures that programs reach.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReachedParts {
    /// Products with 16-bit weights.
    pub products: f64,
    /// Products with 8-bit floats.
    pub byte_products: f64,
    /// Products with quantised blocks.
    pub block_products: f64,
    /// Products of bytes, of the datasheet's rate for these: where it has one, they count in place
    /// of the two before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integer_products: Option<f64>,
    /// Scaled dot products of queries, keys and values.
    pub attention: f64,
    /// Those of more than one pixel, in operations per second.
    pub convolution: f64,
    /// Bytes per second between the processors and device memory.
    pub memory: f64,
}

/// Between which times a job should be where rates are a datasheet's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RangeMs {
    /// If programs differ on this device as much as on the one that was best beside its prediction.
    pub low: f64,
    /// The same with the worst.
    pub high: f64,
}

/// The range of a plan's total, if any of its devices counts with a datasheet's rates: what its
/// phases there compute, faster and slower by the spread of published times.
pub fn range_ms(inventory: &Inventory, plan: &Plan) -> Option<RangeMs> {
    let unmeasured = |id: &DeviceId| {
        let speeds = inventory.device(&id.0).map(|device| &device.speeds);
        speeds.is_some_and(|s| {
            s.half_flops_per_s.source == Source::Datasheet && s.corrections.is_empty()
        })
    };
    let computed_ms = |phase: Phase| {
        let mut here = plan.components.iter().filter(|component| component.phase == phase);
        let times = if phase == Phase::Denoise { plan.job.calls_run() } else { 1 };
        let ms = plan.predicted_ms.phases[phase] * f64::from(times);
        if here.any(|component| component.devices.iter().any(unmeasured)) { ms } else { 0.0 }
    };
    let computed_ms: f64 = plan.job.timeline().iter().map(|phase| computed_ms(*phase)).sum();
    let total = plan.predicted_ms.total;
    let [fast, slow] = TIMES_SPREAD.map(|times| total + computed_ms * (times - 1.0));
    (computed_ms > 0.0).then_some(RangeMs { low: fast, high: slow })
}

/// The range as a line, where there is one.
pub fn range_text(inventory: &Inventory, plan: &Plan) -> Option<String> {
    let RangeMs { low, high } = range_ms(inventory, plan)?;
    let [fast, slow] = TIMES_SPREAD;
    let (low, high) = (shown_ms(low), shown_ms(high));
    Some(format!(
        "range: {low} to {high}, as nothing is measured: published steps took {fast} to {slow} times what is predicted for them"
    ))
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
        let half = speeds.half_flops_per_s;
        // What is declared of products is declared of what is taken to run as they do.
        let derived = |rate: Rate| match rate.source {
            Source::Assumed if rate.value == half.value => half.source,
            source => source,
        };
        let compute = [
            speeds.f32_flops_per_s.source,
            half.source,
            derived(speeds.attention_flops_per_s),
            derived(speeds.convolution_flops_per_s),
        ];
        let reached = (half.source == Source::Datasheet).then_some(ReachedParts {
            products: HALF_PRODUCTS.part,
            byte_products: BYTE_PRODUCTS.part,
            block_products: BLOCK_PRODUCTS.part,
            integer_products: speeds.integer_flops_per_s.map(|_| INTEGER_PRODUCTS.part),
            attention: ATTENTION.part,
            convolution: CONVOLUTION.part,
            memory: MEMORY.part,
        });
        Rates {
            device,
            // The later a source stands in its declaration, the less certain it is.
            compute: compute.into_iter().max().expect("four of them"),
            memory: speeds.memory_bytes_per_s.source,
            reached,
            link: None,
            overhead: None,
            storage: None,
            page_cache: None,
            runs_of: speeds.corrections.keys().cloned().collect(),
        }
    }

    fn line(&self) -> String {
        let Rates { device, compute, memory, .. } = self;
        let mut line = match &self.reached {
            None => format!("rates: {device}: compute {compute}, memory {memory}"),
            Some(ReachedParts {
                products,
                block_products,
                integer_products,
                attention,
                convolution,
                memory: part,
                ..
            }) => {
                let quantised = match integer_products {
                    Some(part) => format!("of bytes × {part}"),
                    None => format!("quantised × {block_products}"),
                };
                format!(
                    "rates: {device}: compute {compute} × {products} ({quantised}, attention × {attention}, convolutions × {convolution}), memory {memory} × {part}"
                )
            }
        };
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
    use crate::inventory::speeds::CUDA_STARTS_PER_S;
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
             rates: virtual0: compute declared, memory declared, link assumed, overhead declared; \
             measured in runs: dit"
        );
        let json = serde_json::to_value(rates(&inventory)).expect("plain data");
        assert_eq!(json[1]["link"], "assumed");
        assert_eq!(json[1]["runs_of"], serde_json::json!(["dit"]));
        assert_eq!(json[1].get("storage"), None);
        assert_eq!(json[0].get("link"), None);
    }

    #[test]
    fn a_datasheet_is_told_with_the_parts_that_are_reached() {
        let mut device = device_of("cuda0", Bytes::gib(1), Bytes::gib(1));
        let sheet = [3e13, 6e13, 5e11].map(Rate::datasheet);
        device.speeds = Speeds::new(sheet[0], sheet[1], sheet[2], CUDA_STARTS_PER_S);
        let rates = Rates::of_device(&device);
        let line = rates.line();
        assert!(line.starts_with("rates: cuda0: compute datasheet × 0.78 (quantised"), "{line}");
        assert!(line.contains("memory datasheet × 0.8, link"), "{line}");
        assert_eq!(serde_json::to_value(&rates).expect("plain data")["reached"]["memory"], 0.8);
        device.speeds.integer_flops_per_s = Some(Rate::datasheet(2.4e14));
        let line = Rates::of_device(&device).line();
        assert!(line.contains("× 0.78 (of bytes × 0.63, attention"), "{line}");
        device.speeds.half_flops_per_s = Rate::measured(6e13);
        assert_eq!(Rates::of_device(&device).reached, None);
    }
}
