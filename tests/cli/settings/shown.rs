//! `berth inspect` of a picture, and what other programs find in it.

use crate::settings::{done, settings};
use crate::support::{Home, fixture, golden};

#[test]
fn inspect_shows_how_a_picture_was_made() {
    let home = Home::new();
    let model = fixture("flux_dev");
    std::os::unix::fs::symlink(&model, home.path("model")).unwrap();
    let run = ["generate", "model", "-p", "a red circle,\non white", "-n", "blue", "-s", "7"];
    let shape = ["-W", "64", "-H", "48", "--steps", "1", "--true-cfg-scale", "2", "-b", "2"];
    let more = ["--prompt-2", "a circle", "-o", "a.png"];
    done(&home, &[&run[..], &shape, &more].concat());
    let recorded = settings(&home, "a-2.png");
    let fingerprint = recorded["fingerprint"].as_str().expect("a fingerprint");
    let version = format!("berth {}", env!("CARGO_PKG_VERSION"));
    let arguments = ["inspect", "a-2.png"];
    let replaced = [(fingerprint, "FINGERPRINT"), (version.as_str(), "berth VERSION")];
    golden::said("inspect_picture", &home, &arguments, &home.run(&arguments), &replaced);
    let document = home.run(&["inspect", "a-2.png", "--json"]).json();
    assert_eq!(document["picture"], "a-2.png");
    assert_eq!(document["unknown"], serde_json::json!({}));
    for (key, value) in [
        ("prompt", "a red circle,\non white"),
        ("prompt_2", "a circle"),
        ("negative_prompt", "blue"),
        ("sampler", "Euler"),
        ("model", "model"),
    ] {
        assert_eq!(recorded[key], value, "{key}");
    }
    assert_eq!((&recorded["guidance_scale"], &recorded["cfg_scale"]), (&3.5.into(), &2.0.into()));
    assert_eq!((&recorded["seed"], &recorded["batch_position"]), (&8.into(), &1.into()));
    // By its content and not by its name it is told from a model.
    std::fs::rename(home.path("a-2.png"), home.path("model.safetensors")).unwrap();
    assert_eq!(settings(&home, "model.safetensors"), recorded);
    let ended = home.run(&["inspect", "model", "--json"]);
    assert_eq!(ended.json()["family"], "flux", "{}", ended.stderr);
}

#[test]
fn a_picture_without_settings_is_said_to_have_none() {
    let home = Home::new();
    std::fs::copy(fixture("pictures/rgb.png"), home.path("rgb.png")).unwrap();
    let ended = golden::run("inspect_picture_without", &home, &["inspect", "rgb.png"]);
    assert_eq!(ended.code, Some(2));
}

#[test]
fn what_had_no_effect_is_not_recorded() {
    let home = Home::new();
    let prompt = ["generate", "-p", "a circle", "--prompt-2", "a circle", "--steps", "1"];
    let more = ["--guidance-scale", "9", "--vae-tile", "512", "-o", "a.png"];
    done(&home, &[&prompt[..], &more].concat());
    let text = done(&home, &["inspect", "a.png"]).stdout;
    for key in ["Second prompt", "Distilled", "Negative", "VAE tile", "LoRA", "Batch", "Init"] {
        assert!(!text.contains(key), "{key} is in {text}");
    }
}
