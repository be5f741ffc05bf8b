//! LoRA files of the wide model's layers (`tests/wide.rs`).

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

/// Numbers that look random, from -1 to 1 (a linear congruential generator, Knuth's MMIX
/// constants).
fn noise(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / 8_388_608.0 - 1.0) * scale
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A file of factors of rank 4 for some layers of the DiT and of T5, and a tensor that matches
/// nothing.
pub fn write_lora(path: &Path, seed: u64) {
    let layers = [
        ("transformer.transformer_blocks.0.attn.to_q", 256, 256),
        ("transformer.transformer_blocks.1.ff.net.0.proj", 256, 1024),
        ("transformer.single_transformer_blocks.1.proj_out", 1280, 256),
        ("transformer.single_transformer_blocks.2.proj_mlp", 256, 1024),
        ("text_encoder_2.encoder.block.1.layer.0.SelfAttention.q", 256, 256),
    ];
    let mut tensors: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    let bytes = |values: Vec<f32>| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    for (index, (name, input, output)) in layers.into_iter().enumerate() {
        let seed = seed + 2 * index as u64;
        let (a, b) = (noise(seed, 4 * input, 0.3), noise(seed + 1, 4 * output, 0.3));
        tensors.insert(format!("{name}.lora_A.weight"), (vec![4, input], bytes(a)));
        tensors.insert(format!("{name}.lora_B.weight"), (vec![output, 4], bytes(b)));
    }
    let stray = ("transformer.nowhere.lora_A.weight".to_owned(), (vec![4, 4], vec![0; 64]));
    tensors.extend([stray]);
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}
