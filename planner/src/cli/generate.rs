//! `berth generate`.

mod record;
mod recorded;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::Rng;
use protocol::plan::Lora;
use protocol::profile::ModelDescription;
use protocol::{Job, JobShape, ModelSource, limits};

use super::confirm::Confirm;
use super::given::{check_here, check_plan, read_plan};
use super::model::ModelArguments;
use super::number;
use super::outputs::{PictureArguments, PictureFormats};
use super::placement::PlacementArguments;
use super::preview::PreviewArguments;
use super::seed::Seed;
use super::setup::Opening;
use super::shape::{Guidance, ShapeArguments};
use super::{ExecutorArguments, PolicyArguments, interrupt};
use crate::engine::supervise::{Outcome, Work, supervise};
use crate::engine::warm::{Holding, Warm};
use crate::infotext;
use crate::inventory::Inventory;
use crate::output::Outputs;
use crate::picture::Source;
use crate::planning::{PlanError, Request};
use crate::preview::PreviewFile;
use crate::render;
use crate::render::document::{self, GenerateDocument, PlanDocument};
use record::{Files, Made, file_record, source_record};
use recorded::{Kept, Recorded};

/// What a plan that is given has decided already.
const NOT_WITH_A_PLAN: [&str; 20] = [
    "settings",
    "max_vram",
    "max_ram",
    "host",
    "optimize",
    "backend",
    "params_backend",
    "split_mode",
    "lookahead",
    "vae_tile",
    "mmap_policy",
    "lora",
    "preview",
    "no_prefetch",
    "exact_matmul",
    "clip_on_cpu",
    "vae_on_cpu",
    "control_net_cpu",
    "params_on_cpu",
    "vae_tiling",
];

/// Make pictures from a prompt.
#[derive(Debug, Args)]
pub struct Generate {
    #[command(flatten)]
    model: ModelArguments,
    /// What the picture is to show
    #[arg(short, long, value_name = "TEXT", required_unless_present = "settings")]
    prompt: Option<String>,
    /// A prompt of its own for the long text encoder [default: the prompt]
    #[arg(long, value_name = "TEXT")]
    prompt_2: Option<String>,
    /// What the picture is not to show; takes effect with --true-cfg-scale above 1
    #[arg(short, long, value_name = "TEXT")]
    negative_prompt: Option<String>,
    #[command(flatten)]
    shape: ShapeArguments,
    #[command(flatten)]
    preview: PreviewArguments,
    /// Seed of the first picture's noise: a number, or random (-1 means the same), which draws
    /// another one below 4294967296 in each run [default: random]
    #[arg(short, long, allow_negative_numbers = true, value_parser = number::seed())]
    seed: Option<Seed>,
    /// Make this picture (PNG, JPEG, WebP) again: take from its settings what is not given here
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The negative prompt of those settings: unlike the flag's, it may have no effect.
    #[arg(skip)]
    recorded_negative: Option<String>,
    /// Where noise comes from: cpu, as torch's CPU generator
    #[arg(long, value_enum, default_value = "cpu")]
    rng: RngArgument,
    /// Begin from these latents in place of noise: a safetensors file with `latents_init` or `noise_nchw`
    #[arg(long, value_name = "FILE", conflicts_with = "init_image")]
    init_latents: Option<PathBuf>,
    /// Also write intermediate tensors to a safetensors file
    #[arg(long, value_name = "FILE")]
    dump_tensors: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyArguments,
    #[command(flatten)]
    placement: PlacementArguments,
    #[command(flatten)]
    executor: ExecutorArguments,
    #[command(flatten)]
    pictures: PictureArguments,
    /// Print a JSON document in place of the summary
    #[arg(long)]
    json: bool,
    /// Do not ask before a job that is predicted to take more than ten minutes
    #[arg(long)]
    yes: bool,
    /// Run by a plan that `plan --output` wrote, in place of a new one
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_WITH_A_PLAN)]
    plan: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum RngArgument {
    /// As torch's CPU generator.
    Cpu,
}

