//! What runs and measurements teach.

use protocol::plan::{ComponentPlan, HostPlan, MappingPolicy, PartPlan, SCHEMA, SegmentPlan};
use protocol::usage::{ComponentUsage, GpuUsage, MemorySource};
use protocol::{Division, GraphOptions, JobShape, ModelSource, Phase, PredictedMs, Residency};

use super::super::key::DeviceKey;
use super::*;

/// A component of two segments of 64 MiB each on these devices, predicted to compute for 100 ms.
fn component(devices: &[&str], residency: Residency) -> ComponentPlan {
    let id = |device: &&str| DeviceId((*device).to_owned());
    let bytes = Bytes::mib(64);
    let segment = |name: &str| SegmentPlan {
        name: name.to_owned(),
        residencies: vec![residency; devices.len()],
        weights_bytes: bytes,
        part_bytes: devices.iter().map(|_| Bytes(bytes.0 / devices.len() as u64)).collect(),
    };
    let division = match devices.len() {
        1 => Division::One,
        _ => Division::Layer { segments: vec![0, 0] },
    };
    let part = |device| PartPlan {
        device: id(device),
        resident_bytes: Bytes::ZERO,
        lazy_bytes: Bytes::ZERO,
        slot_bytes: Bytes::ZERO,
        slots: 0,
        compute_bytes: Bytes::ZERO,
    };
    ComponentPlan {
        name: "dit".to_owned(),
        phase: Phase::Denoise,
        devices: devices.iter().map(id).collect(),
        division,
        residency,
        lookahead: 0,
        prefetch: false,
        parts: devices.iter().map(part).collect(),
        segments: vec![segment("a"), segment("b")],
        weights_bytes: Bytes::mib(128),
        tensor_bytes: Bytes::mib(128),
        predicted_load_ms: 10.0,
        predicted_compute_ms: 100.0,
        reason: String::new(),
    }
}

fn plan(component: ComponentPlan) -> Plan {
    Plan {
        schema: SCHEMA,
        generation: 1,
        keeps_weights_of: None,
        model: ModelSource::of("model"),
        family: String::new(),
        job: JobShape {
            width: 16,
            height: 16,
            steps: 1,
            max_sequence_length: 1,
            ..JobShape::small()
        },
        options: GraphOptions::default(),
        mapping_policy: MappingPolicy::Keep,
        components: vec![component],
        devices: Vec::new(),
        host: HostPlan {
            budget_bytes: Bytes::ZERO,
            pool_bytes: Bytes::ZERO,
            peak_bytes: Bytes::ZERO,
            idle_bytes: Bytes::ZERO,
            pinned_bytes: Bytes::ZERO,
            locked_bytes: Bytes::ZERO,
            changed_bytes: Bytes::ZERO,
            mapped_bytes: Bytes::ZERO,
            threads: 8,
            job_bytes: Bytes::ZERO,
            phases: Vec::new(),
        },
        predicted_ms: PredictedMs::default(),
    }
}

/// No lesson.
const NOTHING: [f64; 0] = [];

/// One call that took so long.
fn took(compute_ms: f64) -> UsageReport {
    let component = ComponentUsage {
        name: "dit".to_owned(),
        calls: 1,
        load_ms: 1.0,
        compute_ms,
        sent_bytes: Bytes::ZERO,
    };
    UsageReport { components: vec![component], ..UsageReport::default() }
}

fn ratios(inventory: &Inventory, component: ComponentPlan, usage: &UsageReport) -> Vec<f64> {
    let lessons = lessons(&machine(), inventory, &plan(component), usage);
    lessons.iter().map(|lesson| lesson.ratio).collect()
}

#[test]
fn a_run_teaches_each_processor_that_it_computed_on() {
    let inventory = with_virtual();
    let one = component(&["virtual0"], Residency::Resident);
    let lessons = lessons(&machine(), &inventory, &plan(one), &took(150.0));
    let key = DeviceKey::of(&inventory, &inventory.devices[0]);
    assert_eq!(lessons, [MeasuredRatio { device: key, component: "dit".to_owned(), ratio: 1.5 }]);
    let two = component(&["virtual0", "virtual1", "host"], Residency::Lazy);
    assert_eq!(ratios(&inventory, two, &took(80.0)), [0.8; 3]);
}

