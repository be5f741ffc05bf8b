//! What a job takes of a VAE, of whichever kind: its tiles, its graph for each way, and the buffers
//! in which pictures pass through it, one at a time.

use std::path::Path;
use std::sync::Arc;

use protocol::profile::StepItems;
use protocol::{GraphOptions, JobShape, Phase};

use super::tiles::{TileGrid, TileLayout};
use crate::graph::Graph;
use crate::models::buffers::{BufferPlace, BufferSpec};
use crate::models::{ComponentGraph, ModelError, VaeGraphs};
use crate::weights::{WeightFiles, WeightsError};

/// The component that makes latents of a picture.
pub const ENCODER: &str = "vae_encoder";

/// The component that makes a picture of latents.
pub const DECODER: &str = "vae";

/// Red, green, blue.
pub const PICTURE_CHANNELS: usize = 3;

/// Latents of one picture as the VAE takes them: `[height, width, channels]`.
pub const LATENTS: &str = "vae_latents";

/// One tile as the VAE takes or gives it.
pub const TILE: &str = "vae_tile";

/// The last rows of a row of tiles, which those below blend with.
pub const ABOVE: &str = "vae_tile_above";

/// The last columns of one tile, which the next one blends with.
pub const LEFT: &str = "vae_tile_left";

/// What the encoder makes of the given picture: `[height, width, 2 × channels]`.
pub const MOMENTS: &str = "vae_moments";

/// One picture in 8 bits: `[height, width, 3]`.
pub const PICTURE: &str = "picture";

/// The given picture, and all of the batch until the planner has written them.
const HANDED_OVER: &str = "pictures";

/// What latents are normalised by.
#[derive(Debug, Clone, PartialEq)]
pub struct LatentStatistics {
    /// What is added to latents on their way to the VAE.
    pub means: Vec<f32>,
    /// What they are multiplied by before.
    pub deviations: Vec<f32>,
}

/// The range of latents that a VAE works in.
#[derive(Debug, Clone, PartialEq)]
pub enum VaeRange {
    /// The same for all.
    Scaled {
        /// Latents are multiplied by this when they leave the VAE.
        scaling: f32,
        /// What is taken from them before.
        shift: f32,
    },
    /// One for each channel of latents.
    Channels(LatentStatistics),
    /// One for each feature of a token: the cells of a channel, row by row, then those of the next.
    Features(LatentStatistics),
}

impl VaeRange {
    /// That of latents as they are.
    pub const SAME: VaeRange = VaeRange::Scaled { scaling: 1.0, shift: 0.0 };

    /// A value of the sampler's range in the VAE's.
    pub fn to_vae(&self, channel: usize, feature: usize, value: f32) -> f32 {
        match self {
            VaeRange::Scaled { scaling, shift } => value / scaling + shift,
            VaeRange::Channels(of) => value * of.deviations[channel] + of.means[channel],
            VaeRange::Features(of) => value * of.deviations[feature] + of.means[feature],
        }
    }

    /// The other way round.
    pub fn out_of_vae(&self, channel: usize, feature: usize, value: f32) -> f32 {
        match self {
            VaeRange::Scaled { scaling, shift } => (value - shift) * scaling,
            VaeRange::Channels(of) => (value - of.means[channel]) / of.deviations[channel],
            VaeRange::Features(of) => (value - of.means[feature]) / of.deviations[feature],
        }
    }
}

/// A VAE as jobs take it, for one picture or one tile of it at a time.
pub trait VaeJob {
    /// Pixels along one side of a cell of latents.
    fn scale(&self) -> usize;

    /// Channels of the latents.
    fn latent_channels(&self) -> usize;

    /// The range that it works in.
    fn range(&self) -> VaeRange;

    /// Whether a picture that is decoded whole is cut to values of -1 to 1; one in tiles is not.
    fn is_clamped(&self) -> bool {
        false
    }

    /// Whether the files hold an encoder.
    fn has_encoder(files: &WeightFiles) -> bool
    where
        Self: Sized;

    /// The graph: `image` `[1, scale × height, scale × width, 3]` of values -1 to 1 → `moments`
    /// `[1, height, width, 2 × latent_channels]`: means, then logarithms of variances.
    ///
    /// # Errors
    /// The files lack a weight.
    fn encoder(
        &self,
        files: &WeightFiles,
        height: usize,
        width: usize,
    ) -> Result<Graph, WeightsError>;

