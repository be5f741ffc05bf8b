//! The model without T5, as people run it who have little memory: zeros stand where its states
//! would.

use std::fs;
use std::path::Path;

use super::golden::{Case, MODELS, cases};
use crate::parity::compare::{TEXT, deviation};
use crate::support::{Home, fixture};

/// A copy of a reference model without T5: neither its files nor its entry in the index.
fn copy_without(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a directory");
    let parts = [
        "scheduler",
        "text_encoder",
        "text_encoder_2",
        "tokenizer",
        "tokenizer_2",
        "transformer",
        "vae",
    ];
    for part in parts {
        fs::create_dir(to.join(part)).expect("a directory");
        for entry in fs::read_dir(from.join(part)).expect("a part") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), to.join(part).join(entry.file_name())).expect("a file");
        }
    }
    let index = fs::read_to_string(from.join("model_index.json")).expect("an index");
    let mut index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
    // As diffusers saves a pipeline whose part is `None`.
    let none = serde_json::json!([null, null]);
    index["text_encoder_3"] = none.clone();
    index["tokenizer_3"] = none;
    fs::write(to.join("model_index.json"), index.to_string()).expect("an index");
}

fn case(model: &'static str) -> Case {
    cases(model).remove(2)
}

#[test]
fn zeros_stand_where_t5_would() {
    let home = Home::new();
    for model in MODELS {
        let case = case(model);
        let more = ["--host", "virtual-1x64m", "--exact-matmul"];
        let directory = case.directory();
        let (document, dumped) = case.run(&home, &[&directory, "--t5xxl", "none"], &more);
        let components = document["plan"]["components"].as_array().expect("components");
        let names: Vec<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names, ["clip_l", "clip_g", "dit", "vae"]);
        // Of what the transformer is given the tokens of CLIP are golden, the others zero.
        let name = "transformer.call0.in.encoder_hidden_states";
        let (got, golden) = (dumped[name].floats(), case.tensors[name].floats());
        assert_eq!(got.len(), golden.len());
        let item = got.len() / 2;
        let clip = 77 * 80;
        for half in [0, item] {
            let off = deviation(&got[half..half + clip], &golden[half..half + clip]);
            assert!(off <= TEXT, "{model}: {off:.1e} off");
            assert!(got[half + clip..half + item].iter().all(|value| *value == 0.0), "{model}");
        }
        assert!(!dumped.contains_key("text_encoder_3.c.input_ids"));

        let copy = home.path(model);
        copy_without(&fixture(model), &copy);
        let copy = copy.display().to_string();
        let (_, same) = case.run(&home, &[&copy], &more);
        assert_eq!(dumped, same, "{model}: a directory without T5");
        // What a directory lacks may be named beside it.
        let [t5, tokens] = ["text_encoder_3/model.safetensors", ""]
            .map(|part| fixture(model).join(part).display().to_string());
        let source = [&copy[..], "--t5xxl", &t5, "--tokenizer-dir", &tokens];
        let (_, dumped) = case.run(&home, &source, &more);
        case.compare("T5 beside a directory", &dumped);
    }
}

#[test]
fn other_parts_and_other_models_cannot_be_left_out() {
    let home = Home::new();
    let refused = |arguments: &[&str], expected: &[&str]| {
        let begin = ["generate", "--prompt", "a cat", "--width", "64", "--height", "64"];
        let ended = home.run(&[&begin[..], arguments].concat());
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        for part in expected {
            assert!(ended.stderr.contains(part), "{part} in {}", ended.stderr);
        }
    };
    let [own, flux] =
        ["sd35_medium", "flux_schnell"].map(|name| fixture(name).display().to_string());
    refused(&[&own, "--clip-g", "none"], &["--clip-g none", "cannot do without CLIP-G", "hint:"]);
    refused(&[&own, "--vae", "none"], &["--vae none", "hint:"]);
    refused(&[&flux, "--t5xxl", "none"], &["--t5xxl none", "cannot do without T5", "hint:"]);
    // Without a word T5 is missed.
    let part = |name: &str| fixture("sd35_medium").join(name).display().to_string();
    let (dit, vae) = (
        part("transformer/diffusion_pytorch_model.safetensors"),
        part("vae/diffusion_pytorch_model.safetensors"),
    );
    let (l, g) = (part("text_encoder/model.safetensors"), part("text_encoder_2/model.safetensors"));
    let parts = ["--diffusion-model", &dit, "--clip-l", &l, "--clip-g", &g, "--vae", &vae];
    let described = home.run(&[&["inspect"], &parts[..]].concat());
    for text in ["no file gives T5", "--t5xxl none"] {
        assert!(described.stdout.contains(text), "{text} in {}", described.stdout);
    }
}
