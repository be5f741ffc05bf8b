//! Jobs that bring what the text encoders give: the picture of a job that runs them, to the bit, in
//! the bytes that the plan states; by a plan without text encoders and by one that has some.

use std::path::PathBuf;
use std::sync::Arc;

use executor::families;
use executor::models::Model;
use ipc_channel::ipc::IpcSharedMemory;
use protocol::{
    Embeddings, FailureKind, GraphOptions, Job, JobShape, Phase, Plan, Residency, UsageReport,
};

use crate::support::fixture;
use crate::support::plans::{self, Choice, Hardware, on_devices, on_host};

/// A model with one kind of job on it.
struct Studio {
    dir: PathBuf,
    model: Arc<dyn Model>,
    shape: JobShape,
}

impl Studio {
    /// As [`Studio::new`], from a picture.
    fn from_picture(name: &str) -> Studio {
        let studio = Studio::new(name, false);
        let shape = JobShape { init_image: true, first_step: 1, batch: 1, ..studio.shape };
        Studio { shape, ..studio }
    }

    fn new(name: &str, true_cfg: bool) -> Studio {
        let dir = fixture(name);
        let model = families::open(&dir).expect("a whole model");
        let shape = JobShape {
            width: 64,
            height: 48,
            steps: 2,
            batch: 2,
            max_sequence_length: 64,
            true_cfg,
            ..JobShape::small()
        };
        Studio { dir, model, shape }
    }

    /// A plan with each component where `choice` says for its name and its count of segments.
    fn plan(&self, conditioned: bool, choice: impl Fn(&str, usize) -> Choice) -> Plan {
        let (shape, options) =
            (JobShape { conditioned, ..self.shape.clone() }, GraphOptions::default());
        let graphs = self.model.graphs(&shape, &options).expect("a possible job");
        let choices: Vec<Choice> =
            graphs.iter().map(|c| choice(c.name, c.variants[0].segments.len())).collect();
        let hardware = Hardware { devices: 2, ..Hardware::none() };
        plans::plan(&self.dir, &*self.model, &shape, &options, &hardware, &choices)
    }

    fn job(&self) -> Job {
        let JobShape { width, height, init_image, .. } = self.shape;
        let grey = || IpcSharedMemory::from_byte(128, (3 * width * height) as usize);
        let init_image = init_image.then(grey);
        let mut job = plans::job(&self.shape);
        for item in &mut job.items {
            item.negative_prompt = "blurry".to_owned();
        }
        Job { init_image, keep_conditioning: true, ..job }
    }
}

/// Every phase used what the plan states, and these are the phases.
#[track_caller]
fn assert_exact(usage: &UsageReport, phases: &[Phase]) {
    assert!(!usage.devices.is_empty());
    for device in &usage.devices {
        let ran: Vec<Phase> = device.phases.iter().map(|phase| phase.phase).collect();
        assert_eq!(ran, phases, "{}", device.id);
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{} in {}", device.id, phase.phase);
        }
        let idle = device.idle.expect("what stays is looked at");
        assert_eq!(idle.predicted_bytes, idle.measured_bytes, "{} after the job", device.id);
    }
}

