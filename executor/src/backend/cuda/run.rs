//! Runs a node on a GPU: hands the kernels of its operation to the compute stream.
//!
//! Addresses are those of the schedule's places; nothing is allocated, and nothing is waited for.

use protocol::StorageType;

use super::driver::DriverError;
use super::launch::{Address, Launcher, StoredWeight};
use super::ops::convert::INPUTS_MAX;
use super::ops::elementwise::{ChunksAt, ScaledPart, TokenShape};
use super::ops::linear::{Linear, linear};
use super::ops::norm::ShiftAndScale;
use super::ops::{Products, ValueAt, attention, conv, elementwise, norm, reads_vectors_of, tokens};
use crate::backend::NodeCall;
use crate::backend::kernels::Columns;
use crate::backend::run::{attention_shape, conv_shape, group_norm_shape};
use crate::graph::{Activation, ConvOp, Graph, Node, Normalization, Op, Value, Weight};
use crate::schedule::{Assignment, Run};

/// How the products of a node are formed: in f32 where that is asked for, or where weights are stored so.
pub fn products(graph: &Graph, node: &Node, assignment: &Assignment) -> Products {
    let storage = node.weights.first().map(|weight| graph.weights[weight.0].tensor.storage());
    match storage {
        _ if assignment.exact_matmul => Products::Exact,
        Some(StorageType::F32) => Products::Exact,
        Some(_) | None => Products::Half,
    }
}

/// A weight of a graph that no kernel reads as it is stored: matrices may be in any type, biases and what belongs to norms only
/// in those without blocks, as files have them.
pub fn unread(graph: &Graph) -> Option<&Weight> {
    let vectors = graph.nodes.iter().flat_map(|node| match node.op {
        Op::Norm(_) => &node.weights[..],
        _ => node.weights.get(1..).unwrap_or_default(),
    });
    let mut vectors = vectors.map(|id| &graph.weights[id.0]);
    vectors.find(|weight| !reads_vectors_of(weight.tensor.storage()))
}

/// Starts the kernels of a node.
pub(super) fn run(call: &NodeCall<'_>, on: &Launcher<'_>) -> Result<(), DriverError> {
    Running { call, on }.run()
}

struct Running<'a> {
    call: &'a NodeCall<'a>,
    on: &'a Launcher<'a>,
}

