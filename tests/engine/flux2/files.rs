//! The same model from single files: safetensors in Black Forest Labs', ldm's and llama.cpp's
//! names, GGUF, and floats of eight bits with scales.

use std::path::Path;

use executor::weights::WeightFiles;
use safetensors::tensor::Dtype;

use super::golden::{Case, cases};
use super::{MODEL, base, file};
use crate::parity::golden::Tensors as Dumped;
use crate::support::bfl::{Tensors, behind, read, write};
use crate::support::gguf::{self, File};
use crate::support::{Home, fixture};

const BFL: &str = "single/flux2_klein_bfl.safetensors";
const HOST: [&str; 2] = ["--host", "virtual-1x64m"];

/// Numbers of types in GGUF files, and how the second of them is made up.
const F32: u32 = 0;
const Q8_0: u32 = 8;
const BLOCK: usize = 32;

/// Products by the numbers themselves.
const EXACT: [&str; 1] = ["--exact-matmul"];

/// A case on the model with other files for some parts.
fn run(home: &Home, case: &Case, parts: &[[&str; 2]], more: &[&str]) -> Dumped {
    let model = file(MODEL);
    let source: Vec<&str> =
        [&model[..]].into_iter().chain(parts.iter().flatten().copied()).collect();
    case.run(home, &source, &[&HOST[..], more].concat()).1
}

#[test]
fn black_forest_labs_file_matches_in_every_tensor() {
    let home = Home::new();
    for case in &cases() {
        let dumped = run(&home, case, &[["--diffusion-model", &file(BFL)]], &EXACT);
        case.compare("a single file", &dumped);
    }
}

#[test]
fn every_prefix_and_a_whole_file_give_the_directorys_picture() {
    let (home, case) = (Home::new(), cases().remove(0));
    let expected = run(&home, &case, &[], &[]);
    let dit = read(&fixture(BFL));
    for prefix in ["model.diffusion_model.", "diffusion_model."] {
        write(&home.path("dit.safetensors"), &behind(prefix, dit.clone()));
        let dumped = run(&home, &case, &[["--diffusion-model", "dit.safetensors"]], &[]);
        assert_eq!(dumped, expected, "behind {prefix:?}");
    }
    // diffusers' names in one file, its own text encoder and VAE beside it.
    let part = |name: &str| file(&format!("{MODEL}/{name}.safetensors"));
    let dit = read(&fixture(&format!("{MODEL}/transformer/diffusion_pytorch_model.safetensors")));
    write(&home.path("dit.safetensors"), &behind("transformer.", dit));
    let (llm, vae) = (part("text_encoder/model"), part("vae/diffusion_pytorch_model"));
    let parts = [
        ["--diffusion-model", "dit.safetensors"],
        ["--llm", llm.as_str()],
        ["--vae", vae.as_str()],
    ];
    assert_eq!(run(&home, &case, &parts, &[]), expected, "of parts");
}

/// A VAE as ldm has it, with its 1×1 convolutions within the sides that they belong to.
fn ldm(diffusers: &Tensors) -> Tensors {
    let renamed = |name: &str| {
        let mut name = name.to_owned();
        for side in ["encoder", "decoder"] {
            for block in 0..2 {
                let from = format!("{side}.mid_block.resnets.{block}.");
                name = name.replace(&from, &format!("{side}.mid.block_{}.", block + 1));
            }
            for (from, to) in [
                ("group_norm", "norm"),
                ("to_q", "q"),
                ("to_k", "k"),
                ("to_v", "v"),
                ("to_out.0", "proj_out"),
            ] {
                let from = format!("{side}.mid_block.attentions.0.{from}.");
                name = name.replace(&from, &format!("{side}.mid.attn_1.{to}."));
            }
        }
        for level in 0..4 {
            let up = 3 - level;
            for block in 0..3 {
                let from = format!("encoder.down_blocks.{level}.resnets.{block}.");
                name = name.replace(&from, &format!("encoder.down.{level}.block.{block}."));
                let from = format!("decoder.up_blocks.{level}.resnets.{block}.");
                name = name.replace(&from, &format!("decoder.up.{up}.block.{block}."));
            }
            let from = format!("encoder.down_blocks.{level}.downsamplers.0.conv.");
            name = name.replace(&from, &format!("encoder.down.{level}.downsample.conv."));
            let from = format!("decoder.up_blocks.{level}.upsamplers.0.conv.");
            name = name.replace(&from, &format!("decoder.up.{up}.upsample.conv."));
        }
        let name =
            name.replace("conv_shortcut.", "nin_shortcut.").replace("conv_norm_out", "norm_out");
        match name.strip_prefix("quant_conv.") {
            Some(end) => format!("encoder.quant_conv.{end}"),
            None => name.replace("post_quant_conv.", "decoder.post_quant_conv."),
        }
    };
    let tensor = |(name, (dtype, shape, bytes)): (&String, &(Dtype, Vec<usize>, Vec<u8>))| {
        let name = renamed(name);
        let mut shape = shape.clone();
        // Its attention is of convolutions.
        if name.contains("attn_1") && shape.len() == 2 {
            shape.extend([1, 1]);
        }
        (name, (*dtype, shape, bytes.clone()))
    };
    diffusers.iter().map(tensor).collect()
}

