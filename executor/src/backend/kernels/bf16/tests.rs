//! Products of bf16 against a reference in f64 from activations rounded here: every instruction
//! set, many shapes.

use half::bf16;
use protocol::StorageType;

use super::*;
use crate::backend::kernels::matmul::tests::{cut_results_are_equal, reference};
use crate::backend::kernels::matmul::{FEW_ROWS, LinearShape, linear_scratch_len};
use crate::backend::kernels::testing::{Random, Stored, assert_close, for_each_workers, scratch};

fn rounded(x: &[f32]) -> Vec<f32> {
    x.iter().map(|&x| bf16::from_f32(x).to_f32()).collect()
}

fn run(workers: &Workers, inputs: &[&[f32]], weight: &Stored, bias: Option<&Stored>) -> Vec<f32> {
    let [n, k] = weight.shape[..] else { panic!("a matrix") };
    let rows = inputs.iter().map(|input| input.len()).sum::<usize>() / k;
    let parts: Vec<usize> = inputs.iter().map(|input| input.len() / rows).collect();
    let shape = LinearShape { rows, in_features: &parts, out_features: n };
    let mut out = vec![f32::NAN; rows * n];
    let mut scratch = scratch(linear_scratch_len(&shape, workers.count()));
    let (none, all, bias) = (Activation::None, Columns::all(n), bias.map(Stored::view));
    bf16_linear(workers, inputs, weight.view(), bias, none, &mut out, all, &mut scratch);
    out
}

/// One case on all instruction sets and worker counts.
fn check(rows: usize, parts: &[usize], n: usize, with_bias: bool) {
    let mut random = Random::new((rows * 31 + n) as u64);
    let inputs: Vec<Vec<f32>> = parts.iter().map(|&k| random.normals(rows * k)).collect();
    let in_bf16: Vec<Vec<f32>> = inputs.iter().map(|x| rounded(x)).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let in_bf16: Vec<&[f32]> = in_bf16.iter().map(Vec::as_slice).collect();
    let weight = Stored::random(&mut random, StorageType::BF16, &[n, parts.iter().sum()]);
    let bias = with_bias.then(|| Stored::random(&mut random, StorageType::BF16, &[n]));
    let exact = reference(&inputs, rows, &weight, bias.as_ref());
    let of_rounded = reference(&in_bf16, rows, &weight, bias.as_ref());
    for_each_workers(|workers| {
        let out = run(workers, &inputs, &weight, bias.as_ref());
        let in_tiles = workers.isa().has_bf16_products() && rows > FEW_ROWS;
        let name = format!("{rows} x {parts:?} x {n} {}", workers.isa());
        assert_close(&out, if in_tiles { &of_rounded } else { &exact }, 1e-5, &name);
        out
    });
}

#[test]
fn odd_shapes_match_the_reference() {
    check(1, &[1], 1, true);
    check(9, &[1], 1, true);
    check(16, &[32], 16, false);
    check(17, &[33], 31, true);
    check(32, &[64], 32, true);
    check(33, &[31], 33, false);
    check(65, &[16], 7, true);
    check(29, &[95], 50, false);
}

#[test]
fn many_blocks_tasks_and_inputs_match_the_reference() {
    check(8, &[1500], 301, true);
    check(200, &[130, 1100, 1, 40], 205, true);
    check(150, &[2080], 100, true);
    check(330, &[70], 800, false);
    check(64, &[512, 512], 64, true);
}

#[test]
fn what_is_computed_alone_equals_what_is_computed_together() {
    cut_results_are_equal(StorageType::BF16, bf16_linear, linear_scratch_len);
}

