//! The reference model with a DiT of random weights whose matrices are large enough to be split by
//! rows.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use super::MODEL;
use crate::support::damaged::copy;
use crate::support::fixture;

/// How much wider it is, and its heads with it.
const WIDER: usize = 4;

/// Layers of which one side is that of tokens, states or sinusoids, which stay as they are.
const OUTER: [(&str, usize); 4] = [
    ("x_embedder.weight", 1),
    ("context_embedder.weight", 1),
    ("time_guidance_embed.timestep_embedder.linear_1.weight", 1),
    ("proj_out.weight", 0),
];

fn widened(name: &str, shape: &[usize]) -> Vec<usize> {
    let stays = |side: usize| OUTER.contains(&(name, side));
    let widen = |(side, size): (usize, &usize)| if stays(side) { *size } else { WIDER * size };
    shape.iter().enumerate().map(widen).collect()
}

/// Numbers that look random, from -1 to 1 (a linear congruential generator, Knuth's MMIX
/// constants).
fn noise(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    })
    .take(count)
}

/// Writes the model to a directory.
pub fn write(dir: &Path) {
    copy(&fixture(MODEL), dir);
    let config = dir.join("transformer/config.json");
    let text = fs::read_to_string(&config).expect("a configuration");
    let mut document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for key in ["attention_head_dim", "axes_dims_rope"] {
        document[key] = match &document[key] {
            serde_json::Value::Array(axes) => axes
                .iter()
                .map(|axis| json!(WIDER as u64 * axis.as_u64().expect("a width")))
                .collect(),
            width => json!(WIDER as u64 * width.as_u64().expect("a width")),
        };
    }
    fs::write(&config, document.to_string()).expect("the copy can be written");

    let weights = dir.join("transformer/diffusion_pytorch_model.safetensors");
    let bytes = fs::read(&weights).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors = Vec::new();
    for (index, (name, view)) in file.tensors().into_iter().enumerate() {
        let shape = widened(&name, view.shape());
        let count = shape.iter().product();
        // Norms stay about 1, and sums of products too.
        let is_norm = shape.len() == 1;
        let inner = *shape.last().expect("a tensor has dimensions") as f32;
        let scale = if is_norm { 0.1 } else { 1.7 / inner.sqrt() };
        let value = |x: f32| x * scale + f32::from(u8::from(is_norm));
        let bytes = noise(index as u64, count).flat_map(|x| value(x).to_le_bytes()).collect();
        tensors.push((name, shape, bytes));
    }
    let views = tensors.iter().map(|(name, shape, bytes): &(String, Vec<usize>, Vec<u8>)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, &weights).expect("a file system with room");
}
