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

/// Factors of rank 4 for layers of 64 features, by a module's name and its rows; of both factors
/// the names.
fn write(path: &Path, modules: &[(String, usize)], [down, up]: [&str; 2]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = Vec::new();
    for (index, (module, rows)) in modules.iter().enumerate() {
        let seed = index as u64;
        tensors.push((format!("{module}.{down}"), vec![4, 64], bytes(&noise(1 + seed, 4 * 64))));
        let b: Vec<f32> = noise(9 + seed, rows * 4).iter().map(|value| 0.2 * value).collect();
        tensors.push((format!("{module}.{up}"), vec![*rows, 4], bytes(&b)));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}

/// Layers of the DiT and of the text encoder, each with its rows.
const DIT: [(&str, usize); 4] = [
    ("transformer_blocks.1.attn.to_q", 64),
    ("transformer_blocks.0.attn.to_add_out", 64),
    ("transformer_blocks.0.img_mod.1", 384),
    // Of the last block's text nothing is used any more, and yet files have its layers.
    ("transformer_blocks.1.txt_mlp.net.0.proj", 256),
];
const LLM: [(&str, usize); 1] = [("layers.0.self_attn.q_proj", 64)];

#[test]
fn one_lora_has_one_effect_by_every_name() {
    let home = Home::new();
    let named = |dit: &str, llm: &str, flat: bool| {
        let with = |prefix: &str, (name, rows): (&str, usize)| {
            let name = if flat { name.replace('.', "_") } else { name.to_owned() };
            (format!("{prefix}{name}"), rows)
        };
        let dit = DIT.map(|layer| with(dit, layer));
        dit.into_iter().chain(LLM.map(|layer| with(llm, layer))).collect::<Vec<_>>()
    };
    let peft = ["lora_A.weight", "lora_B.weight"];
    let kohya = ["lora_down.weight", "lora_up.weight"];
    for (file, modules, factors) in [
        ("peft", named("transformer.", "text_encoder.model.", false), peft),
        ("newer", named("", "text_encoder.model.language_model.", false), kohya),
        (
            "comfy",
            named("diffusion_model.", "text_encoders.qwen25_7b.transformer.model.", false),
            peft,
        ),
        ("kohya", named("lora_unet_", "lora_te1_", true), kohya),
    ] {
        write(&home.path(&format!("{file}.safetensors")), &modules, factors);
    }
    let model = fixture("qwen_image").display().to_string();
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
    for name in ["newer.safetensors", "comfy.safetensors", "kohya.safetensors"] {
        assert!(paint(&["--lora", name]) == expected, "{name}: another picture");
    }
}
