//! The FLUX.1 family: which parts it has, and how they fit together.

mod describe;
mod lora;
mod names;
mod parts;
mod preview;
mod single;

use std::path::Path;
use std::sync::Arc;

use protocol::profile::JobDefaults;
use protocol::{Bytes, GraphOptions, JobShape, Phase};

use super::clip::ClipConfig;
use super::config::Limits;
use super::source::{Opened, Part};
use super::t5::T5Config;
use super::transformer::TransformerConfig;
use super::vae::VaeConfig;
use super::vae::tiles::TileGrid;
use super::{ComponentGraph, ModelError, defaults};
use crate::graph::Graph;
use crate::job::{JobLayout, TileLayout};
use crate::sampler::FlowMatchConfig;
use crate::tokenizer::Tokenizer;
use crate::weights::WeightFiles;

use parts::Parts;

pub use names::{is_dit, is_other_dit};
pub use parts::HELD;

pub use describe::describe;
pub use preview::RgbMap;

/// The family's name.
pub const FAMILY: &str = "flux";

/// The pipeline class of the family's model index.
pub const CLASS: &str = "FluxPipeline";

/// The component names, in the order in which they run; the first one only in a job that starts from a picture.
pub const COMPONENTS: [&str; 5] = ["vae_encoder", "clip", "t5", "dit", "vae"];

/// The flag that names a file with the DiT.
pub const DIT_FLAG: &str = parts::TRANSFORMER.flag;

/// Pixels of a packed latent token along a side, in latent cells (`FluxPipeline._pack_latents`).
pub const PATCH: usize = 2;

/// Red, green, blue.
const PICTURE_CHANNELS: usize = 3;

/// Most text tokens that `FluxPipeline` takes.
const SEQUENCE_TOKENS_MAX: u32 = 512;

/// An opened FLUX.1 model.
#[derive(Clone)]
pub struct Flux {
    clip: Part<ClipConfig>,
    t5: Part<T5Config>,
    transformer: Part<TransformerConfig>,
    vae: Part<VaeConfig>,
    tokenizers: Arc<[Tokenizer; 2]>,
    sampler: FlowMatchConfig,
    defaults: JobDefaults,
    rgb_map: RgbMap,
    changed_bytes: Bytes,
}

impl Flux {
    /// Opens a source whose files are open already; whatever is wrong with any part is an error.
    pub fn open(opened: &Opened) -> Result<Flux, ModelError> {
        parts::check_used(opened)?;
        Flux::from_parts(opened, Parts::read(opened))
    }

    fn from_parts(opened: &Opened, parts: Parts) -> Result<Flux, ModelError> {
        let Parts { clip, t5, transformer, vae, tokenizers: [first, second], sampler } = parts;
        let (clip, t5, transformer, vae) = (clip?, t5?, transformer?, vae?);
        check_widths(&clip, &t5, &transformer, &vae)?;
        let tokenizers = Arc::new([first?, second?]);
        let sampler = sampler?;
        let mut defaults = family_defaults(transformer.config.guidance_embeds);
        let mut rgb_map = RgbMap::published();
        if let Some(directory) = &opened.directory {
            let own;
            (defaults, own) = defaults::read(&directory.path, defaults)?;
            rgb_map = own.unwrap_or(rgb_map);
        }
        let changed_bytes = Bytes::ZERO;
        Ok(Flux {
            clip,
            t5,
            transformer,
            vae,
            tokenizers,
            sampler,
            defaults,
            rgb_map,
            changed_bytes,
        })
    }

    /// The text encoder for the pooled embedding.
    pub fn clip(&self) -> &ClipConfig {
        &self.clip.config
    }

    /// The text encoder for the sequence of embeddings.
    pub fn t5(&self) -> &T5Config {
        &self.t5.config
    }

    /// The DiT.
    pub fn transformer(&self) -> &TransformerConfig {
        &self.transformer.config
    }

    /// The VAE.
    pub fn vae(&self) -> &VaeConfig {
        &self.vae.config
    }

    /// Pages of weight files that LoRA changes, which are the process's own.
    pub fn changed_bytes(&self) -> Bytes {
        self.changed_bytes
    }

