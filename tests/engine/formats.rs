//! The ways in which weights are stored, through the real program: a picture from stored blocks, or
//! from scaled eight-bit floats, is to the byte that of the same numbers as f32, wherever they are
//! held.
//!
//! Only types without an integer product of their own: for those the sums differ.

use std::path::Path;

use crate::support::damaged::copy;
use crate::support::wide::{SplitMix64, Wide};
use crate::support::{Home, fixture, pixels};
use executor::weights::{Dtype, WeightFiles};
use protocol::StorageType;
use safetensors::tensor::{Dtype as Theirs, TensorView};

const DIT: &str = "transformer/diffusion_pytorch_model.safetensors";

const DEVICE: &str = "[[device]]\nkind = \"virtual\"\ntotal = \"256MiB\"\nlink = \"8GiB/s\"\n";

/// Types of blocks that are multiplied as f32. Each block begins with its factor, an f16.
const EXPANDED: [StorageType; 8] = [
    StorageType::IQ1S,
    StorageType::IQ2XXS,
    StorageType::IQ2XS,
    StorageType::IQ2S,
    StorageType::IQ3XXS,
    StorageType::IQ3S,
    StorageType::IQ4NL,
    StorageType::IQ4XS,
];

/// Random blocks whose numbers are small.
fn blocks(storage: StorageType, elements: u64, random: &mut SplitMix64) -> Vec<u8> {
    /// 2⁻¹⁴ and 2⁻¹³ as f16: numbers of up to 127 steps, some with factors of up to 63, stay within
    /// weights' reach.
    const SMALL: [u8; 2] = [0x04, 0x08];
    let mut bytes: Vec<u8> = Vec::new();
    bytes.resize_with(storage.bytes(elements).as_usize(), || random.below(256) as u8);
    for block in bytes.chunks_exact_mut(storage.block_bytes() as usize) {
        block[..2].copy_from_slice(&[0, SMALL[random.below(2)]]);
    }
    bytes
}

/// All tensors of a file as f32, in a file beside it of the same names.
fn write_expanded(from: &Path, to: &Path) {
    let files = WeightFiles::open_file(from).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = files
        .tensors()
        .filter(|info| !info.name.ends_with(".scale_weight"))
        .map(|info| {
            let tensor = files.require(info.name, info.shape).unwrap();
            let values = tensor.view(&files).to_f32();
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            (info.name.to_owned(), info.shape.to_vec(), bytes)
        })
        .collect();
    write(to, Theirs::F32, &tensors);
}

fn write(to: &Path, dtype: Theirs, tensors: &[(String, Vec<usize>, Vec<u8>)]) {
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, to).unwrap();
}

/// A DiT as GGUF, its matrices in all the types by turns, the rest in f32, and its twin as f32.
fn write_blocks(home: &Home) {
    write_blocks_of(home, Wide::f32());
}

fn write_blocks_of(home: &Home, wide: Wide) {
    for model in ["stored", "expanded"] {
        wide.write(&home.path(model)).expect("a file system with room");
    }
    let files = WeightFiles::open_file(&home.path("stored").join(DIT)).unwrap();
    let mut random = SplitMix64::new(5);
    let mut types = EXPANDED.iter().cycle();
    let mut file = crate::support::gguf::File::new();
    for info in files.tensors() {
        let dimensions: Vec<u64> = info.shape.iter().rev().map(|&size| size as u64).collect();
        let whole = |storage: &StorageType| dimensions[0].is_multiple_of(storage.block_elements());
        let turn = if info.shape.len() == 2 { types.next() } else { None };
        file = match turn.filter(|storage| whole(storage)) {
            Some(&storage) => {
                let Dtype::Ggml(of) = Dtype::of_storage(storage) else { unreachable!() };
                let bytes = blocks(storage, dimensions.iter().product(), &mut random);
                file.with(info.name, &dimensions, of.number(), &bytes)
            }
            None => file.with(info.name, &dimensions, 0, files.bytes(&info)),
        };
    }
    let stored = home.path("stored").join(DIT).with_extension("gguf");
    std::fs::write(&stored, file.bytes()).unwrap();
    let opened = WeightFiles::open_file(&stored).unwrap();
    for storage in EXPANDED {
        let of = |info: &executor::weights::TensorInfo<'_>| info.dtype.storage() == Some(storage);
        assert!(opened.tensors().filter(of).count() > 1, "{storage} is hardly there");
    }
    drop((files, opened));
    std::fs::remove_file(home.path("stored").join(DIT)).unwrap();
    write_expanded(&stored, &home.path("expanded").join(DIT));
}

fn paint(home: &Home, model: &str, more: &[&str]) -> Vec<u8> {
    let arguments = ["generate", model, "--host", "devices.toml", "--prompt", "a red circle"];
    let shape = ["--width", "64", "--height", "48", "--steps", "2", "--seed", "7", "--json"];
    let output = ["--max-sequence-length", "32", "--output", "picture.png"];
    let document = home.json(&[&arguments[..], &shape, &output, more].concat());
    for device in document["usage"]["devices"].as_array().unwrap() {
        for phase in device["phases"].as_array().unwrap() {
            let (planned, used) = (&phase["predicted_peak_bytes"], &phase["measured_peak_bytes"]);
            assert_eq!(planned, used, "{more:?}: {device}");
        }
    }
    pixels(&home.path("picture.png"))
}

fn with_devices(home: &Home) {
    std::fs::write(home.path("devices.toml"), format!("name = \"two\"\n{DEVICE}{DEVICE}")).unwrap();
}

