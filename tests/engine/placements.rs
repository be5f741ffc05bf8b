//! Placements by hand, through the real program: one prompt and one seed on every kind of placement
//! and residency.
//!
//! All kernels sum each element of a result in the same order wherever its row or layer is
//! computed, so the pictures are the same to the byte; only a decoder in tiles computes something
//! else, and all placements of that agree among themselves.

use crate::support::wide::Wide;
use crate::support::{Home, pixels};
use serde_json::Value;

/// Eight devices that hold the whole model, and a host that may compute.
fn devices(count: usize, total: &str) -> String {
    let device =
        format!("[[device]]\nkind = \"virtual\"\ntotal = \"{total}\"\nlink = \"8GiB/s\"\n");
    format!("name = \"devices\"\n{}", device.repeat(count))
}

/// A model in a home, on virtual devices.
struct Studio {
    home: Home,
}

/// A picture, and what was said of it.
struct Painted {
    pixels: Vec<u8>,
    document: Value,
}

impl Studio {
    fn new(model: Wide) -> Studio {
        let home = Home::new();
        model.write(&home.path("model")).expect("a file system with room");
        std::fs::write(home.path("devices.toml"), devices(8, "256MiB")).unwrap();
        Studio { home }
    }

    fn arguments<'a>(&self, command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec![command, "model", "--host", "devices.toml"];
        arguments.extend(["--width", "64", "--height", "48", "--steps", "2", "--json"]);
        arguments.extend(["--max-sequence-length", "32"]);
        if command == "generate" {
            arguments.extend([
                "--prompt",
                "a red circle",
                "--seed",
                "7",
                "--output",
                "picture.png",
            ]);
        }
        arguments.extend(more);
        arguments
    }

    fn paint(&self, more: &[&str]) -> Painted {
        let document = self.home.json(&self.arguments("generate", more));
        Painted { pixels: pixels(&self.home.path("picture.png")), document }
    }

    /// Three pictures made together.
    fn paint_three(&self, more: &[&str]) -> Painted {
        let batch = ["--batch", "3", "--vae-tile", "off"];
        let document = self.home.json(&self.arguments("generate", &[&batch[..], more].concat()));
        let images = document["images"].as_array().expect("three pictures");
        assert_eq!(images.len(), 3);
        let image = |image: &Value| pixels(&self.home.path(image.as_str().expect("a name")));
        Painted { pixels: images.iter().flat_map(image).collect(), document }
    }
}

impl Painted {
    fn component(&self, name: &str) -> &Value {
        let components = self.document["plan"]["components"].as_array().unwrap();
        components.iter().find(|component| component["name"] == name).unwrap()
    }

    /// Every device's predicted peak is the measured one, in every phase.
    #[track_caller]
    fn assert_exact(&self, what: &[&str]) {
        let devices = self.document["usage"]["devices"].as_array().unwrap();
        assert!(!devices.is_empty());
        for device in devices {
            let phases = device["phases"].as_array().unwrap();
            assert_eq!(phases.len(), 3);
            for phase in phases {
                assert_eq!(
                    phase["predicted_peak_bytes"], phase["measured_peak_bytes"],
                    "{what:?}: {device}"
                );
            }
        }
    }
}

