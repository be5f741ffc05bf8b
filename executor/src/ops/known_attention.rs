//! Attention over sequences of which only the first tokens are known, as many in each: a fourth
//! input of one id says how many. Those behind them fill the sequences up, and no query sees them.
//!
//! Else as [`attention`](super::attention), over k and v of one batch.

use protocol::Bytes;
use protocol::profile::WorkKind;

use super::attention::AttentionOp;
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::ops::attention::{AttentionOperands, attention};
use crate::backend::kernels::{self, AttentionShape};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation};
use crate::graph::{Cutting, ElementType, GraphBuilder, NodeOp, NodeView, Operation, ValueId};
use crate::schedule::{Assignment, Elements, Reading};

/// Its name.
pub const NAME: &str = "KnownAttention";

/// The operation: attention without biases.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownAttentionOp(AttentionOp);

impl GraphBuilder<'_> {
    /// Attention of q over the first `known` tokens, an id `[1]`, of k and v.
    pub fn known_attention(
        &mut self,
        qkv: [ValueId; 3],
        known: ValueId,
        op: AttentionOp,
    ) -> ValueId {
        assert!(!op.causal, "what follows a token is hidden from it in any case");
        assert_eq!(self.shape(known), [1], "one count for all sequences");
        self.same_shape(KnownAttentionOp(op), qkv.into_iter().chain([known]).collect(), vec![])
    }
}

impl Operation for KnownAttentionOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn work_kind(&self, node: NodeView<'_>) -> WorkKind {
        self.0.work_kind(node)
    }

    fn flops(&self, node: NodeView<'_>) -> f64 {
        self.0.flops(node)
    }

    fn cutting(&self, _: NodeView<'_>) -> Cutting {
        Cutting::Along { inputs: 3, units: self.0.kv_heads }
    }

    fn on_units(&self, units: usize, of: usize) -> Option<NodeOp> {
        let [heads, kv_heads] = [self.0.heads, self.0.kv_heads].map(|heads| heads * units / of);
        Some(KnownAttentionOp(AttentionOp { heads, kv_heads, ..self.0.clone() }).into())
    }
}

impl HostOperation for KnownAttentionOp {
    fn host_workspace_len(&self, node: NodeView<'_>, _: usize, assignment: &Assignment) -> usize {
        kernels::attention_scratch_len(&self.0.shape(node, assignment), assignment.threads)
    }

    fn run_on_host(&self, on: &HostOperands<'_>) {
        let all = self.0.shape(on.view(), on.assignment());
        let known = usize::try_from(on.ids(3)[0]).expect("a count is no negative number");
        let key_tokens = known.min(all.key_tokens);
        assert!(key_tokens > 0, "a softmax is over some keys");
        let shape = AttentionShape { batch: 1, key_tokens, ..all };
        let [q, k, v] = [0, 1, 2].map(|index| on.input(index));
        let (queries, keys) = (q.len() / all.batch, k.len() / all.batch);
        let seen = keys / all.key_tokens * key_tokens;
        let items = q.chunks_exact(queries).zip(k.chunks_exact(keys).zip(v.chunks_exact(keys)));
        for ((q, (k, v)), out) in items.zip(on.output().chunks_exact_mut(queries)) {
            let (workers, workspace) = (on.workers(), on.workspace());
            kernels::attention(workers, &shape, q, &k[..seen], &v[..seen], None, out, workspace);
        }
    }
}

impl CudaOperation for KnownAttentionOp {
    fn cuda_workspace_bytes(
        &self,
        node: NodeView<'_>,
        elements: &Elements,
        out_features: usize,
        assignment: &Assignment,
    ) -> Bytes {
        self.0.cuda_workspace_bytes(node, elements, out_features, assignment)
    }

    fn cuda_reading(&self, node: NodeView<'_>, index: usize, assignment: &Assignment) -> Reading {
        self.0.cuda_reading(node, index, assignment)
    }

    fn cuda_writes(
        &self,
        node: NodeView<'_>,
        element: ElementType,
        assignment: &Assignment,
    ) -> bool {
        self.0.cuda_writes(node, element, assignment)
    }

    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let operands = AttentionOperands {
            qkv: [0, 1, 2].map(|index| on.input_at(index)),
            bias: AttentionOperands::NO_BIAS,
            known: on.input(3),
            out: on.output_at(),
        };
        let shape = self.0.shape(on.view(), on.assignment());
        attention(on.launcher(), &shape, on.products(), operands, on.workspace())
    }
}
