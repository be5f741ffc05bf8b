//! Latents: packing into tokens and back, and reading them from a file.

use std::path::Path;

use crate::components::vae::job::VaeRange;
use crate::components::vae::tiles::CellSpan;
use crate::sampling::add_noise;
use crate::weights::{WeightFiles, WeightsError};

/// Height, width and channels of unpacked latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Values of one place.
    pub channels: usize,
    /// How cells become tokens.
    pub packing: Packing,
}

/// How a family packs cells of latents into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// Cells along a side of a token, of which height and width are multiples.
    pub patch: usize,
    /// How a token's features stand.
    pub order: FeatureOrder,
}

/// The order of a token's features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureOrder {
    /// The cells of a channel, row by row, then those of the next one.
    ChannelsFirst,
    /// The channels of a cell, then those of the next one, row by row.
    ChannelsLast,
}

impl LatentShape {
    /// Elements of one picture's latents.
    pub fn elements(self) -> usize {
        self.height * self.width * self.channels
    }

    /// Tokens of one picture.
    pub fn tokens(self) -> usize {
        (self.height / self.packing.patch) * (self.width / self.packing.patch)
    }

    /// Features of a token.
    pub fn features(self) -> usize {
        self.channels * self.packing.patch * self.packing.patch
    }

    /// The packed latents of a batch: `[batch, tokens, features]`.
    pub fn packed_batch(self, batch: usize) -> [usize; 3] {
        [batch, self.tokens(), self.features()]
    }

    /// Where an element of a packed picture `[tokens, channels × patch × patch]` lies.
    pub fn packed(self, channel: usize, y: usize, x: usize) -> usize {
        let Packing { patch, order } = self.packing;
        let token = (y / patch) * (self.width / patch) + x / patch;
        let feature = match order {
            FeatureOrder::ChannelsFirst => (channel * patch + y % patch) * patch + x % patch,
            FeatureOrder::ChannelsLast => (y % patch * patch + x % patch) * self.channels + channel,
        };
        token * self.features() + feature
    }

    /// The same latents as cells of tokens, each with all features of one.
    pub fn of_tokens(self) -> LatentShape {
        let patch = self.packing.patch;
        LatentShape {
            height: self.height / patch,
            width: self.width / patch,
            channels: self.features(),
            packing: Packing { patch: 1, order: FeatureOrder::ChannelsFirst },
        }
    }

    /// All rows and all columns.
    pub fn whole(self) -> [CellSpan; 2] {
        [self.height, self.width].map(|len| CellSpan { start: 0, len })
    }

    fn each(self, visit: impl FnMut(usize, usize, usize)) {
        self.each_of(self.whole(), visit);
    }

    fn each_of(self, [rows, columns]: [CellSpan; 2], mut visit: impl FnMut(usize, usize, usize)) {
        for channel in 0..self.channels {
            for y in rows.start..rows.start + rows.len {
                for x in columns.start..columns.start + columns.len {
                    visit(channel, y, x);
                }
            }
        }
    }
}

/// One picture's latents `[channels, height, width]` as tokens.
pub fn pack(shape: LatentShape, nchw: &[f32], packed: &mut [f32]) {
    assert_eq!(nchw.len(), packed.len(), "packing keeps the number of elements");
    shape.each(|c, y, x| {
        packed[shape.packed(c, y, x)] = nchw[(c * shape.height + y) * shape.width + x]
    });
}

/// Some rows and columns of one picture's tokens as `[rows, columns, channels]` in the VAE's range.
pub fn unpack_for_vae(
    shape: LatentShape,
    [rows, columns]: [CellSpan; 2],
    packed: &[f32],
    range: &VaeRange,
    nhwc: &mut [f32],
) {
    assert_eq!(nhwc.len(), rows.len * columns.len * shape.channels, "a value for each cell");
    shape.each_of([rows, columns], |c, y, x| {
        let at = shape.packed(c, y, x);
        let value = range.to_vae(c, at % shape.features(), packed[at]);
        nhwc[((y - rows.start) * columns.len + x - columns.start) * shape.channels + c] = value;
    });
}

