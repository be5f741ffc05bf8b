//! Models of families that are not run yet: files and directories of each are named for what they
//! are.
//!
//! The files have headers alone, with the names and the telling shapes of published ones; behind
//! those they are holes.

use std::fs::{self, File};
use std::path::Path;

use serde_json::json;

use crate::support::gguf;
use crate::support::{Home, golden};

/// A family, and what a file of it has: tensors with their shapes, behind the prefix that published
/// files have.
struct Case {
    family: &'static str,
    file: &'static str,
    tensors: &'static [(&'static str, &'static [u64])],
}

const fn case(
    family: &'static str,
    file: &'static str,
    tensors: &'static [(&'static str, &'static [u64])],
) -> Case {
    Case { family, file, tensors }
}

const CASES: [Case; 10] = [
    case(
        "FLUX.2-dev",
        "flux2-dev.safetensors",
        &[
            ("double_blocks.0.img_attn.qkv.weight", &[18432, 6144]),
            ("double_stream_modulation_img.lin.weight", &[36864, 6144]),
            ("guidance_in.in_layer.weight", &[6144, 256]),
        ],
    ),
    case(
        "FLUX.2-dev",
        "flux2_diffusers.safetensors",
        &[
            ("double_stream_modulation_img.linear.weight", &[36864, 6144]),
            ("time_guidance_embed.guidance_embedder.linear_1.weight", &[6144, 256]),
        ],
    ),
    case(
        "Qwen-Image-Edit or Qwen-Image-Layered",
        "qwen_image_layered.safetensors",
        &[
            ("model.diffusion_model.txt_norm.weight", &[3584]),
            ("model.diffusion_model.transformer_blocks.0.img_mod.1.weight", &[18432, 3072]),
            ("model.diffusion_model.time_text_embed.addition_t_embedding.weight", &[2, 3072]),
        ],
    ),
    case(
        "SDXL",
        "sd_xl_base_1.0.safetensors",
        &[
            ("model.diffusion_model.input_blocks.0.0.weight", &[320, 4, 3, 3]),
            ("model.diffusion_model.label_emb.0.0.weight", &[1280, 2816]),
            ("conditioner.embedders.0.transformer.text_model.final_layer_norm.weight", &[768]),
            ("first_stage_model.decoder.conv_in.weight", &[512, 4, 3, 3]),
        ],
    ),
    case(
        "SDXL",
        "sdxl_unet_diffusers.safetensors",
        &[("conv_in.weight", &[320, 4, 3, 3]), ("add_embedding.linear_1.weight", &[1280, 2816])],
    ),
    case(
        "Stable Diffusion 1.5",
        "v1-5-pruned-emaonly.safetensors",
        &[
            ("model.diffusion_model.input_blocks.0.0.weight", &[320, 4, 3, 3]),
            (
                "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight",
                &[320, 768],
            ),
        ],
    ),
    case(
        "Stable Diffusion 2",
        "sd2_unet_diffusers.safetensors",
        &[("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight", &[320, 1024])],
    ),
    case(
        "LTX-Video",
        "ltx-video-2b-v0.9.safetensors",
        &[
            ("model.diffusion_model.patchify_proj.weight", &[2048, 128]),
            ("model.diffusion_model.adaln_single.linear.weight", &[12288, 2048]),
        ],
    ),
    case(
        "LTX-2",
        "ltx-2-19b.safetensors",
        &[
            ("model.diffusion_model.patchify_proj.weight", &[4096, 128]),
            ("model.diffusion_model.audio_patchify_proj.weight", &[2048, 128]),
        ],
    ),
    case(
        "Chroma",
        "chroma.safetensors",
        &[
            ("double_blocks.0.img_attn.qkv.weight", &[9216, 3072]),
            ("distilled_guidance_layer.in_proj.weight", &[5120, 64]),
        ],
    ),
];

/// Pipelines and the class of their denoiser, with the family.
const DIRECTORIES: [(&str, &str, &str, &str); 7] = [
    ("Flux2Pipeline", "transformer", "Flux2Transformer2DModel", "FLUX.2-dev"),
    (
        "QwenImageEditPipeline",
        "transformer",
        "QwenImageTransformer2DModel",
        "Qwen-Image-Edit or Qwen-Image-Layered",
    ),
    ("StableDiffusionXLPipeline", "unet", "UNet2DConditionModel", "SDXL"),
    ("StableDiffusionPipeline", "unet", "UNet2DConditionModel", "Stable Diffusion 1.5 or 2"),
    ("LTXPipeline", "transformer", "LTXVideoTransformer3DModel", "LTX-Video"),
    ("LTX2Pipeline", "transformer", "LTX2VideoTransformer3DModel", "LTX-2"),
    // A pipeline that nobody knows is known by what denoises in it.
    ("MyOwnPipeline", "transformer", "ChromaTransformer2DModel", "Chroma"),
];

