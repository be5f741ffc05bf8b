//! Every case from the prompt on, on the host, on virtual devices and on simulated GPUs.

use serde_json::Value;

use super::golden::cases;
use crate::parity::compare::deviation;
use crate::parity::golden::tensors;
use crate::support::simulator::Machine;
use crate::support::{Home, fixture};

/// A profile without devices: everything is computed on the host, whatever this machine has.
const HOST_ONLY: &str = "name = \"host-only\"\ndescription = \"The CPU alone.\"\n";

/// Everything is computed on the GPUs of this machine.
const GPU_ONLY: &str = "name = \"gpu-only\"\ndescription = \"The GPUs.\"\ndevices = \"detect\"\n\n[host]\ncompute = false\n";

/// Profiles to run on, each with what the names of the computing devices begin with.
const PROFILES: [(&str, &str); 3] =
    [("./host-only.toml", "host"), ("virtual-1x64m", "virtual"), ("virtual-2x2g", "virtual")];

/// What products of 16 bits may be off on a GPU, root mean square: about three times what was
/// measured on the simulator. On a CPU that multiplies bf16 too.
const HALVES: f64 = 2e-2;

fn model() -> String {
    fixture("zimage_turbo").display().to_string()
}

#[track_caller]
fn assert_computed_on(document: &Value, expected: &str) {
    let components = document["plan"]["components"].as_array().expect("components");
    assert_eq!(components.len(), 3);
    for component in components {
        let device = component["devices"][0].as_str().expect("a device");
        assert!(device.starts_with(expected), "{} computes on {device}", component["name"]);
    }
}

#[test]
fn every_case_matches_in_every_tensor() {
    let home = Home::new();
    std::fs::write(home.path("host-only.toml"), HOST_ONLY).expect("the home can be written");
    for (profile, expected) in PROFILES {
        for case in cases() {
            let more = ["--host", profile, "--exact-matmul"];
            let (document, dumped) = case.run(&home, &[&model()], &more);
            assert_computed_on(&document, expected);
            case.compare(profile, &dumped);
        }
    }
}

#[test]
fn the_cases_tell_guidance_and_its_normalisation() {
    let cases = cases();
    let is = |case: &&super::golden::Case| case.call["cfg_normalization"].as_bool() == Some(true);
    let normalised = cases.iter().find(is).expect("a normalised case");
    let home = Home::new();
    let mut arguments = vec!["generate".to_owned(), model()];
    arguments.extend(normalised.arguments(&home));
    arguments.retain(|argument| argument != "--cfg-normalization");
    arguments.extend(["--dump-tensors".to_owned(), "dump.safetensors".to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    assert_eq!(home.run(&arguments).code, Some(0));
    let dumped = tensors(&home.path("dump.safetensors"));
    let name = "latents.step0";
    let off = deviation(dumped[name].floats(), normalised.tensors[name].floats());
    assert!(off > 0.1, "without normalisation latents are {off:.1e} off");
}

#[test]
fn products_of_bf16_on_the_host_are_near() {
    let home = Home::new();
    std::fs::write(home.path("host-only.toml"), HOST_ONLY).expect("the home can be written");
    for case in cases() {
        let more = ["--host", "./host-only.toml"];
        let (_, dumped) = case.run(&home, &[&model()], &more);
        let (off, name) = case.mean_deviation(&dumped);
        println!("{}: {name} is {off:.1e} off", case.name);
        assert!(off <= HALVES, "{}: {name} is {off:.1e} off", case.name);
    }
}

#[test]
fn f32_on_a_gpu_matches_as_on_the_host() {
    let home = Home::new().with(Machine::new(1).with("capability", "8.6").environment());
    std::fs::write(home.path("gpu-only.toml"), GPU_ONLY).expect("the home can be written");
    for case in cases().into_iter().filter(|case| !case.name.contains("96x64")) {
        let more = ["--host", "./gpu-only.toml", "--exact-matmul"];
        let (document, dumped) = case.run(&home, &[&model()], &more);
        assert_computed_on(&document, "cuda");
        case.compare("a GPU, exactly", &dumped);
    }
}

#[test]
fn halves_on_a_gpu_are_near() {
    // Before 8.0 all operands are f16.
    for capability in ["8.6", "7.5"] {
        let home = Home::new().with(Machine::new(1).with("capability", capability).environment());
        std::fs::write(home.path("gpu-only.toml"), GPU_ONLY).expect("the home can be written");
        let case = cases().remove(0);
        let (document, dumped) = case.run(&home, &[&model()], &["--host", "./gpu-only.toml"]);
        assert_computed_on(&document, "cuda");
        let (off, name) = case.mean_deviation(&dumped);
        assert!(off <= HALVES, "{name} is {off:.1e} off on {capability}");
    }
}
