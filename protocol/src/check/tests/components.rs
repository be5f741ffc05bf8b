//! Components: their phase, placement and residency.

use super::good::{picture, segment, text};
use super::*;

// The components of `text`.
const CLIP: usize = 0;
const T5: usize = 1;
const DIT: usize = 2;
const VAE: usize = 3;

fn rows(shares: &[u32]) -> Division {
    Division::Row { shares: shares.to_vec() }
}

const ORDER: [Change; 9] = [
    (|p| p.components[T5].name = "clip".to_owned(), "component clip stands twice"),
    (|p| p.components[T5].name = long(), "a component's text of 16385 bytes"),
    (|p| p.components[T5].reason = long(), "a component's text of 16385 bytes"),
    (|p| p.components[CLIP].phase = Phase::Load, "clip: the job has no load phase to compute in"),
    (
        |p| p.components[CLIP].phase = Phase::Encode,
        "clip: the job has no encode phase to compute in",
    ),
    (|p| p.components.swap(T5, DIT), "t5 stands after a later phase's component"),
    (|p| p.components[T5].phase = Phase::Decode, "dit stands after a later phase's component"),
    (|p| p.components[DIT].phase = Phase::Condition, "dit has nothing to prefetch, or no phase"),
    (
        |p| p.components[DIT].phase = Phase::Decode,
        "virtual0, condition: 13312 B of weights, the components' sum is 9216 B",
    ),
];

const PLACEMENT: [Change; 23] = [
    (|p| p.components[CLIP].devices.clear(), "clip names 0 devices for placement one"),
    (
        |p| p.components[CLIP].devices.push(device("virtual1")),
        "clip names 2 devices for placement one",
    ),
    (|p| p.components[T5].devices.truncate(1), "t5 names 1 devices for placement layer"),
    (|p| p.components[DIT].devices.truncate(1), "dit names 1 devices for placement row"),
    (
        |p| p.components[T5].devices = vec![device("virtual0"); DEVICES_MAX + 2],
        "t5 names 18 devices for placement layer",
    ),
    (
        |p| p.components[DIT].devices = vec![device("virtual0"); DEVICES_MAX + 1],
        "dit names 17 devices for placement row",
    ),
    (|p| p.components[VAE].devices.push(device("host")), "vae names 2 devices for placement host"),
    (|p| p.components[T5].devices[1] = device("virtual0"), "t5 names virtual0 twice"),
    (|p| p.components[T5].devices[0] = DeviceId::host(), "t5 names host twice"),
    (
        |p| p.components[CLIP].devices[0] = device("cuda7"),
        "clip with placement one is on cuda7, which cannot be",
    ),
    (|p| p.components[CLIP].devices[0] = DeviceId::host(), "clip: its parts are on other devices"),
    (
        |p| p.components[T5].devices[1] = device("cuda7"),
        "t5 with placement layer is on cuda7, which cannot be",
    ),
    (
        |p| p.components[DIT].devices[1] = DeviceId::host(),
        "dit with placement row is on host, which cannot be",
    ),
    (
        |p| p.components[CLIP].division = Division::Layer { segments: vec![0, 0] },
        "clip names 1 devices for placement layer",
    ),
    (|p| p.components[T5].division = Division::One, "t5 names 3 devices for placement one"),
    (
        |p| p.components[DIT].division = Division::Layer { segments: vec![0, 0, 0, 1, 1, 1] },
        "dit: weights of double.0 lie on virtual1",
    ),
    (
        |p| p.components[T5].division = Division::Row { shares: vec![1, 1, 1] },
        "t5 with placement row is on host, which cannot be",
    ),
    (|p| p.components[T5].devices.swap(0, 1), "t5: its parts are on other devices"),
    (
        |p| p.components[CLIP].devices[0] = device("virtual1"),
        "clip: its parts are on other devices",
    ),
    (|p| p.components[DIT].division = rows(&[]), "dit has 0 shares for 2 devices"),
    (|p| p.components[DIT].division = rows(&[2, 1, 1]), "dit has 3 shares for 2 devices"),
    (|p| p.components[DIT].division = rows(&[2, 0]), "dit: a share is not within 1 to 1048576"),
    (
        |p| p.components[DIT].division = rows(&[ROW_SHARE_MAX + 1, 1]),
        "dit: a share is not within 1 to 1048576",
    ),
];

