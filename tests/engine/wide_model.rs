//! The model that other tests split and stream: it is whole, large enough for that, and paints.

use std::path::Path;

use crate::support::wide::{Storage, Wide, Written};
use crate::support::{Home, pixels};
use serde_json::Value;

/// Both dimensions of a matrix that is split by rows.
const SPLIT_SIDE_MIN: u64 = 256;

/// Bytes of a model that is written for each of many runs.
const MODEL_BYTES_MAX: u64 = 30 << 20;

/// Levels that a picture must have to be no flat one.
const LEVELS_MIN: usize = 64;

/// A host without any device.
const HOST: &str = r#"
name = "host"
[host]
memory = "8GiB"
available = "4GiB"
"#;

struct Model {
    home: Home,
    written: Written,
}

impl Model {
    fn new(sizes: Wide) -> Model {
        let home = Home::new();
        let written = sizes.write(&home.path("model")).expect("a file system with room");
        std::fs::write(home.path("host.toml"), HOST).unwrap();
        Model { home, written }
    }

    fn inspect(&self) -> Value {
        self.home.json(&["inspect", "model", "--json"])
    }

    /// Pixels of a picture made on the host, by the weights' values.
    fn picture(&self) -> Vec<u8> {
        let arguments = ["generate", "model", "--prompt", "a red circle", "--host", "host.toml"];
        let shape = ["--width", "64", "--height", "48", "--steps", "2", "--seed", "7"];
        let more =
            ["--max-sequence-length", "32", "--output", "picture.png", "--json", "--exact-matmul"];
        self.home.json(&[&arguments[..], &shape, &more].concat());
        pixels(&self.home.path("picture.png"))
    }
}

fn bytes_under(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let bytes = |entry: std::fs::DirEntry| {
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() { bytes_under(&entry.path()) } else { metadata.len() }
    };
    entries.map(bytes).sum()
}

#[test]
fn it_is_whole_and_small() {
    for sizes in [Wide::bf16(), Wide::f32(), Wide::deep()] {
        let model = Model::new(sizes);
        let description = model.inspect();
        assert_eq!(description["problems"], Value::Array(Vec::new()), "{sizes:?}");
        for (name, bytes) in [("dit", model.written.dit_bytes), ("t5", model.written.t5_bytes)] {
            let components = description["components"].as_array().unwrap();
            let component = components.iter().find(|c| c["name"] == name).unwrap();
            assert_eq!(component["tensor_bytes"], bytes, "{sizes:?}, {name}");
            assert_eq!(component["unused_bytes"], 0, "{sizes:?}, {name}");
        }
        assert!(bytes_under(&model.home.path("model")) < MODEL_BYTES_MAX, "{sizes:?}");
    }
}

#[test]
fn its_blocks_have_matrices_to_split() {
    for sizes in [Wide::bf16(), Wide::f32()] {
        let model = Model::new(sizes);
        for (part, stem, blocks) in [
            ("transformer", "diffusion_pytorch_model", sizes.double_blocks + sizes.single_blocks),
            ("text_encoder_2", "model", sizes.t5_blocks),
        ] {
            let path = model.home.path("model").join(part).join(format!("{stem}.safetensors"));
            let data = std::fs::read(path).unwrap();
            let tensors = safetensors::SafeTensors::deserialize(&data).unwrap();
            let large = tensors.iter().filter(|(name, tensor)| {
                let in_block = name.contains("block");
                let matrix = tensor.shape().len() == 2;
                in_block
                    && matrix
                    && tensor.shape().iter().all(|&side| side as u64 >= SPLIT_SIDE_MIN)
            });
            assert!(large.count() >= 6 * blocks, "{sizes:?}, {part}");
        }
    }
}

#[test]
fn a_deep_one_is_many_times_its_largest_block() {
    let written = Model::new(Wide::deep()).written;
    assert!(written.dit_bytes > 20 * written.dit_block_bytes, "{written:?}");
}

#[test]
fn it_paints_what_only_its_weights_decide() {
    let bf16 = Wide { double_blocks: 1, single_blocks: 2, t5_blocks: 2, ..Wide::bf16() };
    let picture = Model::new(bf16).picture();
    let mut levels = picture.clone();
    levels.sort_unstable();
    levels.dedup();
    assert!(levels.len() >= LEVELS_MIN, "{} levels", levels.len());
    // The same weights in another storage type are the same model.
    let wider = Wide { storage: Storage::F32, ..bf16 };
    assert_eq!(wider, Wide::f32());
    assert!(Model::new(wider).picture() == picture, "the storage type changed the picture");
    let other = Model::new(Wide { seed: 2, ..bf16 }).picture();
    assert!(other != picture, "the seed did not change the picture");
}
