//! An AutoencoderKL in a file of its own or among other parts: in the names of ldm, which Black
//! Forest Labs kept, or in diffusers'.

use std::sync::Arc;

use super::{VaeConfig, groups, silu, three};
use crate::components::vae::causal;
use crate::components::vae::published::Published;
use crate::models::ModelError;
use crate::models::config::LAYERS_MAX;
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles};

/// What stands before the names: nothing (ae.safetensors), Stability's and ComfyUI's all-in-one
/// files.
const PREFIXES: [&str; 3] = ["", "first_stage_model.", "vae."];

const MARK: &str = "decoder.mid_block.resnets.0.conv1.weight";
const LDM_MARK: &str = "decoder.mid.block_1.conv1.weight";

/// Tensors of every file that holds such a VAE, for people.
pub const LOOKED_FOR: &str = "decoder.mid.block_1.conv1 or decoder.mid_block.resnets.0.conv1";

/// Layers of a residual block by both names.
const RESNET: [(&str, &str); 5] = [
    ("norm1", "norm1"),
    ("conv1", "conv1"),
    ("norm2", "norm2"),
    ("conv2", "conv2"),
    ("conv_shortcut", "nin_shortcut"),
];

/// Layers of the middle's attention by both names; all but the first are convolutions of 1×1 pixels
/// in ldm.
const ATTENTION: [(&str, &str); 5] =
    [("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out")];

/// Whether a file holds such a VAE.
pub fn is_in(files: &Arc<WeightFiles>) -> bool {
    // A causal VAE has such blocks too, and its own attention beside them.
    let is_marked = |mark| first_prefix(files, &PREFIXES, mark).is_some();
    [LDM_MARK, MARK].into_iter().any(is_marked) && !causal::single::is_in(files)
}

/// Takes the VAE from a file, if it is there; `published` for a VAE that `known` does not describe.
pub fn single(
    files: &Arc<WeightFiles>,
    known: Option<&VaeConfig>,
    published: &Published,
) -> Result<Option<(VaeConfig, WeightFiles)>, ModelError> {
    let files = if let Some(prefix) = first_prefix(files, &PREFIXES, LDM_MARK) {
        files.named(ldm_names(prefix, &files.named(Names::behind(prefix))?))?
    } else {
        let Some(prefix) = first_prefix(files, &PREFIXES, MARK) else { return Ok(None) };
        files.named(Names::behind(prefix))?
    };
    let config = config(&files, known, published)?;
    Ok(Some((config, files)))
}

fn ldm_names(prefix: &str, files: &WeightFiles) -> Names {
    let shapes = Shapes::of(files);
    let mut names = Names::behind(prefix);
    let levels = shapes.count(|level| format!("decoder.up.{level}.block.0.conv1.weight"));
    for level in 0..levels {
        let (down, up) = (format!("encoder.down.{level}"), format!("decoder.up.{level}"));
        let up_block = levels - 1 - level;
        for (asked, own) in [
            (format!("encoder.down_blocks.{level}"), &down),
            (format!("decoder.up_blocks.{up_block}"), &up),
        ] {
            let blocks = shapes.count(|block| format!("{own}.block.{block}.conv1.weight"));
            for block in 0..blocks {
                resnet(
                    &mut names,
                    &format!("{asked}.resnets.{block}"),
                    &format!("{own}.block.{block}"),
                );
            }
        }
        names.layer(
            &format!("encoder.down_blocks.{level}.downsamplers.0.conv"),
            &format!("{down}.downsample.conv"),
        );
        names.layer(
            &format!("decoder.up_blocks.{up_block}.upsamplers.0.conv"),
            &format!("{up}.upsample.conv"),
        );
    }
    for side in ["encoder", "decoder"] {
        for block in 0..2 {
            let asked = format!("{side}.mid_block.resnets.{block}");
            resnet(&mut names, &asked, &format!("{side}.mid.block_{}", block + 1));
        }
        for (asked, own) in ATTENTION {
            let asked = format!("{side}.mid_block.attentions.0.{asked}");
            let own = format!("{side}.mid.attn_1.{own}");
            names.matrix(&format!("{asked}.weight"), &format!("{own}.weight"));
            names.whole(&format!("{asked}.bias"), &format!("{own}.bias"));
        }
        names.layer(&format!("{side}.conv_norm_out"), &format!("{side}.norm_out"));
    }
    // Some files have these two within the sides that they belong to.
    for (asked, own) in
        [("quant_conv", "encoder.quant_conv"), ("post_quant_conv", "decoder.post_quant_conv")]
    {
        if shapes.has(&format!("{own}.weight")) {
            names.layer(asked, own);
        }
    }
    names
}

fn resnet(names: &mut Names, asked: &str, own: &str) {
    for (layer, ldm_layer) in RESNET {
        names.layer(&format!("{asked}.{layer}"), &format!("{own}.{ldm_layer}"));
    }
}

fn config(
    files: &WeightFiles,
    known: Option<&VaeConfig>,
    published: &Published,
) -> Result<VaeConfig, ModelError> {
    let shapes = Shapes::of(files);
    let resnet = |level: usize, block: usize| {
        format!("decoder.up_blocks.{level}.resnets.{block}.conv1.weight")
    };
    let [_, latent_channels, _, _] = shapes.sizes("decoder.conv_in.weight")?;
    let [out_channels, _, _, _] = shapes.sizes("decoder.conv_out.weight")?;
    let levels = shapes.count(|level| resnet(level, 0)).min(LAYERS_MAX);
    let mut block_out_channels = Vec::new();
    for level in (0..levels).rev() {
        let [channels, ..]: [usize; 4] = shapes.sizes(&resnet(level, 0))?;
        block_out_channels.push(channels);
    }
    let blocks = shapes.count(|block| resnet(0, block));
    let is_same = |known: &&VaeConfig| {
        known.block_out_channels == block_out_channels && known.latent_channels == latent_channels
    };
    let known = known.filter(is_same);
    if known.is_none() && latent_channels != published.latent_channels {
        return Err(ModelError::Config {
            path: files.origin().to_owned(),
            message: format!(
                "the VAE has {latent_channels} latent channels, and a file does not say how they are scaled; known \
                 is how {} are; hint: give the directory that the VAE is of as MODEL",
                published.latent_channels
            ),
        });
    }
    Ok(VaeConfig {
        block_out_channels,
        in_channels: three(),
        out_channels,
        latent_channels,
        // Decoder levels have one block more than the encoder's.
        layers_per_block: blocks.saturating_sub(1),
        norm_num_groups: known.map_or(groups(), |known| known.norm_num_groups),
        scaling_factor: known.map_or(published.scaling_factor, |known| known.scaling_factor),
        shift_factor: known.map_or(Some(published.shift_factor), |known| known.shift_factor),
        mid_block_add_attention: shapes.has("decoder.mid_block.attentions.0.to_q.weight"),
        use_quant_conv: shapes.has("quant_conv.weight"),
        use_post_quant_conv: shapes.has("post_quant_conv.weight"),
        act_fn: silu(),
    })
}
