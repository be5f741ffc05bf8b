//! The same model from single files: GGUF, and safetensors in the names that people's files have.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::golden::{cases, cases_of};
use crate::parity::compare::{TEXT, deviation};
use crate::parity::golden::Tensors;
use crate::support::{Home, fixture, pixels};

/// What products of integers may be off, root mean square, by the last step: guidance brings each
/// token to its length again, but not to its direction.
const INTEGERS: f64 = 0.1;

const DIT_GGUF: &str = "gguf/qwen_image-Q5_0.gguf";
const LLM_GGUF: &str = "gguf/qwen_image_qwen2vl-Q8_0.gguf";

/// A path under `tests/fixtures`.
fn file(name: &str) -> String {
    fixture(name).display().to_string()
}

#[test]
fn a_quantised_dit_matches_in_every_tensor() {
    let (home, model, dit) = (Home::new(), file("qwen_image"), file(DIT_GGUF));
    let source = [&model[..], "--diffusion-model", &dit];
    let cases = cases_of("gguf-Q5_0");
    assert_eq!(cases.len(), 2);
    for case in &cases {
        let (_, dumped) = case.run(&home, &source, &["--exact-matmul", "--host", "virtual-1x64m"]);
        case.compare("a quantised DiT", &dumped);
        let (_, dumped) = case.run(&home, &source, &["--host", "virtual-1x64m"]);
        let (off, name) = case.mean_deviation(&dumped);
        assert!(off <= INTEGERS, "{name} is {off:.1e} off by integers");
    }
}

#[test]
fn a_quantised_text_encoder_with_its_own_tokenizer_matches_in_every_tensor() {
    let (home, model, llm) = (Home::new(), file("qwen_image"), file(LLM_GGUF));
    let source = [&model[..], "--llm", &llm];
    let cases = cases_of("gguf-qwen2vl");
    assert_eq!(cases.len(), 2);
    for case in &cases {
        let (_, dumped) = case.run(&home, &source, &["--exact-matmul", "--host", "virtual-1x64m"]);
        case.compare("a quantised text encoder", &dumped);
        // Its tokenizer gives the ids that the directory's does.
        let ids = "text_encoder.c.input_ids";
        assert_eq!(dumped[ids], cases_by_name(&case.name)[ids], "{}", case.name);
        let (_, dumped) = case.run(&home, &source, &["--host", "virtual-1x64m"]);
        let (off, name) = case.mean_deviation(&dumped);
        assert!(off <= INTEGERS, "{name} is {off:.1e} off by integers");
    }
}

#[test]
fn what_sees_pictures_is_named_without_effect() {
    let (home, model, llm) = (Home::new(), file("qwen_image"), file(LLM_GGUF));
    fs::write(home.path("mmproj.gguf"), "whatever it holds").expect("the home can be written");
    let mut arguments =
        vec!["generate", &model, "--llm", &llm, "--prompt", "a cat", "--steps", "2"];
    arguments.extend(["--width", "64", "--height", "64", "--host", "virtual-1x64m"]);
    arguments.extend(["--seed", "1", "--max-sequence-length", "32", "--output"]);
    let paint = |more: &[&str]| {
        let ended = home.run(&[&arguments[..], &["picture.png"], more].concat());
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        (pixels(&home.path("picture.png")), ended.stderr)
    };
    let (expected, said) = paint(&[]);
    assert!(!said.contains("no effect"), "{said}");
    let (picture, said) = paint(&["--llm-vision", "mmproj.gguf"]);
    assert!(said.contains("--llm-vision has no effect"), "{said}");
    assert!(picture == expected, "another picture");
}

fn cases_by_name(name: &str) -> Tensors {
    let case = cases().into_iter().find(|case| case.name == name).expect("a case");
    case.tensors
}

