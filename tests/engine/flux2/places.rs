//! One picture wherever the components are, in the bytes that the plan states.

use serde_json::Value;

use super::{MODEL, base, file};
use crate::support::{Ended, Home, pixels};

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

const SIZE: [&str; 4] = ["--width", "96", "--height", "64"];

/// A model in a home, on virtual devices.
struct Studio {
    home: Home,
    model: String,
}

impl Studio {
    fn new() -> Studio {
        let home = Home::new();
        std::fs::write(home.path("devices.toml"), DEVICES).expect("the home can be written");
        Studio { home, model: file(MODEL) }
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

    /// Each place gives one picture in its planned bytes, and is what was asked for.
    fn each_gives_the_picture(&self, places: &[(&[&str], &str, [&str; 2])], more: &[&str]) {
        let mut expected = None;
        for &(arguments, name, [placement, residency]) in places {
            let (document, picture) = self.paint(&[arguments, more, &SIZE].concat());
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

#[test]
fn every_placement_gives_one_picture_in_the_planned_bytes() {
    Studio::new().each_gives_the_picture(&PLACES, &[]);
}

#[test]
fn every_placement_gives_one_guided_picture() {
    let studio = Studio::new();
    base(&studio.home);
    let studio = Studio { model: "model".to_owned(), ..studio };
    let guided = ["--guidance-scale", "3", "--negative-prompt", "blurry, out of focus"];
    studio.each_gives_the_picture(&PLACES, &guided);
}

#[rustfmt::skip]
const ROWS: [(&[&str], &str, [&str; 2]); 4] = [
    (&["--backend", "all=cpu"], "dit", ["host", "mapped"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "all=device"], "dit", ["row", "resident"]),
    (&["--backend", "all=virtual0,dit=virtual2&virtual1&virtual0", "--split-mode", "dit=row", "--params-backend", "dit=disk"], "dit", ["row", "lazy"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "dit=cpu"], "dit", ["row", "streamed"]),
];

#[test]
fn rows_of_a_wide_dit_are_shared_by_devices() {
    let studio = Studio::new();
    super::wide::write(&studio.home.path("wide"));
    let studio = Studio { model: "wide".to_owned(), ..studio };
    studio.each_gives_the_picture(&ROWS, &[]);
}

#[test]
fn batches_are_the_pictures_of_their_seeds() {
    let studio = Studio::new();
    let ended = studio.run(&[&SIZE[..], &["--batch", "2", "--cfg-scale", "2"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document = ended.json();
    assert_exact(&document, 3, &["a batch"]);
    let images = document["images"].as_array().expect("images");
    assert_eq!(images.len(), 2);
    let second = images[1].as_str().expect("a path");
    let second = pixels(&studio.home.path(second));
    let (_, alone) = studio.paint(&[&SIZE[..], &["--seed", "8", "--cfg-scale", "2"]].concat());
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
fn previews_are_of_cells() {
    let home = Home::new();
    let model = super::copy(&home);
    // The reference model has 8 channels of latents, where published ones have 32.
    let factors = ["[0.2, -0.1, 0.3]"; 8].join(", ");
    let table = format!("[preview]\nfactors = [{factors}]\nbias = [0.0, 0.1, -0.1]\n");
    let arguments = |preview: &'static str| {
        let mut all = vec!["generate", "model", "--prompt", "a cat", "--host", "virtual-1x64m"];
        all.extend(["--width", "96", "--height", "64", "--steps", "2", "--seed", "3"]);
        all.extend(["--max-sequence-length", "64", "--preview", preview]);
        all
    };
    let refused = home.run(&arguments("1"));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("32 channels"), "{}", refused.stderr);
    std::fs::write(model.join("berth.toml"), table).expect("the copy can be written");
    let ended = home.run(&arguments("1"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