/// Least and largest logarithm of a variance (`DiagonalGaussianDistribution`).
const LOG_VARIANCE: (f32, f32) = (-30.0, 20.0);

/// Draws one picture's latents as tokens from what the VAE's encoder says of them: `moments`
/// `[height, width, 2 × channels]`, means before logarithms of variances, and `noise`
/// `[channels, height, width]`.
pub fn draw(
    shape: LatentShape,
    moments: &[f32],
    noise: &[f32],
    range: &VaeRange,
    packed: &mut [f32],
) {
    assert_eq!(moments.len(), 2 * noise.len(), "a mean and a variance for each element");
    shape.each(|c, y, x| {
        let cell = y * shape.width + x;
        let [mean, log_variance] =
            [c, shape.channels + c].map(|at| moments[cell * 2 * shape.channels + at]);
        let deviation = (0.5 * log_variance.clamp(LOG_VARIANCE.0, LOG_VARIANCE.1)).exp();
        let drawn = mean + deviation * noise[c * shape.height * shape.width + cell];
        let at = shape.packed(c, y, x);
        packed[at] = range.out_of_vae(c, at % shape.features(), drawn);
    });
}

/// Brings one picture's tokens to a noise level by noise `[channels, height, width]`.
pub fn noise_tokens(shape: LatentShape, noise: &[f32], sigma: f32, packed: &mut [f32]) {
    assert_eq!(noise.len(), packed.len(), "noise for each element");
    shape.each(|c, y, x| {
        let token = &mut packed[shape.packed(c, y, x)];
        *token = add_noise(*token, noise[(c * shape.height + y) * shape.width + x], sigma);
    });
}

