//! A reference model with a transformer of random weights whose matrices are large enough to be
//! split by rows.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use crate::support::fixture;

/// Width of the streams, in four heads.
const WIDTH: usize = 256;
const HEAD: usize = 64;

/// The sizes of the reference model's tensors with those of the wide one in their place.
fn widened(name: &str, shape: &[usize]) -> Vec<usize> {
    let wide = |size: &usize| match size {
        16 => HEAD,
        // Widths and their multiples: chunks of modulations, feed-forward layers.
        64 | 128 | 256 | 384 | 576 => size * WIDTH / 64,
        other => *other,
    };
    let mut shape: Vec<usize> = shape.iter().map(wide).collect();
    // Latents, sinusoids and the texts stay as wide as they are.
    match name {
        "pos_embed.proj.weight" => shape[1] = 16,
        "proj_out.weight" | "proj_out.bias" => shape[0] = 64,
        "time_text_embed.timestep_embedder.linear_1.weight" => shape[1] = 256,
        _ => {}
    }
    shape
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
    let from = fixture("sd35_medium");
    fs::create_dir(dir).expect("a directory");
    for entry in fs::read_dir(&from).expect("the reference model") {
        let (from, name) = entry.map(|entry| (entry.path(), entry.file_name())).expect("an entry");
        if from.is_file() {
            fs::copy(&from, dir.join(name)).expect("a file");
            continue;
        }
        fs::create_dir(dir.join(&name)).expect("a directory");
        for entry in fs::read_dir(from).expect("a part") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), dir.join(&name).join(entry.file_name())).expect("a file");
        }
    }
    let config = dir.join("transformer/config.json");
    let text = fs::read_to_string(&config).expect("a configuration");
    let mut document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    document["attention_head_dim"] = json!(HEAD);
    document["caption_projection_dim"] = json!(WIDTH);
    fs::write(&config, document.to_string()).expect("the copy can be written");

    let weights = dir.join("transformer/diffusion_pytorch_model.safetensors");
    let bytes = fs::read(&weights).expect("weights");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors = Vec::new();
    for (index, (name, view)) in file.tensors().into_iter().enumerate() {
        let shape = widened(&name, view.shape());
        let count = shape.iter().product();
        // Norms stay about 1, and sums of products too.
        let is_norm = shape.len() == 1 && name.ends_with("weight");
        let inner: usize = shape[1..].iter().product();
        let scale = if is_norm { 0.1 } else { 1.7 / (inner.max(1) as f32).sqrt() };
        let scale = if shape.len() == 1 { 0.1 } else { scale };
        let value = |x: f32| x * scale + f32::from(u8::from(is_norm));
        let bytes = noise(index as u64, count).flat_map(|x| value(x).to_le_bytes()).collect();
        tensors.push((name, shape, bytes));
    }
    let views = tensors.iter().map(|(name, shape, bytes): &(String, Vec<usize>, Vec<u8>)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, &weights).expect("a file system with room");
}
