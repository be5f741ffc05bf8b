//! Detection against a made-up NVML, compiled from `fake_nvml.c` with the system's C compiler,
//! which the README asks for; its macros break one thing at a time.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use super::*;
use crate::inventory::tests::host_of;

/// A library built with `macros`, in a folder that lives as long as it.
struct FakeNvml {
    folder: TempDir,
}

impl FakeNvml {
    fn build(macros: &[&str]) -> FakeNvml {
        let folder = tempfile::tempdir().expect("a scratch directory");
        let source = folder.path().join("fake_nvml.c");
        std::fs::write(&source, include_str!("fake_nvml.c")).expect("scratch file");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(folder.path().join("libfake.so"))
            .arg(&source)
            .args(macros.iter().map(|name| format!("-D{name}")))
            .output()
            .expect("the C compiler `cc`, which the tests of the GPU detection need");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        FakeNvml { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("libfake.so")
    }

    fn detect(&self, visible: Option<&str>) -> Detected {
        detect(&self.path(), visible, &host_of(Bytes::gib(128), Bytes::gib(100)))
    }
}

fn why(detected: &Detected) -> &str {
    assert_eq!(detected.devices, []);
    detected.why_none.as_deref().expect("an empty list has a reason")
}

#[test]
fn ids_follow_the_bus_and_each_device_says_what_it_is() {
    let fake = FakeNvml::build(&[]);
    let Detected { devices, why_none } = fake.detect(None);
    assert_eq!(why_none, None);
    let ids: Vec<(&str, &str)> =
        devices.iter().map(|d| (d.id.as_str(), d.uuid.as_deref().unwrap_or("none"))).collect();
    // NVML's order is b, a, d, c; c does not answer.
    assert_eq!(
        ids,
        [("cuda0", "GPU-aaaa0000"), ("cuda1", "GPU-bbbb0000"), ("cuda2", "GPU-dddd0000")]
    );

    let large = &devices[1];
    assert_eq!(large.total_bytes, Bytes::gib(24));
    assert_eq!(large.free_bytes, Bytes::mib(24576 - 512 - 2048));
    assert_eq!(large.used_by_others_bytes, Bytes::gib(2));
    assert!(!large.integrated);
    assert_eq!(
        (large.pcie.as_deref(), large.driver.as_deref()),
        (Some("gen 4 x16"), Some("580.95.05"))
    );
    // The RTX 4090's datasheet: 82.6 TFLOP/s, 165.2 in half precision, 661 of bytes, 1008 GB/s.
    for (rate, expected) in [
        (large.speeds.f32_flops_per_s, 82.6e12),
        (large.speeds.half_flops_per_s, 165.2e12),
        (large.speeds.integer_flops_per_s.expect("of 8.9"), 660.8e12),
        (large.speeds.memory_bytes_per_s, 1008e9),
        (large.link_bytes_per_s, 26.5e9),
    ] {
        assert!((rate.value / expected - 1.0).abs() < 2e-3, "{rate:?} instead of {expected:e}");
        assert_eq!(rate.source, Source::Datasheet);
    }
    assert_eq!(
        (large.overhead_bytes, large.overhead_source),
        (ASSUMED_CONTEXT_BYTES, Source::Assumed)
    );

    let small = &devices[0];
    assert_eq!(small.free_bytes, Bytes::mib(6144 - 256));
    assert_eq!(small.speeds.f32_flops_per_s.value, rates::MODEST_F32_FLOPS_PER_S);
    assert_eq!(small.link_bytes_per_s.value, rates::Link::default().bytes_per_s());
    assert_eq!(small.pcie, None);

    // No memory of its own: the host's pool.
    let shared = &devices[2];
    assert!(shared.integrated);
    assert_eq!((shared.total_bytes, shared.free_bytes), (Bytes::gib(128), Bytes::gib(100)));
    assert_eq!(shared.link_bytes_per_s, shared.speeds.memory_bytes_per_s);
}

#[test]
fn the_environment_filters_by_position_on_the_bus_and_by_uuid() {
    let fake = FakeNvml::build(&[]);
    for (visible, expected) in [
        ("0", vec!["GPU-aaaa0000"]),
        // Position 1 is the one that does not answer; it still counts, as it does for CUDA.
        ("2", vec!["GPU-bbbb0000"]),
        ("GPU-b,GPU-a", vec!["GPU-aaaa0000", "GPU-bbbb0000"]),
    ] {
        let devices = fake.detect(Some(visible)).devices;
        let uuids: Vec<&str> = devices.iter().filter_map(|d| d.uuid.as_deref()).collect();
        assert_eq!(uuids, expected, "{visible}");
        assert_eq!(devices[0].id, "cuda0", "{visible}");
    }
    let hidden = fake.detect(Some(""));
    assert_eq!(why(&hidden), "CUDA_VISIBLE_DEVICES=\"\" hides every GPU (4 here)");
}

#[test]
fn in_mig_mode_the_first_instance_is_the_device() {
    let fake = FakeNvml::build(&["MIG"]);
    let devices = fake.detect(None).devices;
    let uuids: Vec<&str> = devices.iter().filter_map(|d| d.uuid.as_deref()).collect();
    assert_eq!(uuids, ["MIG-0001"]);
    assert_eq!(
        (devices[0].total_bytes, devices[0].used_by_others_bytes),
        (Bytes::gib(6), Bytes::mib(16))
    );
    let whole = FakeNvml::build(&["GPU_COUNT=1"]).detect(None).devices;
    assert_eq!(
        devices[0].speeds.memory_bytes_per_s.value,
        whole[0].speeds.memory_bytes_per_s.value / 4.0
    );
    let second = fake.detect(Some("MIG-0002")).devices;
    assert_eq!(second[0].name, "NVIDIA Large MIG 2g.12gb");
}

#[test]
fn an_old_driver_without_newer_functions_gives_modest_rates() {
    let devices = FakeNvml::build(&["OLD_DRIVER", "GPU_COUNT=2"]).detect(None).devices;
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1].speeds.f32_flops_per_s.value, rates::MODEST_F32_FLOPS_PER_S);
    assert_eq!(devices[1].speeds.memory_bytes_per_s.value, rates::MODEST_MEMORY_BYTES_PER_S);
    assert_eq!(devices[1].pcie.as_deref(), Some("gen 4 x16"));
}

