//! Jobs that start from a picture, with and without VAE tiles: by the real program, from the
//! picture's file to the finished one, on every profile.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use executor::components::vae::job::VaeJob;
use executor::families::{self, flux1::Flux1};
use executor::models::Model;
use protocol::plan::VaeTile;
use protocol::{GraphOptions, JobShape};
use serde_json::Value;

use crate::parity::compare::{ENCODER, assert_close};
use crate::parity::golden::{Tensor, Tensors, below, json, tensors};
use crate::parity::stages::{compute, float_bytes, transposed};
use crate::parity::{HOST_ONLY, PROFILES, compare, tiles};
use crate::support::{Home, fixture, root};

/// One job of `scripts/golden_img2img.py`.
struct Started {
    name: String,
    settings: Value,
    tensors: Tensors,
}

impl Started {
    fn all() -> Vec<Started> {
        let path = fixture("golden").join("img2img");
        let stored = tensors(&path.with_extension("safetensors"));
        let cases = json(&path.with_extension("json"))["cases"].as_array().expect("cases").clone();
        let started = |settings: Value| {
            let name = settings["name"].as_str().expect("a name").to_owned();
            let tensors = below(&stored, &format!("{name}/"));
            Started { name, settings, tensors }
        };
        cases.into_iter().map(started).collect()
    }

    fn number(&self, key: &str) -> u32 {
        self.settings[key].as_u64().expect("a whole number") as u32
    }

    fn model(&self) -> &str {
        self.settings["model"].as_str().expect("a model")
    }

    fn picture(&self) -> &[u8] {
        let Tensor::Levels(levels) = &self.tensors["init_u8"] else { panic!("no picture") };
        levels
    }

    /// Runs the job and returns what it dumped, and its plan's components.
    fn generate(&self, home: &Home, profile: &str) -> (Tensors, Vec<Value>) {
        let (input, dump) = (home.path("input.png"), home.path("dump.safetensors"));
        write_png(&input, self.picture(), self.number("width"), self.number("height"));
        let mut arguments = vec!["generate".to_owned(), "--exact-matmul".to_owned()];
        if self.model() != "demo" {
            arguments.push(fixture(self.model()).display().to_string());
        }
        let mut option = |name: &str, value: String| {
            arguments.extend([format!("--{name}"), value]);
        };
        option("init-image", input.display().to_string());
        option("dump-tensors", dump.display().to_string());
        option("host", profile.to_owned());
        for (name, key) in [
            ("prompt", "prompt"),
            ("negative-prompt", "negative_prompt"),
            ("steps", "steps"),
            ("strength", "strength"),
            ("seed", "seed"),
            ("max-sequence-length", "max_sequence_length"),
            ("guidance-scale", "guidance_scale"),
            ("true-cfg-scale", "true_cfg_scale"),
            ("vae-tile", "tile"),
        ] {
            match &self.settings[key] {
                Value::Null => {}
                Value::String(text) => option(name, text.clone()),
                number => option(name, number.to_string()),
            }
        }
        arguments.push("--json".to_owned());
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let document = home.json(&arguments);
        let job = &document["plan"]["job"];
        // Width and height were not given: they are the picture's.
        for key in ["width", "height", "steps"] {
            assert_eq!(job[key], self.settings[key], "{}: {key}", self.name);
        }
        let run = self.number("steps") - self.number("steps_run");
        assert_eq!(job["first_step"], run, "{}", self.name);
        let components = document["plan"]["components"].as_array().expect("components").clone();
        (tensors(&dump), components)
    }

    fn compare_all(&self, what: &str, dumped: &Tensors) {
        let mut compared = BTreeSet::new();
        for (name, golden) in self.tensors.iter().filter(|(name, _)| *name != "init_u8") {
            let Some(got) = dumped.get(name) else { panic!("{what}: {name} was not dumped") };
            compare(&format!("{what}: {name}"), name, got, golden, 1.0);
            compared.insert(name);
        }
        assert_eq!(compared.len() as u32, 5 + self.number("steps_run"), "{what}: {compared:?}");
    }
}

fn write_png(path: &Path, pixels: &[u8], width: u32, height: u32) {
    let mut encoder = png::Encoder::new(File::create(path).expect("a file"), width, height);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(pixels).expect("pixels");
    writer.finish().expect("a whole file");
}

#[test]
fn every_job_that_starts_from_a_picture_matches_in_every_tensor() {
    let home = Home::new();
    std::fs::write(home.path("host-only.toml"), HOST_ONLY).expect("the home can be written");
    for (profile, computes_on) in PROFILES {
        for case in Started::all() {
            let what = format!("{} on {profile}", case.name);
            let (dumped, components) = case.generate(&home, profile);
            assert_eq!(components.len(), 5, "{what}");
            assert_eq!(components[0]["name"], "vae_encoder", "{what}");
            for component in &components {
                let device = component["devices"][0].as_str().expect("a device");
                assert!(device.starts_with(computes_on), "{what}: computes on {device}");
            }
            case.compare_all(&what, &dumped);
        }
    }
}

/// The encoder by itself, in the same tiles, at every kind of place.
#[test]
fn the_encoder_matches_from_pictures_in_tiles() {
    for case in Started::all() {
        let directory = match case.model() {
            "demo" => root().join("planner/demo/model"),
            name => fixture(name),
        };
        let flux: Arc<Flux1> = families::open(&directory).expect("a whole model").downcast();
        let job = JobShape {
            width: case.number("width"),
            height: case.number("height"),
            steps: case.number("steps"),
            max_sequence_length: 16,
            init_image: true,
            ..JobShape::small()
        };
        let tile = case.settings["tile"].as_u64().map(|side| side as u32);
        let vae_tile = tile.map(|side| VaeTile { width: side, height: side, overlap: 0.25 });
        let options = GraphOptions { vae_tile, ..GraphOptions::default() };
        let grid = flux.vae().tiles(&job, &options).expect("whole cells");
        assert_eq!(grid.count() > 1, tile.is_some(), "{}", case.name);
        let (width, files) = (job.width as usize, flux.files("vae_encoder"));
        let channels = 2 * flux.vae().latent_channels;
        let picture: Vec<f32> =
            case.picture().iter().map(|&level| 2.0 * (f32::from(level) / 255.0) - 1.0).collect();
        let moments = tiles::joined(&grid, 1, channels, |tile| {
            let (height, columns) = (8 * tile.y.len, 8 * tile.x.len);
            let rows = (8 * tile.y.start..).take(height);
            let start = |row: usize| 3 * (row * width + 8 * tile.x.start);
            let pixels: Vec<f32> =
                rows.flat_map(|row| picture[start(row)..][..3 * columns].iter().copied()).collect();
            let graph = flux.vae().encoder(files, tile.y.len, tile.x.len).expect("a whole encoder");
            compute(&case.name, &graph, files, &vec![("image", float_bytes(&pixels))], true)
        });
        let moments = transposed(&moments, moments.len() / channels, channels);
        let golden = case.tensors["vae_encoder.moments"].floats();
        // Means and logarithms of variances, each by its own size.
        let half = moments.len() / 2;
        assert_close(&case.name, &moments[..half], &golden[..half], ENCODER);
        assert_close(&case.name, &moments[half..], &golden[half..], ENCODER);
    }
}
