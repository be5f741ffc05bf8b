//! Jobs that bring what their text encoders give, in every size: what the plan states is what they
//! use, by a plan without text encoders and by one that has some.

use std::sync::Arc;

use executor::families;
use executor::models::Model;
use protocol::{Bytes, GraphOptions, Job, JobShape, Plan, Residency, UsageReport};

use crate::SIZES;
use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware};

/// Of each component the device, and where its weights wait, in turns.
const PLACES: [(Option<usize>, Residency); 4] = [
    (Some(0), Residency::Resident),
    (Some(1), Residency::Lazy),
    (Some(0), Residency::Streamed),
    (None, Residency::Mapped),
];

/// A plan whose components are at these places, the first one's moved on by `turn`.
fn plan(name: &str, model: &dyn Model, shape: &JobShape, turn: usize) -> Plan {
    let options = GraphOptions::default();
    let graphs = model.graphs(shape, &options).expect("a possible job");
    let choice = |(index, count): (usize, usize)| match PLACES[(index + turn) % PLACES.len()] {
        (Some(device), residency) => Choice::one(device, count, residency),
        (None, _) => Choice::host(count),
    };
    // By the end of the job, where a plan without text encoders has the same.
    let counts = graphs.iter().rev().map(|graph| graph.variants[0].segments.len());
    let mut choices: Vec<Choice> = counts.enumerate().map(choice).collect();
    choices.reverse();
    let hardware = Hardware { devices: 2, ..Hardware::none() };
    plans::plan(&fixture(name), model, shape, &options, &hardware, &choices)
}

/// Each phase that ran used what was planned; the answer is the sum of all.
fn assert_exact(usage: &UsageReport, phases: usize, what: &str) -> Bytes {
    let mut sum = Bytes::ZERO;
    for device in &usage.devices {
        assert_eq!(device.phases.len(), phases, "{what}: {}", device.id);
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{what}: {} in {}", device.id, phase.phase);
            sum += used;
        }
        let idle = device.idle.expect("what stays is looked at");
        assert_eq!(idle.predicted_bytes, idle.measured_bytes, "{what}: {}", device.id);
    }
    sum
}

#[test]
fn brought_embeddings_use_what_is_planned_in_every_size() {
    let models = [
        ("flux_schnell", false),
        ("flux_dev", true),
        ("zimage_turbo", false),
        ("zimage_turbo", true),
        ("flux2_klein", true),
    ];
    for (name, true_cfg) in models {
        let model: Arc<dyn Model> = families::open(&fixture(name)).expect("a whole model");
        for (turn, [width, height]) in SIZES.into_iter().enumerate() {
            let batch = 1 + turn as u32 % 3;
            let what = format!("{name} {width}x{height} x {batch}, guided: {true_cfg}");
            let whole = JobShape {
                width,
                height,
                steps: 1,
                batch,
                max_sequence_length: 48,
                true_cfg,
                ..JobShape::small()
            };
            let conditioned = JobShape { conditioned: true, ..whole.clone() };
            let mut runtime = plans::load(&plan(name, &*model, &whole, turn), &model).expect(&what);
            let job = Job { keep_conditioning: true, ..plans::job(&whole) };
            let made = plans::paint_job(&mut runtime, &job).expect(&what);
            assert_exact(&made.usage, 3, &what);
            let job = Job { conditioning: made.conditioning, ..job };
            let beside = plans::paint_job(&mut runtime, &job).expect(&what);
            let taken = assert_exact(&beside.usage, 2, &what);
            drop(runtime);
            let plan = plan(name, &*model, &conditioned, turn);
            let mut runtime = plans::load(&plan, &model).expect(&what);
            let alone = plans::paint_job(&mut runtime, &job).expect(&what);
            assert!(assert_exact(&alone.usage, 2, &what) < taken, "{what}: no less is taken");
            assert!(alone.pixels == made.pixels && beside.pixels == made.pixels, "{what}");
        }
    }
}
