//! Profiles that name GPUs, on machines that have them, have others, or have none.

use protocol::plan::{DeviceBackend, DevicePlan, PhaseBytes};

use super::*;
use crate::engine::reservations::OtherReservations;
use crate::inventory::nvml::Detected;
use crate::inventory::tests::{device_of, host_of};
use crate::inventory::{ASSUMED_CONTEXT_BYTES, HostFacts, Inventory, Rate, names};
use crate::profile::Profile;
use crate::render::testing;

/// A card of 24 GiB of which 10 are free, and one of 6 GiB that is the other way round in CUDA's
/// order.
fn detect(_: &HostFacts) -> Detected {
    let gpu = |id: &str, ordinal, total, free| Device {
        uuid: Some(format!("GPU-{id}")),
        ordinal: Some(ordinal),
        name: format!("Card {id}"),
        driver: Some("580.1".to_owned()),
        link_bytes_per_s: Rate::assumed(2e10),
        overhead_bytes: ASSUMED_CONTEXT_BYTES,
        overhead_source: Source::Assumed,
        ..device_of(id, Bytes::gib(total), Bytes::gib(free))
    };
    let devices = vec![gpu("cuda0", 1, 6, 6), gpu("cuda1", 0, 24, 10)];
    Detected { devices, why_none: None }
}

fn nothing(_: &HostFacts) -> Detected {
    Detected { devices: Vec::new(), why_none: Some("no NVIDIA driver".to_owned()) }
}

