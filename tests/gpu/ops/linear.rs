//! Linear layers: every storage type, in f32 and on tensor cores, with few rows and many, in parts
//! and whole.

use executor::graph::Activation;
use protocol::StorageType;

use super::bench::{Bench, Random, assert_same};
use super::linear_case::Case;

/// A depth of each kind that a type can have: whole tiles, and what ends within one; odd where
/// there are no blocks.
fn depths(storage: StorageType) -> &'static [usize] {
    match storage.block_elements() {
        256 => &[256, 768],
        32 => &[32, 160],
        _ => &[64, 40, 77],
    }
}

fn check_every_storage(rows: &[usize], exact: bool) {
    let bench = Bench::new();
    let mut random = Random::new(20 + rows.len() as u64);
    for storage in StorageType::ALL {
        for &depth in depths(storage) {
            for &rows in rows {
                Case::new(&mut random, storage, rows, &[depth], 19, exact).check(&bench);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn few_rows_of_every_storage() {
    check_every_storage(&[1, 2, 8], false);
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn exact_products_of_every_storage() {
    check_every_storage(&[9, 70], true);
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn half_products_of_every_storage() {
    check_every_storage(&[9, 70], false);
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn sizes_around_those_of_tiles() {
    let bench = Bench::new();
    let mut random = Random::new(21);
    for storage in [StorageType::F16, StorageType::BF16, StorageType::Q8_0, StorageType::F32] {
        for (rows, out_features) in [(64, 64), (65, 63), (63, 65), (129, 1), (9, 130)] {
            let depth = if storage == StorageType::Q8_0 { 96 } else { 72 };
            Case::new(&mut random, storage, rows, &[depth], out_features, false).check(&bench);
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn blocks_that_run_over_the_ends_of_rows() {
    let bench = Bench::new();
    let mut random = Random::new(22);
    for (storage, depth) in
        [(StorageType::Q8_0, 36), (StorageType::Q4K, 24), (StorageType::Q6K, 20)]
    {
        for rows in [3, 11] {
            Case::new(&mut random, storage, rows, &[depth], 64, false).check(&bench);
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn inputs_side_by_side_biases_and_activations() {
    use Activation::{GeluErf, GeluTanh, None, QuickGelu, Silu};
    let bench = Bench::new();
    let mut random = Random::new(23);
    let biases = [StorageType::F32, StorageType::F16, StorageType::BF16];
    for (index, activation) in [None, Silu, GeluTanh, GeluErf, QuickGelu].into_iter().enumerate() {
        for (rows, exact) in [(5, false), (37, true), (37, false)] {
            for features in [&[20, 12][..], &[3, 7, 5], &[8, 4, 16, 36]] {
                for storage in [StorageType::F32, StorageType::BF16] {
                    let case = Case::new(&mut random, storage, rows, features, 21, exact);
                    let case = case.with_bias(&mut random, biases[index % 3]);
                    Case { activation, around: [3, index], ..case }.check(&bench);
                }
            }
        }
    }
}

/// Storage types of each kernel on tensor cores and in f32, with a depth.
const KINDS: [(StorageType, usize); 6] = [
    (StorageType::F32, 44),
    (StorageType::F16, 48),
    (StorageType::BF16, 80),
    (StorageType::F8E4M3, 53),
    (StorageType::Q4K, 256),
    (StorageType::IQ3S, 256),
];

#[test]
#[ignore = "needs a GPU or the simulator"]
fn parts_are_to_the_bit_what_the_whole_is() {
    let bench = Bench::new();
    let mut random = Random::new(24);
    for (storage, depth) in KINDS {
        for rows in [1, 6, 33] {
            for exact in [false, true] {
                let whole = Case::new(&mut random, storage, rows, &[depth], 90, exact);
                let whole = whole.with_bias(&mut random, StorageType::F16);
                let whole = Case { activation: Activation::GeluTanh, ..whole };
                let expected = whole.on_gpu(&bench);
                for columns in [0..37, 37..90, 89..90] {
                    let part = whole.of_columns(columns.clone()).on_gpu(&bench);
                    let rows = part.chunks_exact(90).zip(expected.chunks_exact(90));
                    for (part, expected) in rows {
                        assert_same(
                            &part[columns.clone()],
                            &expected[columns.clone()],
                            &whole.name(),
                        );
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn rows_are_independent() {
    let bench = Bench::new();
    let mut random = Random::new(25);
    for (storage, depth) in KINDS {
        for exact in [false, true] {
            for (all, some) in [(8, 2..3), (8, 1..6), (75, 60..70)] {
                let whole = Case::new(&mut random, storage, all, &[depth], 18, exact);
                let expected = whole.on_gpu(&bench);
                let part = whole.of_rows(some.clone()).on_gpu(&bench);
                assert_same(&part, &expected[some.start * 18..some.end * 18], &whole.name());
            }
        }
    }
}

/// Layers that fill a GPU take tiles of another size: to the bit the same, and right.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn large_layers() {
    let bench = Bench::new();
    let mut random = Random::new(26);
    // Three tiles below each other, and as many beside as give each multiprocessor one.
    let across = 130 + 128 * (bench.stream.gpu().multiprocessors as usize).div_ceil(3);
    for (storage, depth) in [
        (StorageType::F32, 20),
        (StorageType::F16, 40),
        (StorageType::BF16, 40),
        (StorageType::Q4_0, 32),
        (StorageType::IQ4NL, 32),
    ] {
        let whole = Case::new(&mut random, storage, 300, &[depth], across, false);
        let expected = whole.on_gpu(&bench);
        for (rows, columns) in [(0..70, 0..63), (290..300, across - 30..across)] {
            let part = whole.of_rows(rows.clone()).of_columns(columns.clone());
            part.check(&bench);
            let found = part.on_gpu(&bench);
            for (row, found) in rows.zip(found.chunks_exact(across)) {
                let expected = &expected[row * across..][columns.clone()];
                assert_same(&found[columns.clone()], expected, &whole.name());
            }
        }
    }
}
