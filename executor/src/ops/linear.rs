//! Matrix product with weights `[out, in]`, bias `[out]` if there is a second weight, then an
//! activation. Several inputs are read as if concatenated along features.

use protocol::profile::WorkKind;
use protocol::{Bytes, StorageType};

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::Address;
use crate::backend::cuda::ops::convert::INPUTS_MAX;
use crate::backend::cuda::ops::linear::{self, AfterSums, Linear};
use crate::backend::cuda::ops::{Products, products};
use crate::backend::kernels::{self, LinearShape};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation};
use crate::graph::{
    Activation, Cutting, ElementType, Few, GraphBuilder, NodeView, Operation, ValueId, WeightId,
};
use crate::schedule::{Assignment, Elements, Reading};
use crate::weights::WeightsError;
use crate::weights::lora::LinearAdapter;

/// Its name.
pub const NAME: &str = "Linear";

/// The operation, with what follows the bias.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinearOp(pub Activation);

impl GraphBuilder<'_> {
    /// `prefix.weight` `[out, Σ features]` and `prefix.bias`, plus what the files have beside that
    /// weight, then an activation.
    pub fn linear(
        &mut self,
        xs: &[ValueId],
        prefix: &str,
        out: usize,
        activation: Activation,
    ) -> Result<ValueId, WeightsError> {
        self.matmul(xs, prefix, out, true, activation)
    }

    /// As [`GraphBuilder::linear`] without a bias.
    pub fn linear_no_bias(
        &mut self,
        x: ValueId,
        prefix: &str,
        out: usize,
        activation: Activation,
    ) -> Result<ValueId, WeightsError> {
        self.matmul(&[x], prefix, out, false, activation)
    }

    /// As [`GraphBuilder::linear_no_bias`] of several inputs.
    pub fn joined_linear_no_bias(
        &mut self,
        xs: &[ValueId],
        prefix: &str,
        out: usize,
    ) -> Result<ValueId, WeightsError> {
        self.matmul(xs, prefix, out, false, Activation::None)
    }

    /// A convolution of patches that do not overlap, as a product: `prefix.weight` `[out, channels,
    /// patch, patch]` and `prefix.bias`. Of x `[.., channels × patch × patch]` the features are a
    /// patch's, channel by channel.
    pub fn linear_of_patches(
        &mut self,
        x: ValueId,
        prefix: &str,
        [out, channels, patch]: [usize; 3],
    ) -> Result<ValueId, WeightsError> {
        assert_eq!(self.features(x), channels * patch * patch, "x has a patch's features");
        let weight = self.weight(&format!("{prefix}.weight"), &[out, channels, patch, patch])?;
        let bias = self.weight(&format!("{prefix}.bias"), &[out])?;
        Ok(self.product(&[x], vec![weight, bias], out, Activation::None))
    }

    fn matmul(
        &mut self,
        xs: &[ValueId],
        prefix: &str,
        out: usize,
        bias: bool,
        activation: Activation,
    ) -> Result<ValueId, WeightsError> {
        let inner = xs.iter().map(|&x| self.features(x)).sum();
        let name = format!("{prefix}.weight");
        let mut weights = vec![self.weight(&name, &[out, inner])?];
        if bias {
            weights.push(self.weight(&format!("{prefix}.bias"), &[out])?);
        }
        let adapters = self.files().adapters(&name);
        if adapters.is_empty() {
            return Ok(self.product(xs, weights, out, activation));
        }
        let mut y = self.product(xs, weights, out, Activation::None); // [.., out]
        for adapter in adapters {
            y = self.adapt(xs, y, adapter)?;
        }
        self.adapted.insert(name);
        Ok(if activation == Activation::None { y } else { self.activate(y, activation) })
    }

    /// y plus an adapter's product with xs.
    fn adapt(
        &mut self,
        xs: &[ValueId],
        y: ValueId,
        adapter: &LinearAdapter,
    ) -> Result<ValueId, WeightsError> {
        let inner = xs.iter().map(|&x| self.features(x)).sum();
        let a = self.weight(&adapter.a, &[adapter.rank, inner])?;
        let b = self.weight(&adapter.b, &[adapter.rows, adapter.rank])?;
        let key = (xs.to_vec(), a);
        let h = match self.narrowed.get(&key) {
            Some(&h) => h,
            None => {
                let h = self.product(xs, vec![a], adapter.rank, Activation::None); // [.., rank]
                self.narrowed.insert(key, h);
                h
            }
        };
        let change = self.product(&[h], vec![b], adapter.rows, Activation::None); // [.., rows]
        Ok(self.scaled_add(y, change, adapter.scale, adapter.first_row))
    }

    fn product(
        &mut self,
        xs: &[ValueId],
        weights: Vec<WeightId>,
        out: usize,
        activation: Activation,
    ) -> ValueId {
        let mut shape = self.shape(xs[0]).to_vec();
        *shape.last_mut().expect("values have dimensions") = out;
        self.node(LinearOp(activation), xs.to_vec(), weights, &shape)
    }
}

impl Operation for LinearOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn work_kind(&self, node: NodeView<'_>) -> WorkKind {
        WorkKind::Matmul(node.storage(0).expect("a linear layer has weights"))
    }

    fn flops(&self, node: NodeView<'_>) -> f64 {
        let inner: usize = in_features(node).iter().sum();
        2.0 * node.output().elements() as f64 * inner as f64
    }

    fn is_product(&self) -> bool {
        true
    }

    fn is_by_token(&self) -> bool {
        true
    }

    fn cutting(&self, _: NodeView<'_>) -> Cutting {
        Cutting::Product { sums: self.0 == Activation::None }
    }
}

