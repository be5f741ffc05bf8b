//! A causal VAE in a file of its own or among other parts: in the names of its makers, which
//! ComfyUI kept, or in diffusers'. And the names of its files for its graphs, which take
//! projections of the middle's attention one by one.

use std::sync::Arc;

use super::{CausalVaeConfig, frames, published_deviations, published_means, three};
use crate::models::ModelError;
use crate::models::config::{LAYERS_MAX, Limits};
use crate::models::shapes::Shapes;
use crate::models::source::first_prefix;
use crate::weights::{Names, WeightFiles, WeightsError};

/// What stands before the names: nothing, all-in-one files of two kinds.
const PREFIXES: [&str; 3] = ["", "first_stage_model.", "vae."];

const MARK: &str = "decoder.mid_block.attentions.0.to_qkv.weight";
const ORIGINAL_MARK: &str = "decoder.middle.1.to_qkv.weight";

/// Tensors of every file that holds such a VAE, for people.
pub const LOOKED_FOR: &str = "decoder.middle.1.to_qkv or decoder.mid_block.attentions.0.to_qkv";

/// The two sides, and their layers before and behind all blocks, by diffusers' and by the original
/// names.
const SIDES: [&str; 2] = ["encoder", "decoder"];
const OUTER: [(&str, &str); 2] = [("conv_in", "conv1"), ("conv_out", "head.2")];

/// Layers of a residual block by both names.
const RESNET: [(&str, &str); 3] =
    [("conv1", "residual.2"), ("conv2", "residual.6"), ("conv_shortcut", "shortcut")];

/// Its norms by both names.
const NORMS: [(&str, &str); 2] = [("norm1", "residual.0"), ("norm2", "residual.3")];

/// The convolutions between latents and both sides by both names.
const QUANT: [(&str, &str); 2] = [("quant_conv", "conv1"), ("post_quant_conv", "conv2")];

/// Projections that stand below each other in one tensor.
const PROJECTIONS: [&str; 3] = ["to_q", "to_k", "to_v"];

/// Whether a file holds such a VAE.
pub fn is_in(files: &Arc<WeightFiles>) -> bool {
    [ORIGINAL_MARK, MARK].into_iter().any(|mark| first_prefix(files, &PREFIXES, mark).is_some())
}

/// The files of a directory under the names that graphs ask for.
///
/// # Errors
/// A tensor has another shape than it must.
pub fn named(files: &WeightFiles) -> Result<WeightFiles, WeightsError> {
    let mut names = Names::behind("");
    let shapes = Shapes::of(files);
    for side in SIDES {
        let attention = format!("{side}.mid_block.attentions.0");
        projections(&mut names, &shapes, "", [&attention, &attention]);
    }
    files.named(names)
}

/// Takes the VAE from a file, if it is there.
pub fn single(
    files: &Arc<WeightFiles>,
    known: Option<&CausalVaeConfig>,
) -> Result<Option<(CausalVaeConfig, WeightFiles)>, ModelError> {
    let named = if let Some(prefix) = first_prefix(files, &PREFIXES, ORIGINAL_MARK) {
        files.named(original_names(prefix, files))?
    } else if let Some(prefix) = first_prefix(files, &PREFIXES, MARK) {
        let mut names = Names::behind(prefix);
        for side in SIDES {
            let attention = format!("{side}.mid_block.attentions.0");
            projections(&mut names, &Shapes::of(files), prefix, [&attention, &attention]);
        }
        files.named(names)?
    } else {
        return Ok(None);
    };
    let config = config(&named, known)?;
    Ok(Some((config, named)))
}

/// Lists the projections of an attention, by the asked and by the file's own name of it.
fn projections(names: &mut Names, shapes: &Shapes<'_>, prefix: &str, [asked, own]: [&str; 2]) {
    let Ok([all, ..]) = shapes.sizes::<4>(&format!("{prefix}{own}.to_qkv.weight")) else { return };
    let channels = all / PROJECTIONS.len();
    if channels == 0 {
        return;
    }
    for (index, projection) in PROJECTIONS.iter().enumerate() {
        for end in ["weight", "bias"] {
            let rows = index * channels..(index + 1) * channels;
            let (asked, own) =
                (format!("{asked}.{projection}.{end}"), format!("{own}.to_qkv.{end}"));
            names.rows(&asked, &own, rows, PROJECTIONS.len() * channels);
        }
    }
}