#[test]
fn blocks_paint_as_their_numbers_do_wherever_they_are_held() {
    let home = Home::new();
    with_devices(&home);
    write_blocks(&home);
    let expected = paint(&home, "expanded", &["--backend", "all=cpu"]);
    assert!(expected.iter().any(|&level| level != expected[0]), "a picture of something");
    for held in [
        &["--backend", "all=cpu"][..],
        &["--backend", "all=virtual0"],
        &["--backend", "all=virtual0", "--params-backend", "dit=cpu,t5=cpu"],
        &["--backend", "all=virtual0,dit=virtual0&virtual1"],
        &["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "row"],
    ] {
        assert!(paint(&home, "stored", held) == expected, "{held:?}: another picture");
    }
}

#[test]
fn heads_in_whole_blocks_paint_as_their_numbers_do() {
    let home = Home::new();
    with_devices(&home);
    // Two blocks of 256 to a row, of four heads each.
    write_blocks_of(&home, Wide { heads: 8, ..Wide::f32() });
    let split =
        ["--backend", "all=virtual0,dit=virtual0:1&virtual1:1", "--split-mode", "dit=tensor"];
    let expected = paint(&home, "expanded", &split);
    assert!(expected.iter().any(|&level| level != expected[0]), "a picture of something");
    for held in ["dit=device", "dit=cpu", "dit=locked"] {
        let more = [&split[..], &["--params-backend", held]].concat();
        assert!(paint(&home, "stored", &more) == expected, "{held}: another picture");
    }
}

#[test]
fn loras_are_computed_beside_weights_that_take_no_changes() {
    let home = Home::new();
    with_devices(&home);
    write_blocks(&home);
    let name = "transformer.transformer_blocks.0.attn.to_v";
    let mut random = SplitMix64::new(9);
    let mut factor = |half: &str, shape: [usize; 2]| {
        let mut value = || (random.below(2001) as f32 - 1000.0) / 1000.0;
        let bytes = (0..shape[0] * shape[1]).flat_map(|_| value().to_le_bytes()).collect();
        (format!("{name}.{half}.weight"), shape.to_vec(), bytes)
    };
    let factors = [factor("lora_A", [4, 256]), factor("lora_B", [256, 4])];
    write(&home.path("style.safetensors"), Theirs::F32, &factors);
    let on_host = ["--backend", "all=cpu", "--lora", "style.safetensors"];
    let plain = paint(&home, "stored", &on_host[..2]);
    let stored = paint(&home, "stored", &on_host);
    assert!(stored != plain, "LoRA changes the picture");
    // Added to f32 numbers and beside them: another order of sums, and no other picture.
    let changed = paint(&home, "expanded", &on_host);
    let far = stored.iter().zip(&changed).filter(|(a, b)| a.abs_diff(**b) > 8).count();
    assert!(far * 100 < stored.len(), "{far} values are elsewhere");
}

#[test]
fn scaled_eight_bit_floats_paint_as_their_numbers_do() {
    /// Bits of E4M3 or E5M2 by turns, and for matrices a scale that makes them as large as weights
    /// are.
    fn write_eight_bits(path: &Path, theirs: Theirs, random: &mut SplitMix64) {
        let files = WeightFiles::open_file(path).unwrap();
        let mut tensors = Vec::new();
        let mut scales = Vec::new();
        for info in files.tensors() {
            let values = files.require(info.name, info.shape).unwrap().view(&files).to_f32();
            let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            // 1.5 times a power of two from 2⁻² to 2, of the number's sign: no rounding is wanted,
            // only weights.
            let eighth = |value: &f32| {
                let exponent = random.below(4) as u8;
                let bits = match theirs {
                    Theirs::F8_E4M3 => (5 + exponent) << 3 | 4,
                    _ => (13 + exponent) << 2 | 2,
                };
                if value.is_sign_negative() { bits | 0x80 } else { bits }
            };
            let bytes: Vec<u8> = values.iter().map(eighth).collect();
            tensors.push((info.name.to_owned(), info.shape.to_vec(), bytes));
            if let Some(stem) = info.name.strip_suffix(".weight") {
                let scale = (largest / 3.0).to_le_bytes().to_vec();
                scales.push((format!("{stem}.scale_weight"), scale));
            }
        }
        drop(files);
        let eight = tensors.iter().map(|(name, shape, bytes)| {
            (name, TensorView::new(theirs, shape.clone(), bytes).unwrap())
        });
        let single = scales
            .iter()
            .map(|(name, bytes)| (name, TensorView::new(Theirs::F32, vec![], bytes).unwrap()));
        safetensors::serialize_to_file(eight.chain(single), None, path).unwrap();
    }

    let home = Home::new();
    with_devices(&home);
    let parts = [
        (DIT, Theirs::F8_E4M3),
        ("vae/diffusion_pytorch_model.safetensors", Theirs::F8_E5M2),
        ("text_encoder/model.safetensors", Theirs::F8_E4M3),
        ("text_encoder_2/model.safetensors", Theirs::F8_E5M2),
    ];
    for model in ["stored", "expanded"] {
        copy(&fixture("flux_schnell"), &home.path(model));
    }
    let mut random = SplitMix64::new(3);
    for (file, theirs) in parts {
        let stored = home.path("stored").join(file);
        write_eight_bits(&stored, theirs, &mut random);
        write_expanded(&stored, &home.path("expanded").join(file));
    }
    let expected = paint(&home, "expanded", &["--backend", "all=cpu"]);
    assert!(expected.iter().any(|&level| level != expected[0]), "a picture of something");
    for held in ["all=cpu", "all=virtual0"] {
        let painted = paint(&home, "stored", &["--backend", held, "--exact-matmul"]);
        assert!(painted == expected, "{held}: another picture");
    }
}
