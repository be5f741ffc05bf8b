//! Profiles become inventories.

use super::*;
use crate::inventory::tests::host_of;

fn inventory(profile: &str) -> Inventory {
    let profile = Profile::parse(profile, "test").expect("a good profile");
    profile.inventory_on(&host_of(Bytes::gib(16), Bytes::gib(12)))
}

#[test]
fn what_a_profile_leaves_out_is_this_machines() {
    let bare = inventory("name = \"bare\"");
    assert_eq!(bare.source, "bare");
    assert_eq!(bare.host.total_bytes, Bytes::gib(16));
    assert_eq!(bare.host.available_bytes, Bytes::gib(12));
    assert_eq!((bare.host.cores, bare.host.compute), (8, true));
    assert_eq!(bare.host.speeds.f32_flops_per_s, Rate::measured(4e11));
    assert_eq!(bare.why_no_devices.as_deref(), Some("the profile `bare` lists no device"));

    let other = inventory(
        "name = \"other\"\n[host]\nmemory = \"32GiB\"\ncores = 4\nstorage_bandwidth = \"5GB/s\"",
    );
    assert_eq!(
        (other.host.total_bytes, other.host.available_bytes),
        (Bytes::gib(32), Bytes::gib(32))
    );
    // The measured rates are of eight cores: for four there is an assumption.
    assert_eq!(other.host.speeds.f32_flops_per_s, host::assumed_flops(4));
    assert_eq!(other.host.storage_bytes_per_s, Rate::declared(5e9));
}

#[test]
fn a_control_group_limits_this_machine_not_an_imagined_one() {
    let mut this_host = host_of(Bytes::gib(16), Bytes::gib(3));
    this_host.cgroup_limit_bytes = Some(Bytes::gib(4));
    for (text, limit) in [
        ("name = \"a\"", Some(Bytes::gib(4))),
        ("name = \"a\"\n[host]\nmemory = \"64GiB\"", None),
        ("name = \"a\"\n[host]\navailable = \"8GiB\"", None),
        // Detection is of this machine.
        ("name = \"a\"\ndevices = \"detect\"\n[host]\nmemory = \"64GiB\"", Some(Bytes::gib(4))),
    ] {
        let profile = Profile::parse(text, "test").expect("a good profile");
        let inventory = profile.inventory_on(&this_host);
        let detects = profile.devices == ProfileDevices::Detect;
        assert!(!detects || inventory.host.available_bytes == Bytes::gib(3), "{text}");
        assert_eq!(inventory.host.cgroup_limit_bytes, limit, "{text}");
    }
}

#[test]
fn devices_are_numbered_by_kind_in_file_order() {
    let mixed = inventory(
        r#"
        name = "mixed"
        [[device]]
        kind = "virtual"
        total = "2GiB"
        link = "2GiB/s"
        fail_allocation = 3
        [[device]]
        kind = "cuda"
        name = "A card"
        total = "8GiB"
        used_by_others = "1GiB"
        link = "12GB/s"
        flops = "10TFLOP/s"
        memory_bandwidth = "300GB/s"
        [[device]]
        kind = "virtual"
        total = "1GiB"
        link = "1GiB/s"
        overhead = "64MiB"
        "#,
    );
    let ids: Vec<&str> = mixed.devices.iter().map(|device| device.id.as_str()).collect();
    assert_eq!(ids, ["virtual0", "cuda0", "virtual1"]);
    assert_eq!(mixed.why_no_devices, None);

    let card = mixed.device("cuda0").expect("listed");
    assert_eq!((card.free_bytes, card.used_by_others_bytes), (Bytes::gib(7), Bytes::gib(1)));
    assert_eq!(card.speeds.half_flops_per_s, Rate::declared(10e12));
    assert_eq!(
        (card.overhead_bytes, card.overhead_source),
        (ASSUMED_CONTEXT_BYTES, Source::Assumed)
    );

    let simulated = mixed.device("virtual0").expect("listed");
    assert_eq!(
        (simulated.faults.fail_allocation, simulated.overhead_bytes),
        (Some(3), Bytes::ZERO)
    );
    assert_eq!(simulated.speeds.f32_flops_per_s, Rate::assumed(4e11));
    assert_eq!(simulated.speeds.memory_bytes_per_s, Rate::assumed(4e10));
    assert_eq!(mixed.device("virtual1").expect("listed").overhead_bytes, Bytes::mib(64));
    assert_eq!(mixed.device("cuda1"), None);
}

#[test]
fn an_integrated_device_has_no_more_than_the_host() {
    let profile = Profile::load("integrated-only").expect("shipped");
    let inventory = profile.inventory_on(&host_of(Bytes::gib(16), Bytes::gib(12)));
    let device = &inventory.devices[0];
    assert!(device.integrated);
    assert_eq!(device.free_bytes, inventory.host.available_bytes.min(Bytes::gib(54)));
}

#[test]
fn the_same_facts_give_the_same_json() {
    let json = || {
        let profile = Profile::load("virtual-2x2g").expect("shipped");
        let host = host_of(Bytes::gib(16), Bytes::gib(12));
        serde_json::to_value(profile.inventory_on(&host)).expect("plain data")
    };
    let value = json();
    assert_eq!(value, json());
    assert_eq!(value["source"], "virtual-2x2g");
    assert_eq!(value["host"]["compute"], false);
    assert_eq!(value["devices"][1]["id"], "virtual1");
    assert_eq!(value["devices"][0]["kind"], "virtual");
    assert_eq!(value["devices"][0]["total_bytes"], 2u64 << 30);
    assert_eq!(value["devices"][0]["link_bytes_per_s"]["value"], (2u64 << 30) as f64);
    assert_eq!(value["devices"][0]["link_bytes_per_s"]["source"], "declared");
    assert_eq!(value["why_no_devices"], serde_json::Value::Null);
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_has_devices_or_says_why_not() {
    let inventory = Inventory::of_this_machine().expect("a Linux host");
    assert_eq!(inventory.source, Inventory::THIS_MACHINE);
    assert_eq!(inventory.devices.is_empty(), inventory.why_no_devices.is_some());
    let profile = Profile::load("this-machine").expect("shipped");
    let detected = profile.inventory().expect("a Linux host");
    assert_eq!(detected.devices.is_empty(), detected.why_no_devices.is_some());
    assert_eq!(detected.devices.len(), inventory.devices.len());
}
