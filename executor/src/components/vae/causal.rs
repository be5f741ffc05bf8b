//! The VAE of films that Wan and Qwen-Image have (diffusers' `AutoencoderKLQwenImage`), for one
//! picture: latents to picture, and picture to latents. Values are NHWC inside.
//!
//! Its convolutions are over frames too, and causal: a frame sees itself and those before it, which
//! a picture has none of. With zeros in their place only the last frame's taps count, so that each
//! is a convolution of two dimensions, and of its weights those taps alone are loaded. What doubles
//! and halves frames does nothing to the first one.
//!
//! One picture, or one tile of it, at a time: memory does not grow with the batch.

pub mod single;

use std::path::Path;

use serde::Deserialize;

use super::job::{LatentStatistics, VaeJob, VaeRange};
use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::Limits;
use crate::ops::attention::AttentionOp;
use crate::ops::conv2d::ConvOp;
use crate::weights::{WeightFiles, WeightsError};

/// Added to the mean square of a pixel's channels. `QwenImageRMS_norm` divides by the length, or by
/// 1e-12 where that is less (`torch.nn.functional.normalize`): of no channels that are not zero
/// throughout is the difference seen in f32.
const EPS: f32 = 1e-26;

const CONV3: ConvOp = ConvOp::same(3);
const CONV1: ConvOp = ConvOp::same(1);

/// Twice as many pixels along a side, and half as many with zeros below and to the right only
/// (`QwenImageResample`).
const UPSAMPLE: ConvOp = ConvOp { upsample: 2, ..CONV3 };
const DOWNSAMPLE: ConvOp = ConvOp { stride: 2, pad_before: 0, ..CONV3 };

/// The encoder's first weight: files without it hold a decoder alone.
const ENCODER_MARK: &str = "encoder.conv_in.weight";

/// Channels of a picture.
const PICTURE: usize = 3;

/// `vae/config.json`. Absent keys have the class defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct CausalVaeConfig {
    /// Channels of the outermost level, of which the others have multiples.
    #[serde(default = "base")]
    pub base_dim: usize,
    /// Channels of the latents.
    #[serde(default = "latents")]
    pub z_dim: usize,
    /// By what the channels of each level are multiplied, outermost first.
    #[serde(default = "multiples")]
    pub dim_mult: Vec<usize>,
    /// Residual blocks of an encoder level; decoder levels have one more.
    #[serde(default = "two")]
    pub num_res_blocks: usize,
    /// Where levels have attention: nowhere.
    #[serde(default)]
    pub attn_scales: Vec<f64>,
    /// Which of the levels but the last halve the frames, which one frame does not show.
    #[serde(default = "frames")]
    pub temperal_downsample: Vec<bool>,
    /// Channels of the picture.
    #[serde(default = "three")]
    pub input_channels: usize,
    /// What is taken from latents that leave the VAE, of each channel.
    #[serde(default = "published_means")]
    pub latents_mean: Vec<f32>,
    /// By what they are divided then.
    #[serde(default = "published_deviations")]
    pub latents_std: Vec<f32>,
}

fn base() -> usize {
    96
}

fn latents() -> usize {
    16
}

fn multiples() -> Vec<usize> {
    vec![1, 2, 4, 4]
}

fn two() -> usize {
    2
}

fn three() -> usize {
    PICTURE
}

fn frames() -> Vec<bool> {
    vec![false, true, true]
}

/// `latents_mean` and `latents_std` of every published VAE of the class, which are its defaults.
#[rustfmt::skip]
fn published_means() -> Vec<f32> {
    vec![
        -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
        0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
    ]
}

#[rustfmt::skip]
fn published_deviations() -> Vec<f32> {
    vec![
        2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
        3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
    ]
}

