//! Devices: how they are reached, their sizes, their phases.

use super::good::{picture, text};
use super::*;

/// What a virtual device is said to be.
fn declared(plan: &mut Plan) -> (&mut f64, &mut Faults, &mut Vec<String>) {
    match &mut plan.devices[0].backend {
        DeviceBackend::Virtual { link_bytes_per_s, faults, unsupported, .. } => {
            (link_bytes_per_s, faults, unsupported)
        }
        DeviceBackend::Cuda { .. } => panic!("the first device is virtual"),
    }
}

fn pace(plan: &mut Plan, part: f64) {
    if let DeviceBackend::Virtual { speed, .. } = &mut plan.devices[0].backend {
        *speed = part;
    }
}

fn own_threads(plan: &mut Plan, count: u32) {
    if let DeviceBackend::Virtual { threads, .. } = &mut plan.devices[0].backend {
        *threads = Some(count);
    }
}

const NAMES: [Change; 22] = [
    (|p| p.devices[2].id = DeviceId::host(), "the host stands among the devices"),
    (|p| p.devices[2].id = DeviceId(long()), "a device id of 16385 bytes"),
    (|p| p.devices[2].id = device("virtual0"), "device virtual0 stands twice"),
    (|p| p.devices[0].name = long(), "virtual0: a text of 16385 bytes"),
    (
        |p| declared(p).1.taken_in = Some(Phase::Load),
        "virtual0: memory is taken in no phase of a job",
    ),
    (|p| pace(p, 0.0), "virtual0: a speed of 0"),
    (|p| pace(p, 1.01), "virtual0: a speed of 1.01"),
    (|p| pace(p, f64::NAN), "virtual0: a speed of NaN"),
    (|p| own_threads(p, 0), "virtual0: 0 threads of its own"),
    (|p| own_threads(p, THREADS_MAX + 1), "virtual0: 1025 threads of its own"),
    (|p| p.devices[0].overhead_source = long(), "virtual0: a text of 16385 bytes"),
    (|p| *declared(p).0 = 0.0, "virtual0: a link of 0 B/s"),
    (|p| *declared(p).0 = -1.0, "virtual0: a link of -1 B/s"),
    (|p| *declared(p).0 = f64::NAN, "virtual0: a link of NaN B/s"),
    (|p| *declared(p).0 = f64::INFINITY, "virtual0: a link of inf B/s"),
    (
        |p| declared(p).1.fail_allocation = Some(0),
        "virtual0: allocation 0 is to fail, they count from 1",
    ),
    (|p| declared(p).1.fail_copy = Some(0), "virtual0: copy 0 is to fail, they count from 1"),
    (
        |p| declared(p).1.taken_bytes = Bytes(MEMORY_BYTES_MAX + 1),
        "virtual0: 1125899906842625 B is more memory than there is",
    ),
    (
        |p| declared(p).2.resize(UNSUPPORTED_MAX + 1, String::new()),
        "virtual0: 65 unsupported operations",
    ),
    (|p| declared(p).2[0] = long(), "virtual0: an operation's name that is too long"),
    (
        |p| {
            p.devices[2].backend =
                DeviceBackend::Cuda { uuid: Some(long()), unsupported: Vec::new() }
        },
        "cuda0: a UUID of 16385 bytes",
    ),
    (|p| drop(p.devices.remove(0)), "clip with placement one is on virtual0, which cannot be"),
];

