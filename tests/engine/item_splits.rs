//! Components whose items several devices share: the pictures are those of one device, to the bit,
//! in the bytes that the plan states, for each number of items a device may have.

use std::path::Path;

use crate::dealt_items::{JOB, assert_gives, hardware, plan};
use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware};
use crate::support::wide::Wide;
use executor::backend::CancelFlag;
use executor::families;
use executor::runtime::schedules;
use protocol::{Division, FailureKind, Job, JobShape, Plan, Residency};

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

/// Four devices, of which every other one computes by itself.
fn four(unsupported: &[&str]) -> Hardware {
    hardware(4, 0b1010, unsupported)
}

/// Each way to deal a job's items out gives what one device gives.
fn each_gives_the_same(dir: &Path, job: &JobShape, counts: &[&[u32]]) {
    let model = families::open(dir).expect("a whole model");
    let one = |segments| Choice::one(0, segments, Residency::Resident);
    let one = plan(dir, &*model, job, one, &four(&[]));
    let expected = plans::run(&one, &model).expect("one device").pixels;
    for counts in counts {
        for residency in [Residency::Resident, Residency::Lazy, Residency::Streamed] {
            let split = plan(dir, &*model, job, by_items(counts, residency), &four(&[]));
            assert_gives(&split, &model, &expected);
        }
        // The first device holds all, the others stream.
        let own = |segments| {
            let mut choice = by_items(counts, Residency::Streamed)(segments);
            let first = (0..segments).map(|segment| ((0, segment), Residency::Lazy));
            choice.own_residencies = first.collect();
            choice
        };
        assert_gives(&plan(dir, &*model, job, own, &four(&[])), &model, &expected);
    }
    let helped =
        plan(dir, &*model, job, by_items(counts[0], Residency::Resident), &four(&["Attention"]));
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
    let expected = paint(&plan(dir, &*model, &shape, one, &four(&[])));
    for residency in [Residency::Resident, Residency::Streamed] {
        let split = paint(&plan(dir, &*model, &shape, by_items(&[1, 1], residency), &four(&[])));
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
    let first = plan(&dir, &*model, &two, by_items(&[1, 1], Residency::Resident), &four(&[]));
    let mut next = plan(&dir, &*model, &three, by_items(&[2, 1], Residency::Resident), &four(&[]));
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
    let whole = plan(&dir, &*model, &JobShape { batch: 10, ..JOB }, one, &four(&[]));
    let split = |counts: &[u32], component: usize| {
        let mut plan = whole.clone();
        let devices = plan.devices[..2].iter().map(|device| device.id.clone()).collect();
        let component = &mut plan.components[component];
        component.devices = devices;
        component.division = Division::Items { counts: counts.to_vec() };
        for segment in &mut component.segments {
            segment.residencies = vec![Residency::Resident; 2];
        }
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
