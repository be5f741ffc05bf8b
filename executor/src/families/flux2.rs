//! The FLUX.2 klein family: which parts it has, how they fit together, and its graphs and buffers
//! for a job.
//!
//! The DiT attends what a prompt is filled up with, so the text encoder computes states for that
//! too, just as diffusers has them: no token of the prompt sees it, and it does not see itself.

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
use crate::components::vae::flux2::{Flux2VaeConfig, PATCH};
use crate::components::vae::job::VaeJob;
use crate::components::vae::kl::VaeConfig;
use crate::components::vae::published;
use crate::graph::Graph;
use crate::models::buffers::{BufferPlan, BufferSpec};
use crate::models::config::Limits;
use crate::models::rgb_map::RgbMap;
use crate::models::source::{Directory, ModelPart, OpenedSource, PartSpec};
use crate::models::tokenizers::ModelTokenizer;
use crate::models::{ComponentFiles, ComponentGraph, Model, ModelError, VaeGraphs, defaults, job};
use crate::pipeline::{JobPhases, RunningJob};
use crate::sampling::FlowMatchConfig;
use crate::weights::lora::LoraNames;
use crate::weights::{WeightFiles, WeightsError};

use dit::Flux2DitConfig;
use parts::{Flux2Parts, PARTS};

/// The family's name.
const FAMILY: &str = "flux2";

/// The component names, in the order in which they run; the first one only in a job that starts
/// from a picture.
const COMPONENTS: [&str; 4] = ["vae_encoder", "llm", "dit", "vae"];

/// Those of them that take prompts.
const TEXT_ENCODERS: [&str; 1] = ["llm"];

/// The text encoder's states that the DiT takes, one beside the other: outputs of its graph, and
/// the layers that give them (`text_encoder_out_layers` of `Flux2KleinPipeline`).
const STATES: [(&str, usize); 3] =
    [("hidden_state_9", 9), ("hidden_state_18", 18), ("hidden_state_27", 27)];

// A job's buffers that are this family's own.

/// Qwen3's states side by side, a copy for each prompt: `[text tokens, states × features]`.
const TEXT_HIDDEN: &str = "text_hidden";

/// One of these states: `[text tokens, features]`.
const TEXT_STATE: &str = "text_state";

/// The DiT's result, a copy for each of its passes in a step: `[batch, image tokens, channels]`.
const VELOCITY: &str = "velocity";

/// Packed latents: `[batch, image tokens, channels]`.
const LATENTS: &str = "latents";

/// The text encoder's rotary table: `[text tokens, head width]`.
const LLM_ROPE: &str = "llm_rope";

/// The DiT's rotary table: `[text tokens + image tokens, head width]`.
const ROPE: &str = "rope";

/// Most text tokens that `Flux2KleinPipeline` takes unasked (`tokenizer_max_length`).
const SEQUENCE_TOKENS_MAX: u32 = 512;

/// What a model index says of models that are distilled for few steps without guidance.
const IS_DISTILLED: &str = "is_distilled";

/// The entry in the registry.
pub struct Flux2Family;

impl Family for Flux2Family {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn called(&self) -> &'static str {
        "FLUX.2 klein"
    }

    fn examples(&self) -> &'static str {
        "FLUX.2-klein-4B"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Flux2KleinPipeline"]
    }

    fn parts(&self) -> &'static [PartSpec] {
        &PARTS
    }

    fn open(&self, source: &OpenedSource) -> Result<Arc<dyn Model>, ModelError> {
        source.check_used(&PARTS)?;
        Ok(Arc::new(Flux2::from_parts(source, Flux2Parts::read(source))?))
    }

    fn describe(&self, source: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
        describe::describe(source, makes_tokenizers)
    }

    fn start(&self, job: &mut RunningJob<'_>) -> Result<Box<dyn JobPhases>, Failure> {
        Ok(Box::new(run::Flux2Job::start(job)?))
    }
}

/// An opened FLUX.2 klein model.
#[derive(Clone)]
pub struct Flux2 {
    llm: ModelPart<DecoderConfig>,
    dit: ModelPart<Flux2DitConfig>,
    vae: ModelPart<Flux2VaeConfig>,
    tokenizer: Arc<ModelTokenizer>,
    sampler: FlowMatchConfig,
    defaults: JobDefaults,
    rgb_map: RgbMap,
    changed_bytes: Bytes,
}

impl Flux2 {
    fn from_parts(source: &OpenedSource, parts: Flux2Parts) -> Result<Flux2, ModelError> {
        let Flux2Parts { llm, dit, vae, tokenizer, sampler } = parts;
        let (llm, dit, vae) = (llm?, dit?, vae?);
        check_parts(&llm, &dit, &vae)?;
        let (tokenizer, sampler) = (Arc::new(tokenizer?), sampler?);
        let defaults = family_defaults(is_distilled(source));
        let rgb_map = published::flux2_colours();
        let (defaults, rgb_map) = defaults::own_or(source, defaults, rgb_map)?;
        let changed_bytes = Bytes::ZERO;
        Ok(Flux2 { llm, dit, vae, tokenizer, sampler, defaults, rgb_map, changed_bytes })
    }

