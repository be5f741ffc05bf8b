//! The FLUX.1 family: which parts it has, how they fit together, and its graphs and buffers for a
//! job.

mod dit;
mod names;
mod parts;
mod single;

mod describe;
mod lora;

mod prompts;
mod run;

use std::sync::Arc;

use protocol::profile::{JobDefaults, StepItems};
use protocol::{Bytes, Failure, GraphOptions, JobShape, ModelDescription, Phase};

use super::Family;
use crate::components::text::clip::ClipConfig;
use crate::components::text::t5::T5Config;
use crate::components::vae::job::VaeJob;
use crate::components::vae::kl::VaeConfig;
use crate::components::vae::published;
use crate::models::buffers::{BufferPlan, BufferSpec};
use crate::models::config::Limits;
use crate::models::rgb_map::RgbMap;
use crate::models::source::{ModelPart, OpenedSource, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::models::{ComponentFiles, ComponentGraph, Model, ModelError, VaeGraphs, defaults, job};
use crate::pipeline::{JobPhases, RunningJob};
use crate::sampling::FlowMatchConfig;
use crate::weights::WeightFiles;
use crate::weights::lora::LoraNames;

use dit::DitConfig;
use parts::{PARTS, Parts};

/// The family's name.
const FAMILY: &str = "flux";

/// The component names, in the order in which they run; the first one only in a job that starts
/// from a picture.
const COMPONENTS: [&str; 5] = ["vae_encoder", "clip", "t5", "dit", "vae"];

/// Those of them that take prompts.
const TEXT_ENCODERS: [&str; 2] = ["clip", "t5"];

/// Cells of latents along a side of a token (`FluxPipeline._pack_latents`).
const PATCH: usize = 2;

// A job's buffers that are this family's own.

/// CLIP's hidden states, a copy for each prompt: `[tokens, features]`.
const CLIP_HIDDEN: &str = "clip_hidden";

/// T5's hidden states, a copy for each prompt: `[text tokens, features]`.
const TEXT_HIDDEN: &str = "text_hidden";

/// The DiT's result, a copy for each of its passes in a step: `[batch, image tokens, channels]`.
const VELOCITY: &str = "velocity";

/// Packed latents: `[batch, image tokens, channels]`.
const LATENTS: &str = "latents";

/// The rotary table: `[text tokens + image tokens, head width / 2, 2]`.
const ROPE: &str = "rope";

/// Most text tokens that `FluxPipeline` takes.
const SEQUENCE_TOKENS_MAX: u32 = 512;

/// The entry in the registry.
pub struct Flux1Family;

impl Family for Flux1Family {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn called(&self) -> &'static str {
        "FLUX.1"
    }

    fn examples(&self) -> &'static str {
        "FLUX.1-schnell or FLUX.1-dev"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["FluxPipeline"]
    }

    fn parts(&self) -> &'static [PartSpec] {
        &PARTS
    }

    fn open(&self, source: &OpenedSource) -> Result<Arc<dyn Model>, ModelError> {
        source.check_used(&PARTS)?;
        Ok(Arc::new(Flux1::from_parts(source, Parts::read(source))?))
    }

    fn describe(&self, source: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
        describe::describe(source, makes_tokenizers)
    }

    fn start(&self, job: &mut RunningJob<'_>) -> Result<Box<dyn JobPhases>, Failure> {
        Ok(Box::new(run::Flux1Job::start(job)?))
    }
}

/// An opened FLUX.1 model.
#[derive(Clone)]
pub struct Flux1 {
    clip: ModelPart<ClipConfig>,
    t5: ModelPart<T5Config>,
    dit: ModelPart<DitConfig>,
    vae: ModelPart<VaeConfig>,
    tokenizers: Arc<[ModelTokenizer; 2]>,
    sampler: FlowMatchConfig,
    defaults: JobDefaults,
    rgb_map: RgbMap,
    changed_bytes: Bytes,
}

impl Flux1 {
    fn from_parts(source: &OpenedSource, parts: Parts) -> Result<Flux1, ModelError> {
        let Parts { clip, t5, dit, vae, tokenizers: [first, second], sampler } = parts;
        let (clip, t5, dit, vae) = (clip?, t5?, dit?, vae?);
        check_widths(&clip, &t5, &dit, &vae)?;
        let tokenizers = Arc::new([first?, second?]);
        let sampler = sampler?;
        let defaults = family_defaults(dit.config.guidance_embeds);
        let rgb_map = published::flux1_colours();
        let (defaults, rgb_map) = defaults::own_or(source, defaults, rgb_map)?;
        let changed_bytes = Bytes::ZERO;
        Ok(Flux1 { clip, t5, dit, vae, tokenizers, sampler, defaults, rgb_map, changed_bytes })
    }

    /// The text encoder for the pooled embedding.
    pub fn clip(&self) -> &ClipConfig {
        &self.clip.config
    }

    /// The DiT.
    pub fn dit(&self) -> &DitConfig {
        &self.dit.config
    }

    /// The VAE.
    pub fn vae(&self) -> &VaeConfig {
        &self.vae.config
    }

    /// Pixels that width and height must be multiples of.
    fn side_multiple(&self) -> u32 {
        (PATCH * self.vae.config.scale()) as u32
    }

    /// Packed latent tokens of one picture.
    fn image_tokens(&self, job: &JobShape) -> usize {
        let [height, width] = self.vae.config.latent_size(job);
        (height / PATCH) * (width / PATCH)
    }
}