#[test]
fn a_prediction_with_a_correction_refines_it() {
    let mut inventory = with_virtual();
    inventory.devices[0].speeds.corrections.insert("dit".to_owned(), 2.0);
    let two = || component(&["virtual0", "virtual1"], Residency::Resident);
    assert_eq!(ratios(&inventory, two(), &took(150.0)), [3.0, 1.5]);
    assert_eq!(ratios(&inventory, two(), &took(1e9)), [50.0, 50.0]);
    assert_eq!(ratios(&inventory, two(), &took(1e-3)), [0.02, 0.02]);
}

#[test]
fn what_says_nothing_teaches_nothing() {
    let inventory = with_virtual();
    let resident = |devices: &[&str]| component(devices, Residency::Resident);
    let unpredicted = ComponentPlan { predicted_compute_ms: 0.0, ..resident(&["virtual0"]) };
    assert_eq!(ratios(&inventory, unpredicted, &took(10.0)), NOTHING);
    for compute_ms in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(ratios(&inventory, resident(&["virtual0"]), &took(compute_ms)), NOTHING);
    }
    assert_eq!(ratios(&inventory, resident(&["virtual0"]), &UsageReport::default()), NOTHING);
    assert_eq!(ratios(&inventory, resident(&["virtual7"]), &took(10.0)), NOTHING);
    let imagined = profiled("name = \"imagined\"\n[host]\ncores = 16");
    assert_eq!(ratios(&imagined, resident(&["host"]), &took(10.0)), NOTHING);
    assert_eq!(ratios(&inventory, resident(&["host"]), &took(10.0)), [0.1]);
}

#[test]
fn a_streamed_component_teaches_only_where_it_is_bound_by_computing() {
    let inventory = with_virtual();
    // 128 MiB take 62.5 ms over 2 GiB/s.
    let streamed = |predicted_compute_ms| ComponentPlan {
        predicted_compute_ms,
        ..component(&["virtual0"], Residency::Streamed)
    };
    assert_eq!(ratios(&inventory, streamed(100.0), &took(150.0)), NOTHING);
    assert_eq!(ratios(&inventory, streamed(126.0), &took(189.0)), [1.5]);
    // Two calls stream twice as much.
    let mut twice = took(189.0);
    twice.components[0].calls = 2;
    assert_eq!(ratios(&inventory, streamed(126.0), &twice), NOTHING);
}

#[test]
fn runs_are_kept_by_model_and_smoothed() {
    let inventory = with_virtual();
    let one = || component(&["virtual0"], Residency::Resident);
    let mut content = recorded(&inventory);
    for compute_ms in [150.0, 600.0] {
        let lessons = lessons(&machine(), &inventory, &plan(one()), &took(compute_ms));
        content.learn("model", &lessons);
    }
    let key = DeviceKey::of(&inventory, &inventory.devices[0]).unwrap();
    let known = &content.of(&key).unwrap().correction;
    assert_eq!(known.len(), 1);
    assert_eq!((known[0].ratio, known[0].runs, &*known[0].model), (3.0, 2, "model"));

    // New rates: what was learned of the old ones goes.
    content.record(&machine(), &inventory, &answer(&inventory));
    assert_eq!(content.of(&key).unwrap().correction, []);
}

