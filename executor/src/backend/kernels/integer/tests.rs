//! Products of bytes against a reference in f64: every type, instruction set, many shapes.

use super::*;
use crate::backend::kernels::matmul::tests::{cut_results_are_equal, reference};
use crate::backend::kernels::testing::{Random, Stored, assert_close, for_each_workers, scratch};

fn natives() -> impl Iterator<Item = StorageType> {
    StorageType::ALL.into_iter().filter(|storage| storage.has_integer_products())
}

/// Rows as they are after being quantised: written anew here, from what `quantise` says that it
/// does.
fn quantised(x: &[f32], k: usize) -> Vec<f32> {
    let mut out = x.to_vec();
    for row in out.chunks_mut(k) {
        for block in row.chunks_mut(32) {
            let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let scale = largest / 127.0;
            for value in block.iter_mut().filter(|_| largest > 0.0) {
                *value = (*value * (127.0 / largest)).round_ties_even() * scale;
            }
        }
    }
    out
}

/// Values rounded to bf16.
fn in_bf16(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect()
}

/// Weights as they are multiplied: floats of eight bits after being rounded, written anew here from
/// what `unpack` says that it does.
fn unpacked(weight: &Stored) -> Stored {
    let mut values = weight.values.clone();
    if !weight.view().storage.is_blocks() {
        for block in values.chunks_mut(32) {
            let largest = block.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let scale = largest.log2().floor().exp2() / 64.0;
            for value in block.iter_mut().filter(|_| largest > 0.0) {
                *value = (*value / scale).round_ties_even() * scale;
            }
        }
    }
    Stored::new(StorageType::F32, &weight.shape, values)
}

/// How far each product may be off, as activations are by 1/254 of their block's largest, and
/// weights by what `unpacked` did.
fn bounds(x: &[f32], rows: usize, weight: &Stored, unpacked: &Stored) -> Vec<f64> {
    let n = weight.shape[0];
    let k = weight.values.len() / n;
    let largest = |block: &[f32]| block.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let mut bounds = Vec::new();
    for row in 0..rows {
        let x: Vec<f32> = x[row * k..(row + 1) * k].chunks(32).map(largest).collect();
        for (w, unpacked) in weight.values.chunks(k).zip(unpacked.values.chunks(k)) {
            let blocks = w.chunks(32).zip(unpacked.chunks(32)).zip(&x);
            let off = blocks.map(|((w, unpacked), x)| {
                let of_x: f64 = unpacked.iter().map(|w| f64::from(w.abs()) / 254.0).sum();
                let of_w: f64 = w.iter().zip(unpacked).map(|(w, u)| f64::from((w - u).abs())).sum();
                f64::from(*x) * (of_x + of_w)
            });
            bounds.push(off.sum::<f64>());
        }
    }
    bounds
}

fn joined(inputs: &[&[f32]], rows: usize) -> Vec<f32> {
    let row = |row: usize| {
        inputs.iter().flat_map(move |input| input.chunks(input.len() / rows).nth(row).unwrap())
    };
    (0..rows).flat_map(row).copied().collect()
}

/// One case on all instruction sets and worker counts.
fn check(rows: usize, parts: &[usize], n: usize, storage: StorageType, with_bias: bool) {
    let mut random = Random::new((rows * 31 + n) as u64);
    let inputs: Vec<Vec<f32>> = parts.iter().map(|&k| random.normals(rows * k)).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let k = parts.iter().sum();
    let weight = Stored::random(&mut random, storage, &[n, k]);
    let bias = with_bias.then(|| Stored::random(&mut random, StorageType::BF16, &[n]));
    let x = joined(&inputs, rows);
    let unpacked = unpacked(&weight);
    let of_bytes = reference(&[&quantised(&x, k)], rows, &unpacked, bias.as_ref());
    let of_bf16 = reference(&[&in_bf16(&x)], rows, &unpacked.in_bf16(), bias.as_ref());
    let exact = reference(&[&x], rows, &weight, bias.as_ref());
    let bounds = bounds(&x, rows, &weight, &unpacked);
    let shape = LinearShape { rows, in_features: parts, out_features: n };
    for_each_workers(|workers| {
        let mut out = vec![f32::NAN; rows * n];
        let mut scratch = scratch(integer_linear_scratch_len(&shape, storage, workers.count()));
        let bias = bias.as_ref().map(Stored::view);
        let (none, all) = (Activation::None, Columns::all(n));
        integer_linear(workers, &inputs, weight.view(), bias, none, &mut out, all, &mut scratch);
        let name = format!("{rows} x {parts:?} x {n} {storage} {}", workers.isa());
        let in_tiles = workers.isa().has_tiles() && rows > FEW_ROWS;
        assert_close(&out, if in_tiles { &of_bf16 } else { &of_bytes }, 1e-5, &name);
        for ((&got, &exact), &bound) in out.iter().zip(&exact).zip(&bounds) {
            let error = (f64::from(got) - exact).abs();
            assert!(
                error <= 1.0001 * bound + 1e-4,
                "{name}: {got}, not {exact}: {error} > {bound}"
            );
        }
        out
    });
}

