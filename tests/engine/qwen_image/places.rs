//! One picture wherever the components are, in the bytes that the plan states; guidance by each of
//! its names.

use serde_json::Value;

use crate::support::{Ended, Home, fixture, pixels};

/// Three devices that hold the whole model, and a host that may compute.
const DEVICES: &str = r#"
name = "devices"
[[device]]
kind = "virtual"
total = "64MiB"
link = "8GiB/s"
[[device]]
kind = "virtual"
total = "64MiB"
link = "8GiB/s"
[[device]]
kind = "virtual"
total = "64MiB"
link = "8GiB/s"
"#;

/// What is asked by hand, and what the plan must then say of a component: placement, residency.
#[rustfmt::skip]
const PLACES: [(&[&str], &str, [&str; 2]); 12] = [
    (&["--backend", "all=cpu"], "dit", ["host", "mapped"]),
    (&["--backend", "all=virtual0", "--params-backend", "all=device"], "dit", ["one", "resident"]),
    (&["--backend", "all=virtual0", "--params-backend", "all=disk"], "llm", ["one", "lazy"]),
    (&["--backend", "all=virtual0,llm=virtual1", "--params-backend", "all=device"], "llm", ["one", "resident"]),
    (&["--backend", "all=virtual0,cond=cpu"], "llm", ["host", "mapped"]),
    (&["--backend", "all=virtual0,vae=cpu"], "vae", ["host", "mapped"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "all=device"], "dit", ["layer", "resident"]),
    (&["--backend", "all=virtual0,dit=virtual2&virtual0&cpu", "--params-backend", "all=device"], "dit", ["layer", "resident"]),
    (&["--backend", "all=virtual0,llm=virtual0&virtual1", "--params-backend", "all=device"], "llm", ["layer", "resident"]),
    (&["--backend", "all=virtual0", "--params-backend", "dit=cpu", "--lookahead", "1"], "dit", ["one", "streamed"]),
    (&["--backend", "all=virtual0", "--params-backend", "all=cpu", "--no-prefetch"], "llm", ["one", "streamed"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "dit=cpu"], "dit", ["layer", "streamed"]),
];

/// The reference model in a home, on virtual devices.
struct Studio {
    home: Home,
    model: String,
}

impl Studio {
    fn new() -> Studio {
        let home = Home::new();
        std::fs::write(home.path("devices.toml"), DEVICES).expect("the home can be written");
        Studio { home, model: fixture("qwen_image").display().to_string() }
    }

    fn run(&self, more: &[&str]) -> Ended {
        let mut arguments = vec!["generate", &self.model, "--host", "devices.toml", "--json"];
        arguments.extend(["--prompt", "a photo of a red cat", "--max-sequence-length", "64"]);
        arguments.extend(["--output", "picture.png"]);
        for [flag, value] in [["--seed", "7"], ["--steps", "2"]] {
            if !more.contains(&flag) {
                arguments.extend([flag, value]);
            }
        }
        arguments.extend(more);
        self.home.run(&arguments)
    }

    fn paint(&self, more: &[&str]) -> (Value, Vec<u8>) {
        let ended = self.run(more);
        assert_eq!(ended.code, Some(0), "{more:?}: {}", ended.stderr);
        (ended.json(), pixels(&self.home.path("picture.png")))
    }
}

/// Every device's predicted peak is the measured one, in every phase.
#[track_caller]
fn assert_exact(document: &Value, phases: usize, what: &[&str]) {
    let devices = document["usage"]["devices"].as_array().expect("devices");
    assert!(!devices.is_empty());
    for device in devices {
        let own = device["phases"].as_array().expect("phases");
        assert_eq!(own.len(), phases);
        for phase in own {
            let [predicted, measured] =
                ["predicted", "measured"].map(|word| &phase[&format!("{word}_peak_bytes")]);
            assert_eq!(predicted, measured, "{what:?}: {device}");
        }
    }
}

const SIZE: [&str; 4] = ["--width", "96", "--height", "64"];

/// No guidance, where the default is some.
const PLAIN: [&str; 2] = ["--true-cfg-scale", "1"];

/// Two prompts of different lengths go through graphs of different sizes.
const GUIDED: [&str; 4] = ["--true-cfg-scale", "3", "--negative-prompt", LONG];

const LONG: &str = "blurry, out of focus, many words that make this prompt longer than thirty-two tokens, and more";

