//! Blocks against what the package `gguf` decodes, of numbers as weights have them and of random
//! bytes, to the bit.

use std::collections::BTreeSet;

use super::*;
use crate::weights::WeightView;
use crate::weights::support::{assert_same, quant_blocks};
use crate::weights::view::read_blocks;

#[test]
fn every_block_is_decoded_to_the_bit() {
    let pairs = quant_blocks();
    let types: BTreeSet<StorageType> = pairs.iter().map(|pair| pair.1).collect();
    let missing = StorageType::ALL.into_iter().filter(|storage| !types.contains(storage));
    assert_eq!(missing.collect::<Vec<_>>(), [StorageType::F32]);
    for (name, storage, bytes, expected) in &pairs {
        let shape = [expected.len()];
        let view = WeightView { storage: *storage, shape: &shape, bytes, scale: 1.0 };
        assert_same(&view.to_f32(), expected, name);
    }
}

#[test]
fn parts_of_blocks_are_read_as_the_whole_is() {
    for (name, storage, bytes, expected) in quant_blocks() {
        if !storage.is_blocks() {
            continue;
        }
        let block = storage.block_elements() as usize;
        for first in [0, 1, block - 1, block, block + 7] {
            for length in [0, 1, 2, block - 1, block, block + 1, 2 * block + 3] {
                if first + length > expected.len() {
                    continue;
                }
                let mut found = vec![f32::NAN; length];
                read_blocks(storage, &bytes, first, &mut found);
                assert_same(&found, &expected[first..first + length], &name);
            }
        }
    }
}

#[test]
fn a_scale_multiplies_what_is_read() {
    let (_, storage, bytes, expected) =
        quant_blocks().into_iter().find(|pair| pair.1 == StorageType::Q5K).unwrap();
    let view = WeightView { storage, shape: &[expected.len()], bytes: &bytes, scale: 0.375 };
    let scaled: Vec<f32> = expected.iter().map(|value| value * 0.375).collect();
    assert_same(&view.to_f32(), &scaled, "scaled");
}
