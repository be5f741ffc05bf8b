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

/// The VAE of every FLUX.2 model (`vae/config.json` of FLUX.2-dev and FLUX.2-klein-4B), whose
/// latents are in a range of their own (`vae::flux2`).
pub const FLUX2: Published =
    Published { scaling_factor: 1.0, shift_factor: 0.0, latent_channels: 32 };

/// The VAE of every Stable Diffusion 3 and 3.5 model (`vae/config.json` there).
pub const SD3: Published =
    Published { scaling_factor: 1.5305, shift_factor: 0.0609, latent_channels: 16 };

/// The colours of its latents: `SD3.latent_rgb_factors` of ComfyUI's `comfy/latent_formats.py`.
pub fn sd3_colours() -> RgbMap {
    let factors = vec![
        [-0.0922, -0.0175, 0.0749],
        [0.0311, 0.0633, 0.0954],
        [0.1994, 0.0927, 0.0458],
        [0.0856, 0.0339, 0.0902],
        [0.0587, 0.0272, -0.0496],
        [-0.0006, 0.1104, 0.0309],
        [0.0978, 0.0306, 0.0427],
        [-0.0042, 0.1038, 0.1358],
        [-0.0194, 0.0020, 0.0669],
        [-0.0488, 0.0130, -0.0268],
        [0.0922, 0.0988, 0.0951],
        [-0.0278, 0.0524, -0.0542],
        [0.0332, 0.0456, 0.0895],
        [-0.0069, -0.0030, -0.0810],
        [-0.0596, -0.0465, -0.0293],
        [-0.1448, -0.1463, -0.1189],
    ];
    RgbMap { factors, bias: [0.2394, 0.2135, 0.1925] }
}

/// The colours of FLUX.1's latents.
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

/// The colours of FLUX.2's latents.
pub fn flux2_colours() -> RgbMap {
    RgbMap { factors: FLUX2_RGB_FACTORS.to_vec(), bias: RGB_BIAS }
}

/// `Flux2.latent_rgb_factors` there, for cells of the sampler's tokens; the bias is FLUX.1's.
const FLUX2_RGB_FACTORS: [[f32; 3]; 32] = [
    [0.0058, 0.0113, 0.0073],
    [0.0495, 0.0443, 0.0836],
    [-0.0099, 0.0096, 0.0644],
    [0.2144, 0.3009, 0.3652],
    [0.0166, -0.0039, -0.0054],
    [0.0157, 0.0103, -0.0160],
    [-0.0398, 0.0902, -0.0235],
    [-0.0052, 0.0095, 0.0109],
    [-0.3527, -0.2712, -0.1666],
    [-0.0301, -0.0356, -0.0180],
    [-0.0107, 0.0078, 0.0013],
    [0.0746, 0.0090, -0.0941],
    [0.0156, 0.0169, 0.0070],
    [-0.0034, -0.0040, -0.0114],
    [0.0032, 0.0181, 0.0080],
    [-0.0939, -0.0008, 0.0186],
    [0.0018, 0.0043, 0.0104],
    [0.0284, 0.0056, -0.0127],
    [-0.0024, -0.0022, -0.0030],
    [0.1207, -0.0026, 0.0065],
    [0.0128, 0.0101, 0.0142],
    [0.0137, -0.0072, -0.0007],
    [0.0095, 0.0092, -0.0059],
    [0.0000, -0.0077, -0.0049],
    [-0.0465, -0.0204, -0.0312],
    [0.0095, 0.0012, -0.0066],
    [0.0290, -0.0034, 0.0025],
    [0.0220, 0.0169, -0.0048],
    [-0.0332, -0.0457, -0.0468],
    [-0.0085, 0.0389, 0.0609],
    [-0.0076, 0.0003, -0.0043],
    [-0.0111, -0.0460, -0.0614],
];