/// What is asked by hand, and what the plan must then say of a component: placement, residency,
/// devices.
type Case<'a> = (&'a [&'a str], &'a str, [&'a str; 2], usize);

const ALL0: &str = "all=virtual0";

#[rustfmt::skip]
const CASES: [Case; 35] = [
    (&["--backend", "all=cpu"], "dit", ["host", "mapped"], 1),
    (&["--backend", ALL0, "--params-backend", "all=device"], "dit", ["one", "resident"], 1),
    (&["--backend", ALL0, "--params-backend", "all=disk"], "dit", ["one", "lazy"], 1),
    (&["--backend", "all=virtual0,dit=virtual1", "--params-backend", "all=device"], "dit", ["one", "resident"], 1),
    (&["--backend", "all=virtual0,clip=virtual1", "--params-backend", "all=device"], "clip", ["one", "resident"], 1),
    (&["--backend", "all=virtual0,t5=virtual2", "--params-backend", "all=device"], "t5", ["one", "resident"], 1),
    (&["--backend", "all=virtual0,cond=cpu"], "t5", ["host", "mapped"], 1),
    (&["--backend", "all=virtual0,clip=cpu"], "clip", ["host", "mapped"], 1),
    (&["--backend", "all=virtual0,vae=virtual3", "--params-backend", "all=device"], "vae", ["one", "resident"], 1),
    (&["--backend", "all=virtual0,vae=cpu"], "vae", ["host", "mapped"], 1),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "all=device"], "dit", ["layer", "resident"], 2),
    (&["--backend", "all=virtual0,dit=virtual1&virtual0&virtual2", "--params-backend", "all=device"], "dit", ["layer", "resident"], 3),
    (&["--backend", "all=virtual0,dit=virtual0:3&virtual1:1", "--params-backend", "all=device"], "dit", ["layer", "resident"], 2),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1&virtual2&virtual3&virtual4&virtual5&virtual6&virtual7", "--params-backend", "all=device"], "dit", ["layer", "resident"], 8),
    (&["--backend", "all=virtual0,t5=virtual0&virtual1", "--params-backend", "all=device"], "t5", ["layer", "resident"], 2),
    (&["--backend", "all=virtual0,t5=virtual2&virtual1&virtual0", "--params-backend", "all=device"], "t5", ["layer", "resident"], 3),
    (&["--backend", "all=virtual0,dit=virtual0&cpu", "--params-backend", "all=device"], "dit", ["layer", "resident"], 2),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "dit=disk"], "dit", ["layer", "lazy"], 2),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "all=device"], "dit", ["row", "resident"], 2),
    (&["--backend", "all=virtual0,dit=virtual2&virtual1&virtual0", "--split-mode", "dit=row", "--params-backend", "all=device"], "dit", ["row", "resident"], 3),
    (&["--backend", "all=virtual0,dit=virtual0:3&virtual1:1", "--split-mode", "row", "--params-backend", "all=device"], "dit", ["row", "resident"], 2),
    (&["--backend", "all=virtual0,t5=virtual0&virtual1", "--split-mode", "t5=row", "--params-backend", "all=device"], "t5", ["row", "resident"], 2),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "dit=disk"], "dit", ["row", "lazy"], 2),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "dit=cpu"], "dit", ["row", "streamed"], 2),
    (&["--backend", ALL0, "--params-backend", "dit=cpu", "--lookahead", "1"], "dit", ["one", "streamed"], 1),
    (&["--backend", ALL0, "--params-backend", "dit=cpu", "--lookahead", "2"], "dit", ["one", "streamed"], 1),
    (&["--backend", ALL0, "--params-backend", "dit=cpu", "--lookahead", "4"], "dit", ["one", "streamed"], 1),
    (&["--backend", ALL0, "--params-backend", "t5=cpu"], "t5", ["one", "streamed"], 1),
    (&["--backend", ALL0, "--params-backend", "all=cpu", "--no-prefetch"], "vae", ["one", "streamed"], 1),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "dit=cpu"], "dit", ["layer", "streamed"], 2),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1&virtual2,t5=virtual3&virtual4", "--params-backend", "dit=cpu,t5=cpu"], "t5", ["layer", "streamed"], 2),
    (&["--backend", ALL0, "--params-backend", "dit=locked"], "dit", ["one", "streamed"], 1),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--params-backend", "dit=locked"], "dit", ["layer", "streamed"], 2),
    (&["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row", "--params-backend", "dit=locked"], "dit", ["row", "streamed"], 2),
    (&["--clip-on-cpu", "--vae-on-cpu", "--backend", "dit=virtual0"], "vae", ["host", "mapped"], 1),
];

#[test]
fn every_placement_by_hand_gives_the_hosts_picture_in_the_planned_bytes() {
    // Eight segments in the DiT: one for each device.
    let studio = Studio::new(Wide { single_blocks: 4, ..Wide::bf16() });
    let paint = |more: &[&str]| studio.paint(&[&["--vae-tile", "off"], more].concat());
    let expected = paint(CASES[0].0);
    for (arguments, name, [placement, residency], devices) in CASES {
        let painted = paint(arguments);
        let component = painted.component(name);
        assert_eq!(component["placement"], placement, "{arguments:?}");
        assert_eq!(component["residency"], residency, "{arguments:?}");
        assert_eq!(component["devices"].as_array().unwrap().len(), devices, "{arguments:?}");
        assert!(painted.pixels == expected.pixels, "{arguments:?}: another picture");
        painted.assert_exact(arguments);
    }
}

