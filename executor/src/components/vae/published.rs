//! Published VAEs: what their configurations say and shapes do not.

use crate::models::rgb_map::RgbMap;

/// What a configuration says and shapes do not.
pub struct Published {
    /// Latents are divided by this before decoding.
    pub scaling_factor: f32,
    /// And this is added to them then.
    pub shift_factor: f32,
    /// The latents' channels, by which the VAE is known.
    pub latent_channels: usize,
}

/// The VAE of every FLUX.1 model (`vae/config.json` of FLUX.1-schnell and FLUX.1-dev), and of other
/// families that took it over.
pub const FLUX1: Published =
    Published { scaling_factor: 0.3611, shift_factor: 0.1159, latent_channels: 16 };

/// The colours of its latents.
pub fn flux1_colours() -> RgbMap {
    RgbMap { factors: RGB_FACTORS.to_vec(), bias: RGB_BIAS }
}

/// The colours of the latents of Wan's and Qwen-Image's VAE: `Wan21.latent_rgb_factors` and
/// `latent_rgb_factors_bias` there, likewise for latents in the sampler's range.
pub fn causal_colours() -> RgbMap {
    RgbMap { factors: CAUSAL_FACTORS.to_vec(), bias: [-0.1835, -0.0868, -0.3360] }
}

const CAUSAL_FACTORS: [[f32; 3]; 16] = [
    [-0.1299, -0.1692, 0.2932],
    [0.0671, 0.0406, 0.0442],
    [0.3568, 0.2548, 0.1747],
    [0.0372, 0.2344, 0.1420],
    [0.0313, 0.0189, -0.0328],
    [0.0296, -0.0956, -0.0665],
    [-0.3477, -0.4059, -0.2925],
    [0.0166, 0.1902, 0.1975],
    [-0.0412, 0.0267, -0.1364],
    [-0.1293, 0.0740, 0.1636],
    [0.0680, 0.3019, 0.1128],
    [0.0032, 0.0581, 0.0639],
    [-0.1251, 0.0927, 0.1699],
    [0.0060, -0.0633, 0.0005],
    [0.3477, 0.2275, 0.2950],
    [0.1984, 0.0913, 0.1861],
];

/// The map of FLUX.1's VAE: `Flux.latent_rgb_factors` of ComfyUI's `comfy/latent_formats.py`. It is
/// for latents in the sampler's range, before they are unscaled for the VAE (`latent_preview.py`
/// gives it those).
const RGB_FACTORS: [[f32; 3]; 16] = [
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
const RGB_BIAS: [f32; 3] = [-0.0329, -0.0718, -0.0851];