/// A file of bf16 tensors that are holes.
fn write(path: &Path, tensors: &[(&str, &[u64])]) {
    let mut end = 0;
    let mut header = serde_json::Map::new();
    for (name, shape) in tensors {
        let start = end;
        end += 2 * shape.iter().product::<u64>();
        let entry = json!({ "dtype": "BF16", "shape": shape, "data_offsets": [start, end] });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::from(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(path, &bytes).expect("a file");
    let file = File::options().write(true).open(path).expect("the file");
    file.set_len(bytes.len() as u64 + end).expect("a hole");
}

/// Runs a command on a model, which must end with the family's message and nothing else.
fn refused(home: &Home, arguments: &[&str], family: &str) {
    let ended = home.run(arguments);
    let says = format!(
        "this is {family}; Berth runs FLUX.1, Z-Image, FLUX.2 klein, Qwen-Image or Stable Diffusion 3 models so far; hint: "
    );
    assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
    assert!(ended.stderr.starts_with("berth: "), "{arguments:?}: {}", ended.stderr);
    assert!(ended.stderr.contains(&says), "{arguments:?} is no {family}: {}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{arguments:?}: {}", ended.stderr);
}

#[test]
fn files_are_known_by_their_tensors() {
    let home = Home::new();
    for Case { family, file, tensors } in &CASES {
        write(&home.path(file), tensors);
        refused(&home, &["generate", file, "--prompt", "x", "--output", "x.png"], family);
        // As the DiT of a model that is of FLUX.1 otherwise.
        let fixture = crate::support::fixture("flux_schnell").display().to_string();
        refused(&home, &["plan", "--dry-run", &fixture, "--diffusion-model", file], family);
    }
    assert!(!home.path("x.png").exists());
}

#[test]
fn gguf_files_are_known_by_their_tensors_or_else_by_their_architecture() {
    let home = Home::new();
    let of = |architecture: &str| {
        let key = gguf::key("general.architecture", gguf::TEXT, &gguf::text(architecture));
        gguf::File { keys: vec![key], ..gguf::File::new() }
    };
    let unnamed = |architecture| of(architecture).with("something.weight", &[2], 0, &[0; 8]);
    for (file, family) in [
        (unnamed("lumina2"), "Lumina 2"),
        (unnamed("sdxl"), "SDXL"),
        (unnamed("sd1"), "Stable Diffusion 1.5"),
        (unnamed("ltxv"), "LTX-Video"),
    ] {
        fs::write(home.path("x.gguf"), file.bytes()).expect("a file");
        refused(&home, &["plan", "--dry-run", "x.gguf"], family);
    }
    // An architecture that nobody knows stays unknown.
    fs::write(home.path("x.gguf"), unnamed("llama").bytes()).expect("a file");
    let ended = home.run(&["plan", "--dry-run", "x.gguf"]);
    assert!(ended.stderr.contains("of no known family"), "{}", ended.stderr);
}

#[test]
fn directories_are_known_by_their_pipeline_or_else_by_their_denoiser() {
    let home = Home::new();
    fs::create_dir(home.path("model")).expect("a directory");
    for (pipeline, part, class, family) in DIRECTORIES {
        let index = json!({ "_class_name": pipeline, part: ["diffusers", class] });
        fs::write(home.path("model/model_index.json"), index.to_string()).expect("an index");
        refused(&home, &["plan", "--dry-run", "model"], family);
    }
}

#[test]
fn inspect_says_it_too() {
    let home = Home::new();
    let Case { file, tensors, .. } = &CASES[0];
    write(&home.path(file), tensors);
    golden::run("other-family-generate", &home, &["generate", file, "--prompt", "a cat"]);
    let ended = home.run(&["inspect", "--json", file]);
    let description = ended.json();
    assert_eq!((ended.code, &description["family"]), (Some(2), &json!("FLUX.2-dev")));
    let problem = description["problems"][0].as_str().expect("a problem");
    assert!(
        problem.contains(
            "this is FLUX.2-dev; Berth runs FLUX.1, Z-Image, FLUX.2 klein, Qwen-Image or Stable Diffusion 3 models so far"
        ),
        "{problem}"
    );
    assert_eq!(description["files"][0]["types"][0]["name"], "BF16");
}
