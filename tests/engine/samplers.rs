//! Samplers on whole models: exact bytes, one picture from every placement and every batch, fresh
//! noise as torch's CPU generator draws it, and what is refused.

use std::path::PathBuf;
use std::sync::Arc;

use executor::families;
use executor::models::Model;
use executor::pipeline::noise::CpuGenerator;
use executor::sampling::FLOW_SAMPLERS;
use protocol::{
    FailureKind, GraphOptions, Job, JobItem, JobShape, Plan, Sampler, Scheduler, UsageReport,
};
use safetensors::SafeTensors;

use crate::support::plans::{self, Choice, Hardware, on_devices, on_host};
use crate::support::{Home, fixture};

/// A model with one kind of job on it.
struct Studio {
    dir: PathBuf,
    model: Arc<dyn Model>,
    shape: JobShape,
}

impl Studio {
    fn new(name: &str, sampler: Sampler) -> Studio {
        let dir = fixture(name);
        let model = families::open(&dir).expect("a whole model");
        let (steps, max_sequence_length) = (4, 64);
        let small = JobShape::small();
        let shape =
            JobShape { width: 64, height: 48, steps, max_sequence_length, sampler, ..small };
        Studio { dir, model, shape }
    }

    fn plan(&self, shape: &JobShape, choice: fn(&str, usize) -> Choice) -> Plan {
        let options = GraphOptions::default();
        let graphs = self.model.graphs(shape, &options).expect("a possible job");
        let choices: Vec<Choice> =
            graphs.iter().map(|c| choice(c.name, c.variants[0].segments.len())).collect();
        let hardware = Hardware { devices: 2, ..Hardware::none() };
        plans::plan(&self.dir, &*self.model, shape, &options, &hardware, &choices)
    }

    /// Pictures of a plan, in exact bytes.
    fn paint(&self, shape: &JobShape, choice: fn(&str, usize) -> Choice) -> Vec<u8> {
        let plan = self.plan(shape, choice);
        let done = plans::run(&plan, &self.model).expect("a run");
        assert_exact(&done.usage);
        done.pixels
    }
}

/// Every phase used what the plan states.
#[track_caller]
fn assert_exact(usage: &UsageReport) {
    assert!(!usage.devices.is_empty());
    for device in &usage.devices {
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{} in {}", device.id, phase.phase);
        }
    }
}

/// Bytes of a job's buffers.
fn job_bytes(studio: &Studio) -> u64 {
    let buffers = studio.model.buffers(&studio.shape, &GraphOptions::default());
    buffers.expect("a possible job").bytes().0
}

#[test]
fn each_sampler_makes_one_picture_everywhere_in_exact_bytes() {
    let mut pictures = Vec::new();
    for sampler in FLOW_SAMPLERS {
        let studio = Studio::new("flux_schnell", sampler);
        let by_host = studio.paint(&studio.shape, on_host);
        assert!(by_host == studio.paint(&studio.shape, on_host), "{sampler:?}: not the same twice");
        assert!(by_host == studio.paint(&studio.shape, on_devices), "{sampler:?} on devices");
        pictures.push((sampler, by_host));
    }
    for (index, (sampler, picture)) in pictures.iter().enumerate() {
        let others = pictures[..index].iter().filter(|(_, other)| other == picture);
        let alike: Vec<_> = others.map(|(other, _)| other).collect();
        assert!(alike.is_empty(), "{sampler:?} makes the picture of {alike:?}");
    }
}

