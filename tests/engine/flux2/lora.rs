//! LoRA by the names of diffusers, of Black Forest Labs and of kohya's sd-scripts.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use super::{MODEL, file};
use crate::support::{Home, pixels};

const RANK: usize = 4;

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

/// A module's second factor, by its rows; the first one has so many columns.
struct Module<'a> {
    name: &'a str,
    columns: usize,
    b: Vec<f32>,
}

fn module(name: &str, columns: usize, b: Vec<f32>) -> Module<'_> {
    Module { name, columns, b }
}

/// Writes the factors of these modules, of which the first of all are alike.
fn write(path: &Path, modules: &[Module<'_>], [down, up]: [&str; 2]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = Vec::new();
    for Module { name, columns, b } in modules {
        let a = bytes(&noise(1, RANK * columns));
        tensors.push((format!("{name}.{down}"), vec![RANK, *columns], a));
        tensors.push((format!("{name}.{up}"), vec![b.len() / RANK, RANK], bytes(b)));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}

#[test]
fn one_lora_has_one_effect_by_every_name() {
    let home = Home::new();
    let parts = [2, 3, 4].map(|seed| noise(seed, 64 * RANK));
    let [q, k, v] = parts.clone();
    let (fused, out) = (noise(5, 576 * RANK), noise(6, 64 * RANK));
    let (mlp, llm, time) = (noise(7, 384 * RANK), noise(8, 64 * RANK), noise(9, 64 * RANK));
    let last = noise(10, 128 * RANK);
    let (first, second) = last.split_at(64 * RANK);
    let swapped = [second, first].concat();
    let peft = [
        module("transformer.transformer_blocks.0.attn.to_q", 64, q),
        module("transformer.transformer_blocks.0.attn.to_k", 64, k),
        module("transformer.transformer_blocks.0.attn.to_v", 64, v),
        module("transformer.single_transformer_blocks.1.attn.to_qkv_mlp_proj", 64, fused.clone()),
        module("transformer.single_transformer_blocks.0.attn.to_out", 256, out.clone()),
        module("transformer.transformer_blocks.1.ff_context.linear_in", 64, mlp.clone()),
        module("transformer.time_guidance_embed.timestep_embedder.linear_2", 64, time.clone()),
        module("transformer.norm_out.linear", 64, last),
        module("text_encoder.model.layers.3.self_attn.q_proj", 32, llm.clone()),
    ];
    write(&home.path("peft.safetensors"), &peft, ["lora_A.weight", "lora_B.weight"]);
    let bfl = [
        module("diffusion_model.double_blocks.0.img_attn.qkv", 64, parts.concat()),
        module("diffusion_model.single_blocks.1.linear1", 64, fused.clone()),
        module("diffusion_model.single_blocks.0.linear2", 256, out.clone()),
        module("diffusion_model.double_blocks.1.txt_mlp.0", 64, mlp.clone()),
        module("diffusion_model.time_in.out_layer", 64, time.clone()),
        module("diffusion_model.final_layer.adaLN_modulation.1", 64, swapped.clone()),
        module(
            "text_encoders.qwen3_8b.transformer.model.layers.3.self_attn.q_proj",
            32,
            llm.clone(),
        ),
    ];
    write(&home.path("bfl.safetensors"), &bfl, ["lora_A.weight", "lora_B.weight"]);
    let kohya = [
        module("lora_unet_double_blocks_0_img_attn_qkv", 64, parts.concat()),
        module("lora_unet_single_blocks_1_linear1", 64, fused),
        module("lora_unet_single_blocks_0_linear2", 256, out),
        module("lora_unet_double_blocks_1_txt_mlp_0", 64, mlp),
        module("lora_unet_time_in_out_layer", 64, time),
        module("lora_unet_final_layer_adaLN_modulation_1", 64, swapped),
        module("lora_te1_layers_3_self_attn_q_proj", 32, llm),
    ];
    write(&home.path("kohya.safetensors"), &kohya, ["lora_down.weight", "lora_up.weight"]);

    let model = file(MODEL);
    let single = file("single/flux2_klein_bfl.safetensors");
    let paint = |source: &[&str], more: &[&str]| {
        let mut arguments = vec!["generate"];
        arguments.extend(source);
        arguments.extend(["--host", "virtual-1x64m", "--seed", "3", "--prompt", "a cat"]);
        arguments.extend(["--steps", "2", "--width", "64", "--height", "64"]);
        arguments.extend(["--max-sequence-length", "32", "--output", "picture.png"]);
        arguments.extend(more);
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("match"), "{more:?}: {}", ended.stderr);
        pixels(&home.path("picture.png"))
    };
    let directory = [&model[..]];
    let plain = paint(&directory, &[]);
    let expected = paint(&directory, &["--lora", "peft.safetensors"]);
    assert!(plain != expected, "the LoRA changes the picture");
    for name in ["bfl.safetensors", "kohya.safetensors"] {
        assert!(paint(&directory, &["--lora", name]) == expected, "{name}: another picture");
    }
    // Beside the DiT in Black Forest Labs' names too.
    let source = [&model[..], "--diffusion-model", &single];
    for name in ["peft.safetensors", "bfl.safetensors"] {
        assert!(paint(&source, &["--lora", name]) == expected, "{name}: another picture");
    }
    // Weights that are streamed keep it beside them: other roundings, and no other picture.
    let streamed =
        ["--lora", "peft.safetensors", "--backend", "all=virtual0", "--params-backend", "dit=cpu"];
    let beside = paint(&directory, &streamed);
    let apart = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    let [changed, rounded]: [u64; 2] = [apart(&plain, &expected), apart(&beside, &expected)];
    assert!(20 * rounded < changed, "{rounded} levels of {changed} by another order of sums");
}
