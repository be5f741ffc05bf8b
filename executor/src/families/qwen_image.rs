//! The Qwen-Image family: which parts it has, how they fit together, and its graphs and buffers for
//! a job.
//!
//! The DiT takes a text just as long as it is. Its graphs, and those of the text encoder, are one
//! for each multiple of so many tokens that a job's prompts may be filled up to; what fills them up
//! is hidden from all else.

mod dit;
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
use crate::components::text::decoder::DecoderConfig;
use crate::components::text::qwen_vl::QwenVlConfig;
use crate::components::vae::causal::CausalVaeConfig;
use crate::components::vae::job::VaeJob;
use crate::components::vae::published;
use crate::graph::Graph;
use crate::models::buffers::{BufferPlan, BufferSpec};
use crate::models::config::Limits;
use crate::models::rgb_map::RgbMap;
use crate::models::source::{ModelPart, OpenedSource, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::models::{ComponentFiles, ComponentGraph, Model, ModelError, VaeGraphs, defaults, job};
use crate::pipeline::{JobPhases, RunningJob};
use crate::sampling::FlowMatchConfig;
use crate::weights::lora::LoraNames;
use crate::weights::{WeightFiles, WeightsError};

use dit::QwenDitConfig;
use parts::{PARTS, QwenParts};
use prompts::{DROPPED, TOKENS_MULTIPLE, TemplatedPrompt, filled, lengths};

/// The family's name.
const FAMILY: &str = "qwen-image";

/// The component names, in the order in which they run; the first one only in a job that starts
/// from a picture.
const COMPONENTS: [&str; 4] = ["vae_encoder", "llm", "dit", "vae"];

/// Those of them that take prompts.
const TEXT_ENCODERS: [&str; 1] = ["llm"];

/// Cells of latents along a side of a token (`QwenImagePipeline._pack_latents`).
const PATCH: usize = 2;

// A job's buffers that are this family's own.

/// Qwen2.5-VL's last hidden states, a copy for each prompt: `[template and text tokens, features]`;
/// once it is encoded, the text's stand in front.
const TEXT_HIDDEN: &str = "text_hidden";

/// The DiT's result, a copy for each prompt: `[batch, image tokens, channels]`.
const VELOCITY: &str = "velocity";

/// Packed latents: `[batch, image tokens, channels]`.
const LATENTS: &str = "latents";

/// The text encoder's rotary table: `[template and text tokens, head width]`.
const LLM_ROPE: &str = "llm_rope";

/// The DiT's rotary table, a copy for each prompt: `[image tokens + text tokens, head width]`.
const ROPE: &str = "rope";

/// Most text tokens that `QwenImagePipeline` takes, and as many as it takes unasked.
const SEQUENCE_TOKENS_MAX: u32 = 1024;
const SEQUENCE_TOKENS: u32 = 512;

/// The entry in the registry.
pub struct QwenImageFamily;

impl Family for QwenImageFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn called(&self) -> &'static str {
        "Qwen-Image"
    }

    fn examples(&self) -> &'static str {
        "Qwen-Image"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["QwenImagePipeline", "QwenImageImg2ImgPipeline"]
    }

    fn parts(&self) -> &'static [PartSpec] {
        &PARTS
    }

    fn open(&self, source: &OpenedSource) -> Result<Arc<dyn Model>, ModelError> {
        source.check_used(&PARTS)?;
        Ok(Arc::new(QwenImage::from_parts(source, QwenParts::read(source))?))
    }

    fn describe(&self, source: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
        describe::describe(source, makes_tokenizers)
    }

    fn start(&self, job: &mut RunningJob<'_>) -> Result<Box<dyn JobPhases>, Failure> {
        Ok(Box::new(run::QwenImageJob::start(job)?))
    }
}

/// An opened Qwen-Image model.
#[derive(Clone)]
pub struct QwenImage {
    llm: ModelPart<QwenVlConfig>,
    dit: ModelPart<QwenDitConfig>,
    vae: ModelPart<CausalVaeConfig>,
    tokenizer: Arc<ModelTokenizer>,
    sampler: FlowMatchConfig,
    defaults: JobDefaults,
    rgb_map: RgbMap,
    changed_bytes: Bytes,
}

impl QwenImage {
    fn from_parts(source: &OpenedSource, parts: QwenParts) -> Result<QwenImage, ModelError> {
        let QwenParts { llm, dit, vae, tokenizer, sampler } = parts;
        let (llm, dit, vae) = (llm?, dit?, vae?);
        check_widths(&llm, &dit, &vae)?;
        let (tokenizer, sampler) = (Arc::new(tokenizer?), sampler?);
        let rgb_map = published::causal_colours();
        let (defaults, rgb_map) = defaults::own_or(source, DEFAULTS, rgb_map)?;
        let changed_bytes = Bytes::ZERO;
        Ok(QwenImage { llm, dit, vae, tokenizer, sampler, defaults, rgb_map, changed_bytes })
    }

    /// The text encoder.
    pub fn llm(&self) -> &DecoderConfig {
        &self.llm.config.0
    }

    /// What denoises, for tests of it alone.
    pub fn dit(&self) -> &QwenDitConfig {
        &self.dit.config
    }

