//! The golden files: what diffusers computed, case by case, under one set of names for all models.
//!
//! Invariant: a [`Case`] is whole. Text tensors that are stored with an earlier case are taken from
//! there, and what was not stored because other tensors determine it is derived here, by code of
//! its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::ModelSource;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::support::{fixture, root};

/// A named set of tensors.
pub type Tensors = BTreeMap<String, Tensor>;

/// The elements of a tensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub enum Tensor {
    /// Activations.
    Floats(Vec<f32>),
    /// Token ids.
    Ids(Vec<i64>),
    /// Levels of a picture.
    Levels(Vec<u8>),
}

impl Tensor {
    /// The elements of a tensor of activations.
    pub fn floats(&self) -> &[f32] {
        match self {
            Tensor::Floats(values) => values,
            other => panic!("{other:?} is no tensor of floats"),
        }
    }

    /// The elements of a tensor of token ids.
    pub fn ids(&self) -> &[i64] {
        match self {
            Tensor::Ids(values) => values,
            other => panic!("{other:?} is no tensor of ids"),
        }
    }
}

/// A model with its golden cases.
pub struct Golden {
    /// Its name.
    pub name: &'static str,
    /// The directory of its configurations.
    pub directory: PathBuf,
    /// Where its files are.
    pub source: ModelSource,
    /// Its cases, in the order of the file.
    pub cases: Vec<Case>,
    /// Tensors of no case: the VAE's own.
    pub others: Tensors,
    /// Whether quantised weights are multiplied by their values, not as integers.
    pub exact: bool,
}

/// One generation.
pub struct Case {
    /// Its name.
    pub name: String,
    /// What the text encoders get.
    pub prompt: String,
    /// What the second one gets in its place.
    pub prompt_2: Option<String>,
    /// The prompt of the unconditional call.
    pub negative_prompt: Option<String>,
    /// Size of the picture in pixels.
    pub width: u32,
    /// As `width`.
    pub height: u32,
    /// Denoising steps.
    pub steps: u32,
    /// Tokens of the second text encoder.
    pub max_sequence_length: u32,
    /// Embedded guidance.
    pub guidance_scale: f32,
    /// Classifier-free guidance, where there is any.
    pub true_cfg_scale: Option<f32>,
    /// Seed of the noise.
    pub seed: u64,
    /// Every tensor of the case.
    pub tensors: Tensors,
}

/// What one call of the DiT got, and what it gave.
pub struct DenoiserCall {
    /// Its number, as in the tensors' names.
    pub number: usize,
    /// Packed latents.
    pub latents: Vec<f32>,
    /// Pooled text embedding.
    pub pooled: Vec<f32>,
    /// Sequence of text embeddings.
    pub text: Vec<f32>,
    /// The model's time, 0 to 1.
    pub timestep: f32,
    /// Positions `[tokens, 3]`, text first.
    pub positions: Vec<f32>,
    /// The result.
    pub velocity: Vec<f32>,
}

impl Golden {
    /// One of the models under `tests/fixtures`.
    pub fn fixture(name: &'static str) -> Golden {
        let (settings, stored) = read(name);
        let mut cases: Vec<Case> = Vec::new();
        for entry in list(&settings["cases"]) {
            let mut case = Case::new(text(&entry["name"]), &entry["call"], &entry["noise_seed"]);
            case.tensors = below(&stored, &format!("{}/", case.name));
            if let Some(from) = entry["text_from"].as_str() {
                let from = cases.iter().find(|earlier| earlier.name == from);
                for (name, tensor) in &from.expect("text is taken from an earlier case").tensors {
                    let is_text = name.starts_with("text_encoder")
                        || name.ends_with(".encoder_hidden_states")
                        || name.ends_with(".pooled_projections");
                    if is_text {
                        case.tensors.entry(name.clone()).or_insert_with(|| tensor.clone());
                    }
                }
            }
            cases.push(case);
        }
        let others = below(&stored, "vae/");
        Golden::new(name, fixture(name), cases, others).completed()
    }

