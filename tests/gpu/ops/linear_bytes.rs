//! Linear layers that multiply bytes: near to what the host makes of the same bytes, whatever the
//! GPU, the tiles and the parts.

use executor::graph::{Activation, ElementType};
use protocol::{Bytes, StorageType};

use super::bench::{Bench, Random, assert_same};
use super::linear_case::Case;

/// Every type that becomes bytes.
const STORAGES: [StorageType; 12] = [
    StorageType::F8E4M3,
    StorageType::F8E5M2,
    StorageType::Q8_0,
    StorageType::Q4_0,
    StorageType::Q4_1,
    StorageType::Q5_0,
    StorageType::Q5_1,
    StorageType::Q2K,
    StorageType::Q3K,
    StorageType::Q4K,
    StorageType::Q5K,
    StorageType::Q6K,
];

#[test]
#[ignore = "needs a GPU or the simulator"]
fn every_type_and_odd_sizes() {
    let bench = Bench::with_bytes();
    let mut random = Random::new(91);
    for storage in STORAGES {
        let block = storage.block_elements().max(32) as usize;
        for (rows, depth, out_features) in [(9, block, 19), (65, 3 * block, 63), (70, block, 130)] {
            let case = Case::new(&mut random, storage, rows, &[depth], out_features, false);
            case.with_bias(&mut random, StorageType::F32).check(&bench);
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn inputs_side_by_side_of_either_element() {
    let bench = Bench::with_bytes();
    let mut random = Random::new(92);
    for (storage, features) in [
        (StorageType::Q8_0, &[8, 40, 16][..]),
        (StorageType::F8E4M3, &[8, 40, 16]),
        (StorageType::Q4K, &[136, 120]),
        (StorageType::Q6K, &[8, 8, 8, 232]),
    ] {
        let case = Case::new(&mut random, storage, 37, features, 21, false);
        let case = case.with_bias(&mut random, StorageType::F16);
        let case = case.ending(Activation::GeluTanh, [3, 4]);
        // What bf16 rounds are other rows than those which are bf16 already.
        let in_f32 = case.on_gpu(&bench);
        assert_same(&case.copy().of_bf16().on_gpu(&bench), &in_f32, &case.name());
        assert_same(&case.copy().joined().on_gpu(&bench), &in_f32, &case.name());
        case.copy().of_bf16().into(ElementType::BF16).check(&bench);
        case.check(&bench);
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn rows_and_parts_are_the_whole() {
    let bench = Bench::with_bytes();
    let mut random = Random::new(93);
    for storage in [StorageType::Q5_1, StorageType::Q6K, StorageType::F8E4M3] {
        let depth = storage.block_elements().max(64) as usize;
        let case = Case::new(&mut random, storage, 140, &[depth], 200, false);
        let case = case.with_bias(&mut random, StorageType::BF16).ending(Activation::Silu, [8, 0]);
        let whole = case.on_gpu(&bench);
        // Parts of 128 rows and 192 columns, the fewest that there are.
        let in_parts = case.copy().in_parts_of(Bytes(1)).on_gpu(&bench);
        assert_same(&in_parts, &whole, &case.name());
        let first = case.copy().first_rows(11).on_gpu(&bench);
        assert_same(&whole[..first.len()], &first, &case.name());
    }
}

/// Layers that fill a GPU take tiles of another size: to the bit the same.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn large_tiles() {
    let bench = Bench::with_bytes();
    let mut random = Random::new(94);
    for storage in [StorageType::Q8_0, StorageType::Q4_1, StorageType::Q6K] {
        let multiprocessors = bench.stream.gpu().multiprocessors as usize;
        let across = 96 * multiprocessors.div_ceil(2) + 33;
        let depth = storage.block_elements().max(96) as usize;
        let case = Case::new(&mut random, storage, 131, &[depth], across, false);
        let whole = case.on_gpu(&bench);
        let few = case.copy().first_rows(9);
        few.check(&bench);
        let first = few.on_gpu(&bench);
        assert_same(&whole[..first.len()], &first, &case.name());
    }
}

/// Rows that are zero, huge, tiny, or no numbers: others are as they were.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn rows_of_any_size() {
    let bench = Bench::with_bytes();
    let mut random = Random::new(95);
    for storage in [StorageType::Q8_0, StorageType::Q4K] {
        let case = Case::new(&mut random, storage, 24, &[256], 10, false);
        case.with_rows_times(&[0.0, 1e30, 1e-20, 1e-37]).check(&bench);
        let case = Case::new(&mut random, storage, 12, &[256], 10, false);
        let wrong = case.copy().with_rows_times(&[1.0, f32::INFINITY, f32::NAN]);
        let (right, wrong) = (case.on_gpu(&bench), wrong.on_gpu(&bench));
        for (row, (right, wrong)) in right.chunks(10).zip(wrong.chunks(10)).enumerate() {
            if row % 3 == 0 {
                assert_same(wrong, right, "a row beside those that are no numbers");
            } else {
                assert!(wrong.iter().all(|value| value.is_nan()), "{wrong:?}");
            }
        }
    }
}
