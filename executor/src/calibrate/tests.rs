//! Calibration of small devices. What is measured is compared with what was declared only where
//! that leaves no doubt.

use std::fs;
use std::path::PathBuf;

use protocol::calibration::MeasuredSpeeds;
use protocol::plan::{DeviceBackend, STAGING_BYTES};
use protocol::profile::WorkKind;
use protocol::{FailureKind, Faults, StorageType};

use super::*;

fn device(id: &str, budget_bytes: Bytes) -> CalibrationDevice {
    let backend = DeviceBackend::Virtual {
        link_bytes_per_s: 64e6,
        faults: Faults::default(),
        speed: 1.0,
        threads: None,
        unsupported: Vec::new(),
    };
    CalibrationDevice {
        id: DeviceId(id.to_owned()),
        backend,
        budget_bytes,
        overhead_bytes: Bytes(1000),
        pinned_bytes: STAGING_BYTES,
    }
}

fn measured(devices: &[CalibrationDevice]) -> Result<Calibration, Failure> {
    let directory = tempfile::tempdir().unwrap();
    let answer = calibrate(devices, 2, directory.path(), &CancelFlag::default());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
    answer
}

fn kinds(speeds: &MeasuredSpeeds) -> Vec<WorkKind> {
    let all = [speeds.memory_bytes_per_s, speeds.starts_per_s];
    let work = speeds.work.iter().map(|work| work.flops_per_s);
    assert!(work.chain(all).all(|rate| rate.is_finite() && rate > 0.0), "{speeds:?}");
    speeds.work.iter().map(|work| work.kind).collect()
}

#[test]
fn host_storage_and_devices_are_measured() {
    use StorageType::{BF16, F16, F32, Q8_0};
    let mut unable = device("virtual1", Bytes::mib(8));
    if let DeviceBackend::Virtual { unsupported, link_bytes_per_s, .. } = &mut unable.backend {
        unsupported.extend(["Conv2d", "AdaLayerNorm"].map(str::to_owned));
        *link_bytes_per_s = 4e6;
    }
    let answer = measured(&[device("virtual0", Bytes::mib(1)), unable]).unwrap();
    let products = [F32, F16, BF16, Q8_0].map(WorkKind::Matmul);
    let some = [&products[..], &[WorkKind::Attention]].concat();
    let all = [&some[..], &[WorkKind::Convolution]].concat();
    assert_eq!(kinds(&answer.host), all);
    assert_eq!(kinds(&answer.devices[0].speeds), all);
    assert_eq!(kinds(&answer.devices[1].speeds), some, "what it cannot do is left out");
    assert!(answer.page_cache_bytes_per_s > 0.0);
    assert!(answer.storage_bytes_per_s.is_none_or(|rate| rate > 0.0));
    for (device, link) in answer.devices.iter().zip([64e6, 4e6]) {
        assert_eq!(device.overhead_bytes, Some(Bytes(1000)));
        // A paced link is never faster than it is declared; a busy machine makes it slower.
        for rate in [device.link_bytes_per_s, device.link_back_bytes_per_s] {
            assert!((0.2 * link..1.2 * link).contains(&rate), "{rate} B/s of {link}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let tiny = measured(&[device("virtual0", Bytes::kib(8))]).unwrap_err();
    assert_eq!(tiny.kind, FailureKind::BadRequest);
    assert!(tiny.message.contains("virtual0 has 7192 B"), "{}", tiny.message);

    let full = measured(&[device("virtual0", Bytes(999))]).unwrap_err();
    assert!(matches!(full.kind, FailureKind::OutOfMemory { .. }), "{full:?}");

    let backend =
        DeviceBackend::Cuda { uuid: Some("GPU-of-nobody".to_owned()), unsupported: Vec::new() };
    let cuda = CalibrationDevice { backend, ..device("cuda0", Bytes::gib(1)) };
    let refused = measured(&[cuda]).unwrap_err();
    assert!(refused.message.starts_with("cuda0 has failed: "), "{}", refused.message);

    let nowhere = PathBuf::from("/nowhere/at/all");
    let unwritable = calibrate(&[], 1, &nowhere, &CancelFlag::default()).unwrap_err();
    assert_eq!(unwritable.kind, FailureKind::BadRequest);
    assert!(unwritable.message.contains("/nowhere/at/all"), "{}", unwritable.message);
}

#[test]
fn a_failing_device_or_a_cancel_ends_it() {
    for (fail_copy, fail_allocation) in [(Some(9), None), (None, Some(3))] {
        let mut failing = device("virtual0", Bytes::mib(1));
        if let DeviceBackend::Virtual { faults, .. } = &mut failing.backend {
            *faults = Faults { fail_copy, fail_allocation, ..Faults::default() };
        }
        let failed = measured(&[failing]).unwrap_err();
        let (device, copied) = match failed.kind {
            FailureKind::DeviceFailed { device } => (device, true),
            FailureKind::OutOfMemory { device, .. } => (device, false),
            other => panic!("{other:?}"),
        };
        assert_eq!((device.0.as_str(), copied), ("virtual0", fail_copy.is_some()));
    }
    let directory = tempfile::tempdir().unwrap();
    let cancel = CancelFlag::default();
    cancel.set();
    let cancelled = calibrate(&[], 1, directory.path(), &cancel).unwrap_err();
    assert_eq!(cancelled.kind, FailureKind::Cancelled);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