const SIZES: [Change; 17] = [
    (|p| p.devices[0].total_bytes = Bytes(90 * KIB - 1), "virtual0: more free than total"),
    (|p| p.devices[0].free_bytes = Bytes(80 * KIB - 1), "virtual0: budget above free"),
    (|p| p.devices[0].free_bytes = Bytes(100 * KIB + 1), "virtual0: more free than total"),
    (|p| p.devices[0].budget_bytes = Bytes(90 * KIB + 1), "virtual0: budget above free"),
    (|p| p.devices[0].budget_bytes = Bytes(29_995), "peak 29996 B is above the budget of 29995 B"),
    (|p| p.devices[1].budget_bytes = Bytes(9415), "peak 9416 B is above the budget of 9415 B"),
    (
        |p| p.devices[2].total_bytes = Bytes(MEMORY_BYTES_MAX + 1),
        "cuda0: 1125899906842625 B is more memory than there is",
    ),
    (|p| p.devices[2].overhead_bytes = Bytes(u64::MAX), "cuda0: 18446744073709551615 B is more"),
    (|p| p.devices[2].pinned_bytes = Bytes(u64::MAX), "cuda0: 18446744073709551615 B is more"),
    (
        |p| p.devices[0].overhead_bytes = Bytes(299),
        "virtual0, condition: 14636 B of peak, the components' sum is 14635 B",
    ),
    (|p| p.devices[0].pinned_bytes = Bytes(999), "1500 B are pinned, not 1499"),
    (|p| p.devices[0].peak_bytes = Bytes(29_995), "peak 29995 B is not its largest phase's"),
    (|p| p.devices[0].peak_bytes = Bytes(29_997), "peak 29997 B is not its largest phase's"),
    (
        |p| p.devices[2].peak_bytes = Bytes(4096),
        "cuda0, condition: 0 B of peak, the components' sum is 4096 B",
    ),
    (|p| grow(&mut p.devices[0].idle_bytes), "virtual0: 5676 B stay between jobs"),
    (
        |p| p.devices[2].idle_bytes = Bytes(4096),
        "cuda0: 4096 B stay between jobs, its components leave 0 B",
    ),
    // Overhead counts on a used device only.
    (
        |p| p.devices[2].phases[0].peak_bytes = Bytes(4096),
        "cuda0, condition: 4096 B of peak, the components' sum is 0 B",
    ),
];

const PHASES: [Change; 15] = [
    (|p| p.devices[0].phases.clear(), "virtual0: 0 entries for condition"),
    (|p| p.devices[0].phases.truncate(2), "virtual0: 2 phases"),
    (|p| p.devices[0].phases.extend_from_within(..1), "2 entries for condition"),
    (|p| p.devices[0].phases[1].phase = Phase::Condition, "virtual0: 2 entries for condition"),
    (|p| p.devices[0].phases[1].phase = Phase::Load, "virtual0: 0 entries for denoise"),
    (|p| p.devices[2].phases[2].phase = Phase::Encode, "cuda0: 0 entries for decode"),
    (
        |p| grow(&mut p.devices[0].phases[0].weights_bytes),
        "virtual0, condition: 13568 B of weights, the components' sum is 13312 B",
    ),
    (
        |p| p.devices[0].phases[2].weights_bytes = Bytes::ZERO,
        "virtual0, decode: 0 B of weights, the components' sum is 5120 B",
    ),
    (
        |p| grow(&mut p.devices[0].phases[1].compute_bytes),
        "virtual0, denoise: 4352 B of compute, the components' sum is 4096 B",
    ),
    // Components share an arena: it is as large as the largest needs, not as all do.
    (
        |p| p.devices[0].phases[0].compute_bytes += Bytes(512),
        "virtual0, condition: 1536 B of compute, the components' sum is 1024 B",
    ),
    (
        |p| grow(&mut p.devices[0].phases[1].staging_bytes),
        "virtual0, denoise: 16640 B of staging, the components' sum is 16384 B",
    ),
    // A ring stands in its own phase only.
    (
        |p| p.devices[1].phases[0].staging_bytes = Bytes(6144),
        "virtual1, condition: 6144 B of staging, the components' sum is 0 B",
    ),
    (
        |p| grow(&mut p.devices[0].phases[1].peak_bytes),
        "virtual0, denoise: 30252 B of peak, the components' sum is 29996 B",
    ),
    (
        |p| p.devices[0].phases[1].staging_bytes = Bytes(u64::MAX),
        "18446744073709551615 B of staging",
    ),
    (
        |p| grow(&mut p.devices[2].phases[2].weights_bytes),
        "cuda0, decode: 256 B of weights, the components' sum is 0 B",
    ),
];

/// Of the job from a picture, in which all four phases are stated.
const PICTURE: [Change; 4] = [
    (|p| _ = p.devices[0].phases.remove(0), "cuda0: 0 entries for encode"),
    (|p| p.devices[0].phases.truncate(3), "cuda0: 3 phases"),
    (
        |p| p.devices[0].phases[0].weights_bytes = Bytes(2048),
        "cuda0, encode: 2048 B of weights, the components' sum is 3072 B",
    ),
    (
        |p| p.devices[1].phases[1].staging_bytes = Bytes(3 * 2048),
        "virtual0, condition: 6144 B of staging, the components' sum is 4096 B",
    ),
];

#[test]
fn a_wrong_device_is_refused() {
    refuses(text, &NAMES);
}

#[test]
fn wrong_sizes_of_a_device_are_refused() {
    refuses(text, &SIZES);
}

#[test]
fn wrong_phases_of_a_device_are_refused() {
    refuses(text, &PHASES);
    refuses(picture, &PICTURE);
}