#[test]
fn every_type_and_odd_shapes_match_the_reference() {
    for storage in natives() {
        let block = storage.block_elements().max(BLOCK as u64) as usize;
        check(1, &[block], 1, storage, true);
        check(9, &[block], 1, storage, true);
        check(3, &[2 * block], 37, storage, false);
        check(25, &[768 + block], 66, storage, true);
        // Parts that end within blocks.
        check(8, &[2 * block - 45, 45], 17, storage, false);
        // Few rows that are deeper than what is unpacked at a time.
        check(5, &[3 * 1024 + 3 * block], 7, storage, true);
    }
}

#[test]
fn many_panels_tasks_and_inputs_match_the_reference() {
    check(190, &[256, 1792], 300, StorageType::Q8_0, true);
    check(101, &[1024], 259, StorageType::Q4K, false);
    check(90, &[1536], 40, StorageType::Q6K, true);
    check(101, &[1024], 259, StorageType::F8E4M3, false);
}

#[test]
fn the_largest_numbers_do_not_overflow() {
    // Bytes of -128 with activations that all round to -127: 32 · 255 · 127 is the largest sum of a
    // block.
    let block: Vec<u8> = half::f16::ONE.to_le_bytes().into_iter().chain([0x80; 32]).collect();
    let weight =
        WeightView { storage: StorageType::Q8_0, shape: &[1, 32], bytes: &block, scale: 1.0 };
    for sign in [1.0, -1.0] {
        for_each_workers(|workers| {
            let shape = LinearShape { rows: 1, in_features: &[32], out_features: 1 };
            let len = integer_linear_scratch_len(&shape, StorageType::Q8_0, workers.count());
            let (none, all, mut out) = (Activation::None, Columns::all(1), [0.0]);
            let x = [sign * 127.0; 32];
            integer_linear(workers, &[&x], weight, None, none, &mut out, all, &mut scratch(len));
            assert_eq!(out, [sign * -128.0 * 127.0 * 32.0], "{}", workers.isa());
            out.to_vec()
        });
    }
}