const RESIDENCY: [Change; 22] = [
    (|p| p.components[CLIP].residency = Residency::Mapped, "clip is mapped, and not on the host"),
    (|p| p.components[T5].residency = Residency::Mapped, "t5 is mapped, and not on the host"),
    (
        |p| (p.components[VAE].residency, p.components[VAE].lookahead) = (Residency::Streamed, 1),
        "vae is streamed to the host",
    ),
    (|p| p.components[CLIP].predicted_load_ms = f64::NAN, "clip is predicted to take NaN ms"),
    (|p| p.components[T5].predicted_compute_ms = -1.0, "t5 is predicted to take -1 ms"),
    (|p| p.components[CLIP].lookahead = 1, "clip, resident, has a lookahead of 1"),
    (|p| p.components[T5].lookahead = 2, "t5, lazy, has a lookahead of 2"),
    (|p| p.components[VAE].lookahead = 1, "vae, mapped, has a lookahead of 1"),
    (|p| p.components[DIT].lookahead = 0, "dit, streamed, has a lookahead of 0"),
    (|p| p.components[DIT].lookahead = LOOKAHEAD_MAX + 1, "dit, streamed, has a lookahead of 65"),
    (
        |p| p.components[CLIP].residency = Residency::Lazy,
        "clip: segment embeddings has another residency",
    ),
    (
        |p| p.components[CLIP].segments[1].residencies.fill(Residency::Lazy),
        "clip: segment layers.0 has another residency",
    ),
    (
        |p| p.components[T5].segments[1].residencies.fill(Residency::Resident),
        "t5: segment block.1 has another residency",
    ),
    // What is on the host among layers is mapped.
    (
        |p| p.components[T5].segments[2].residencies.fill(Residency::Lazy),
        "t5: segment block.2 has another residency",
    ),
    (
        |p| p.components[DIT].segments[0].residencies.fill(Residency::Mapped),
        "dit: segment embed has another residency",
    ),
    (
        |p| p.components[VAE].residency = Residency::Resident,
        "vae: segment mid has another residency",
    ),
    (
        |p| p.components[VAE].segments[0].residencies.fill(Residency::Resident),
        "vae: segment mid has another residency",
    ),
    (
        |p| {
            let segments = p.components[DIT].segments.iter_mut();
            segments.for_each(|segment| segment.residencies.fill(Residency::Resident));
        },
        "dit is streamed without a streamed segment",
    ),
    // One that weighs nothing is none.
    (
        |p| {
            let segments = &mut p.components[DIT].segments;
            segments.iter_mut().for_each(|segment| segment.residencies.fill(Residency::Lazy));
            segments.push(segment("end", Residency::Streamed, &[0, 0, 0]));
        },
        "dit is streamed without a streamed segment",
    ),
    (|p| p.components[VAE].prefetch = true, "vae has nothing to prefetch, or no phase to do it in"),
    (|p| p.components[T5].prefetch = true, "t5 has nothing to prefetch, or no phase to do it in"),
    // The phase before holds what is early.
    (
        |p| p.components[DIT].prefetch = false,
        "virtual0, condition: 13312 B of weights, the components' sum is 9216 B",
    ),
];

/// Of the job from a picture: its encoder, the lazy CLIP, the streamed T5, the streamed DiT, the
/// decoder.
const PICTURE: [Change; 7] = [
    (|p| p.components[0].prefetch = true, "vae_encoder has nothing to prefetch, or no phase"),
    (
        |p| p.components[0].phase = Phase::Condition,
        "cuda0, encode: 3072 B of weights, the components' sum is 2048 B",
    ),
    (
        |p| p.components[1].prefetch = false,
        "host, encode: 2816 B of weights, the components' sum is 1536 B",
    ),
    (|p| p.components[3].lookahead = 1, "t5 on virtual0: 2 for slots, its segments give 1"),
    (
        |p| p.components[4].division = Division::Layer { segments: vec![0, 0, 1, 0, 1] },
        "dit: its segments are elsewhere, or in another order",
    ),
    (
        |p| p.components[5].prefetch = false,
        "cuda0, denoise: 3584 B of weights, the components' sum is 2048 B",
    ),
    (
        |p| p.components[5].phase = Phase::Denoise,
        "cuda0, condition: 2048 B of weights, the components' sum is 3584 B",
    ),
];

#[test]
fn a_wrong_name_or_phase_is_refused() {
    refuses(text, &ORDER);
}

#[test]
fn a_wrong_placement_is_refused() {
    refuses(text, &PLACEMENT);
}

#[test]
fn a_wrong_residency_is_refused() {
    refuses(text, &RESIDENCY);
    refuses(picture, &PICTURE);
}