fn original_names(prefix: &str, files: &WeightFiles) -> Names {
    let shapes = Shapes::of(files);
    let has = |name: &str| shapes.has(&format!("{prefix}{name}"));
    let mut names = Names::behind(prefix);
    for (asked, own) in QUANT {
        names.layer(asked, own);
    }
    for side in SIDES {
        for (asked, own) in OUTER {
            names.layer(&format!("{side}.{asked}"), &format!("{side}.{own}"));
        }
        names.whole(&format!("{side}.norm_out.gamma"), &format!("{side}.head.0.gamma"));
        let middle = |block: &str| format!("{side}.mid_block.{block}");
        resnet(&mut names, &middle("resnets.0"), &format!("{side}.middle.0"));
        resnet(&mut names, &middle("resnets.1"), &format!("{side}.middle.2"));
        let (asked, own) = (middle("attentions.0"), format!("{side}.middle.1"));
        projections(&mut names, &shapes, prefix, [&asked, &own]);
        names.whole(&format!("{asked}.norm.gamma"), &format!("{own}.norm.gamma"));
        names.layer(&format!("{asked}.proj"), &format!("{own}.proj"));
    }
    // Blocks and what stands between levels are numbered together.
    for index in 0..LAYERS_MAX {
        let own = format!("encoder.downsamples.{index}");
        resnet(&mut names, &format!("encoder.down_blocks.{index}"), &own);
        names.layer(
            &format!("encoder.down_blocks.{index}.resample.1"),
            &format!("{own}.resample.1"),
        );
    }
    let (mut level, mut block) = (0, 0);
    for index in 0..LAYERS_MAX {
        let own = format!("decoder.upsamples.{index}");
        let asked = format!("decoder.up_blocks.{level}");
        if has(&format!("{own}.resample.1.weight")) {
            let asked = format!("{asked}.upsamplers.0.resample.1");
            names.layer(&asked, &format!("{own}.resample.1"));
            (level, block) = (level + 1, 0);
        } else if has(&format!("{own}.residual.2.weight")) {
            resnet(&mut names, &format!("{asked}.resnets.{block}"), &own);
            block += 1;
        } else {
            break;
        }
    }
    names
}

fn resnet(names: &mut Names, asked: &str, own: &str) {
    for (layer, original) in RESNET {
        names.layer(&format!("{asked}.{layer}"), &format!("{own}.{original}"));
    }
    for (norm, original) in NORMS {
        names.whole(&format!("{asked}.{norm}.gamma"), &format!("{own}.{original}.gamma"));
    }
}

fn config(
    files: &WeightFiles,
    known: Option<&CausalVaeConfig>,
) -> Result<CausalVaeConfig, ModelError> {
    let shapes = Shapes::of(files);
    let limits = Limits::of(files.origin());
    let resnet = |level: usize, block: usize| {
        format!("decoder.up_blocks.{level}.resnets.{block}.conv1.weight")
    };
    let [_, z_dim, ..]: [usize; 5] = shapes.sizes("decoder.conv_in.weight")?;
    // The outermost level has just as many channels.
    let [base_dim, ..]: [usize; 4] = shapes.sizes("decoder.norm_out.gamma")?;
    let mut dim_mult = Vec::new();
    for level in (0..shapes.count(|level| resnet(level, 0)).min(LAYERS_MAX)).rev() {
        let [channels, ..]: [usize; 5] = shapes.sizes(&resnet(level, 0))?;
        let is_multiple = base_dim > 0 && channels.is_multiple_of(base_dim);
        limits.holds(is_multiple, || {
            format!("a level of {channels} channels is no multiple of the outermost, {base_dim}")
        })?;
        dim_mult.push(channels / base_dim);
    }
    let is_same = |known: &&CausalVaeConfig| {
        (known.base_dim, &known.dim_mult, known.z_dim) == (base_dim, &dim_mult, z_dim)
    };
    let known = known.filter(is_same);
    let (means, deviations) = (published_means(), published_deviations());
    limits.holds(known.is_some() || z_dim == means.len(), || {
        format!(
            "the VAE has {z_dim} latent channels, and a file does not say how they are scaled; known is how {} are; \
             hint: give the directory that the VAE is of as MODEL",
            means.len()
        )
    })?;
    Ok(CausalVaeConfig {
        base_dim,
        z_dim,
        // Decoder levels have one block more than the encoder's.
        num_res_blocks: shapes.count(|block| resnet(0, block)).saturating_sub(1),
        attn_scales: Vec::new(),
        temperal_downsample: known
            .map_or_else(frames, |known| known.temperal_downsample.clone())
            .into_iter()
            .chain(std::iter::repeat(true))
            .take(dim_mult.len().saturating_sub(1))
            .collect(),
        dim_mult,
        input_channels: three(),
        latents_mean: known.map_or(means, |known| known.latents_mean.clone()),
        latents_std: known.map_or(deviations, |known| known.latents_std.clone()),
    })
}
