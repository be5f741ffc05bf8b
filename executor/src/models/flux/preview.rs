//! From latents to colours without the VAE, for previews: each cell's channels, as the sampler has
//! them, times a matrix.

use std::path::Path;

use serde::Deserialize;

use crate::models::ModelError;
use crate::models::config::Limits;

/// A linear map of a cell's channels onto red, green and blue, of -1 to 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RgbMap {
    /// What each channel adds to each colour.
    pub factors: Vec<[f32; 3]>,
    /// What is added besides.
    pub bias: [f32; 3],
}

/// The map of FLUX.1's VAE: `Flux.latent_rgb_factors` of ComfyUI's `comfy/latent_formats.py`. It is
/// for latents in the sampler's range, before they are unscaled for the VAE (`latent_preview.py`
/// gives it those).
const PUBLISHED: [[f32; 3]; 16] = [
    [-0.0346, 0.0244, 0.0681],
    [0.0034, 0.0210, 0.0687],
    [0.0275, -0.0668, -0.0433],
    [-0.0174, 0.0160, 0.0617],
    [0.0859, 0.0721, 0.0329],
    [0.0004, 0.0383, 0.0115],
    [0.0405, 0.0861, 0.0915],
    [-0.0236, -0.0185, -0.0259],
    [-0.0245, 0.0250, 0.1180],
    [0.1008, 0.0755, -0.0421],
    [-0.0515, 0.0201, 0.0011],
    [0.0428, -0.0012, -0.0036],
    [0.0817, 0.0765, 0.0749],
    [-0.1264, -0.0522, -0.1103],
    [-0.0280, -0.0881, -0.0499],
    [-0.1262, -0.0982, -0.0778],
];

/// `Flux.latent_rgb_factors_bias` there.
const PUBLISHED_BIAS: [f32; 3] = [-0.0329, -0.0718, -0.0851];

impl RgbMap {
    /// The map of published FLUX.1 models.
    pub fn published() -> RgbMap {
        RgbMap { factors: PUBLISHED.to_vec(), bias: PUBLISHED_BIAS }
    }

    /// An error in a model's own map, which its file `path` has.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        let numbers = self.factors.iter().chain([&self.bias]).flatten();
        let sound = numbers.copied().all(f32::is_finite);
        Limits::of(path).holds(sound, || "a number of [preview] is not finite".to_owned())
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
        assert_eq!(RgbMap::published().rgb([0.0; 16].into_iter()), PUBLISHED_BIAS);
    }
}
