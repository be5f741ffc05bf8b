//! A good plan, and every single change of it that the checker must refuse.

use ipc_channel::ipc;
use proptest::prelude::*;

use super::*;
use crate::message::Command;
use crate::plan::{DeviceBackend, DevicePlan, HostPlan, PredictedMs, SegmentPlan};

const KIB: u64 = 1024;

fn set_link(plan: &mut Plan, rate: f64) {
    plan.devices[0].backend =
        DeviceBackend::Virtual { link_bytes_per_s: rate, fail_allocation: None };
}

fn virtual0() -> DeviceId {
    DeviceId("virtual0".to_owned())
}

fn component(
    name: &str,
    phase: Phase,
    device: DeviceId,
    residency: Residency,
    weights: [u64; 2],
    compute: u64,
) -> ComponentPlan {
    let placement = if device.is_host() { Placement::Host } else { Placement::One };
    let segments = [0, 1].map(|index| SegmentPlan {
        name: format!("blocks.{index}"),
        device: device.clone(),
        residency,
        weights_bytes: Bytes(weights[index]),
    });
    ComponentPlan {
        name: name.to_owned(),
        phase,
        placement,
        devices: vec![device],
        residency,
        segments: segments.into(),
        weights_bytes: Bytes(weights[0] + weights[1]),
        tensor_bytes: Bytes(weights[0] + weights[1] - 100),
        compute_bytes: Bytes(compute),
        reason: "it is the best".to_owned(),
    }
}

/// Rows of weights, compute and staging, in the order of the timeline, with `fixed` in each peak.
fn phases(rows: [[u64; 3]; 3], fixed: u64) -> Vec<PhaseBytes> {
    let entry = |(phase, [weights, compute, staging]): (Phase, [u64; 3])| PhaseBytes {
        phase,
        weights_bytes: Bytes(weights),
        compute_bytes: Bytes(compute),
        staging_bytes: Bytes(staging),
        peak_bytes: Bytes(weights + compute + staging + fixed),
    };
    Phase::TIMELINE.into_iter().zip(rows).map(entry).collect()
}

/// A plan with every placement and residency: CLIP resident and T5 lazy on a device, the DiT lazy there, the VAE
/// mapped on the host; a second device is not used.
fn good() -> Plan {
    let device = |id: &str, backend, rows, overhead: u64, fixed, peak: u64| DevicePlan {
        id: DeviceId(id.to_owned()),
        name: "a device".to_owned(),
        backend,
        total_bytes: Bytes(100 * KIB),
        free_bytes: Bytes(90 * KIB),
        budget_bytes: Bytes(80 * KIB),
        overhead_bytes: Bytes(overhead),
        overhead_source: "declared".to_owned(),
        phases: phases(rows, fixed),
        peak_bytes: Bytes(peak),
    };
    let virtual_backend =
        DeviceBackend::Virtual { link_bytes_per_s: 1.5e9, fail_allocation: Some(3) };
    let cuda_backend = DeviceBackend::Cuda { uuid: Some("GPU-0".to_owned()) };
    Plan {
        schema: SCHEMA,
        generation: 3,
        model: "/models/demo".to_owned(),
        family: "flux".to_owned(),
        job: JobShape {
            width: 64,
            height: 32,
            steps: 4,
            batch: 2,
            max_sequence_length: 512,
            true_cfg: true,
        },
        components: vec![
            component("clip", Phase::Condition, virtual0(), Residency::Resident, [1024, 2048], 512),
            component("t5", Phase::Condition, virtual0(), Residency::Lazy, [4096, 4096], 1024),
            component("dit", Phase::Denoise, virtual0(), Residency::Lazy, [16_384, 8192], 4096),
            component("vae", Phase::Decode, DeviceId::host(), Residency::Mapped, [512, 512], 2048),
        ],
        devices: vec![
            device(
                "virtual0",
                virtual_backend,
                // CLIP and T5 share one arena, the larger of theirs.
                [[3072 + 8192, 1024, 0], [3072 + 24_576, 4096, 256], [3072, 0, 0]],
                300,
                300,
                3072 + 24_576 + 4096 + 256 + 300,
            ),
            // The overhead of an unused device is not counted.
            device("cuda0", cuda_backend, [[0; 3]; 3], 4096, 0, 0),
        ],
        host: HostPlan {
            budget_bytes: Bytes(64 * KIB),
            peak_bytes: Bytes(2048 + 700),
            pinned_bytes: Bytes(0),
            mapped_bytes: Bytes(924),
            threads: 2,
            job_bytes: Bytes(700),
            phases: phases([[0, 0, 0], [0, 0, 128], [0, 2048, 0]], 700),
        },
        predicted_ms: PredictedMs {
            load: 0.1,
            condition: 1.0 / 3.0,
            denoise_step: 1e-9,
            decode: 4.0,
            total: 1e12,
        },
    }
}