#[rustfmt::skip]
const ITEMS: [(&[&str], [u32; 2], &str); 4] = [
    (&["--params-backend", "all=device"], [2, 1], "dit=virtual0&virtual1"),
    (&["--params-backend", "dit=disk"], [2, 1], "dit=virtual1:2&virtual2:1"),
    (&["--params-backend", "dit=cpu", "--lookahead", "dit=3"], [1, 2], "dit=virtual1:1&virtual0:2"),
    (&["--params-backend", "dit=cpu"], [1, 1], "dit=virtual2&virtual1&virtual0"),
];

#[test]
fn items_by_hand_give_the_hosts_pictures_in_the_planned_bytes() {
    let studio = Studio::new(Wide::bf16());
    let expected = studio.paint_three(&["--backend", "all=cpu"]);
    for (more, counts, backend) in ITEMS {
        let backend = format!("all=virtual0,{backend}");
        let arguments = [&["--backend", &backend, "--split-mode", "dit=items"], more].concat();
        let painted = studio.paint_three(&arguments);
        let component = painted.component("dit");
        assert_eq!(component["placement"], "items", "{arguments:?}");
        let stated = &component["item_counts"].as_array().expect("counts")[..2];
        assert_eq!(stated, counts, "{arguments:?}");
        assert!(painted.pixels == expected.pixels, "{arguments:?}: other pictures");
        painted.assert_exact(&arguments);
    }
}

#[rustfmt::skip]
const PIPELINES: [(&[&str], &[u32], &str); 3] = [
    (&["--params-backend", "all=device"], &[2, 1], "dit=virtual0&virtual1"),
    (&["--params-backend", "dit=disk"], &[2, 1], "dit=virtual1:2&virtual2:1"),
    (&[], &[1, 1, 1], "dit=virtual2&virtual1&virtual0"),
];

#[test]
fn pipelines_by_hand_give_the_hosts_pictures_in_the_planned_bytes() {
    let studio = Studio::new(Wide::bf16());
    let expected = studio.paint_three(&["--backend", "all=cpu"]);
    for (more, counts, backend) in PIPELINES {
        let backend = format!("all=virtual0,{backend}");
        let arguments = [&["--backend", &backend, "--split-mode", "dit=pipeline"], more].concat();
        let painted = studio.paint_three(&arguments);
        let component = painted.component("dit");
        assert_eq!(component["placement"], "pipeline", "{arguments:?}");
        assert_eq!(component["item_counts"], serde_json::json!(counts), "{arguments:?}");
        assert!(painted.pixels == expected.pixels, "{arguments:?}: other pictures");
        painted.assert_exact(&arguments);
    }
}

#[rustfmt::skip]
const HEADS: [(&[&str], &str, &str, &[u32]); 8] = [
    (&["--params-backend", "all=device"], "dit=virtual0:1&virtual1:1", "resident", &[1, 1]),
    (&["--params-backend", "dit=disk"], "dit=virtual1:1&virtual2:1", "lazy", &[1, 1]),
    (&["--params-backend", "dit=cpu"], "dit=virtual2:1&virtual0:1", "streamed", &[1, 1]),
    (&["--params-backend", "dit=cpu", "--lookahead", "dit=5"], "dit=virtual0:1&virtual1:1", "streamed", &[1, 1]),
    (&["--params-backend", "dit=locked"], "dit=virtual0:1&virtual3:1", "streamed", &[1, 1]),
    (&["--params-backend", "all=device"], "dit=virtual0:3&virtual1:1", "resident", &[3, 1]),
    (&["--params-backend", "dit=cpu"], "dit=virtual1:3&virtual0:1", "streamed", &[3, 1]),
    (&["--params-backend", "dit=disk"], "dit=virtual0:2&virtual1:1&virtual2:1", "lazy", &[2, 1, 1]),
];

#[test]
fn heads_by_hand_give_the_picture_but_for_rounding_and_the_same_bits_for_the_same_shares() {
    let studio = Studio::new(Wide::bf16());
    let paint = |more: &[&str]| studio.paint(&[&["--vae-tile", "off"], more].concat());
    let expected = paint(&["--backend", "all=cpu"]);
    let mut by_shares: Vec<(&[u32], Vec<u8>)> = Vec::new();
    for (more, backend, residency, shares) in HEADS {
        let backend = format!("all=virtual0,{backend}");
        let arguments = [&["--backend", &backend, "--split-mode", "dit=tensor"], more].concat();
        let painted = paint(&arguments);
        let component = painted.component("dit");
        assert_eq!(component["placement"], "tensor", "{arguments:?}");
        assert_eq!(component["residency"], residency, "{arguments:?}");
        assert_eq!(component["tensor_shares"], serde_json::json!(shares), "{arguments:?}");
        assert_eq!(component["row_shares"], serde_json::json!([]), "{arguments:?}");
        painted.assert_exact(&arguments);
        let apart = painted.pixels.iter().zip(&expected.pixels).map(|(a, b)| a.abs_diff(*b));
        assert!(apart.max() <= Some(1), "{arguments:?}: another picture");
        match by_shares.iter().find(|(known, _)| *known == shares) {
            Some((_, pixels)) => assert!(painted.pixels == *pixels, "{arguments:?}: other bits"),
            None => by_shares.push((shares, painted.pixels)),
        }
    }
    assert_eq!(by_shares.len(), 3);
}