/// The features of each input.
fn in_features(node: NodeView<'_>) -> Few<usize> {
    node.inputs().map(|input| input.features()).collect()
}

fn shape<'f>(node: NodeView<'_>, in_features: &'f [usize], out_features: usize) -> LinearShape<'f> {
    LinearShape { rows: node.tokens(), in_features, out_features }
}

/// Whether the host forms a layer's products of bytes.
fn integer_products(storage: StorageType, in_features: usize, assignment: &Assignment) -> bool {
    !assignment.exact_matmul && kernels::has_integer_products(storage, in_features)
}

/// Whether activations may be rounded to bf16 for a weight of a type.
pub(super) fn bf16_products(storage: StorageType, assignment: &Assignment) -> bool {
    !assignment.exact_matmul && storage == StorageType::BF16
}

impl HostOperation for LinearOp {
    fn host_workspace_len(
        &self,
        node: NodeView<'_>,
        out_features: usize,
        assignment: &Assignment,
    ) -> usize {
        let in_features = in_features(node);
        let (shape, threads) = (shape(node, &in_features, out_features), assignment.threads);
        let features = in_features.iter().sum();
        match node.storage(0) {
            Some(storage) if integer_products(storage, features, assignment) => {
                kernels::integer_linear_scratch_len(&shape, storage, threads)
            }
            _ => kernels::linear_scratch_len(&shape, threads),
        }
    }

    fn run_on_host(&self, on: &HostOperands<'_>) {
        let (tensor, rows, bytes) = on.weight_rows(0);
        // A 1 x 1 convolution's [out, in, 1, 1] is a matrix too.
        let shape = [rows, tensor.shape()[1..].iter().product()];
        let weight = tensor.view_of(&shape, bytes);
        let bias_shape = [rows];
        let bias = on.view().storage(1).map(|_| {
            let (tensor, _, bytes) = on.weight_rows(1);
            tensor.view_of(&bias_shape, bytes)
        });
        let kernel = match weight.storage {
            storage if integer_products(storage, shape[1], on.assignment()) => {
                kernels::integer_linear
            }
            storage if bf16_products(storage, on.assignment()) => kernels::bf16_linear,
            _ => kernels::linear,
        };
        let (workers, out, columns) = (on.workers(), on.output(), on.columns());
        let workspace = on.workspace();
        let one = [on.input(0)];
        match on.view().node.inputs.len() {
            1 => kernel(workers, &one, weight, bias, self.0, out, columns, workspace),
            2 => {
                let two = [on.input(0), on.input(1)];
                kernel(workers, &two, weight, bias, self.0, out, columns, workspace);
            }
            more => unreachable!("no family joins {more} inputs"),
        }
    }
}

/// Whether a node's products are formed in f32.
fn is_exact(node: NodeView<'_>, assignment: &Assignment) -> bool {
    products(node, assignment) == Products::Exact
}

impl CudaOperation for LinearOp {
    fn cuda_workspace_bytes(
        &self,
        node: NodeView<'_>,
        elements: &Elements,
        out_features: usize,
        assignment: &Assignment,
    ) -> Bytes {
        let in_features = in_features(node);
        let shape = shape(node, &in_features, out_features);
        let storage = node.storage(0).expect("a linear layer has weights");
        let element = elements.of(node.node.inputs[0]);
        linear::linear_workspace_bytes(&shape, storage, is_exact(node, assignment), element)
    }

    fn cuda_reading(&self, node: NodeView<'_>, index: usize, assignment: &Assignment) -> Reading {
        let Some(storage) = node.storage(0) else {
            return Reading::As(node.input(index).element);
        };
        let in_features = in_features(node);
        let shape = shape(node, &in_features, node.output().features());
        Reading::WithOthersAs(linear::reads(&shape, storage, is_exact(node, assignment)))
    }

    fn cuda_writes(
        &self,
        node: NodeView<'_>,
        element: ElementType,
        assignment: &Assignment,
    ) -> bool {
        let Some(storage) = node.storage(0) else { return false };
        let in_features = in_features(node);
        let shape = shape(node, &in_features, node.output().features());
        let after = AfterSums { bias: node.storage(1), activation: self.0 };
        linear::writes(&shape, storage, is_exact(node, assignment), &after, element)
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let mut inputs = [(Address::NONE, 0); INPUTS_MAX];
        let inputs = &mut inputs[..on.view().node.inputs.len()];
        for (index, input) in inputs.iter_mut().enumerate() {
            *input = (on.input(index), on.view().input(index).features());
        }
        let layer = Linear {
            inputs,
            input_element: on.input_at(0).element,
            rows: on.view().tokens(),
            weight: on.weight(0),
            out_features: on.weight_rows(0),
            bias: on.view().storage(1).map(|_| on.weight(1)),
            activation: self.0,
            out: on.output_at(),
            columns: on.columns(),
            exact: on.products() == Products::Exact,
            part_bytes_max: linear::PART_BYTES_MAX,
            workspace: on.workspace(),
        };
        linear::linear(on.launcher(), &layer)
    }
}