impl Generate {
    /// Runs the command.
    pub fn run(mut self) -> Result<()> {
        let recorded = self.settings.as_deref().map(Recorded::read).transpose()?;
        let kept = match &recorded {
            Some(recorded) => recorded.fill(&mut self)?,
            None => Kept::default(),
        };
        let batch = self.shape.batch.unwrap_or(1);
        if batch > limits::BATCH_MAX {
            bail!("--batch {batch} is more than {}", limits::BATCH_MAX);
        }
        let seed = self.seed.unwrap_or(Seed::Random).draw()?;
        let source = self.shape.source()?;
        let given = self.plan.as_deref().map(read_plan).transpose()?;
        let mut formats = PictureFormats::default();
        let outputs = |model: &ModelSource| {
            let outputs;
            // Of a batch, one picture may be wanted alone.
            (outputs, formats) = match kept.position {
                Some(position) => self.outputs(model, seed.wrapping_add(position.into()), 1)?,
                None => self.outputs(model, seed, batch)?,
            };
            Ok(outputs)
        };
        let opening =
            Opening::open(&self.model, &self.policy, &self.placement, &self.executor, outputs)?;
        let Opening { model, mut setting, outputs, .. } = opening;
        let Opening { session, mut progress, description, .. } = opening;
        let shape = self.shape.job(&description, source.as_ref())?;
        formats.check_size(shape.width, shape.height)?;
        setting.tell_unused_gpus(&session)?;
        let loras = given.as_ref().map_or(setting.loras(), |plan| &plan.options.loras);
        let files = match self.pictures.no_settings && recorded.is_none() {
            true => Files::default(),
            false => self.files(&description, loras, source.as_ref()),
        };
        if let Some(recorded) = &recorded {
            recorded.check_model(&kept, &description, files.fingerprint.as_deref())?;
            setting.add_lora_at_run_time(&kept.lora_at_run_time, &description);
        }
        let preview_every = match &given {
            Some(plan) => {
                check_plan(plan, &model, &shape)?;
                protocol::check::check(plan).map_err(PlanError::Given)?;
                let here = check_here(plan, &setting.inventory(None)?, &session.backends);
                document::feasible(self.json, &description.model, here)?;
                plan.options.preview_every
            }
            None => self.preview.every(&shape)?,
        };
        if preview_every > 0 {
            let mut file = PreviewFile::new(&outputs, [shape.width, shape.height])?;
            progress.on_preview(move |preview| file.show(preview));
        }
        progress.tell_time();
        let mut job = self.job(&description, seed)?;
        if let Some(source) = source {
            job.init_image = Some(shared(&source, &shape)?);
        }
        let inventorize = |holding: Holding<'_>| {
            let request = setting.request(&description, shape.clone(), false, holding);
            let request = request.map(|mut request| {
                request.options.preview_every = preview_every;
                Request { explain: self.json, ..request }
            });
            request.map_err(PlanError::Inventory)
        };
        let work = Work::Generate(Box::new(job.clone()));
        let mut listener = Confirm { listener: &mut progress, yes: self.yes, told: false };
        let mut warm = Warm::new(session);
        let result = supervise(&mut warm, &inventorize, &work, given.as_ref(), &mut listener);
        warm.end();
        progress.clear();
        let mut outcome = document::feasible(self.json, &description.model, result)?;
        if let Some(position) = kept.position {
            outcome.images.retain(|image| image.index == position);
        }
        // A pipe's reader may keep it waiting; finished files get their names in no time.
        interrupt::release();
        let made = Made {
            job: &job,
            plan: &outcome.plan,
            description: &description,
            strength: self.shape.strength(),
            setting: &setting,
            files: &files,
        };
        let summary = Summary { json: self.json, to_stderr: outputs.take_stdout() };
        let names = write(&outcome, &formats, &made, outputs)?;
        if let Some(recorded) = &recorded {
            recorded.tell_differences(&kept, &outcome.plan);
        }
        let inventory = setting.inventory(Some(&description.model))?;
        summary.show(&outcome, &inventory, names)?;
        // What a given plan predicts was made with other rates.
        if given.is_none() {
            setting.learn(&inventory, &outcome.plan, &outcome.usage);
        }
        Ok(())
    }

    /// The files that the pictures will depend on, as they are now.
    fn files(
        &self,
        description: &ModelDescription,
        loras: &[Lora],
        source: Option<&Source>,
    ) -> Files {
        Files {
            init_image: source.zip(self.shape.init_image.as_deref()).map(source_record),
            init_latents: self.init_latents.as_deref().map(file_record),
            ..Files::of(&self.model, description, loras)
        }
    }

    fn job(&self, description: &ModelDescription, seed: u64) -> Result<Job> {
        let Guidance { embedded, true_cfg } = self.shape.guidance(description);
        if self.negative_prompt.is_some() && true_cfg <= 1.0 {
            bail!(
                "--negative-prompt takes effect with --true-cfg-scale above 1 only; hint: add --true-cfg-scale 4"
            );
        }
        if self.shape.guidance_scale.is_some() && !description.guidance_embeds {
            eprintln!("berth: this model has no embedded guidance: --guidance-scale has no effect");
        }
        let negative = self.negative_prompt.as_ref().or(self.recorded_negative.as_ref());
        let RngArgument::Cpu = self.rng;
        let init_latents = match &self.init_latents {
            Some(path) => Some(absolute(path)?),
            None => None,
        };
        Ok(Job {
            prompt: self.prompt.clone().unwrap_or_default(),
            prompt_2: self.prompt_2.clone(),
            negative_prompt: negative.filter(|_| true_cfg > 1.0).cloned().unwrap_or_default(),
            guidance_scale: embedded,
            true_cfg_scale: true_cfg,
            seed,
            rng: Rng::Cpu,
            init_image: None,
            init_latents,
            dump_tensors: self.dump_tensors.is_some(),
        })
    }

    /// What this writes, what it alone reads, and how its pictures are written.
    fn outputs(
        &self,
        model: &ModelSource,
        seed: u64,
        pictures: u32,
    ) -> Result<(Outputs, PictureFormats)> {
        let dump_tensors = self.dump_tensors.as_deref();
        let (mut outputs, formats) = self.pictures.outputs(model, seed, pictures, dump_tensors)?;
        if self.json && outputs.take_stdout() {
            bail!("--json prints to standard output, where an output goes; hint: name a file");
        }
        let init_latents = ("the latents to begin from", &self.init_latents);
        let of_its_own = [init_latents, ("the plan", &self.plan)];
        for (what, path) in of_its_own {
            path.iter().for_each(|path| outputs.reads.add(what, path));
        }
        if let Some(path) = &self.settings {
            outputs.reads.add("the picture whose settings are taken", path);
        }
        self.shape.add_reads(&mut outputs);
        Ok((outputs, formats))
    }
}

