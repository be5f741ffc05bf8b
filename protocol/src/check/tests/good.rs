//! Two good plans, with every placement and residency between them.
//!
//! Their sums are written by hand, so that the checker is held against numbers that no code made.

use super::*;
use crate::model::ModelSource;
use crate::plan::{DevicePlan, HostPlan};
use crate::times::{PhaseMs, PredictedMs};

/// A segment with its bytes on each part of its component.
pub fn segment(name: &str, residency: Residency, part_bytes: &[u64]) -> SegmentPlan {
    SegmentPlan {
        name: name.to_owned(),
        residencies: vec![residency; part_bytes.len()],
        weights_bytes: Bytes(part_bytes.iter().sum()),
        part_bytes: part_bytes.iter().copied().map(Bytes).collect(),
    }
}

/// Resident and lazy bytes, those of a slot, slots, compute.
pub fn part(on: &str, [resident, lazy, slot, slots, compute]: [u64; 5]) -> PartPlan {
    PartPlan {
        device: device(on),
        resident_bytes: Bytes(resident),
        lazy_bytes: Bytes(lazy),
        slot_bytes: Bytes(slot),
        slots: slots as u32,
        compute_bytes: Bytes(compute),
    }
}

/// Segments on the devices of these indices.
fn layers(segments: &[u32]) -> Division {
    Division::Layer { segments: segments.to_vec() }
}

/// A component without prefetch or slots.
fn component(
    (name, phase): (&str, Phase),
    (division, devices): (Division, &[&str]),
    residency: Residency,
    parts: Vec<PartPlan>,
    mut segments: Vec<SegmentPlan>,
) -> ComponentPlan {
    // The host is no device where it does what these cannot.
    segments.iter_mut().for_each(|segment| segment.residencies.truncate(devices.len()));
    let weights: u64 = segments.iter().map(|segment| segment.weights_bytes.0).sum();
    ComponentPlan {
        name: name.to_owned(),
        phase,
        devices: devices.iter().map(|id| device(id)).collect(),
        division,
        residency,
        lookahead: 0,
        prefetch: false,
        parts,
        segments,
        weights_bytes: Bytes(weights),
        tensor_bytes: Bytes(weights - 100),
        predicted_load_ms: 2.0,
        predicted_compute_ms: 30.0,
        reason: "it is the best".to_owned(),
    }
}

/// Rows of weights, compute and staging, in the order of the timeline, with `fixed` in each peak.
fn phases(job: &JobShape, rows: &[[u64; 3]], fixed: u64) -> Vec<PhaseBytes> {
    let entry = |(&phase, &[weights, compute, staging]): (&Phase, &[u64; 3])| PhaseBytes {
        phase,
        weights_bytes: Bytes(weights),
        compute_bytes: Bytes(compute),
        staging_bytes: Bytes(staging),
        peak_bytes: Bytes(weights + compute + staging + fixed),
    };
    job.timeline().iter().zip(rows).map(entry).collect()
}

fn planned(
    id: &str,
    [overhead, pinned, idle]: [u64; 3],
    phases: Vec<PhaseBytes>,
    peak: u64,
) -> DevicePlan {
    let virtual_backend = DeviceBackend::Virtual {
        link_bytes_per_s: 1.5e9,
        faults: Faults {
            fail_allocation: Some(1),
            fail_copy: Some(1),
            taken_bytes: Bytes(KIB),
            taken_in: Some(Phase::Denoise),
        },
        speed: 0.5,
        threads: Some(1),
        unsupported: vec!["attention".to_owned()],
    };
    let cuda_backend =
        DeviceBackend::Cuda { uuid: Some("GPU-0".to_owned()), unsupported: Vec::new() };
    DevicePlan {
        id: device(id),
        name: "a device".to_owned(),
        backend: if id.starts_with("cuda") { cuda_backend } else { virtual_backend },
        integrated: false,
        total_bytes: Bytes(100 * KIB),
        free_bytes: Bytes(90 * KIB),
        budget_bytes: Bytes(80 * KIB),
        overhead_bytes: Bytes(overhead),
        overhead_source: "declared".to_owned(),
        pinned_bytes: Bytes(pinned),
        phases,
        peak_bytes: Bytes(peak),
        idle_bytes: Bytes(idle),
    }
}

fn plan(
    job: JobShape,
    components: Vec<ComponentPlan>,
    devices: Vec<DevicePlan>,
    host: HostPlan,
) -> Plan {
    Plan {
        schema: SCHEMA,
        generation: 3,
        keeps_weights_of: None,
        model: ModelSource::of("/models/demo"),
        family: "flux".to_owned(),
        job,
        options: GraphOptions::default(),
        mapping_policy: MappingPolicy::Sequential,
        components,
        devices,
        host,
        predicted_ms: PredictedMs {
            phases: PhaseMs::from([
                (Phase::Load, 0.1),
                (Phase::Condition, 1.0 / 3.0),
                (Phase::Denoise, 1e-9),
                (Phase::Decode, 4.0),
            ]),
            total: 1e12,
            next_total: 1e11,
        },
    }
}

