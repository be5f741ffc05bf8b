//! Components whose items several devices share: the pictures are those of one device, to the bit,
//! in the bytes that the plan states, for each number of items a device may have.

use std::path::Path;
use std::sync::Arc;

use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware};
use crate::support::wide::Wide;
use executor::backend::CancelFlag;
use executor::families;
use executor::models::Model;
use executor::runtime::schedules;
use protocol::{Division, FailureKind, GraphOptions, Job, JobShape, Plan, Residency};

const JOB: JobShape =
    JobShape { width: 64, height: 48, steps: 2, max_sequence_length: 32, ..JobShape::small() };

/// Replicas on the first devices, so many items each; every other one computes by itself.
fn by_items(counts: &[u32], residency: Residency) -> impl Fn(usize) -> Choice {
    move |segments| {
        let mut choice = Choice::one(0, segments, residency);
        if residency == Residency::Streamed {
            // The last segments stay.
            choice.residencies[segments / 2..].fill(Residency::Lazy);
        }
        choice.devices = (0..counts.len()).map(Some).collect();
        choice.division = Division::Items { counts: counts.to_vec() };
        choice
    }
}

fn plan(
    dir: &Path,
    model: &dyn Model,
    job: &JobShape,
    dit: impl Fn(usize) -> Choice,
    unsupported: &[&str],
) -> Plan {
    let unsupported = unsupported.iter().map(|&name| name.to_owned()).collect();
    let hardware = Hardware {
        devices: 4,
        apart: 0b1010,
        link_bytes_per_s: 1e10,
        unsupported,
        ..Hardware::none()
    };
    let choices = plans::with_dit(model, job, dit);
    plans::plan(dir, model, job, &GraphOptions::default(), &hardware, &choices)
}

/// Runs a plan, which must give these pictures in its bytes, without races.
#[track_caller]
fn assert_gives(plan: &Plan, model: &Arc<dyn Model>, expected: &[u8]) {
    let (result, races) = plans::run_traced(plan, model, None).expect("a run");
    let division = &plan.components.iter().find(|c| c.name == "dit").expect("a DiT").division;
    assert!(result.pixels == expected, "{division:?}: other pictures");
    assert!(races.is_empty(), "{division:?}: {}", races[0]);
    for device in &result.usage.devices {
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{division:?}: {} in {}", device.id, phase.phase);
        }
    }
}

/// Each way to deal a job's items out gives what one device gives.
fn each_gives_the_same(dir: &Path, job: &JobShape, counts: &[&[u32]]) {
    let model = families::open(dir).expect("a whole model");
    let one = |segments| Choice::one(0, segments, Residency::Resident);
    let one = plan(dir, &*model, job, one, &[]);
    let expected = plans::run(&one, &model).expect("one device").pixels;
    for counts in counts {
        for residency in [Residency::Resident, Residency::Lazy, Residency::Streamed] {
            let split = plan(dir, &*model, job, by_items(counts, residency), &[]);
            assert_gives(&split, &model, &expected);
        }
    }
    let helped = plan(dir, &*model, job, by_items(counts[0], Residency::Resident), &["Attention"]);
    assert_gives(&helped, &model, &expected);
}

#[test]
fn pictures_of_a_batch_are_those_of_one_device() {
    let job = JobShape { batch: 2, ..JOB };
    each_gives_the_same(&fixture("flux_schnell"), &job, &[&[1, 1]]);
    let job = JobShape { batch: 3, ..JOB };
    each_gives_the_same(&fixture("flux_dev"), &job, &[&[2, 1], &[1, 2], &[1, 1, 1]]);
}

#[test]
fn passes_of_guidance_are_those_of_one_device() {
    let guided = JobShape { true_cfg: true, ..JOB };
    each_gives_the_same(&fixture("flux_dev"), &guided, &[&[1, 1]]);
    each_gives_the_same(&fixture("flux2_klein"), &guided, &[&[1, 1]]);
    // The two prompts have as many tokens as they have: their graphs differ.
    let long = JobShape { max_sequence_length: 96, ..guided.clone() };
    each_gives_the_same(&fixture("zimage_turbo"), &long, &[&[1, 1]]);
    each_gives_the_same(&fixture("qwen_image"), &long, &[&[1, 1]]);
    let pictures = JobShape { batch: 2, ..guided };
    each_gives_the_same(&fixture("flux_dev"), &pictures, &[&[3, 1], &[1, 3], &[1, 2, 1]]);
    each_gives_the_same(&fixture("flux2_klein"), &pictures, &[&[3, 1], &[1, 2, 1]]);
    each_gives_the_same(&fixture("zimage_turbo"), &pictures, &[&[2, 2], &[3, 1]]);
    each_gives_the_same(&fixture("qwen_image"), &pictures, &[&[2, 2], &[3, 1]]);
}

