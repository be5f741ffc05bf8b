//! Linear layers whose products are formed by cuBLASLt, against the host's kernels: as `linear`, of
//! what it takes.

use executor::backend::cuda::ops::linear::FEW_ROWS;
use executor::graph::{Activation, ElementType};
use protocol::{Bytes, StorageType};

use super::bench::{Bench, Random, assert_same};
use super::linear_case::Case;

/// Types that the library multiplies; before capability 8.0 it is not asked for the second.
const TYPES: [StorageType; 2] = [StorageType::F16, StorageType::BF16];

#[test]
#[ignore = "needs a GPU with cuBLASLt, or the simulator"]
fn every_bias_and_every_activation() {
    use Activation::{GeluErf, GeluTanh, None, QuickGelu, Silu};
    let bench = Bench::with_library();
    let mut random = Random::new(61);
    let biases = [StorageType::F32, StorageType::F16, StorageType::BF16];
    for storage in TYPES {
        for activation in [None, Silu, GeluTanh, GeluErf, QuickGelu] {
            // Windows of columns that begin at any number.
            for around in [[0, 0], [4, 12], [3, 0]] {
                let case = Case::new(&mut random, storage, 37, &[24, 16], 21, false);
                case.ending(activation, around).check(&bench);
                for bias in biases {
                    let case = Case::new(&mut random, storage, 37, &[40], 21, false);
                    let case = case.with_bias(&mut random, bias);
                    case.ending(activation, around).check(&bench);
                    // As a model's: not multiplied by anything.
                    let case = Case::new(&mut random, storage, 12, &[8], 52, false);
                    let case = case.with_bias(&mut random, bias).unscaled();
                    case.ending(activation, around).check(&bench);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU with cuBLASLt, or the simulator"]
fn every_size() {
    let bench = Bench::with_library();
    let mut random = Random::new(62);
    for storage in TYPES {
        for (rows, depth, columns) in
            [(FEW_ROWS + 1, 8, 1), (70, 264, 19), (64, 64, 64), (129, 72, 257), (11, 40, 300)]
        {
            let case = Case::new(&mut random, storage, rows, &[depth], columns, false);
            case.with_bias(&mut random, StorageType::BF16).check(&bench);
        }
        // More than a grid has blocks for: each takes several.
        let tall = Case::new(&mut random, storage, 8200, &[8], 1, false);
        tall.check(&bench);
        assert_same(&tall.on_gpu(&bench), &tall.on_gpu(&bench), &tall.name());
    }
}

/// Few rows, odd depths and exact products are not the library's.
#[test]
#[ignore = "needs a GPU with cuBLASLt, or the simulator"]
fn every_other_is_as_without_it() {
    let (with, without) = (Bench::with_library(), Bench::new());
    let mut random = Random::new(63);
    for storage in [StorageType::F16, StorageType::BF16, StorageType::Q8_0, StorageType::F32] {
        for (rows, depth, exact) in [(FEW_ROWS, 64, false), (20, 64, true), (20, 36, false)] {
            let case = Case::new(&mut random, storage, rows, &[depth], 32, exact);
            assert_same(&case.on_gpu(&with), &case.on_gpu(&without), &case.name());
        }
    }
}

/// What stays right where the library fails at the first time or at the second.
#[test]
#[ignore = "needs a GPU with cuBLASLt, or the simulator"]
fn a_layer_twice() {
    let bench = Bench::with_library();
    let mut random = Random::new(64);
    for storage in [StorageType::BF16, StorageType::F16] {
        let case = Case::new(&mut random, storage, 20, &[64], 36, false);
        let case = case.with_bias(&mut random, StorageType::BF16);
        case.check(&bench);
        case.check(&bench);
    }
}

/// Inputs that are bf16 already, one product for each, and results in all elements; those that the
/// library does not write are written by our kernels.
#[test]
#[ignore = "needs a GPU with cuBLASLt, or the simulator"]
fn every_element_and_several_inputs() {
    use Activation::{GeluTanh, None, Silu};
    let bench = Bench::with_library();
    let mut random = Random::new(65);
    for features in [&[64][..], &[24, 40], &[8, 16, 8], &[16, 8, 32, 24]] {
        for activation in [None, GeluTanh, Silu] {
            for bias in [StorageType::BF16, StorageType::F32] {
                for element in [ElementType::F32, ElementType::BF16, ElementType::F16] {
                    for around in [[0, 0], [16, 8], [3, 2]] {
                        let case =
                            Case::new(&mut random, StorageType::BF16, 37, features, 56, false);
                        let case = case.with_bias(&mut random, bias).into(element);
                        let case = case.ending(activation, around);
                        case.copy().check(&bench);
                        case.copy().of_bf16().check(&bench);
                        case.unscaled().of_bf16().check(&bench);
                    }
                }
                // Without a bias.
                let case = Case::new(&mut random, StorageType::BF16, 37, features, 56, false);
                let case = case.ending(activation, [0, 0]).into(ElementType::BF16);
                case.of_bf16().check(&bench);
            }
        }
    }
    for element in [ElementType::BF16, ElementType::F16] {
        Case::new(&mut random, StorageType::F16, 37, &[64], 56, false).into(element).check(&bench);
    }
}

/// Weights that become bf16 first, as GGUF has them: beside a bias in f32.
#[test]
#[ignore = "needs a GPU with cuBLASLt, or the simulator"]
fn decoded_first() {
    let bench = Bench::with_library();
    let mut random = Random::new(67);
    for storage in [StorageType::Q4K, StorageType::F8E4M3] {
        for element in [ElementType::F32, ElementType::BF16] {
            for activation in [Activation::None, Activation::GeluTanh] {
                let case = Case::new(&mut random, storage, 515, &[256], 40, false);
                let case = case.with_bias(&mut random, StorageType::F32).unscaled();
                let case = case.ending(activation, [8, 0]).of_bf16().into(element);
                case.copy().in_parts_of(Bytes(1)).check(&bench);
                case.check(&bench);
            }
        }
    }
}

/// What stays right where one of a layer's products fails.
#[test]
#[ignore = "needs a GPU with cuBLASLt, or the simulator"]
fn parts_of_a_layer() {
    let bench = Bench::with_library();
    let mut random = Random::new(66);
    let case = Case::new(&mut random, StorageType::BF16, 20, &[16, 24, 8], 36, false);
    let case = case.with_bias(&mut random, StorageType::F16).of_bf16();
    case.check(&bench);
    case.check(&bench);
}
