//! The host: its budget, what it holds throughout, its phases.

use super::good::{picture, text};
use super::*;

const TEXT: [Change; 25] = [
    (|p| p.host.threads = 0, "0 threads"),
    (|p| p.host.threads = THREADS_MAX + 1, "1025 threads"),
    (|p| p.host.budget_bytes = Bytes(12_439), "host: peak 12440 B is above the budget of 12439 B"),
    (|p| p.host.budget_bytes = Bytes(MEMORY_BYTES_MAX + 1), "host: 1125899906842625 B is more"),
    (|p| p.host.peak_bytes = Bytes(12_441), "host: peak 12441 B is not its largest phase's"),
    (|p| p.host.peak_bytes = Bytes::ZERO, "host: peak 0 B is not its largest phase's"),
    (
        |p| p.host.idle_bytes = Bytes::ZERO,
        "host: 0 B stay between jobs, its components leave 9692 B",
    ),
    (|p| p.host.idle_bytes = Bytes(10_392), "host: 10392 B stay between jobs"),
    (|p| p.host.pinned_bytes = Bytes::ZERO, "0 B are pinned, not 1500"),
    // An unused device pins nothing.
    (|p| p.host.pinned_bytes = Bytes(2400), "2400 B are pinned, not 1500"),
    (
        |p| p.host.changed_bytes = Bytes::ZERO,
        "host, condition: 8192 B of weights, the components' sum is 0 B",
    ),
    (
        |p| grow(&mut p.host.changed_bytes),
        "host, condition: 8192 B of weights, the components' sum is 8448 B",
    ),
    (|p| p.host.mapped_bytes = Bytes(6145), "6145 B are mapped, the components have 6144 B to map"),
    (
        |p| p.host.job_bytes = Bytes(699),
        "host, condition: 11928 B of peak, the components' sum is 11927 B",
    ),
    (|p| p.host.job_bytes = Bytes(u64::MAX), "the components' sum is 18446744073709551615 B"),
    (|p| p.host.phases.clear(), "host: 0 entries for condition"),
    (|p| p.host.phases.truncate(2), "host: 2 phases"),
    (|p| p.host.phases.extend_from_within(..1), "host: 2 entries for condition"),
    (|p| p.host.phases[0].phase = Phase::Encode, "host: 0 entries for condition"),
    (|p| grow(&mut p.host.phases[2].weights_bytes), "host, decode: 8448 B of weights"),
    (|p| grow(&mut p.host.phases[0].compute_bytes), "host, condition: 1792 B of compute"),
    // What the host does of the DiT in place of a device is computed there.
    (
        |p| p.host.phases[1].compute_bytes = Bytes::ZERO,
        "host, denoise: 0 B of compute, the components' sum is 256 B",
    ),
    (
        |p| p.host.phases[1].staging_bytes = Bytes::ZERO,
        "host, denoise: 0 B of staging, the components' sum is 1500 B",
    ),
    (|p| p.host.phases[1].peak_bytes = Bytes::ZERO, "host, denoise: 0 B of peak"),
    (|p| p.host.phases[2].peak_bytes = Bytes(12_439), "host, decode: 12439 B of peak"),
];

const PICTURE: [Change; 5] = [
    (
        |p| p.host.phases[0].weights_bytes = Bytes(1536),
        "host, encode: 1536 B of weights, the components' sum is 2816 B",
    ),
    (|p| p.host.phases[3].weights_bytes = Bytes::ZERO, "host, decode: 0 B of weights"),
    (|p| p.host.changed_bytes = Bytes(1), "1 B of weights are changed without a LoRA file"),
    (|p| p.host.mapped_bytes = Bytes(1), "1 B are mapped, the components have 0 B to map"),
    (|p| _ = p.host.phases.remove(0), "host: 0 entries for encode"),
];

/// What the integrated device of [`shared`] and the host take in each phase, by hand: 11 928 and 14
/// 636, 10 648 and 29 996, 12 440 and 5420.
const POOL: [Change; 5] = [
    (
        |p| p.host.pool_bytes = Bytes(40_643),
        "denoise: the host and integrated devices take 40644 B of one memory, which has 40643 B",
    ),
    (
        |p| p.host.pool_bytes = Bytes::ZERO,
        "condition: the host and integrated devices take 26564 B",
    ),
    // Two of them: the second takes 9416 B then.
    (|p| p.devices[1].integrated = true, "denoise: the host and integrated devices take 50060 B"),
    (|p| p.host.pool_bytes = Bytes(MEMORY_BYTES_MAX + 1), "host: 1125899906842625 B is more"),
    (|p| p.host.pool_bytes = Bytes(u64::MAX), "host: 18446744073709551615 B is more"),
];

/// The first device shares the host's memory, which has just enough for both.
fn shared() -> Plan {
    let mut plan = text();
    plan.devices[0].integrated = true;
    plan.host.pool_bytes = Bytes(40_644);
    plan
}

#[test]
fn the_host_and_integrated_devices_share_one_memory() {
    assert_eq!(check(&shared()), Ok(()));
    refuses(shared, &POOL);
    // An integrated device that is not used takes nothing of it.
    let mut unused = text();
    unused.devices[2].integrated = true;
    unused.host.pool_bytes = Bytes::ZERO;
    assert_eq!(check(&unused), Ok(()));
}

#[test]
fn a_wrong_host_is_refused() {
    refuses(text, &TEXT);
    refuses(picture, &PICTURE);
}
