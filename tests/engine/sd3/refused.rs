//! What is wrong with a model's files, or with what is asked of it, is told by name, with a hint.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Home, fixture};

/// A copy of a reference model in a home.
fn copy(home: &Home) -> PathBuf {
    let (from, to) = (fixture("sd35_medium"), home.path("model"));
    if to.exists() {
        fs::remove_dir_all(&to).expect("the copy can be removed");
    }
    fs::create_dir(&to).expect("a directory");
    for entry in fs::read_dir(from).expect("the reference model") {
        let entry = entry.expect("an entry");
        if entry.path().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("a file");
            continue;
        }
        fs::create_dir(to.join(entry.file_name())).expect("a directory");
        for inner in fs::read_dir(entry.path()).expect("a part") {
            let inner = inner.expect("an entry");
            fs::copy(inner.path(), to.join(entry.file_name()).join(inner.file_name()))
                .expect("a file");
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
    let faults: [(&str, &str, &str, &str); 11] = [
        (transformer, "\"rms_norm\"", "\"layer_norm\"", "qk_norm is Some(\"layer_norm\")"),
        (transformer, "    1\n", "    3\n", "dual_attention_layers holds Some(3), of 3 blocks"),
        (
            transformer,
            "\"caption_projection_dim\": 64",
            "\"caption_projection_dim\": 80",
            "caption_projection_dim is 80",
        ),
        (transformer, "\"out_channels\": 16", "\"out_channels\": 32", "out_channels is 32"),
        (
            transformer,
            "\"pooled_projection_dim\": 72",
            "\"pooled_projection_dim\": 64",
            "pooled_projection_dim is 64",
        ),
        (
            transformer,
            "\"joint_attention_dim\": 80",
            "\"joint_attention_dim\": 96",
            "joint_attention_dim is 96",
        ),
        (transformer, "\"patch_size\": 2", "\"patch_size\": 0", "patch_size is 0"),
        (
            transformer,
            "\"pos_embed_max_size\": 32",
            "\"pos_embed_max_size\": 31",
            "pos_embed.pos_embed",
        ),
        ("text_encoder_2/config.json", "\"gelu\"", "\"relu\"", "hidden_act `relu`"),
        (
            "text_encoder/config.json",
            "\"projection_dim\": 32",
            "\"projection_dim\": 40",
            "pooled_projection_dim is 72",
        ),
        (
            "scheduler/scheduler_config.json",
            "\"shift\": 3.0",
            "\"use_karras_sigmas\": true",
            "use_karras_sigmas",
        ),
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
    fs::remove_file(model.join("text_encoder_2/model.safetensors")).expect("weights");
    refused(&home, &["model"], &["text_encoder_2"]);
    let model = copy(&home);
    fs::remove_file(model.join("tokenizer_3/tokenizer.json")).expect("a tokenizer");
    refused(&home, &["model"], &["tokenizer_3", "tokenizer.json"]);

    copy(&home);
    let file = |name: &str| fixture(name).display().to_string();
    let vae = file("sd35_medium/vae/diffusion_pytorch_model.safetensors");
    refused(&home, &["model", "--clip-g", &vae], &["does not hold CLIP-G", "--clip-g", "hint:"]);
    refused(&home, &["model", "--diffusion-model", &vae], &["does not hold the DiT", "hint:"]);
    let llm = file("gguf/zimage_turbo_qwen3-Q8_0.gguf");
    refused(&home, &["model", "--llm", &llm], &["--llm", "does not have", "--clip-g"]);
    let flux = file("flux_schnell");
    let clip = file("sd35_medium/text_encoder_2/model.safetensors");
    refused(&home, &[&flux, "--clip-g", &clip], &["--clip-g", "does not have", "--clip-l"]);
}

#[test]
fn what_the_model_cannot_do_is_refused() {
    let home = Home::new();
    copy(&home);
    refused(&home, &["model", "--width", "72"], &["width 72 is no multiple of 16"]);
    refused(&home, &["model", "--max-sequence-length", "513"], &["513", "512"]);
    // Its table has 32 tokens of 16 pixels along a side.
    refused(&home, &["model", "--width", "528"], &["528x64", "512x512", "hint:"]);
}

#[test]
fn it_is_described() {
    let home = Home::new();
    for (model, steps, guidance) in [("sd35_medium", 40, 4.5), ("sd3_medium", 28, 7.0)] {
        let model = fixture(model).display().to_string();
        let described = home.json(&["inspect", &model, "--json"]);
        assert_eq!(described["family"], "sd3");
        let components = described["components"].as_array().expect("components");
        let names: Vec<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names, ["vae_encoder", "clip_l", "clip_g", "t5", "dit", "vae"]);
        assert_eq!(described["defaults"]["steps"], steps);
        assert_eq!(described["defaults"]["guidance_scale"], guidance);
        assert_eq!(described["guidance"], "classifier-free");
        // The table of positions is read by the host, a row at a time.
        assert!(components[4]["unused_bytes"].as_u64() > Some(0));
    }
}

#[test]
fn a_part_of_the_table_that_ends_at_its_edge_is_used() {
    let home = Home::new();
    copy(&home);
    let arguments = ["generate", "model", "--host", "virtual-1x64m", "--steps", "1", "--seed", "1"];
    let size =
        ["--prompt", "a cat", "--width", "512", "--height", "16", "--max-sequence-length", "16"];
    let ended = home.run(&[&arguments[..], &size].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
