//! Linear layers: activations times stored weights, plus bias, through an activation function.
//!
//! A task takes a panel of weight rows, widens one block of the summed dimension of it at a time
//! into its worker's scratch, and multiplies all its activation rows with that.

use super::math::apply;
use super::simd::Isa;
use super::tile::{
    Grid, Rows, Target, aligned, depth_block_max, depth_blocks, multiply_rows, panel_len,
    panel_stride, task_columns,
};
use super::widen::widen;
use super::workers::{Disjoint, Workers};
use crate::graph::Activation;
use crate::weights::view::WeightView;

/// Weight rows of a task: 384 KiB when widened, which a second level cache of 1 MiB holds.
const PANEL_COLUMNS: usize = 96;

/// Up to so many activation rows the weights are read from memory faster than they could be kept
/// in the second level cache: panels then fit the first.
const FEW_ROWS: usize = 8;

/// Weight rows of a panel for few activation rows: 24 KiB when widened.
const FEW_ROWS_PANEL_COLUMNS: usize = 6;

/// Fewer activation rows than this are not worth widening a panel for a second time.
const TASK_ROWS_MIN: usize = 64;

/// The most inputs that a linear layer takes.
const INPUTS_MAX: usize = 4;

/// The sizes of a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape<'a> {
    /// All leading dimensions of the input together.
    pub rows: usize,
    /// The features of each input; the weight has their sum.
    pub in_features: &'a [usize],
    /// The features of the output.
    pub out_features: usize,
}

/// How many elements of scratch [`linear`] needs with so many workers.
pub fn linear_scratch_len(shape: &LinearShape<'_>, workers: usize) -> usize {
    workers * worker_scratch_len(shape)
}

fn worker_scratch_len(shape: &LinearShape<'_>) -> usize {
    let depth = shape.in_features.iter().map(|&part| depth_block_max(part)).max().unwrap_or(0);
    panel_len(panel_columns(shape.rows).min(task_columns(shape.out_features, PANEL_COLUMNS)), depth)
}

fn panel_columns(rows: usize) -> usize {
    if rows <= FEW_ROWS { FEW_ROWS_PANEL_COLUMNS } else { PANEL_COLUMNS }
}

/// Which columns of its output a linear layer writes: as many as its weight has rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    /// Elements from one row of the output to the next.
    pub stride: usize,
    /// The first column that is written.
    pub from: usize,
}

impl Columns {
    /// All columns of an output of so many.
    pub fn all(features: usize) -> Columns {
        Columns { stride: features, from: 0 }
    }
}

/// `out[columns] = activation(cat(inputs) · weightᵀ + bias)`.
///
/// `inputs`: one to four `[rows, in]`, thought concatenated along the features. `weight`:
/// `[out, sum of in]`, or a 1 x 1 convolution's `[out, in, 1, 1]`. `bias`: `[out]`. `out`:
/// `[rows, stride]`, of which `out` columns are written. `scratch`: [`linear_scratch_len`].
#[expect(clippy::too_many_arguments, reason = "each is an operand of the operation")]
pub fn linear(
    workers: &Workers,
    inputs: &[&[f32]],
    weight: WeightView<'_>,
    bias: Option<WeightView<'_>>,
    activation: Activation,
    out: &mut [f32],
    columns: Columns,
    scratch: &mut [f32],
) {
    let out_features = weight.shape[0];
    let stride = columns.stride;
    let rows = out.len() / stride;
    assert!((1..=INPUTS_MAX).contains(&inputs.len()), "1 to 4 inputs");
    assert!(rows > 0 && out.len() == rows * stride, "out is not [rows, {stride}]");
    assert!(columns.from + out_features <= stride, "{out_features} columns beyond {stride}");
    let mut parts = [0; INPUTS_MAX];
    for (part, input) in parts.iter_mut().zip(inputs) {
        *part = input.len() / rows;
        assert!(*part > 0 && input.len() == rows * *part, "an input is not [{rows}, features]");
    }
    let in_features = parts.iter().sum();
    assert_eq!(weight.shape.iter().product::<usize>(), out_features * in_features, "weight");
    assert!(bias.is_none_or(|bias| bias.shape == [out_features]), "bias is not [{out_features}]");

    let shape = LinearShape { rows, in_features: &parts[..inputs.len()], out_features };
    let operands = Operands { shape, in_features, inputs, weight, bias, activation, out: columns };
    let grid = Grid::new(rows, out_features, PANEL_COLUMNS, TASK_ROWS_MIN, workers.count());
    let operations = 2 * rows * in_features * out_features;
    let scratch_len = worker_scratch_len(&shape);
    let out = Disjoint::new(out);
    workers.for_each_with(grid.tasks(), operations, scratch, scratch_len, |scratch, task| {
        let (rows, columns) = grid.task(task);
        for from in columns.clone().step_by(panel_columns(shape.rows)) {
            let panel = from..columns.end.min(from + panel_columns(shape.rows));
            operands.multiply(workers.isa(), rows.clone(), panel.clone(), &out, scratch);
            operands.finish(workers.isa(), rows.clone(), panel, &out);
        }
    });
}