#[test]
fn a_decoder_in_tiles_gives_one_picture_wherever_it_is() {
    let studio = Studio::new(Wide::f32());
    let tiled = ["--vae-tile", "64x32"];
    let paint = |more: &[&str]| studio.paint(&[&tiled[..], more].concat());
    let expected = paint(&["--backend", "all=cpu"]);
    assert_eq!(expected.document["plan"]["vae_tile"]["width"], 64);
    assert_eq!(expected.document["plan"]["vae_tile"]["height"], 32);
    let whole = studio.paint(&["--backend", "all=cpu", "--vae-tile", "off"]);
    assert!(whole.document["plan"]["vae_tile"].is_null());
    assert!(whole.pixels != expected.pixels, "tiles see less of the picture");
    for more in [
        &["--backend", ALL0][..],
        &["--backend", "all=virtual0,vae=virtual1&virtual2"],
        &["--backend", ALL0, "--params-backend", "vae=cpu", "--lookahead", "1"],
        &["--backend", ALL0, "--params-backend", "vae=disk"],
    ] {
        let painted = paint(more);
        assert!(painted.pixels == expected.pixels, "{more:?}: another picture");
        painted.assert_exact(more);
    }
}

#[test]
fn nonsense_is_refused_with_a_hint_and_no_picture() {
    let studio = Studio::new(Wide::f32());
    #[rustfmt::skip]
    let nonsense: [(&[&str], &str); 19] = [
        (&["--backend", "dit=cuda0"], "cuda0"),
        (&["--backend", "dit=virtual"], "virtual"),
        (&["--backend", "flying=virtual0"], "flying"),
        (&["--backend", "dit=virtual0&virtual0"], "virtual0"),
        (&["--backend", "dit"], "dit"),
        (&["--split-mode", "dit=row", "--backend", "dit=virtual0"], "dit"),
        (&["--split-mode", "clip=row", "--backend", "clip=virtual0&virtual1"], "clip"),
        (&["--split-mode", "dit=row", "--backend", "dit=virtual0&cpu"], "dit"),
        (&["--split-mode", "dit=items", "--backend", "dit=virtual0&virtual1"], "1 item"),
        (&["--split-mode", "dit=pipeline", "--backend", "dit=virtual0&virtual1"], "a pipeline needs 2"),
        (&["--batch", "2", "--split-mode", "dit=pipeline", "--backend", "dit=virtual0&cpu"], "the host takes no part"),
        (&["--split-mode", "dit=tensor", "--backend", "dit=virtual0&virtual1&virtual2&virtual3&virtual4"], "4 devices, not by 5"),
        (&["--split-mode", "dit=tensor", "--backend", "dit=virtual0&cpu"], "the host takes no heads"),
        (&["--split-mode", "t5=tensor", "--backend", "t5=virtual0&virtual1"], "no heads"),
        (&["--split-mode", "sideways", "--backend", "dit=virtual0&virtual1"], "sideways"),
        (&["--params-backend", "dit=cpu", "--backend", "dit=cpu"], "dit"),
        (&["--lookahead", "0"], "lookahead"),
        (&["--lookahead", "65"], "lookahead"),
        (&["--vae-tile", "7"], "tile"),
    ];
    for (arguments, named) in nonsense {
        let ended = studio.home.run(&studio.arguments("generate", arguments));
        assert_eq!(ended.code, Some(2), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(named), "{arguments:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("hint:"), "{arguments:?}: {}", ended.stderr);
        assert!(!studio.home.path("picture.png").exists(), "{arguments:?}");
    }
}

#[test]
fn what_is_not_said_is_still_chosen_and_fits_the_budget() {
    let studio = Studio::new(Wide::bf16());
    let resident = ["--dry-run", "--backend", ALL0, "--params-backend", "all=device"];
    let resident = studio.home.json(&studio.arguments("plan", &resident));
    let weights = |plan: &Value| {
        let components = plan["components"].as_array().unwrap();
        let bytes = components.iter().map(|component| component["weights_bytes"].as_u64().unwrap());
        bytes.sum::<u64>()
    };
    let peak = resident["devices"][0]["peak_bytes"].as_u64().unwrap();
    assert!(peak > weights(&resident), "everything is resident");
    // With two thirds of that not everything can stay, and by hand only the device is said.
    let budget = format!("virtual0={}B", peak * 2 / 3);
    let painted = studio.paint(&["--backend", ALL0, "--max-vram", &budget]);
    let device = &painted.document["plan"]["devices"][0];
    assert!(device["peak_bytes"].as_u64().unwrap() <= peak * 2 / 3);
    painted.assert_exact(&[&budget]);
    let components = painted.document["plan"]["components"].as_array().unwrap();
    assert!(components.iter().any(|component| component["residency"] != "resident"));
    for component in components {
        assert_eq!(component["devices"], serde_json::json!(["virtual0"]));
    }
}

#[test]
fn a_plan_by_hand_is_shown_by_device() {
    let studio = Studio::new(Wide::bf16());
    let shape = ["--width", "64", "--height", "48", "--steps", "2", "--max-sequence-length", "32"];
    let by_hand = [
        "--backend",
        "all=virtual0,dit=virtual0:1&virtual1:3,t5=virtual1&virtual0",
        "--split-mode",
        "t5=row",
        "--params-backend",
        "dit=cpu,t5=device,vae=device",
        "--lookahead",
        "dit=3",
        "--vae-tile",
        "32x64:0.5",
    ];
    let plan = ["plan", "model", "--host", "devices.toml", "--dry-run", "--explain"];
    let ended = studio.home.run(&[&plan[..], &shape, &by_hand].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let lines: Vec<String> = ended
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for shown in [
        "VAE in tiles of 32x64, overlap 0.5",
        "t5 condition virtual1&virtual0 rows, resident",
        "dit denoise virtual0&virtual1 layers, streamed",
        " of 7, 3 slots",
        "virtual0 2 segments",
        "vae decode virtual0 resident, loaded early",
        "dit: on virtual0&virtual1 by layers, streamed (2:",
    ] {
        assert!(lines.iter().any(|line| line.contains(shown)), "no {shown:?} in {}", ended.stdout);
    }
    let rows = lines.iter().filter(|line| line.contains("rows ")).count();
    assert_eq!(rows, 2, "each device has its rows: {}", ended.stdout);
}

#[test]
fn weights_as_if_in_blocks_are_planned_for_and_never_loaded() {
    let studio = Studio::new(Wide::bf16());
    let look = ["--dry-run", "--weights-as", "q8_0", "--output", "plan.toml"];
    let bytes = |plan: &Value, field: &str| -> u64 {
        let components = plan["components"].as_array().unwrap();
        let dit = components.iter().find(|component| component["name"] == "dit").unwrap();
        dit[field].as_u64().unwrap()
    };
    let rows = ["--backend", "dit=virtual0&virtual1", "--split-mode", "dit=row"];
    for place in [&[][..], &rows] {
        let plan = |more: &[&str]| {
            let more = [place, more].concat();
            studio.home.json(&studio.arguments("plan", &more))
        };
        let (stored, blocks) = (plan(&["--dry-run"]), plan(&look));
        assert_eq!(stored["options"]["weights_as"], Value::Null);
        assert_eq!(blocks["options"]["weights_as"], "q8_0");
        // 34 bytes for 32 elements of 2, but for vectors and matrices of uneven rows.
        let part = bytes(&blocks, "tensor_bytes") as f64 / bytes(&stored, "tensor_bytes") as f64;
        assert!((34.0 / 64.0..0.56).contains(&part), "{part} of the bytes");
        let generate = ["generate", "model", "--prompt", "a red circle", "--plan", "plan.toml"];
        let shape = ["--width", "64", "--height", "48", "--steps", "2"];
        let tokens = ["--max-sequence-length", "32"];
        let refused = studio.home.run(&[&generate[..], &shape, &tokens].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains("made for files that are not there"), "{}", refused.stderr);
    }
    let table = studio.home.run(&["plan", "model", "--dry-run", "--weights-as", "q8_0"]);
    assert!(table.stdout.contains("weights as if stored in q8_0"), "{}", table.stdout);
}
