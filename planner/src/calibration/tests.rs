//! Made-up machines, devices and answers for the tests of calibration.

mod apply;
mod file;
mod learn;
mod store;

use protocol::calibration::{Calibration as Answer, MeasuredDevice, MeasuredSpeeds, WorkSpeed};
use protocol::profile::WorkKind;
use protocol::{Bytes, DeviceId, StorageType};

use super::content::Content;
use super::*;
use crate::inventory::host::{assumed_flops, assumed_memory_rate, host_speeds};
use crate::inventory::tests::{device_of, host_of};
use crate::inventory::{ASSUMED_CONTEXT_BYTES, Device, HostFacts, Part, Rate, Source, Speeds};
use crate::profile::Profile;

/// A host of eight cores of which nothing was measured.
fn host() -> HostFacts {
    HostFacts {
        speeds: host_speeds(assumed_flops(8), assumed_memory_rate(8)),
        storage_bytes_per_s: Rate::assumed(1e9),
        page_cache_bytes_per_s: Rate::assumed(5e9),
        ..host_of(Bytes::gib(16), Bytes::gib(12))
    }
}

fn machine() -> Machine {
    Machine::of(&host())
}

/// A real GPU of which nothing was measured.
fn gpu() -> Device {
    Device {
        uuid: Some("GPU-1".to_owned()),
        driver: Some("580.1".to_owned()),
        speeds: Speeds::new(Rate::assumed(3e13), Rate::assumed(6e13), Rate::assumed(5e11), 2e5),
        link_bytes_per_s: Rate::assumed(2e10),
        link_back_bytes_per_s: Rate::assumed(2e10),
        overhead_bytes: ASSUMED_CONTEXT_BYTES,
        overhead_source: Source::Assumed,
        ..device_of("cuda0", Bytes::gib(8), Bytes::gib(7))
    }
}

/// This machine with a GPU.
fn with_gpu() -> Inventory {
    Inventory {
        source: Inventory::THIS_MACHINE.to_owned(),
        host: host(),
        devices: vec![gpu()],
        why_no_devices: None,
    }
}

/// What a profile makes of this machine.
fn profiled(text: &str) -> Inventory {
    let profile = Profile::parse(text, "test").expect("a good profile");
    profile.inventory_on(&host())
}

/// Two virtual devices on this machine.
fn with_virtual() -> Inventory {
    profiled(
        r#"
        name = "two"
        [[device]]
        kind = "virtual"
        total = "2GiB"
        link = "2GiB/s"
        [[device]]
        kind = "virtual"
        total = "2GiB"
        link = "1GiB/s"
        "#,
    )
}

/// Speeds that are no assumption's.
fn speeds(scale: f64) -> MeasuredSpeeds {
    let work = |kind, flops_per_s| WorkSpeed { kind, flops_per_s: scale * flops_per_s };
    MeasuredSpeeds {
        work: vec![
            work(WorkKind::Matmul(StorageType::F32), 1.1e11),
            work(WorkKind::Matmul(StorageType::F16), 0.9e11),
            work(WorkKind::Matmul(StorageType::BF16), 1.0e11),
            work(WorkKind::Attention, 0.7e11),
            work(WorkKind::Convolution, 0.6e11),
        ],
        memory_bytes_per_s: scale * 1.7e10,
        starts_per_s: scale * 7e4,
    }
}

/// What the executor answers for all devices of an inventory.
fn answer(inventory: &Inventory) -> Answer {
    let devices = inventory.devices.iter().map(|device| MeasuredDevice {
        id: DeviceId(device.id.clone()),
        speeds: speeds(2.0),
        link_bytes_per_s: 1.5e10,
        link_back_bytes_per_s: 1.4e10,
        overhead_bytes: Some(Bytes::mib(300)),
    });
    Answer {
        host: speeds(1.0),
        storage_bytes_per_s: Some(3e9),
        page_cache_bytes_per_s: 6e9,
        devices: devices.collect(),
    }
}

/// The file's content after `berth calibrate` for an inventory.
fn recorded(inventory: &Inventory) -> Content {
    let mut content = Content::new(&machine());
    content.record(&machine(), inventory, &answer(inventory));
    content
}

/// A calibration that a command has read.
fn holding(content: Content) -> Calibration {
    Calibration { machine: machine(), content, store: None, learns: true }
}