/// What all tasks of one call share.
struct Operands<'a> {
    shape: LinearShape<'a>,
    in_features: usize,
    inputs: &'a [&'a [f32]],
    weight: WeightView<'a>,
    bias: Option<WeightView<'a>>,
    activation: Activation,
    out: Columns,
}

impl Operands<'_> {
    /// The products of some rows with a panel of weight rows.
    fn multiply(
        &self,
        isa: Isa,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
        out: &Disjoint<'_>,
        scratch: &mut [f32],
    ) {
        let panel = aligned(scratch);
        let mut first = 0; // of the present input's features, among all
        for (input, &part) in self.inputs.iter().zip(self.shape.in_features) {
            for (from, depth) in depth_blocks(part) {
                let stride = panel_stride(depth);
                for (column, row) in columns.clone().zip(panel.chunks_mut(stride)) {
                    let at = column * self.in_features + first + from;
                    widen(isa, self.weight, at, &mut row[..depth]);
                }
                let values = &input[rows.start * part + from..];
                let a = Rows { values, stride: part, count: rows.len() };
                let b = Rows { values: panel, stride, count: columns.len() };
                let Columns { stride: n, from: left } = self.out;
                let begin = rows.start * n + left + columns.start;
                // SAFETY: no other task has these rows and columns.
                let target = unsafe { Target::new(out, begin, n, first + from > 0) };
                multiply_rows(isa, a, b, depth, target);
            }
            first += part;
        }
    }

    /// Bias and activation of the elements that [`Operands::multiply`] made.
    fn finish(
        &self,
        isa: Isa,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
        out: &Disjoint<'_>,
    ) {
        if self.bias.is_none() && self.activation == Activation::None {
            return;
        }
        let mut bias = [0.0; PANEL_COLUMNS];
        let bias = &mut bias[..columns.len()];
        if let Some(stored) = self.bias {
            widen(isa, stored, columns.start, bias);
        }
        for row in rows {
            let from = row * self.out.stride + self.out.from + columns.start;
            // SAFETY: no other task has this row and these columns.
            let values = unsafe { out.range(from..from + columns.len()) };
            values.iter_mut().zip(&*bias).for_each(|(value, bias)| *value += bias);
            apply(isa, self.activation, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::StorageType;

    use super::*;
    use crate::backend::kernels::testing::{
        Random, Stored, assert_close, for_each_workers, scratch,
    };

    const STORAGES: [StorageType; 3] = [StorageType::F32, StorageType::F16, StorageType::BF16];

    fn reference(
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
        let bias = with_bias.then(|| Stored::random(&mut random, storage, &[n]));
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
        for storage in STORAGES {
            check(1, &[1], 1, storage, true);
            check(3, &[17], 5, storage, false);
            check(9, &[33], 100, storage, true);
            check(65, &[16], 7, storage, true);
        }
    }

    #[test]
    fn many_blocks_tasks_and_inputs_match_the_reference() {
        check(7, &[1500], 301, StorageType::BF16, true);
        check(8, &[2100], 97, StorageType::F16, false);
        check(200, &[130, 1100, 1, 40], 205, StorageType::BF16, true);
        check(150, &[1025], 100, StorageType::F32, true);
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

    #[test]
    fn rows_computed_alone_equal_rows_computed_together() {
        let mut random = Random::new(5);
        let (rows, k, n) = (70, 1300, 120);
        let x = random.normals(rows * k);
        let weight = Stored::random(&mut random, StorageType::BF16, &[n, k]);
        let workers = Workers::new(2).unwrap();
        let run = |x: &[f32]| {
            let shape = LinearShape { rows: x.len() / k, in_features: &[k], out_features: n };
            let mut out = vec![0.0; x.len() / k * n];
            let mut scratch = scratch(linear_scratch_len(&shape, 2));
            let none = Activation::None;
            let all = Columns::all(n);
            linear(&workers, &[x], weight.view(), None, none, &mut out, all, &mut scratch);
            out
        };
        let together = run(&x);
        assert_eq!(run(&x[13 * k..16 * k]), together[13 * n..16 * n]);
    }
}
