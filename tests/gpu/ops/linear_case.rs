//! A linear layer that is computed on a GPU and on the host, and how near they have to be.

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::launch::Address;
use executor::backend::cuda::ops::ValueAt;
use executor::backend::cuda::ops::linear::{
    FEW_ROWS, Linear, PART_BYTES_MAX, linear, linear_workspace_bytes, multiplies_bytes,
};
use executor::backend::kernels::{self, Columns, Isa, LinearKernel, LinearShape, Workers};
use executor::graph::{Activation, ElementType};
use protocol::{Bytes, StorageType};

use super::bench::{Bench, Random, Stored};
use super::elements::{UNTOUCHED, bf16_bytes, floats, rounded};

/// A layer with its operands on the host.
pub struct Case {
    pub inputs: Vec<Vec<f32>>,
    pub features: Vec<usize>,
    pub rows: usize,
    pub weight: Stored,
    pub bias: Option<Stored>,
    pub activation: Activation,
    /// Columns of the output before and behind those that are written.
    pub around: [usize; 2],
    pub exact: bool,
    /// Of all inputs.
    pub input_element: ElementType,
    pub out_element: ElementType,
    pub part_bytes_max: Bytes,
}

impl Case {
    pub fn new(
        random: &mut Random,
        storage: StorageType,
        rows: usize,
        features: &[usize],
        out_features: usize,
        exact: bool,
    ) -> Case {
        let depth = features.iter().sum();
        let mut input = |&features: &usize| random.normals(rows * features);
        Case {
            inputs: features.iter().map(&mut input).collect(),
            features: features.to_vec(),
            rows,
            weight: Stored::random(random, storage, &[out_features, depth]),
            bias: None,
            activation: Activation::None,
            around: [0, 0],
            exact,
            input_element: ElementType::F32,
            out_element: ElementType::F32,
            part_bytes_max: PART_BYTES_MAX,
        }
    }

    /// With the first rows only.
    pub fn first_rows(mut self, rows: usize) -> Case {
        for (x, &features) in self.inputs.iter_mut().zip(&self.features) {
            x.truncate(rows * features);
        }
        Case { rows, ..self }
    }

    /// A part of the layer takes at most this of the workspace.
    pub fn in_parts_of(self, part_bytes_max: Bytes) -> Case {
        Case { part_bytes_max, ..self }
    }

    /// With inputs that are bf16 already.
    pub fn of_bf16(self) -> Case {
        Case { input_element: ElementType::BF16, ..self }
    }

    /// With a result of such elements.
    pub fn into(self, element: ElementType) -> Case {
        Case { out_element: element, ..self }
    }