#[test]
fn a_good_plan_passes() {
    assert_eq!(check(&good()), Ok(()));
}

#[test]
fn a_plan_may_fill_its_budgets_to_the_byte() {
    let mut plan = good();
    let device = &mut plan.devices[0];
    device.total_bytes = device.peak_bytes;
    device.free_bytes = device.peak_bytes;
    device.budget_bytes = device.peak_bytes;
    plan.host.budget_bytes = plan.host.peak_bytes;
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn limits_are_inclusive() {
    let mut plan = good();
    plan.job = JobShape {
        width: SIDE_PIXELS_MAX,
        height: SIDE_PIXELS_MAX,
        steps: STEPS_MAX,
        batch: BATCH_MAX,
        max_sequence_length: SEQUENCE_TOKENS_MAX,
        true_cfg: false,
    };
    plan.host.threads = THREADS_MAX;
    plan.generation = u64::MAX;
    plan.model = "m".repeat(STRING_BYTES_MAX);
    let spare = plan.devices[1].clone();
    while plan.devices.len() < DEVICES_MAX {
        let id = DeviceId(format!("cuda{}", plan.devices.len()));
        plan.devices.push(DevicePlan { id, ..spare.clone() });
    }
    let segments = &mut plan.components[3].segments;
    let empty = SegmentPlan { weights_bytes: Bytes::ZERO, ..segments[0].clone() };
    segments.resize(SEGMENTS_MAX, empty);
    while plan.components.len() < COMPONENTS_MAX {
        let name = format!("vae{}", plan.components.len());
        plan.components.push(ComponentPlan { name, ..plan.components[3].clone() });
    }
    assert_eq!(check(&plan), Ok(()));
}

/// One change, and a part of its refusal.
type Change = (fn(&mut Plan), &'static str);

fn grow(bytes: &mut Bytes) {
    *bytes += Bytes(ALIGNMENT_BYTES);
}

/// The document, the job, the names.
const HEADS: [Change; 20] = [
    (|p| p.schema = SCHEMA + 1, "schema 2 where 1 is understood"),
    (|p| p.schema = 0, "schema 0"),
    (|p| p.generation = 0, "generation 0"),
    (|p| p.model = "m".repeat(STRING_BYTES_MAX + 1), "a name of 16385 bytes"),
    (|p| p.family = "f".repeat(STRING_BYTES_MAX + 1), "a name of 16385 bytes"),
    (|p| p.job.width = 0, "width 0 is not within 1 to 16384"),
    (|p| p.job.width = SIDE_PIXELS_MAX + 1, "width 16385"),
    (|p| p.job.height = 0, "height 0"),
    (|p| p.job.height = u32::MAX, "height 4294967295"),
    (|p| p.job.steps = 0, "steps 0"),
    (|p| p.job.steps = STEPS_MAX + 1, "steps 1001"),
    (|p| p.job.batch = 0, "batch 0"),
    (|p| p.job.batch = BATCH_MAX + 1, "batch 65"),
    (|p| p.job.max_sequence_length = 0, "max_sequence_length 0"),
    (|p| p.job.max_sequence_length = SEQUENCE_TOKENS_MAX + 1, "max_sequence_length 4097"),
    (|p| p.host.threads = 0, "0 threads"),
    (|p| p.host.threads = THREADS_MAX + 1, "1025 threads"),
    (|p| p.components.clear(), "0 components"),
    (|p| p.components = vec![p.components[0].clone(); COMPONENTS_MAX + 1], "17 components"),
    (|p| p.devices = vec![p.devices[0].clone(); DEVICES_MAX + 1], "17 devices"),
];

const DEVICES: [Change; 29] = [
    (|p| p.devices[1].id = DeviceId::host(), "the host stands among the devices"),
    (
        |p| p.devices[1].id = DeviceId("d".repeat(STRING_BYTES_MAX + 1)),
        "a device id of 16385 bytes",
    ),
    (|p| p.devices[1].id = virtual0(), "device virtual0 stands twice"),
    (|p| p.devices[0].name = "n".repeat(STRING_BYTES_MAX + 1), "virtual0: a text of 16385 bytes"),
    (|p| set_link(p, 0.0), "virtual0: a link of 0 B/s"),
    (|p| set_link(p, -1.0), "virtual0: a link of -1 B/s"),
    (|p| set_link(p, f64::NAN), "virtual0: a link of NaN B/s"),
    (|p| set_link(p, f64::INFINITY), "virtual0: a link of inf B/s"),
    (|p| drop(p.devices.remove(0)), "which the plan does not know"),
    (|p| p.devices[0].total_bytes = Bytes(90 * KIB - 1), "virtual0: more free than total"),
    (|p| p.devices[0].free_bytes = Bytes(80 * KIB - 1), "virtual0: budget above free"),
    (|p| p.devices[0].free_bytes = Bytes(100 * KIB + 1), "virtual0: more free than total"),
    (|p| p.devices[0].budget_bytes = Bytes(90 * KIB + 1), "virtual0: budget above free"),
    (|p| p.devices[0].budget_bytes = Bytes(32_299), "peak 32300 B is above the budget of 32299 B"),
    (
        |p| p.devices[0].overhead_bytes = Bytes(299),
        "virtual0, condition: peak 12588 B is not 12587 B",
    ),
    (
        |p| p.devices[0].peak_bytes = Bytes(32_299),
        "virtual0: peak 32299 B is not its largest phase's",
    ),
    (
        |p| p.devices[0].peak_bytes = Bytes(32_301),
        "virtual0: peak 32301 B is not its largest phase's",
    ),
    (|p| p.devices[1].peak_bytes = Bytes(4096), "cuda0: peak 4096 B is not its largest phase's"),
    (|p| p.devices[0].phases.clear(), "virtual0: 0 entries for condition"),
    (|p| p.devices[0].phases.truncate(2), "virtual0: 2 phases"),
    (|p| p.devices[0].phases[1].phase = Phase::Condition, "virtual0: 2 entries for condition"),
    (|p| p.devices[0].phases[1].phase = Phase::Load, "virtual0: 0 entries for denoise"),
    (
        |p| grow(&mut p.devices[0].phases[0].weights_bytes),
        "virtual0, condition: 11520 B of weights",
    ),
    (|p| p.devices[0].phases[2].weights_bytes = Bytes::ZERO, "virtual0, decode: 0 B of weights"),
    (|p| grow(&mut p.devices[0].phases[1].compute_bytes), "virtual0, denoise: 4352 B of compute"),
    (|p| grow(&mut p.devices[0].phases[1].staging_bytes), "peak 32300 B is not 32556 B"),
    (|p| grow(&mut p.devices[0].phases[1].peak_bytes), "peak 32556 B is not 32300 B"),
    (|p| p.devices[0].phases[1].staging_bytes = Bytes(u64::MAX), "is not 18446744073709551615 B"),
    (
        |p| p.devices[1].phases[0].peak_bytes = Bytes(4096),
        "cuda0, condition: peak 4096 B is not 0 B",
    ),
];

const COMPONENTS: [Change; 31] = [
    (|p| p.components[1].name = "clip".to_owned(), "component clip stands twice"),
    (
        |p| p.components[1].reason = "r".repeat(STRING_BYTES_MAX + 1),
        "a component's text of 16385 bytes",
    ),
    (
        |p| p.components[0].segments[0].name = "s".repeat(STRING_BYTES_MAX + 1),
        "clip: a segment's name of 16385 bytes",
    ),
    (|p| p.components[0].phase = Phase::Load, "clip computes in the load phase"),
    (|p| p.components.swap(1, 2), "t5 stands after a later phase's component"),
    (|p| p.components[1].phase = Phase::Decode, "dit stands after a later phase's component"),
    (
        |p| p.components[2].phase = Phase::Decode,
        "virtual0, denoise: 27648 B of weights, components have 3072 B",
    ),
    (|p| p.components[0].devices.clear(), "clip names 0 devices"),
    (|p| p.components[0].devices.push(DeviceId("cuda0".to_owned())), "clip names 2 devices"),
    (
        |p| p.components[0].devices[0] = DeviceId("cuda7".to_owned()),
        "clip is on cuda7, which the plan does not know",
    ),
    (
        |p| p.components[0].devices[0] = DeviceId::host(),
        "clip is on host, which the plan does not know",
    ),
    (
        |p| p.components[0].devices[0] = DeviceId("cuda0".to_owned()),
        "clip: segment blocks.0 is elsewhere",
    ),
    (|p| p.components[0].placement = Placement::Host, "clip is on the host, yet on virtual0"),
    (
        |p| p.components[3].placement = Placement::One,
        "vae is on host, which the plan does not know",
    ),
    (
        |p| p.components[0].residency = Residency::Mapped,
        "clip is mapped on virtual0; only the host can compute so",
    ),
    (
        |p| p.components[0].residency = Residency::Lazy,
        "clip: segment blocks.0 has another residency",
    ),
    (
        |p| p.components[3].residency = Residency::Resident,
        "vae: segment blocks.0 has another residency",
    ),
    (|p| p.components[1].segments.clear(), "t5 has 0 segments"),
    (
        |p| p.components[1].segments = vec![p.components[1].segments[0].clone(); SEGMENTS_MAX + 1],
        "t5 has 1025 segments",
    ),
    (
        |p| p.components[1].segments[1].device = DeviceId::host(),
        "t5: segment blocks.1 is elsewhere",
    ),
    (
        |p| p.components[1].segments[1].residency = Residency::Resident,
        "t5: segment blocks.1 has another residency",
    ),
    (
        |p| grow(&mut p.components[1].segments[1].weights_bytes),
        "t5: segments hold 8448 B of 8192 B",
    ),
    (
        |p| p.components[1].segments[1].weights_bytes = Bytes(u64::MAX),
        "t5: segments hold 18446744073709551615 B",
    ),
    (|p| p.components[1].segments.truncate(1), "t5: segments hold 4096 B of 8192 B"),
    (|p| grow(&mut p.components[2].weights_bytes), "dit: segments hold 24576 B of 24832 B"),
    (|p| p.components[2].tensor_bytes = Bytes(24_577), "dit: more tensor bytes than weights"),
    (
        |p| {
            p.components[2].segments[0].weights_bytes += Bytes(1);
            p.components[2].weights_bytes += Bytes(1);
        },
        "dit: 24577 B is not aligned",
    ),
    (|p| p.components[2].compute_bytes = Bytes(4095), "dit: 4095 B is not aligned"),
    (|p| grow(&mut p.components[2].compute_bytes), "4096 B of compute, components need 4352 B"),
    (
        |p| grow(&mut p.components[3].compute_bytes),
        "host, decode: 2048 B of compute, components need 2304 B",
    ),
    (|p| drop(p.components.pop()), "host, decode: 2048 B of compute, components need 0 B"),
];

const HOST: [Change; 9] = [
    (|p| p.host.budget_bytes = Bytes(2747), "host: peak 2748 B is above the budget of 2747 B"),
    (|p| p.host.peak_bytes = Bytes(2749), "host: peak 2749 B is not its largest phase's"),
    (|p| p.host.job_bytes = Bytes(699), "host, condition: peak 700 B is not 699 B"),
    (|p| p.host.phases.clear(), "host: 0 entries for condition"),
    (|p| p.host.phases.push(p.host.phases[0].clone()), "host: 2 entries for condition"),
    (
        |p| grow(&mut p.host.phases[2].weights_bytes),
        "host, decode: 256 B of weights, components have 0 B",
    ),
    (|p| grow(&mut p.host.phases[0].compute_bytes), "host, condition: 256 B of compute"),
    (|p| p.host.phases[1].staging_bytes = Bytes::ZERO, "host, denoise: peak 828 B is not 700 B"),
    (|p| p.host.phases[1].peak_bytes = Bytes::ZERO, "host, denoise: peak 0 B is not 828 B"),
];

#[test]
fn each_broken_rule_is_refused_by_its_name() {
    let changes = HEADS.iter().chain(&DEVICES).chain(&COMPONENTS).chain(&HOST);
    for (index, (change, says)) in changes.enumerate() {
        let mut plan = good();
        change(&mut plan);
        let Err(Violation(message)) = check(&plan) else {
            panic!("change {index} passed; expected {says:?}");
        };
        assert!(message.contains(says), "change {index}: {message:?} does not say {says:?}");
    }
}

#[test]
fn what_is_only_for_people_is_not_judged() {
    let mut plan = good();
    plan.components[0].reason = String::new();
    plan.devices[0].name = "another".to_owned();
    plan.devices[0].overhead_source = "measured".to_owned();
    plan.predicted_ms = PredictedMs::default();
    assert_eq!(check(&plan), Ok(()));
}

#[test]
fn a_plan_survives_json() {
    let plan = good();
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    // The names that other programs read.
    let value = serde_json::to_value(&plan).unwrap();
    assert_eq!(value["components"][3]["placement"], "host");
    assert_eq!(value["components"][3]["residency"], "mapped");
    assert_eq!(value["components"][3]["devices"][0], "host");
    assert_eq!(value["devices"][0]["phases"][1]["phase"], "denoise");
    assert_eq!(value["devices"][0]["phases"][1]["peak_bytes"], 32_300);
}

#[test]
fn a_plan_survives_the_wire() {
    let (sender, receiver) = ipc::channel().unwrap();
    for rehearse in [false, true] {
        sender.send(Command::Load { plan: Box::new(good()), rehearse }).unwrap();
        match receiver.recv().unwrap() {
            Command::Load { plan, rehearse: got } => assert_eq!((*plan, got), (good(), rehearse)),
            other => panic!("{other:?}"),
        }
    }
}

/// Every number of a plan, as a place to write to.
fn numbers(value: &mut serde_json::Value) -> Vec<&mut serde_json::Value> {
    match value {
        serde_json::Value::Number(_) => vec![value],
        serde_json::Value::Array(entries) => entries.iter_mut().flat_map(numbers).collect(),
        serde_json::Value::Object(fields) => {
            fields.iter_mut().flat_map(|(_, field)| numbers(field)).collect()
        }
        _ => Vec::new(),
    }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX - ALIGNMENT_BYTES + 1),
        Just(u64::MAX),
        0..200_000u64,
        any::<u64>(),
    ]
}