#[test]
fn absence_has_a_reason() {
    let host = host_of(Bytes::gib(8), Bytes::gib(8));
    let absent = detect(Path::new("libberth-no-such-nvml.so.1"), None, &host);
    assert_eq!(why(&absent), "no NVIDIA driver: libberth-no-such-nvml.so.1 was not found");

    let fake = FakeNvml::build(&[]);
    let no_library = detect(&fake.folder.path().join("fake_nvml.c"), None, &host);
    assert!(why(&no_library).contains("could not be loaded"), "{no_library:?}");

    for (macros, expected) in [
        (&["INIT_RESULT=9"][..], "the NVIDIA driver is not loaded"),
        (&["INIT_RESULT=18"], "different versions"),
        (&["INIT_RESULT=4"], "NVML does not start: the current user does not have permission"),
        (&["INIT_RESULT=777"], "NVML does not start: unexpected enum variant value: 777"),
        (&["NO_INIT"], "not a complete NVML"),
        (&["NO_SHUTDOWN"], "not a complete NVML: it has no nvmlShutdown"),
        (&["GPU_COUNT=0"], "the NVIDIA driver shows no GPU"),
        (&["GPU_COUNT=1", "FIRST_GPU=3"], "no GPU is usable: NVIDIA Lost (GPU-cccc0000)"),
    ] {
        let detected = FakeNvml::build(macros).detect(None);
        assert!(why(&detected).contains(expected), "{macros:?}: {detected:?}");
    }
}

#[test]
fn links_count_encoding_and_packets() {
    // Generation 3: 8e9 × 128/130 / 8 bytes per lane, 128 of 152 bytes in a packet.
    assert!((rates::Link::told(3, 16).bytes_per_s() - 13.266e9).abs() < 1e7);
    assert!((rates::Link::told(1, 1).bytes_per_s() - 250e6 * 128.0 / 152.0).abs() < 1.0);
    for (generation, lanes) in [(0, 16), (8, 16), (4, 0), (4, 33), (u32::MAX, u32::MAX)] {
        assert_eq!(rates::Link::told(generation, lanes).name(), None, "{generation} {lanes}");
    }
}

#[test]
fn systems_on_a_chip_are_known_by_their_names() {
    for (name, integrated) in [
        ("Orin (nvgpu)", true),
        ("NVIDIA Thor", true),
        ("NVIDIA GB10", true),
        ("NVIDIA Tegra X1", true),
        ("NVIDIA GeForce RTX 4090", false),
        ("NVIDIA GB100", false),
        ("Quadro Thorough", false),
    ] {
        assert_eq!(is_system_on_chip(name), integrated, "{name}");
    }
}
