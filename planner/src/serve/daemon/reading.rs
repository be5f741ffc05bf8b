//! From a reading of the watch to the gauges of memory.

use protocol::Bytes;
use serde_json::Value;

use super::super::metrics::DeviceMemory;

/// What each device of a reading holds.
pub fn memory(reading: &Value) -> Vec<DeviceMemory> {
    let devices = reading["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let memory = |device: &Value| {
        let bytes = |key: &str| Bytes(device[key].as_u64().unwrap_or_default());
        DeviceMemory {
            device: text(&device["id"]),
            uuid: text(&device["uuid"]),
            bytes: vec![
                ("total", bytes("total_bytes")),
                ("free", bytes("free_bytes")),
                ("idle", bytes("idle_bytes")),
            ],
        }
    };
    devices.iter().map(memory).collect()
}

/// What the host's RAM has.
pub fn host(reading: &Value) -> [(&'static str, Bytes); 2] {
    let bytes = |key: &str| Bytes(reading["host"][key].as_u64().unwrap_or_default());
    [("total", bytes("total_bytes")), ("free", bytes("available_bytes"))]
}
