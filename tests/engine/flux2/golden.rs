//! The golden cases of the reference model, and a run of one by the real program.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

use super::MODEL;
use crate::parity::compare::{
    DENOISER, LATENTS, LEVELS, NOISE, PICTURE, TEXT, assert_same_picture, deviation,
    largest_difference, mean_deviation,
};
use crate::parity::golden::{Tensor, Tensors, below, json, tensors};
use crate::support::{Home, fixture};

/// The text encoder's states that the DiT takes, as they are called where all are dumped: of 28
/// layers those that 9, 18 and 27 gave, counted from the last.
const STATES: [&str; 3] = ["m20", "m11", "m2"];

/// Where a run's noise comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Noise {
    /// The golden file.
    Golden,
    /// The case's seed.
    Seed,
}

/// One generation.
pub struct Case {
    pub name: String,
    /// The arguments of the pipeline's call.
    pub call: Value,
    pub seed: u64,
    pub tensors: Tensors,
}

/// All cases of the reference model.
pub fn cases() -> Vec<Case> {
    let folder = fixture("golden");
    let settings = json(&folder.join(format!("{MODEL}.json")));
    let stored = tensors(&folder.join(format!("{MODEL}.safetensors")));
    let mut cases: Vec<Case> = Vec::new();
    for entry in settings["cases"].as_array().expect("cases") {
        let name = entry["name"].as_str().expect("a name").to_owned();
        let mut tensors = below(&stored, &format!("{name}/"));
        if let Some(from) = entry["text_from"].as_str() {
            let earlier = cases.iter().find(|case| case.name == from).expect("an earlier case");
            let is_text = |name: &str| {
                name.starts_with("text_encoder.") || name.ends_with(".encoder_hidden_states")
            };
            let text = earlier.tensors.iter().filter(|(name, _)| is_text(name));
            tensors.extend(text.map(|(name, tensor)| (name.clone(), tensor.clone())));
        }
        let seed = entry["noise_seed"].as_u64().expect("a seed");
        cases.push(Case { name, call: entry["call"].clone(), seed, tensors });
    }
    assert_eq!(cases.len(), 4);
    cases
}

/// Tensors of the VAE alone.
pub fn of_the_vae() -> Tensors {
    below(&tensors(&fixture("golden").join(format!("{MODEL}.safetensors"))), "vae/")
}

impl Case {
    fn number(&self, name: &str) -> u64 {
        self.call[name].as_u64().unwrap_or_else(|| panic!("{name} of {}", self.name))
    }

