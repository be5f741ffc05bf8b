//! Batches whose pictures have prompts of their own, in every size: what the plan states is what
//! they use, with and without negative prompts, text encoders run or not.

use std::sync::Arc;

use executor::families;
use executor::models::Model;
use protocol::{
    Bytes, Division, GraphOptions, Job, JobItem, JobShape, Plan, Residency, UsageReport,
};

use crate::SIZES;
use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware};

/// Streamed to one device.
fn streamed(segments: usize) -> Choice {
    Choice::one(0, segments, Residency::Streamed)
}

fn plan(name: &str, model: &dyn Model, shape: &JobShape, dit: impl Fn(usize) -> Choice) -> Plan {
    let options = GraphOptions::default();
    let graphs = model.graphs(shape, &options).expect("a possible job");
    let choice = |graph: &executor::models::ComponentGraph| {
        let segments = graph.variants[0].segments.len();
        match graph.name {
            "dit" => dit(segments),
            "t5" => Choice::one(1, segments, Residency::Lazy),
            _ => Choice::host(segments),
        }
    };
    let choices: Vec<Choice> = graphs.iter().map(choice).collect();
    let hardware = Hardware { devices: 2, apart: 0b11, ..Hardware::none() };
    plans::plan(&fixture(name), model, shape, &options, &hardware, &choices)
}

/// Each phase used what was planned; the answer is the host's peak.
fn assert_exact(usage: &UsageReport, what: &str) -> Bytes {
    let mut host = Bytes::ZERO;
    for device in &usage.devices {
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{what}: {} in {}", device.id, phase.phase);
            if device.id.is_host() {
                host = host.max(used);
            }
        }
        let idle = device.idle.expect("what stays is looked at");
        assert_eq!(idle.predicted_bytes, idle.measured_bytes, "{what}: {}", device.id);
    }
    host
}

/// A job on so many pictures, with as many different prompts, and its shape.
fn job(whole: &JobShape, prompts: u32) -> (Job, JobShape) {
    let item = |at: u32| JobItem {
        prompt: format!("picture {}", at % prompts),
        prompt_2: None,
        negative_prompt: format!("nothing of {}", at % prompts / 2),
        seed: u64::from(at),
    };
    let items = (0..whole.batch).map(item).collect();
    let job = Job { items, keep_conditioning: true, ..plans::job(whole) };
    let more_prompts = job.texts(whole.true_cfg).more();
    (job, JobShape { more_prompts, ..whole.clone() })
}

#[test]
fn prompts_of_their_own_use_what_is_planned_in_every_size() {
    for (name, true_cfg) in [("flux_schnell", false), ("flux_dev", true)] {
        let model: Arc<dyn Model> = families::open(&fixture(name)).expect("a whole model");
        for (turn, [width, height]) in SIZES.into_iter().enumerate() {
            let batch = [2, 4][turn % 2];
            let whole = JobShape {
                width,
                height,
                batch,
                max_sequence_length: 48,
                true_cfg,
                ..JobShape::small()
            };
            let host = [1, batch].map(|prompts| {
                let what = format!("{name} {width}x{height}, {prompts} prompts, {true_cfg}");
                let (job, shape) = job(&whole, prompts);
                let plan = |shape: &JobShape| plan(name, &*model, shape, streamed);
                let mut runtime = plans::load(&plan(&shape), &model).expect(&what);
                let made = plans::paint_job(&mut runtime, &job).expect(&what);
                let used = assert_exact(&made.usage, &what);
                drop(runtime);
                let shape = JobShape { conditioned: true, ..shape };
                let job = Job { conditioning: made.conditioning, ..job };
                let mut runtime = plans::load(&plan(&shape), &model).expect(&what);
                let brought = plans::paint_job(&mut runtime, &job).expect(&what);
                assert_exact(&brought.usage, &what);
                assert!(brought.pixels == made.pixels, "{what}");
                used
            });
            assert!(host[0] < host[1], "{name}: prompts take room: {host:?}");
        }
    }
}

#[test]
fn groups_that_follow_one_another_use_what_is_planned_in_every_size() {
    for (name, true_cfg) in [("flux_schnell", false), ("flux_dev", true)] {
        let model: Arc<dyn Model> = families::open(&fixture(name)).expect("a whole model");
        for (turn, [width, height]) in SIZES.into_iter().enumerate() {
            let whole = JobShape {
                width,
                height,
                batch: 4,
                max_sequence_length: 48,
                true_cfg,
                ..JobShape::small()
            };
            let passes = if true_cfg { 2 } else { 1 };
            let groups = [vec![2 * passes; 2], vec![passes; 4]][turn % 2].clone();
            let what = format!("{name} {width}x{height}, {groups:?}");
            let in_groups = |segments: usize| {
                let mut choice = Choice::one(0, segments, Residency::Lazy);
                choice.devices = vec![Some(0), Some(1)];
                let cut = 1 + turn % (segments - 1);
                let segments = (0..segments).map(|segment| u32::from(segment >= cut)).collect();
                choice.division = Division::Pipeline { segments, counts: groups.clone() };
                choice
            };
            let (job, shape) = job(&whole, 2);
            let plan = plan(name, &*model, &shape, in_groups);
            let mut runtime = plans::load(&plan, &model).expect(&what);
            assert_exact(&plans::paint_job(&mut runtime, &job).expect(&what).usage, &what);
        }
    }
}
