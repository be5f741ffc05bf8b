//! Segments, and what a component takes on each device.

use super::good::{part, picture, text};
use super::*;

// The components of `text`.
const CLIP: usize = 0;
const T5: usize = 1;
const DIT: usize = 2;
const VAE: usize = 3;

fn layers(segments: &[u32]) -> Division {
    Division::Layer { segments: segments.to_vec() }
}

const SEGMENTS: [Change; 22] = [
    (|p| p.components[T5].segments.clear(), "t5 has 0 segments"),
    (
        |p| {
            let last = p.components[VAE].segments[1].clone();
            p.components[VAE].segments.resize(SEGMENTS_MAX + 1, last);
        },
        "vae has 1025 segments",
    ),
    (|p| p.components[CLIP].segments[0].name = long(), "clip: a segment's name of 16385 bytes"),
    (
        |p| p.components[T5].division = layers(&[0, 0, 2]),
        "t5: its segments are elsewhere, or in another order",
    ),
    (
        |p| p.components[T5].division = layers(&[0, 1, 3]),
        "t5: segment block.2 has another residency",
    ),
    (|p| p.components[T5].segments.swap(0, 1), "t5: weights of block.1 lie on virtual1"),
    (|p| drop(p.components[T5].segments.pop()), "t5: 3 segments have a device of 2"),
    // Layers lie together.
    (
        |p| {
            let first = p.components[T5].segments[0].clone();
            p.components[T5].segments.insert(2, first);
            p.components[T5].division = layers(&[0, 1, 0, 2]);
        },
        "t5: its segments are elsewhere, or in another order",
    ),
    (|p| p.components[T5].segments[0].part_bytes.truncate(2), "t5: segment block.0 has 2 parts"),
    (
        |p| p.components[CLIP].segments[0].part_bytes.push(Bytes::ZERO),
        "clip: segment embeddings has 2 parts",
    ),
    (
        |p| p.components[T5].segments[0].part_bytes.swap(0, 1),
        "t5: weights of block.0 lie on virtual1",
    ),
    (
        |p| {
            let host = &mut p.components[T5].segments[2];
            host.part_bytes.swap(1, 2);
        },
        "t5: weights of block.2 lie on virtual1",
    ),
    (
        |p| grow(&mut p.components[T5].segments[1].weights_bytes),
        "t5: segment block.1 holds 2304 B of 2560 B",
    ),
    (
        |p| grow(&mut p.components[DIT].segments[1].part_bytes[1]),
        "dit: segment double.0 holds 6400 B of 6144 B",
    ),
    (
        |p| p.components[DIT].segments[1].part_bytes = vec![Bytes(1 << 63); 3],
        "dit: segment double.0 holds 18446744073709551615 B of 6144 B",
    ),
    (
        |p| {
            let segment = &mut p.components[DIT].segments[0];
            segment.part_bytes[0] += Bytes(1);
            segment.weights_bytes += Bytes(1);
        },
        "dit: 2049 B of embed is not aligned",
    ),
    // Two that are not aligned stay wrong where their sum is.
    (
        |p| {
            for (segment, more) in p.components[CLIP].segments.iter_mut().zip([128, 384]) {
                segment.part_bytes[0] += Bytes(more);
                segment.weights_bytes += Bytes(more);
            }
            p.components[CLIP].weights_bytes += Bytes(512);
            p.components[CLIP].parts[0].resident_bytes += Bytes(512);
        },
        "clip: 1152 B of embeddings is not aligned",
    ),
    (|p| grow(&mut p.components[DIT].weights_bytes), "dit: segments hold 24576 B of 24832 B"),
    (|p| drop(p.components[DIT].segments.pop()), "dit: segments hold 24320 B of 24576 B"),
    (|p| p.components[DIT].tensor_bytes = Bytes(24_577), "dit: more tensor bytes than weights"),
    // More than memory can be, though nothing holds it: it is mapped.
    (
        |p| {
            let vae = &mut p.components[VAE];
            for segment in &mut vae.segments {
                segment.part_bytes[0] = Bytes(MEMORY_BYTES_MAX);
                segment.weights_bytes = Bytes(MEMORY_BYTES_MAX);
            }
            vae.weights_bytes = Bytes(2 * MEMORY_BYTES_MAX);
        },
        "vae: 2251799813685248 B is more memory than there is",
    ),
    (
        |p| {
            let vae = &mut p.components[VAE];
            for segment in &mut vae.segments {
                segment.part_bytes[0] = Bytes(1 << 63);
                segment.weights_bytes = Bytes(1 << 63);
            }
            vae.weights_bytes = Bytes(u64::MAX);
        },
        "vae: 18446744073709551615 B is more memory than there is",
    ),
];

