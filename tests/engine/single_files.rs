//! Single files and parts through the real program: the same pictures as from a directory of the
//! same weights, on every kind of placement and with LoRA; what `inspect` says of them; sets of
//! files that make no model.

mod bad_sets;
mod described;

use crate::support::bfl;
use std::path::Path;

use crate::support::wide::Wide;
use crate::support::{Ended, Home, fixture, pixels};
use safetensors::Dtype;
use serde_json::Value;

const DEVICE: &str = "[[device]]\nkind = \"virtual\"\ntotal = \"256MiB\"\nlink = \"8GiB/s\"\n";

/// What stands before the names in published files.
const PREFIXES: [&str; 3] = ["", "model.diffusion_model.", "diffusion_model."];

/// Where components compute and where their weights are.
const PLACEMENTS: [&[&str]; 6] = [
    &["--backend", "all=cpu"],
    &["--backend", "all=virtual0"],
    &["--backend", "all=virtual0", "--params-backend", "all=cpu"],
    &["--backend", "all=virtual0", "--params-backend", "all=disk"],
    &["--backend", "all=virtual0,dit=virtual0&virtual1"],
    &["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row"],
];

/// A model whose matrices are split by rows, as a directory and as one without the DiT's weights
/// beside files of them.
struct Studio {
    home: Home,
}

impl Studio {
    fn new() -> Studio {
        let home = Home::new();
        for model in ["model", "bare"] {
            Wide::bf16().write(&home.path(model)).expect("a file system with room");
        }
        let weights = home.path("bare/transformer/diffusion_pytorch_model.safetensors");
        let tensors = bfl::converted(bfl::read(&weights));
        std::fs::remove_file(weights).expect("it was just read");
        for (index, prefix) in PREFIXES.into_iter().enumerate() {
            let path = home.path(&format!("dit{index}.safetensors"));
            bfl::write(&path, &bfl::behind(prefix, tensors.clone()));
        }
        std::fs::write(home.path("devices.toml"), format!("name = \"two\"\n{DEVICE}{DEVICE}"))
            .expect("the home can be written");
        Studio { home }
    }

    fn run(&self, model: &[&str], more: &[&str]) -> Ended {
        let job = ["--prompt", "a red circle", "--seed", "7", "--json"];
        let shape = ["--width", "64", "--height", "48", "--steps", "2"];
        let output = ["--max-sequence-length", "32", "--output", "picture.png"];
        self.home.run(&[&["generate"], model, &job, &shape, &output, more].concat())
    }

    /// A picture's pixels; the run must use what was planned.
    fn paint(&self, model: &[&str], more: &[&str]) -> Vec<u8> {
        // A plan has its devices already.
        let host = if more.contains(&"--plan") { &[][..] } else { &["--host", "devices.toml"] };
        let ended = self.run(model, &[more, host].concat());
        assert_eq!(ended.code, Some(0), "{model:?} {more:?}: {}", ended.stderr);
        assert_used_as_planned(&ended.json());
        pixels(&self.home.path("picture.png"))
    }
}

/// Every device and phase used exactly what its plan says.
fn assert_used_as_planned(document: &Value) {
    let devices = document["usage"]["devices"].as_array().expect("devices");
    for phase in devices.iter().flat_map(|device| device["phases"].as_array().expect("phases")) {
        assert_eq!(phase["predicted_peak_bytes"], phase["measured_peak_bytes"], "{devices:?}");
    }
}

#[test]
fn a_file_gives_its_directorys_picture_on_every_placement() {
    let studio = Studio::new();
    let expected = studio.paint(&["model"], PLACEMENTS[0]);
    for (index, placement) in PLACEMENTS.into_iter().enumerate() {
        let file = format!("dit{}.safetensors", index % PREFIXES.len());
        let painted = studio.paint(&["bare", "--diffusion-model", &file], placement);
        assert!(painted == expected, "{file} {placement:?}: another picture");
    }
}

/// Adapters of rank 2 for these layers of the DiT, of this many input and output features.
fn write_lora(path: &Path, layers: &[(&str, usize, usize)]) {
    let factor = |seed: usize, shape: [usize; 2]| -> crate::support::bfl::Tensor {
        let count = shape[0] * shape[1];
        let value = |index: usize| (((seed + 7 * index) % 23) as f32 - 11.0) / 40.0;
        let bytes = (0..count).flat_map(|index| value(index).to_le_bytes()).collect();
        (Dtype::F32, shape.to_vec(), bytes)
    };
    let mut tensors = crate::support::bfl::Tensors::new();
    for (seed, (layer, input, output)) in layers.iter().enumerate() {
        tensors.insert(format!("{layer}.lora_A.weight"), factor(seed, [2, *input]));
        tensors.insert(format!("{layer}.lora_B.weight"), factor(seed + 3, [*output, 2]));
    }
    bfl::write(path, &tensors);
}

#[test]
fn lora_changes_a_file_as_it_changes_its_directory() {
    let studio = Studio::new();
    let plain = studio.paint(&["model"], PLACEMENTS[0]);
    for (name, layers) in [
        // Some layers of fused tensors only, and the last modulation, whose halves are swapped.
        (
            "own",
            &[
                ("transformer.transformer_blocks.0.attn.to_k", 256, 256),
                ("transformer.single_transformer_blocks.1.proj_mlp", 256, 1024),
                ("transformer.norm_out.linear", 256, 512),
            ][..],
        ),
        (
            "bfl",
            &[
                ("diffusion_model.double_blocks.1.txt_attn.qkv", 256, 768),
                ("diffusion_model.single_blocks.0.linear1", 256, 1792),
                ("diffusion_model.final_layer.adaLN_modulation.1", 256, 512),
            ],
        ),
    ] {
        let lora = format!("{name}.safetensors");
        write_lora(&studio.home.path(&lora), layers);
        // Changed in their pages, and computed beside them.
        for placement in [PLACEMENTS[0], PLACEMENTS[2], PLACEMENTS[5]] {
            let more = [placement, &["--lora", &lora]].concat();
            let expected = studio.paint(&["model"], &more);
            let painted = studio.paint(&["bare", "--diffusion-model", "dit1.safetensors"], &more);
            assert!(painted == expected, "{name} {placement:?}: another picture");
            assert!(painted != plain, "{name} {placement:?}: as if there were no LoRA");
        }
    }
}