#[test]
fn every_placement_gives_one_picture_in_the_planned_bytes() {
    let studio = Studio::new();
    for guidance in [&PLAIN[..], &GUIDED] {
        let mut expected = None;
        for (arguments, name, [placement, residency]) in PLACES {
            let more = [arguments, guidance, &SIZE].concat();
            let (document, picture) = studio.paint(&more);
            let components = document["plan"]["components"].as_array().expect("components");
            let component = components.iter().find(|component| component["name"] == name);
            let component = component.expect("a component of that name");
            assert_eq!(component["placement"], placement, "{arguments:?}");
            assert_eq!(component["residency"], residency, "{arguments:?}");
            assert_exact(&document, 3, arguments);
            let expected = expected.get_or_insert_with(|| picture.clone());
            assert!(*expected == picture, "{arguments:?}: another picture");
        }
    }
}

#[test]
fn batches_are_the_pictures_of_their_seeds() {
    let studio = Studio::new();
    let ended = studio.run(&[&SIZE[..], &["--batch", "2"], &GUIDED].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document = ended.json();
    assert_exact(&document, 3, &["a batch"]);
    let images = document["images"].as_array().expect("images");
    assert_eq!(images.len(), 2);
    let second = images[1].as_str().expect("a path");
    let second = pixels(&studio.home.path(second));
    let (_, alone) = studio.paint(&[&SIZE[..], &["--seed", "8"], &GUIDED].concat());
    assert!(second == alone, "the second picture of a batch is another than alone");
}

#[test]
fn a_picture_to_start_from_is_changed_by_its_strength() {
    let studio = Studio::new();
    let (_, first) = studio.paint(&SIZE);
    let start = studio.home.path("start.png");
    std::fs::rename(studio.home.path("picture.png"), &start).expect("a picture");
    let apart = |picture: &[u8]| {
        picture.iter().zip(&first).map(|(a, b)| u64::from(a.abs_diff(*b))).sum::<u64>()
    };
    let mut pictures = Vec::new();
    for strength in ["0.3", "1"] {
        let more = ["--init-image", "start.png", "--strength", strength, "--steps", "4"];
        let mut same = None;
        for (arguments, ..) in [PLACES[0], PLACES[7], PLACES[11]] {
            let all = [&more[..], arguments, &["--seed", "9"]].concat();
            let (document, picture) = studio.paint(&all);
            assert_exact(&document, 4, arguments);
            let same = same.get_or_insert_with(|| picture.clone());
            assert!(*same == picture, "{arguments:?}: another picture");
        }
        pictures.extend(same);
    }
    assert!(apart(&pictures[0]) < apart(&pictures[1]), "less is changed by a lower strength");
}

#[test]
fn guidance_has_one_meaning_by_each_of_its_names() {
    let studio = Studio::new();
    let paint = |more: &[&str]| studio.paint(&[&SIZE[..], more].concat()).1;
    let guided = paint(&["--true-cfg-scale", "2.5"]);
    assert!(guided == paint(&["--cfg-scale", "2.5"]), "both are counted from 1");
    // As the published pipeline: guidance of 4 where nothing is said.
    assert!(paint(&[]) == paint(&["--true-cfg-scale", "4"]), "the default is 4");
    let plain = paint(&["--true-cfg-scale", "1"]);
    assert!(plain != guided, "guidance changes the picture");
    // The pipeline's `guidance_scale` is nothing to these models.
    let ended =
        studio.run(&[&SIZE[..], &["--true-cfg-scale", "1", "--guidance-scale", "7"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("--guidance-scale has no effect"), "{}", ended.stderr);
    assert!(pixels(&studio.home.path("picture.png")) == plain, "another picture");
    let ended = studio.run(&["--true-cfg-scale", "1", "--negative-prompt", "blurry"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}

#[test]
fn a_picture_in_tiles_is_one_wherever_it_is_decoded() {
    let studio = Studio::new();
    let size = ["--width", "160", "--height", "96", "--vae-tile", "64", "--true-cfg-scale", "1"];
    let mut expected = None;
    for arguments in [PLACES[0].0, PLACES[1].0, PLACES[5].0] {
        let (document, picture) = studio.paint(&[&size[..], arguments].concat());
        assert_exact(&document, 3, arguments);
        let expected = expected.get_or_insert_with(|| picture.clone());
        assert!(*expected == picture, "{arguments:?}: another picture");
    }
    let (_, whole) = studio.paint(&[&size[..4], &size[6..]].concat());
    assert!(expected != Some(whole), "tiles are decoded by themselves");
}

#[test]
fn a_picture_is_made_again_from_its_settings() {
    let studio = Studio::new();
    let more = ["--true-cfg-scale", "2.5", "--negative-prompt", "blurry"];
    let (_, picture) = studio.paint(&[&SIZE[..], &more].concat());
    std::fs::rename(studio.home.path("picture.png"), studio.home.path("made.png")).unwrap();
    let ended = studio.home.run(&["generate", "--settings", "made.png", "--output", "again.png"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(pixels(&studio.home.path("again.png")) == picture, "another picture");
}
