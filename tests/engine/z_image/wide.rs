//! The reference model with a DiT of random weights whose matrices are large enough to be split by
//! rows.

use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use crate::support::fixture;

/// Width of the residual stream, in two heads; of the feed-forward layers (`int(dim / 3 * 8)`).
const DIM: usize = 256;
const HEAD: usize = 128;
const MLP: usize = 682;

/// The sizes of the reference model's tensors with those of the wide one in their place.
fn widened(name: &str, shape: &[usize]) -> Vec<usize> {
    let wide = |size: &usize| match size {
        32 => HEAD,
        64 => DIM,
        170 => MLP,
        other => *other,
    };
    let mut shape: Vec<usize> = shape.iter().map(wide).collect();
    // Tokens of latents and the text encoder stay as wide as they are.
    match name {
        "all_x_embedder.2-1.weight" | "cap_embedder.1.weight" => shape[1] = 64,
        "all_final_layer.2-1.linear.weight" | "all_final_layer.2-1.linear.bias" => shape[0] = 64,
        "cap_embedder.0.weight" => shape[0] = 64,
        _ if name.contains("adaLN_modulation.0") => shape[0] = 4 * DIM,
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
    let from = fixture("zimage_turbo");
    fs::create_dir(dir).expect("a directory");
    fs::copy(from.join("model_index.json"), dir.join("model_index.json")).expect("an index");
    for part in ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"] {
        fs::create_dir(dir.join(part)).expect("a directory");
        for entry in fs::read_dir(from.join(part)).expect("a part") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), dir.join(part).join(entry.file_name())).expect("a file");
        }
    }
    let config = dir.join("transformer/config.json");
    let text = fs::read_to_string(&config).expect("a configuration");
    let mut document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    document["dim"] = json!(DIM);
    document["axes_dims"] = json!([32, 48, 48]);
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