    /// The VAE, between pictures and latents that are not normalised.
    pub fn vae(&self) -> &VaeConfig {
        &self.vae.config.kl
    }

    /// Pixels that width and height must be multiples of.
    fn side_multiple(&self) -> u32 {
        (PATCH * self.vae.config.kl.scale()) as u32
    }

    /// Packed latent tokens of one picture.
    fn image_tokens(&self, job: &JobShape) -> usize {
        let [height, width] = self.vae.config.kl.latent_size(job);
        (height / PATCH) * (width / PATCH)
    }

    fn llm_graph(&self, tokens: usize) -> Result<Graph, WeightsError> {
        llm_graph(&self.llm.config, &self.llm.files, tokens)
    }
}

/// The text encoder's graph: layers behind the last state that is taken neither run nor count.
fn llm_graph(
    config: &DecoderConfig,
    files: &WeightFiles,
    tokens: usize,
) -> Result<Graph, WeightsError> {
    config.states_graph(files, tokens, &STATES, true)
}

impl Model for Flux2 {
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
        let mut graphs = Vec::new();
        let text_tokens = job.max_sequence_length as usize;
        if !job.conditioned {
            let llm = self.llm_graph(text_tokens)?;
            graphs.push(ComponentGraph::one("llm", Phase::Condition, job.prompts(), llm));
        }
        let (batch, image_tokens) = (job.batch as usize, self.image_tokens(job));
        let dit = self.dit.config.graph(&self.dit.files, batch, text_tokens, image_tokens)?;
        let calls = job.passes() * job.calls_run();
        let items = StepItems::of(job, &[1, text_tokens, image_tokens]);
        let dit = ComponentGraph::one("dit", Phase::Denoise, calls, dit);
        graphs.push(ComponentGraph { items, ..dit });
        Ok(graphs)
    }

    fn vae_graphs(&self, job: &JobShape, options: &GraphOptions) -> Result<VaeGraphs, ModelError> {
        self.vae.config.kl.graphs(&self.vae.files, job, options)
    }

    fn buffers(&self, job: &JobShape, options: &GraphOptions) -> Result<BufferPlan, ModelError> {
        let vae = &self.vae.config.kl;
        let tiles = vae.tiles(job, options)?;
        let [prompts, passes] = [job.prompts(), job.passes()].map(|count| count as usize);
        let (llm, dit) = (&self.llm.config, &self.dit.config);
        let text_tokens = job.max_sequence_length as usize;
        let image_tokens = self.image_tokens(job);
        let latents = [job.batch as usize, image_tokens, dit.in_channels];
        let llm_runs = usize::from(!job.conditioned);
        let rope = [text_tokens + image_tokens, dit.attention_head_dim];
        let mut buffers = vec![
            BufferSpec::floats(TEXT_HIDDEN, &[text_tokens, dit.joint_attention_dim])
                .copies(prompts),
            BufferSpec::floats(TEXT_STATE, &[text_tokens, llm.hidden_size]).copies(llm_runs),
            BufferSpec::floats(VELOCITY, &latents).copies(passes),
            BufferSpec::floats(LATENTS, &latents),
            BufferSpec::floats(LLM_ROPE, &[text_tokens, llm.head_dim()]).copies(llm_runs),
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
fn check_parts(
    llm: &ModelPart<DecoderConfig>,
    dit: &ModelPart<Flux2DitConfig>,
    vae: &ModelPart<Flux2VaeConfig>,
) -> Result<(), ModelError> {
    Limits::of(&dit.path).fit(&[
        (
            "joint_attention_dim",
            dit.config.joint_attention_dim,
            STATES.len() * llm.config.hidden_size,
        ),
        ("in_channels", dit.config.in_channels, vae.config.token_features()),
    ])?;
    Ok(vae.config.check_statistics(&vae.files)?)
}

/// Whether a model is distilled for few steps without guidance: its directory says it, and files
/// without one are taken for the published models that most people have.
fn is_distilled(source: &OpenedSource) -> bool {
    let says = |directory: &Directory| {
        // What the index leaves out is not so, by the pipeline's own default.
        directory.index.says(IS_DISTILLED).unwrap_or(false)
    };
    source.directory.as_ref().is_none_or(says)
}

/// What the model cards of the distilled FLUX.2 klein models recommend, and of their base models.
fn family_defaults(is_distilled: bool) -> JobDefaults {
    let (steps, true_cfg_scale) = if is_distilled { (4, 1.0) } else { (50, 4.0) };
    JobDefaults {
        width: 1024,
        height: 1024,
        steps,
        max_sequence_length: SEQUENCE_TOKENS_MAX,
        guidance_scale: true_cfg_scale,
        true_cfg_scale,
    }
}
