//! Guidance as `Flux2KleinPipeline` means it: with a second run of the negative prompt for models
//! that are not distilled, and nothing for those that are.

use super::golden::{Noise, cases};
use super::{MODEL, base, file};
use crate::parity::compare::assert_close;
use crate::support::{Home, pixels};

const HOST: [&str; 2] = ["--host", "virtual-1x64m"];

/// Rounding of one step's arithmetic.
const ROUNDING: f64 = 1e-6;

#[test]
fn guidance_moves_away_from_the_negative_prompt() {
    let (home, case) = (Home::new(), cases().remove(0));
    base(&home);
    let mut arguments = vec!["generate".to_owned(), "model".to_owned()];
    arguments.extend(case.arguments(&home, Noise::Golden));
    let at = arguments.iter().position(|a| a == "--guidance-scale").expect("a scale");
    arguments[at + 1] = "3".to_owned();
    arguments.extend(["--dump-tensors", "dump.safetensors"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = home.run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let dumped = crate::parity::golden::tensors(&home.path("dump.safetensors"));
    let floats = |name: &str| dumped[name].floats();
    let (with, without) = (floats("transformer.call0.out"), floats("transformer.call1.out"));
    let distance = floats("sigmas")[1] - floats("sigmas")[0];
    let predictions =
        with.iter().zip(without).map(|(with, without)| without + 3.0 * (with - without));
    let expected: Vec<f32> = floats("latents_init")
        .iter()
        .zip(predictions)
        .map(|(latent, prediction)| latent + distance * prediction)
        .collect();
    assert_close("guided latents", floats("latents.step0"), &expected, ROUNDING);
    // The conditional run is that of a distilled model, and the other one is of an empty prompt.
    let (_, plain) = case.run(&home, &[&file(MODEL)], &HOST);
    assert_eq!(plain["transformer.call0.out"], dumped["transformer.call0.out"]);
    let ids = dumped["text_encoder.u.input_ids"].ids();
    let known = ids.iter().filter(|&&id| id != 1200).count();
    assert!(known > 0 && known < 20, "{known} tokens of the template alone");
}

struct Studio {
    home: Home,
    model: String,
}

impl Studio {
    fn run(&self, more: &[&str]) -> crate::support::Ended {
        let mut arguments = vec!["generate", &self.model, "--output", "picture.png"];
        arguments.extend(["--prompt", "a photo of a red cat", "--max-sequence-length", "64"]);
        arguments.extend(["--width", "64", "--height", "64", "--steps", "2", "--seed", "7"]);
        arguments.extend(HOST);
        arguments.extend(more);
        self.home.run(&arguments)
    }

    fn paint(&self, more: &[&str]) -> (Vec<u8>, String) {
        let ended = self.run(more);
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        (pixels(&self.home.path("picture.png")), ended.stderr)
    }
}

#[test]
fn a_base_model_has_one_guidance_by_each_of_its_names() {
    let home = Home::new();
    base(&home);
    let studio = Studio { home, model: "model".to_owned() };
    let paint = |more: &[&str]| studio.paint(more).0;
    let guided = paint(&["--guidance-scale", "3.5"]);
    assert!(guided == paint(&["--cfg-scale", "3.5"]), "--cfg-scale");
    assert!(guided == paint(&["--true-cfg-scale", "3.5"]), "--true-cfg-scale");
    // What the pipeline does unasked.
    assert!(paint(&[]) == paint(&["--guidance-scale", "4"]));
    let plain = paint(&["--guidance-scale", "1"]);
    assert!(plain != guided, "guidance changes the picture");
    assert!(plain == paint(&["--guidance-scale", "0.5"]), "up to 1 is none");
    assert!(guided != paint(&["--guidance-scale", "3.5", "--negative-prompt", "blurry"]));
    let ended = studio.run(&["--guidance-scale", "2", "--true-cfg-scale", "3"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("one guidance of this model"), "{}", ended.stderr);
    let ended = studio.run(&["--guidance-scale", "1", "--negative-prompt", "blurry"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}

#[test]
fn a_distilled_model_has_no_guidance_but_by_a_second_run() {
    let studio = Studio { home: Home::new(), model: file(MODEL) };
    let (plain, _) = studio.paint(&[]);
    let (same, said) = studio.paint(&["--guidance-scale", "4"]);
    assert!(plain == same, "the pipeline leaves it out");
    assert!(said.contains("--guidance-scale has no effect"), "{said}");
    assert!(plain != studio.paint(&["--cfg-scale", "4"]).0);
}

#[test]
fn a_guided_picture_is_made_again_from_its_settings() {
    let home = Home::new();
    base(&home);
    let studio = Studio { home, model: "model".to_owned() };
    let (picture, _) = studio.paint(&["--guidance-scale", "2.5", "--negative-prompt", "blurry"]);
    let home = &studio.home;
    std::fs::rename(home.path("picture.png"), home.path("made.png")).expect("a picture");
    let ended = home.run(&["generate", "--settings", "made.png", "--output", "again.png"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(pixels(&home.path("again.png")) == picture, "another picture");
}
