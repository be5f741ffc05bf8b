//! Linear layers whose inputs are bf16 already, and whose results have 16 bits: to the bit what
//! those in f32 are, rounded.

use executor::backend::cuda::ops::linear::{FEW_ROWS, reads};
use executor::graph::{Activation, ElementType};
use protocol::StorageType;

use super::bench::{Bench, Random, assert_same};
use super::elements::{UNTOUCHED, rounded};
use super::linear_case::Case;

/// One to four inputs: features that make a depth of `blocks` times a block of the type, in
/// multiples of eight that end within tiles.
fn features(storage: StorageType, index: usize) -> &'static [usize] {
    let all: [&[usize]; 6] = match storage.block_elements() {
        256 => [&[256], &[8, 248], &[40, 200, 16], &[8, 8, 8, 488], &[248, 8], &[96, 64, 88, 8]],
        32 => [&[96], &[24, 72], &[8, 8, 16], &[8, 56, 8, 24], &[64, 32], &[40, 8, 8, 136]],
        _ => [&[40], &[24, 8], &[8, 8, 8], &[72, 8, 16, 40], &[32, 64], &[8, 16, 24, 56]],
    };
    all[index % all.len()]
}

/// Whether a case's kernels read bf16.
fn reads_bf16(case: &Case, storage: StorageType, exact: bool) -> bool {
    reads(&case.shape(), storage, exact) == ElementType::BF16
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn inputs_in_bf16_change_no_bit() {
    let bench = Bench::new();
    let mut random = Random::new(71);
    for (at, storage) in StorageType::ALL.into_iter().enumerate() {
        for index in 0..3 {
            let features = features(storage, at + 2 * index);
            let rows = [FEW_ROWS + 1, 70, 33][index];
            let case = Case::new(&mut random, storage, rows, features, 21, false);
            let case = case.with_bias(&mut random, StorageType::BF16);
            let in_f32 = matches!(storage, StorageType::F32 | StorageType::F16);
            assert_eq!(reads_bf16(&case, storage, false), !in_f32, "{}", case.name());
            if in_f32 {
                continue;
            }
            case.copy().of_bf16().check(&bench);
            let expected = case.on_gpu(&bench);
            assert_same(&case.copy().of_bf16().on_gpu(&bench), &expected, &case.name());
            assert_same(&case.joined().of_bf16().on_gpu(&bench), &expected, "one input");
        }
    }
}

/// Tiles of both sizes, with inputs that begin in every chunk of a tile and more of them in a tile
/// than one.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn inputs_that_begin_anywhere_in_tiles() {
    let bench = Bench::new();
    let mut random = Random::new(72);
    let across = 128 * (bench.stream.gpu().multiprocessors as usize).div_ceil(2);
    for storage in [StorageType::BF16, StorageType::F8E4M3] {
        for features in [
            &[8, 8, 8, 8][..],
            &[32, 32, 32, 32],
            &[16, 8, 64, 8],
            &[104, 24],
            &[8, 120, 8],
            &[56, 48, 8, 16],
            &[8],
        ] {
            for (rows, columns) in [(FEW_ROWS + 1, 3), (130, across)] {
                let case = Case::new(&mut random, storage, rows, features, columns, false);
                let expected = case.copy().joined().on_gpu(&bench);
                assert_same(&case.copy().of_bf16().on_gpu(&bench), &expected, &case.name());
            }
        }
    }
}