    /// The demo model, whose tensors have names of their own.
    pub fn demo() -> Golden {
        let (settings, stored) = read("demo");
        let mut cases = Vec::new();
        for entry in list(&settings["cases"]) {
            let mut case = Case::new(text(&entry["key"]), entry, &entry["seed"]);
            for (name, tensor) in below(&stored, &format!("{}.", case.name)) {
                match (name.as_str(), &tensor) {
                    ("step_latents", Tensor::Floats(steps)) => {
                        case.each_step(steps, |step| format!("latents.step{step}"))
                    }
                    ("step_velocity", Tensor::Floats(steps)) => {
                        case.each_step(steps, |step| format!("transformer.call{step}.out"))
                    }
                    // The same as image_raw, before rounding.
                    ("image_float", _) => {}
                    _ => drop(case.tensors.insert(demo_name(&name).to_owned(), tensor)),
                }
            }
            cases.push(case);
        }
        let directory = root().join("planner/demo/model");
        Golden::new("demo", directory, cases, Tensors::new()).completed()
    }

    fn new(name: &'static str, directory: PathBuf, cases: Vec<Case>, others: Tensors) -> Golden {
        let source = ModelSource::of(directory.display().to_string());
        Golden { name, directory, source, cases, others, exact: true }
    }

    /// The same model with some parts in other files, and what diffusers computed with these:
    /// `stored` has at least the text embeddings. What it lacks and depends on the parts is not
    /// known.
    pub fn with_parts(self, name: &'static str, stored: &Tensors, source: ModelSource) -> Golden {
        let case = |mut case: Case| {
            let own = below(stored, &format!("{}/", case.name));
            case.tensors.retain(|name, _| {
                let outcome = name.starts_with("latents.") || name.starts_with("vae.");
                !outcome && !name.ends_with(".out") && name != "image_u8"
            });
            let known = !own.is_empty();
            case.tensors.extend(own);
            known.then_some(case)
        };
        let cases = self.cases.into_iter().filter_map(case).collect();
        let (directory, others) = (self.directory, Tensors::new());
        Golden { name, directory, source, cases, others, exact: true }.completed()
    }

    /// Adds the VAE's input to the cases that have none stored.
    fn completed(mut self) -> Golden {
        let config = json(&self.directory.join("vae/config.json"));
        let number = |key: &str| config[key].as_f64().expect("a factor of the VAE") as f32;
        let (scaling, shift) = (number("scaling_factor"), number("shift_factor"));
        for case in &mut self.cases {
            let input = case.unpacked().map(|value| value / scaling + shift).collect();
            case.tensors.entry("vae.in".to_owned()).or_insert(Tensor::Floats(input));
        }
        self
    }
}

impl Case {
    fn new(name: &str, call: &Value, seed: &Value) -> Case {
        let owned = |key: &str| call[key].as_str().map(str::to_owned);
        let number = |key: &str| whole(&call[key]) as u32;
        Case {
            name: name.to_owned(),
            prompt: text(&call["prompt"]).to_owned(),
            prompt_2: owned("prompt_2"),
            negative_prompt: owned("negative_prompt"),
            width: number("width"),
            height: number("height"),
            steps: number(if call["steps"].is_null() { "num_inference_steps" } else { "steps" }),
            max_sequence_length: number("max_sequence_length"),
            guidance_scale: call["guidance_scale"].as_f64().expect("a guidance scale") as f32,
            true_cfg_scale: call["true_cfg_scale"].as_f64().map(|scale| scale as f32),
            seed: whole(seed),
            tensors: Tensors::new(),
        }
    }

    /// The elements of a floating-point tensor of the case.
    pub fn floats(&self, name: &str) -> &[f32] {
        match self.tensors.get(name) {
            Some(tensor) => tensor.floats(),
            None => panic!("{} has no golden {name}", self.name),
        }
    }

    /// Every call of the DiT whose result is known, with its golden inputs.
    pub fn denoiser_calls(&self) -> Vec<DenoiserCall> {
        let prompts = if self.true_cfg_scale.is_some() { 2 } else { 1 };
        let calls = 0..prompts * self.steps as usize;
        let known =
            |call: &usize| self.tensors.contains_key(&format!("transformer.call{call}.out"));
        calls.filter(known).map(|number| self.denoiser_call(number, prompts)).collect()
    }

    fn denoiser_call(&self, number: usize, prompts: usize) -> DenoiserCall {
        let step = number / prompts;
        let prompt = ["c", "u"][number % prompts];
        let stored = |name: &str| {
            self.tensors.get(&format!("transformer.call{number}.in.{name}")).map(Tensor::floats)
        };
        let latents = match step.checked_sub(1) {
            None => self.floats("latents_init"),
            Some(earlier) => self.floats(&format!("latents.step{earlier}")),
        };
        let embedded = |stored_as: &str, encoder: &str| match stored(stored_as) {
            Some(values) => values.to_vec(),
            None => self.floats(&encoder.replace('*', prompt)).to_vec(),
        };
        let timestep = stored("timestep").map_or(self.floats("timesteps")[step] / 1000.0, |t| t[0]);
        let positions = match (stored("txt_ids"), stored("img_ids")) {
            (Some(text), Some(image)) => [text, image].concat(),
            _ => self.positions(),
        };
        DenoiserCall {
            number,
            latents: latents.to_vec(),
            pooled: embedded("pooled_projections", "text_encoder.*.pooler_output"),
            text: embedded("encoder_hidden_states", "text_encoder_2.*.last_hidden_state"),
            timestep,
            positions,
            velocity: self.floats(&format!("transformer.call{number}.out")).to_vec(),
        }
    }

