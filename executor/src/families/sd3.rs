//! The family of Stable Diffusion 3 and 3.5: which parts it has, how they fit together, and its
//! graphs and buffers for a job.
//!
//! The transformer takes one sequence of text: the states of both CLIP side by side, filled up with
//! zeros to the width of T5, then those of T5; where the model is to do without T5, zeros stand in
//! their place. Nothing of it is masked.

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

use dit::Sd3DitConfig;
use parts::{PARTS, Sd3Parts};

/// The family's name.
const FAMILY: &str = "sd3";

/// The component names, in the order in which they run; the first one only in a job that starts
/// from a picture.
const COMPONENTS: [&str; 6] = ["vae_encoder", "clip_l", "clip_g", "t5", "dit", "vae"];
const COMPONENTS_WITHOUT_T5: [&str; 5] = ["vae_encoder", "clip_l", "clip_g", "dit", "vae"];

/// Those of them that take prompts; T5 stands last.
const TEXT_ENCODERS: [&str; 3] = ["clip_l", "clip_g", "t5"];

// A job's buffers that are this family's own.

/// The sequence that the transformer takes, a copy for each prompt: `[CLIP's tokens + text tokens,
/// features]`.
const TEXT_STATES: &str = "text_states";

/// The pooled embeddings of both CLIP, side by side, a copy for each prompt: `[features]`.
const POOLED: &str = "pooled";

/// What a CLIP gives of one prompt: `[tokens, features]`.
const CLIP_STATES: &str = "clip_states";

/// The transformer's result, a copy for each of its passes in a step: `[batch, image tokens,
/// channels]`.
const VELOCITY: &str = "velocity";

/// Packed latents: `[batch, image tokens, channels]`.
const LATENTS: &str = "latents";

/// The positions of a picture's tokens: `[image tokens, features]`.
const POSITIONS: &str = "positions";

/// Most text tokens that `StableDiffusion3Pipeline` takes, and as many as it takes unasked.
const SEQUENCE_TOKENS_MAX: u32 = 512;
const SEQUENCE_TOKENS: u32 = 256;

/// The entry in the registry.
pub struct Sd3Family;

impl Family for Sd3Family {
    fn name(&self) -> &'static str {
        FAMILY
    }

    fn called(&self) -> &'static str {
        "Stable Diffusion 3"
    }

    fn examples(&self) -> &'static str {
        "Stable Diffusion 3.5"
    }

    fn classes(&self) -> &'static [&'static str] {
        &["StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline"]
    }

    fn parts(&self) -> &'static [PartSpec] {
        &PARTS
    }

    fn open(&self, source: &OpenedSource) -> Result<Arc<dyn Model>, ModelError> {
        source.check_used(&PARTS)?;
        Ok(Arc::new(Sd3::from_parts(source, Sd3Parts::read(source))?))
    }

    fn describe(&self, source: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
        describe::describe(source, makes_tokenizers)
    }

    fn start(&self, job: &mut RunningJob<'_>) -> Result<Box<dyn JobPhases>, Failure> {
        Ok(Box::new(run::Sd3Job::start(job)?))
    }
}

/// An opened model.
#[derive(Clone)]
pub struct Sd3 {
    clip_l: ModelPart<ClipConfig>,
    clip_g: ModelPart<ClipConfig>,
    t5: Option<ModelPart<T5Config>>,
    dit: ModelPart<Sd3DitConfig>,
    vae: ModelPart<VaeConfig>,
    tokenizers: Arc<Sd3Tokenizers>,
    sampler: FlowMatchConfig,
    defaults: JobDefaults,
    rgb_map: RgbMap,
    changed_bytes: Bytes,
}

/// The tokenizers of the text encoders.
struct Sd3Tokenizers {
    /// CLIP-L's, CLIP-G's.
    clip: [ModelTokenizer; 2],
    t5: Option<ModelTokenizer>,
}

