//! From a reading of the watch to the gauges of memory.

use protocol::Bytes;
use serde_json::Value;

use super::super::metrics::DeviceMemory;

/// What readings tell of a device.
const KINDS: [&str; 6] = ["total", "free", "idle", "margin", "ours", "others"];

/// What each device of a reading holds.
pub fn memory(reading: &Value) -> Vec<DeviceMemory> {
    let devices = reading["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let memory = |device: &Value| {
        // What is not known is not shown.
        let known =
            |what: &'static str| Some((what, Bytes(device[format!("{what}_bytes")].as_u64()?)));
        DeviceMemory {
            device: text(&device["id"]),
            uuid: text(&device["uuid"]),
            bytes: KINDS.into_iter().filter_map(known).collect(),
        }
    };
    devices.iter().map(memory).collect()
}

/// What the host's RAM has.
pub fn host(reading: &Value) -> [(&'static str, Bytes); 2] {
    let bytes = |key: &str| Bytes(reading["host"][key].as_u64().unwrap_or_default());
    [("total", bytes("total_bytes")), ("free", bytes("available_bytes"))]
}