/// The same picture by all ways, and what the text encoders gave by the first.
fn assert_same(studio: &Studio, choice: fn(&str, usize) -> Choice) -> Vec<Embeddings> {
    let whole = studio.plan(false, choice);
    let mut runtime = plans::load(&whole, &studio.model).expect("a plan that fits");
    let expected = plans::paint_job(&mut runtime, &studio.job()).expect("a run");
    let all = [Phase::Encode, Phase::Condition, Phase::Denoise, Phase::Decode];
    let all = if studio.shape.init_image { &all[..] } else { &all[1..] };
    let rest: Vec<Phase> = all.iter().copied().filter(|p| *p != Phase::Condition).collect();
    assert_exact(&expected.usage, all);
    let prompts = if studio.shape.true_cfg { 2 } else { 1 };
    assert_eq!(expected.conditioning.len(), prompts, "one for each prompt");

    let job = Job { conditioning: expected.conditioning.clone(), ..studio.job() };
    let beside = plans::paint_job(&mut runtime, &job).expect("text encoders may be there");
    assert_exact(&beside.usage, &rest);
    assert!(beside.pixels == expected.pixels, "another picture beside text encoders");
    assert!(beside.conditioning.is_empty(), "no text encoder ran");
    // A new prompt after it runs them again.
    let again = plans::paint_job(&mut runtime, &studio.job()).expect("a run");
    assert_exact(&again.usage, all);
    assert!(again.pixels == expected.pixels && again.conditioning == expected.conditioning);
    drop(runtime);

    let alone = studio.plan(true, choice);
    let names: Vec<&str> = alone.components.iter().map(|c| c.name.as_str()).collect();
    let encoder = if studio.shape.init_image { &["vae_encoder"][..] } else { &[] };
    assert_eq!(names, [encoder, &["dit", "vae"]].concat());
    let mut runtime = plans::load(&alone, &studio.model).expect("a plan that fits");
    let without = plans::paint_job(&mut runtime, &job).expect("a run");
    assert_exact(&without.usage, &rest);
    assert!(without.pixels == expected.pixels, "another picture without text encoders");
    let ran: Vec<&str> = without.usage.components.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(ran, names);
    expected.conditioning
}

#[test]
fn a_brought_conditioning_gives_the_picture_of_its_prompts() {
    for (model, true_cfg) in [
        ("flux_schnell", false),
        ("flux_dev", true),
        ("zimage_turbo", false),
        ("zimage_turbo", true),
        ("flux2_klein", true),
        ("qwen_image", false),
        ("qwen_image", true),
    ] {
        let studio = Studio::new(model, true_cfg);
        let by_host = assert_same(&studio, on_host);
        // What host kernels give is the same wherever they run.
        assert!(by_host == assert_same(&studio, on_devices), "{model}: other bits on devices");
    }
}

/// On one device, all lazy, the DiT and the VAE ahead of their phases: the DiT while a picture is
/// encoded, where nothing comes between.
fn ahead(name: &str, segments: usize) -> Choice {
    let prefetch = matches!(name, "dit" | "vae");
    Choice { prefetch, ..Choice::one(0, segments, Residency::Lazy) }
}

#[test]
fn a_picture_to_start_from_is_encoded_right_before_the_steps() {
    for model in ["flux_schnell", "zimage_turbo", "flux2_klein", "qwen_image"] {
        let studio = Studio::from_picture(model);
        assert_same(&studio, ahead);
        assert_same(&studio, on_host);
        let plan = studio.plan(true, ahead);
        let [encode, denoise] = [0, 1].map(|phase| plan.devices[0].phases[phase].weights_bytes);
        let dit = &plan.components[1];
        assert!(encode > dit.weights_bytes && denoise > dit.weights_bytes, "{plan:?}");
    }
}

#[test]
fn embeddings_that_do_not_fit_are_refused_and_nothing_is_left() {
    let studio = Studio::new("flux_dev", true);
    let plan = studio.plan(true, on_devices);
    let mut runtime = plans::load(&plan, &studio.model).expect("a plan that fits");
    let held = |bytes: usize| Embeddings { values: IpcSharedMemory::from_byte(0, bytes) };
    for (conditioning, expected) in [
        (Vec::new(), "the plan has no text encoders, and the job no embeddings"),
        (vec![held(8)], "1 embeddings for 2 prompts"),
        (vec![held(8), held(8)], "a prompt's embeddings have 8 B"),
    ] {
        let job = Job { conditioning, ..studio.job() };
        let failure = plans::paint_job(&mut runtime, &job).expect_err(expected);
        assert_eq!(failure.kind, FailureKind::BadRequest, "{failure}");
        assert!(failure.message.contains(expected), "{failure}");
    }
    for memory in runtime.memories() {
        let device = plan.devices.iter().find(|device| device.id == *memory.device());
        let idle = device.map_or(plan.host.idle_bytes, |device| device.idle_bytes);
        assert_eq!(memory.used(), idle, "{}", memory.device());
    }
}