impl Model for Flux1 {
    fn family(&self) -> &'static str {
        FAMILY
    }

    fn components(&self) -> &'static [&'static str] {
        &COMPONENTS
    }

    fn text_encoders(&self) -> &'static [&'static str] {
        &TEXT_ENCODERS
    }

    fn tokenizers(&self) -> Vec<&ModelTokenizer> {
        self.tokenizers.iter().collect()
    }

    fn files(&self, component: &str) -> &Arc<WeightFiles> {
        match component {
            "clip" => &self.clip.files,
            "t5" => &self.t5.files,
            "dit" => &self.dit.files,
            "vae" | "vae_encoder" => &self.vae.files,
            other => panic!("no component named {other}"),
        }
    }

    fn whole_graphs(&self, job: &JobShape) -> Result<Vec<ComponentGraph>, ModelError> {
        job::check(job, self.side_multiple(), SEQUENCE_TOKENS_MAX)?;
        let mut graphs = Vec::new();
        let (batch, prompts) = (job.batch as usize, job.prompts());
        let text_tokens = job.max_sequence_length as usize;
        if !job.conditioned {
            let clip = self.clip.config.graph(&self.clip.files)?;
            graphs.push(ComponentGraph::one("clip", Phase::Condition, prompts, clip));
            let t5 = self.t5.config.graph(&self.t5.files, text_tokens)?;
            graphs.push(ComponentGraph::one("t5", Phase::Condition, prompts, t5));
        }
        let image_tokens = self.image_tokens(job);
        let dit = self.dit.config.graph(&self.dit.files, batch, text_tokens, image_tokens)?;
        let calls = job.passes() * job.calls_run();
        let items = StepItems::of(job, &[1, text_tokens, image_tokens]);
        let dit = ComponentGraph::one("dit", Phase::Denoise, calls, dit);
        graphs.push(ComponentGraph { items, ..dit });
        Ok(graphs)
    }

    fn vae_graphs(&self, job: &JobShape, options: &GraphOptions) -> Result<VaeGraphs, ModelError> {
        self.vae.config.graphs(&self.vae.files, job, options)
    }

    fn buffers(&self, job: &JobShape, options: &GraphOptions) -> Result<BufferPlan, ModelError> {
        let vae = &self.vae.config;
        let tiles = vae.tiles(job, options)?;
        let [prompts, passes] = [job.prompts(), job.passes()].map(|count| count as usize);
        let (clip, t5, dit) = (&self.clip.config, &self.t5.config, &self.dit.config);
        let text_tokens = job.max_sequence_length as usize;
        let image_tokens = self.image_tokens(job);
        let latents = [job.batch as usize, image_tokens, dit.in_channels];
        // Of embeddings that a job brings, the pooled state is there alone.
        let clip_tokens = if job.conditioned { 1 } else { clip.max_position_embeddings };
        let clip_hidden = [clip_tokens, clip.hidden_size];
        let rope = [text_tokens + image_tokens, dit.attention_head_dim / 2, 2];
        let mut buffers = vec![
            BufferSpec::floats(CLIP_HIDDEN, &clip_hidden).copies(prompts),
            BufferSpec::floats(TEXT_HIDDEN, &[text_tokens, t5.d_model]).copies(prompts),
            BufferSpec::floats(VELOCITY, &latents).copies(passes),
            BufferSpec::floats(LATENTS, &latents),
            BufferSpec::floats(ROPE, &rope),
        ];
        buffers.extend(BufferSpec::of_sampler(job, &latents)?);
        buffers.extend(vae.buffers(job, &tiles));
        let [height, width] = vae.latent_size(job);
        buffers.push(self.rgb_map.buffer([height, width, vae.latent_channels], options)?);
        Ok(BufferPlan(buffers))
    }

    fn lora_names(&self) -> Result<LoraNames, ModelError> {
        self.layer_names()
    }

    fn with_files(&self, files: &ComponentFiles, changed_bytes: Bytes) -> Arc<dyn Model> {
        let mut model = self.clone();
        model.clip.files = Arc::clone(&files["clip"]);
        model.t5.files = Arc::clone(&files["t5"]);
        model.dit.files = Arc::clone(&files["dit"]);
        model.changed_bytes = changed_bytes;
        Arc::new(model)
    }

    fn changed_bytes(&self) -> Bytes {
        self.changed_bytes
    }
}

/// The parts must fit: what one gives, the next takes.
fn check_widths(
    clip: &ModelPart<ClipConfig>,
    t5: &ModelPart<T5Config>,
    dit: &ModelPart<DitConfig>,
    vae: &ModelPart<VaeConfig>,
) -> Result<(), ModelError> {
    let limits = Limits::of(&dit.path);
    let dit = &dit.config;
    limits.fit(&[
        ("pooled_projection_dim", dit.pooled_projection_dim, clip.config.hidden_size),
        ("joint_attention_dim", dit.joint_attention_dim, t5.config.d_model),
        ("in_channels", dit.in_channels, PATCH * PATCH * vae.config.latent_channels),
    ])
}

/// What the model cards of FLUX.1-schnell and FLUX.1-dev recommend.
fn family_defaults(guidance_embeds: bool) -> JobDefaults {
    let (steps, max_sequence_length, guidance_scale) =
        if guidance_embeds { (28, 512, 3.5) } else { (4, 256, 0.0) };
    let true_cfg_scale = 1.0;
    JobDefaults {
        width: 1024,
        height: 1024,
        steps,
        max_sequence_length,
        guidance_scale,
        true_cfg_scale,
    }
}