#[test]
fn a_sampler_keeps_what_it_needs_and_the_usual_one_nothing() {
    let bytes = |sampler| job_bytes(&Studio::new("flux_schnell", sampler));
    let euler = bytes(Sampler::Euler);
    // 4 × 3 tokens of 64 features, 4 bytes each, in a picture of 64×48.
    let latents = bytes(Sampler::EulerAncestral) - euler;
    let studio = Studio::new("flux_schnell", Sampler::Euler);
    let shape = JobShape { batch: 2, ..studio.shape };
    let both = JobShape { sampler: Sampler::EulerAncestral, ..shape.clone() };
    let of = |shape: &JobShape| studio.model.buffers(shape, &GraphOptions::default());
    let of = |shape: &JobShape| of(shape).expect("a possible job").bytes().0;
    assert_eq!(of(&both) - of(&shape), 2 * latents);
    for (sampler, tensors) in [
        (Sampler::Heun, 1),
        (Sampler::Dpmpp2m, 1),
        (Sampler::Dpmpp2mSde, 2),
        (Sampler::Dpmpp2s, 2),
        (Sampler::UniPc, 3),
        (Sampler::Lcm, 1),
    ] {
        assert_eq!(bytes(sampler) - euler, tensors * latents, "{sampler:?}");
    }
}

#[test]
fn all_families_have_all_of_them_from_noise_and_from_pictures() {
    let models = ["zimage_turbo", "flux2_klein", "qwen_image", "sd3_medium"];
    // One with history, one with noise, one with both, and one of two calls a step.
    let samplers = [Sampler::UniPc, Sampler::EulerAncestral, Sampler::Dpmpp2mSde, Sampler::Heun];
    for (model, sampler) in models.into_iter().zip(samplers) {
        let studio = Studio::new(model, sampler);
        let usual = Studio::new(model, Sampler::Euler);
        let picture = studio.paint(&studio.shape, on_host);
        assert!(picture != usual.paint(&usual.shape, on_host), "{model}: {sampler:?} is Euler");
        let guided = JobShape { true_cfg: true, ..studio.shape.clone() };
        assert!(studio.paint(&guided, on_host) == studio.paint(&guided, on_devices), "{model}");
    }
}

#[test]
fn a_picture_of_a_batch_draws_its_own_noise() {
    for (model, sampler) in
        [("flux_schnell", Sampler::EulerAncestral), ("sd3_medium", Sampler::Dpmpp2mSde)]
    {
        let studio = Studio::new(model, sampler);
        let batch = JobShape { batch: 2, ..studio.shape.clone() };
        let together = studio.paint(&batch, on_host);
        let alone = studio.plan(&studio.shape, on_host);
        let mut runtime = plans::load(&alone, &studio.model).expect("a plan that fits");
        for (index, picture) in together.chunks_exact(together.len() / 2).enumerate() {
            let job = plans::job(&studio.shape);
            let item = JobItem { seed: 7 + index as u64, ..job.items[0].clone() };
            let job = Job { items: vec![item], ..job };
            let done = plans::paint_job(&mut runtime, &job).expect("a run");
            assert!(done.pixels == picture, "{model}: picture {index} is another in a batch");
        }
    }
}

