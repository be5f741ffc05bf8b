//! What is wrong with a model's files, or with what is asked of it, is told by name, with a hint.

use std::fs;

use super::{MODEL, change, copy, file};
use crate::support::bfl::{read, write};
use crate::support::{Home, fixture};

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
    let (transformer, vae) = ("transformer/config.json", "vae/config.json");
    let encoder = "text_encoder/config.json";
    let faults: [(&str, &str, &str, &str); 13] = [
        (transformer, "\"patch_size\": 1", "\"patch_size\": 2", "patch_size is 2"),
        (transformer, "\"out_channels\": null", "\"out_channels\": 16", "out_channels is 16"),
        (transformer, "    8,\n", "    7,\n", "odd width 7"),
        (transformer, "    8,\n", "    16,\n", "axes_dims_rope sum to 56"),
        (
            transformer,
            "\"joint_attention_dim\": 96",
            "\"joint_attention_dim\": 64",
            "joint_attention_dim is 64",
        ),
        (transformer, "\"in_channels\": 32", "\"in_channels\": 16", "in_channels is 16"),
        (
            transformer,
            "\"mlp_ratio\": 3.0",
            "\"mlp_ratio\": 0.0",
            "width of feed-forward layers is 0",
        ),
        (transformer, "\"rope_theta\": 2000", "\"rope_theta\": 0", "rope_theta is 0"),
        (encoder, "\"num_hidden_layers\": 28", "\"num_hidden_layers\": 26", "a state of layer 27"),
        (vae, "\"batch_norm_eps\": 0.0001", "\"batch_norm_eps\": -1", "batch_norm_eps is -1"),
        (vae, "    2,\n    2\n", "    4,\n    2\n", "patch_size is [4, 2]"),
        (
            vae,
            "\"act_fn\"",
            "\"decoder_block_out_channels\": [8, 8, 8, 8], \"act_fn\"",
            "decoder_block_out_channels",
        ),
        (vae, "\"latent_channels\": 8", "\"latent_channels\": 4", "in_channels is 32"),
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
    fs::remove_file(model.join("tokenizer/tokenizer.json")).expect("a tokenizer");
    fs::remove_file(model.join("tokenizer/vocab.json")).expect("its words");
    refused(&home, &["model"], &["tokenizer"]);
    let model = copy(&home);
    fs::remove_file(model.join("text_encoder/model.safetensors")).expect("weights");
    refused(&home, &["model"], &["text_encoder"]);

    let dit = file("single/flux2_klein_bfl.safetensors");
    let part = |name: &str| file(&format!("{MODEL}/{name}.safetensors"));
    let (llm, vae) = (part("text_encoder/model"), part("vae/diffusion_pytorch_model"));
    let parts = ["--diffusion-model", &dit, "--llm", &llm, "--vae", &vae];
    refused(&home, &parts, &["heads are 32 wide", "hint:"]);
    copy(&home);
    let other = file("single/flux_single_ae.safetensors");
    refused(&home, &["model", "--vae", &other], &["does not hold FLUX.2's VAE", "bn.running_mean"]);
    refused(&home, &["model", "--llm", &dit], &["does not hold Qwen3", "--llm", "hint:"]);
    refused(&home, &["model", "--diffusion-model", &llm], &["does not hold the DiT", "hint:"]);
    let clip = file("single/flux_single_clip_l.safetensors");
    refused(&home, &["model", "--clip-l", &clip], &["--clip-l", "does not have", "--llm"]);
}

#[test]
fn a_dit_that_takes_guidance_is_that_of_another_model() {
    let home = Home::new();
    copy(&home);
    let mut tensors = read(&fixture("single/flux2_klein_bfl.safetensors"));
    let time = tensors["time_in.in_layer.weight"].clone();
    tensors.insert("guidance_in.in_layer.weight".to_owned(), time);
    write(&home.path("dev.safetensors"), &tensors);
    let expected = ["this is FLUX.2-dev", "FLUX.2 klein"];
    refused(&home, &["model", "--diffusion-model", "dev.safetensors"], &expected);
}

#[test]
fn statistics_that_are_missing_or_no_numbers_are_told() {
    let home = Home::new();
    let model = copy(&home);
    let weights = model.join("vae/diffusion_pytorch_model.safetensors");
    let whole = read(&weights);
    let mut without = whole.clone();
    without.remove("bn.running_var");
    write(&weights, &without);
    refused(&home, &["model"], &["bn.running_var"]);
    for (name, said) in [("bn.running_var", "no variance"), ("bn.running_mean", "infinite or none")]
    {
        let mut damaged = whole.clone();
        // -1 and infinity as bf16.
        let bytes = if name == "bn.running_var" { [0x80, 0xbf] } else { [0x80, 0x7f] };
        damaged.get_mut(name).expect("statistics").2[..2].copy_from_slice(&bytes);
        write(&weights, &damaged);
        refused(&home, &["model"], &[name, said]);
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
    assert!(!cut.contains("im_end") && !cut.contains("think"), "{cut}");
    assert!(!run("64").contains("Qwen3"));
}

#[test]
fn it_is_described() {
    let home = Home::new();
    let described = home.json(&["inspect", &file(MODEL), "--json"]);
    assert_eq!(described["family"], "flux2");
    let components = described["components"].as_array().expect("components");
    let names: Vec<&str> = components.iter().filter_map(|c| c["name"].as_str()).collect();
    assert_eq!(names, ["vae_encoder", "llm", "dit", "vae"]);
    assert_eq!(described["defaults"]["steps"], 4);
    assert_eq!(described["guidance"], "none");
    // Of 28 layers the last one, and the norm behind it, are not used.
    let unused = components[1]["unused_bytes"].as_u64().expect("bytes");
    let layer = 2 * (64 * 32 + 2 * 32 * 32 + 32 * 64 + 3 * 64 * 32 + 2 * 16 + 2 * 32);
    assert_eq!(unused, layer + 2 * 32);
    assert_eq!(components[2]["unused_bytes"], 0);
}
