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
const PLACES: [(&[&str], &str, [&str; 2]); 10] = [
    (&["--backend", "all=cpu"], "dit", ["host", "mapped"]),
    (&["--backend", "all=virtual0", "--params-backend", "all=device"], "dit", ["one", "resident"]),
    (&["--backend", "all=virtual0", "--params-backend", "all=disk"], "clip_g", ["one", "lazy"]),
    (&["--backend", "all=virtual0,t5=virtual1,clip_g=virtual2", "--params-backend", "all=device"], "t5", ["one", "resident"]),
    (&["--backend", "all=virtual0,cond=cpu"], "clip_l", ["host", "mapped"]),
    (&["--backend", "all=virtual0,vae=cpu"], "vae", ["host", "mapped"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "all=device"], "dit", ["layer", "resident"]),
    (&["--backend", "all=virtual0,dit=virtual2&virtual0&cpu", "--params-backend", "all=device"], "dit", ["layer", "resident"]),
    (&["--backend", "all=virtual0", "--params-backend", "dit=cpu", "--lookahead", "1"], "dit", ["one", "streamed"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "dit=cpu"], "dit", ["layer", "streamed"]),
];

/// A reference model in a home, on virtual devices.
struct Studio {
    home: Home,
    model: String,
}

impl Studio {
    fn new(model: &str) -> Studio {
        let home = Home::new();
        std::fs::write(home.path("devices.toml"), DEVICES).expect("the home can be written");
        Studio { home, model: fixture(model).display().to_string() }
    }

    fn run(&self, more: &[&str]) -> Ended {
        let mut arguments = vec!["generate", &self.model, "--host", "devices.toml", "--json"];
        arguments.extend(["--prompt", "a photo of a red cat", "--max-sequence-length", "40"]);
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
const PLAIN: [&str; 2] = ["--guidance-scale", "1"];
const GUIDED: [&str; 4] = ["--guidance-scale", "3", "--negative-prompt", "blurry, out of focus"];

#[test]
fn every_placement_gives_one_picture_in_the_planned_bytes() {
    let models = ["sd3_medium", "sd35_medium"];
    for (model, guidance) in models.into_iter().flat_map(|m| [(m, &PLAIN[..]), (m, &GUIDED[..])]) {
        let studio = Studio::new(model);
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

#[rustfmt::skip]
const ROWS: [(&[&str], [&str; 2]); 4] = [
    (&["--backend", "all=cpu"], ["host", "mapped"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "all=device"], ["row", "resident"]),
    (&["--backend", "all=virtual0,dit=virtual2&virtual1&virtual0", "--split-mode", "dit=row", "--params-backend", "dit=disk"], ["row", "lazy"]),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "dit=cpu"], ["row", "streamed"]),
];

#[test]
fn rows_of_a_wide_transformer_are_shared_by_devices() {
    let mut studio = Studio::new("sd35_medium");
    super::wide::write(&studio.home.path("wide"));
    studio.model = "wide".to_owned();
    let mut expected = None;
    for (arguments, [placement, residency]) in ROWS {
        let (document, picture) = studio.paint(&[arguments, &GUIDED, &SIZE].concat());
        let components = document["plan"]["components"].as_array().expect("components");
        let dit = components.iter().find(|component| component["name"] == "dit").expect("a DiT");
        assert_eq!(dit["placement"], placement, "{arguments:?}");
        assert_eq!(dit["residency"], residency, "{arguments:?}");
        assert_exact(&document, 3, arguments);
        let expected = expected.get_or_insert_with(|| picture.clone());
        assert!(*expected == picture, "{arguments:?}: another picture");
    }
}

/// Splits that form sums or batches of their own: the picture is near the whole one's.
#[rustfmt::skip]
const SPLITS: [(&[&str], &str); 2] = [
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "dit=tensor", "--params-backend", "all=device"], "tensor"),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "dit=items", "--params-backend", "all=device"], "items"),
];

