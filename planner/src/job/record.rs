//! What a run records in its pictures: the settings by which they can be made again.
//!
//! [`super::recorded`] is the way back.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::thread::JoinHandle;

use protocol::message::Image;
use protocol::plan::{DeviceBackend, Lora, VaeTile};
use protocol::profile::{ComponentDescription, GuidanceScale};
use protocol::{DeviceId, Job, ModelDescription, Phase, Plan, Scheduler};

use super::infotext::{FileRecord, LoraRecord, Settings};
use super::resolve::PreparedJob;
use crate::fingerprint;
use crate::media::picture::Picture;

/// How torch's CPU generator is called in pictures.
pub const RNG: &str = "CPU";

/// The files that a run depends on, as they are when they are hashed.
#[derive(Debug, Default)]
pub struct Files {
    /// Of the model: a hash of all that its pictures depend on.
    pub fingerprint: Option<String>,
    /// The picture to start from.
    pub init_image: Option<FileRecord>,
    /// Latents to start from.
    pub init_latents: Option<FileRecord>,
    /// The hash of each LoRA.
    pub loras: Vec<Option<String>>,
}

/// A run that made its pictures.
pub struct FinishedRun<'a> {
    /// What was asked, in the words of whoever asked.
    pub asked: &'a PreparedJob,
    /// What was sent, of others too where jobs ran together.
    pub job: &'a Job,
    /// The places in the batch of what it made of this job.
    pub pictures: Range<u32>,
    /// How it was done.
    pub plan: &'a Plan,
    /// What it was done with.
    pub description: &'a ModelDescription,
    /// The files that it depends on.
    pub files: &'a Files,
    /// Where the job brought its embeddings: the text encoders that GPUs computed for them.
    pub encoders_on_gpu: Option<&'a [String]>,
}

/// The files of a run that is on its way: hashed beside it, as large LoRA take seconds.
#[derive(Debug)]
pub struct FileHashes {
    thread: JoinHandle<Files>,
    /// The record of the picture to start from, which lies in memory.
    init_image: Option<FileRecord>,
}

impl Files {
    /// Those of a job on a model, now; `loras` are its plan's.
    pub fn of(asked: &PreparedJob, description: &ModelDescription, loras: &[Lora]) -> Files {
        let latents = asked.request.start.latents.as_deref();
        let files = Files::on_disk(description, None, latents, loras);
        Files { init_image: init_image(asked), ..files }
    }

    fn on_disk(
        description: &ModelDescription,
        known: Option<String>,
        latents: Option<&Path>,
        loras: &[Lora],
    ) -> Files {
        let hash = |lora: &Lora| fingerprint::sha256_of_file(Path::new(&lora.path)).ok();
        let fingerprint = || fingerprint::of_model(&description.model, description).ok();
        Files {
            fingerprint: known.or_else(fingerprint),
            init_image: None,
            init_latents: latents.map(file_record),
            loras: loras.iter().map(hash).collect(),
        }
    }
}

impl FileHashes {
    /// Begins to hash what [`Files::of`] does, on a thread that nobody has to wait for; not the
    /// model, where its fingerprint is `known`.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn begin(
        asked: &PreparedJob,
        description: &ModelDescription,
        known: Option<String>,
        loras: &[Lora],
    ) -> io::Result<FileHashes> {
        let latents = asked.request.start.latents.clone();
        let (description, loras) = (description.clone(), loras.to_vec());
        let hash = move || Files::on_disk(&description, known, latents.as_deref(), &loras);
        let thread = std::thread::Builder::new().name("hashes".to_owned()).spawn(hash)?;
        Ok(FileHashes { thread, init_image: init_image(asked) })
    }

    /// Waits for the hashes.
    pub fn files(self) -> Files {
        // A panic of the thread was told when it happened; the pictures go without hashes then.
        let files = self.thread.join().unwrap_or_default();
        Files { init_image: self.init_image, ..files }
    }
}

fn init_image(asked: &PreparedJob) -> Option<FileRecord> {
    let path = asked.request.start.image.as_deref()?.display().to_string();
    Some(FileRecord { path, sha256: asked.picture.as_ref().map(Picture::sha256) })
}

/// A file's record. One that cannot be read has no hash: whoever needs it tells why.
fn file_record(path: &Path) -> FileRecord {
    let sha256 = fingerprint::sha256_of_file(path).ok();
    FileRecord { path: path.display().to_string(), sha256 }
}

