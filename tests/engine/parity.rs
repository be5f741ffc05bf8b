//! Parity with diffusers: every stage of every golden case, by the real program and stage by stage.
//!
//! Golden tensors were computed by diffusers in f32. Whole runs start from the prompt, so errors
//! add up from stage to stage; [`stages`] starts each component from golden inputs.

pub mod compare;
mod files;
pub mod golden;
mod gpu;
mod img2img;
pub mod stages;
pub mod tiles;

use std::collections::BTreeSet;

use crate::support::Home;
use compare::{
    ENCODER, LATENTS, LEVELS, NOISE, PICTURE, TEXT, assert_close, assert_same_picture,
    largest_difference,
};
use golden::{Case, Golden, Tensor, Tensors, tensors};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A profile without devices: everything is computed on the host, whatever this machine has.
const HOST_ONLY: &str = "name = \"host-only\"\ndescription = \"The CPU alone.\"\n";

/// Profiles to run on, each with what the names of the computing devices begin with.
const PROFILES: [(&str, &str); 3] =
    [("./host-only.toml", "host"), ("virtual-1x64m", "virtual"), ("virtual-2x2g", "virtual")];

/// Where a run's noise comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Noise {
    /// The golden file.
    Golden,
    /// The seed.
    Seed,
}

/// Runs a case by the real program and returns what it dumped.
fn generate(
    home: &Home,
    golden: &Golden,
    case: &Case,
    profile: Option<(&str, &str)>,
    noise: Noise,
    more: &[&str],
) -> Tensors {
    let dump = home.path("dump.safetensors");
    let mut arguments = vec!["generate".to_owned()];
    // The demo is run as it is built in.
    if golden.name != "demo" {
        arguments.extend(golden.source.model.clone());
        for (flag, path) in &golden.source.parts {
            arguments.extend([format!("--{flag}"), path.clone()]);
        }
    }
    let mut option = |name: &str, value: &dyn ToString| {
        arguments.extend([format!("--{name}"), value.to_string()]);
    };
    option("prompt", &case.prompt);
    option("width", &case.width);
    option("height", &case.height);
    option("steps", &case.steps);
    option("max-sequence-length", &case.max_sequence_length);
    option("guidance-scale", &case.guidance_scale);
    option("dump-tensors", &dump.display());
    case.prompt_2.iter().for_each(|prompt| option("prompt-2", prompt));
    case.negative_prompt.iter().for_each(|prompt| option("negative-prompt", prompt));
    case.true_cfg_scale.iter().for_each(|scale| option("true-cfg-scale", scale));
    profile.iter().for_each(|(profile, _)| option("host", profile));
    match noise {
        Noise::Golden => option("init-latents", &initial_latents(home, case)),
        Noise::Seed => option("seed", &case.seed),
    }
    arguments.push("--json".to_owned());
    if golden.exact {
        arguments.push("--exact-matmul".to_owned());
    }
    arguments.extend(more.iter().map(|&text| text.to_owned()));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let document = home.json(&arguments);
    if let Some((profile, expected)) = profile {
        let components = document["plan"]["components"].as_array().expect("components");
        assert_eq!(components.len(), 4);
        for device in components.iter().map(|component| component["devices"][0].as_str()) {
            let device = device.expect("each component computes somewhere");
            assert!(device.starts_with(expected), "{profile}: computes on {device}");
        }
    }
    let dumped = tensors(&dump);
    // The next run in this home must write its own.
    std::fs::remove_file(&dump).expect("the file was just read");
    dumped
}

/// Writes the golden initial latents to a file of their own, and returns its path.
fn initial_latents(home: &Home, case: &Case) -> String {
    let values = case.floats("latents_init");
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tokens = (case.width / 16 * case.height / 16) as usize;
    let shape = vec![1, tokens, values.len() / tokens];
    let view = TensorView::new(Dtype::F32, shape, &bytes).expect("a shape that fits");
    let path = home.path("latents.safetensors");
    let file = safetensors::serialize([("latents_init", view)], None).expect("one tensor");
    std::fs::write(&path, file).expect("the home can be written");
    path.display().to_string()
}