const PARTS: [Change; 31] = [
    (|p| p.components[CLIP].parts.clear(), "clip: its parts are on other devices"),
    (|p| drop(p.components[T5].parts.remove(1)), "t5: its parts are on other devices"),
    (|p| p.components[T5].parts.swap(0, 2), "t5: its parts are on other devices"),
    (
        |p| p.components[DIT].parts[1].device = device("cuda0"),
        "dit: its parts are on other devices",
    ),
    (|p| p.components[DIT].parts[2].device = device("cuda0"), "dit has parts beyond its devices"),
    (|p| p.components[DIT].parts.push(part("host", [0; 5])), "dit has parts beyond its devices"),
    // The host does what a device cannot in the part that it has already.
    (|p| p.components[T5].parts.push(part("host", [0; 5])), "t5 has parts beyond its devices"),
    (|p| p.components[VAE].parts.push(part("host", [0; 5])), "vae has parts beyond its devices"),
    (
        |p| p.components[CLIP].parts.push(part("host", [0; 5])),
        "clip: segment embeddings has 1 parts",
    ),
    (
        |p| grow(&mut p.components[CLIP].parts[0].resident_bytes),
        "clip on virtual0: 3328 for resident, its segments give 3072",
    ),
    (
        |p| p.components[CLIP].parts[0].resident_bytes = Bytes(2816),
        "clip on virtual0: 2816 for resident, its segments give 3072",
    ),
    (
        |p| p.components[CLIP].parts[0].lazy_bytes = Bytes(256),
        "clip on virtual0: 256 for lazy, its segments give 0",
    ),
    (
        |p| p.components[T5].parts[1].lazy_bytes = Bytes::ZERO,
        "t5 on virtual1: 0 for lazy, its segments give 2048",
    ),
    // What the host computes in place of devices is mapped, in the part among layers and in the one
    // beyond.
    (
        |p| p.components[T5].parts[2].lazy_bytes = Bytes(256),
        "t5 on host: 256 for lazy, its segments give 0",
    ),
    (
        |p| p.components[DIT].parts[2].resident_bytes = Bytes(512),
        "dit on host: 512 for resident, its segments give 0",
    ),
    (
        |p| {
            (p.components[DIT].parts[2].slot_bytes, p.components[DIT].parts[2].slots) =
                (Bytes(256), 1)
        },
        "dit on host: 256 for a slot, its segments give 0",
    ),
    (
        |p| p.components[DIT].parts[0].resident_bytes = Bytes::ZERO,
        "dit on virtual0: 0 for resident, its segments give 2048",
    ),
    (
        |p| p.components[DIT].parts[1].lazy_bytes = Bytes(4096),
        "dit on virtual1: 4096 for lazy, its segments give 2048",
    ),
    // The largest segment must fit a slot, on each device by its own rows.
    (
        |p| p.components[DIT].parts[0].slot_bytes = Bytes(3072),
        "dit on virtual0: 3072 for a slot, its segments give 4096",
    ),
    (
        |p| p.components[DIT].parts[1].slot_bytes = Bytes(4096),
        "dit on virtual1: 4096 for a slot, its segments give 2048",
    ),
    (|p| p.components[DIT].parts[0].slots = 0, "dit on virtual0: 0 for slots, its segments give 1"),
    (|p| p.components[DIT].parts[0].slots = 5, "dit on virtual0: 5 for slots, its segments give 4"),
    // It may have fewer, which take less.
    (
        |p| p.components[DIT].parts[0].slots = 3,
        "virtual0, denoise: 16384 B of staging, the components' sum is 12288 B",
    ),
    // What has no bytes on a device takes no slot there.
    (|p| p.components[DIT].parts[1].slots = 4, "dit on virtual1: 4 for slots, its segments give 3"),
    (
        |p| p.components[DIT].parts[1].slots = u32::MAX,
        "dit on virtual1: 4294967295 for slots, its segments give 3",
    ),
    (
        |p| p.components[CLIP].parts[0].slots = 1,
        "clip on virtual0: 1 for slots, its segments give 0",
    ),
    (
        |p| p.components[DIT].segments[1].residencies.fill(Residency::Resident),
        "dit on virtual0: 2048 for resident, its segments give 6144",
    ),
    (
        |p| p.components[VAE].parts[0].resident_bytes = Bytes(1024),
        "vae on host: 1024 for resident, its segments give 0",
    ),
    (
        |p| p.components[DIT].parts[0].compute_bytes = Bytes(4095),
        "dit on virtual0: 4095 B is not aligned",
    ),
    (
        |p| grow(&mut p.components[DIT].parts[1].compute_bytes),
        "virtual1, denoise: 1024 B of compute, the components' sum is 1280 B",
    ),
    (
        |p| grow(&mut p.components[VAE].parts[0].compute_bytes),
        "host, decode: 2048 B of compute, the components' sum is 2304 B",
    ),
];