impl FinishedRun<'_> {
    /// How one of its pictures was made; `quality` is that of a format that has one.
    pub fn settings(&self, image: &Image, quality: Option<u8>) -> Settings {
        let FinishedRun { asked, job, pictures, plan, description, files, .. } = self;
        let shape = &plan.job;
        let on_gpu = self.on_gpu();
        let item = &job.items[image.index as usize];
        let second = item.prompt_2.as_ref().filter(|second| **second != item.prompt);
        let embedded = description.guidance == GuidanceScale::Embedded;
        let has_negative = shape.true_cfg && !item.negative_prompt.is_empty();
        let loras = self.loras();
        Settings {
            prompt: item.prompt.clone(),
            prompt_2: second.cloned(),
            negative_prompt: has_negative.then(|| item.negative_prompt.clone()),
            steps: Some(shape.steps),
            sampler: Some(shape.sampler.names().label.to_owned()),
            scheduler: (job.scheduler != Scheduler::Automatic)
                .then(|| job.scheduler.names().label.to_owned()),
            sigmas: (!job.sigmas.is_empty()).then(|| job.sigmas.clone()),
            eta: job.eta,
            // Readers of other programs look for it: 1 is none.
            cfg_scale: Some(if shape.true_cfg { job.true_cfg_scale } else { 1.0 }),
            cfg_normalization: shape.true_cfg && job.cfg_normalization,
            guidance_scale: embedded.then_some(job.guidance_scale),
            seed: Some(image.seed),
            rng: job.init_latents.is_none().then(|| RNG.to_owned()),
            size: Some([image.width, image.height]),
            // As it would be alone: others in the batch change no picture.
            batch_size: (pictures.len() > 1).then_some(pictures.len() as u32),
            batch_position: (pictures.len() > 1).then_some(image.index - pictures.start),
            max_sequence_length: Some(shape.max_sequence_length),
            init_image: files.init_image.clone(),
            strength: shape.init_image.then(|| asked.request.strength()),
            init_latents: files.init_latents.clone(),
            lora_at_run_time: match loras.is_empty() {
                true => Vec::new(),
                false => plan.options.lora_runtime.clone(),
            },
            loras,
            model: Some(plan.model.name()),
            paths: asked.request.model.typed(),
            fingerprint: files.fingerprint.clone(),
            weights: Some(weights(description, plan)),
            vae_tile: plan.options.vae_tile.filter(|tile| cuts(tile, image)).map(|tile| {
                let VaeTile { width, height, overlap } = tile;
                format!("{width}x{height}:{overlap}")
            }),
            exact_matmul: plan.options.exact_matmul && has_rounded(description, &on_gpu),
            on_gpu,
            quality,
            version: Some(Settings::this_version()),
        }
    }

    /// The components that GPUs computed.
    fn on_gpu(&self) -> Vec<String> {
        let of_plan = on_gpu(self.plan);
        let Some(encoders) = self.encoders_on_gpu else { return of_plan };
        let is_encoder = |name: &String| {
            let mut described = self.description.components.iter();
            described
                .any(|component| component.phase == Phase::Condition && component.name == *name)
        };
        let others = of_plan.into_iter().filter(|name| !is_encoder(name));
        encoders.iter().cloned().chain(others).collect()
    }

    /// The LoRA files as they were typed, without those of weight 0: these change nothing.
    fn loras(&self) -> Vec<LoraRecord> {
        let hashes = self.files.loras.iter().cloned().chain(std::iter::repeat(None));
        let typed: Vec<&str> = self.asked.policy.loras.iter().map(|l| l.path.as_str()).collect();
        let applied = self.plan.options.loras.iter().enumerate().zip(hashes);
        let applied = applied.filter(|((_, lora), _)| lora.weight != 0.0);
        applied
            .map(|((index, lora), sha256)| {
                // A plan that was given names its own, by paths from the root.
                let is_same = |typed: &&&str| {
                    std::path::absolute(typed).is_ok_and(|path| path == Path::new(&lora.path))
                };
                let typed = typed.get(index).filter(is_same);
                let path = typed.copied().unwrap_or(&lora.path).to_owned();
                LoraRecord { file: FileRecord { path, sha256 }, weight: lora.weight }
            })
            .collect()
    }
}

/// The components that GPUs compute.
pub fn on_gpu(plan: &Plan) -> Vec<String> {
    let is_gpu = |id: &DeviceId| {
        let device = plan.devices.iter().find(|device| device.id == *id);
        device.is_some_and(|device| matches!(device.backend, DeviceBackend::Cuda { .. }))
    };
    let on_gpus = plan.components.iter().filter(|component| component.devices.iter().any(is_gpu));
    on_gpus.map(|component| component.name.clone()).collect()
}

/// Whether a picture has more than one such tile.
fn cuts(tile: &VaeTile, image: &Image) -> bool {
    tile.width < image.width || tile.height < image.height
}

/// The type that most of the weights of each component that ran are stored in; text encoders ran in
/// an earlier job where this one brought what they give.
fn weights(description: &ModelDescription, plan: &Plan) -> String {
    let planned = |name: &String| plan.components.iter().any(|component| component.name == *name);
    let ran = |component: &&ComponentDescription| {
        component.phase == Phase::Condition || planned(&component.name)
    };
    let ran = description.components.iter().filter(ran);
    let types = ran.filter_map(|component| {
        let most = component.storage.iter().max_by_key(|entry| entry.bytes)?;
        Some(format!("{} {}", component.name, most.storage.name()))
    });
    types.collect::<Vec<_>>().join(" ")
}

/// Whether exact products are others somewhere: on a GPU, which rounds activations for all weights,
/// and where the CPU multiplies weights for which some CPU does.
fn has_rounded(description: &ModelDescription, on_gpu: &[String]) -> bool {
    let mut entries = description.components.iter().flat_map(|component| &component.storage);
    !on_gpu.is_empty() || entries.any(|entry| entry.storage.has_rounded_products())
}
