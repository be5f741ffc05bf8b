//! Made-up plans for the tests of what is shown.

use protocol::plan::{
    ComponentPlan, DeviceBackend, DevicePlan, HostPlan, MappingPolicy, PartPlan, PhaseBytes,
    SCHEMA, SegmentPlan,
};
use protocol::{
    Bytes, DeviceId, Division, GraphOptions, JobShape, ModelSource, Phase, PhaseMs, Plan,
    PredictedMs, Residency,
};

use crate::policy::Objective;
use crate::tune::{Curve, Point, Range, Step, Tuning, knees};

const PHASES: [Phase; 3] = [Phase::Condition, Phase::Denoise, Phase::Decode];

/// Phases with so many GiB of weights and as many of compute.
fn phases(gib: [u64; 3]) -> Vec<PhaseBytes> {
    let entry = |(phase, gib): (Phase, u64)| PhaseBytes {
        phase,
        weights_bytes: Bytes::gib(gib),
        compute_bytes: Bytes::gib(gib),
        staging_bytes: Bytes::ZERO,
        peak_bytes: Bytes::gib(2 * gib),
    };
    PHASES.into_iter().zip(gib).map(entry).collect()
}

/// A device of 10 GiB with so many GiB of weights in each phase, and as many of compute.
pub(crate) fn device(id: &str, gib: [u64; 3]) -> DevicePlan {
    let phases = phases(gib);
    DevicePlan {
        id: DeviceId(id.to_owned()),
        name: "Test".to_owned(),
        backend: DeviceBackend::Cuda { uuid: Some(format!("GPU-{id}")), unsupported: Vec::new() },
        total_bytes: Bytes::gib(10),
        free_bytes: Bytes::gib(10),
        budget_bytes: Bytes::gib(10),
        overhead_bytes: Bytes::ZERO,
        overhead_source: "declared".to_owned(),
        integrated: false,
        pinned_bytes: Bytes::ZERO,
        peak_bytes: phases.iter().map(|entry| entry.peak_bytes).max().unwrap_or_default(),
        idle_bytes: Bytes::ZERO,
        phases,
    }
}

/// A component of four segments of 1 GiB, of which two are streamed if it is.
pub(crate) fn component(name: &str, phase: Phase, device: &str, how: Residency) -> ComponentPlan {
    let id = DeviceId(device.to_owned());
    let stays = |index: usize| index < 2 && how == Residency::Streamed;
    let segment = |index: usize| SegmentPlan {
        name: format!("block.{index}"),
        residencies: vec![if stays(index) { Residency::Resident } else { how }],
        weights_bytes: Bytes::gib(1),
        part_bytes: vec![Bytes::gib(1)],
    };
    ComponentPlan {
        name: name.to_owned(),
        phase,
        devices: vec![id.clone()],
        division: Division::One,
        residency: how,
        lookahead: if how == Residency::Streamed { 2 } else { 0 },
        predicted_load_ms: 0.0,
        predicted_compute_ms: 0.0,
        prefetch: false,
        parts: vec![PartPlan {
            device: id.clone(),
            resident_bytes: Bytes::gib(4),
            lazy_bytes: Bytes::ZERO,
            slot_bytes: Bytes::ZERO,
            slots: 0,
            compute_bytes: Bytes::gib(1),
        }],
        segments: (0..4).map(segment).collect(),
        weights_bytes: Bytes::gib(4),
        tensor_bytes: Bytes::gib(4),
        reason: format!("on {device}, as it is made up"),
    }
}

/// A text encoder, a streamed DiT and a VAE, on one device of 10 GiB that is full in the first
/// phase.
pub(crate) fn plan() -> Plan {
    let host_phases = PHASES.map(|phase| PhaseBytes {
        phase,
        weights_bytes: Bytes::ZERO,
        compute_bytes: Bytes::ZERO,
        staging_bytes: Bytes::kib(512),
        peak_bytes: Bytes::kib(612),
    });
    Plan {
        schema: SCHEMA,
        generation: 1,
        keeps_weights_of: None,
        model: ModelSource::of("made-up"),
        family: "test".to_owned(),
        job: JobShape {
            width: 1024,
            height: 768,
            steps: 28,
            max_sequence_length: 512,
            ..JobShape::small()
        },
        options: GraphOptions::default(),
        mapping_policy: MappingPolicy::Keep,
        components: vec![
            component("te", Phase::Condition, "cuda0", Residency::Lazy),
            component("dit", Phase::Denoise, "cuda0", Residency::Streamed),
            component("vae", Phase::Decode, "cuda0", Residency::Lazy),
        ],
        devices: vec![device("cuda0", [5, 3, 2])],
        host: HostPlan {
            budget_bytes: Bytes::gib(16),
            pool_bytes: Bytes::gib(16),
            peak_bytes: Bytes::kib(612),
            idle_bytes: Bytes::kib(512),
            pinned_bytes: Bytes::kib(512),
            locked_bytes: Bytes::ZERO,
            changed_bytes: Bytes::ZERO,
            mapped_bytes: Bytes::ZERO,
            threads: 8,
            job_bytes: Bytes::kib(100),
            phases: host_phases.to_vec(),
        },
        predicted_ms: PredictedMs {
            phases: PhaseMs::from([
                (Phase::Load, 4000.0),
                (Phase::Condition, 100.0),
                (Phase::Denoise, 500.0),
                (Phase::Decode, 200.0),
            ]),
            total: 18_300.0,
            next_total: 15_000.0,
        },
    }
}

/// A curve of such steps, as GiB and milliseconds of a cold start.
pub(crate) fn tuning(steps: &[(u64, f64)]) -> Tuning {
    let step = |(gib, ms): &(u64, f64)| {
        let budget = Bytes::gib(*gib);
        let mut plan = plan();
        plan.predicted_ms.total = *ms;
        let point = Point { budget, needed_bytes: budget, ms: *ms, plan };
        Step { point, slower_at: budget.0.checked_sub(1).map(Bytes) }
    };
    let plan = plan();
    let points: Vec<(u64, f64)> = steps.iter().map(|(gib, ms)| (gib << 30, *ms)).collect();
    let [low, high] = [steps.first(), steps.last()].map(|step| step.map_or(0, |step| step.0));
    Tuning {
        model: plan.model,
        family: plan.family,
        job: plan.job,
        objective: Objective::Latency,
        host: "host profile made-up".to_owned(),
        range: Range { low: Bytes::gib(low), high: Bytes::gib(high) },
        is_least: true,
        curve: Curve { steps: steps.iter().map(step).collect(), plans: 9, complete: true },
        knees: knees(&points),
        measured: vec![None; steps.len()],
    }
}
