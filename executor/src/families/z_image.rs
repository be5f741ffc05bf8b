//! The Z-Image family: which parts it has, how they fit together, and its graphs and buffers for a
//! job.
//!
//! The DiT takes a caption just as long as it is, filled up to a multiple of 32 tokens: its graphs,
//! and those of the text encoder, are one for each such length that a job's prompts may have.

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
use crate::components::text::decoder::DecoderConfig;
use crate::components::vae::job::VaeJob;
use crate::components::vae::kl::VaeConfig;
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

use dit::{TOKENS_MULTIPLE, ZImageDitConfig};
use parts::{PARTS, ZImageParts};
use prompts::{Caption, caption_tokens};

/// The family's name.
const FAMILY: &str = "z-image";

/// The component names, in the order in which they run; the first one only in a job that starts
/// from a picture.
const COMPONENTS: [&str; 4] = ["vae_encoder", "llm", "dit", "vae"];

/// Those of them that take prompts.
const TEXT_ENCODERS: [&str; 1] = ["llm"];

/// Cells of latents along a side of a token (`all_patch_size`).
const PATCH: usize = 2;

// A job's buffers that are this family's own.

/// Qwen3's hidden states, a copy for each prompt: `[caption tokens, features]`.
const TEXT_HIDDEN: &str = "text_hidden";

/// The DiT's result, a copy for each prompt: `[batch, image tokens, channels]`.
const PREDICTION: &str = "prediction";

/// Packed latents: `[batch, image tokens, channels]`.
const LATENTS: &str = "latents";

/// The text encoder's rotary table: `[caption tokens, head width]`.
const LLM_ROPE: &str = "llm_rope";

/// The DiT's rotary table, a copy for each prompt: `[image tokens filled up + caption tokens, head
/// width]`.
const ROPE: &str = "rope";

/// Most text tokens that `ZImagePipeline` takes unasked.
const SEQUENCE_TOKENS_MAX: u32 = 512;

/// The largest shift of noise levels that a model for few steps has: Z-Image-Turbo's, where
/// Z-Image's is 6.
const TURBO_SHIFT_MAX: f64 = 4.0;

/// The entry in the registry.
pub struct ZImageFamily;

impl Family for ZImageFamily {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn called(&self) -> &'static str {
        "Z-Image"
    }

    fn examples(&self) -> &'static str {
        "Z-Image-Turbo"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["ZImagePipeline", "ZImageImg2ImgPipeline"]
    }

    fn parts(&self) -> &'static [PartSpec] {
        &PARTS
    }

    fn open(&self, source: &OpenedSource) -> Result<Arc<dyn Model>, ModelError> {
        source.check_used(&PARTS)?;
        Ok(Arc::new(ZImage::from_parts(source, ZImageParts::read(source))?))
    }

    fn describe(&self, source: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
        describe::describe(source, makes_tokenizers)
    }

    fn start(&self, job: &mut RunningJob<'_>) -> Result<Box<dyn JobPhases>, Failure> {
        Ok(Box::new(run::ZImageJob::start(job)?))
    }
}

/// An opened Z-Image model.
#[derive(Clone)]
pub struct ZImage {
    llm: ModelPart<DecoderConfig>,
    dit: ModelPart<ZImageDitConfig>,
    vae: ModelPart<VaeConfig>,
    tokenizer: Arc<ModelTokenizer>,
    sampler: FlowMatchConfig,
    defaults: JobDefaults,
    rgb_map: RgbMap,
    changed_bytes: Bytes,
}

impl ZImage {
    fn from_parts(source: &OpenedSource, parts: ZImageParts) -> Result<ZImage, ModelError> {
        let ZImageParts { llm, dit, vae, tokenizer, sampler } = parts;
        let (llm, dit, vae) = (llm?, dit?, vae?);
        check_widths(&llm, &dit, &vae)?;
        let (tokenizer, sampler) = (Arc::new(tokenizer?), sampler?);
        let defaults = family_defaults(Some(&sampler));
        // Its VAE is FLUX.1's.
        let rgb_map = published::flux1_colours();
        let (defaults, rgb_map) = defaults::own_or(source, defaults, rgb_map)?;
        let changed_bytes = Bytes::ZERO;
        Ok(ZImage { llm, dit, vae, tokenizer, sampler, defaults, rgb_map, changed_bytes })
    }