impl Running<'_> {
    fn run(&self) -> Result<(), DriverError> {
        let (call, on, out) = (self.call, self.on, self.output());
        let node = call.node();
        let elements = call.output().elements();
        match &node.op {
            Op::Embedding => {
                let (rows, features) = rows_of(call.output());
                tokens::embedding(on, out, self.input(0), self.weight(0), rows, features)
            }
            Op::AddPositions => {
                let shape = token_shape(call.output());
                tokens::add_positions(on, out, self.input(0), shape, self.weight(0))
            }
            Op::Linear(activation) => self.linear(*activation),
            Op::Activate(activation) => {
                elementwise::activate(on, out, self.input(0), elements, *activation)
            }
            Op::Norm(norm) => self.norm(norm),
            Op::AdaLayerNorm { eps, shift_chunk, scale_chunk } => {
                let by = ShiftAndScale {
                    modulation: self.chunks(1),
                    shift_chunk: *shift_chunk,
                    scale_chunk: *scale_chunk,
                };
                let shape = token_shape(call.output());
                norm::ada_layer_norm(on, self.result(), self.input(0), shape, by, *eps)
            }
            Op::Add => elementwise::add(on, out, [self.input(0), self.input(1)], elements),
            Op::Mul => elementwise::mul(on, out, [self.input(0), self.input(1)], elements),
            Op::GatedAdd { gate_chunk } => {
                let (terms, shape) = ([self.input(0), self.input(1)], token_shape(call.output()));
                elementwise::gated_add(on, out, terms, shape, self.chunks(2), *gate_chunk)
            }
            Op::ScaledAdd { scale, first_feature } => {
                let (rows, features) = rows_of(call.output());
                let y_features = call.input(1).features();
                let part = ScaledPart {
                    features,
                    first_feature: *first_feature,
                    y_features,
                    scale: *scale,
                };
                elementwise::scaled_add(on, out, [self.input(0), self.input(1)], rows, part)
            }
            Op::Rope { heads } => {
                let (operands, shape) =
                    ([self.input(0), self.input(1)], token_shape(call.output()));
                elementwise::rope(on, self.result(), operands, shape, *heads)
            }
            Op::Attention(op) => {
                let graph = &call.schedule.graph;
                let chunk = call.schedule.assignment.attention_chunk;
                let shape = attention_shape(graph, node, op, chunk);
                let bias = if node.inputs.len() > 3 { self.input(3) } else { Address::NONE };
                let qkv = [0, 1, 2].map(|index| self.input_at(index));
                let operands = attention::Operands { qkv, bias, out: self.result() };
                attention::attention(on, &shape, self.products(), operands, self.workspace())
            }
            Op::RelativePositionBias { max_distance } => {
                let shape = &call.output().shape; // [heads, 2 × tokens - 1]
                let buckets = call.tensor(0).shape()[0];
                let (table, tokens) = (self.weight(0), shape[1].div_ceil(2));
                let sizes = [buckets, shape[0]];
                tokens::relative_position_bias(on, out, table, sizes, tokens, *max_distance)
            }
            Op::ConcatTokens => {
                let TokenShape { batch, features, .. } = token_shape(call.output());
                let counts = [0, 1].map(|index| call.input(index).shape[1]);
                let values = [self.input(0), self.input(1)];
                tokens::concat_tokens(on, self.result(), values, counts, batch, features)
            }
            Op::SliceTokens { from } => {
                let shape = token_shape(call.input(0));
                let taken = call.output().shape[1];
                tokens::slice_tokens(on, self.result(), self.input(0), shape, *from, taken)
            }
            Op::Sinusoid => {
                let (batch, features) = rows_of(call.output());
                tokens::sinusoid(on, out, self.input(0), batch, features)
            }
            Op::Conv2d(op) => self.convolve(op),
        }
    }

    fn linear(&self, activation: Activation) -> Result<(), DriverError> {
        let call = self.call;
        let mut inputs = [(Address::NONE, 0); INPUTS_MAX];
        let inputs = &mut inputs[..call.run.inputs.len()];
        for (index, input) in inputs.iter_mut().enumerate() {
            *input = (self.input(index), call.input(index).features());
        }
        let Run { output_features, columns, .. } = call.run;
        let layer = Linear {
            inputs,
            input_element: call.input_element(0),
            rows: rows_of(call.output()).0,
            weight: self.weight(0),
            out_features: call.slice(0).rows.len(),
            bias: (call.node().weights.len() > 1).then(|| self.weight(1)),
            activation,
            out: self.result(),
            columns: Columns { stride: *output_features, from: columns.start },
            exact: self.products() == Products::Exact,
            workspace: self.workspace(),
        };
        linear(self.on, &layer)
    }

    fn norm(&self, op: &Normalization) -> Result<(), DriverError> {
        let (call, on, out, x) = (self.call, self.on, self.output(), self.input(0));
        let elements = call.output().elements();
        match op {
            Normalization::Layer { eps } => {
                let (rows, features) = rows_of(call.output());
                let affine = [self.weight(0), self.weight(1)];
                norm::layer_norm(on, self.result(), x, [rows, features], *eps, affine)
            }
            Normalization::Rms { eps } => {
                let features = call.tensor(0).shape()[0];
                let sizes = [elements / features, features];
                norm::rms_norm(on, self.result(), x, sizes, *eps, self.weight(0))
            }
            Normalization::Group { groups, eps, silu } => {
                let shape = group_norm_shape(&call.schedule.graph, call.node(), *groups, *eps);
                let affine = [self.weight(0), self.weight(1)];
                let workspace = self.workspace();
                norm::group::group_norm(on, out, x, &shape, affine, *silu, workspace)
            }
        }
    }

    fn convolve(&self, op: &ConvOp) -> Result<(), DriverError> {
        let call = self.call;
        let shape = conv_shape(&call.schedule.graph, call.node(), op);
        let last = call.run.inputs.len() - 1;
        let operands = conv::Operands {
            input: self.input_at(last),
            norm: op.norm.map(|_| [self.weight(2), self.weight(3)]),
            weight: self.weight(0),
            bias: self.weight(1),
            added: op.accumulate.then(|| self.input(0)),
            out: self.result(),
        };
        let workspace = self.workspace();
        if op.narrow && call.is_taken_over() {
            return conv::narrow(self.on, &shape, self.products(), &operands, workspace);
        }
        conv::conv2d(self.on, &shape, self.products(), &operands, workspace)
    }

    fn products(&self) -> Products {
        let schedule = self.call.schedule;
        products(&schedule.graph, self.call.node(), &schedule.assignment)
    }

    fn input(&self, index: usize) -> Address {
        let bytes = self.call.input_bytes(index).as_usize();
        self.call.arena().address(self.call.run.inputs[index], bytes)
    }

    fn output(&self) -> Address {
        let bytes = self.call.output_bytes().as_usize();
        self.call.arena().address(self.call.run.output, bytes)
    }

    /// An input with what its elements are.
    fn input_at(&self, index: usize) -> ValueAt {
        ValueAt { address: self.input(index), element: self.call.input_element(index) }
    }

    /// The output with what its elements are.
    fn result(&self) -> ValueAt {
        ValueAt { address: self.output(), element: self.call.output_element() }
    }

    fn workspace(&self) -> Address {
        let (offset, bytes) = self.call.run.workspace;
        self.call.arena().address(offset, bytes.as_usize())
    }

    /// Chunks of features of a value of one row a batch item.
    fn chunks(&self, index: usize) -> ChunksAt {
        let chunks = self.call.input(index).features() / self.call.output().features();
        ChunksAt { address: self.input(index), chunks }
    }

    fn weight(&self, index: usize) -> StoredWeight {
        let call = self.call;
        let (region, offset) = call.weight_place(index).expect("a GPU computes from its memory");
        let tensor = call.tensor(index);
        StoredWeight {
            address: region.address(offset, call.weight_bytes(index).as_usize()),
            storage: tensor.storage(),
            scale: tensor.scale(),
        }
    }
}

