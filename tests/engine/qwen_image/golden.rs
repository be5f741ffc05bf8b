//! The golden cases of the reference model, and a run of one by the real program.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::parity::compare::{
    DENOISER, LATENTS, LEVELS, PICTURE, TEXT, assert_same_picture, deviation, mean_deviation,
};
use crate::parity::golden::{Tensor, Tensors, below, json, tensors};
use crate::support::{Home, fixture};

/// One generation.
pub struct Case {
    pub name: String,
    /// The arguments of the pipeline's call.
    pub call: Value,
    pub tensors: Tensors,
}

/// All golden tensors of the reference model.
pub fn stored() -> Tensors {
    tensors(&fixture("golden").join("qwen_image.safetensors"))
}

/// All cases of the reference model.
pub fn cases() -> Vec<Case> {
    let settings = json(&fixture("golden").join("qwen_image.json"));
    let stored = stored();
    let mut cases: Vec<Case> = Vec::new();
    for entry in settings["cases"].as_array().expect("cases") {
        let name = entry["name"].as_str().expect("a name").to_owned();
        let mut tensors = below(&stored, &format!("{name}/"));
        if let Some(from) = entry["text_from"].as_str() {
            let earlier = cases.iter().find(|case| case.name == from).expect("an earlier case");
            let text = earlier.tensors.iter().filter(|(name, _)| {
                name.starts_with("text_encoder.c") || (is_guided(entry) && name.contains("encoder"))
            });
            tensors.extend(text.map(|(name, tensor)| (name.clone(), tensor.clone())));
        }
        cases.push(Case { name, call: entry["call"].clone(), tensors });
    }
    assert_eq!(cases.len(), 5);
    cases
}

fn is_guided(entry: &Value) -> bool {
    entry["call"]["true_cfg_scale"].as_f64() > Some(1.0)
}

/// The same cases with what another file has of them, as a model of other parts computed it.
pub fn cases_of(variant: &str) -> Vec<Case> {
    let stored = tensors(&fixture("golden").join(format!("qwen_image.{variant}.safetensors")));
    let of = |case: Case| Case { tensors: below(&stored, &format!("{}/", case.name)), ..case };
    cases().into_iter().map(of).filter(|case| !case.tensors.is_empty()).collect()
}

impl Case {
    /// A count of its call.
    pub fn number(&self, name: &str) -> u64 {
        self.call[name].as_u64().unwrap_or_else(|| panic!("{name} of {}", self.name))
    }

    /// Its guidance; 1 is none.
    pub fn guidance(&self) -> f64 {
        self.call["true_cfg_scale"].as_f64().expect("a scale")
    }

    /// The arguments of a run of it, from golden noise.
    pub fn arguments(&self, home: &Home) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: &dyn ToString| {
            arguments.extend([format!("--{name}"), value.to_string()]);
        };
        let text = |name: &str| self.call[name].as_str().expect("a text").to_owned();
        option("prompt", &text("prompt"));
        option("width", &self.number("width"));
        option("height", &self.number("height"));
        option("steps", &self.number("num_inference_steps"));
        option("max-sequence-length", &self.number("max_sequence_length"));
        option("true-cfg-scale", &self.guidance());
        if self.guidance() > 1.0 {
            option("negative-prompt", &text("negative_prompt"));
        }
        option("init-latents", &self.noise(home));
        arguments
    }

    /// Writes the golden noise to a file of its own, and returns its path.
    fn noise(&self, home: &Home) -> String {
        let values = self.tensors["noise_nchw"].floats();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let [height, width] = ["height", "width"].map(|side| self.number(side) as usize / 8);
        let shape = vec![1, values.len() / height / width, height, width];
        let view = TensorView::new(Dtype::F32, shape, &bytes).expect("a shape that fits");
        let path = home.path("noise.safetensors");
        let file = safetensors::serialize([("noise_nchw", view)], None).expect("one tensor");
        std::fs::write(&path, file).expect("the home can be written");
        path.display().to_string()
    }

    /// Runs it on a model, and returns what was said and what was dumped.
    pub fn run(&self, home: &Home, model: &[&str], more: &[&str]) -> (Value, Tensors) {
        let dump = home.path("dump.safetensors");
        let own = self.arguments(home);
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
        for (name, golden) in self.tensors.iter().filter(|(name, _)| is_made(name)) {
            let what = format!("{what}: {}/{name}", self.name);
            let Some(got) = dumped.get(name) else { panic!("{what} was not dumped") };
            compared += 1;
            match (got, golden) {
                (Tensor::Ids(got), Tensor::Ids(golden)) => assert_eq!(got, golden, "{what}"),
                (Tensor::Levels(got), Tensor::Levels(golden)) => {
                    assert_same_picture(&what, got, golden)
                }
                (Tensor::Floats(got), Tensor::Floats(golden)) => {
                    let off = deviation(got, golden);
                    let allowed = tolerance(name);
                    assert!(off <= allowed, "{what} is {off:.1e} off, {allowed:.0e} is allowed");
                }
                _ => panic!("{what}: {got:?} is of another type than {golden:?}"),
            }
        }
        assert!(compared >= 6, "{what}: {compared} tensors compared");
    }

    /// The root mean square of the difference of each tensor of activations over that of its golden
    /// values: the largest of them, with its name.
    pub fn mean_deviation(&self, dumped: &Tensors) -> (f64, String) {
        let names = self.tensors.keys().filter(|name| is_made(name));
        let off = names.filter_map(|name| match (&dumped[name], &self.tensors[name]) {
            (Tensor::Floats(got), Tensor::Floats(golden)) => {
                Some((mean_deviation(got, golden), name.clone()))
            }
            _ => None,
        });
        off.max_by(|a, b| a.0.total_cmp(&b.0)).expect("some tensors are compared")
    }
}

/// Whether a run makes and dumps a golden tensor: neither what is inside a component, nor the text
/// encoder's states before the last norm, nor what is given.
fn is_made(name: &str) -> bool {
    let others = ["dbg.", "attention_mask", "hidden_states.m2", "noise_nchw", "in.timestep"];
    !others.iter().any(|other| name.contains(other))
}

fn tolerance(name: &str) -> f64 {
    match name {
        "sigmas" | "timesteps" => LEVELS,
        "vae.out" => PICTURE,
        name if name.ends_with("encoder_hidden_states") => TEXT,
        "transformer.call0.out" => DENOISER,
        _ => LATENTS,
    }
}