#[test]
fn a_vae_in_ldms_names_gives_the_directorys_picture() {
    let (home, case) = (Home::new(), cases().remove(0));
    let expected = run(&home, &case, &[], &[]);
    let vae = read(&fixture(&format!("{MODEL}/vae/diffusion_pytorch_model.safetensors")));
    for prefix in ["", "vae."] {
        write(&home.path("ae.safetensors"), &behind(prefix, ldm(&vae)));
        let dumped = run(&home, &case, &[["--vae", "ae.safetensors"]], &[]);
        assert_eq!(dumped, expected, "behind {prefix:?}");
    }
    // Without its statistics it is another family's.
    let without = ldm(&vae).into_iter().filter(|(name, _)| !name.starts_with("bn.")).collect();
    write(&home.path("ae.safetensors"), &without);
    let model = file(MODEL);
    let ended = home.run(&["inspect", &model, "--vae", "ae.safetensors"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("bn.running_mean"), "{}{}", ended.stdout, ended.stderr);
}

/// All tensors of a file as numbers.
fn numbers(path: &Path) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let files = WeightFiles::open_file(path).expect("a file of weights");
    let tensor = |name: &str, shape: &[usize]| {
        let values = files.require(name, shape).expect("a tensor").view(&files).to_f32();
        (name.to_owned(), shape.to_vec(), values)
    };
    files.tensors().map(|info| tensor(info.name, info.shape)).collect()
}

fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A GGUF file of a safetensors file's tensors, its matrices in blocks where that is asked.
fn as_gguf(
    from: &Path,
    architecture: &str,
    renamed: impl Fn(&str) -> Option<String>,
    blocks: bool,
) -> File {
    /// 2⁻⁷ as f16: what a step of all blocks is.
    const STEP: (f32, [u8; 2]) = (0.007_812_5, [0x00, 0x20]);
    let key = gguf::key("general.architecture", gguf::TEXT, &gguf::text(architecture));
    let mut to = File { keys: vec![key], ..File::new() };
    for (name, shape, values) in numbers(from) {
        let Some(name) = renamed(&name) else { continue };
        let dimensions: Vec<u64> = shape.iter().rev().map(|&size| size as u64).collect();
        if !blocks || shape.len() < 2 {
            to = to.with(&name, &dimensions, F32, &float_bytes(&values));
            continue;
        }
        let block = |values: &[f32]| {
            let steps = values
                .iter()
                .map(|value| (value / STEP.0).round().clamp(-127.0, 127.0) as i8 as u8);
            STEP.1.into_iter().chain(steps).collect::<Vec<u8>>()
        };
        let bytes: Vec<u8> = values.chunks_exact(BLOCK).flat_map(block).collect();
        to = to.with(&name, &dimensions, Q8_0, &bytes);
    }
    to
}

/// The same tensors as f32 in a safetensors file.
fn expand(from: &Path, to: &Path) {
    let tensor = |(name, shape, values): (String, Vec<usize>, Vec<f32>)| {
        (name, (Dtype::F32, shape, float_bytes(&values)))
    };
    write(to, &numbers(from).into_iter().map(tensor).collect());
}

