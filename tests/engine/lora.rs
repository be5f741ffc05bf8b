//! LoRA through the real program, on every kind of placement: changed weights where they are held,
//! products beside them where they are streamed or split by rows or heads.

use std::path::Path;

use crate::support::lora::write_lora;
use crate::support::wide::Wide;
use crate::support::{Ended, Home, pixels};

const DEVICE: &str = "[[device]]\nkind = \"virtual\"\ntotal = \"256MiB\"\nlink = \"8GiB/s\"\n";

struct Studio {
    home: Home,
}

impl Studio {
    fn new() -> Studio {
        let home = Home::new();
        Wide::bf16().write(&home.path("model")).expect("a file system with room");
        std::fs::write(home.path("devices.toml"), format!("name = \"two\"\n{DEVICE}{DEVICE}"))
            .unwrap();
        write_lora(&home.path("style:v1.safetensors"), 1);
        write_lora(&home.path("other.safetensors"), 100);
        Studio { home }
    }

    fn run(&self, more: &[&str]) -> Ended {
        let arguments = ["generate", "model", "--host", "devices.toml", "--prompt", "a red circle"];
        let shape = ["--width", "64", "--height", "48", "--steps", "2", "--seed", "7", "--json"];
        let output = ["--max-sequence-length", "32", "--output", "picture.png"];
        self.home.run(&[&arguments[..], &shape, &output, more].concat())
    }

    /// A picture's pixels; the run must use what was planned.
    fn paint(&self, more: &[&str]) -> Vec<u8> {
        let ended = self.run(more);
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        let document = ended.json();
        for device in document["usage"]["devices"].as_array().unwrap() {
            for phase in device["phases"].as_array().unwrap() {
                let (planned, used) =
                    (&phase["predicted_peak_bytes"], &phase["measured_peak_bytes"]);
                assert_eq!(planned, used, "{more:?}: {device}");
            }
        }
        pixels(&self.home.path("picture.png"))
    }
}

/// The largest difference of two pictures, in levels.
fn difference(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[test]
fn two_files_with_weights_give_one_picture_on_every_placement() {
    let studio = Studio::new();
    let weights =
        ["transformer/diffusion_pytorch_model.safetensors", "text_encoder_2/model.safetensors"]
            .map(|file| studio.home.path("model").join(file));
    let before = weights.each_ref().map(|path| std::fs::read(path).unwrap());
    let on_host = ["--backend", "all=cpu"];
    let plain = studio.paint(&on_host);
    let loras = ["--lora", "style:v1.safetensors:0.8", "--lora", "other.safetensors"];
    let paint = |more: &[&str]| studio.paint(&[&loras[..], more].concat());
    let expected = paint(&on_host);
    assert!(difference(&expected, &plain) > 8, "LoRA changes the picture");
    let one = studio.paint(&["--lora", "style:v1.safetensors:0.8", "--backend", "all=cpu"]);
    assert!(difference(&one, &expected) > 1, "each file and weight counts");
    for held in [
        &["--backend", "all=virtual0"][..],
        &["--backend", "all=virtual0", "--params-backend", "all=disk"],
        &["--backend", "all=virtual0,dit=virtual0&virtual1"],
        &["--backend", "all=virtual0,t5=cpu"],
    ] {
        assert!(paint(held) == expected, "{held:?}: another picture");
    }
    // Another order of sums: a product beside a rounded weight, in place of a product with the
    // rounded sum.
    for beside in [
        &["--backend", "all=virtual0", "--params-backend", "dit=cpu,t5=cpu"][..],
        &["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row"],
        &["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "dit=tensor"],
        &["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "dit=cpu"],
    ] {
        let painted = paint(beside);
        let far = painted.iter().zip(&expected).filter(|(a, b)| a.abs_diff(**b) > 8).count();
        assert!(far * 100 < painted.len(), "{beside:?}: {far} values are elsewhere");
        assert!(difference(&painted, &plain) > 8, "{beside:?}: as if there were no LoRA");
    }
    let after = weights.each_ref().map(|path| std::fs::read(path).unwrap());
    assert!(before == after, "a file of the model was changed");
}

#[test]
fn what_matches_nothing_is_told_and_what_is_no_lora_is_refused() {
    let studio = Studio::new();
    let ended = studio.run(&["--lora", "other.safetensors:0.5"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("transformer.nowhere"), "{}", ended.stderr);
    std::fs::remove_file(studio.home.path("picture.png")).unwrap();
    std::fs::write(studio.home.path("text.safetensors"), "this is no tensor file").unwrap();
    for file in ["absent.safetensors", "text.safetensors", "model/text_encoder/model.safetensors"] {
        let ended = studio.run(&["--lora", file]);
        assert_eq!(ended.code, Some(2), "{file}: {}", ended.stderr);
        assert!(ended.stderr.contains(file.rsplit('/').next().unwrap()), "{}", ended.stderr);
        assert!(!studio.home.path("picture.png").exists(), "{file}");
    }
}

#[test]
fn weights_that_are_streamed_for_want_of_room_have_their_lora_added_while_they_run() {
    let studio = Studio::new();
    let loras = ["--lora", "other.safetensors:0.5", "--backend", "all=virtual0"];
    let roomy = studio.run(&[&loras[..], &["--optimize", "memory"]].concat()).json();
    let peak = roomy["plan"]["devices"][0]["peak_bytes"].as_u64().unwrap();
    let budget = format!("virtual0={}B", peak * 3 / 4);
    let ended = studio.run(&[&loras[..], &["--max-vram", &budget]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let plan = &ended.json()["plan"];
    let components = plan["components"].as_array().unwrap();
    let dit = components.iter().find(|component| component["name"] == "dit").unwrap();
    assert_eq!(dit["residency"], "streamed", "{dit:#}");
    let runtime = plan["options"]["lora_runtime"].as_array().unwrap();
    assert!(runtime.contains(&"dit".into()), "{runtime:?}");
}

#[test]
fn a_plan_says_which_components_have_products_beside_them() {
    let studio = Studio::new();
    let loras = ["--lora", "style:v1.safetensors", "--backend", "all=virtual0"];
    let plan = |more: &[&str]| {
        let ended = studio.run(&[&loras[..], more].concat());
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        ended.json()["plan"].clone()
    };
    let held = plan(&[]);
    assert_eq!(held["options"]["lora_runtime"], serde_json::json!([]));
    assert!(held["host"]["changed_bytes"].as_u64() > Some(0));
    assert_eq!(held["notices"].as_array().map(Vec::len), Some(1));
    let path = held["options"]["loras"][0]["path"].as_str().expect("a path");
    assert_eq!(Path::new(path), studio.home.path("style:v1.safetensors"), "it is absolute");
    let streamed = plan(&["--params-backend", "dit=cpu,t5=cpu"]);
    assert_eq!(streamed["options"]["lora_runtime"], serde_json::json!(["t5", "dit"]));
}

#[test]
fn a_weight_of_zero_changes_nothing() {
    let studio = Studio::new();
    let plain = ["--backend", "all=virtual0"];
    let zero = ["--backend", "all=virtual0", "--lora", "style:v1.safetensors:0"];
    assert!(studio.paint(&zero) == studio.paint(&plain), "another picture");
}
