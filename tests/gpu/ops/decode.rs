//! Stored weights as f32, to the bit: what the package `gguf` decodes, and what the host does.

use crate::support::place;
use executor::backend::cuda::ops::convert::decode;
use executor::weights::{WeightFiles, WeightView};
use protocol::StorageType;

use super::bench::{Bench, Random, Stored, assert_same};

/// Stored bytes and what they stand for, as tensors `T/bytes`, `T/dequant`, `T/rand_bytes`,
/// `T/rand_dequant`.
const BLOCKS: &str = "tests/fixtures/golden/quant_blocks.safetensors";

fn decoded(bench: &Bench, weight: &Stored) -> Vec<f32> {
    let elements = weight.shape.iter().product();
    let (_kept, at) = bench.stored(weight);
    let out = bench.room(elements);
    bench.run(&out, |on| decode(on, out.address(), at, elements))
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn golden_blocks() {
    let bench = Bench::new();
    let files = WeightFiles::open_file(&place::root().join(BLOCKS)).unwrap();
    let mut seen = 0;
    for name in files.names().filter(|name| name.ends_with("bytes")) {
        let (storage, _) = name.split_once('/').unwrap();
        let is = |known: &StorageType| known.name().to_uppercase() == storage;
        let storage = StorageType::ALL.into_iter().find(is).unwrap();
        let info = files.tensor(&name.replace("bytes", "dequant")).unwrap();
        let expected = files.require(info.name, info.shape).unwrap().view(&files).to_f32();
        let bytes = files.bytes(&files.tensor(name).unwrap()).to_vec();
        for scale in [1.0, 0.3] {
            let shape = vec![expected.len()];
            let weight = Stored { storage, shape, bytes: bytes.clone(), scale };
            let scaled: Vec<f32> = expected.iter().map(|x| x * scale).collect();
            assert_same(&decoded(&bench, &weight), &scaled, name);
        }
        seen += 1;
    }
    assert!(seen >= StorageType::ALL.len() - 1, "only {seen} kinds of blocks");
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn any_bytes() {
    let bench = Bench::new();
    let mut random = Random::new(10);
    for storage in StorageType::ALL {
        // Factors that are infinite or no number too; of types without blocks, a last group that is
        // not whole.
        let elements = if storage.is_blocks() { 256 * 90 } else { 70_005 };
        let length = storage.bytes(elements as u64).as_usize();
        let bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        let weight = Stored { storage, shape: vec![elements], bytes, scale: 1.0 };
        let view: WeightView<'_> = weight.view();
        assert_same(&decoded(&bench, &weight), &view.to_f32(), storage.name());
    }
}
