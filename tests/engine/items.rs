//! Batches whose pictures have prompts and seeds of their own: each is the picture that is made
//! alone, to the bit, in the bytes that the plan states.

use std::sync::Arc;

use executor::families;
use executor::models::Model;
use protocol::{FailureKind, GraphOptions, Job, JobItem, JobShape, Plan, UsageReport};

use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware, on_devices, on_host};

/// Prompts of four pictures: the third has the first one's, and the last one has one more.
const PROMPTS: [(&str, Option<&str>, &str); 4] = [
    ("a red circle on a white background", None, "blurry"),
    ("a blue square", Some("a large blue square on grass"), ""),
    ("a red circle on a white background", None, "dark"),
    ("a green triangle", None, "blurry"),
];

fn items(count: usize) -> Vec<JobItem> {
    let item = |(at, (prompt, second, negative)): (usize, &(&str, Option<&str>, &str))| JobItem {
        prompt: (*prompt).to_owned(),
        prompt_2: second.map(str::to_owned),
        negative_prompt: (*negative).to_owned(),
        seed: [3, 900, 17, 3][at],
    };
    PROMPTS[..count].iter().enumerate().map(item).collect()
}

fn shape(items: &[JobItem], true_cfg: bool, conditioned: bool) -> JobShape {
    let shape = JobShape { height: 48, steps: 2, true_cfg, conditioned, ..JobShape::small() };
    let shape = JobShape { batch: items.len() as u32, max_sequence_length: 48, ..shape };
    let job = Job { items: items.to_vec(), ..plans::job(&shape) };
    JobShape { more_prompts: job.texts(true_cfg).more(), ..shape }
}

fn plan(
    name: &str,
    model: &dyn Model,
    shape: &JobShape,
    choice: fn(&str, usize) -> Choice,
) -> Plan {
    let options = GraphOptions::default();
    let graphs = model.graphs(shape, &options).expect("a possible job");
    let choices: Vec<Choice> =
        graphs.iter().map(|graph| choice(graph.name, graph.variants[0].segments.len())).collect();
    let hardware = Hardware { devices: 2, ..Hardware::none() };
    plans::plan(&fixture(name), model, shape, &options, &hardware, &choices)
}

#[track_caller]
fn assert_exact(usage: &UsageReport) {
    for device in &usage.devices {
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{} in {}", device.id, phase.phase);
        }
        let idle = device.idle.expect("what stays is looked at");
        assert_eq!(idle.predicted_bytes, idle.measured_bytes, "{} after the job", device.id);
    }
}

/// A job's pictures, by a plan of its own.
fn made(
    name: &str,
    model: &Arc<dyn Model>,
    job: &Job,
    shape: &JobShape,
    choice: fn(&str, usize) -> Choice,
) -> plans::Result {
    let plan = plan(name, &**model, shape, choice);
    let mut runtime = plans::load(&plan, model).expect("a plan that fits");
    let result = plans::paint_job(&mut runtime, job).expect("a run");
    assert_exact(&result.usage);
    result
}

#[test]
fn a_picture_with_its_own_prompt_is_the_one_that_is_made_alone() {
    for (name, true_cfg) in [("flux_schnell", false), ("flux_dev", true), ("flux_dev", false)] {
        let model = families::open(&fixture(name)).expect("a whole model");
        let all = items(4);
        let job_of = |items: &[JobItem], shape: &JobShape| Job {
            items: items.to_vec(),
            keep_conditioning: true,
            ..plans::job(shape)
        };
        let alone: Vec<Vec<u8>> = all
            .iter()
            .map(|item| {
                let one = [item.clone()];
                let shape = shape(&one, true_cfg, false);
                made(name, &model, &job_of(&one, &shape), &shape, on_host).pixels
            })
            .collect();
        assert_ne!(alone[0], alone[1], "prompts and seeds tell pictures apart");
        for count in [2, 4] {
            let what = format!("{name}, guided: {true_cfg}, {count} pictures");
            let together = &all[..count];
            let shape_of = |conditioned| shape(together, true_cfg, conditioned);
            let job = job_of(together, &shape_of(false));
            let made_by = |choice| made(name, &model, &job, &shape_of(false), choice);
            let [by_host, by_devices] = [on_host, on_devices].map(made_by);
            assert!(
                by_host.pixels == alone[..count].concat(),
                "{what}: other pictures on the host"
            );
            assert!(
                by_devices.pixels == alone[..count].concat(),
                "{what}: other pictures on devices"
            );
            let texts = job.texts(true_cfg).all.len();
            assert_eq!(by_host.conditioning.len(), texts, "{what}: each text once");
            let known = Job { conditioning: by_host.conditioning, ..job.clone() };
            for choice in [on_host, on_devices] {
                let brought = made(name, &model, &known, &shape_of(true), choice);
                assert!(brought.pixels == alone[..count].concat(), "{what}: by brought embeddings");
            }
        }
    }
}

#[test]
fn pictures_of_another_count_or_with_more_prompts_than_planned_are_refused() {
    let name = "flux_schnell";
    let model = families::open(&fixture(name)).expect("a whole model");
    let all = items(4);
    let shape = shape(&all, false, false);
    let mut runtime =
        plans::load(&plan(name, &*model, &shape, on_host), &model).expect("a plan that fits");
    let same: Vec<JobItem> = vec![all[0].clone(); 4];
    for (items, expected) in [
        (&all[..3], "3 pictures for a plan of 4"),
        (&same[..], "1 different prompts for a plan of 3"),
    ] {
        let job = Job { items: items.to_vec(), ..plans::job(&shape) };
        let failure = plans::paint_job(&mut runtime, &job).expect_err(expected);
        assert_eq!(failure.kind, FailureKind::BadRequest, "{failure}");
        assert!(failure.message.contains(expected), "{failure}");
    }
}

#[test]
fn a_family_that_takes_one_prompt_for_a_batch_says_so() {
    let model = families::open(&fixture("zimage_turbo")).expect("a whole model");
    let all = items(2);
    let refused = model.graphs(&shape(&all, false, false), &GraphOptions::default());
    let error = refused.expect_err("its prompts are two").to_string();
    assert!(error.contains("the same prompt"), "{error}");
    // Seeds of their own are no matter.
    let mut same = vec![all[0].clone(); 3];
    (same[1].seed, same[2].seed) = (80, 5);
    let shape_of = |items: &[JobItem]| shape(items, true, false);
    let job_of = |items: &[JobItem]| Job { items: items.to_vec(), ..plans::job(&shape_of(items)) };
    let together =
        made("zimage_turbo", &model, &job_of(&same), &shape_of(&same), on_devices).pixels;
    for (picture, item) in together.chunks(together.len() / same.len()).zip(&same) {
        let one = [item.clone()];
        let alone = made("zimage_turbo", &model, &job_of(&one), &shape_of(&one), on_host).pixels;
        assert!(alone == picture, "another picture of seed {}", item.seed);
    }
}