    /// The text encoder.
    pub fn llm(&self) -> &DecoderConfig {
        &self.llm.config
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

    /// The same with what fills them up.
    fn image_tokens_filled(&self, job: &JobShape) -> usize {
        self.image_tokens(job).next_multiple_of(TOKENS_MULTIPLE)
    }

    /// Checks that the pictures of a batch have one prompt, and one negative one: a graph takes
    /// captions of one length.
    fn check_prompts(job: &JobShape) -> Result<(), ModelError> {
        match job.more_prompts {
            0 => Ok(()),
            _ => Err(ModelError::Job(
                "pictures of one batch have the same prompt on Z-Image".to_owned(),
            )),
        }
    }

    /// The lengths that a job's captions may have, filled up, the longest first.
    fn caption_lengths(job: &JobShape) -> impl Iterator<Item = usize> {
        let longest = caption_tokens(job.max_sequence_length as usize);
        (1..=longest / TOKENS_MULTIPLE).rev().map(|count| count * TOKENS_MULTIPLE)
    }

    /// The place among these of a caption's.
    fn variant(&self, job: &JobShape, caption: &Caption) -> usize {
        let at = ZImage::caption_lengths(job).position(|tokens| tokens == caption.tokens());
        at.expect("a caption is cut to the job's longest")
    }

    fn llm_graph(&self, tokens: usize) -> Result<Graph, WeightsError> {
        let config = &self.llm.config;
        config.graph(&self.llm.files, tokens, llm_layers(config))
    }
}

/// The layers of the text encoder that run: all but the last (`hidden_states[-2]`).
fn llm_layers(config: &DecoderConfig) -> usize {
    config.num_hidden_layers - 1
}

impl Model for ZImage {
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
        ZImage::check_prompts(job)?;
        let mut graphs = Vec::new();
        if !job.conditioned {
            let llm = ZImage::caption_lengths(job).map(|tokens| self.llm_graph(tokens));
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
        let rows = [1, TOKENS_MULTIPLE, image_tokens, self.image_tokens_filled(job)];
        let dit = ZImage::caption_lengths(job)
            .map(|tokens| config.graph(files, batch, tokens, image_tokens));
        graphs.push(ComponentGraph {
            name: "dit",
            phase: Phase::Denoise,
            calls: job.passes() * job.calls_run(),
            variants: dit.collect::<Result<_, _>>()?,
            nested: true,
            items: StepItems::of(job, &rows),
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
        let (llm, dit) = (&self.llm.config, &self.dit.config);
        let text_tokens = caption_tokens(job.max_sequence_length as usize);
        let latents = [job.batch as usize, self.image_tokens(job), dit.token_features()];
        let tokens = self.image_tokens_filled(job) + text_tokens;
        let llm_runs = usize::from(!job.conditioned);
        let mut buffers = vec![
            BufferSpec::floats(TEXT_HIDDEN, &[text_tokens, llm.hidden_size]).copies(prompts),
            BufferSpec::floats(PREDICTION, &latents).copies(prompts),
            BufferSpec::floats(LATENTS, &latents),
            BufferSpec::floats(LLM_ROPE, &[text_tokens, llm.head_dim()]).copies(llm_runs),
            BufferSpec::floats(ROPE, &[tokens, dit.head_dim()]).copies(prompts),
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
    llm: &ModelPart<DecoderConfig>,
    dit: &ModelPart<ZImageDitConfig>,
    vae: &ModelPart<VaeConfig>,
) -> Result<(), ModelError> {
    let limits = Limits::of(&dit.path);
    limits.fit(&[
        ("cap_feat_dim", dit.config.cap_feat_dim, llm.config.hidden_size),
        ("in_channels", dit.config.in_channels, vae.config.latent_channels),
    ])
}

/// What the model card of Z-Image-Turbo recommends, by eight calls of the DiT; of Z-Image, which
/// its sampler tells, what `ZImagePipeline` does unasked.
fn family_defaults(sampler: Option<&FlowMatchConfig>) -> JobDefaults {
    let shift = sampler.and_then(FlowMatchConfig::static_shift);
    let is_turbo = shift.is_none_or(|shift| shift < TURBO_SHIFT_MAX);
    let (steps, guidance_scale) = if is_turbo { (8, 0.0) } else { (50, 5.0) };
    JobDefaults {
        width: 1024,
        height: 1024,
        steps,
        max_sequence_length: SEQUENCE_TOKENS_MAX,
        guidance_scale,
        true_cfg_scale: 1.0 + guidance_scale,
    }
}