/// Compares everything that was dumped with its golden values. Each golden tensor of a run must
/// have been dumped; what is dumped beyond them are the DiT's later results and undecoded pictures.
/// Floats may be `times` the tolerance apart.
fn compare_all(what: &str, case: &Case, dumped: &Tensors, noise: Noise, times: f64) {
    let is_compared = |name: &str| match name {
        "noise_nchw" => noise == Noise::Seed,
        _ => !name.contains(".in."),
    };
    let mut compared = BTreeSet::new();
    for (name, golden) in case.tensors.iter().filter(|(name, _)| is_compared(name)) {
        let Some(got) = dumped.get(name) else { panic!("{what}: {name} was not dumped") };
        compare(&format!("{what}: {name}"), name, got, golden, times);
        compared.insert(name.as_str());
    }
    for name in dumped.keys().filter(|name| !compared.contains(name.as_str())) {
        let may_be_unknown = name == "vae.out" || name.starts_with("transformer.call");
        assert!(may_be_unknown, "{what}: {name} was dumped and has no golden values");
    }
}

fn compare(what: &str, name: &str, got: &Tensor, golden: &Tensor, times: f64) {
    let tolerance = match name {
        "sigmas" | "timesteps" => LEVELS,
        "vae.out" => PICTURE,
        "vae_encoder.moments" => ENCODER,
        name if name.starts_with("text_encoder") => TEXT,
        _ => LATENTS,
    };
    match (got, golden) {
        (Tensor::Ids(got), Tensor::Ids(golden)) => assert_eq!(got, golden, "{what}"),
        (Tensor::Levels(got), Tensor::Levels(golden)) => assert_same_picture(what, got, golden),
        (Tensor::Floats(got), Tensor::Floats(golden)) if name == "noise_nchw" => {
            let apart = largest_difference(got, golden);
            assert!(apart <= NOISE, "{what} is {apart:.1e} off");
        }
        (Tensor::Floats(got), Tensor::Floats(golden)) => {
            assert_close(what, got, golden, times * tolerance);
        }
        _ => panic!("{what}: {got:?} is of another type than {golden:?}"),
    }
}

/// Every case on every profile, from golden noise.
fn matches_everywhere(golden: &Golden) {
    let home = Home::new();
    std::fs::write(home.path("host-only.toml"), HOST_ONLY).expect("the home can be written");
    for profile in PROFILES {
        for case in &golden.cases {
            let what = format!("{}/{} on {}", golden.name, case.name, profile.0);
            let dumped = generate(&home, golden, case, Some(profile), Noise::Golden, &[]);
            compare_all(&what, case, &dumped, Noise::Golden, 1.0);
        }
    }
}

/// Every case with the DiT cut over two devices, whose sums are of another order: within twice the
/// tolerances, and to the bit the same in each run, wherever its weights wait.
fn matches_by_heads(golden: &Golden) {
    let home = Home::new();
    let profile = Some(("virtual-2x2g", "virtual"));
    let split =
        ["--backend", "all=virtual0,dit=virtual0:1&virtual1:1", "--split-mode", "dit=tensor"];
    for case in &golden.cases {
        let what = format!("{}/{} by heads", golden.name, case.name);
        let run = |held: &str| {
            let held = ["--params-backend", held];
            let more = [&split[..], &held].concat();
            generate(&home, golden, case, profile, Noise::Golden, &more)
        };
        let dumped = run("all=device");
        compare_all(&what, case, &dumped, Noise::Golden, 2.0);
        for held in ["all=device", "dit=cpu", "dit=locked"] {
            assert!(run(held) == dumped, "{what}: other bits, {held}");
        }
    }
}

#[test]
fn every_case_of_schnell_matches_in_every_tensor() {
    matches_everywhere(&Golden::fixture("flux_schnell"));
}

#[test]
fn every_case_of_dev_matches_in_every_tensor_from_sharded_half_precision_weights() {
    let golden = Golden::fixture("flux_dev");
    assert!(golden.cases.iter().any(|case| case.true_cfg_scale.is_some()));
    matches_everywhere(&golden);
}

#[test]
fn every_case_of_flux_matches_when_devices_share_its_heads() {
    for name in ["flux_schnell", "flux_dev"] {
        matches_by_heads(&Golden::fixture(name));
    }
}

#[test]
fn every_case_of_the_built_in_demo_matches_in_every_tensor() {
    matches_everywhere(&Golden::demo());
}

#[test]
fn a_seed_gives_the_golden_noise_and_picture_on_this_machine() {
    let home = Home::new();
    for golden in [Golden::fixture("flux_schnell"), Golden::fixture("flux_dev"), Golden::demo()] {
        for case in &golden.cases {
            let what = format!("{}/{} from seed {}", golden.name, case.name, case.seed);
            let dumped = generate(&home, &golden, case, None, Noise::Seed, &[]);
            compare_all(&what, case, &dumped, Noise::Seed, 1.0);
        }
    }
}
