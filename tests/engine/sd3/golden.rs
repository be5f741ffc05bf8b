//! The golden cases of both reference models, and a run of one by the real program.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::parity::compare::{
    DENOISER, LATENTS, LEVELS, PICTURE, TEXT, assert_same_picture, deviation, mean_deviation,
};
use crate::parity::golden::{Tensor, Tensors, below, json, tensors};
use crate::support::{Home, fixture};

/// The reference models: 3 has neither norms of heads nor a second attention, 3.5 has both.
pub const MODELS: [&str; 2] = ["sd3_medium", "sd35_medium"];

/// One generation.
pub struct Case {
    /// Its model's name.
    pub model: &'static str,
    pub name: String,
    /// The arguments of the pipeline's call.
    pub call: Value,
    /// The seed of its noise.
    pub seed: u64,
    pub tensors: Tensors,
}

/// All cases of a reference model.
pub fn cases(model: &'static str) -> Vec<Case> {
    let folder = fixture("golden");
    let settings = json(&folder.join(format!("{model}.json")));
    let stored = tensors(&folder.join(format!("{model}.safetensors")));
    let mut cases: Vec<Case> = Vec::new();
    for entry in settings["cases"].as_array().expect("cases") {
        let name = entry["name"].as_str().expect("a name").to_owned();
        let mut tensors = below(&stored, &format!("{name}/"));
        if let Some(from) = entry["text_from"].as_str() {
            let earlier = cases.iter().find(|case| case.name == from).expect("an earlier case");
            let is_text = |name: &str| {
                name.starts_with("text_encoder")
                    || name.ends_with(".in.encoder_hidden_states")
                    || name.ends_with(".in.pooled_projections")
            };
            let text = earlier.tensors.iter().filter(|(name, _)| is_text(name));
            tensors.extend(text.map(|(name, tensor)| (name.clone(), tensor.clone())));
        }
        let seed = entry["noise_seed"].as_u64().expect("a seed");
        cases.push(Case { model, name, call: entry["call"].clone(), seed, tensors });
    }
    assert!(cases.len() >= 4);
    cases
}

/// The VAE's own golden tensors.
pub fn of_vae(model: &str) -> Tensors {
    below(&tensors(&fixture("golden").join(format!("{model}.safetensors"))), "vae/")
}

impl Case {
    /// The directory of its model.
    pub fn directory(&self) -> String {
        fixture(self.model).display().to_string()
    }

    pub fn number(&self, name: &str) -> u64 {
        self.call[name].as_u64().unwrap_or_else(|| panic!("{name} of {}", self.name))
    }

    /// What its call says of guidance: classifier-free guidance, counted from 1.
    pub fn guidance(&self) -> f64 {
        self.call["guidance_scale"].as_f64().expect("a scale")
    }

    /// Height and width of its latents.
    pub fn cells(&self) -> [usize; 2] {
        ["height", "width"].map(|side| self.number(side) as usize / 8)
    }

    /// The arguments of a run of it, from golden noise.
    pub fn arguments(&self, home: &Home) -> Vec<String> {
        let mut arguments = self.prompt_and_shape();
        arguments.extend(["--init-latents".to_owned(), self.noise(home)]);
        arguments
    }

    /// The same without a start.
    pub fn prompt_and_shape(&self) -> Vec<String> {
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
        if self.guidance() > 1.0 {
            option("negative-prompt", &self.call["negative_prompt"].as_str().expect("a prompt"));
        }
        arguments
    }

    /// Writes the golden noise to a file of its own, and returns its path.
    fn noise(&self, home: &Home) -> String {
        let values = self.tensors["noise_nchw"].floats();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let [height, width] = self.cells();
        let shape = vec![1, values.len() / height / width, height, width];
        let view = TensorView::new(Dtype::F32, shape, &bytes).expect("a shape that fits");
        let path = home.path("noise.safetensors");
        let file = safetensors::serialize([("noise_nchw", view)], None).expect("one tensor");
        std::fs::write(&path, file).expect("the home can be written");
        path.display().to_string()
    }

    /// Runs it on a model, and returns what was said and what was dumped.
    pub fn run(&self, home: &Home, model: &[&str], more: &[&str]) -> (Value, Tensors) {
        self.run_with(home, model, self.arguments(home), more)
    }

    /// The same with other arguments than from golden noise.
    pub fn run_with(
        &self,
        home: &Home,
        model: &[&str],
        own: Vec<String>,
        more: &[&str],
    ) -> (Value, Tensors) {
        let dump = home.path("dump.safetensors");
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
        for (name, golden) in self.compared() {
            let what = format!("{what}: {}/{}/{name}", self.model, self.name);
            let Some(got) = dumped.get(name) else { panic!("{what} was not dumped") };
            compared += 1;
            match (got, golden) {
                (Tensor::Ids(got), Tensor::Ids(golden)) => assert_eq!(got, golden, "{what}"),
                (Tensor::Levels(got), Tensor::Levels(golden)) => {
                    assert_same_picture(&what, got, golden)
                }
                (Tensor::Floats(got), Tensor::Floats(golden)) => {
                    let (off, allowed) = (deviation(got, golden), tolerance(name));
                    assert!(off <= allowed, "{what} is {off:.1e} off, {allowed:.0e} is allowed");
                }
                _ => panic!("{what}: {got:?} is of another type than {golden:?}"),
            }
        }
        assert!(compared >= 17, "{what}: {compared} tensors compared");
    }

    /// The golden tensors that a run dumps: all but the outcomes of single modules, and what it is
    /// given.
    fn compared(&self) -> impl Iterator<Item = (&String, &Tensor)> {
        self.tensors.iter().filter(|(name, _)| {
            let is_other =
                name.starts_with("dbg.") || name.ends_with(".in.timestep") || *name == "noise_nchw";
            !is_other
        })
    }

    /// The root mean square of the difference of each tensor of activations over that of its golden
    /// values: the largest of them, with its name.
    pub fn mean_deviation(&self, dumped: &Tensors) -> (f64, String) {
        let off = self.compared().filter_map(|(name, golden)| match (&dumped[name], golden) {
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
        name if name.starts_with("text_encoder") || name.contains(".in.") => TEXT,
        name if name.starts_with("transformer.call0.out") => DENOISER,
        _ => LATENTS,
    }
}