/// Writes pictures and tensors to their places; returns the names of the pictures.
fn write(
    outcome: &Outcome,
    formats: &PictureFormats,
    made: &Made<'_>,
    outputs: Outputs,
) -> Result<Vec<String>> {
    let pictures = formats.encode(&outcome.images, |image, quality| {
        infotext::write(&made.settings(image, quality))
    })?;
    let contents: Vec<&[u8]> =
        pictures.iter().map(Vec::as_slice).chain(outcome.tensors.as_deref()).collect();
    let mut names = outputs.write(&contents, interrupt::hold)?;
    names.truncate(pictures.len());
    Ok(names)
}

/// The seeds of pictures, for people: those of a batch count up.
fn told_seeds(seeds: &[u64]) -> String {
    match seeds {
        [first, .., last] => format!("seeds {first} to {last}"),
        seeds => format!("seed {}", seeds.first().copied().unwrap_or_default()),
    }
}

/// How a finished job is told.
struct Summary {
    json: bool,
    /// Standard output has a picture.
    to_stderr: bool,
}

impl Summary {
    fn show(&self, outcome: &Outcome, inventory: &Inventory, images: Vec<String>) -> Result<()> {
        let seeds: Vec<u64> = outcome.images.iter().map(|image| image.seed).collect();
        let Outcome { plan, report, usage, attempts, failures, notices, .. } = outcome;
        render::tell_failures(failures);
        if self.json {
            let plan = PlanDocument::new(plan, report, inventory);
            let attempts = *attempts;
            let warnings = notices.iter().map(render::notices::sentence).collect();
            let document =
                GenerateDocument { plan, usage, attempts, failures, warnings, images, seeds };
            return document::print(&document);
        }
        let peaks: Vec<String> = usage
            .devices
            .iter()
            .filter_map(|device| {
                let (predicted, measured) = device.peaks();
                (measured.0 > 0).then(|| match predicted == measured {
                    true => format!("{} {measured} as planned", device.id),
                    false => format!("{} {measured}, {predicted} planned", device.id),
                })
            })
            .collect();
        let JobShape { width, height, steps, init_image, .. } = plan.job;
        let run = if init_image { format!("{} of ", plan.job.steps_run()) } else { String::new() };
        let total = crate::solve::shown_ms(usage.measured_ms.total);
        let attempts = if *attempts > 1 { format!(", attempt {attempts}") } else { String::new() };
        let busy = usage.devices.iter().filter_map(render::tables::busy);
        let gpus = usage.gpus.iter().map(render::tables::of_gpu).chain(busy);
        let gpus = gpus.map(|line| format!("\n{line}"));
        render::print_beside(
            self.to_stderr,
            &format!(
                "{}: {width}x{height}, {run}{steps} steps in {total}{attempts}, {}; peak {}{}",
                images.join(", "),
                told_seeds(&seeds),
                peaks.join(", "),
                gpus.collect::<String>()
            ),
        )
    }
}

/// A picture's pixels at a job's size, where the executor can read them.
pub fn shared(source: &Source, shape: &JobShape) -> Result<IpcSharedMemory> {
    if let Err(violation) = protocol::check::check_job(shape) {
        bail!("{}", violation.0);
    }
    let pixels = source.pixels(shape.width as usize, shape.height as usize)?;
    Ok(IpcSharedMemory::from_bytes(&pixels))
}

fn absolute(path: &Path) -> Result<String> {
    let path =
        std::path::absolute(path).with_context(|| format!("cannot read {}", path.display()))?;
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => bail!("the path {} is not UTF-8", path.display()),
    }
}
