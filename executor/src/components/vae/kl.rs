//! diffusers' `AutoencoderKL`: latents to picture, and picture to latents. Values are NHWC inside.
//!
//! One picture, or one tile of it, at a time: memory does not grow with the batch.

pub mod single;

use std::path::Path;

use serde::Deserialize;

use super::job::{VaeJob, VaeRange};
use crate::graph::{Activation, ElementType, Graph, GraphBuilder, ValueId};
use crate::models::ModelError;
use crate::models::config::{Limits, WIDTH_MAX};
use crate::ops::attention::AttentionOp;
use crate::ops::conv2d::{ConvNorm, ConvOp};
use crate::weights::{WeightFiles, WeightsError};

/// Added to the variance of each group (`Decoder`, `UNetMidBlock2D`).
const EPS: f32 = 1e-6;

const CONV3: ConvOp = ConvOp::same(3);
const CONV1: ConvOp = ConvOp::same(1);

/// Twice as many pixels along a side (`Upsample2D`).
const UPSAMPLE: ConvOp = ConvOp { upsample: 2, ..CONV3 };

/// Half as many, with zeros below and to the right only (`Downsample2D` of `DownEncoderBlock2D`).
const DOWNSAMPLE: ConvOp = ConvOp { stride: 2, pad_before: 0, ..CONV3 };

/// The encoder's first weight: files without it hold a decoder alone.
const ENCODER_MARK: &str = "encoder.conv_in.weight";

/// `vae/config.json`. Absent keys have the class defaults.
#[derive(Debug, Clone, Deserialize)]
pub struct VaeConfig {
    /// Channels of each level, outermost first.
    pub block_out_channels: Vec<usize>,
    /// Channels of the picture that the encoder takes.
    #[serde(default = "three")]
    pub in_channels: usize,
    /// Channels of the picture.
    #[serde(default = "three")]
    pub out_channels: usize,
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Residual blocks of an encoder level; decoder levels have one more.
    #[serde(default = "one")]
    pub layers_per_block: usize,
    /// Groups of every group normalisation.
    #[serde(default = "groups")]
    pub norm_num_groups: usize,
    /// Latents are divided by this before decoding.
    #[serde(default = "scaling")]
    pub scaling_factor: f32,
    /// And this is added to them then.
    #[serde(default)]
    pub shift_factor: Option<f32>,
    /// Whether the middle has attention.
    #[serde(default = "yes")]
    pub mid_block_add_attention: bool,
    /// Whether a 1×1 convolution stands behind the encoder.
    #[serde(default = "yes")]
    pub use_quant_conv: bool,
    /// Whether a 1×1 convolution stands before the decoder.
    #[serde(default = "yes")]
    pub use_post_quant_conv: bool,
    /// The activation throughout.
    #[serde(default = "silu")]
    pub act_fn: String,
}

fn one() -> usize {
    1
}

fn three() -> usize {
    3
}

fn groups() -> usize {
    32
}

/// `AutoencoderKL`'s class default, of Stable Diffusion 1.
fn scaling() -> f32 {
    0.18215
}

fn yes() -> bool {
    true
}

fn silu() -> String {
    "silu".to_owned()
}