/// Blocks of the largest numbers, or the smallest that are stored.
fn extreme(storage: StorageType, byte: u8, elements: usize) -> Vec<u8> {
    let byte = match storage {
        // The largest numbers have all bits but one of the fraction, or of the exponent.
        StorageType::F8E4M3 => byte & 0x80 | (byte & 0x7f).min(0x7e),
        StorageType::F8E5M2 => byte & 0x80 | (byte & 0x7f).min(0x7b),
        _ => byte,
    };
    let mut bytes = vec![byte; storage.bytes(elements as u64).as_usize()];
    let factors: &[usize] = match storage {
        StorageType::Q4_1 | StorageType::Q5_1 | StorageType::Q4K | StorageType::Q5K => &[0, 2],
        StorageType::Q2K => &[80, 82],
        StorageType::Q3K => &[108],
        StorageType::Q6K => &[208],
        StorageType::F8E4M3 | StorageType::F8E5M2 => &[],
        _ => &[0],
    };
    for block in bytes.chunks_exact_mut(storage.block_bytes() as usize) {
        for &at in factors {
            block[at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn sums_of_the_largest_numbers_fit_in_few_rows_and_in_panels() {
    let (k, n) = (768, 5);
    for storage in natives() {
        for byte in [0xff, 0x80, 0x7f, 0] {
            let bytes = extreme(storage, byte, n * k);
            let weight = WeightView { storage, shape: &[n, k], bytes: &bytes, scale: 1.0 };
            let sum: f64 = weight.to_f32()[..k].iter().copied().map(f64::from).sum();
            for (rows, x) in [(1, 127.0f32), (1, -127.0), (9, 127.0), (9, -127.0)] {
                for_each_workers(|workers| {
                    let shape = LinearShape { rows, in_features: &[k], out_features: n };
                    let len = integer_linear_scratch_len(&shape, storage, workers.count());
                    let (none, all, mut out) =
                        (Activation::None, Columns::all(n), vec![0.0; rows * n]);
                    let (x, mut scratch) = (vec![x; rows * k], scratch(len));
                    integer_linear(workers, &[&x], weight, None, none, &mut out, all, &mut scratch);
                    let name = format!("{storage} of {byte:#x}, {rows} rows, {}", workers.isa());
                    // Weights are rounded to bf16 in tiles.
                    let in_tiles = workers.isa().has_tiles() && rows > FEW_ROWS;
                    let tolerance = if in_tiles { 1.0 / 256.0 } else { 1e-5 };
                    let expected = vec![sum * f64::from(x[0]); rows * n];
                    assert_close(&out, &expected, tolerance, &name);
                    out
                });
            }
        }
    }
}

#[test]
fn blocks_of_zeros_are_zero_and_what_is_not_finite_stays_so() {
    let mut random = Random::new(3);
    let weight = Stored::random(&mut random, StorageType::Q4K, &[3, 256]);
    for_each_workers(|workers| {
        let shape = LinearShape { rows: 3, in_features: &[256], out_features: 3 };
        let len = integer_linear_scratch_len(&shape, StorageType::Q4K, workers.count());
        let (none, all, mut out) = (Activation::None, Columns::all(3), [0.0; 9]);
        let mut x = [0.0; 3 * 256];
        x[256 + 40] = f32::NAN;
        x[512 + 3] = f32::INFINITY;
        integer_linear(workers, &[&x], weight.view(), None, none, &mut out, all, &mut scratch(len));
        assert_eq!(out[..3], [0.0; 3], "{}", workers.isa());
        assert!(out[3..].iter().all(|value| !value.is_finite()), "{}: {out:?}", workers.isa());
        vec![0.0]
    });
}

#[test]
fn a_weight_that_is_no_number_makes_none_of_its_column_alone() {
    // All bits set, and an infinity: the largest of their blocks, as bits.
    for (storage, wrong) in [(StorageType::F8E4M3, 0xff), (StorageType::F8E5M2, 0x7c)] {
        let mut bytes = [0x30; 2 * 64];
        bytes[64 + 40] = wrong;
        let weight = WeightView { storage, shape: &[2, 64], bytes: &bytes, scale: 1.0 };
        for rows in [1, FEW_ROWS + 1] {
            for_each_workers(|workers| {
                let shape = LinearShape { rows, in_features: &[64], out_features: 2 };
                let len = integer_linear_scratch_len(&shape, storage, workers.count());
                let (none, all, mut out) = (Activation::None, Columns::all(2), vec![0.0; 2 * rows]);
                let (x, mut scratch) = (vec![1.0; 64 * rows], scratch(len));
                integer_linear(workers, &[&x], weight, None, none, &mut out, all, &mut scratch);
                for row in out.chunks(2) {
                    let name = format!("{storage}, {rows} rows, {}: {row:?}", workers.isa());
                    assert!(row[0].is_finite() && row[0] > 0.0 && !row[1].is_finite(), "{name}");
                }
                vec![0.0]
            });
        }
    }
}

#[test]
fn what_is_computed_alone_equals_what_is_computed_together() {
    for storage in [StorageType::Q8_0, StorageType::Q4K, StorageType::Q6K, StorageType::F8E4M3] {
        cut_results_are_equal(storage, integer_linear, |shape, workers| {
            integer_linear_scratch_len(shape, storage, workers)
        });
    }
}

#[test]
fn the_types_with_a_form_are_those_that_are_said_to_have_integer_products() {
    for storage in StorageType::ALL {
        assert_eq!(Form::of(storage).is_some(), storage.has_integer_products(), "{storage}");
    }
}

#[test]
fn unpacked_numbers_stand_for_the_decoded_values() {
    for storage in natives() {
        let stored = Stored::random(&mut Random::new(9), storage, &[1, 512]);
        let form = Form::of(storage).unwrap();
        for isa in Isa::available() {
            let mut numbers = [0; 512];
            let (mut scales, mut minima) = ([f32::NAN; 32], [f32::NAN; 32]);
            let groups = 16 * form.scales;
            let bytes = stored.view().bytes;
            let (scales, minima) = (&mut scales[..groups], &mut minima[..groups]);
            unpack(isa, storage, bytes, &mut numbers, scales, minima);
            for (at, (&number, &expected)) in numbers.iter().zip(&stored.values).enumerate() {
                let group = at / (32 / form.scales);
                let added = if form.has_minimum { minima[group] } else { 0.0 };
                let value = scales[group] * (f32::from(number) - f32::from(form.offset)) + added;
                let allowed = if storage.is_blocks() { 64e-6 } else { 0.5 };
                let close = (value - expected).abs() <= allowed * scales[group].abs();
                assert!(close, "{storage} {isa}: element {at} is {value}, not {expected}");
            }
        }
    }
}
