//! LoRA by the names of diffusers, of ComfyUI and of kohya's sd-scripts.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::support::{Home, fixture, pixels};

/// Numbers that look random, from -1 to 1 (a linear congruential generator, Knuth's MMIX
/// constants).
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Factors of rank 4 for layers of 64 features, by the names of a module and of its two factors.
fn write(path: &Path, modules: &[(&str, usize, Vec<f32>)], [down, up]: [&str; 2]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = Vec::new();
    for (module, rows, b) in modules {
        let a = bytes(&noise(1, 4 * 64));
        tensors.push((format!("{module}.{down}"), vec![4, 64], a));
        tensors.push((format!("{module}.{up}"), vec![*rows, 4], bytes(b)));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}

#[test]
fn one_lora_has_one_effect_by_every_name() {
    let home = Home::new();
    let parts = [2, 3, 4].map(|seed| noise(seed, 64 * 4));
    let [q, k, v] = parts.clone();
    let (out, llm) = (noise(5, 64 * 4), noise(6, 96 * 4));
    let peft = [
        ("transformer.layers.1.attention.to_q", 64, q),
        ("transformer.layers.1.attention.to_k", 64, k),
        ("transformer.layers.1.attention.to_v", 64, v),
        ("transformer.noise_refiner.0.attention.to_out.0", 64, out.clone()),
        ("text_encoder.model.layers.0.self_attn.q_proj", 96, llm.clone()),
    ];
    write(&home.path("peft.safetensors"), &peft, ["lora_A.weight", "lora_B.weight"]);
    let comfy = [
        ("diffusion_model.layers.1.attention.qkv", 192, parts.concat()),
        ("diffusion_model.noise_refiner.0.attention.out", 64, out.clone()),
        ("text_encoders.qwen3_4b.transformer.model.layers.0.self_attn.q_proj", 96, llm.clone()),
    ];
    write(&home.path("comfy.safetensors"), &comfy, ["lora_A.weight", "lora_B.weight"]);
    let kohya = [
        ("lora_unet_layers_1_attention_qkv", 192, parts.concat()),
        ("lora_unet_noise_refiner_0_attention_to_out_0", 64, out),
        ("lora_te1_layers_0_self_attn_q_proj", 96, llm),
    ];
    write(&home.path("kohya.safetensors"), &kohya, ["lora_down.weight", "lora_up.weight"]);

    let model = fixture("zimage_turbo").display().to_string();
    let paint = |more: &[&str]| {
        let mut arguments = vec!["generate", &model, "--host", "virtual-1x64m", "--seed", "3"];
        arguments.extend(["--prompt", "a cat", "--steps", "2", "--width", "64", "--height", "64"]);
        arguments.extend(["--max-sequence-length", "32", "--output", "picture.png"]);
        arguments.extend(more);
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("match"), "{more:?}: {}", ended.stderr);
        pixels(&home.path("picture.png"))
    };
    let plain = paint(&[]);
    let expected = paint(&["--lora", "peft.safetensors"]);
    assert!(plain != expected, "the LoRA changes the picture");
    for name in ["comfy.safetensors", "kohya.safetensors"] {
        assert!(paint(&["--lora", name]) == expected, "{name}: another picture");
    }
}