#[test]
fn a_gguf_file_gives_the_picture_of_its_numbers() {
    let (home, case) = (Home::new(), cases().remove(2));
    let same = |name: &str| Some(name.to_owned());
    // In f32 the numbers are the directory's own.
    let plain = as_gguf(&fixture(BFL), "flux", same, false);
    std::fs::write(home.path("dit.gguf"), plain.bytes()).expect("the home can be written");
    let dumped = run(&home, &case, &[["--diffusion-model", "dit.gguf"]], &EXACT);
    case.compare("a GGUF file", &dumped);

    // In blocks, rows of fused layers are cut out of them.
    let blocks = as_gguf(&fixture(BFL), "flux2", same, true);
    std::fs::write(home.path("dit.gguf"), blocks.bytes()).expect("the home can be written");
    expand(&home.path("dit.gguf"), &home.path("dit.safetensors"));
    let stored = run(&home, &case, &[["--diffusion-model", "dit.gguf"]], &EXACT);
    let expanded = run(&home, &case, &[["--diffusion-model", "dit.safetensors"]], &EXACT);
    assert_eq!(stored, expanded, "other numbers from blocks");
}

#[test]
fn a_text_encoder_in_llama_cpps_names_gives_the_directorys_picture() {
    let (home, case) = (Home::new(), cases().remove(0));
    // Exactly, as the file has the numbers in another type.
    let expected = run(&home, &case, &[], &EXACT);
    let renamed = |name: &str| {
        let name = name.strip_prefix("model.")?;
        let renames = [
            ("embed_tokens", "token_embd"),
            ("layers.", "blk."),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("self_attn.", "attn_"),
            ("mlp.", "ffn_"),
            ("_proj", ""),
        ];
        let name = renames.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        Some(if name == "norm.weight" { "output_norm.weight".to_owned() } else { name })
    };
    let from = fixture(&format!("{MODEL}/text_encoder/model.safetensors"));
    let llm = as_gguf(&from, "qwen3", renamed, false);
    std::fs::write(home.path("llm.gguf"), llm.bytes()).expect("the home can be written");
    assert_eq!(run(&home, &case, &[["--llm", "llm.gguf"]], &EXACT), expected);
}

#[test]
fn floats_of_eight_bits_with_scales_give_the_picture_of_their_numbers() {
    let (home, case) = (Home::new(), cases().remove(0));
    let mut stored = Tensors::new();
    for (name, shape, values) in numbers(&fixture(BFL)) {
        let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        // A power of two from 2⁻³ to 1 of E4M3, of the number's sign: no rounding is wanted.
        let eight = |value: &f32| {
            let exponent = (4.0 * value.abs() / largest) as u8 % 4;
            (4 + exponent) << 3 | u8::from(value.is_sign_negative()) << 7
        };
        if let Some(stem) = name.strip_suffix(".weight") {
            let scale = float_bytes(&[largest]);
            stored.insert(format!("{stem}.scale_weight"), (Dtype::F32, vec![], scale));
            let bytes = values.iter().map(eight).collect();
            stored.insert(name, (Dtype::F8_E4M3, shape, bytes));
        } else {
            stored.insert(name, (Dtype::F32, shape, float_bytes(&values)));
        }
    }
    write(&home.path("fp8.safetensors"), &stored);
    let files = WeightFiles::open_file(&home.path("fp8.safetensors")).expect("weights");
    let mut expanded = Tensors::new();
    for info in files.tensors().filter(|info| !info.name.ends_with("scale_weight")) {
        let values = files.require(info.name, info.shape).expect("a tensor").view(&files).to_f32();
        let tensor = (Dtype::F32, info.shape.to_vec(), float_bytes(&values));
        expanded.insert(info.name.to_owned(), tensor);
    }
    write(&home.path("f32.safetensors"), &expanded);
    let of = |name: &str| run(&home, &case, &[["--diffusion-model", name]], &EXACT);
    let painted = of("fp8.safetensors");
    assert_eq!(painted, of("f32.safetensors"));
    assert!(painted["image_u8"] != case.tensors["image_u8"], "other numbers than the directory's");
}

#[test]
fn a_file_beside_a_base_model_is_guided_as_that() {
    let home = Home::new();
    base(&home);
    let described = home.json(&["inspect", "model", "--diffusion-model", &file(BFL), "--json"]);
    assert_eq!(described["guidance"], "classifier-free");
    assert_eq!(described["defaults"]["steps"], 50);
}
