//! The same model from single files: GGUF, and safetensors in ComfyUI's names.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::golden::{cases, cases_of};
use crate::support::{Home, fixture};

/// What products of integers may be off, root mean square, by the last step.
const INTEGERS: f64 = 0.06;

const DIT_GGUF: &str = "gguf/zimage_turbo-Q8_0.gguf";
const LLM_GGUF: &str = "gguf/zimage_turbo_qwen3-Q8_0.gguf";

/// A path under `tests/fixtures`.
fn file(name: &str) -> String {
    fixture(name).display().to_string()
}

#[test]
fn a_quantised_dit_matches_in_every_tensor() {
    let (home, model, dit) = (Home::new(), file("zimage_turbo"), file(DIT_GGUF));
    let source = [&model[..], "--diffusion-model", &dit];
    let cases = cases_of("gguf-Q8_0");
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
    let (home, model, llm) = (Home::new(), file("zimage_turbo"), file(LLM_GGUF));
    let source = [&model[..], "--llm", &llm];
    let cases = cases_of("gguf-qwen3");
    assert_eq!(cases.len(), 2);
    for case in &cases {
        let (_, dumped) = case.run(&home, &source, &["--exact-matmul", "--host", "virtual-1x64m"]);
        case.compare("a quantised text encoder", &dumped);
        // Its tokenizer gives the ids that the directory's does.
        let ids = "text_encoder.c.input_ids";
        let whole = cases_by_name(&case.name);
        assert_eq!(dumped[ids], whole[ids], "{}", case.name);
        let (_, dumped) = case.run(&home, &source, &["--host", "virtual-1x64m"]);
        let (off, name) = case.mean_deviation(&dumped);
        assert!(off <= INTEGERS, "{name} is {off:.1e} off by integers");
    }
}

fn cases_by_name(name: &str) -> crate::parity::golden::Tensors {
    let case = cases().into_iter().find(|case| case.name == name).expect("a case");
    case.tensors
}

/// A tensor of a file: type, shape, bytes.
type Stored = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn read(path: &Path) -> Stored {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
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

/// The DiT's tensors as ComfyUI has them, behind a prefix.
pub fn comfy(diffusers: &Stored, prefix: &str) -> Stored {
    let mut tensors = Stored::new();
    for (name, (dtype, shape, bytes)) in diffusers {
        let renamed = [
            ("all_x_embedder.2-1", "x_embedder"),
            ("all_final_layer.2-1", "final_layer"),
            ("attention.norm_q", "attention.q_norm"),
            ("attention.norm_k", "attention.k_norm"),
            ("attention.to_out.0", "attention.out"),
        ];
        let name = renamed.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        if name.contains("attention.to_k") || name.contains("attention.to_v") {
            continue;
        }
        let (mut shape, mut bytes) = (shape.clone(), bytes.clone());
        if name.contains("attention.to_q") {
            for part in ["to_k", "to_v"] {
                bytes.extend(&diffusers[&name.replace("to_q", part)].2);
            }
            shape[0] *= 3;
        }
        let name = name.replace("attention.to_q", "attention.qkv");
        tensors.insert(format!("{prefix}{name}"), (*dtype, shape, bytes));
    }
    tensors
}

#[test]
fn files_in_comfyuis_names_give_the_directorys_picture() {
    let (home, model) = (Home::new(), file("zimage_turbo"));
    let case = cases().remove(0);
    let host = ["--host", "virtual-1x64m"];
    let (_, expected) = case.run(&home, &[&model], &host);
    let dit = read(&fixture("zimage_turbo/transformer/diffusion_pytorch_model.safetensors"));
    let [llm, vae] = ["text_encoder/model", "vae/diffusion_pytorch_model"]
        .map(|part| file(&format!("zimage_turbo/{part}.safetensors")));
    for prefix in ["", "model.diffusion_model."] {
        let path = home.path("z_image.safetensors");
        write(&path, &comfy(&dit, prefix));
        let path = path.display().to_string();
        // What a tiny model's shapes do not say, its directory does.
        let source = [&model[..], "--diffusion-model", &path, "--llm", &llm, "--vae", &vae];
        let (_, dumped) = case.run(&home, &source, &host);
        assert_eq!(dumped, expected, "behind {prefix:?}");
    }
}
