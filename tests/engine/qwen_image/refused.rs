//! What is wrong with a model's files, or with what is asked of it, is told by name, with a hint.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Home, fixture};

/// A copy of the reference model in a home.
fn copy(home: &Home) -> PathBuf {
    let (from, to) = (fixture("qwen_image"), home.path("model"));
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
    let (dit, llm, vae) =
        ("transformer/config.json", "text_encoder/config.json", "vae/config.json");
    let faults: [(&str, &str, &str, &str); 15] = [
        (dit, "\"guidance_embeds\": false", "\"guidance_embeds\": true", "guidance_embeds is true"),
        (dit, "\"patch_size\": 2", "\"patch_size\": 1", "patch_size is 1"),
        (dit, "    8,\n", "    7,\n", "odd width 7"),
        (dit, "    8,\n", "    16,\n", "axes_dims_rope sum to 40"),
        (
            dit,
            "\"joint_attention_dim\": 64",
            "\"joint_attention_dim\": 65",
            "joint_attention_dim is 65",
        ),
        (dit, "\"out_channels\": 16", "\"out_channels\": 15", "out_channels is 15"),
        (
            dit,
            "\"num_layers\": 2",
            "\"num_layers\": 2, \"zero_cond_t\": true",
            "zero_cond_t is true",
        ),
        (
            llm,
            "\"model_type\": \"qwen2_5_vl\",\n  \"rope",
            "\"model_type\": \"qwen3\",\n  \"rope",
            "qwen2_5_vl",
        ),
        (llm, "\"type\": \"default\"", "\"type\": \"yarn\"", "rope_scaling"),
        (llm, "\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "3 heads of keys"),
        (vae, "\"attn_scales\": []", "\"attn_scales\": [1.0]", "attn_scales"),
        (vae, "    1.7243,\n", "    0.0,\n", "latents_std"),
        (vae, "    1.7243,\n", "", "latents_std has 15 numbers"),
        (vae, "\"z_dim\": 16", "\"z_dim\": 17", "latents_mean has 16 numbers for 17"),
        (vae, "    false,\n", "", "temperal_downsample has 2 entries for 4 levels"),
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
    fs::remove_file(model.join("tokenizer/vocab.json")).expect("a tokenizer");
    refused(&home, &["model"], &["tokenizer.json, or vocab.json and merges.txt"]);
    let model = copy(&home);
    fs::remove_file(model.join("text_encoder/model.safetensors")).expect("weights");
    refused(&home, &["model"], &["text_encoder"]);

    let file = |name: &str| fixture(name).display().to_string();
    let dit = file("gguf/qwen_image-Q5_0.gguf");
    let llm = file("gguf/qwen_image_qwen2vl-Q8_0.gguf");
    let vae = file("qwen_image/vae/diffusion_pytorch_model.safetensors");
    // What shapes do not say of a tiny model no file does.
    refused(
        &home,
        &["--diffusion-model", &dit, "--vae", &vae, "--llm", &llm],
        &["heads are 32 wide", "hint:"],
    );
    refused(
        &home,
        &["--llm", &llm, "--vae", &vae],
        &["no file gives the DiT", "--diffusion-model"],
    );
    copy(&home);
    refused(&home, &["model", "--llm", &dit], &["does not hold Qwen2.5-VL", "--llm", "hint:"]);
    refused(&home, &["model", "--diffusion-model", &llm], &["does not hold the DiT", "hint:"]);
    let flux = file("single/flux_single_ae.safetensors");
    refused(&home, &["model", "--vae", &flux], &["does not hold the VAE", "hint:"]);
    let clip = file("single/flux_single_clip_l.safetensors");
    refused(&home, &["model", "--clip-l", &clip], &["--clip-l", "does not have", "--llm"]);
    // Nor is this VAE another family's.
    let other = file("zimage_turbo");
    refused(&home, &[&other, "--vae", &vae], &["hint: the file is of another model"]);
}

#[test]
fn what_the_model_cannot_do_is_refused() {
    let home = Home::new();
    copy(&home);
    refused(&home, &["model", "--width", "72"], &["width 72 is no multiple of 16"]);
    refused(&home, &["model", "--max-sequence-length", "1025"], &["1025", "1024"]);
    refused(&home, &["model", "--prompt-2", "a dog"], &["--prompt-2", "hint:"]);
    refused(&home, &["model", "--steps", "1"], &["shift_terminal", "--steps 2"]);
}

#[test]
fn a_prompt_that_is_cut_is_told_without_the_templates_words() {
    let home = Home::new();
    copy(&home);
    let run = |tokens: &str| {
        let mut arguments = vec!["generate", "model", "--host", "virtual-1x64m", "--steps", "2"];
        arguments.extend(["--prompt", "a photo of a red cat and some more", "--seed", "1"]);
        arguments.extend(["--width", "64", "--height", "64", "--max-sequence-length", tokens]);
        let ended = home.run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stderr
    };
    let cut = run("6");
    assert!(cut.contains("Qwen2.5-VL") && cut.contains("some more"), "{cut}");
    assert!(!cut.contains("im_end") && !cut.contains("assistant"), "{cut}");
    assert!(!run("64").contains("Qwen2.5-VL"));
}

#[test]
fn it_is_described() {
    let home = Home::new();
    let model = fixture("qwen_image").display().to_string();
    let described = home.json(&["inspect", &model, "--json"]);
    assert_eq!(described["family"], "qwen-image");
    let components = described["components"].as_array().expect("components");
    let names: Vec<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["vae_encoder", "llm", "dit", "vae"]);
    assert_eq!(described["defaults"]["steps"], 50);
    assert_eq!(described["defaults"]["true_cfg_scale"], 4.0);
    assert_eq!(described["guidance"], "none");
    // Of the text encoder's file what sees pictures and what chooses tokens is no part of it; of
    // the VAE's, taps that meet frames before the first one are not used.
    let bytes = |index: usize, of: &str| components[index][of].as_u64().expect("bytes");
    assert_eq!([bytes(1, "tensor_bytes"), bytes(1, "unused_bytes")], [2 * 171_840, 0]);
    let (both, all) = (bytes(0, "tensor_bytes") + bytes(3, "tensor_bytes"), 2 * 668_043);
    assert_eq!(bytes(0, "tensor_bytes") + bytes(0, "unused_bytes"), all);
    assert!(both * 2 < all, "{both} of {all} B are used");
}
