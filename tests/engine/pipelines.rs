//! Components through whose devices groups of items follow one another: the pictures are those of
//! one device, to the bit, in the bytes that the plan states, for all cuts and groups.

use std::path::Path;

use crate::dealt_items::{JOB, assert_gives, hardware, plan};
use crate::support::fixture;
use crate::support::plans::{self, Choice};
use crate::support::wide::Wide;
use executor::backend::CancelFlag;
use executor::families;
use executor::runtime::schedules;
use protocol::{Division, FailureKind, JobShape, Residency};

/// Contiguous segments over the first devices, with the same number of them on each but the last;
/// `first` more on the first one.
fn cut(segments: usize, devices: usize, first: usize) -> Vec<u32> {
    let each = segments / devices;
    let device = |segment: usize| (segment.saturating_sub(first) / each).min(devices - 1) as u32;
    (0..segments).map(device).collect()
}

/// A pipeline over so many devices; every other one computes by itself.
fn pipeline(
    devices: usize,
    counts: &[u32],
    first: usize,
    residency: Residency,
) -> impl Fn(usize) -> Choice {
    move |segments| {
        let mut choice = Choice::one(0, segments, residency);
        choice.devices = (0..devices).map(Some).collect();
        let (segments, counts) = (cut(segments, devices, first), counts.to_vec());
        choice.division = Division::Pipeline { segments, counts };
        choice
    }
}

/// Each way to let a job's items follow one another gives what one device gives.
fn each_gives_the_same(dir: &Path, job: &JobShape, groups: &[&[u32]]) {
    let model = families::open(dir).expect("a whole model");
    let one = |segments| Choice::one(0, segments, Residency::Resident);
    let one = plan(dir, &*model, job, one, &hardware(3, 0, &[]));
    let expected = plans::run(&one, &model).expect("one device").pixels;
    for (number, counts) in groups.iter().enumerate() {
        // Some devices compute beside the others, or all, or none.
        for (devices, apart, residency) in [
            (2, 0b11, Residency::Resident),
            (2, 0b10, Residency::Lazy),
            (3, 0b111, Residency::Lazy),
            (3, 0b000, Residency::Resident),
        ] {
            let choice = pipeline(devices, counts, number % 2, residency);
            let split = plan(dir, &*model, job, choice, &hardware(3, apart, &[]));
            assert_gives(&split, &model, &expected);
        }
    }
    // The host does what the first device cannot.
    let choice = pipeline(2, groups[0], 0, Residency::Resident);
    let helped = plan(dir, &*model, job, choice, &hardware(3, 0b11, &["Attention"]));
    assert_gives(&helped, &model, &expected);
}

#[test]
fn pictures_of_a_batch_are_those_of_one_device() {
    let job = JobShape { batch: 2, ..JOB };
    each_gives_the_same(&fixture("flux_schnell"), &job, &[&[1, 1]]);
    let job = JobShape { batch: 4, ..JOB };
    each_gives_the_same(&fixture("flux_dev"), &job, &[&[1, 1, 1, 1], &[2, 2], &[1, 3]]);
}

#[test]
fn passes_of_guidance_are_those_of_one_device() {
    let guided = JobShape { true_cfg: true, ..JOB };
    each_gives_the_same(&fixture("flux_dev"), &guided, &[&[1, 1]]);
    // The two prompts have as many tokens as they have: their graphs differ.
    let long = JobShape { max_sequence_length: 96, ..guided.clone() };
    each_gives_the_same(&fixture("zimage_turbo"), &long, &[&[1, 1]]);
    each_gives_the_same(&fixture("qwen_image"), &long, &[&[1, 1]]);
    let pictures = JobShape { batch: 2, ..guided };
    each_gives_the_same(&fixture("flux2_klein"), &pictures, &[&[1, 1, 1, 1], &[3, 1]]);
    each_gives_the_same(&fixture("zimage_turbo"), &pictures, &[&[2, 2], &[1, 2, 1]]);
}

#[test]
fn large_matrices_give_the_same_bits_too() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    each_gives_the_same(dir.path(), &JobShape { batch: 3, ..JOB }, &[&[1, 1, 1], &[2, 1]]);
}

#[test]
fn weights_stay_for_other_groups_and_for_one_picture_in_layers() {
    let dir = fixture("flux_dev");
    let model = families::open(&dir).expect("a whole model");
    let [one, two, three] = [1, 2, 3].map(|batch| JobShape { batch, ..JOB });
    let in_groups = |job, counts| {
        let choice = pipeline(2, counts, 1, Residency::Resident);
        plan(&dir, &*model, job, choice, &hardware(3, 0b11, &[]))
    };
    let in_layers = |segments: usize| {
        let mut choice = pipeline(2, &[], 1, Residency::Resident)(segments);
        choice.division = Division::Layer { segments: cut(segments, 2, 1) };
        choice
    };
    let first = in_groups(&two, &[1, 1]);
    let mut runtime = plans::load(&first, &model).expect("a plan that fits");
    plans::paint(&mut runtime).expect("a run");
    let next = [
        in_groups(&three, &[1, 1, 1]),
        plan(&dir, &*model, &one, in_layers, &hardware(3, 0b11, &[])),
        in_groups(&two, &[1, 1]),
    ];
    for (mut next, generation) in next.into_iter().zip(2..) {
        let expected = plans::run(&next, &model).expect("a run").pixels;
        next.generation = generation;
        next.keeps_weights_of = Some(generation - 1);
        runtime = runtime.follow(next, &CancelFlag::default()).expect("the weights stay");
        let result = plans::paint(&mut runtime).expect("a run");
        assert!(result.pixels == expected, "generation {generation}: other pictures");
        let dit = result.usage.components.iter().find(|used| used.name == "dit").expect("it ran");
        assert_eq!((dit.sent_bytes.0, dit.calls), (0, 2), "a call in each step, nothing sent");
    }
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let dir = fixture("flux_dev");
    let model = families::open(&dir).expect("a whole model");
    let choice = pipeline(2, &[10, 10], 0, Residency::Resident);
    let whole = plan(&dir, &*model, &JobShape { batch: 20, ..JOB }, choice, &hardware(3, 0, &[]));
    let dit = whole.components.iter().position(|c| c.name == "dit").expect("a DiT");
    let with = |counts: &[u32]| {
        let mut plan = whole.clone();
        if let Division::Pipeline { counts: of, .. } = &mut plan.components[dit].division {
            *of = counts.to_vec();
        }
        plan
    };
    for (counts, expected) in [
        (&[20][..], "has 1 groups of items"),
        (&[9, 9], "deals out 18 items, each step has 20"),
        (&[20, 0], "has a device or a group without items"),
    ] {
        let refused = protocol::check::check(&with(counts)).expect_err(expected).to_string();
        assert!(refused.contains(expected), "{refused}");
    }
    let failure = schedules(&with(&[15, 5]), &*model).err().expect("other bits");
    assert_eq!(failure.kind, FailureKind::PlanRefused, "{failure}");
    let expected = "5 of its items apart would differ in the last bits";
    assert!(failure.message.contains(expected), "{failure}");
    let mut streamed = whole.clone();
    for segment in &mut streamed.components[dit].segments {
        segment.residencies.fill(Residency::Streamed);
    }
    let failure = schedules(&streamed, &*model).err().expect("a ring");
    assert!(failure.message.contains("need weights that stay"), "{failure}");
}
