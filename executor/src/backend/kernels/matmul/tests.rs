//! Linear layers against a reference in f64: every type, instruction set, many shapes.

use protocol::StorageType;

use super::*;
use crate::backend::kernels::testing::{Random, Stored, assert_close, for_each_workers, scratch};

const PLAIN: [StorageType; 3] = [StorageType::F32, StorageType::F16, StorageType::BF16];

/// `cat(inputs) · weightᵀ + bias`.
pub(in super::super) fn reference(
    inputs: &[&[f32]],
    rows: usize,
    weight: &Stored,
    bias: Option<&Stored>,
) -> Vec<f64> {
    let n = weight.shape[0];
    let k = weight.values.len() / n;
    let mut out = vec![0.0; rows * n];
    for row in 0..rows {
        let x: Vec<f32> = inputs
            .iter()
            .flat_map(|input| &input[row * input.len() / rows..(row + 1) * input.len() / rows])
            .copied()
            .collect();
        for column in 0..n {
            let w = &weight.values[column * k..(column + 1) * k];
            let dot: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            out[row * n + column] = dot + bias.map_or(0.0, |b| f64::from(b.values[column]));
        }
    }
    out
}

/// One case on all instruction sets and worker counts.
fn check(rows: usize, parts: &[usize], n: usize, storage: StorageType, with_bias: bool) {
    let mut random = Random::new((rows * 31 + n) as u64);
    let inputs: Vec<Vec<f32>> = parts.iter().map(|&k| random.normals(rows * k)).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let weight = Stored::random(&mut random, storage, &[n, parts.iter().sum()]);
    let bias = with_bias.then(|| Stored::random(&mut random, StorageType::BF16, &[n]));
    let expected = reference(&inputs, rows, &weight, bias.as_ref());
    let shape = LinearShape { rows, in_features: parts, out_features: n };
    for_each_workers(|workers| {
        let mut out = vec![f32::NAN; rows * n];
        let mut scratch = scratch(linear_scratch_len(&shape, workers.count()));
        let bias = bias.as_ref().map(Stored::view);
        let none = Activation::None;
        let all = Columns::all(n);
        linear(workers, &inputs, weight.view(), bias, none, &mut out, all, &mut scratch);
        let name = format!("{rows} x {parts:?} x {n} {storage} {}", workers.isa());
        assert_close(&out, &expected, 1e-5, &name);
        out
    });
}

#[test]
fn odd_shapes_match_the_reference() {
    for storage in PLAIN {
        check(1, &[1], 1, storage, true);
        check(3, &[17], 5, storage, false);
        check(9, &[33], 100, storage, true);
        check(65, &[16], 7, storage, true);
        check(29, &[40], 33, storage, false);
    }
}

#[test]
fn many_blocks_tasks_and_inputs_match_the_reference() {
    check(7, &[1500], 301, StorageType::BF16, true);
    check(8, &[2100], 97, StorageType::F16, false);
    check(200, &[130, 1100, 1, 40], 205, StorageType::BF16, true);
    check(150, &[1025], 100, StorageType::F32, true);
    check(230, &[70], 800, StorageType::F32, true);
}

#[test]
fn every_type_in_blocks_is_multiplied_exactly() {
    for storage in StorageType::ALL.into_iter().filter(|storage| storage.is_blocks()) {
        let block = storage.block_elements() as usize;
        check(5, &[block], 35, storage, true);
        // Parts and panels that end within blocks.
        check(20, &[block * 3 - 40, 40], 19, storage, false);
    }
    check(16, &[768], 70, StorageType::Q6K, true);
}

#[test]
fn the_activation_comes_after_the_bias() {
    let weight = Stored::new(StorageType::F32, &[2, 1], vec![1.0, -2.0]);
    let bias = Stored::new(StorageType::F32, &[2], vec![0.5, 0.25]);
    for_each_workers(|workers| {
        let mut out = [0.0; 2];
        let shape = LinearShape { rows: 1, in_features: &[1], out_features: 2 };
        let mut scratch = scratch(linear_scratch_len(&shape, workers.count()));
        let view = (weight.view(), Some(bias.view()));
        let silu = Activation::Silu;
        let all = Columns::all(2);
        linear(workers, &[&[1.0]], view.0, view.1, silu, &mut out, all, &mut scratch);
        let silu = |x: f64| x / (1.0 + (-x).exp());
        assert_close(&out, &[silu(1.5), silu(-1.75)], 1e-6, "silu");
        out.to_vec()
    });
}

/// How a row, or the products with some weight rows, are computed with others and alone.
pub(in super::super) fn cut_results_are_equal(
    storage: StorageType,
    kernel: LinearKernel,
    scratch_len: impl Fn(&LinearShape<'_>, usize) -> usize,
) {
    let mut random = Random::new(5);
    let (rows, k, n) = (70, 1280, 150);
    let x = random.normals(rows * k);
    let weight = Stored::random(&mut random, storage, &[n, k]);
    for isa in Isa::available() {
        let workers = Workers::with_isa(2, isa).unwrap();
        let run = |x: &[f32], from: usize, to: usize| {
            let shape =
                LinearShape { rows: x.len() / k, in_features: &[k], out_features: to - from };
            let len = scratch_len(&shape, 2);
            let mut out = vec![0.0; x.len() / k * (to - from)];
            let at = |row: usize| storage.bytes((row * k) as u64).as_usize();
            let whole = weight.view();
            let shape = [to - from, k];
            let part = WeightView { bytes: &whole.bytes[at(from)..at(to)], shape: &shape, ..whole };
            let all = Columns::all(to - from);
            kernel(&workers, &[x], part, None, Activation::None, &mut out, all, &mut scratch(len));
            out
        };
        let together = run(&x, 0, n);
        assert_eq!(run(&x[13 * k..29 * k], 0, n), together[13 * n..29 * n], "{isa} rows");
        let few = run(&x[13 * k..20 * k], 0, n);
        assert_eq!(run(&x[15 * k..16 * k], 0, n), few[2 * n..3 * n], "{isa}: one of few rows");
        assert_eq!(
            run(&x[13 * k..20 * k], 37, 38),
            few.iter().copied().skip(37).step_by(n).collect::<Vec<_>>()
        );
        for (from, to) in [(0, 37), (37, 38), (38, 150)] {
            let part = run(&x, from, to);
            for (whole, part) in together.chunks(n).zip(part.chunks(to - from)) {
                assert_eq!(part, &whole[from..to], "{isa} weight rows {from} to {to}");
            }
        }
    }
}

#[test]
fn what_is_computed_alone_equals_what_is_computed_together() {
    for storage in [StorageType::F32, StorageType::BF16, StorageType::Q4K] {
        cut_results_are_equal(storage, linear, linear_scratch_len);
    }
}
