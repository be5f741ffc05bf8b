//! The same model from single files: all parts in one, as Stability publishes it, the transformer
//! in GGUF, and parts in files of their own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

use super::golden::{Case, cases};
use crate::parity::compare::{TEXT, deviation};
use crate::support::{Home, fixture, gguf};

const MODEL: &str = "sd35_medium";
const SINGLE: &str = "single/sd35_medium_incl_clips_t5.safetensors";

/// A path under `tests/fixtures`.
fn file(name: &str) -> String {
    fixture(name).display().to_string()
}

/// A tensor of a file: type, shape, bytes.
type Stored = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn read(path: &Path) -> Stored {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let own = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    file.tensors().into_iter().map(own).collect()
}

fn write(path: &Path, tensors: &Stored) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a whole tensor"))
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}

#[test]
fn one_file_of_all_parts_matches_in_every_tensor() {
    let home = Home::new();
    let (model, single) = (file(MODEL), file(SINGLE));
    // What a tiny model's shapes do not say, its directory does.
    let source = [
        &model[..],
        "--diffusion-model",
        &single,
        "--clip-l",
        &single,
        "--clip-g",
        &single,
        "--t5xxl",
        &single,
        "--vae",
        &single,
    ];
    for case in cases(MODEL) {
        let (_, dumped) = case.run(&home, &source, &["--host", "virtual-1x64m", "--exact-matmul"]);
        case.compare("one file of all parts", &dumped);
    }
}

#[test]
fn one_file_of_all_parts_is_known_for_what_it_is() {
    let home = Home::new();
    let described = home.run(&["inspect", &file(SINGLE), "--json"]);
    let described = described.json();
    assert_eq!(described["family"], "sd3");
    let gives = described["files"][0]["gives"].as_array().expect("parts");
    let gives: Vec<&str> = gives.iter().filter_map(|part| part.as_str()).collect();
    assert_eq!(gives, ["clip_l", "clip_g", "t5", "dit", "vae"]);
    // Its blocks tell that it is 3.5-medium.
    assert_eq!(described["defaults"]["steps"], 40);
    assert_eq!(described["defaults"]["guidance_scale"], 4.5);
    let lacks = described["lacks"].to_string();
    assert!(lacks.contains("T5's tokenizer") && lacks.contains("tokenizer_3"), "{lacks}");
}

#[test]
fn parts_in_files_of_their_own_give_the_directorys_picture() {
    let (home, case) = (Home::new(), cases(MODEL).remove(0));
    let model = file(MODEL);
    let host = ["--host", "virtual-1x64m"];
    let (_, expected) = case.run(&home, &[&model], &host);
    let part = |name: &str| file(&format!("{MODEL}/{name}"));
    let [l, g, t5] = ["text_encoder", "text_encoder_2", "text_encoder_3"]
        .map(|folder| part(&format!("{folder}/model.safetensors")));
    let [dit, vae] = ["transformer", "vae"]
        .map(|folder| part(&format!("{folder}/diffusion_pytorch_model.safetensors")));
    let source = [
        &model[..],
        "--diffusion-model",
        &dit,
        "--clip-l",
        &l,
        "--clip-g",
        &g,
        "--t5xxl",
        &t5,
        "--vae",
        &vae,
    ];
    let (_, dumped) = case.run(&home, &source, &host);
    assert_eq!(dumped, expected);
}

/// The transformer's tensors in a GGUF file as city96's tools write it: vectors in f32, and no
/// first dimension that is 1 once the file was quantised.
fn in_gguf(tensors: &Stored, is_flat: bool) -> gguf::File {
    let architecture = gguf::key("general.architecture", gguf::TEXT, &gguf::text("sd3"));
    let mut written = gguf::File { keys: vec![architecture], ..gguf::File::new() };
    for (name, (dtype, shape, bytes)) in tensors {
        let Some(name) = name.strip_prefix("model.diffusion_model.") else { continue };
        assert_eq!(*dtype, Dtype::BF16);
        let mut sizes: Vec<u64> = shape.iter().rev().map(|&size| size as u64).collect();
        if is_flat && name == "pos_embed" {
            sizes.pop();
        }
        let wide = || bytes.as_chunks::<2>().0.iter().flat_map(|&[low, high]| [0, 0, low, high]);
        written = match shape.len() {
            1 => written.with(name, &sizes, 0, &wide().collect::<Vec<u8>>()),
            _ => written.with(name, &sizes, 30, bytes),
        };
    }
    written
}

fn directory_and_gguf(home: &Home, case: &Case, is_flat: bool) {
    let host = ["--host", "virtual-1x64m"];
    let model = case.directory();
    let (_, expected) = case.run(home, &[&model], &host);
    let path = home.path("sd3.gguf");
    fs::write(&path, in_gguf(&read(&fixture(SINGLE)), is_flat).bytes()).expect("a file");
    let path = path.display().to_string();
    let (_, dumped) = case.run(home, &[&model, "--diffusion-model", &path], &host);
    assert_eq!(dumped, expected, "flat: {is_flat}");
}

#[test]
fn a_transformer_from_gguf_gives_the_directorys_picture() {
    let (home, case) = (Home::new(), cases(MODEL).remove(0));
    directory_and_gguf(&home, &case, false);
    directory_and_gguf(&home, &case, true);
}

#[test]
fn a_clip_without_a_projection_gives_its_pooled_state() {
    let (home, case) = (Home::new(), cases(MODEL).remove(0));
    let mut clip = read(&fixture("sd35_medium/text_encoder/model.safetensors"));
    assert!(clip.remove("text_projection.weight").is_some());
    write(&home.path("clip_l.safetensors"), &clip);
    let source = [&case.directory()[..], "--clip-l", "clip_l.safetensors"];
    let (_, dumped) = case.run(&home, &source, &["--host", "virtual-1x64m", "--exact-matmul"]);
    let ids = dumped["text_encoder.c.input_ids"].ids();
    let end = ids.iter().position(|&id| id == 2001).expect("an end");
    let states = dumped["text_encoder.c.last_hidden_state"].floats();
    assert_eq!(dumped["text_encoder.c.text_embeds"].floats(), &states[end * 32..(end + 1) * 32]);
    let golden = case.tensors["text_encoder.c.hidden_states.m2"].floats();
    assert!(deviation(dumped["text_encoder.c.hidden_states.m2"].floats(), golden) <= TEXT);
}