    /// The graph: `latents` `[1, height, width, latent_channels]` → `image` `[1, scale × height,
    /// scale × width, 3]` of values about -1 to 1.
    ///
    /// # Errors
    /// The files lack a weight.
    fn decoder(
        &self,
        files: &WeightFiles,
        height: usize,
        width: usize,
    ) -> Result<Graph, WeightsError>;

    /// Height and width of a job's latents.
    fn latent_size(&self, job: &JobShape) -> [usize; 2] {
        [job.height, job.width].map(|pixels| pixels as usize / self.scale())
    }

    /// How the VAE's work is cut.
    ///
    /// # Errors
    /// The options ask for tiles that are no whole cells of latents.
    fn tiles(&self, job: &JobShape, options: &GraphOptions) -> Result<TileGrid, ModelError> {
        protocol::check::check_options(options)
            .map_err(|found| ModelError::Job(found.sentences()))?;
        TileGrid::new(self.latent_size(job), options.vae_tile.as_ref(), self.scale())
            .map_err(ModelError::Job)
    }

    /// The graphs of a job.
    ///
    /// # Errors
    /// The options ask for tiles that cannot be, or the files lack the encoder, or a weight.
    fn graphs(
        &self,
        files: &Arc<WeightFiles>,
        job: &JobShape,
        options: &GraphOptions,
    ) -> Result<VaeGraphs, ModelError>
    where
        Self: Sized,
    {
        let tiles = self.tiles(job, options)?;
        let encoder = job.init_image.then(|| self.encoder_component(files, &tiles)).transpose()?;
        let decoder = self.decoder_component(files, &tiles, job.batch)?;
        Ok(VaeGraphs { encoder, decoder })
    }

    /// The encoder, for a job that starts from a picture.
    ///
    /// # Errors
    /// The files hold no encoder, or lack a weight of it.
    fn encoder_component(
        &self,
        files: &Arc<WeightFiles>,
        tiles: &TileGrid,
    ) -> Result<ComponentGraph, ModelError>
    where
        Self: Sized,
    {
        if !Self::has_encoder(files) {
            return Err(ModelError::Job(format!(
                "the model's VAE has no encoder ({} holds its decoder alone), so no picture can be started \
                 from; hint: take the whole VAE, or leave --init-image out",
                files.paths().next().unwrap_or(Path::new("its file")).display()
            )));
        }
        let graph = |[height, width]: [usize; 2]| self.encoder(files, height, width);
        Ok(ComponentGraph {
            name: ENCODER,
            phase: Phase::Encode,
            calls: tiles.count() as u32,
            variants: tiles.sizes().into_iter().map(graph).collect::<Result<_, _>>()?,
            nested: false,
            items: StepItems::ONE,
        })
    }

    /// The decoder, for so many pictures.
    ///
    /// # Errors
    /// The files lack a weight of it.
    fn decoder_component(
        &self,
        files: &Arc<WeightFiles>,
        tiles: &TileGrid,
        batch: u32,
    ) -> Result<ComponentGraph, ModelError> {
        let graph = |[height, width]: [usize; 2]| self.decoder(files, height, width);
        Ok(ComponentGraph {
            name: DECODER,
            phase: Phase::Decode,
            calls: batch.saturating_mul(tiles.count() as u32),
            variants: tiles.sizes().into_iter().map(graph).collect::<Result<_, _>>()?,
            nested: false,
            items: StepItems::ONE,
        })
    }

    /// The buffers for a job whose pictures are cut like this.
    fn buffers(&self, job: &JobShape, tiles: &TileGrid) -> Vec<BufferSpec> {
        let [height, width] = self.latent_size(job);
        let moments = 2 * self.latent_channels();
        let mut tile = TileLayout::new(tiles, self.scale(), PICTURE_CHANNELS);
        if job.init_image {
            tile = tile.or(TileLayout::new(tiles, 1, moments));
        }
        let given = usize::from(job.init_image);
        let picture = [job.height as usize, job.width as usize, PICTURE_CHANNELS];
        vec![
            BufferSpec::floats(LATENTS, &[height, width, self.latent_channels()]),
            BufferSpec::floats(TILE, &[tile.values]),
            BufferSpec::floats(ABOVE, &[tile.above]),
            BufferSpec::floats(LEFT, &[tile.left]),
            BufferSpec::floats(MOMENTS, &[height, width, moments]).copies(given),
            BufferSpec::pixels(PICTURE, &picture, BufferPlace::Own),
            BufferSpec::pixels(HANDED_OVER, &picture, BufferPlace::HandedOver)
                .copies(job.batch as usize + given),
        ]
    }
}