proptest! {
    /// Whatever stands in a plan, the checker answers, and always the same.
    #[test]
    fn no_numbers_make_it_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 1..6)) {
        let mut value = serde_json::to_value(good()).unwrap();
        for (index, number) in changes {
            let mut places = numbers(&mut value);
            let place = index.index(places.len());
            *places[place] = number.into();
        }
        // Fields of 32 bits take no more.
        if let Ok(plan) = serde_json::from_value::<Plan>(value) {
            prop_assert_eq!(check(&plan), check(&plan));
        }
    }

    /// No number that a sum depends on can change alone.
    #[test]
    fn no_byte_of_a_sum_changes_alone(component in 0..3usize, segment in 0..2usize, more in 1..1u64 << 40) {
        let change = |change: &dyn Fn(&mut Plan)| {
            let mut plan = good();
            change(&mut plan);
            check(&plan)
        };
        prop_assert!(change(&|p| p.components[component].weights_bytes += Bytes(more)).is_err());
        prop_assert!(change(&|p| p.components[component].segments[segment].weights_bytes += Bytes(more)).is_err());
        for phase in 0..3 {
            prop_assert!(change(&|p| p.devices[0].phases[phase].weights_bytes += Bytes(more)).is_err());
            prop_assert!(change(&|p| p.devices[0].phases[phase].staging_bytes += Bytes(more)).is_err());
            prop_assert!(change(&|p| p.host.phases[phase].peak_bytes += Bytes(more)).is_err());
        }
        prop_assert!(change(&|p| p.host.job_bytes += Bytes(more)).is_err());
        prop_assert!(change(&|p| p.devices[0].overhead_bytes += Bytes(more)).is_err());
    }
}