    /// What previews are told by: the directory's own map, or else the published models'.
    pub fn rgb_map(&self) -> &RgbMap {
        &self.rgb_map
    }

    /// The sampler's configuration.
    pub fn sampler(&self) -> &FlowMatchConfig {
        &self.sampler
    }

    /// The tokenizers of the two text encoders.
    pub fn tokenizers(&self) -> &[Tokenizer; 2] {
        &self.tokenizers
    }

    /// Pixels that width and height must be multiples of.
    pub fn side_multiple(&self) -> usize {
        PATCH * self.vae.config.scale()
    }

    /// Height and width of a job's latents.
    pub fn latent_size(&self, job: &JobShape) -> [usize; 2] {
        let scale = self.vae.config.scale();
        [job.height as usize / scale, job.width as usize / scale]
    }

    /// Packed latent tokens of one picture.
    pub fn image_tokens(&self, job: &JobShape) -> usize {
        let [height, width] = self.latent_size(job);
        (height / PATCH) * (width / PATCH)
    }

    /// The graphs of all components for a job shape.
    pub fn graphs(
        &self,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<Vec<ComponentGraph>, ModelError> {
        self.check_job(job)?;
        let prompts = if job.true_cfg { 2 } else { 1 };
        let text_tokens = job.max_sequence_length as usize;
        let tiles = self.tiles(job, options)?;
        let dit = &self.transformer;
        let graph = |name, phase, calls, graph: Graph| {
            let variants = vec![graph];
            ComponentGraph { name, phase, calls, variants }
        };
        let mut graphs = Vec::new();
        if job.init_image {
            graphs.push(self.vae_encoder(&tiles)?);
        }
        graphs.extend([
            graph("clip", Phase::Condition, prompts, self.clip.config.graph(&self.clip.files)?),
            graph(
                "t5",
                Phase::Condition,
                prompts,
                self.t5.config.graph(&self.t5.files, text_tokens)?,
            ),
            graph(
                "dit",
                Phase::Denoise,
                prompts * job.steps_run(),
                dit.config.graph(
                    &dit.files,
                    job.batch as usize,
                    text_tokens,
                    self.image_tokens(job),
                )?,
            ),
        ]);
        graphs.push(self.vae_decoder(&tiles, job.batch)?);
        Ok(graphs)
    }

    fn vae_encoder(&self, tiles: &TileGrid) -> Result<ComponentGraph, ModelError> {
        let Part { config, files, .. } = &self.vae;
        if !VaeConfig::has_encoder(files) {
            return Err(ModelError::Job(format!(
                "the model's VAE has no encoder ({} holds its decoder alone), so no picture can be started \
                 from; hint: take the whole VAE, or leave --init-image out",
                files.paths().next().unwrap_or(Path::new("its file")).display()
            )));
        }
        let graph = |[height, width]: [usize; 2]| config.encoder(files, height, width);
        Ok(ComponentGraph {
            name: "vae_encoder",
            phase: Phase::Encode,
            calls: tiles.count() as u32,
            variants: tiles.sizes().into_iter().map(graph).collect::<Result<_, _>>()?,
        })
    }

    fn vae_decoder(&self, tiles: &TileGrid, batch: u32) -> Result<ComponentGraph, ModelError> {
        let Part { config, files, .. } = &self.vae;
        let graph = |[height, width]: [usize; 2]| config.decoder(files, height, width);
        Ok(ComponentGraph {
            name: "vae",
            phase: Phase::Decode,
            calls: batch.saturating_mul(tiles.count() as u32),
            variants: tiles.sizes().into_iter().map(graph).collect::<Result<_, _>>()?,
        })
    }

    /// How the VAE's work is cut.
    pub fn tiles(&self, job: &JobShape, options: &GraphOptions) -> Result<TileGrid, ModelError> {
        protocol::check::check_options(options)
            .map_err(|violation| ModelError::Job(violation.0))?;
        let scale = self.vae.config.scale();
        TileGrid::new(self.latent_size(job), options.vae_tile.as_ref(), scale)
            .map_err(ModelError::Job)
    }

    /// What a job holds on the host.
    pub fn job_layout(
        &self,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<JobLayout, ModelError> {
        let tiles = self.tiles(job, options)?;
        let text_tokens = job.max_sequence_length as usize;
        let image_tokens = self.image_tokens(job);
        let [height, width] = self.latent_size(job);
        let dit = self.transformer();
        let (scale, latent_channels) = (self.vae().scale(), self.vae().latent_channels);
        let tile = |scale, channels| TileLayout::new(&tiles, scale, channels);
        let mut vae_tile = tile(scale, PICTURE_CHANNELS);
        let mut moments = [0; 3];
        if job.init_image {
            vae_tile = vae_tile.or(tile(1, 2 * latent_channels));
            moments = [height, width, 2 * latent_channels];
        }
        let preview = match options.preview_every {
            0 => [0; 3],
            _ => self.preview_shape(job)?,
        };
        Ok(JobLayout {
            preview,
            prompts: if job.true_cfg { 2 } else { 1 },
            clip_hidden: [self.clip().max_position_embeddings, self.clip().hidden_size],
            text_hidden: [text_tokens, self.t5().d_model],
            latents: [job.batch as usize, image_tokens, dit.in_channels],
            rope: [text_tokens + image_tokens, dit.attention_head_dim / 2, 2],
            vae_latents: [height, width, latent_channels],
            vae_tile,
            moments,
            picture: [job.height as usize, job.width as usize, PICTURE_CHANNELS],
            init_picture: job.init_image,
        })
    }

    /// A preview has a pixel for each cell of the latents.
    fn preview_shape(&self, job: &JobShape) -> Result<[usize; 3], ModelError> {
        let (known, channels) = (self.rgb_map.factors.len(), self.vae().latent_channels);
        if known != channels {
            return Err(ModelError::Job(format!(
                "previews are told by {known} channels of latents, and the model has {channels}; hint: leave \
                 --preview out, or give its berth.toml a table [preview] with {channels} rows of factors"
            )));
        }
        let [height, width] = self.latent_size(job);
        Ok([height, width, PICTURE_CHANNELS])
    }

    fn check_job(&self, job: &JobShape) -> Result<(), ModelError> {
        protocol::check::check_job(job).map_err(|violation| ModelError::Job(violation.0))?;
        let multiple = self.side_multiple() as u32;
        for (name, side) in [("width", job.width), ("height", job.height)] {
            if side % multiple != 0 {
                let lower = side / multiple * multiple;
                let nearest = match lower {
                    0 => multiple.to_string(),
                    lower => format!("{lower} or {}", lower + multiple),
                };
                return Err(ModelError::Job(format!(
                    "{name} {side} is no multiple of {multiple}; hint: use {nearest}"
                )));
            }
        }
        if job.max_sequence_length > SEQUENCE_TOKENS_MAX {
            return Err(ModelError::Job(format!(
                "max_sequence_length {} is above this family's {SEQUENCE_TOKENS_MAX}",
                job.max_sequence_length
            )));
        }
        Ok(())
    }

    /// The weight files of a component.
    pub fn files(&self, component: &str) -> &Arc<WeightFiles> {
        match component {
            "clip" => &self.clip.files,
            "t5" => &self.t5.files,
            "dit" => &self.transformer.files,
            "vae" | "vae_encoder" => &self.vae.files,
            other => panic!("no component named {other}"),
        }
    }

    /// An error if any weight file has become shorter since it was mapped.
    pub fn check_unchanged(&self) -> Result<(), crate::weights::WeightsError> {
        COMPONENTS.iter().try_for_each(|component| self.files(component).check_unchanged())
    }
}

/// The parts must fit: what one gives, the next takes.
fn check_widths(
    clip: &Part<ClipConfig>,
    t5: &Part<T5Config>,
    transformer: &Part<TransformerConfig>,
    vae: &Part<VaeConfig>,
) -> Result<(), ModelError> {
    let limits = Limits::of(&transformer.path);
    let dit = &transformer.config;
    for (name, takes, gives) in [
        ("pooled_projection_dim", dit.pooled_projection_dim, clip.config.hidden_size),
        ("joint_attention_dim", dit.joint_attention_dim, t5.config.d_model),
        ("in_channels", dit.in_channels, PATCH * PATCH * vae.config.latent_channels),
    ] {
        limits
            .holds(takes == gives, || format!("{name} is {takes}, the other parts give {gives}"))?;
    }
    Ok(())
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
