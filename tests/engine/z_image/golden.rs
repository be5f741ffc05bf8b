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

/// All cases of the reference model.
pub fn cases() -> Vec<Case> {
    let folder = fixture("golden");
    let settings = json(&folder.join("zimage_turbo.json"));
    let stored = tensors(&folder.join("zimage_turbo.safetensors"));
    let mut cases: Vec<Case> = Vec::new();
    for entry in settings["cases"].as_array().expect("cases") {
        let name = entry["name"].as_str().expect("a name").to_owned();
        let mut tensors = below(&stored, &format!("{name}/"));
        if let Some(from) = entry["text_from"].as_str() {
            let earlier = cases.iter().find(|case| case.name == from).expect("an earlier case");
            let text = earlier.tensors.iter().filter(|(name, _)| name.starts_with("text_encoder."));
            tensors.extend(text.map(|(name, tensor)| (name.clone(), tensor.clone())));
        }
        cases.push(Case { name, call: entry["call"].clone(), tensors });
    }
    assert_eq!(cases.len(), 6);
    cases
}

/// The same cases with what another file has of them, as a model of other parts computed it.
pub fn cases_of(variant: &str) -> Vec<Case> {
    let stored = tensors(&fixture("golden").join(format!("zimage_turbo.{variant}.safetensors")));
    let of = |case: Case| Case { tensors: below(&stored, &format!("{}/", case.name)), ..case };
    cases().into_iter().map(of).filter(|case| !case.tensors.is_empty()).collect()
}

impl Case {
    fn number(&self, name: &str) -> u64 {
        self.call[name].as_u64().unwrap_or_else(|| panic!("{name} of {}", self.name))
    }

    /// What its call says of guidance: classifier-free guidance, counted from 0.
    pub fn guidance(&self) -> f64 {
        self.call["guidance_scale"].as_f64().expect("a scale")
    }

    /// Tokens of a prompt that are its own, `c` or `u`.
    fn length(&self, prompt: &str) -> Option<usize> {
        match self.tensors.get(&format!("text_encoder.{prompt}.attention_mask"))? {
            Tensor::Levels(mask) => Some(mask.iter().filter(|&&known| known != 0).count()),
            other => panic!("{other:?} is no mask"),
        }
    }

    /// The arguments of a run of it, from golden noise.
    pub fn arguments(&self, home: &Home) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: &dyn ToString| {
            arguments.extend([format!("--{name}"), value.to_string()]);
        };
        option("prompt", &self.call["prompt"].as_str().expect("a prompt"));
        option("width", &self.number("width"));
        option("height", &self.number("height"));
        option("steps", &self.number("num_inference_steps"));
        option("max-sequence-length", &self.number("max_sequence_length"));
        option("guidance-scale", &self.guidance());
        if let Some(negative) = self.call["negative_prompt"].as_str() {
            option("negative-prompt", &negative);
        }
        option("init-latents", &self.noise(home));
        if self.call["cfg_normalization"].as_bool() == Some(true) {
            arguments.push("--cfg-normalization".to_owned());
        }
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
        for (name, golden) in &self.tensors {
            let what = format!("{what}: {}/{name}", self.name);
            // Inputs are compared as outputs; of the text encoder's other states nothing is taken.
            let is_other = name.contains(".in.")
                || name.ends_with("attention_mask")
                || name.ends_with("last_hidden_state")
                || name == "noise_nchw";
            if is_other {
                continue;
            }
            let Some(got) = dumped.get(name) else { panic!("{what} was not dumped") };
            compared += 1;
            match (got, golden) {
                (Tensor::Ids(got), Tensor::Ids(golden)) => assert_eq!(got, golden, "{what}"),
                (Tensor::Levels(got), Tensor::Levels(golden)) => {
                    assert_same_picture(&what, got, golden)
                }
                (Tensor::Floats(got), Tensor::Floats(golden)) => {
                    // Of a padded sequence only what is not padding is computed.
                    let golden = &golden[..got.len().min(golden.len())];
                    let off = deviation(got, golden);
                    let allowed = tolerance(name);
                    assert!(off <= allowed, "{what} is {off:.1e} off, {allowed:.0e} is allowed");
                }
                _ => panic!("{what}: {got:?} is of another type than {golden:?}"),
            }
        }
        assert!(compared >= 4, "{what}: {compared} tensors compared");
        for (prompt, place) in [("c", 0), ("u", 1)] {
            // What the DiT is given is what the text encoder gives of the text.
            if let Some(golden) = self.tensors.get(&format!("transformer.call0.in.arg2.{place}")) {
                let name = format!("text_encoder.{prompt}.hidden_states.m2");
                let off = deviation(dumped[&name].floats(), golden.floats());
                assert!(off <= TEXT, "{what}: {}/{name} is {off:.1e} off", self.name);
            }
            let Some(length) = self.length(prompt) else { continue };
            let name = format!("text_encoder.{prompt}.hidden_states.m2");
            let width =
                self.tensors[&name].floats().len() / self.number("max_sequence_length") as usize;
            assert_eq!(dumped[&name].floats().len(), length * width, "{what}: {name}");
        }
    }

    /// The root mean square of the difference of each tensor of activations over that of its golden
    /// values: the largest of them, with its name.
    pub fn mean_deviation(&self, dumped: &Tensors) -> (f64, String) {
        let is_compared = |name: &&String| !name.contains(".in.") && dumped.contains_key(*name);
        let names = self.tensors.keys().filter(is_compared);
        let off = names.filter_map(|name| match (&dumped[name], &self.tensors[name]) {
            (Tensor::Floats(got), Tensor::Floats(golden)) => {
                let golden = &golden[..got.len().min(golden.len())];
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
        name if name.starts_with("text_encoder") => TEXT,
        name if name.starts_with("transformer.call0.out") => DENOISER,
        _ => LATENTS,
    }
}