/// A tensor of a file: type, shape, bytes.
type Stored = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn read(part: &str) -> Stored {
    let bytes = fs::read(fixture("qwen_image").join(part)).expect("a part");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let own = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    file.tensors().into_iter().map(own).collect()
}

fn write(path: &Path, tensors: &Stored) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}

const DIT_WEIGHTS: &str = "transformer/diffusion_pytorch_model.safetensors";
const LLM_WEIGHTS: &str = "text_encoder/model.safetensors";
const VAE_WEIGHTS: &str = "vae/diffusion_pytorch_model.safetensors";

fn renamed(tensors: &Stored, name: impl Fn(&str) -> String) -> Stored {
    tensors.iter().map(|(own, tensor)| (name(own), tensor.clone())).collect()
}

/// What the VAE's makers call a tensor that is so called by diffusers
/// (`convert_wan_vae_to_diffusers`).
fn original(name: &str) -> String {
    let mut name = name.to_owned();
    for (from, to) in [
        ("mid_block.resnets.0.", "middle.0."),
        ("mid_block.attentions.0.", "middle.1."),
        ("mid_block.resnets.1.", "middle.2."),
        ("norm_out.", "head.0."),
        ("conv_out.", "head.2."),
        ("conv_shortcut.", "shortcut."),
    ] {
        name = name.replace(from, to);
    }
    for (from, to) in [("post_quant_conv.", "conv2."), ("quant_conv.", "conv1.")] {
        if let Some(end) = name.strip_prefix(from) {
            return format!("{to}{end}");
        }
    }
    let is_block =
        |name: &str| ["middle.", "down_blocks.", "resnets."].iter().any(|of| name.contains(of));
    if is_block(&name) && !name.contains("middle.1.") {
        for (from, to) in [
            (".norm1.", ".residual.0."),
            (".conv1.", ".residual.2."),
            (".norm2.", ".residual.3."),
            (".conv2.", ".residual.6."),
        ] {
            name = name.replace(from, to);
        }
    }
    let name = name.replace("conv_in.", "conv1.").replace("down_blocks.", "downsamples.");
    let Some((before, block)) = name.split_once("up_blocks.") else { return name };
    let (level, rest) = block.split_once('.').expect("a level");
    let level: usize = level.parse().expect("a number");
    // Two residual blocks and an upsampler of each level are numbered together.
    let (index, rest) = match rest.strip_prefix("resnets.").and_then(|rest| rest.split_once('.')) {
        Some((block, rest)) => (3 * level + block.parse::<usize>().expect("a number"), rest),
        None => (3 * level + 2, rest.strip_prefix("upsamplers.0.").expect("an upsampler")),
    };
    format!("{before}upsamples.{index}.{rest}")
}

#[test]
fn files_in_other_names_give_the_directorys_tensors() {
    let (home, model) = (Home::new(), file("qwen_image"));
    let case = cases().remove(0);
    let host = ["--host", "virtual-1x64m"];
    let (_, expected) = case.run(&home, &[&model], &host);
    let [dit, llm, vae] = [DIT_WEIGHTS, LLM_WEIGHTS, VAE_WEIGHTS].map(read);
    let newer = |name: &str| match name.strip_prefix("model.") {
        Some(text) => format!("model.language_model.{text}"),
        None => format!("model.{name}"),
    };
    for (prefix, llm, vae) in [
        ("model.diffusion_model.", renamed(&llm, newer), renamed(&vae, original)),
        (
            "",
            renamed(&llm, |name| format!("text_encoders.qwen25_7b.transformer.{name}")),
            renamed(&vae, |name| format!("vae.{}", original(name))),
        ),
        ("transformer.", llm.clone(), vae.clone()),
    ] {
        let dit = renamed(&dit, |name| format!("{prefix}{name}"));
        let paths = [("dit", &dit), ("llm", &llm), ("vae", &vae)].map(|(name, tensors)| {
            let path = home.path(&format!("{name}.safetensors"));
            write(&path, tensors);
            path.display().to_string()
        });
        let [dit, llm, vae] = &paths;
        // What a tiny model's shapes do not say, its directory does.
        let source = [&model[..], "--diffusion-model", dit, "--llm", llm, "--vae", vae];
        let (_, dumped) = case.run(&home, &source, &host);
        assert_eq!(dumped, expected, "behind {prefix:?}");
    }
}