/// A job from text: CLIP resident on one device; T5 lazy in layers over two devices and the host,
/// which takes of the second what that cannot do; the DiT by rows over both, streamed with segments
/// that stay, the lazy one of them early, the host taking a part again; the VAE mapped on the host.
/// A third device is not used.
pub fn text() -> Plan {
    use Residency::{Lazy, Mapped, Resident, Streamed};
    let job = JobShape {
        width: 64,
        height: 32,
        steps: 4,
        batch: 2,
        max_sequence_length: 512,
        true_cfg: true,
        ..JobShape::small()
    };
    let clip = component(
        ("clip", Phase::Condition),
        (Division::One, &["virtual0"]),
        Resident,
        vec![part("virtual0", [3072, 0, 0, 0, 512])],
        vec![segment("embeddings", Resident, &[1024]), segment("layers.0", Resident, &[2048])],
    );
    let t5 = component(
        ("t5", Phase::Condition),
        (layers(&[0, 1, 2]), &["virtual0", "virtual1", "host"]),
        Lazy,
        vec![
            part("virtual0", [0, 4096, 0, 0, 1024]),
            part("virtual1", [0, 2048, 0, 0, 768]),
            part("host", [0, 0, 0, 0, 1536]),
        ],
        vec![
            segment("block.0", Lazy, &[4096, 0, 0]),
            segment("block.1", Lazy, &[0, 2048, 256]),
            segment("block.2", Mapped, &[0, 0, 4096]),
        ],
    );
    let dit = ComponentPlan {
        lookahead: 4,
        prefetch: true,
        ..component(
            ("dit", Phase::Denoise),
            (Division::Row { shares: vec![2, 1] }, &["virtual0", "virtual1"]),
            Streamed,
            vec![
                part("virtual0", [2048, 4096, 4096, 4, 4096]),
                part("virtual1", [0, 2048, 2048, 3, 1024]),
                part("host", [0, 0, 0, 0, 256]),
            ],
            vec![
                segment("embed", Resident, &[2048, 0, 512]),
                segment("double.0", Streamed, &[4096, 2048, 0]),
                segment("double.1", Lazy, &[4096, 2048, 0]),
                segment("single.0", Streamed, &[3072, 1536, 256]),
                segment("single.1", Streamed, &[3072, 1536, 0]),
                // Nothing of it is large enough for rows.
                segment("out", Streamed, &[256, 0, 0]),
            ],
        )
    };
    let vae = component(
        ("vae", Phase::Decode),
        (Division::One, &["host"]),
        Mapped,
        vec![part("host", [0, 0, 0, 0, 2048])],
        vec![segment("mid", Mapped, &[512]), segment("up", Mapped, &[512])],
    );
    let devices = vec![
        planned(
            "virtual0",
            [300, 1000, 3072 + 2048 + 300],
            // CLIP and T5 share one arena, the larger of theirs; the DiT's lazy segment is early.
            phases(
                &job,
                &[
                    [3072 + 4096 + 2048 + 4096, 1024, 0],
                    [3072 + 2048 + 4096, 4096, 4 * 4096],
                    [3072 + 2048, 0, 0],
                ],
                300,
            ),
            9216 + 4096 + 16_384 + 300,
        ),
        planned(
            "virtual1",
            [200, 500, 200],
            phases(&job, &[[2048 + 2048, 768, 0], [2048, 1024, 3 * 2048], [0, 0, 0]], 200),
            2048 + 1024 + 6144 + 200,
        ),
        // Neither overhead nor pinned memory of an unused device is counted.
        planned("cuda0", [4096, 900, 0], phases(&job, &[[0; 3]; 3], 0), 0),
    ];
    let host = HostPlan {
        budget_bytes: Bytes(64 * KIB),
        pool_bytes: Bytes(66 * KIB),
        peak_bytes: Bytes(8192 + 2048 + 1500 + 700),
        idle_bytes: Bytes(8192 + 1500),
        pinned_bytes: Bytes(1500),
        locked_bytes: Bytes::ZERO,
        changed_bytes: Bytes(8192),
        mapped_bytes: Bytes(6144 - 300),
        threads: 2,
        job_bytes: Bytes(700),
        phases: phases(&job, &[[8192, 1536, 1500], [8192, 256, 1500], [8192, 2048, 1500]], 700),
    };
    let lora = |path: &str, weight| Lora { path: path.to_owned(), weight };
    Plan {
        options: GraphOptions {
            vae_tile: Some(VaeTile { width: 512, height: 256, overlap: 0.25 }),
            attention_chunk: 128,
            exact_matmul: true,
            loras: vec![lora("/loras/style.safetensors", 0.75), lora("/loras/x.safetensors", -1.5)],
            lora_runtime: vec!["dit".to_owned()],
            weights_as: Some(crate::storage::StorageType::Q8_0),
            preview_every: 5,
        },
        ..plan(job, vec![clip, t5, dit, vae], devices, host)
    }
}