impl Sd3 {
    fn from_parts(source: &OpenedSource, parts: Sd3Parts) -> Result<Sd3, ModelError> {
        let Sd3Parts { clip_l, clip_g, t5, dit, vae, clip_tokenizers, t5_tokenizer, sampler } =
            parts;
        let (clip_l, clip_g, t5) = (clip_l?, clip_g?, t5.transpose()?);
        let (dit, vae) = (dit?, vae?);
        check_widths([&clip_l, &clip_g], t5.as_ref(), &dit, &vae)?;
        let [first, second] = clip_tokenizers;
        let tokenizers = Sd3Tokenizers { clip: [first?, second?], t5: t5_tokenizer.transpose()? };
        let tokenizers = Arc::new(tokenizers);
        let sampler = sampler?;
        let defaults = family_defaults(Some(&dit.config));
        let rgb_map = published::sd3_colours();
        let (defaults, rgb_map) = defaults::own_or(source, defaults, rgb_map)?;
        let changed_bytes = Bytes::ZERO;
        Ok(Sd3 {
            clip_l,
            clip_g,
            t5,
            dit,
            vae,
            tokenizers,
            sampler,
            defaults,
            rgb_map,
            changed_bytes,
        })
    }

    /// Its graphs and the range of its latents.
    pub fn vae(&self) -> &VaeConfig {
        &self.vae.config
    }

    /// Both CLIP, in the order of the transformer's text.
    fn clip(&self) -> [&ModelPart<ClipConfig>; 2] {
        [&self.clip_l, &self.clip_g]
    }

    /// Pixels that width and height must be multiples of.
    fn side_multiple(&self) -> u32 {
        (self.dit.config.patch_size * self.vae.config.scale()) as u32
    }

    /// Rows and columns of one picture's tokens.
    fn image_grid(&self, job: &JobShape) -> [usize; 2] {
        self.vae.config.latent_size(job).map(|cells| cells / self.dit.config.patch_size)
    }

    /// Packed latent tokens of one picture.
    fn image_tokens(&self, job: &JobShape) -> usize {
        self.image_grid(job).into_iter().product()
    }

    /// Tokens of CLIP's part of the transformer's text.
    fn clip_tokens(&self) -> usize {
        self.clip_l.config.max_position_embeddings
    }

    /// Tokens of the transformer's text.
    fn text_tokens(&self, job: &JobShape) -> usize {
        self.clip_tokens() + job.max_sequence_length as usize
    }

    fn check_job(&self, job: &JobShape) -> Result<(), ModelError> {
        job::check(job, self.side_multiple(), SEQUENCE_TOKENS_MAX)?;
        let most = self.dit.config.pos_embed_max_size;
        if self.image_grid(job).into_iter().all(|side| side <= most) {
            return Ok(());
        }
        let (width, height, side) = (job.width, job.height, most * self.side_multiple() as usize);
        Err(ModelError::Job(format!(
            "{width}x{height} is beyond this model's positions, which are those of {side}x{side}; hint: \
             use --width and --height up to {side}"
        )))
    }
}