#[test]
fn a_scale_or_few_rows_keep_products_in_f32() {
    let mut random = Random::new(11);
    let weight = Stored::random(&mut random, StorageType::BF16, &[40, 96]);
    for_each_workers(|workers| {
        for rows in [FEW_ROWS, 2 * FEW_ROWS] {
            let x = Random::new(12).normals(rows * 96);
            let shape = LinearShape { rows, in_features: &[96], out_features: 40 };
            let scale = if rows > FEW_ROWS { 0.5 } else { 1.0 };
            let weight = WeightView { scale, ..weight.view() };
            let [ours, in_f32] = [bf16_linear, linear].map(|kernel| {
                let mut out = vec![f32::NAN; rows * 40];
                let mut scratch = scratch(linear_scratch_len(&shape, workers.count()));
                let (none, all) = (Activation::None, Columns::all(40));
                kernel(workers, &[&x], weight, None, none, &mut out, all, &mut scratch);
                out
            });
            assert!(ours == in_f32, "{rows} rows, {}", workers.isa());
        }
        vec![0.0]
    });
}

#[test]
fn what_is_not_finite_stays_so_and_in_its_row() {
    let weight = Stored::random(&mut Random::new(3), StorageType::BF16, &[3, 40]);
    for_each_workers(|workers| {
        let mut x = [0.0; 20 * 40];
        x[40 + 35] = f32::NAN;
        x[80 + 3] = f32::INFINITY;
        let out = run(workers, &[&x], &weight, None);
        assert!(out[..3].iter().chain(&out[9..]).all(|&value| value == 0.0), "{}", workers.isa());
        assert!(out[3..9].iter().all(|value| !value.is_finite()), "{}: {out:?}", workers.isa());
        vec![0.0]
    });
}

#[test]
#[cfg(target_arch = "x86_64")]
fn strips_of_tiles_and_strips_of_rows_give_the_same_bits() {
    use super::panel::{Panel, StoredColumns, sliver_words};
    use crate::backend::kernels::grid::{Rows, Target, aligned};
    use crate::backend::kernels::lines_ahead::LinesAhead;
    use crate::backend::kernels::simd::Isa;
    use crate::backend::kernels::tiles::Tiles;
    use crate::backend::kernels::workers::Disjoint;

    let Some(isa) = Isa::available().into_iter().find(|isa| isa.has_bf16_products()) else {
        return;
    };
    for (count, columns, depth) in [(14, 32, 64), (13, 65, 70), (7, 96, 31), (1, 7, 768)] {
        let mut random = Random::new((count * columns) as u64);
        let (x, before) = (random.normals(count * depth), random.normals(count * columns));
        let weight = Stored::random(&mut random, StorageType::BF16, &[columns, depth]);
        let inputs = [x.as_slice()];
        let all = Columns::all(columns);
        let operands =
            LinearOperands::new(&inputs, weight.view(), None, Activation::None, before.len(), all);
        let mut panel = vec![0.0; columns.div_ceil(32) * sliver_words(depth) + 15];
        let words = aligned(&mut panel);
        StoredColumns { operands: &operands, isa }.pack(0..columns, 0, depth, words);
        let panel = Panel { words, columns, depth };
        let rows = Rows { values: &x, stride: depth, count };
        let mut strip = vec![0.0; 32 * 1024 / 2 + 15];
        let strip = aligned(&mut strip);
        for accumulate in [false, true] {
            let mut both = [before.clone(), before.clone()];
            let [of_tiles, of_rows] = both.each_mut().map(|out| Disjoint::new(out));
            // SAFETY: nobody else has these results, and the processor multiplies bf16.
            unsafe {
                let target = Target::new(&of_tiles, 0, columns, accumulate);
                strip::multiply(&Tiles::configure(false), rows, strip, panel, target);
                let target = Target::new(&of_rows, 0, columns, accumulate);
                let none = || LinesAhead::rows(std::ptr::null(), 0, 0, 0, 1);
                let mut ahead = [none(), none()];
                rows::multiply(rows, strip, panel, target, ahead.each_mut());
            }
            assert!(both[0] == both[1], "{count} x {depth} x {columns}, {accumulate}");
            assert!(both[0] != before);
        }
    }
}