impl CausalVaeConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        limits.count("the number of dim_mult", self.dim_mult.len(), 6)?;
        limits.count("base_dim", self.base_dim, 1 << 12)?;
        limits.count("z_dim", self.z_dim, 1024)?;
        limits.count("num_res_blocks", self.num_res_blocks, 64)?;
        for level in 0..self.dim_mult.len() {
            limits.count("each of dim_mult", self.dim_mult[level], 64)?;
            let channels = self.channels(level);
            limits.count("the channels of each level", channels, 1 << 14)?;
            // Decoder levels but the last one halve theirs.
            limits.holds(level == 0 || channels.is_multiple_of(2), || {
                format!("the odd {channels} channels of a level cannot be halved")
            })?;
        }
        let (frames, levels) = (self.temperal_downsample.len(), self.dim_mult.len());
        limits.holds(frames + 1 == levels, || {
            format!("temperal_downsample has {frames} entries for {levels} levels")
        })?;
        limits.holds(self.attn_scales.is_empty(), || {
            format!("attn_scales are {:?}, expected none", self.attn_scales)
        })?;
        limits.holds(self.input_channels == PICTURE, || {
            format!("input_channels is {}, expected {PICTURE}", self.input_channels)
        })?;
        for (name, values) in
            [("latents_mean", &self.latents_mean), ("latents_std", &self.latents_std)]
        {
            limits.holds(values.len() == self.z_dim, || {
                format!("{name} has {} numbers for {} channels", values.len(), self.z_dim)
            })?;
            let sound = values.iter().all(|value| value.is_finite());
            limits.holds(sound, || format!("a number of {name} is not finite"))?;
        }
        let divide = self.latents_std.iter().all(|deviation| deviation.recip().is_normal());
        limits.holds(divide, || "a number of latents_std cannot be divided by".to_owned())
    }

    /// Channels of a level, counted from the outermost.
    fn channels(&self, level: usize) -> usize {
        self.base_dim.saturating_mul(self.dim_mult[level])
    }

    fn innermost(&self) -> usize {
        self.channels(self.dim_mult.len() - 1)
    }

    fn middle(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId, WeightsError> {
        let channels = self.innermost();
        let x = resnet(b, x, &format!("{name}.resnets.0"), channels)?;
        let x = attention(b, x, &format!("{name}.attentions.0"))?;
        resnet(b, x, &format!("{name}.resnets.1"), channels)
    }
}

impl VaeJob for CausalVaeConfig {
    fn scale(&self) -> usize {
        1 << (self.dim_mult.len() - 1)
    }

    fn latent_channels(&self) -> usize {
        self.z_dim
    }

    fn range(&self) -> VaeRange {
        let (means, deviations) = (self.latents_mean.clone(), self.latents_std.clone());
        VaeRange::Channels(LatentStatistics { means, deviations })
    }

    fn is_clamped(&self) -> bool {
        true
    }

    fn has_encoder(files: &WeightFiles) -> bool {
        files.tensor(ENCODER_MARK).is_some()
    }

    fn encoder(
        &self,
        files: &WeightFiles,
        height: usize,
        width: usize,
    ) -> Result<Graph, WeightsError> {
        let mut b = GraphBuilder::new(files);
        let shape = [1, self.scale() * height, self.scale() * width, PICTURE];
        let mut x = b.input("image", &shape, ElementType::F32);
        let levels = self.dim_mult.len();
        // Blocks and what stands between levels are numbered together.
        let mut block = 0;
        for level in 0..levels {
            b.segment(format!("down_blocks.{level}"));
            if level == 0 {
                x = b.frame_conv2d(None, x, ("encoder.conv_in", self.base_dim), CONV3)?;
            }
            let channels = self.channels(level);
            for _ in 0..self.num_res_blocks {
                x = resnet(&mut b, x, &format!("encoder.down_blocks.{block}"), channels)?;
                block += 1;
            }
            if level + 1 < levels {
                let name = format!("encoder.down_blocks.{block}.resample.1");
                x = b.conv2d(x, &name, channels, DOWNSAMPLE)?;
                block += 1;
            }
        }
        b.segment("mid_block");
        x = self.middle(&mut b, x, "encoder.mid_block")?; // [1, height, width, innermost]
        b.segment("conv_out");
        let moments = 2 * self.z_dim;
        let h = normalised(&mut b, x, "encoder.norm_out")?;
        x = b.frame_conv2d(None, h, ("encoder.conv_out", moments), CONV3)?;
        x = b.frame_conv2d(None, x, ("quant_conv", moments), CONV1)?;
        b.output("moments", x);
        Ok(b.finish())
    }

