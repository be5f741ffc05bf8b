//! Latents: packing into tokens and back, and reading them from a file.

use std::path::Path;

use crate::models::flux::PATCH;
use crate::weights::{WeightFiles, WeightsError};

/// Height, width and channels of unpacked latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channels.
    pub channels: usize,
}

impl LatentShape {
    /// Where an element of a packed picture `[height / 2 × width / 2, channels × 2 × 2]` lies.
    fn packed(self, channel: usize, y: usize, x: usize) -> usize {
        let token = (y / PATCH) * (self.width / PATCH) + x / PATCH;
        let feature = (channel * PATCH + y % PATCH) * PATCH + x % PATCH;
        token * self.channels * PATCH * PATCH + feature
    }

    fn each(self, mut visit: impl FnMut(usize, usize, usize)) {
        for channel in 0..self.channels {
            for y in 0..self.height {
                for x in 0..self.width {
                    visit(channel, y, x);
                }
            }
        }
    }
}

/// One picture's latents `[channels, height, width]` as tokens (`FluxPipeline._pack_latents`).
pub fn pack(shape: LatentShape, nchw: &[f32], packed: &mut [f32]) {
    assert_eq!(nchw.len(), packed.len(), "packing keeps the number of elements");
    shape.each(|c, y, x| {
        packed[shape.packed(c, y, x)] = nchw[(c * shape.height + y) * shape.width + x]
    });
}

/// One picture's tokens as `[height, width, channels]`, divided by `scaling` and moved by `shift`.
pub fn unpack_for_vae(
    shape: LatentShape,
    packed: &[f32],
    scaling: f32,
    shift: f32,
    nhwc: &mut [f32],
) {
    assert_eq!(nhwc.len(), packed.len(), "unpacking keeps the number of elements");
    shape.each(|c, y, x| {
        let value = packed[shape.packed(c, y, x)] / scaling + shift;
        nhwc[(y * shape.width + x) * shape.channels + c] = value;
    });
}

/// Reads the initial latents of a batch from a safetensors file: `latents_init` (tokens) or else `noise_nchw`.
pub fn read_initial(
    path: &Path,
    shape: LatentShape,
    batch: usize,
    packed: &mut [f32],
) -> Result<(), WeightsError> {
    let files = WeightFiles::open_file(path)?;
    let item = shape.height * shape.width * shape.channels;
    if files.tensor("latents_init").is_some() {
        let tokens = shape.height * shape.width / (PATCH * PATCH);
        let tensor = files.require("latents_init", &[batch, tokens, item / tokens])?;
        packed.copy_from_slice(&tensor.view(&files).to_f32());
        return Ok(());
    }
    let tensor =
        files.require("noise_nchw", &[batch, shape.channels, shape.height, shape.width])?;
    let nchw = tensor.view(&files).to_f32();
    for (source, target) in nchw.chunks(item).zip(packed.chunks_mut(item)) {
        pack(shape, source, target);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpacking_undoes_packing() {
        let shape = LatentShape { height: 4, width: 6, channels: 3 };
        let nchw: Vec<f32> = (0..72).map(|i| i as f32).collect();
        let mut packed = vec![0.0; 72];
        pack(shape, &nchw, &mut packed);
        // The first token holds the first 2 × 2 cells of each channel.
        assert_eq!(
            packed[..12],
            [0.0, 1.0, 6.0, 7.0, 24.0, 25.0, 30.0, 31.0, 48.0, 49.0, 54.0, 55.0]
        );
        let mut nhwc = vec![0.0; 72];
        unpack_for_vae(shape, &packed, 2.0, 1.0, &mut nhwc);
        for (i, value) in nchw.iter().enumerate() {
            let (c, cell) = (i / 24, i % 24);
            assert_eq!(nhwc[cell * 3 + c], value / 2.0 + 1.0);
        }
    }
}