#[test]
fn prompts_of_other_lengths_meet_in_one_call() {
    for name in ["zimage_turbo", "qwen_image"] {
        other_lengths_meet(&fixture(name));
    }
}

fn other_lengths_meet(dir: &Path) {
    let model = families::open(dir).expect("a whole model");
    let shape = JobShape { true_cfg: true, max_sequence_length: 128, ..JOB };
    let mut job = Job { true_cfg_scale: 4.0, ..plans::job(&shape) };
    job.items[0].prompt = "a lighthouse on a cliff above a stormy sea ".repeat(6);
    job.items[0].negative_prompt = "blurry".to_owned();
    let paint = |plan: &Plan| {
        let mut runtime = plans::load(plan, &model).expect("a plan that fits");
        plans::paint_job(&mut runtime, &job).expect("a run").pixels
    };
    let one = |segments| Choice::one(0, segments, Residency::Resident);
    let expected = paint(&plan(dir, &*model, &shape, one, &[]));
    for residency in [Residency::Resident, Residency::Streamed] {
        let split = paint(&plan(dir, &*model, &shape, by_items(&[1, 1], residency), &[]));
        assert!(split == expected, "another picture, {residency}");
    }
}

#[test]
fn large_matrices_give_the_same_bits_too() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    each_gives_the_same(dir.path(), &JobShape { batch: 3, ..JOB }, &[&[2, 1]]);
}

#[test]
fn a_loaded_plan_is_followed_by_one_of_other_counts() {
    let dir = fixture("flux_dev");
    let model = families::open(&dir).expect("a whole model");
    let [two, three] = [2, 3].map(|batch| JobShape { batch, ..JOB });
    let first = plan(&dir, &*model, &two, by_items(&[1, 1], Residency::Resident), &[]);
    let mut next = plan(&dir, &*model, &three, by_items(&[2, 1], Residency::Resident), &[]);
    let expected = plans::run(&next, &model).expect("a run").pixels;
    next.generation = 2;
    next.keeps_weights_of = Some(1);
    let mut before = plans::load(&first, &model).expect("a plan that fits");
    plans::paint(&mut before).expect("a run");
    let mut runtime = before.follow(next, &CancelFlag::default()).expect("the weights stay");
    let result = plans::paint(&mut runtime).expect("a run");
    assert!(result.pixels == expected, "other pictures");
    let dit = result.usage.components.iter().find(|used| used.name == "dit").expect("it ran");
    assert_eq!((dit.sent_bytes.0, dit.calls), (0, 2), "nothing is sent again; a call in each step");
}

#[test]
fn items_that_cannot_be_dealt_out_are_refused() {
    let dir = fixture("flux_dev");
    let model = families::open(&dir).expect("a whole model");
    let one = |segments| Choice::one(0, segments, Residency::Resident);
    let whole = plan(&dir, &*model, &JobShape { batch: 10, ..JOB }, one, &[]);
    let split = |counts: &[u32], component: usize| {
        let mut plan = whole.clone();
        let devices = plan.devices[..2].iter().map(|device| device.id.clone()).collect();
        plan.components[component].devices = devices;
        plan.components[component].division = Division::Items { counts: counts.to_vec() };
        plan
    };
    for (plan, expected) in [
        (split(&[10], 2), "has 1 counts of items for 2 devices"),
        (split(&[9, 2], 2), "deals out 11 items, each step has 10"),
        (split(&[10, 0], 2), "has a device or a group without items"),
        (split(&[5, 5], 0), "is split by items in the condition phase"),
    ] {
        let refused = protocol::check::check(&plan).expect_err(expected).to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    for (plan, expected) in [
        (split(&[5, 5], 2), "5 of its items apart would differ in the last bits"),
        (split(&[1], 1), "its 1 items cannot be dealt out as 1"),
    ] {
        let failure = schedules(&plan, &*model).err().expect(expected);
        assert_eq!(failure.kind, FailureKind::PlanRefused, "{failure}");
        assert!(failure.message.contains(expected), "{failure}");
    }
}
