//! What loaded plans say of memory, and what runs measured of it.

use std::collections::{BTreeMap, HashMap};

use protocol::{Bytes, UsageReport};
use serde_json::Value;

use super::registry::{Figures, Labelled};

/// UUIDs of devices by the names that plans give them; empty for what has none.
pub type DeviceNames = HashMap<String, String>;

/// How usage reports call RAM.
const HOST: &str = "host";

/// Shows what the plans that are loaded, as `plan --json` has them, hold together.
pub fn show<'a>(
    figures: &Figures,
    names: &DeviceNames,
    plans: impl Iterator<Item = &'a Value> + Clone,
) {
    let of_host = |key| plans.clone().map(move |plan| bytes(&plan["host"], key));
    set_host(figures, "idle", of_host("idle_bytes").sum());
    set_host(
        figures,
        "planned_peak",
        LoadedBytes::all(plans.clone().map(|plan| &plan["host"])).peak(),
    );
    if let Some(budget) = of_host("budget_bytes").max() {
        set_host(figures, "budget", budget);
    }
    figures.pinned_bytes.set(gauge(of_host("pinned_bytes").sum()));
    let mut held: BTreeMap<&str, LoadedBytes> =
        names.keys().map(|name| (name.as_str(), LoadedBytes::default())).collect();
    for device in plans.flat_map(|plan| plan["devices"].as_array().into_iter().flatten()) {
        let Some(name) = device["id"].as_str().filter(|name| names.contains_key(*name)) else {
            continue;
        };
        set_device(figures, names, name, "budget", bytes(device, "budget_bytes"));
        held.entry(name).or_default().add(device);
    }
    for (name, held) in held {
        set_device(figures, names, name, "planned_peak", held.peak());
    }
}

/// What loaded plans hold of one device, or of the RAM, while one of them runs.
#[derive(Default)]
struct LoadedBytes {
    idle: Bytes,
    /// What a run takes beside its own idle bytes.
    active: Bytes,
}

impl LoadedBytes {
    fn all<'a>(places: impl Iterator<Item = &'a Value>) -> LoadedBytes {
        let mut held = LoadedBytes::default();
        for place in places {
            held.add(place);
        }
        held
    }

    fn add(&mut self, place: &Value) {
        let (idle, peak) = (bytes(place, "idle_bytes"), bytes(place, "peak_bytes"));
        self.idle += idle;
        self.active = self.active.max(peak.saturating_sub(idle));
    }

    fn peak(&self) -> Bytes {
        self.idle + self.active
    }
}

/// Shows what a run took at most.
pub fn show_measured(figures: &Figures, names: &DeviceNames, usage: &UsageReport) {
    for device in &usage.devices {
        let (_, measured) = device.peaks();
        match device.id.0.as_str() {
            HOST => set_host(figures, "measured_peak", measured),
            name => set_device(figures, names, name, "measured_peak", measured),
        }
    }
}

/// Shows one figure of a device's memory.
pub fn set_device(figures: &Figures, names: &DeviceNames, name: &str, what: &str, value: Bytes) {
    let by = [("device", name), ("uuid", uuid(names, name)), ("what", what)];
    figures.device_memory_bytes.with(&by).set(gauge(value));
}

/// Shows one figure of the RAM.
pub fn set_host(figures: &Figures, what: &str, value: Bytes) {
    figures.host_memory_bytes.with(&[("what", what)]).set(gauge(value));
}

/// A device's own name; empty where it has none.
pub fn uuid<'a>(names: &'a DeviceNames, name: &str) -> &'a str {
    names.get(name).map_or("", String::as_str)
}

fn bytes(object: &Value, key: &str) -> Bytes {
    Bytes(object[key].as_u64().unwrap_or_default())
}

/// Bytes as a gauge holds them: no memory has 2⁶³.
pub fn gauge(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}
