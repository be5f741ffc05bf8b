//! FLUX.2's VAE (diffusers' `AutoencoderKLFlux2`): an `AutoencoderKL` whose latents are normalised
//! as tokens of 2×2 cells, feature by feature, by statistics that lie beside its weights.

use std::path::Path;
use std::sync::Arc;

use protocol::PartFlag;
use serde::Deserialize;

use super::job::{self, LatentStatistics};
use super::kl::{self, VaeConfig};
use super::published;
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::models::source::{PartKind, PartSpec, first_prefix};
use crate::weights::{WeightFiles, WeightsError};

/// Cells of latents along a side of a token (`patch_size`).
pub const PATCH: usize = 2;

/// The statistics, one number for each feature of a token.
const MEANS: &str = "bn.running_mean";
const VARIANCES: &str = "bn.running_var";

/// What stands before the names: nothing, Stability's and ComfyUI's all-in-one files.
const PREFIXES: [&str; 3] = ["", "first_stage_model.", "vae."];

/// How it is known in files, and read from them.
pub const PART: PartKind<Flux2VaeConfig> = PartKind {
    spec: PartSpec {
        component: job::DECODER,
        called: "FLUX.2's VAE",
        flag: PartFlag::Vae,
        looked_for: MEANS,
        is_in: |files| first_prefix(files, &PREFIXES, MEANS).is_some() && kl::single::is_in(files),
    },
    folder: "vae",
    classes: &["AutoencoderKLFlux2"],
    stem: "diffusion_pytorch_model",
    check: Flux2VaeConfig::check,
    single,
};

/// `vae/config.json`, with the class defaults for what it leaves out.
#[derive(Debug, Clone, Deserialize)]
#[serde(from = "StoredVaeConfig")]
pub struct Flux2VaeConfig {
    /// The VAE between pictures and latents that are not normalised.
    pub kl: VaeConfig,
    /// Added to variances.
    batch_norm_eps: f32,
    /// Cells along the sides of a token.
    patch_size: [usize; 2],
    /// Whether the decoder has widths of its own, which is not known here.
    own_decoder: bool,
}

/// The same as it stands.
#[derive(Deserialize)]
#[serde(default)]
struct StoredVaeConfig {
    in_channels: usize,
    out_channels: usize,
    block_out_channels: Vec<usize>,
    layers_per_block: usize,
    latent_channels: usize,
    norm_num_groups: usize,
    mid_block_add_attention: bool,
    use_quant_conv: bool,
    use_post_quant_conv: bool,
    act_fn: String,
    batch_norm_eps: f32,
    patch_size: [usize; 2],
    decoder_block_out_channels: Option<Vec<usize>>,
}

impl Default for StoredVaeConfig {
    fn default() -> StoredVaeConfig {
        StoredVaeConfig {
            in_channels: 3,
            out_channels: 3,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            latent_channels: published::FLUX2.latent_channels,
            norm_num_groups: 32,
            mid_block_add_attention: true,
            use_quant_conv: true,
            use_post_quant_conv: true,
            act_fn: "silu".to_owned(),
            batch_norm_eps: 1e-4,
            patch_size: [PATCH; 2],
            decoder_block_out_channels: None,
        }
    }
}

impl From<StoredVaeConfig> for Flux2VaeConfig {
    fn from(stored: StoredVaeConfig) -> Flux2VaeConfig {
        let own_decoder = stored
            .decoder_block_out_channels
            .is_some_and(|channels| channels != stored.block_out_channels);
        Flux2VaeConfig {
            kl: VaeConfig {
                block_out_channels: stored.block_out_channels,
                in_channels: stored.in_channels,
                out_channels: stored.out_channels,
                latent_channels: stored.latent_channels,
                layers_per_block: stored.layers_per_block,
                norm_num_groups: stored.norm_num_groups,
                scaling_factor: published::FLUX2.scaling_factor,
                shift_factor: Some(published::FLUX2.shift_factor),
                mid_block_add_attention: stored.mid_block_add_attention,
                use_quant_conv: stored.use_quant_conv,
                use_post_quant_conv: stored.use_post_quant_conv,
                act_fn: stored.act_fn,
            },
            batch_norm_eps: stored.batch_norm_eps,
            patch_size: stored.patch_size,
            own_decoder,
        }
    }
}

impl Flux2VaeConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        self.kl.check(path)?;
        let limits = Limits::of(path);
        limits.holds(self.patch_size == [PATCH; 2], || {
            format!("patch_size is {:?}, expected [{PATCH}, {PATCH}]", self.patch_size)
        })?;
        limits.holds(!self.own_decoder, || {
            "decoder_block_out_channels are others than block_out_channels, which is not known here"
                .to_owned()
        })?;
        let eps = self.batch_norm_eps;
        limits.holds((0.0..=1.0).contains(&eps), || {
            format!("batch_norm_eps is {eps}, expected 0 to 1")
        })
    }

    /// Features of a token of latents.
    pub fn token_features(&self) -> usize {
        PATCH * PATCH * self.kl.latent_channels
    }

    /// An error where the files lack the statistics.
    pub fn check_statistics(&self, files: &WeightFiles) -> Result<(), WeightsError> {
        for name in [MEANS, VARIANCES] {
            files.require(name, &[self.token_features()])?;
        }
        Ok(())
    }

    /// Reads the statistics.
    ///
    /// # Errors
    /// The files lack them, or hold what is no mean or no variance.
    pub fn statistics(&self, files: &WeightFiles) -> Result<LatentStatistics, ModelError> {
        let read = |name| -> Result<Vec<f32>, WeightsError> {
            Ok(files.require(name, &[self.token_features()])?.view(files).to_f32())
        };
        let means = read(MEANS)?;
        let deviation = |variance: f32| (variance + self.batch_norm_eps).sqrt();
        let deviations: Vec<f32> = read(VARIANCES)?.into_iter().map(deviation).collect();
        let limits = Limits::of(files.origin());
        limits.holds(means.iter().all(|mean| mean.is_finite()), || {
            format!("{MEANS} holds a number that is infinite or none")
        })?;
        let sound = |deviation: &f32| deviation.is_finite() && *deviation > 0.0;
        limits.holds(deviations.iter().all(sound), || {
            format!("{VARIANCES} holds a number that is no variance")
        })?;
        Ok(LatentStatistics { means, deviations })
    }
}

/// Takes it from a file, if it is there.
fn single(
    files: &Arc<WeightFiles>,
    known: Option<&Flux2VaeConfig>,
) -> Result<Option<(Flux2VaeConfig, WeightFiles)>, ModelError> {
    if !(PART.spec.is_in)(files) {
        return Ok(None);
    }
    let known_kl = known.map(|known| &known.kl);
    let found = kl::single::single(files, known_kl, &published::FLUX2)?;
    let batch_norm_eps =
        known.map_or(StoredVaeConfig::default().batch_norm_eps, |known| known.batch_norm_eps);
    Ok(found.map(|(kl, files)| {
        let patch_size = [PATCH; 2];
        (Flux2VaeConfig { kl, batch_norm_eps, patch_size, own_decoder: false }, files)
    }))
}
