//! Linear layers with many rows, whose weights become bf16 first: to the bit what they are where
//! weights are decoded on their way, which is what few rows of them are.

use executor::graph::{Activation, ElementType};
use protocol::{Bytes, StorageType};

use super::bench::{Bench, Random, assert_same};
use super::linear_case::Case;

/// The fewest rows with which weights are decoded first.
const MANY_ROWS: usize = 512;

/// Fewer, by tiles of the same size.
const FEWER_ROWS: usize = 70;

/// Checks a layer of [`MANY_ROWS`] against the host, and its first rows by themselves.
fn check(bench: &Bench, case: Case) {
    case.check(bench);
    let whole = case.on_gpu(bench);
    let first = case.copy().first_rows(FEWER_ROWS).on_gpu(bench);
    assert_same(&whole[..first.len()], &first, &case.name());
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn decoded_first_or_on_their_way_is_the_same() {
    let bench = Bench::new();
    let mut random = Random::new(81);
    for storage in StorageType::ALL {
        let depth = storage.block_elements().max(24) as usize;
        let case = Case::new(&mut random, storage, MANY_ROWS, &[depth], 9, false);
        check(&bench, case.with_bias(&mut random, StorageType::F32));
    }
}

#[test]
#[ignore = "needs a GPU or the simulator"]
fn parts_of_a_layer_are_the_layer() {
    let bench = Bench::new();
    let mut random = Random::new(82);
    for (storage, bias, activation, element) in [
        (StorageType::Q8_0, StorageType::F32, Activation::GeluTanh, ElementType::BF16),
        (StorageType::Q4_0, StorageType::BF16, Activation::None, ElementType::F32),
        (StorageType::F8E4M3, StorageType::F16, Activation::Silu, ElementType::F32),
    ] {
        let case = Case::new(&mut random, storage, MANY_ROWS + 3, &[8, 24], 600, false);
        let case = case.with_bias(&mut random, bias).ending(activation, [8, 16]);
        let case = case.of_bf16().into(element);
        let whole = case.on_gpu(&bench);
        // Parts of 256 columns, the fewest that there are.
        assert_same(&case.copy().in_parts_of(Bytes(1)).on_gpu(&bench), &whole, &case.name());
        check(&bench, case);
    }
}
