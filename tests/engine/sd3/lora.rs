//! LoRA by the names of diffusers, of ComfyUI and of kohya's sd-scripts.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::support::{Home, fixture, pixels};

/// Rank of all factors.
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

/// An adapter: its module's name, the features that it takes, and its second factor.
type Module<'a> = (&'a str, usize, Vec<f32>);

fn write(path: &Path, modules: &[Module<'_>], [down, up]: [&str; 2]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut tensors = Vec::new();
    for (module, columns, b) in modules {
        let a = bytes(&noise(1, RANK * columns));
        tensors.push((format!("{module}.{down}"), vec![RANK, *columns], a));
        tensors.push((format!("{module}.{up}"), vec![b.len() / RANK, RANK], bytes(b)));
    }
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}

/// The same factor with its halves of rows changed over.
fn swapped(b: &[f32]) -> Vec<f32> {
    let (first, second) = b.split_at(b.len() / 2);
    [second, first].concat()
}

#[test]
fn one_lora_has_one_effect_by_every_name() {
    let home = Home::new();
    let parts = [2, 3, 4].map(|seed| noise(seed, 64 * RANK));
    let [q, k, v] = parts.clone();
    let (out, second) = (noise(5, 64 * RANK), noise(6, 64 * RANK));
    let (last, context) = (noise(7, 128 * RANK), noise(8, 128 * RANK));
    let (l, g, t5) = (noise(9, 32 * RANK), noise(10, 40 * RANK), noise(11, 32 * RANK));
    let peft: [Module<'_>; 10] = [
        ("transformer.transformer_blocks.1.attn.to_q", 64, q),
        ("transformer.transformer_blocks.1.attn.to_k", 64, k),
        ("transformer.transformer_blocks.1.attn.to_v", 64, v),
        ("transformer.transformer_blocks.0.attn.to_add_out", 64, out.clone()),
        ("transformer.transformer_blocks.0.attn2.to_out.0", 64, second.clone()),
        ("transformer.norm_out.linear", 64, last.clone()),
        ("transformer.transformer_blocks.2.norm1_context.linear", 64, context.clone()),
        ("text_encoder.text_model.encoder.layers.0.self_attn.q_proj", 32, l.clone()),
        ("text_encoder_2.text_model.encoder.layers.1.self_attn.v_proj", 40, g.clone()),
        ("text_encoder_3.encoder.block.0.layer.0.SelfAttention.q", 80, t5.clone()),
    ];
    write(&home.path("peft.safetensors"), &peft, ["lora_A.weight", "lora_B.weight"]);
    let comfy: [Module<'_>; 8] = [
        ("diffusion_model.joint_blocks.1.x_block.attn.qkv", 64, parts.concat()),
        ("diffusion_model.joint_blocks.0.context_block.attn.proj", 64, out.clone()),
        ("diffusion_model.joint_blocks.0.x_block.attn2.proj", 64, second.clone()),
        ("diffusion_model.final_layer.adaLN_modulation.1", 64, swapped(&last)),
        ("diffusion_model.joint_blocks.2.context_block.adaLN_modulation.1", 64, swapped(&context)),
        (
            "text_encoders.clip_l.transformer.text_model.encoder.layers.0.self_attn.q_proj",
            32,
            l.clone(),
        ),
        (
            "text_encoders.clip_g.transformer.text_model.encoder.layers.1.self_attn.v_proj",
            40,
            g.clone(),
        ),
        ("text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q", 80, t5.clone()),
    ];
    write(&home.path("comfy.safetensors"), &comfy, ["lora_A.weight", "lora_B.weight"]);
    let kohya: [Module<'_>; 8] = [
        ("lora_unet_joint_blocks_1_x_block_attn_qkv", 64, parts.concat()),
        ("lora_unet_joint_blocks_0_context_block_attn_proj", 64, out),
        ("lora_unet_joint_blocks_0_x_block_attn2_proj", 64, second),
        ("lora_unet_final_layer_adaLN_modulation_1", 64, swapped(&last)),
        ("lora_unet_joint_blocks_2_context_block_adaLN_modulation_1", 64, swapped(&context)),
        ("lora_te1_text_model_encoder_layers_0_self_attn_q_proj", 32, l),
        ("lora_te2_text_model_encoder_layers_1_self_attn_v_proj", 40, g),
        ("lora_te3_encoder_block_0_layer_0_SelfAttention_q", 80, t5),
    ];
    write(&home.path("kohya.safetensors"), &kohya, ["lora_down.weight", "lora_up.weight"]);

    let model = fixture("sd35_medium").display().to_string();
    let single = fixture("single/sd35_medium_incl_clips_t5.safetensors").display().to_string();
    let paint = |source: &[&str], more: &[&str]| {
        let mut arguments = vec!["generate", &model, "--host", "virtual-1x64m", "--seed", "3"];
        arguments.extend(["--prompt", "a cat", "--steps", "2", "--width", "64", "--height", "64"]);
        arguments.extend(["--max-sequence-length", "32", "--output", "picture.png"]);
        arguments.extend(source);
        arguments.extend(more);
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("match"), "{more:?}: {}", ended.stderr);
        pixels(&home.path("picture.png"))
    };
    let plain = paint(&[], &[]);
    let expected = paint(&[], &["--lora", "peft.safetensors"]);
    assert!(plain != expected, "the LoRA changes the picture");
    for name in ["comfy.safetensors", "kohya.safetensors"] {
        assert!(paint(&[], &["--lora", name]) == expected, "{name}: another picture");
    }
    // On weights in Stability's names, where modulations have their halves the other way round.
    for name in ["peft.safetensors", "kohya.safetensors"] {
        let picture = paint(&["--diffusion-model", &single], &["--lora", name]);
        assert!(picture == expected, "{name} on the single file: another picture");
    }
}