    /// With each row times one of these, by turns.
    pub fn with_rows_times(mut self, factors: &[f32]) -> Case {
        for (x, &features) in self.inputs.iter_mut().zip(&self.features) {
            for (row, factor) in x.chunks_exact_mut(features).zip(factors.iter().cycle()) {
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
        self
    }

    /// With one input, the concatenation of all.
    pub fn joined(self) -> Case {
        let input = (0..self.rows).flat_map(|row| self.row(row)).collect();
        Case { inputs: vec![input], features: vec![self.features.iter().sum()], ..self }
    }

    pub fn with_bias(self, random: &mut Random, storage: StorageType) -> Case {
        let bias = Stored::random(random, storage, &self.weight.shape[..1]);
        Case { bias: Some(bias), ..self }
    }

    pub fn ending(self, activation: Activation, around: [usize; 2]) -> Case {
        Case { activation, around, ..self }
    }

    /// With numbers that are what is stored.
    pub fn unscaled(mut self) -> Case {
        self.weight.scale = 1.0;
        self.bias.iter_mut().for_each(|bias| bias.scale = 1.0);
        self
    }

    pub fn name(&self) -> String {
        let Case { rows, features, weight, activation, exact, input_element, out_element, .. } =
            self;
        let how = if *exact { "exactly" } else { "half" };
        let (storage, out) = (weight.storage, weight.shape[0]);
        let elements = format!("{input_element:?} to {out_element:?}");
        format!("{rows} x {features:?} by {storage} {out}, {activation:?}, {how}, {elements}")
    }

    pub fn shape(&self) -> LinearShape<'_> {
        LinearShape {
            rows: self.rows,
            in_features: &self.features,
            out_features: self.weight.shape[0],
        }
    }

    fn columns(&self) -> Columns {
        let [before, behind] = self.around;
        Columns { stride: before + self.weight.shape[0] + behind, from: before }
    }

    /// `[rows, columns.stride]`, with bits that no product has where nothing is to be written.
    pub fn on_gpu(&self, bench: &Bench) -> Vec<f32> {
        let in_memory = |x: &Vec<f32>| match self.input_element {
            ElementType::BF16 => bench.bytes(&bf16_bytes(x)),
            _ => bench.floats(x),
        };
        let buffers: Vec<Buffer> = self.inputs.iter().map(in_memory).collect();
        let addresses = buffers.iter().map(Buffer::address);
        let inputs: Vec<(Address, usize)> = addresses.zip(self.features.iter().copied()).collect();
        let (_weight, weight) = bench.stored(&self.weight);
        let (_bias, bias) = self.bias.as_ref().map(|bias| bench.stored(bias)).unzip();
        let Case { weight: Stored { storage, .. }, exact, input_element, out_element, .. } = *self;
        let bytes = linear_workspace_bytes(&self.shape(), storage, exact, input_element);
        let workspace = bench.bytes(&vec![0xff; bytes.as_usize().max(1)]);
        let columns = self.columns();
        let out_bytes = self.rows * columns.stride * out_element.bytes() as usize;
        let out = bench.bytes(&vec![0xff; out_bytes]);
        let layer = Linear {
            inputs: &inputs,
            input_element,
            rows: self.rows,
            weight,
            out_features: self.weight.shape[0],
            bias,
            activation: self.activation,
            out: ValueAt { address: out.address(), element: out_element },
            columns,
            exact,
            part_bytes_max: self.part_bytes_max,
            workspace: workspace.address(),
        };
        floats(&bench.run_bytes(&out, |on| linear(on, &layer)), out_element)
    }

    /// Whether this is multiplied as bytes.
    fn is_of_bytes(&self, bench: &Bench) -> bool {
        multiplies_bytes(&bench.launcher(), &self.shape(), self.weight.storage, self.exact)
    }

    /// The same by the host's kernel in f32; or, as bytes, by that for bytes, of activations in
    /// bf16.
    fn on_host(&self, bench: &Bench) -> Vec<f32> {
        if !self.is_of_bytes(bench) {
            let len = kernels::linear_scratch_len(&self.shape(), bench.workers.count());
            return self.by_host_kernel(kernels::linear, &bench.workers, &self.inputs, len);
        }
        // In plain words: tiles of AMX would round weights to bf16.
        let isa = Isa::named("portable").expect("every machine has it");
        let workers = Workers::with_isa(1, isa).expect("a thread");
        let in_bf16 = |x: &Vec<f32>| floats(&bf16_bytes(x), ElementType::BF16);
        let inputs: Vec<Vec<f32>> = self.inputs.iter().map(in_bf16).collect();
        let of_bytes = Case { weight: self.weight.as_bytes(), ..self.copy() };
        let storage = of_bytes.weight.storage;
        let len = kernels::integer_linear_scratch_len(&of_bytes.shape(), storage, 1);
        of_bytes.by_host_kernel(kernels::integer_linear, &workers, &inputs, len)
    }

    fn by_host_kernel(
        &self,
        kernel: LinearKernel,
        workers: &Workers,
        inputs: &[Vec<f32>],
        scratch_len: usize,
    ) -> Vec<f32> {
        let columns = self.columns();
        let mut out = vec![f32::from_bits(UNTOUCHED); self.rows * columns.stride];
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        kernel(
            workers,
            &inputs,
            self.weight.view(),
            self.bias.as_ref().map(Stored::view),
            self.activation,
            &mut out,
            columns,
            &mut vec![0.0; scratch_len],
        );
        out
    }

    /// How far a result may be from the host's, relative to the sum of its products' magnitudes.
    ///
    /// Both sums in f32: a rounding of 2^-24 for each addition at most (Higham, "Accuracy and
    /// Stability of Numerical Algorithms", section 4.2); tensor cores cut off, 2^-23. Operands of
    /// tensor cores: with weights in f16 the activations are rounded to f16, which has 11 bits, by
    /// 2^-11; otherwise to bf16, which has 8, by 2^-8, and so are weights that are not stored so.
    /// Before capability 8.0 the weights become f16, which is nearer.
    fn tolerance(&self) -> f64 {
        let ulp = 2f64.powi(-24);
        let depth = self.weight.shape[1];
        let sums = (depth + 8) as f64 * ulp;
        let whole = (depth as u64).is_multiple_of(self.weight.storage.block_elements());
        let in_f32 = self.rows <= FEW_ROWS || self.exact || !whole;
        match self.weight.storage {
            StorageType::F32 => 2.0 * sums,
            _ if in_f32 => 2.0 * sums,
            StorageType::F16 => 2f64.powi(-11) + 2f64.powi(-20) + 3.0 * sums,
            StorageType::BF16 => 2f64.powi(-8) + 3.0 * sums,
            _ => 2f64.powi(-7) + 2f64.powi(-16) + 3.0 * sums,
        }
    }

    /// The same where both multiply bytes: the whole numbers are equal, and a few roundings follow
    /// for each 32 of the depth.
    fn tolerance_of_bytes(&self) -> f64 {
        (self.weight.shape[1] as f64 / 8.0 + 16.0) * 2f64.powi(-24)
    }

    /// Compares the GPU's result with the host's.
    pub fn check(&self, bench: &Bench) {
        /// The steepest of the activations is GELU, 1.13 (at 1.4).
        const STEEPEST: f64 = 1.13;
        let (found, expected) = (self.on_gpu(bench), self.on_host(bench));
        let Columns { stride, from } = self.columns();
        let is_of_bytes = self.is_of_bytes(bench);
        let tolerance = if is_of_bytes { self.tolerance_of_bytes() } else { self.tolerance() };
        let weights = self.weight.view().to_f32();
        let bias = self.bias.as_ref().map(|bias| bias.view().to_f32());
        let depth = self.weight.shape[1];
        let rows = found.chunks_exact(stride).zip(expected.chunks_exact(stride));
        for (row, (found, expected)) in rows.enumerate() {
            let x = self.row(row);
            for (column, (found, expected)) in found.iter().zip(expected).enumerate() {
                let Some(w) = column
                    .checked_sub(from)
                    .and_then(|column| weights.chunks_exact(depth).nth(column))
                else {
                    assert_eq!(found.to_bits(), UNTOUCHED, "{}: [{row}, {column}]", self.name());
                    continue;
                };
                // Bytes may be as large as the largest weight.
                let largest = w.iter().fold(0.0_f32, |largest, w| largest.max(w.abs()));
                let factor = |w: f32| if is_of_bytes { largest } else { w };
                let products = x.iter().zip(w).map(|(&x, &w)| f64::from(x * factor(w)).abs());
                let bias = bias.as_ref().map_or(0.0, |bias| bias[column - from]);
                let magnitude = products.sum::<f64>() + f64::from(bias).abs();
                // Activations are good to 1e-6 on either side; subnormal weights lose up to 2^-25
                // each as f16.
                let subnormal = x.iter().map(|&x| f64::from(x).abs()).sum::<f64>() * 2f64.powi(-25);
                let allowed = STEEPEST * (tolerance * magnitude + subnormal)
                    + 2e-6 * f64::from(*expected).abs()
                    + 1e-9;
                // And what is rounded to 16 bits is off by its last place once more.
                let allowed = allowed + self.rounding(*expected);
                let expected = rounded(*expected, self.out_element);
                let error = (f64::from(*found) - f64::from(expected)).abs();
                let place = format!("{}: [{row}, {column}]", self.name());
                assert!(error <= allowed, "{place}: {found}, not {expected} within {allowed:e}");
            }
        }
    }

    /// A last place of the result's elements, at a number; no more than f16's largest are rounded.
    fn rounding(&self, x: f32) -> f64 {
        match self.out_element {
            ElementType::F16 => f64::from(x.abs()) * 2f64.powi(-10) + 2f64.powi(-24),
            ElementType::BF16 => f64::from(x.abs()) * 2f64.powi(-7),
            ElementType::F32 | ElementType::I32 => 0.0,
        }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let parts = self.inputs.iter().zip(&self.features);
        parts.flat_map(|(x, &f)| x[row * f..][..f].iter().copied()).collect()
    }

    /// Only these rows of the inputs.
    pub fn of_rows(&self, rows: std::ops::Range<usize>) -> Case {
        let parts = self.inputs.iter().zip(&self.features);
        let inputs = parts.map(|(x, &f)| x[rows.start * f..rows.end * f].to_vec()).collect();
        Case { inputs, rows: rows.len(), ..self.copy() }
    }

    /// Only these rows of the weight.
    pub fn of_columns(&self, columns: std::ops::Range<usize>) -> Case {
        let part = |stored: &Stored| {
            let rows = stored.shape[0];
            let row_bytes = stored.bytes.len() / rows;
            let mut shape = stored.shape.clone();
            shape[0] = columns.len();
            let bytes = stored.bytes[columns.start * row_bytes..columns.end * row_bytes].to_vec();
            Stored { storage: stored.storage, shape, bytes, scale: stored.scale }
        };
        let [before, behind] = self.around;
        let around = [before + columns.start, behind + self.weight.shape[0] - columns.end];
        Case {
            weight: part(&self.weight),
            bias: self.bias.as_ref().map(part),
            around,
            ..self.copy()
        }
    }

    pub fn copy(&self) -> Case {
        Case {
            inputs: self.inputs.clone(),
            features: self.features.clone(),
            rows: self.rows,
            weight: self.weight.copy(),
            bias: self.bias.as_ref().map(Stored::copy),
            activation: self.activation,
            around: self.around,
            exact: self.exact,
            input_element: self.input_element,
            out_element: self.out_element,
            part_bytes_max: self.part_bytes_max,
        }
    }
}