/// A profile of `cuda` devices with these keys each.
fn profile(devices: &[&str]) -> Profile {
    let devices = devices.iter().map(|keys| format!("[[device]]\nkind = \"cuda\"\n{keys}\n"));
    let text = format!("name = \"t\"\n{}", devices.collect::<String>());
    Profile::parse(&text, "t").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn here(devices: &[&str], detect: &dyn Fn(&HostFacts) -> Detected) -> Inventory {
    let host = host_of(Bytes::gib(64), Bytes::gib(32));
    profile(devices).inventory_with(&host, detect)
}

fn free(inventory: &Inventory) -> Vec<u64> {
    inventory.devices.iter().map(|device| device.free_bytes.0 >> 20).collect()
}

const TWO: [&str; 2] = ["ordinal = 0\ntotal = \"8GiB\"", "uuid = \"GPU-cuda1\"\ntotal = \"12GiB\""];

#[test]
fn parts_share_what_is_free_and_have_the_rest_of_their_gpu() {
    let inventory = here(&TWO, &detect);
    // 10 GiB as 8 to 12.
    assert_eq!(free(&inventory), [4096, 6144]);
    let context = ASSUMED_CONTEXT_BYTES;
    for (index, (device, overhead)) in
        inventory.devices.iter().zip([context, Bytes::ZERO]).enumerate()
    {
        assert_eq!(device.id, format!("cuda{index}"));
        assert_eq!((device.uuid.as_deref(), device.ordinal), (Some("GPU-cuda1"), Some(0)));
        assert_eq!((device.name.as_str(), device.driver.as_deref()), ("Card cuda1", Some("580.1")));
        assert_eq!(device.link_bytes_per_s, Rate::assumed(2e10));
        assert_eq!(device.speeds.f32_flops_per_s.value, 3e13);
        assert_eq!((device.overhead_bytes, device.missing.as_ref()), (overhead, None));
        assert_eq!(device.lasting_name(), format!("GPU-cuda1/{index}"));
        assert_eq!(inventory.context_of(index), 0);
    }
    // With less declared than is free, each has what it declares.
    let small = ["ordinal = 0\ntotal = \"2GiB\"", "ordinal = 0\ntotal = \"3GiB\""];
    assert_eq!(free(&here(&small, &detect)), [2048, 3072]);
    // What is declared of rates and overhead holds.
    let declared = "ordinal = 0\ntotal = \"2GiB\"\nlink = \"1GB/s\"\nflops = \"1TFLOP/s\"\noverhead = \"64MiB\"\npinned = \"1MiB\"";
    let declared = here(&["ordinal = 0\ntotal = \"2GiB\"", declared], &detect);
    assert_eq!(declared.devices[0].overhead_bytes, Bytes::mib(64));
    let device = &declared.devices[1];
    assert_eq!((device.overhead_bytes, device.pinned_bytes), (Bytes::ZERO, Bytes::mib(1)));
    assert_eq!(device.link_back_bytes_per_s, Rate::declared(1e9));
    assert_eq!(device.speeds.half_flops_per_s, Rate::declared(1e12));
}

#[test]
fn one_entry_is_the_whole_gpu_or_a_part_of_it() {
    for (keys, expected, part) in [
        ("ordinal = 1\ntotal = \"6GiB\"", (6, 6), false),
        // A total that the card does not have is the card's; others' use is read, not believed.
        ("uuid = \"GPU-cuda0\"\ntotal = \"7GiB\"\nused_by_others = \"5GiB\"", (6, 6), false),
        ("ordinal = 0\ntotal = \"24GiB\"", (24, 10), false),
        ("ordinal = 0\ntotal = \"12GiB\"", (12, 10), true),
        ("ordinal = 0\ntotal = \"4GiB\"", (4, 4), true),
    ] {
        let device = here(&[keys], &detect).devices.remove(0);
        let gib = |bytes: Bytes| bytes.0 >> 30;
        assert_eq!((gib(device.total_bytes), gib(device.free_bytes)), expected, "{keys}");
        assert_eq!(device.part.is_some(), part, "{keys}");
        assert_eq!(device.overhead_bytes, ASSUMED_CONTEXT_BYTES, "{keys}");
    }
}

#[test]
fn a_gpu_that_is_not_here_is_imagined_and_told() {
    let two = [
        "ordinal = 7\ntotal = \"8GiB\"",
        "ordinal = 7\ntotal = \"4GiB\"\nused_by_others = \"1GiB\"",
    ];
    for (detect, why) in [
        (
            &detect as &dyn Fn(&HostFacts) -> Detected,
            "ordinal 1 (GPU-cuda0), ordinal 0 (GPU-cuda1)",
        ),
        (&nothing, "no NVIDIA driver"),
    ] {
        let inventory = here(&two, detect);
        assert_eq!(free(&inventory), [8192, 3072]);
        for device in &inventory.devices {
            let missing = device.missing.as_deref().expect("a reason");
            assert!(missing.starts_with("GPU ordinal 7 is not here") && missing.contains(why));
            assert_eq!((device.uuid.as_ref(), device.ordinal), (None, None));
        }
        assert_eq!(inventory.devices[1].overhead_bytes, Bytes::ZERO, "one context");
    }
    // A profile that names none asks for none.
    let panics = |_: &HostFacts| -> Detected { panic!("nobody asked for GPUs") };
    let keys =
        "total = \"8GiB\"\nlink = \"1GB/s\"\nflops = \"1TFLOP/s\"\nmemory_bandwidth = \"1GB/s\"";
    assert_eq!(here(&[keys], &panics).devices[0].missing, None);
}

#[test]
fn what_other_processes_plan_is_taken_off_the_gpu_first() {
    let mut inventory = here(&TWO, &detect);
    let others = OtherReservations::made_up(&[("GPU-cuda1", Bytes::gib(19))]);
    others.take_from(&mut inventory, true);
    // 5 GiB are left of 24.
    assert_eq!(free(&inventory), [2048, 3072]);
}

#[test]
fn parts_are_told_apart_by_their_ids_and_not_by_their_uuid() {
    let inventory = here(&TWO, &detect);
    assert_eq!(names::device("cuda1", &inventory.devices), Ok(1));
    let several = names::device("GPU-cuda1", &inventory.devices);
    assert!(
        matches!(several, Err(names::NameError::Several(known)) if known == ["cuda0", "cuda1"])
    );
}

#[test]
fn devices_of_a_plan_are_found_again() {
    let mut plan = testing::plan();
    let on = |id: &str, uuid: &str| DevicePlan {
        backend: DeviceBackend::Cuda { uuid: Some(uuid.to_owned()), unsupported: Vec::new() },
        phases: Vec::<PhaseBytes>::new(),
        ..testing::device(id, [1, 1, 1])
    };
    plan.devices = vec![on("a", "GPU-cuda1"), on("b", "GPU-cuda0"), on("c", "GPU-cuda1")];
    assert_eq!(here(&TWO, &detect).places_of(&plan), [Some(0), None, Some(1)]);
    // Where the card is not divided, both are on it.
    let whole = ["ordinal = 1\ntotal = \"6GiB\"", "ordinal = 0\ntotal = \"24GiB\""];
    assert_eq!(here(&whole, &detect).places_of(&plan), [Some(1), Some(0), Some(1)]);
    // A third part of two is nowhere.
    plan.devices.push(on("d", "GPU-cuda1"));
    assert_eq!(here(&TWO, &detect).places_of(&plan)[3], None);
}