/// Reads the initial latents of a batch from a safetensors file: `latents_init` (tokens) or else
/// `noise_nchw`.
pub fn read_initial(
    path: &Path,
    shape: LatentShape,
    batch: usize,
    packed: &mut [f32],
) -> Result<(), WeightsError> {
    let files = WeightFiles::open_file(path)?;
    if files.tensor("latents_init").is_some() {
        let tensor = files.require("latents_init", &shape.packed_batch(batch))?;
        packed.copy_from_slice(&tensor.view(&files).to_f32());
        return Ok(());
    }
    let tensor =
        files.require("noise_nchw", &[batch, shape.channels, shape.height, shape.width])?;
    let nchw = tensor.view(&files).to_f32();
    let item = shape.elements();
    for (source, target) in nchw.chunks(item).zip(packed.chunks_mut(item)) {
        pack(shape, source, target);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::components::vae::job::LatentStatistics;

    const PACKING: Packing = Packing { patch: 2, order: FeatureOrder::ChannelsFirst };

    #[test]
    fn a_tokens_features_stand_in_the_familys_order() {
        let packing = Packing { patch: 2, order: FeatureOrder::ChannelsLast };
        let shape = LatentShape { height: 2, width: 4, channels: 3, packing };
        let nchw: Vec<f32> = (0..24).map(|i| i as f32).collect();
        let mut packed = vec![0.0; 24];
        pack(shape, &nchw, &mut packed);
        let first = [0.0, 8.0, 16.0, 1.0, 9.0, 17.0, 4.0, 12.0, 20.0, 5.0, 13.0, 21.0];
        assert_eq!(packed[..12], first);
        let mut nhwc = vec![0.0; 24];
        unpack_for_vae(shape, shape.whole(), &packed, &VaeRange::SAME, &mut nhwc);
        for (i, value) in nchw.iter().enumerate() {
            let (c, cell) = (i / 8, i % 8);
            assert_eq!(nhwc[cell * 3 + c], *value);
        }
    }

    #[test]
    fn unpacking_undoes_packing() {
        let shape = LatentShape { height: 4, width: 6, channels: 3, packing: PACKING };
        let nchw: Vec<f32> = (0..72).map(|i| i as f32).collect();
        let mut packed = vec![0.0; 72];
        pack(shape, &nchw, &mut packed);
        // The first token holds the first 2 × 2 cells of each channel.
        assert_eq!(
            packed[..12],
            [0.0, 1.0, 6.0, 7.0, 24.0, 25.0, 30.0, 31.0, 48.0, 49.0, 54.0, 55.0]
        );
        let mut nhwc = vec![0.0; 72];
        let range = VaeRange::Scaled { scaling: 2.0, shift: 1.0 };
        unpack_for_vae(shape, shape.whole(), &packed, &range, &mut nhwc);
        for (i, value) in nchw.iter().enumerate() {
            let (c, cell) = (i / 24, i % 24);
            assert_eq!(nhwc[cell * 3 + c], value / 2.0 + 1.0);
        }
        let part = [CellSpan { start: 1, len: 3 }, CellSpan { start: 4, len: 2 }];
        let mut few = vec![0.0; 18];
        unpack_for_vae(shape, part, &packed, &range, &mut few);
        for (i, value) in few.iter().enumerate() {
            let (y, x, c) = (1 + i / 6, 4 + i / 3 % 2, i % 3);
            assert_eq!(*value, nhwc[(y * 6 + x) * 3 + c]);
        }
    }

    #[test]
    fn drawn_latents_follow_their_moments() {
        let shape = LatentShape { height: 2, width: 2, channels: 1, packing: PACKING };
        // The variance of the last one is beyond what is used.
        let moments = [1.0, 0.0, 2.0, 2.0, 3.0, -40.0, 4.0, 50.0];
        let range = VaeRange::Scaled { scaling: 2.0, shift: 0.5 };
        let mut packed = [0.0; 4];
        draw(shape, &moments, &[0.5, -1.0, 7.0, 1.0], &range, &mut packed);
        let deviations = [1.0, 1.0_f32.exp(), (-15.0_f32).exp(), 10.0_f32.exp()];
        assert_eq!(packed[0], 2.0 * (1.0 + 0.5 * deviations[0] - 0.5));
        assert_eq!(packed[1], 2.0 * (2.0 - deviations[1] - 0.5));
        assert_eq!(packed[2], 2.0 * (3.0 + 7.0 * deviations[2] - 0.5));
        assert_eq!(packed[3], 2.0 * (4.0 + deviations[3] - 0.5));
        noise_tokens(shape, &[1.0, 2.0, 3.0, 4.0], 1.0, &mut packed);
        assert_eq!(packed, [1.0, 2.0, 3.0, 4.0]);
        noise_tokens(shape, &[5.0, 6.0, 7.0, 8.0], 0.25, &mut packed);
        assert_eq!(packed, [2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn each_feature_of_a_token_may_have_a_range_of_its_own() {
        let shape = LatentShape { height: 2, width: 4, channels: 1, packing: PACKING };
        let range = VaeRange::Features(LatentStatistics {
            means: vec![1.0, 2.0, 3.0, 4.0],
            deviations: vec![1.0, 2.0, 4.0, 8.0],
        });
        let mut nhwc = [0.0; 8];
        unpack_for_vae(shape, shape.whole(), &[1.0; 8], &range, &mut nhwc);
        // Rows of cells: the first two features of each token, then the others.
        assert_eq!(nhwc, [2.0, 4.0, 2.0, 4.0, 7.0, 12.0, 7.0, 12.0]);
        let moments: Vec<f32> = nhwc.iter().flat_map(|&mean| [mean, 0.0]).collect();
        let mut packed = [0.0; 8];
        draw(shape, &moments, &[0.0; 8], &range, &mut packed);
        assert_eq!(packed, [1.0; 8]);
        // Noise of tokens is of all first features, then of all second ones.
        let noise: Vec<f32> = (0..8).map(|i| i as f32).collect();
        pack(shape.of_tokens(), &noise, &mut packed);
        assert_eq!(packed, [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
    }
}