/// A consistency sampler's latents are the picture that the model sees and fresh noise: what is
/// drawn is told by two dumped tensors. FLUX's pipeline draws it for tokens, SD3's for cells.
#[test]
fn fresh_noise_is_what_torchs_generator_draws_next() {
    for model in ["flux_schnell", "sd3_medium"] {
        let (home, dir) = (Home::new(), fixture(model).display().to_string());
        let mut arguments = vec!["generate", &dir, "--prompt", "a red circle", "--seed", "7"];
        arguments.extend(["--width", "64", "--height", "48", "--steps", "2", "--sampler", "LCM"]);
        arguments.extend(["--true-cfg-scale", "1", "--dump-tensors", "dump.safetensors"]);
        arguments.extend(["--output", "picture.png", "--json"]);
        home.json(&arguments);
        let bytes = std::fs::read(home.path("dump.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let values = |name: &str| -> Vec<f32> {
            let view = file.tensor(name).unwrap_or_else(|error| panic!("{model} {name}: {error}"));
            view.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
        };
        let sigmas = values("sigmas");
        let is_packed = model == "flux_schnell";
        let first = if is_packed { "latents_init" } else { "noise_nchw" };
        let (start, next) = (values(first), values("latents.step0"));
        let output = values("transformer.call0.out");
        let mut generator = CpuGenerator::new(7);
        let mut drawn = vec![0.0; start.len()];
        generator.standard_normal(&mut drawn);
        if !is_packed {
            assert_eq!(drawn, start, "the first draw is the first latents");
        }
        generator.standard_normal(&mut drawn);
        for (place, drawn) in drawn.iter().enumerate() {
            let picture = start[place] - sigmas[0] * output[place];
            let noise = (next[place] - (1.0 - sigmas[1]) * picture) / sigmas[1];
            assert!((noise - drawn).abs() < 1e-4, "{model}[{place}]: {noise} for {drawn}");
        }
    }
}

#[test]
fn what_makes_no_sense_for_a_family_is_refused_with_what_does() {
    let (home, dir) = (Home::new(), fixture("flux_schnell").display().to_string());
    let refused = |more: &[&str]| {
        let size = ["--width", "64", "--height", "64", "--json"];
        let ended = home.run(&[&["plan", &dir][..], &size, more].concat());
        assert_eq!(ended.code, Some(2), "{more:?}: {}", ended.stderr);
        ended.stderr
    };
    let known = "euler, euler_ancestral, heun, dpmpp_2s, dpmpp_2m, dpmpp_2m_sde, \
                 dpmpp_2m_sde_heun, uni_pc, lcm";
    for name in ["ddim", "PLMS", "LMSDiscreteScheduler", "k_dpm_2", "DPM++ SDE"] {
        let told = refused(&["--sampler", name]);
        assert!(told.contains("makes no sense") && told.contains(known), "{name}: {told}");
    }
    let told = refused(&["--scheduler", "ddim_uniform"]);
    assert!(told.contains("name one of automatic, normal"), "{told}");
    let told = refused(&["--eta", "0.5"]);
    assert!(told.contains("euler_ancestral, dpmpp_2m_sde"), "{told}");
    let told = refused(&["--sigmas", "0.5,1"]);
    assert!(told.contains("--sigmas must be"), "{told}");
    let told = refused(&["--sampler", "better"]);
    assert!(told.contains("better"), "{told}");
    // The executor takes no plan's word for it.
    let studio = Studio::new("flux_schnell", Sampler::Ddim);
    let graphs = studio.model.graphs(&studio.shape, &GraphOptions::default());
    let error = graphs.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("ddim") && error.contains(known), "{error}");
}

#[test]
fn given_levels_stand_in_place_of_a_table() {
    let studio = Studio::new("flux_schnell", Sampler::Dpmpp2m);
    let plan = studio.plan(&studio.shape, on_host);
    let mut runtime = plans::load(&plan, &studio.model).expect("a plan that fits");
    let mut paint = |sigmas: &[f32], scheduler| {
        let job = Job { sigmas: sigmas.to_vec(), scheduler, ..plans::job(&studio.shape) };
        plans::paint_job(&mut runtime, &job)
    };
    let own = paint(&[], Scheduler::Automatic).expect("a run").pixels;
    let same = paint(&[1.0, 0.75, 0.5, 0.25], Scheduler::Automatic).expect("a run").pixels;
    assert!(own == same, "the model's own levels, given, make another picture");
    let others = [
        paint(&[1.0, 0.8, 0.5, 0.1], Scheduler::Automatic).expect("a run").pixels,
        paint(&[], Scheduler::Karras).expect("a run").pixels,
        paint(&[], Scheduler::Beta).expect("a run").pixels,
        paint(&[], Scheduler::KlOptimal).expect("a run").pixels,
    ];
    assert!(others.iter().all(|other| *other != own), "a table has no effect");
    for sigmas in [&[1.0, 0.5][..], &[1.0, 0.5, 0.6, 0.2], &[2.0, 1.0, 0.5, 0.2]] {
        let refused = paint(sigmas, Scheduler::Automatic).unwrap_err();
        assert_eq!(refused.kind, FailureKind::BadRequest, "{}", refused.message);
    }
    let refused = paint(&[], Scheduler::DdimUniform).unwrap_err();
    assert_eq!(refused.kind, FailureKind::BadRequest, "{}", refused.message);
}