/// Rows of which the largest number is far from 1, which before capability 8.0 are divided by it.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn rows_of_any_size() {
    let bench = Bench::new();
    let mut random = Random::new(73);
    for storage in [StorageType::BF16, StorageType::Q8_0, StorageType::IQ4NL] {
        let case = Case::new(&mut random, storage, 12, &[16, 48], 9, false);
        let case = case.with_rows_times(&[1e30, 1e-30, 70_000.0, 0.0]);
        case.check(&bench);
        case.copy().of_bf16().check(&bench);
        assert_same(&case.copy().of_bf16().on_gpu(&bench), &case.on_gpu(&bench), &case.name());
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn few_exact_and_odd_layers_read_f32() {
    let mut random = Random::new(74);
    for (rows, features, storage, exact) in [
        (FEW_ROWS, &[64][..], StorageType::BF16, false),
        (20, &[64], StorageType::BF16, true),
        (20, &[64, 4], StorageType::BF16, false),
        (20, &[24], StorageType::Q8_0, false),
        (20, &[64], StorageType::F32, false),
        (20, &[64], StorageType::F16, false),
    ] {
        let case = Case::new(&mut random, storage, rows, features, 8, exact);
        assert!(!reads_bf16(&case, storage, exact), "{}", case.name());
    }
}

/// What a result in 16 bits must be: that in f32, rounded, and nothing beside it.
fn check_rounded(bench: &Bench, case: &Case, element: ElementType) {
    let whole = case.on_gpu(bench);
    let round = |x: &f32| if x.to_bits() == UNTOUCHED { *x } else { rounded(*x, element) };
    let expected: Vec<f32> = whole.iter().map(round).collect();
    let case = case.copy().into(element);
    let found = case.on_gpu(bench);
    assert_same(&found, &expected, &case.name());
    for (found, whole) in found.iter().zip(&whole) {
        let both = [found, whole].map(|x| x.to_bits() == UNTOUCHED);
        assert_eq!(both[0], both[1], "{}: what is written", case.name());
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn results_in_16_bits() {
    use Activation::{GeluErf, GeluTanh, None, QuickGelu, Silu};
    let bench = Bench::new();
    let mut random = Random::new(75);
    let kinds = [
        StorageType::F32,
        StorageType::F16,
        StorageType::BF16,
        StorageType::F8E5M2,
        StorageType::Q4_0,
        StorageType::IQ4XS,
    ];
    for storage in kinds {
        let depth = 48_usize.next_multiple_of(storage.block_elements() as usize);
        for (index, activation) in
            [None, Silu, GeluTanh, GeluErf, QuickGelu].into_iter().enumerate()
        {
            // Windows of columns and rows of any length, and those that are written in fours.
            for (around, columns) in [([0, 0], 44), ([4, 8], 68), ([3, 2], 35), ([2, 0], 70)] {
                for (rows, exact) in [(1, false), (6, false), (9, false), (35, true)] {
                    let case = Case::new(&mut random, storage, rows, &[depth], columns, exact);
                    let case = case.with_bias(&mut random, StorageType::F16);
                    let case = case.ending(activation, around);
                    let element = [ElementType::BF16, ElementType::F16][(index + rows) % 2];
                    check_rounded(&bench, &case, element);
                }
            }
        }
    }
}

/// Large tiles, with inputs of either kind, into all elements.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn large_layers_in_16_bits() {
    let bench = Bench::new();
    let mut random = Random::new(76);
    let across = 96 + 128 * (bench.stream.gpu().multiprocessors as usize).div_ceil(2);
    for storage in [StorageType::F16, StorageType::BF16, StorageType::Q8_0, StorageType::F32] {
        for columns in [across, across + 1] {
            let case = Case::new(&mut random, storage, 140, &[32], columns, false);
            for element in [ElementType::BF16, ElementType::F16] {
                check_rounded(&bench, &case, element);
                if reads_bf16(&case, storage, false) {
                    check_rounded(&bench, &case.copy().of_bf16(), element);
                }
            }
        }
    }
}

/// What f16 does not hold becomes the largest that it does.
#[test]
#[ignore = "needs a GPU or the simulator"]
fn results_that_f16_does_not_hold() {
    let bench = Bench::new();
    let mut random = Random::new(77);
    for (storage, rows) in [(StorageType::F32, 5), (StorageType::F32, 12), (StorageType::BF16, 12)]
    {
        let case = Case::new(&mut random, storage, rows, &[64], 12, false);
        let case = case.with_rows_times(&[1e6, 1e-6, 1.0, 2e4]);
        check_rounded(&bench, &case, ElementType::F16);
        let found = case.into(ElementType::F16).on_gpu(&bench);
        assert!(found.iter().all(|x| x.abs() <= 65504.0), "finite");
        assert!(found.contains(&65504.0) && found.contains(&-65504.0), "large");
    }
}