/// Of the job from a picture: the lazy and the resident CLIP in RAM, the streamed T5.
const PICTURE: [Change; 5] = [
    (
        |p| p.components[1].parts[0].lazy_bytes = Bytes::ZERO,
        "clip on host: 0 for lazy, its segments give 1280",
    ),
    (
        |p| p.components[2].parts[0].resident_bytes = Bytes::ZERO,
        "clip_g on host: 0 for resident, its segments give 1536",
    ),
    (|p| p.components[3].parts[0].slots = 3, "t5 on virtual0: 3 for slots, its segments give 2"),
    (
        |p| drop(p.components.remove(3)),
        "virtual0, condition: 512 B of compute, the components' sum is 0 B",
    ),
    (
        |p| drop(p.components.pop()),
        "cuda0, denoise: 3584 B of weights, the components' sum is 2048 B",
    ),
];

#[test]
fn a_wrong_segment_is_refused() {
    refuses(text, &SEGMENTS);
}

#[test]
fn a_wrong_part_is_refused() {
    refuses(text, &PARTS);
    refuses(picture, &PICTURE);
}

#[test]
fn sums_that_overflow_are_refused_whatever_is_stated() {
    let mut plan = text();
    // Two resident components of 2^63 B each, and every figure that follows from them as the sum
    // saturates.
    for index in [CLIP, DIT] {
        let component = &mut plan.components[index];
        let part = &mut component.parts[0];
        let bytes = &mut component.segments[0].part_bytes[0];
        part.resident_bytes = Bytes(part.resident_bytes.0 - bytes.0 + (1 << 63));
        *bytes = Bytes(1 << 63);
    }
    for component in &mut plan.components {
        for segment in &mut component.segments {
            segment.weights_bytes = segment.part_bytes.iter().copied().sum();
        }
        component.weights_bytes = component.segments.iter().map(|s| s.weights_bytes).sum();
    }
    let most = Bytes(u64::MAX);
    let device = &mut plan.devices[0];
    for phase in &mut device.phases {
        (phase.weights_bytes, phase.peak_bytes) = (most, most);
    }
    (device.total_bytes, device.free_bytes, device.budget_bytes) = (most, most, most);
    device.peak_bytes = most;
    let Err(found) = check(&plan) else { panic!("it passed") };
    assert!(is_said(&found, "virtual0: 18446744073709551615 B is more memory"), "{found}");
}
