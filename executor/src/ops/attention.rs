//! Scaled dot-product attention over q `[batch, tokens, heads × head_dim]` and k, v `[batch,
//! tokens, kv_heads × head_dim]`; a fourth input `[heads, 2 × tokens - 1]` is added to the scores
//! by distance, or, of one id, says how many of the keys are seen at all.

use protocol::profile::WorkKind;
use protocol::{Bytes, StorageType};

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::Address;
use crate::backend::cuda::ops::{Products, attention, products};
use crate::backend::kernels::{self, AttentionShape};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation};
use crate::graph::{
    Cutting, ElementType, GraphBuilder, NodeOp, NodeView, Operation, Value, ValueId,
};
use crate::schedule::{Assignment, Elements, Reading};

/// Its name.
pub const NAME: &str = "Attention";

/// The operation.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionOp {
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values, which divide those of the queries.
    pub kv_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Whether a token sees only itself and earlier ones.
    pub causal: bool,
}

impl GraphBuilder<'_> {
    /// Attention of q over k and v, with an optional bias by distance.
    pub fn attention(
        &mut self,
        qkv: [ValueId; 3],
        bias: Option<ValueId>,
        op: AttentionOp,
    ) -> ValueId {
        let inputs = qkv.into_iter().chain(bias).collect();
        self.same_shape(op, inputs, vec![])
    }

    /// Attention of q over the first keys of k and v: `known`, an id `[1]` of 1 or more, says how
    /// many. Those behind them are padding, which no token sees, itself included.
    pub fn masked_attention(
        &mut self,
        qkv: [ValueId; 3],
        known: ValueId,
        op: AttentionOp,
    ) -> ValueId {
        let inputs = qkv.into_iter().chain([known]).collect();
        self.same_shape(op, inputs, vec![])
    }
}

impl Operation for AttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn work_kind(&self, _: NodeView<'_>) -> WorkKind {
        WorkKind::Attention
    }

    fn flops(&self, node: NodeView<'_>) -> f64 {
        let keys = node.input(1).shape[1] as f64;
        4.0 * node.output().elements() as f64 * keys
    }

    fn cutting(&self, node: NodeView<'_>) -> Cutting {
        // Biases by distance are of each head, and no features.
        match is_biased(node) {
            true => Cutting::Whole,
            false => Cutting::Along { inputs: 3, units: self.kv_heads },
        }
    }

    fn on_units(&self, units: usize, of: usize) -> Option<NodeOp> {
        let [heads, kv_heads] = [self.heads, self.kv_heads].map(|heads| heads * units / of);
        Some(AttentionOp { heads, kv_heads, ..self.clone() }.into())
    }
}

impl AttentionOp {
    fn shape(&self, node: NodeView<'_>, assignment: &Assignment) -> AttentionShape {
        let (q, k) = (node.input(0), node.input(1));
        // NHWC values are taken as [batch, height × width, channels].
        let tokens = |value: &Value| value.rows() / value.shape[0];
        AttentionShape {
            batch: q.shape[0],
            query_tokens: tokens(q),
            key_tokens: tokens(k),
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: q.features() / self.heads,
            scale: self.scale,
            causal: self.causal,
            query_chunk: assignment.attention_chunk,
            rounds: rounds(node, assignment),
        }
    }
}

/// Whether operands may be rounded to bf16: they may where those of products around them are.
fn rounds(node: NodeView<'_>, assignment: &Assignment) -> bool {
    let graph = node.graph;
    let storage = |node| graph.view(node).storage(0);
    let products = graph.nodes.iter().filter(|node| node.op.is_product());
    !assignment.exact_matmul && products.filter_map(storage).any(StorageType::has_rounded_products)
}

/// Whether biases are added to the scores.
fn is_biased(node: NodeView<'_>) -> bool {
    has_fourth(node, ElementType::F32)
}

/// Whether some keys are padding.
fn is_masked(node: NodeView<'_>) -> bool {
    has_fourth(node, ElementType::I32)
}

fn has_fourth(node: NodeView<'_>, element: ElementType) -> bool {
    node.node.inputs.len() > 3 && node.input(3).element == element
}

impl HostOperation for AttentionOp {
    fn host_workspace_len(&self, node: NodeView<'_>, _: usize, assignment: &Assignment) -> usize {
        kernels::attention_scratch_len(&self.shape(node, assignment), assignment.threads)
    }

    fn run_on_host(&self, on: &HostOperands<'_>) {
        let shape = self.shape(on.view(), on.assignment());
        let (q, k, v) = (on.input(0), on.input(1), on.input(2));
        let bias = is_biased(on.view()).then(|| on.input(3));
        let known = match is_masked(on.view()) {
            true => usize::try_from(on.ids(3)[0]).expect("a count is no negative number"),
            false => shape.key_tokens,
        };
        let (out, workspace) = (on.output(), on.workspace());
        kernels::masked_attention(on.workers(), &shape, known, q, k, v, bias, out, workspace);
    }
}

impl CudaOperation for AttentionOp {
    fn cuda_workspace_bytes(
        &self,
        node: NodeView<'_>,
        elements: &Elements,
        _: usize,
        assignment: &Assignment,
    ) -> Bytes {
        let shape = self.shape(node, assignment);
        let qkv = [0, 1, 2].map(|index| elements.of(node.node.inputs[index]));
        attention::attention_workspace_bytes(&shape, products(node, assignment), qkv)
    }

    fn cuda_reading(&self, node: NodeView<'_>, index: usize, assignment: &Assignment) -> Reading {
        if index == 3 {
            return Reading::As(node.input(index).element);
        }
        let shape = self.shape(node, assignment);
        Reading::As(attention::reads(&shape, products(node, assignment)))
    }

    fn cuda_writes(
        &self,
        node: NodeView<'_>,
        element: ElementType,
        assignment: &Assignment,
    ) -> bool {
        products(node, assignment) == Products::Half && element == ElementType::BF16
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let shape = self.shape(on.view(), on.assignment());
        let qkv = [0, 1, 2].map(|index| on.input_at(index));
        let bias =
            if is_biased(on.view()) { on.input(3) } else { attention::AttentionOperands::NO_BIAS };
        let known = if is_masked(on.view()) { on.input(3) } else { Address::NONE };
        let operands = attention::AttentionOperands { qkv, bias, known, out: on.output_at() };
        attention::attention(on.launcher(), &shape, on.products(), operands, on.workspace())
    }
}