#[test]
fn one_device_is_measured_beside_what_is_known_of_others() {
    let inventory = with_virtual();
    let mut content = recorded(&inventory);
    let mut again = answer(&inventory);
    again.devices.remove(0);
    again.devices[0].speeds = speeds(4.0);
    again.storage_bytes_per_s = None;
    content.record(&machine(), &inventory, &again);
    let flops = |index: usize| {
        let key = DeviceKey::of(&inventory, &inventory.devices[index]).unwrap();
        content.of(&key).unwrap().speeds.unwrap().f32_flops_per_s
    };
    assert_eq!((flops(0), flops(1)), (Some(2.2e11), Some(4.4e11)));
    assert_eq!(content.host.storage_bytes_per_s, Some(3e9));
    // Measured with fewer threads than there are cores: not the host as a whole.
    let fewer = profiled("name = \"fewer\"\n[host]\ncores = 1");
    let slower = Answer { host: speeds(0.1), page_cache_bytes_per_s: 1e9, ..answer(&fewer) };
    content.record(&machine(), &fewer, &slower);
    assert_eq!(content.host.speeds.unwrap().f32_flops_per_s, Some(1.1e11));
    assert_eq!(content.host.page_cache_bytes_per_s, Some(1e9));
}

#[test]
fn the_overhead_of_a_gpu_is_kept_and_smoothed() {
    let inventory = with_gpu();
    let key = DeviceKey::of(&inventory, &inventory.devices[0]).unwrap();
    let mut content = recorded(&inventory);
    let mut measured = |mib| {
        let mut answer = answer(&inventory);
        answer.devices[0].overhead_bytes = Some(Bytes::mib(mib));
        content.record(&machine(), &inventory, &answer);
        content.of(&key).unwrap().overhead.unwrap().bytes()
    };
    assert_eq!(measured(400), Bytes::mib(400));
    assert_eq!(measured(200), Bytes::mib(350));
    // No context is that small.
    assert_eq!(measured(1), Bytes(Bytes::mib(350).0 - Bytes::mib(350 - 53).0 / 4));
    assert!(content.text().is_ok());
    let known = recorded(&with_virtual());
    assert!(known.device.iter().all(|section| section.overhead.is_none()));
}

#[test]
fn figures_stand_beside_what_was_counted_with() {
    let inventory = with_virtual();
    let figures = figures(&inventory, &answer(&inventory));
    let of = |device: &str, name: &str| {
        let found = figures.iter().find(|f| f.device == device && f.figure == name);
        found.map(|figure| (figure.measured, figure.before, figure.before_source))
    };
    assert_eq!(of("host", "storage_bytes_per_s"), Some((3e9, 1e9, Source::Assumed)));
    let link = 2.0 * f64::from(1 << 30);
    assert_eq!(of("virtual0", "link_bytes_per_s"), Some((1.5e10, link, Source::Declared)));
    assert_eq!(of("host", "link_bytes_per_s"), None);
    assert_eq!(figures.len(), 9 + 2 * 10);
}

#[test]
fn a_run_teaches_what_a_context_takes() {
    let of = |bytes: Bytes| UsageReport {
        gpus: vec![GpuUsage {
            devices: vec![DeviceId("cuda0".to_owned())],
            source: MemorySource::Process,
            predicted_overhead_bytes: ASSUMED_CONTEXT_BYTES,
            measured_overhead_bytes: bytes,
            predicted_peak_bytes: Bytes::gib(4),
            measured_peak_bytes: Bytes::gib(4),
        }],
        ..UsageReport::default()
    };
    let inventory = with_gpu();
    let key = DeviceKey::of(&inventory, &inventory.devices[0]).expect("a real GPU");
    let taught = |bytes| overheads(&inventory, &of(bytes));
    assert_eq!(taught(Bytes::mib(300)), [(key.clone(), Bytes::mib(300))]);
    assert_eq!(taught(Bytes::ZERO), [(key.clone(), Bytes::mib(53))], "no less than any context");
    assert_eq!(taught(Bytes::gib(5)), [], "others must have taken some of it");
    assert_eq!(overheads(&with_virtual(), &of(Bytes::mib(300))), []);

    let mut content = Content::new(&machine());
    for (measured, predicted) in [(300, 300), (500, 500), (300, 450)] {
        content.learn_overhead(&key, Bytes::mib(measured));
        let overhead = content.of(&key).and_then(|section| section.overhead);
        assert_eq!(overhead.map(|overhead| overhead.bytes()), Some(Bytes::mib(predicted)));
    }
}
