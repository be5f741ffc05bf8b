//! `berth generate`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use protocol::JobShape;
use protocol::message::Rng;

use super::answer::feasible;
use super::given::{check_here, check_plan, read_plan};
use super::listen::Terminal;
use super::model::ModelArguments;
use super::number;
use super::outputs::{PictureArguments, PictureFormats};
use super::placement::PlacementArguments;
use super::preview::PreviewArguments;
use super::server::{self, ServerArguments, Writing};
use super::setup::{Opening, tell_unused_gpus};
use super::shape::ShapeArguments;
use super::{ExecutorArguments, PolicyArguments, interrupt};
use crate::client::{DaemonClient, job};
use crate::engine::supervise::{Outcome, Work};
use crate::engine::warm::{Holding, Warm};
use crate::job::infotext;
use crate::job::record::{FileHashes, Files, FinishedRun};
use crate::job::recorded::{Recorded, RecordedOnDaemon, RecordedParts};
use crate::job::request::Prompts;
use crate::job::seed::Seed;
use crate::job::{JobRequest, PreparedJob};
use crate::output::Outputs;
use crate::planning::{PlanError, Request};
use crate::preview::PreviewFile;
use crate::render;
use crate::render::document::{self, GenerateDocument, PlanDocument};

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
    "conditioners_on_cpu",
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
    /// What the picture is not to show; takes effect with --cfg-scale above 1
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
    /// Where noise comes from: cpu, as torch's CPU generator
    #[arg(long, value_enum, default_value = "cpu")]
    rng: RngArgument,
    /// Begin from these latents in place of noise: a safetensors file with `latents_init` or
    /// `noise_nchw`
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
    #[command(flatten)]
    server: ServerArguments,
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
    /// Plans, makes the pictures and writes them.
    pub fn run(&self) -> Result<()> {
        if let Some(daemon) = self.server.daemon()? {
            return self.run_on(&daemon);
        }
        let recorded = self.settings.as_deref().map(Recorded::read).transpose()?;
        let mut request = self.request()?;
        let kept = match &recorded {
            Some(recorded) => {
                render::tell(recorded.unused().as_slice());
                recorded.fill(&mut request)?
            }
            None => RecordedParts::default(),
        };
        let given = self.plan.as_deref().map(read_plan).transpose()?;
        let mut formats = PictureFormats::default();
        let outputs = |asked: &PreparedJob| {
            let outputs;
            (outputs, formats) = self.outputs(asked, &kept, recorded.as_ref())?;
            Ok(outputs)
        };
        let opening = Opening::open(request, &self.policy, &self.executor, outputs)?;
        let Opening { asked, host, outputs, session, mut terminal, description, .. } = opening;
        let resolved = asked.resolve(&description)?;
        let shape = &resolved.shape;
        formats.check_size(shape.width, shape.height)?;
        tell_unused_gpus(&host, &session)?;
        let loras = given.as_ref().map_or(&asked.loras, |plan| &plan.options.loras);
        let mut hashing = None;
        let mut files = Files::default();
        if let Some(recorded) = &recorded {
            // Whether it is the recorded model is known before the run, not after it.
            files = Files::of(&asked, &description, loras);
            let fingerprint = files.fingerprint.as_deref();
            render::tell(recorded.check_model(&kept, &description, fingerprint)?.as_slice());
        } else if !self.pictures.no_settings {
            hashing = Some(FileHashes::begin(&asked, &description, None, loras)?);
        }
        let preview_every = match &given {
            Some(plan) => {
                check_plan(plan, &asked.model, shape)?;
                protocol::check::check(plan).map_err(PlanError::Given)?;
                let here = check_here(plan, &host.inventory(None)?, &session.backends);
                feasible(self.json, &description.model, here)?;
                plan.options.preview_every
            }
            None => resolved.options.preview_every,
        };
        if preview_every > 0 {
            terminal.set_preview(PreviewFile::new(&outputs, [shape.width, shape.height])?);
        }
        terminal.tell_time();
        terminal.confirm(self.yes);
        let job = asked.job(&resolved)?;
        render::tell(&resolved.notices);
        let request = |holding: Holding<'_>| {
            let request = host.request(&asked, &resolved, &description, false, holding);
            let request = request.map_err(|error| PlanError::Inventory(error.into()))?;
            Ok(Request { explain: self.json, ..request })
        };
        let work = Work::Generate(Box::new(job.clone()));
        let mut hear = |event| terminal.hear(event);
        let mut warm = Warm::new(session);
        let result = host.run(&mut warm, &request, &work, given.as_ref(), &mut hear);
        warm.end();
        let mut outcome = feasible(self.json, &description.model, result)?;
        if let Some(position) = kept.position {
            outcome.images.retain(|image| image.index == position);
        }
        // A pipe's reader may keep it waiting, and so may the hashes of large files; finished files
        // get their names in no time.
        interrupt::release();
        if let Some(hashing) = hashing {
            files = hashing.files();
        }
        let made = FinishedRun {
            asked: &asked,
            job: &job,
            pictures: 0..outcome.plan.job.batch,
            plan: &outcome.plan,
            description: &description,
            files: &files,
            encoders_on_gpu: None,
        };
        let summary = Summary { json: self.json, to_stderr: outputs.take_stdout() };
        let names = write(&outcome, &formats, &made, outputs)?;
        if let Some(recorded) = &recorded {
            render::tell(&recorded.differences(&kept, &outcome.plan));
        }
        summary.show(&outcome, names)
    }

    /// Has a daemon make the pictures, and writes them.
    fn run_on(&self, daemon: &DaemonClient) -> Result<()> {
        if self.plan.is_some() || self.policy.host.is_some() {
            bail!(
                "--plan and --host are for a run on this machine; hint: leave out --server, or unset BERTH_SERVER"
            );
        }
        let recorded = self.settings.as_deref().map(Recorded::read).transpose()?;
        let mut request = self.request()?;
        let filled = match &recorded {
            Some(recorded) => recorded.fill_for_daemon(&mut request, &server::models(daemon)?)?,
            None => RecordedOnDaemon::default(),
        };
        render::tell(&filled.notices);
        request.check()?;
        server::check_request(&request)?;
        let seed = request.seed.unwrap_or_default().draw()?;
        request.seed = Some(Seed::Given(seed));
        let (first, count) = match filled.position {
            // Of a batch, one picture is wanted alone.
            Some(position) => (seed.wrapping_add(position.into()), 1),
            None => (seed, request.shape.batch.unwrap_or(1)),
        };
        let quality = recorded.as_ref().and_then(Recorded::quality);
        let named = request.model.typed();
        let (mut outputs, formats) = self.pictures.outputs(&named, first, count, None, quality)?;
        if self.json && outputs.take_stdout() {
            bail!("--json prints to standard output, where an output goes; hint: name a file");
        }
        if let Some(image) = &request.start.image {
            outputs.reads.add("the picture to start from", image);
        }
        if let Some(picture) = &self.settings {
            outputs.reads.add("the picture whose settings are taken", picture);
        }
        outputs.ready()?;
        let mut terminal = Terminal::new(self.executor.verbose);
        terminal.tell_time();
        let body = job::body(&request)?;
        server::confirm(daemon, &body, self.yes)?;
        let position = filled.position;
        let writing = Writing { formats: &formats, outputs, position, json: self.json };
        server::generate(daemon, &body, terminal, request.preview_every.is_some(), writing)
    }

    /// What these arguments ask for.
    fn request(&self) -> Result<JobRequest> {
        let RngArgument::Cpu = self.rng;
        let mut request = JobRequest {
            model: self.model.name()?,
            prompts: Prompts {
                prompt: self.prompt.clone(),
                prompt_2: self.prompt_2.clone(),
                negative_prompt: self.negative_prompt.clone(),
                negative_may_be_unused: false,
            },
            seed: self.seed,
            rng: Some(Rng::Cpu),
            policy: self.policy.over(self.placement.text()?),
            preview_every: self.preview.preview,
            dump_tensors: self.dump_tensors.is_some(),
            ..self.shape.request()
        };
        request.start.latents.clone_from(&self.init_latents);
        Ok(request)
    }

    /// What this writes, what it alone reads, and how its pictures are written.
    fn outputs(
        &self,
        asked: &PreparedJob,
        kept: &RecordedParts,
        recorded: Option<&Recorded>,
    ) -> Result<(Outputs, PictureFormats)> {
        let (seed, pictures) = match kept.position {
            // Of a batch, one picture is wanted alone.
            Some(position) => (asked.seed.wrapping_add(position.into()), 1),
            None => (asked.seed, asked.request.shape.batch.unwrap_or(1)),
        };
        let quality = recorded.and_then(Recorded::quality);
        let dump_tensors = self.dump_tensors.as_deref();
        let (mut outputs, formats) =
            self.pictures.outputs(&asked.model, seed, pictures, dump_tensors, quality)?;
        if self.json && outputs.take_stdout() {
            bail!("--json prints to standard output, where an output goes; hint: name a file");
        }
        for (what, path) in
            [("the plan", &self.plan), ("the picture whose settings are taken", &self.settings)]
        {
            path.iter().for_each(|path| outputs.reads.add(what, path));
        }
        Ok((outputs, formats))
    }
}

/// Writes pictures and tensors to their places; returns the names of the pictures.
fn write(
    outcome: &Outcome,
    formats: &PictureFormats,
    made: &FinishedRun<'_>,
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

/// How a finished job is told.
struct Summary {
    json: bool,
    /// Standard output has a picture.
    to_stderr: bool,
}

impl Summary {
    fn show(&self, outcome: &Outcome, images: Vec<String>) -> Result<()> {
        let seeds: Vec<u64> = outcome.images.iter().map(|image| image.seed).collect();
        let Outcome { plan, report, inventory, usage, .. } = outcome;
        let Outcome { attempts, failures, notices, .. } = outcome;
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
                render::seeds(&seeds),
                peaks.join(", "),
                gpus.collect::<String>()
            ),
        )
    }
}