    /// The arguments of a run of it.
    pub fn arguments(&self, home: &Home, noise: Noise) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: &dyn ToString| {
            arguments.extend([format!("--{name}"), value.to_string()]);
        };
        option("prompt", &self.call["prompt"].as_str().expect("a prompt"));
        option("width", &self.number("width"));
        option("height", &self.number("height"));
        option("steps", &self.number("num_inference_steps"));
        option("max-sequence-length", &self.number("max_sequence_length"));
        option("guidance-scale", &self.call["guidance_scale"].as_f64().expect("a scale"));
        match noise {
            Noise::Golden => option("init-latents", &self.noise(home)),
            Noise::Seed => option("seed", &self.seed),
        }
        arguments
    }

    /// Writes the golden noise to a file of its own, and returns its path.
    fn noise(&self, home: &Home) -> String {
        let values = self.tensors["noise_nchw"].floats();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let [height, width] = ["height", "width"].map(|side| self.number(side) as usize / 16);
        let shape = vec![1, values.len() / height / width, height, width];
        let view = TensorView::new(Dtype::F32, shape, &bytes).expect("a shape that fits");
        let path = home.path("noise.safetensors");
        let file = safetensors::serialize([("noise_nchw", view)], None).expect("one tensor");
        std::fs::write(&path, file).expect("the home can be written");
        path.display().to_string()
    }

    /// Runs it on a model, and returns what was said and what was dumped.
    pub fn run(&self, home: &Home, model: &[&str], more: &[&str]) -> (Value, Tensors) {
        self.run_from(Noise::Golden, home, model, more)
    }

    /// The same from noise of the golden file or of the seed.
    pub fn run_from(
        &self,
        noise: Noise,
        home: &Home,
        model: &[&str],
        more: &[&str],
    ) -> (Value, Tensors) {
        let dump = home.path("dump.safetensors");
        let own = self.arguments(home, noise);
        let mut arguments = vec!["generate"];
        arguments.extend(model);
        arguments.extend(own.iter().map(String::as_str));
        let dumped = dump.display().to_string();
        arguments.extend(["--dump-tensors", &dumped, "--json"]);
        arguments.extend(more);
        let document = home.json(&arguments);
        let dumped = tensors(&dump);
        // The next run in this home must write its own.
        std::fs::remove_file(&dump).expect("the file was just read");
        (document, dumped)
    }

    /// Holds everything that was dumped against the golden values; each of these must be there.
    #[track_caller]
    pub fn compare(&self, what: &str, dumped: &Tensors) {
        let mut compared = 0;
        for (name, golden) in &self.tensors {
            let what = format!("{what}: {}/{name}", self.name);
            // Inputs are compared as outputs.
            if name.contains(".in.") || name.ends_with("attention_mask") {
                continue;
            }
            let Some(got) = dumped.get(name) else {
                // Noise that was given is not drawn.
                assert_eq!(name, "noise_nchw", "{what} was not dumped");
                continue;
            };
            compared += 1;
            match (got, golden) {
                (Tensor::Ids(got), Tensor::Ids(golden)) => assert_eq!(got, golden, "{what}"),
                (Tensor::Levels(got), Tensor::Levels(golden)) => {
                    assert_same_picture(&what, got, golden)
                }
                (Tensor::Floats(got), Tensor::Floats(golden)) if name == "noise_nchw" => {
                    let apart = largest_difference(got, golden);
                    assert!(apart <= NOISE, "{what} is {apart:.1e} off");
                }
                (Tensor::Floats(got), Tensor::Floats(golden)) => {
                    let (off, allowed) = (deviation(got, golden), tolerance(name));
                    assert!(off <= allowed, "{what} is {off:.1e} off, {allowed:.0e} is allowed");
                }
                _ => panic!("{what}: {got:?} is of another type than {golden:?}"),
            }
        }
        // Ids, a state, noise levels and times, the DiT's result, four latents, the picture.
        assert!(compared >= 10, "{what}: {compared} tensors compared");
        let golden = self.tensors["transformer.call0.in.encoder_hidden_states"].floats();
        let off = deviation(&self.embeddings(dumped), golden);
        assert!(off <= TEXT, "{what}: {}: the DiT is given text {off:.1e} off", self.name);
    }

    /// What the DiT is given of the text: the encoder's states side by side.
    fn embeddings(&self, dumped: &Tensors) -> Vec<f32> {
        let states =
            STATES.map(|state| dumped[&format!("text_encoder.c.hidden_states.{state}")].floats());
        let tokens = self.number("max_sequence_length") as usize;
        let features = states[0].len() / tokens;
        let row = |token: usize| {
            states.into_iter().flat_map(move |state| {
                state[token * features..(token + 1) * features].iter().copied()
            })
        };
        (0..tokens).flat_map(row).collect()
    }

    /// The root mean square of the difference of each tensor of activations over that of its golden
    /// values: the largest of them, with its name.
    pub fn mean_deviation(&self, dumped: &Tensors) -> (f64, String) {
        let is_compared = |name: &&String| !name.contains(".in.") && dumped.contains_key(*name);
        let names = self.tensors.keys().filter(is_compared);
        let off = names.filter_map(|name| match (&dumped[name], &self.tensors[name]) {
            (Tensor::Floats(got), Tensor::Floats(golden)) => {
                Some((mean_deviation(got, golden), name.clone()))
            }
            _ => None,
        });
        off.max_by(|a, b| a.0.total_cmp(&b.0)).expect("some tensors are compared")
    }
}

fn tolerance(name: &str) -> f64 {
    match name {
        "sigmas" | "timesteps" => LEVELS,
        "vae.out" => PICTURE,
        "transformer.call0.out" => DENOISER,
        name if name.starts_with("text_encoder") => TEXT,
        _ => LATENTS,
    }
}
