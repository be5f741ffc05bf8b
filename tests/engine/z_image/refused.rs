//! What is wrong with a model's files, or with what is asked of it, is told by name, with a hint.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Home, fixture};

/// A copy of the reference model in a home.
fn copy(home: &Home) -> PathBuf {
    let (from, to) = (fixture("zimage_turbo"), home.path("model"));
    if to.exists() {
        fs::remove_dir_all(&to).expect("the copy can be removed");
    }
    fs::create_dir(&to).expect("a directory");
    fs::copy(from.join("model_index.json"), to.join("model_index.json")).expect("an index");
    for part in ["scheduler", "text_encoder", "tokenizer", "transformer", "vae"] {
        fs::create_dir(to.join(part)).expect("a directory");
        for entry in fs::read_dir(from.join(part)).expect("a part") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), to.join(part).join(entry.file_name())).expect("a file");
        }
    }
    to
}

/// Replaces text in a file of the copy.
fn change(model: &Path, file: &str, from: &str, to: &str) {
    let path = model.join(file);
    let text = fs::read_to_string(&path).expect("a text");
    assert!(text.contains(from), "{file} has no {from}");
    fs::write(path, text.replace(from, to)).expect("the copy can be written");
}

#[track_caller]
fn refused(home: &Home, arguments: &[&str], expected: &[&str]) {
    let width: &[&str] = if arguments.contains(&"--width") { &[] } else { &["--width", "64"] };
    let begin = ["generate", "--prompt", "a cat", "--height", "64"];
    let ended = home.run(&[&begin[..], width, arguments].concat());
    assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
    for part in expected {
        assert!(ended.stderr.contains(part), "{part} in {}", ended.stderr);
    }
}

#[test]
fn configurations_that_are_not_known_are_refused() {
    let home = Home::new();
    let transformer = "transformer/config.json";
    let encoder = "text_encoder/config.json";
    let faults: [(&str, &str, &str, &str); 10] = [
        (transformer, "\"n_heads\": 2", "\"n_heads\": 3", "n_kv_heads is 2, expected n_heads, 3"),
        (transformer, "\"qk_norm\": true", "\"qk_norm\": false", "qk_norm is false"),
        (transformer, "    8,\n", "    7,\n", "odd width 7"),
        (transformer, "    8,\n", "    16,\n", "axes_dims sum to 40"),
        (transformer, "\"cap_feat_dim\": 64", "\"cap_feat_dim\": 65", "cap_feat_dim is 65"),
        (transformer, "\"dim\": 64", "\"dim\": 0", "dim is 0"),
        (encoder, "\"head_dim\": 16", "\"head_dim\": 15", "head_dim is the odd 15"),
        (encoder, "\"rope_scaling\": null", "\"rope_scaling\": {\"factor\": 2}", "rope_scaling"),
        (encoder, "\"model_type\": \"qwen3\"", "\"model_type\": \"llama\"", "llama"),
        (encoder, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4", "heads of keys"),
    ];
    for (file, from, to, expected) in faults {
        let model = copy(&home);
        change(&model, file, from, to);
        refused(&home, &["model"], &[expected]);
    }
}

#[test]
fn parts_that_are_missing_or_of_another_model_are_named() {
    let home = Home::new();
    let model = copy(&home);
    for file in ["tokenizer.json", "vocab.json"] {
        fs::remove_file(model.join("tokenizer").join(file)).expect("a tokenizer");
    }
    refused(&home, &["model"], &["tokenizer.json"]);
    let model = copy(&home);
    fs::remove_file(model.join("text_encoder/model.safetensors")).expect("weights");
    refused(&home, &["model"], &["text_encoder"]);

    let file = |name: &str| fixture(name).display().to_string();
    let dit = file("gguf/zimage_turbo-Q8_0.gguf");
    let llm = file("gguf/zimage_turbo_qwen3-Q8_0.gguf");
    let vae = file("single/flux_single_ae.safetensors");
    let parts = ["--diffusion-model", &dit, "--vae", &vae];
    refused(&home, &[&parts[..], &["--llm", &llm]].concat(), &["heads are 32 wide", "hint:"]);
    refused(
        &home,
        &["--llm", &llm, "--vae", &vae],
        &["no file gives the DiT", "--diffusion-model"],
    );
    copy(&home);
    refused(&home, &["model", "--llm", &dit], &["does not hold Qwen3", "--llm", "hint:"]);
    refused(&home, &["model", "--diffusion-model", &llm], &["does not hold the DiT", "hint:"]);
    let clip = file("single/flux_single_clip_l.safetensors");
    refused(&home, &["model", "--clip-l", &clip], &["--clip-l", "does not have", "--llm"]);
    let flux = file("flux_schnell");
    refused(&home, &[&flux, "--llm", &llm], &["--llm", "does not have", "--t5xxl"]);
    let encoder = file("zimage_turbo/text_encoder/model.safetensors");
    let described = home.run(&["inspect", "--llm", &encoder]);
    for part in ["no file gives Qwen3's tokenizer", "tokenizer/tokenizer.json", "--tokenizer-dir"] {
        assert!(described.stdout.contains(part), "{part} in {}", described.stdout);
    }
}

#[test]
fn what_the_model_cannot_do_is_refused() {
    let home = Home::new();
    copy(&home);
    refused(&home, &["model", "--width", "72"], &["width 72 is no multiple of 16"]);
    refused(&home, &["model", "--max-sequence-length", "513"], &["513", "512"]);
    refused(&home, &["model", "--prompt-2", "a dog"], &["--prompt-2", "hint:"]);
}

#[test]
fn a_prompt_that_is_cut_is_told_without_the_templates_words() {
    let home = Home::new();
    copy(&home);
    let run = |tokens: &str| {
        let mut arguments = vec!["generate", "model", "--host", "virtual-1x64m", "--steps", "1"];
        arguments.extend(["--prompt", "a photo of a red cat and some more", "--seed", "1"]);
        arguments.extend(["--width", "64", "--height", "64", "--max-sequence-length", tokens]);
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let cut = run("10");
    assert!(cut.contains("Qwen3") && cut.contains("some more"), "{cut}");
    assert!(!cut.contains("im_end") && !cut.contains("assistant"), "{cut}");
    assert!(!run("64").contains("Qwen3"));
}

#[test]
fn it_is_described() {
    let home = Home::new();
    let model = fixture("zimage_turbo").display().to_string();
    let described = home.json(&["inspect", &model, "--json"]);
    assert_eq!(described["family"], "z-image");
    let components = described["components"].as_array().expect("components");
    let names: Vec<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["vae_encoder", "llm", "dit", "vae"]);
    assert_eq!(described["defaults"]["steps"], 8);
    assert_eq!(described["guidance"], "beyond-prompt");
    // The last layer and the norm behind it are not used.
    assert!(components[1]["unused_bytes"].as_u64() > Some(0));
}