/// Rows and features of a value.
fn rows_of(value: &Value) -> (usize, usize) {
    (value.elements() / value.features(), value.features())
}

/// A value as `[batch, tokens, features]`.
fn token_shape(value: &Value) -> TokenShape {
    let batch = value.shape[0];
    TokenShape {
        batch,
        tokens: value.elements() / batch / value.features(),
        features: value.features(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::{GraphOptions, JobShape};

    use super::*;
    use crate::models::Model;

    #[test]
    fn a_bias_in_blocks_is_not_read() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/flux_schnell");
        let job = JobShape {
            width: 32,
            height: 32,
            steps: 1,
            batch: 1,
            max_sequence_length: 16,
            true_cfg: false,
            init_image: false,
            first_step: 0,
        };
        let model = Model::open(&fixture).expect("a model");
        let graphs = model.graphs(&job, &GraphOptions::default()).expect("its graphs");
        for mut graph in graphs.into_iter().flat_map(|part| part.variants) {
            assert!(unread(&graph).is_none());
            graph.store_as(StorageType::Q8_0);
            assert!(unread(&graph).is_none(), "matrices are read in any type");
            let biased = |node: &&Node| matches!(node.op, Op::Linear(_)) && node.weights.len() == 2;
            let Some(node) = graph.nodes.iter().find(biased) else { continue };
            let [matrix, bias] = [0, 1].map(|index| node.weights[index].0);
            graph.weights[bias].tensor = graph.weights[matrix].tensor.stored_as(StorageType::Q8_0);
            assert_eq!(unread(&graph).map(|weight| &weight.name), Some(&graph.weights[bias].name));
        }
    }
}