impl Model for Sd3 {
    fn family(&self) -> &'static str {
        FAMILY
    }

    fn components(&self) -> &'static [&'static str] {
        match self.t5 {
            Some(_) => &COMPONENTS,
            None => &COMPONENTS_WITHOUT_T5,
        }
    }

    fn text_encoders(&self) -> &'static [&'static str] {
        match self.t5 {
            Some(_) => &TEXT_ENCODERS,
            None => TEXT_ENCODERS.split_at(2).0,
        }
    }

    fn tokenizers(&self) -> Vec<&ModelTokenizer> {
        self.tokenizers.clip.iter().chain(&self.tokenizers.t5).collect()
    }

    fn files(&self, component: &str) -> &Arc<WeightFiles> {
        match (component, &self.t5) {
            ("clip_l", _) => &self.clip_l.files,
            ("clip_g", _) => &self.clip_g.files,
            ("t5", Some(t5)) => &t5.files,
            ("dit", _) => &self.dit.files,
            ("vae" | "vae_encoder", _) => &self.vae.files,
            (other, _) => panic!("no component named {other}"),
        }
    }

    fn whole_graphs(&self, job: &JobShape) -> Result<Vec<ComponentGraph>, ModelError> {
        self.check_job(job)?;
        let mut graphs = Vec::new();
        let (batch, prompts) = (job.batch as usize, job.prompts());
        if !job.conditioned {
            for (name, part) in TEXT_ENCODERS.into_iter().zip(self.clip()) {
                let graph = part.config.graph_with_embedding(&part.files)?;
                graphs.push(ComponentGraph::one(name, Phase::Condition, prompts, graph));
            }
            if let Some(t5) = &self.t5 {
                let graph = t5.config.graph(&t5.files, job.max_sequence_length as usize)?;
                graphs.push(ComponentGraph::one("t5", Phase::Condition, prompts, graph));
            }
        }
        let (text_tokens, image_tokens) = (self.text_tokens(job), self.image_tokens(job));
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
        let dit = &self.dit.config;
        let image_tokens = self.image_tokens(job);
        let latents = [job.batch as usize, image_tokens, dit.token_features()];
        let text = [self.text_tokens(job), dit.joint_attention_dim];
        let widths =
            self.clip().map(|part| part.config.hidden_size.max(part.config.embedding_dim()));
        let clip = [self.clip_tokens(), widths[0].max(widths[1])];
        let clip_runs = usize::from(!job.conditioned);
        let mut buffers = vec![
            BufferSpec::floats(TEXT_STATES, &text).copies(prompts),
            BufferSpec::floats(POOLED, &[dit.pooled_projection_dim]).copies(prompts),
            BufferSpec::floats(CLIP_STATES, &clip).copies(clip_runs),
            BufferSpec::floats(VELOCITY, &latents).copies(passes),
            BufferSpec::floats(LATENTS, &latents),
            BufferSpec::floats(POSITIONS, &[image_tokens, dit.hidden()]),
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
        model.clip_l.files = Arc::clone(&files["clip_l"]);
        model.clip_g.files = Arc::clone(&files["clip_g"]);
        if let Some(t5) = &mut model.t5 {
            t5.files = Arc::clone(&files["t5"]);
        }
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
    [clip_l, clip_g]: [&ModelPart<ClipConfig>; 2],
    t5: Option<&ModelPart<T5Config>>,
    dit: &ModelPart<Sd3DitConfig>,
    vae: &ModelPart<VaeConfig>,
) -> Result<(), ModelError> {
    let (clip_l, clip_g) = (&clip_l.config, &clip_g.config);
    let limits = Limits::of(&dit.path);
    let dit = &dit.config;
    let t5_width = t5.map_or(dit.joint_attention_dim, |t5| t5.config.d_model);
    limits.fit(&[
        ("joint_attention_dim", dit.joint_attention_dim, t5_width),
        (
            "pooled_projection_dim",
            dit.pooled_projection_dim,
            clip_l.embedding_dim() + clip_g.embedding_dim(),
        ),
        ("in_channels", dit.in_channels, vae.config.latent_channels),
    ])?;
    let clip_width = clip_l.hidden_size + clip_g.hidden_size;
    limits.holds(clip_width <= dit.joint_attention_dim, || {
        format!("joint_attention_dim is {}, both CLIP give {clip_width}", dit.joint_attention_dim)
    })?;
    let tokens = [clip_l, clip_g].map(|clip| clip.max_position_embeddings);
    limits.holds(tokens[0] == tokens[1], || {
        format!("CLIP-L takes {} tokens, CLIP-G {}", tokens[0], tokens[1])
    })
}

/// What the model cards of 3.5-medium, 3.5-large and 3-medium recommend, which their transformers
/// tell apart.
fn family_defaults(dit: Option<&Sd3DitConfig>) -> JobDefaults {
    let (steps, guidance_scale) = match dit {
        Some(dit) if !dit.dual_attention_layers.is_empty() => (40, 4.5),
        Some(dit) if dit.qk_norm.is_some() => (28, 3.5),
        _ => (28, 7.0),
    };
    JobDefaults {
        width: 1024,
        height: 1024,
        steps,
        max_sequence_length: SEQUENCE_TOKENS,
        guidance_scale,
        true_cfg_scale: guidance_scale,
    }
}