#[test]
fn a_directory_in_the_names_of_transformers_5_is_the_same() {
    let (home, model) = (Home::new(), fixture("qwen_image"));
    let case = cases().remove(0);
    let host = ["--host", "virtual-1x64m"];
    let (_, expected) = case.run(&home, &[&file("qwen_image")], &host);
    let dir = home.path("newer");
    for part in ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"] {
        fs::create_dir_all(dir.join(part)).expect("a directory");
        for entry in fs::read_dir(model.join(part)).expect("a part") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), dir.join(part).join(entry.file_name())).expect("a file");
        }
    }
    fs::copy(model.join("model_index.json"), dir.join("model_index.json")).expect("an index");
    let newer = |name: &str| match name.strip_prefix("model.") {
        Some(text) => format!("model.language_model.{text}"),
        None if name.starts_with("visual.") => format!("model.{name}"),
        None => name.to_owned(),
    };
    write(&dir.join(LLM_WEIGHTS), &renamed(&read(LLM_WEIGHTS), newer));
    let (_, dumped) = case.run(&home, &["newer"], &host);
    assert_eq!(dumped, expected);
}

/// Eight-bit floats (E4M3) by their bits, and the numbers that they are.
const FLOATS: [(u8, f32); 7] =
    [(0x38, 1.0), (0xb8, -1.0), (0x30, 0.5), (0xb0, -0.5), (0x3c, 1.5), (0xbc, -1.5), (0, 0.0)];

#[test]
fn a_text_encoder_of_scaled_eight_bit_floats_is_as_its_values() {
    let (home, model) = (Home::new(), file("qwen_image"));
    let case = cases().remove(0);
    let (mut short, mut wide) = (Stored::new(), Stored::new());
    for (index, (name, (dtype, shape, bytes))) in read(LLM_WEIGHTS).into_iter().enumerate() {
        if !name.ends_with("proj.weight") {
            short.insert(name.clone(), (dtype, shape.clone(), bytes.clone()));
            wide.insert(name, (dtype, shape, bytes));
            continue;
        }
        let scale = 0.03 + 0.001 * index as f32;
        // Whatever looks random in the present weights chooses the new ones.
        let chosen: Vec<(u8, f32)> =
            bytes.chunks(2).map(|pair| FLOATS[usize::from(pair[0]) % FLOATS.len()]).collect();
        let bits = chosen.iter().map(|(bits, _)| *bits).collect();
        let values = chosen.iter().flat_map(|(_, value)| (value * scale).to_le_bytes()).collect();
        let stem = name.strip_suffix("weight").expect("a weight").to_owned();
        short.insert(
            format!("{stem}scale_weight"),
            (Dtype::F32, vec![], scale.to_le_bytes().to_vec()),
        );
        short.insert(name.clone(), (Dtype::F8_E4M3, shape.clone(), bits));
        wide.insert(name, (Dtype::F32, shape, values));
    }
    let texts = [("short", &short), ("wide", &wide)].map(|(name, tensors)| {
        let path = home.path(&format!("{name}.safetensors"));
        write(&path, tensors);
        let path = path.display().to_string();
        let more = ["--host", "virtual-1x64m", "--exact-matmul"];
        let (_, dumped) = case.run(&home, &[&model, "--llm", &path], &more);
        dumped["text_encoder.c.last_hidden_state"].clone()
    });
    let off = deviation(texts[0].floats(), texts[1].floats());
    assert!(off <= TEXT, "scaled floats are {off:.1e} off their values");
}
