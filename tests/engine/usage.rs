//! What a job tells of its components: how often each ran, and times that are parts of what was
//! measured as a whole.

use std::path::Path;

use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware};
use executor::families;
use executor::models::Model;
use protocol::usage::ComponentUsage;
use protocol::{Division, GraphOptions, JobShape, Phase, Plan, Residency, UsageReport};

const JOB: JobShape = JobShape {
    width: 64,
    height: 48,
    steps: 3,
    batch: 2,
    max_sequence_length: 32,
    true_cfg: true,
    ..JobShape::small()
};

/// CLIP lazy, T5 resident, the DiT streamed over two devices, the decoder lazy and prefetched.
fn plan(dir: &Path, model: &dyn Model) -> Plan {
    let options = GraphOptions::default();
    let graphs = model.graphs(&JOB, &options).expect("a possible job");
    let [clip, t5, dit, vae] = [0, 1, 2, 3].map(|c: usize| graphs[c].variants[0].segments.len());
    let mut streamed = Choice {
        devices: vec![Some(0), Some(1)],
        division: Division::Layer {
            segments: (0..dit).map(|segment| (segment * 2 / dit) as u32).collect(),
        },
        ..Choice::one(0, dit, Residency::Streamed)
    };
    streamed.residencies[1] = Residency::Lazy;
    let choices = [
        Choice::one(0, clip, Residency::Lazy),
        Choice::one(1, t5, Residency::Resident),
        streamed,
        Choice { prefetch: true, ..Choice::one(1, vae, Residency::Lazy) },
    ];
    let hardware = Hardware { devices: 2, ..Hardware::none() };
    plans::plan(dir, model, &JOB, &options, &hardware, &choices)
}

/// Requires that the components' times are parts of the job's; milliseconds are summed in f64.
fn assert_parts(usage: &UsageReport) {
    let ms = &usage.measured_ms;
    let part = |parts: f64, whole: f64, what: &str| {
        assert!(parts > 0.0 && parts <= whole * 1.000_001, "{what}: {parts} ms of {whole} ms");
    };
    let [clip, t5, dit, vae] = usage.components.as_slice() else { panic!("{usage:?}") };
    part(usage.components.iter().map(|c| c.load_ms).sum(), ms.phases[Phase::Load], "load");
    part(clip.compute_ms + t5.compute_ms, ms.phases[Phase::Condition], "condition");
    part(dit.compute_ms, ms.phases[Phase::Denoise] * f64::from(JOB.steps), "denoise");
    part(vae.compute_ms, ms.phases[Phase::Decode], "decode");
}

#[test]
fn each_component_tells_its_calls_and_times() {
    let dir = fixture("flux_schnell");
    let model = families::open(&dir).expect("a whole model");
    let mut runtime = plans::load(&plan(&dir, &*model), &model).expect("a plan that fits");
    let first = plans::paint(&mut runtime).expect("a run").usage;
    let next = plans::paint(&mut runtime).expect("another run").usage;
    for usage in [&first, &next] {
        let calls = |c: &ComponentUsage| (c.name.clone(), c.calls);
        let calls: Vec<_> = usage.components.iter().map(calls).collect();
        let expected = [("clip", 2), ("t5", 2), ("dit", 2 * JOB.steps), ("vae", 2)];
        assert_eq!(calls, expected.map(|(name, calls)| (name.to_owned(), calls)));
        assert_parts(usage);
    }
    // Resident weights crossed the link at 1 GB/s, for the first job only.
    let [first, next] = [&first, &next].map(|usage| usage.components[1].load_ms);
    let crossing_ms = runtime.plan.components[1].tensor_bytes.0 as f64 / 1e9 * 1e3;
    assert!(first > crossing_ms * 0.5 && next < first, "{first} ms, then {next} ms");
}
