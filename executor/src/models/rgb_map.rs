//! From latents to colours without the VAE, for previews: each cell's channels, as the sampler has
//! them, times a matrix.

use std::path::Path;

use protocol::GraphOptions;
use serde::Deserialize;

use super::ModelError;
use super::buffers::{BufferPlace, BufferSpec, PREVIEW};
use super::config::Limits;

/// A linear map of a cell's channels onto red, green and blue, of -1 to 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RgbMap {
    /// What each channel adds to each colour.
    pub factors: Vec<[f32; 3]>,
    /// What is added besides.
    pub bias: [f32; 3],
}

impl RgbMap {
    /// An error in a model's own map, which its file `path` has.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let numbers = self.factors.iter().chain([&self.bias]).flatten();
        let sound = numbers.copied().all(f32::is_finite);
        Limits::of(path).holds(sound, || "a number of [preview] is not finite".to_owned())
    }

    /// The buffer that previews of latents `[height, width, channels]` are shown in: a pixel for
    /// each cell, and none where the options ask for no previews.
    ///
    /// # Errors
    /// Previews are asked for, and the map is for latents of another number of channels.
    pub fn buffer(
        &self,
        latents: [usize; 3],
        options: &GraphOptions,
    ) -> Result<BufferSpec, ModelError> {
        let [height, width, channels] = latents;
        let spec = BufferSpec::pixels(PREVIEW, &[height, width, 3], BufferPlace::Lent);
        if options.preview_every == 0 {
            return Ok(spec.copies(0));
        }
        let known = self.factors.len();
        if known != channels {
            return Err(ModelError::Job(format!(
                "previews are told by {known} channels of latents, and the model has {channels}; hint: leave \
                 --preview out, or give its berth.toml a table [preview] with {channels} rows of factors"
            )));
        }
        Ok(spec)
    }

    /// The colour of a cell.
    pub fn rgb(&self, channels: impl Iterator<Item = f32>) -> [f32; 3] {
        let mut rgb = self.bias;
        for (value, factors) in channels.zip(&self.factors) {
            for (sum, factor) in rgb.iter_mut().zip(factors) {
                *sum += value * factor;
            }
        }
        rgb
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_bias_and_what_its_channels_add() {
        let map =
            RgbMap { factors: vec![[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], bias: [0.1, 0.2, 0.3] };
        assert_eq!(map.rgb([2.0, 4.0].into_iter()), [4.1, 8.2, -1.7]);
    }
}