    /// Between pictures and latents, likewise.
    pub fn vae(&self) -> &CausalVaeConfig {
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

    /// Checks that the pictures of a batch have one prompt, and one negative one: a graph takes
    /// texts of one length.
    fn check_prompts(job: &JobShape) -> Result<(), ModelError> {
        match job.more_prompts {
            0 => Ok(()),
            _ => Err(ModelError::Job(
                "pictures of one batch have the same prompt on Qwen-Image".to_owned(),
            )),
        }
    }

    /// Most tokens that the text encoder and the DiT take of a job's prompts.
    fn longest(job: &JobShape) -> [usize; 2] {
        let text = job.max_sequence_length as usize;
        [DROPPED + text, text]
    }

    /// The places of a prompt's graphs among those of the text encoder and of the DiT.
    fn variants(job: &JobShape, caption: &TemplatedPrompt) -> [usize; 2] {
        let [encoded, text] = QwenImage::longest(job);
        [(encoded, caption.length), (text, caption.text())].map(|(longest, tokens)| {
            let at = lengths(longest).position(|length| length == filled(tokens));
            at.expect("a prompt is cut to the job's longest")
        })
    }

    fn llm_graph(&self, tokens: usize) -> Result<Graph, WeightsError> {
        let llm = self.llm();
        llm.graph(&self.llm.files, tokens, llm.num_hidden_layers)
    }
}

impl Model for QwenImage {
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
        vec![&self.tokenizer]
    }

    fn files(&self, component: &str) -> &Arc<WeightFiles> {
        match component {
            "llm" => &self.llm.files,
            "dit" => &self.dit.files,
            "vae" | "vae_encoder" => &self.vae.files,
            other => panic!("no component named {other}"),
        }
    }

    fn whole_graphs(&self, job: &JobShape) -> Result<Vec<ComponentGraph>, ModelError> {
        job::check(job, self.side_multiple(), SEQUENCE_TOKENS_MAX)?;
        QwenImage::check_prompts(job)?;
        let [encoded, text] = QwenImage::longest(job);
        let mut graphs = Vec::new();
        if !job.conditioned {
            let llm = lengths(encoded).map(|tokens| self.llm_graph(tokens));
            graphs.push(ComponentGraph {
                name: "llm",
                phase: Phase::Condition,
                calls: job.prompts(),
                variants: llm.collect::<Result<_, _>>()?,
                nested: true,
                items: StepItems::ONE,
            });
        }
        let (batch, image_tokens) = (job.batch as usize, self.image_tokens(job));
        let (config, files) = (&self.dit.config, &self.dit.files);
        let dit = lengths(text).map(|tokens| config.graph(files, batch, tokens, image_tokens));
        graphs.push(ComponentGraph {
            name: "dit",
            phase: Phase::Denoise,
            calls: job.passes() * job.calls_run(),
            variants: dit.collect::<Result<_, _>>()?,
            nested: true,
            items: StepItems::of(job, &[1, TOKENS_MULTIPLE, image_tokens]),
        });
        Ok(graphs)
    }

    fn vae_graphs(&self, job: &JobShape, options: &GraphOptions) -> Result<VaeGraphs, ModelError> {
        self.vae.config.graphs(&self.vae.files, job, options)
    }

    fn buffers(&self, job: &JobShape, options: &GraphOptions) -> Result<BufferPlan, ModelError> {
        let vae = &self.vae.config;
        let tiles = vae.tiles(job, options)?;
        let prompts = job.prompts() as usize;
        let (llm, dit) = (self.llm(), &self.dit.config);
        let [encoded, text] = QwenImage::longest(job).map(filled);
        let latents = [job.batch as usize, self.image_tokens(job), dit.in_channels];
        let tokens = self.image_tokens(job) + text;
        let llm_runs = usize::from(!job.conditioned);
        let mut buffers = vec![
            BufferSpec::floats(TEXT_HIDDEN, &[encoded, llm.hidden_size]).copies(prompts),
            BufferSpec::floats(VELOCITY, &latents).copies(prompts),
            BufferSpec::floats(LATENTS, &latents),
            BufferSpec::floats(LLM_ROPE, &[encoded, llm.head_dim()]).copies(llm_runs),
            BufferSpec::floats(ROPE, &[tokens, dit.attention_head_dim]).copies(prompts),
        ];
        buffers.extend(BufferSpec::of_sampler(job, &latents)?);
        buffers.extend(vae.buffers(job, &tiles));
        let [height, width] = vae.latent_size(job);
        buffers.push(self.rgb_map.buffer([height, width, vae.z_dim], options)?);
        Ok(BufferPlan(buffers))
    }

    fn lora_names(&self) -> Result<LoraNames, ModelError> {
        self.layer_names()
    }

    fn with_files(&self, files: &ComponentFiles, changed_bytes: Bytes) -> Arc<dyn Model> {
        let mut model = self.clone();
        model.llm.files = Arc::clone(&files["llm"]);
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
    llm: &ModelPart<QwenVlConfig>,
    dit: &ModelPart<QwenDitConfig>,
    vae: &ModelPart<CausalVaeConfig>,
) -> Result<(), ModelError> {
    let limits = Limits::of(&dit.path);
    limits.fit(&[
        ("joint_attention_dim", dit.config.joint_attention_dim, llm.config.0.hidden_size),
        ("in_channels", dit.config.in_channels, PATCH * PATCH * vae.config.z_dim),
    ])
}

/// What `QwenImagePipeline` does unasked; `guidance_scale` is nothing to its models.
const DEFAULTS: JobDefaults = JobDefaults {
    width: 1024,
    height: 1024,
    steps: 50,
    max_sequence_length: SEQUENCE_TOKENS,
    guidance_scale: 1.0,
    true_cfg_scale: 4.0,
};
