//! Sequences filled up with a token: of x `[batch, tokens, features]` those tokens that are known,
//! then w, of as many elements as there are features. How many are known is an input of one id, or
//! all of x without one.

use protocol::Bytes;

use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::Address;
use crate::backend::cuda::ops::elementwise::TokenShape;
use crate::backend::cuda::ops::pad_tokens::{self, PaddedAt};
use crate::backend::{CudaOperands, CudaOperation, HostOperands, HostOperation, kernels};
use crate::graph::{GraphBuilder, NodeView, Operation, ValueId};
use crate::weights::WeightsError;

/// Its name.
pub const NAME: &str = "PadTokens";

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PadTokensOp;

impl GraphBuilder<'_> {
    /// x `[batch, tokens, features]` as `[batch, to, features]`: its first `known` tokens, an id
    /// `[1]`, or else all, then the stored token `name`, `[1, features]`.
    pub fn pad_tokens(
        &mut self,
        x: ValueId,
        known: Option<ValueId>,
        name: &str,
        to: usize,
    ) -> Result<ValueId, WeightsError> {
        let &[batch, tokens, features] = self.shape(x) else { panic!("no sequences of tokens") };
        assert!(tokens <= to, "padding makes no sequence shorter");
        let weight = self.weight(name, &[1, features])?;
        let inputs = [x].into_iter().chain(known).collect();
        Ok(self.node(PadTokensOp, inputs, vec![weight], &[batch, to, features]))
    }
}

impl Operation for PadTokensOp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn moved_bytes(&self, node: NodeView<'_>) -> Bytes {
        Bytes(2 * node.output().bytes().0)
    }

    fn matrices(&self) -> usize {
        0
    }
}

impl HostOperation for PadTokensOp {
    fn run_on_host(&self, on: &HostOperands<'_>) {
        let x = on.view().input(0); // [batch, tokens, features]
        let known = match on.view().node.inputs.len() {
            1 => x.shape[1],
            _ => usize::try_from(on.ids(1)[0]).expect("a count is no negative number"),
        };
        let (batch, weight) = (x.shape[0], on.weight(0));
        kernels::pad_tokens(on.workers(), on.input(0), batch, known, weight, on.output());
    }
}

impl CudaOperation for PadTokensOp {
    fn run_on_cuda(&self, on: &CudaOperands<'_>) -> Result<(), DriverError> {
        let operands = PaddedAt {
            x: on.input(0),
            tokens: on.view().input(0).shape[1],
            known: match on.view().node.inputs.len() {
                1 => Address::NONE,
                _ => on.input(1),
            },
            padding: on.weight(0),
        };
        let shape = TokenShape::of(on.view().output());
        pad_tokens::pad_tokens(on.launcher(), on.output(), operands, shape)
    }
}