impl VaeConfig {
    /// Checks the numbers against limits and each other.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let limits = Limits::of(path);
        limits.count("the number of block_out_channels", self.block_out_channels.len(), 6)?;
        limits.count("latent_channels", self.latent_channels, 1024)?;
        limits.count("layers_per_block", self.layers_per_block, 64)?;
        limits.count("norm_num_groups", self.norm_num_groups, WIDTH_MAX)?;
        for &channels in &self.block_out_channels {
            limits.count("each of block_out_channels", channels, 1 << 14)?;
            limits.holds(channels % self.norm_num_groups == 0, || {
                format!("{} groups do not divide {channels} channels", self.norm_num_groups)
            })?;
        }
        let channels = [("in_channels", self.in_channels), ("out_channels", self.out_channels)];
        for (name, channels) in channels {
            limits.holds(channels == 3, || format!("{name} is {channels}, expected 3"))?;
        }
        limits.holds(self.act_fn == "silu", || {
            format!("act_fn is `{}`, expected silu", self.act_fn)
        })?;
        let scales = self.scaling_factor.is_finite() && self.scaling_factor != 0.0;
        limits.holds(scales, || format!("scaling_factor is {}", self.scaling_factor))?;
        let shift = self.shift_factor.unwrap_or(0.0);
        limits.holds(shift.is_finite(), || format!("shift_factor is {shift}"))
    }

    /// Pixels along one side of a latent cell.
    pub fn scale(&self) -> usize {
        1 << (self.block_out_channels.len() - 1)
    }

    /// The graph: `latents` `[1, height, width, latent_channels]` → `image`
    /// `[1, scale × height, scale × width, 3]` of values about -1 to 1. `height` and `width` are of
    /// the latents.
    pub fn decoder(
        &self,
        files: &WeightFiles,
        height: usize,
        width: usize,
    ) -> Result<Graph, WeightsError> {
        let mut b = GraphBuilder::new(files);
        let z = b.input("latents", &[1, height, width, self.latent_channels], ElementType::F32);
        let innermost = *self.block_out_channels.last().expect("checked when opened");
        b.segment("mid_block");
        let mut x = z;
        if self.use_post_quant_conv {
            x = b.conv2d(x, "post_quant_conv", self.latent_channels, CONV1)?;
        }
        x = b.conv2d(x, "decoder.conv_in", innermost, CONV3)?; // [1, height, width, innermost]
        x = self.middle(&mut b, x, "decoder.mid_block", innermost)?;
        for (level, &channels) in self.block_out_channels.iter().rev().enumerate() {
            b.segment(format!("up_blocks.{level}"));
            let name = format!("decoder.up_blocks.{level}");
            for block in 0..=self.layers_per_block {
                x = self.resnet(&mut b, x, &format!("{name}.resnets.{block}"), channels)?;
            }
            if level + 1 < self.block_out_channels.len() {
                x = b.conv2d(x, &format!("{name}.upsamplers.0.conv"), channels, UPSAMPLE)?;
            }
        }
        b.segment("conv_out");
        let norm = ("decoder.conv_norm_out", self.norm());
        x = b.norm_conv2d(None, x, norm, ("decoder.conv_out", self.out_channels), CONV3)?;
        b.output("image", x);
        Ok(b.finish())
    }

    /// The graph: `image` `[1, scale × height, scale × width, 3]` of values -1 to 1 → `moments`
    /// `[1, height, width, 2 × latent_channels]`: means, then logarithms of variances. `height` and
    /// `width` are of the latents.
    pub fn encoder(
        &self,
        files: &WeightFiles,
        height: usize,
        width: usize,
    ) -> Result<Graph, WeightsError> {
        let mut b = GraphBuilder::new(files);
        let scale = self.scale();
        let shape = [1, scale * height, scale * width, self.in_channels];
        let mut x = b.input("image", &shape, ElementType::F32);
        for (level, &channels) in self.block_out_channels.iter().enumerate() {
            b.segment(format!("down_blocks.{level}"));
            if level == 0 {
                x = b.conv2d(x, "encoder.conv_in", channels, CONV3)?;
            }
            let name = format!("encoder.down_blocks.{level}");
            for block in 0..self.layers_per_block {
                x = self.resnet(&mut b, x, &format!("{name}.resnets.{block}"), channels)?;
            }
            if level + 1 < self.block_out_channels.len() {
                x = b.conv2d(x, &format!("{name}.downsamplers.0.conv"), channels, DOWNSAMPLE)?;
            }
        }
        b.segment("mid_block");
        let innermost = b.shape(x)[3];
        // [1, height, width, innermost]
        x = self.middle(&mut b, x, "encoder.mid_block", innermost)?;
        b.segment("conv_out");
        let moments = 2 * self.latent_channels;
        let norm = ("encoder.conv_norm_out", self.norm());
        x = b.norm_conv2d(None, x, norm, ("encoder.conv_out", moments), CONV3)?;
        if self.use_quant_conv {
            x = b.conv2d(x, "quant_conv", moments, CONV1)?;
        }
        b.output("moments", x);
        Ok(b.finish())
    }

    fn middle(
        &self,
        b: &mut GraphBuilder,
        mut x: ValueId,
        name: &str,
        channels: usize,
    ) -> Result<ValueId, WeightsError> {
        x = self.resnet(b, x, &format!("{name}.resnets.0"), channels)?;
        if self.mid_block_add_attention {
            x = self.attention(b, x, &format!("{name}.attentions.0"))?;
        }
        self.resnet(b, x, &format!("{name}.resnets.1"), channels)
    }

    fn resnet(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        name: &str,
        channels: usize,
    ) -> Result<ValueId, WeightsError> {
        let norm = self.norm();
        let (norm1, norm2) = (format!("{name}.norm1"), format!("{name}.norm2"));
        let (conv1, conv2) = (format!("{name}.conv1"), format!("{name}.conv2"));
        let h = b.norm_conv2d(None, x, (&norm1, norm), (&conv1, channels), CONV3)?;
        // After `conv1`, so that its result may take the place of x.
        let same = b.shape(x)[3] == channels;
        let x =
            if same { x } else { b.conv2d(x, &format!("{name}.conv_shortcut"), channels, CONV1)? };
        b.norm_conv2d(Some(x), h, (&norm2, norm), (&conv2, channels), CONV3)
    }

    /// What stands before most convolutions.
    fn norm(&self) -> ConvNorm {
        ConvNorm { groups: self.norm_num_groups, eps: EPS, silu: true }
    }

    /// One head over all positions of the picture, which NHWC holds as rows already.
    fn attention(
        &self,
        b: &mut GraphBuilder,
        x: ValueId,
        name: &str,
    ) -> Result<ValueId, WeightsError> {
        let channels = b.shape(x)[3];
        let h = b.group_norm(x, &format!("{name}.group_norm"), self.norm_num_groups, EPS, false)?;
        let q = b.linear(&[h], &format!("{name}.to_q"), channels, Activation::None)?;
        let k = b.linear(&[h], &format!("{name}.to_k"), channels, Activation::None)?;
        let v = b.linear(&[h], &format!("{name}.to_v"), channels, Activation::None)?;
        let scale = (channels as f32).powf(-0.5);
        let h = b.attention(
            [q, k, v],
            None,
            AttentionOp { heads: 1, kv_heads: 1, scale, causal: false },
        );
        let h = b.linear(&[h], &format!("{name}.to_out.0"), channels, Activation::None)?;
        Ok(b.add(h, x))
    }
}

impl VaeJob for VaeConfig {
    fn scale(&self) -> usize {
        self.scale()
    }

    fn latent_channels(&self) -> usize {
        self.latent_channels
    }

    fn range(&self) -> VaeRange {
        let shift = self.shift_factor.unwrap_or(0.0);
        VaeRange::Scaled { scaling: self.scaling_factor, shift }
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
        self.encoder(files, height, width)
    }

    fn decoder(
        &self,
        files: &WeightFiles,
        height: usize,
        width: usize,
    ) -> Result<Graph, WeightsError> {
        self.decoder(files, height, width)
    }
}
