//! Pictures to start from that are none, and jobs that cannot start from one.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::bad_input::case::{Case, ERROR, Line, assert_refused, edit_header};
use crate::support::fixture;

const VAE: &str = "vae/diffusion_pytorch_model.safetensors";

/// A small job that starts from `picture.png`.
const STARTED: &str = "generate model --prompt a --steps 4 --init-image picture.png";

/// Puts a sound picture beside the model.
fn with_picture(model: &Path) {
    fs::copy(fixture("pictures/rgb.png"), beside(model)).unwrap();
}

fn beside(model: &Path) -> std::path::PathBuf {
    model.with_file_name("picture.png")
}

#[test]
fn a_file_that_is_no_whole_picture_is_refused() {
    let cases: [Line; 6] = [
        ("none", |_| {}, &["cannot read the picture picture.png", "hint: "]),
        (
            "a text",
            |model| fs::write(beside(model), "not a picture").unwrap(),
            &["picture.png is no picture in PNG, JPEG or WebP; hint: convert it"],
        ),
        (
            "a directory",
            |model| fs::create_dir(beside(model)).unwrap(),
            &["picture.png is no picture in PNG, JPEG or WebP"],
        ),
        (
            "a PNG cut short",
            |model| {
                let whole = fs::read(fixture("pictures/rgb.png")).unwrap();
                fs::write(beside(model), &whole[..whole.len() - 15]).unwrap();
            },
            &["the picture picture.png is damaged: ", "hint: "],
        ),
        (
            "a JPEG cut short",
            |model| {
                let whole = fs::read(fixture("pictures/baseline.jpg")).unwrap();
                fs::write(beside(model), &whole[..whole.len() - 2]).unwrap();
            },
            &["the picture picture.png is damaged: it ends early; hint: "],
        ),
        (
            "a PNG that claims too many pixels",
            |model| {
                let mut bytes = fs::read(fixture("pictures/rgb.png")).unwrap();
                // Width and height of the header; its sum does not matter before its size does.
                bytes[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
                fs::write(beside(model), bytes).unwrap();
            },
            &["the picture picture.png is damaged: "],
        ),
    ];
    assert_refused(cases.map(|(name, damage, says)| Case::of(name, STARTED, says).after(damage)));
    let plan = "plan model --dry-run --init-image picture.png";
    assert_refused([Case::of("of plan too", plan, &["cannot read the picture"])]);
}

#[test]
fn a_job_that_cannot_start_from_its_picture_is_refused() {
    let started = |more: &str| format!("{STARTED} {more}");
    let cases: [(&str, String, &[&str]); 8] = [
        (
            "no step left",
            started("--strength 0"),
            &["--strength 0 leaves no step", "hint: strength × steps must be at least 1"],
        ),
        (
            "more than all",
            started("--strength 1.5"),
            &["--strength must be a number from 0 to 1, got 1.5"],
        ),
        (
            "less than nothing",
            started("--strength -0.1"),
            &["--strength must be a number from 0 to 1"],
        ),
        ("no strength", started("--strength NaN"), &["--strength must be a number from 0 to 1"]),
        (
            "a strength without a picture",
            "generate model --prompt a --strength 0.5".to_owned(),
            &["--strength says how far a picture is changed; hint: add --init-image FILE"],
        ),
        (
            "latents too",
            started("--init-latents model/x.safetensors"),
            &["'--init-latents <FILE>'", "cannot be used with", "--init-image"],
        ),
        ("an odd width", started("--width 100"), &["width 100 is no multiple of 16", "hint: "]),
        ("too wide", started("--width 20000"), &["width 20000 is not within 1 to 16384"]),
    ];
    assert_refused(
        cases.iter().map(|(name, run, says)| Case::of(name, run, says).after(with_picture)),
    );
}

#[test]
fn a_vae_without_its_encoder_starts_from_no_picture() {
    /// Gives the encoder's tensors names that nothing reads.
    fn remove_encoder(model: &Path) {
        with_picture(model);
        edit_header(&model.join(VAE), |header| {
            let Value::Object(tensors) = header else { panic!("a header is an object") };
            *tensors = std::mem::take(tensors)
                .into_iter()
                .map(|(name, entry)| (name.replacen("encoder.", "other.", 1), entry))
                .collect();
        });
    }
    fn remove_one(model: &Path) {
        with_picture(model);
        edit_header(&model.join(VAE), |header| {
            let tensors = header.as_object_mut().unwrap();
            let entry = tensors.remove("encoder.mid_block.resnets.1.conv2.bias").unwrap();
            tensors.insert("other".to_owned(), entry);
        });
    }
    let says: &[&str] = &["the model's VAE has no encoder", VAE, "hint: ", "--init-image"];
    assert_refused([
        Case::of("no encoder", STARTED, says).after(remove_encoder),
        Case::of("no encoder to plan", "plan model --init-image picture.png", says)
            .after(remove_encoder),
        Case::of("half an encoder", STARTED, &["encoder.mid_block.resnets.1.conv2.bias", VAE])
            .after(remove_one),
    ]);
    // Without a picture nobody misses it.
    for damage in [remove_encoder, remove_one] {
        let home = crate::support::Home::new();
        crate::bad_input::case::copy(&fixture("flux_schnell"), &home.path("model"));
        damage(&home.path("model"));
        let ended = home.run(&["inspect", "model", "--json"]);
        assert_ne!(ended.code, Some(ERROR), "{}", ended.stderr);
        let names = ended.json()["components"].to_string();
        assert!(names.contains("\"vae\"") && !names.contains("vae_encoder"), "{names}");
        let size = ["--width", "64", "--height", "64", "--steps", "1"];
        let ended = home.run(&[&["generate", "model", "--prompt", "a"], &size[..]].concat());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
}