    fn decoder(
        &self,
        files: &WeightFiles,
        height: usize,
        width: usize,
    ) -> Result<Graph, WeightsError> {
        let mut b = GraphBuilder::new(files);
        let z = b.input("latents", &[1, height, width, self.z_dim], ElementType::F32);
        b.segment("mid_block");
        let x = b.frame_conv2d(None, z, ("post_quant_conv", self.z_dim), CONV1)?;
        let x = b.frame_conv2d(None, x, ("decoder.conv_in", self.innermost()), CONV3)?;
        let mut x = self.middle(&mut b, x, "decoder.mid_block")?; // [1, height, width, innermost]
        let levels = self.dim_mult.len();
        for index in 0..levels {
            b.segment(format!("up_blocks.{index}"));
            let (name, channels) =
                (format!("decoder.up_blocks.{index}"), self.channels(levels - 1 - index));
            for block in 0..=self.num_res_blocks {
                x = resnet(&mut b, x, &format!("{name}.resnets.{block}"), channels)?;
            }
            if index + 1 < levels {
                let name = format!("{name}.upsamplers.0.resample.1");
                x = b.conv2d(x, &name, channels / 2, UPSAMPLE)?;
            }
        }
        b.segment("conv_out");
        let h = normalised(&mut b, x, "decoder.norm_out")?;
        x = b.frame_conv2d(None, h, ("decoder.conv_out", PICTURE), CONV3)?;
        b.output("image", x);
        Ok(b.finish())
    }
}

/// What stands before most convolutions: each pixel's channels normalised, then x · sigmoid(x).
fn normalised(b: &mut GraphBuilder, x: ValueId, name: &str) -> Result<ValueId, WeightsError> {
    let shape = [b.shape(x)[3], 1, 1, 1];
    let h = b.pixel_norm(x, &format!("{name}.gamma"), &shape, EPS)?;
    Ok(b.activate(h, Activation::Silu))
}

fn resnet(
    b: &mut GraphBuilder,
    x: ValueId,
    name: &str,
    channels: usize,
) -> Result<ValueId, WeightsError> {
    let h = normalised(b, x, &format!("{name}.norm1"))?;
    let h = b.frame_conv2d(None, h, (&format!("{name}.conv1"), channels), CONV3)?;
    // After `conv1`, so that its result may take the place of x.
    let x = match b.shape(x)[3] == channels {
        true => x,
        false => b.frame_conv2d(None, x, (&format!("{name}.conv_shortcut"), channels), CONV1)?,
    };
    let h = normalised(b, h, &format!("{name}.norm2"))?;
    b.frame_conv2d(Some(x), h, (&format!("{name}.conv2"), channels), CONV3)
}

/// One head over all positions of the picture, which NHWC holds as rows already.
fn attention(b: &mut GraphBuilder, x: ValueId, name: &str) -> Result<ValueId, WeightsError> {
    let channels = b.shape(x)[3];
    let h = b.pixel_norm(x, &format!("{name}.norm.gamma"), &[channels, 1, 1], EPS)?;
    let q = b.conv2d(h, &format!("{name}.to_q"), channels, CONV1)?;
    let k = b.conv2d(h, &format!("{name}.to_k"), channels, CONV1)?;
    let v = b.conv2d(h, &format!("{name}.to_v"), channels, CONV1)?;
    let scale = (channels as f32).powf(-0.5);
    let op = AttentionOp { heads: 1, kv_heads: 1, scale, causal: false };
    let h = b.attention([q, k, v], None, op);
    let h = b.conv2d(h, &format!("{name}.proj"), channels, CONV1)?;
    Ok(b.add(h, x))
}