/// A job from a picture: its encoder lazy on a device; CLIP in RAM, one lazy and early, one
/// resident; T5 streamed whole; the DiT streamed in layers over two devices with a resident and a
/// lazy segment; the decoder lazy and early. Its last device is the one of `text` that was not used
/// there.
pub fn picture() -> Plan {
    use Residency::{Lazy, Resident, Streamed};
    let job = JobShape {
        width: 96,
        height: 64,
        steps: 6,
        max_sequence_length: 256,
        init_image: true,
        first_step: 5,
        ..JobShape::small()
    };
    let encoder = component(
        ("vae_encoder", Phase::Encode),
        (Division::One, &["cuda0"]),
        Lazy,
        vec![part("cuda0", [0, 1024, 0, 0, 2048])],
        vec![segment("down", Lazy, &[1024])],
    );
    let clip = ComponentPlan {
        prefetch: true,
        ..component(
            ("clip", Phase::Condition),
            (Division::One, &["host"]),
            Lazy,
            vec![part("host", [0, 1280, 0, 0, 256])],
            vec![segment("embeddings", Lazy, &[256]), segment("layers.0", Lazy, &[1024])],
        )
    };
    let clip_g = ComponentPlan {
        prefetch: true,
        ..component(
            ("clip_g", Phase::Condition),
            (Division::One, &["host"]),
            Resident,
            vec![part("host", [1536, 0, 0, 0, 512])],
            vec![segment("layers.0", Resident, &[1536])],
        )
    };
    let t5 = ComponentPlan {
        lookahead: 2,
        ..component(
            ("t5", Phase::Condition),
            (Division::One, &["virtual0"]),
            Streamed,
            vec![part("virtual0", [0, 0, 2048, 2, 512])],
            vec![
                segment("block.0", Streamed, &[2048]),
                segment("block.1", Streamed, &[1024]),
                segment("block.2", Streamed, &[2048]),
            ],
        )
    };
    let dit = ComponentPlan {
        lookahead: 1,
        ..component(
            ("dit", Phase::Denoise),
            (layers(&[0, 0, 1, 1, 1]), &["cuda0", "virtual0"]),
            Streamed,
            vec![
                part("cuda0", [2048, 0, 4096, 1, 1024]),
                part("virtual0", [0, 1024, 4096, 1, 768]),
            ],
            vec![
                segment("double.0", Resident, &[2048, 0]),
                segment("double.1", Streamed, &[4096, 0]),
                segment("single.0", Streamed, &[0, 4096]),
                segment("single.1", Lazy, &[0, 1024]),
                // A segment that weighs nothing takes no slot.
                segment("out", Streamed, &[0, 0]),
            ],
        )
    };
    let vae = ComponentPlan {
        prefetch: true,
        ..component(
            ("vae", Phase::Decode),
            (Division::One, &["cuda0"]),
            Lazy,
            vec![part("cuda0", [0, 1536, 0, 0, 3072])],
            vec![segment("up", Lazy, &[1536])],
        )
    };
    let devices = vec![
        planned(
            "cuda0",
            [4096, 2048, 2048 + 4096],
            phases(
                &job,
                &[
                    [2048 + 1024, 2048, 0],
                    [2048, 0, 0],
                    [2048 + 1536, 1024, 4096],
                    [2048 + 1536, 3072, 0],
                ],
                4096,
            ),
            3584 + 1024 + 4096 + 4096,
        ),
        planned(
            "virtual0",
            [0, 512, 0],
            phases(&job, &[[0, 0, 0], [0, 512, 2 * 2048], [1024, 768, 4096], [0, 0, 0]], 0),
            1024 + 768 + 4096,
        ),
    ];
    let host = HostPlan {
        budget_bytes: Bytes(64 * KIB),
        pool_bytes: Bytes(66 * KIB),
        peak_bytes: Bytes(2816 + 512 + 2560 + 900),
        idle_bytes: Bytes(1536 + 2560),
        pinned_bytes: Bytes(2560),
        locked_bytes: Bytes::ZERO,
        changed_bytes: Bytes::ZERO,
        mapped_bytes: Bytes::ZERO,
        threads: 2,
        job_bytes: Bytes(900),
        phases: phases(
            &job,
            &[[2816, 0, 2560], [2816, 512, 2560], [1536, 0, 2560], [1536, 0, 2560]],
            900,
        ),
    };
    plan(job, vec![encoder, clip, clip_g, t5, dit, vae], devices, host)
}