#[test]
fn the_reference_file_gives_the_picture_of_its_directory() {
    let home = Home::new();
    let directory = fixture("flux_dev").display().to_string();
    let file = fixture("single/flux_dev_bfl.safetensors").display().to_string();
    let paint = |model: &[&str]| {
        let job = ["--prompt", "a photo of a red cat", "--width", "64", "--height", "64"];
        let more = ["--steps", "3", "--max-sequence-length", "48", "--seed", "7"];
        let output = ["--output", "a.png", "--json"];
        assert_used_as_planned(&home.json(&[&["generate"], model, &job, &more, &output].concat()));
        pixels(&home.path("a.png"))
    };
    let expected = paint(&[&directory]);
    assert!(paint(&[&directory, "--diffusion-model", &file]) == expected, "another picture");
}

#[test]
fn a_plan_is_for_its_very_files() {
    let studio = Studio::new();
    let parts = ["bare", "--diffusion-model", "dit0.safetensors"];
    let shape = ["--width", "64", "--height", "48", "--steps", "2", "--max-sequence-length", "32"];
    let host = ["--host", "devices.toml"];
    let more = ["--dry-run", "--output", "plan.toml"];
    let ended = studio.home.run(&[&["plan"], &parts[..], &shape, &host, &more].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let plan = std::fs::read_to_string(studio.home.path("plan.toml")).expect("it was written");
    let plan: toml::Table = plan.parse().expect("TOML");
    let path = |name: &str| studio.home.path(name).display().to_string();
    let expected = format!("{} --diffusion-model {}", path("bare"), path("dit0.safetensors"));
    assert_eq!(plan["model"].as_str(), Some(&*expected));

    let given = ["--plan", "plan.toml"];
    studio.paint(&parts, &given);
    for other in [&["model"][..], &["bare", "--diffusion-model", "dit1.safetensors"]] {
        let ended = studio.run(other, &given);
        assert_eq!(ended.code, Some(2), "{other:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("the plan is for the model"), "{}", ended.stderr);
    }
}

/// The model `flux_single` as parts, its DiT quantised: matrices of both dimensions of at least 256
/// among them.
fn quantised(home: &Home) -> Vec<String> {
    let file = |name: &str| fixture(name).display().to_string();
    std::fs::write(home.path("devices.toml"), format!("name = \"two\"\n{DEVICE}{DEVICE}"))
        .expect("the home can be written");
    let parts = [
        ("--diffusion-model", file("gguf/flux_single-Q4_K.gguf")),
        ("--vae", file("single/flux_single_ae.safetensors")),
        ("--clip-l", file("single/flux_single_clip_l.safetensors")),
        ("--t5xxl", file("gguf/flux_single_t5-Q8_0.gguf")),
        ("--tokenizer-dir", file("flux_single")),
    ];
    parts.into_iter().flat_map(|(flag, path)| [flag.to_owned(), path]).collect()
}

#[test]
fn quantised_parts_give_one_picture_on_every_placement_and_take_what_was_planned() {
    let studio = Studio { home: Home::new() };
    let parts = quantised(&studio.home);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let expected = studio.paint(&parts, PLACEMENTS[0]);
    for placement in PLACEMENTS {
        assert!(studio.paint(&parts, placement) == expected, "{placement:?}: another picture");
    }
}

#[test]
fn lora_is_added_beside_quantised_weights_wherever_they_are() {
    let studio = Studio { home: Home::new() };
    let parts = quantised(&studio.home);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    write_lora(
        &studio.home.path("style.safetensors"),
        &[
            ("transformer.transformer_blocks.0.attn.to_k", 256, 256),
            ("diffusion_model.single_blocks.0.linear1", 256, 1792),
            ("text_encoder_2.encoder.block.1.layer.0.SelfAttention.q", 64, 64),
            ("text_encoder.text_model.encoder.layers.0.mlp.fc1", 64, 128),
        ],
    );
    let plain = studio.paint(&parts, PLACEMENTS[0]);
    let lora = ["--lora", "style.safetensors"];
    let mut pictures = Vec::new();
    for placement in PLACEMENTS {
        let more = [placement, &lora].concat();
        let ended = studio.run(&parts, &[&more[..], &["--host", "devices.toml"]].concat());
        assert_eq!(ended.code, Some(0), "{placement:?}: {}", ended.stderr);
        let document = ended.json();
        assert_used_as_planned(&document);
        // CLIP has plain numbers, which are changed where they are held.
        let runtime = document["plan"]["options"]["lora_runtime"].as_array().expect("a list");
        for name in ["t5", "dit"] {
            assert!(runtime.contains(&name.into()), "{placement:?}: {runtime:?}");
        }
        pictures.push(pixels(&studio.home.path("picture.png")));
    }
    assert!(pictures[0] != plain, "as if there were no LoRA");
    // Where CLIP's are streamed its products are added too, in another order of sums.
    for (placement, picture) in PLACEMENTS.iter().zip(&pictures) {
        let far = picture.iter().zip(&pictures[0]).filter(|(a, b)| a.abs_diff(**b) > 2).count();
        assert_eq!(far, 0, "{placement:?}");
    }
}
