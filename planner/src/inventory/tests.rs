//! Made-up hosts and devices that the tests of other modules share; and this machine.

use super::*;

/// A host of eight cores with so much memory.
pub(crate) fn host_of(total_bytes: Bytes, available_bytes: Bytes) -> HostFacts {
    HostFacts {
        name: "test".to_owned(),
        total_bytes,
        available_bytes,
        cgroup_limit_bytes: None,
        cores: 8,
        cpu: "Test CPU".to_owned(),
        compute: true,
        speeds: host::host_speeds(Rate::measured(4e11), Rate::measured(4e10)),
        storage_bytes_per_s: Rate::measured(2e9),
        page_cache_bytes_per_s: Rate::measured(5e9),
        page_cache: false,
    }
}

/// A device with so much memory; the id says of which kind.
pub(crate) fn device_of(id: &str, total_bytes: Bytes, free_bytes: Bytes) -> Device {
    let kind = if id.starts_with("virtual") { DeviceKind::Virtual } else { DeviceKind::Cuda };
    Device {
        id: id.to_owned(),
        kind,
        name: "Test".to_owned(),
        uuid: None,
        ordinal: None,
        part: None,
        missing: None,
        total_bytes,
        free_bytes,
        used_by_others_bytes: total_bytes - free_bytes,
        margin_bytes: None,
        integrated: false,
        link_bytes_per_s: Rate::declared(2e10),
        link_back_bytes_per_s: Rate::declared(2e10),
        speeds: Speeds::new(
            Rate::declared(3e13),
            Rate::declared(6e13),
            Rate::declared(5e11),
            speeds::CUDA_STARTS_PER_S,
        ),
        overhead_bytes: Bytes::ZERO,
        overhead_source: Source::Declared,
        pinned_bytes: kind.staging_bytes(),
        driver: None,
        pcie: None,
        faults: Faults::default(),
        speed: 1.0,
        threads: None,
        unsupported: Vec::new(),
    }
}