    /// Positions as FLUX has them: 0 for text, then 0, row and column of each image token.
    fn positions(&self) -> Vec<f32> {
        let mut positions = vec![0.0; 3 * self.max_sequence_length as usize];
        for row in 0..self.height / 16 {
            for column in 0..self.width / 16 {
                positions.extend([0.0, row as f32, column as f32]);
            }
        }
        positions
    }

    /// The latents after the last step as `[channels, height, width]`.
    fn unpacked(&self) -> impl Iterator<Item = f32> {
        let packed = self.floats(&format!("latents.step{}", self.steps - 1));
        let (rows, columns) = (self.height as usize / 16, self.width as usize / 16);
        let features = packed.len() / (rows * columns); // 4 × channels
        (0..features / 4)
            .flat_map(move |channel| (0..2 * rows).map(move |y| (channel, y)))
            .flat_map(move |(channel, y)| (0..2 * columns).map(move |x| (channel, y, x)))
            .map(move |(channel, y, x)| {
                let token = y / 2 * columns + x / 2;
                packed[token * features + 4 * channel + 2 * (y % 2) + x % 2]
            })
    }

    fn each_step(&mut self, values: &[f32], name: impl Fn(usize) -> String) {
        for (step, part) in values.chunks(values.len() / self.steps as usize).enumerate() {
            self.tensors.insert(name(step), Tensor::Floats(part.to_vec()));
        }
    }
}

/// The common name of a tensor of the demo's file.
fn demo_name(name: &str) -> &str {
    match name {
        "clip_input_ids" => "text_encoder.c.input_ids",
        "clip_last_hidden_state" => "text_encoder.c.last_hidden_state",
        "pooled_prompt_embeds" => "text_encoder.c.pooler_output",
        "t5_input_ids" => "text_encoder_2.c.input_ids",
        "prompt_embeds" => "text_encoder_2.c.last_hidden_state",
        "init_latents" => "latents_init",
        "vae_input" => "vae.in",
        "image_raw" => "vae.out",
        "noise_nchw" | "timesteps" | "sigmas" | "image_u8" => name,
        other => panic!("the demo's golden file has an unknown tensor {other}"),
    }
}

/// The tensors of a safetensors file; those of bfloat16 are of other computations and left out.
pub fn tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors = Tensors::new();
    for (name, view) in file.tensors() {
        let data = view.data();
        let tensor = match view.dtype() {
            // Of complex numbers real and imaginary parts by turns.
            Dtype::F32 | Dtype::C64 => Tensor::Floats(elements(data, f32::from_le_bytes).collect()),
            Dtype::I64 => Tensor::Ids(elements(data, i64::from_le_bytes).collect()),
            Dtype::I32 => Tensor::Ids(elements(data, i32::from_le_bytes).map(i64::from).collect()),
            Dtype::U8 => Tensor::Levels(data.to_vec()),
            Dtype::BF16 => continue,
            other => panic!("{name} has the unexpected type {other:?}"),
        };
        tensors.insert(name, tensor);
    }
    tensors
}

fn elements<const N: usize, T>(data: &[u8], of: fn([u8; N]) -> T) -> impl Iterator<Item = T> {
    data.as_chunks().0.iter().map(move |&bytes| of(bytes))
}

fn read(name: &str) -> (Value, Tensors) {
    let path = fixture("golden").join(name);
    (json(&path.with_extension("json")), tensors(&path.with_extension("safetensors")))
}

/// A JSON document.
pub fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a golden file");
    serde_json::from_str(&text).expect("JSON")
}

/// The tensors whose names begin with a prefix, without it; without those of single modules.
pub fn below(tensors: &Tensors, prefix: &str) -> Tensors {
    let named = tensors
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone())));
    named.filter(|(name, _)| !name.starts_with("dbg.")).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn whole(value: &Value) -> u64 {
    value.as_u64().expect("a whole number")
}
