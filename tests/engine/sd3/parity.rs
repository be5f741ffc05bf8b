//! Every case from the prompt on, on the host, on virtual devices and on simulated GPUs.

use serde_json::Value;

use super::golden::{MODELS, cases};
use crate::parity::compare::{LEVELS, NOISE, assert_close, assert_same_picture};
use crate::parity::golden::Tensor;
use crate::support::Home;
use crate::support::simulator::Machine;

/// A profile without devices: everything is computed on the host, whatever this machine has.
const HOST_ONLY: &str = "name = \"host-only\"\ndescription = \"The CPU alone.\"\n";

/// Everything is computed on the GPUs of this machine.
const GPU_ONLY: &str = "name = \"gpu-only\"\ndescription = \"The GPUs.\"\ndevices = \"detect\"\n\n[host]\ncompute = false\n";

/// Profiles to run on, each with what the names of the computing devices begin with.
const PROFILES: [(&str, &str); 3] =
    [("./host-only.toml", "host"), ("virtual-1x64m", "virtual"), ("virtual-2x2g", "virtual")];

/// What products of 16 bits may be off on a GPU, root mean square: about three times what was
/// measured on the simulator. On a CPU that multiplies bf16 too.
const HALVES: f64 = 3e-2;

#[track_caller]
fn assert_computed_on(document: &Value, expected: &str) {
    let components = document["plan"]["components"].as_array().expect("components");
    assert_eq!(components.len(), 5);
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
        for case in MODELS.into_iter().flat_map(cases) {
            let more = ["--host", profile, "--exact-matmul"];
            let (document, dumped) = case.run(&home, &[&case.directory()], &more);
            assert_computed_on(&document, expected);
            case.compare(profile, &dumped);
        }
    }
}

#[test]
fn a_seed_gives_the_golden_noise_and_picture() {
    let home = Home::new();
    for case in MODELS.into_iter().flat_map(cases) {
        let seed = case.seed.to_string();
        let more = ["--host", "virtual-1x64m", "--seed", &seed, "--exact-matmul"];
        let own = case.prompt_and_shape();
        let (_, dumped) = case.run_with(&home, &[&case.directory()], own, &more);
        let what = format!("{} {}", case.model, case.name);
        let golden = case.tensors["noise_nchw"].floats();
        assert_close(&what, dumped["noise_nchw"].floats(), golden, NOISE);
        let (Tensor::Levels(got), Tensor::Levels(golden)) =
            (&dumped["image_u8"], &case.tensors["image_u8"])
        else {
            panic!("no pictures")
        };
        assert_same_picture(&what, got, golden);
    }
}

#[test]
fn levels_are_shifted_twice() {
    let case = cases(MODELS[1]).remove(0);
    let sigmas = case.tensors["sigmas"].floats();
    let twice: [f32; 5] = [1.0, 0.857_692_3, 0.602_150_56, 0.008_928_572, 0.0];
    assert_close("the golden levels", sigmas, &twice, LEVELS);
}

#[test]
fn products_of_bf16_on_the_host_are_near() {
    let home = Home::new();
    std::fs::write(home.path("host-only.toml"), HOST_ONLY).expect("the home can be written");
    for case in MODELS.into_iter().flat_map(cases) {
        let more = ["--host", "./host-only.toml"];
        let (_, dumped) = case.run(&home, &[&case.directory()], &more);
        let (off, name) = case.mean_deviation(&dumped);
        println!("{}: {name} is {off:.1e} off", case.name);
        assert!(off <= HALVES, "{}: {name} is {off:.1e} off", case.name);
    }
}

#[test]
fn f32_on_a_gpu_matches_as_on_the_host() {
    let home = Home::new().with(Machine::new(1).with("capability", "8.6").environment());
    std::fs::write(home.path("gpu-only.toml"), GPU_ONLY).expect("the home can be written");
    let cases = MODELS.into_iter().flat_map(cases);
    for case in cases.filter(|case| case.name != "p1_96x64") {
        let more = ["--host", "./gpu-only.toml", "--exact-matmul"];
        let (document, dumped) = case.run(&home, &[&case.directory()], &more);
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
        for model in MODELS {
            let case = cases(model).remove(0);
            let more = ["--host", "./gpu-only.toml"];
            let (document, dumped) = case.run(&home, &[&case.directory()], &more);
            assert_computed_on(&document, "cuda");
            let (off, name) = case.mean_deviation(&dumped);
            assert!(off <= HALVES, "{model}: {name} is {off:.1e} off on {capability}");
        }
    }
}