#[test]
fn heads_and_items_are_shared_by_devices() {
    for model in ["sd3_medium", "sd35_medium"] {
        let studio = Studio::new(model);
        let (_, whole) = studio.paint(&[&GUIDED[..], &SIZE].concat());
        for (arguments, placement) in SPLITS {
            let (document, picture) = studio.paint(&[arguments, &GUIDED, &SIZE].concat());
            let components = document["plan"]["components"].as_array().expect("components");
            let dit = components.iter().find(|c| c["name"] == "dit").expect("a transformer");
            assert_eq!(dit["placement"], placement, "{arguments:?}");
            assert_exact(&document, 3, arguments);
            // Sums of another order are rounded to bf16 otherwise, where a processor does that.
            let allowed = if placement == "tensor" { 2 } else { 1 };
            let apart = picture.iter().zip(&whole).map(|(a, b)| a.abs_diff(*b)).max();
            assert!(apart <= Some(allowed), "{arguments:?}: {apart:?} levels off");
        }
    }
}

#[test]
fn batches_are_the_pictures_of_their_seeds() {
    let studio = Studio::new("sd35_medium");
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
    let studio = Studio::new("sd35_medium");
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
        for (arguments, ..) in [PLACES[0], PLACES[7], PLACES[9]] {
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
    let studio = Studio::new("sd35_medium");
    let paint = |more: &[&str]| studio.paint(&[&SIZE[..], more].concat()).1;
    let guided = paint(&["--guidance-scale", "3.5"]);
    assert!(guided == paint(&["--cfg-scale", "3.5"]), "the same number");
    assert!(guided == paint(&["--true-cfg-scale", "3.5"]), "the same number");
    assert!(paint(&[]) == paint(&["--guidance-scale", "4.5"]), "the published default");
    let plain = paint(&["--guidance-scale", "1"]);
    assert!(plain != guided, "guidance changes the picture");
    assert!(plain == paint(&["--guidance-scale", "0"]), "up to 1 it is none");
    let ended = studio.run(&["--guidance-scale", "2", "--true-cfg-scale", "3"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    let told = "--guidance-scale 2 and --true-cfg-scale 3 are one guidance of this model; hint: ";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
    let ended = studio.run(&["--guidance-scale", "1", "--negative-prompt", "blurry"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
}

#[test]
fn a_second_prompt_is_read_by_the_second_encoder_alone() {
    let studio = Studio::new("sd35_medium");
    let ids = |more: &[&str]| {
        let (_, _) = studio.paint(&[&SIZE[..], more, &["--dump-tensors", "dump.st"]].concat());
        crate::parity::golden::tensors(&studio.home.path("dump.st"))
    };
    let (one, two) = (ids(&[]), ids(&["--prompt-2", "a dog"]));
    for (encoder, same) in
        [("text_encoder", true), ("text_encoder_2", false), ("text_encoder_3", true)]
    {
        let name = format!("{encoder}.c.input_ids");
        assert_eq!(one[&name] == two[&name], same, "{encoder}");
    }
}

#[test]
fn a_picture_is_made_again_from_its_settings() {
    let studio = Studio::new("sd35_medium");
    let more = ["--guidance-scale", "3.3", "--negative-prompt", "blurry", "--t5xxl", "none"];
    let (_, picture) = studio.paint(&[&SIZE[..], &more].concat());
    std::fs::rename(studio.home.path("picture.png"), studio.home.path("made.png")).unwrap();
    let ended = studio.home.run(&["generate", "--settings", "made.png", "--output", "again.png"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(pixels(&studio.home.path("again.png")) == picture, "another picture");
}

#[test]
fn previews_are_shown_in_its_colours() {
    let studio = Studio::new("sd3_medium");
    let ended = studio.run(&[&SIZE[..], &["--preview", "1", "--steps", "3"]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_exact(&ended.json(), 3, &["with previews"]);
}
