//! Builds a graph, checking every weight against the files as it goes.

use std::collections::{BTreeMap, BTreeSet};

use super::op::{Activation, AttentionOp, ConvNorm, ConvOp, Normalization, Op};
use super::{ElementType, Graph, Node, Port, Segment, Value, ValueId, Weight, WeightId};
use crate::weights::lora::LinearAdapter;
use crate::weights::{WeightFiles, WeightsError};

/// Collects a graph. Shapes that do not fit together are a bug of the family's file and panic; weights
/// that do not fit are the model's fault and an error.
pub struct GraphBuilder<'a> {
    files: &'a WeightFiles,
    graph: Graph,
    weight_ids: BTreeMap<String, WeightId>,
    /// Inputs already multiplied with an adapter's first factor: fused projections share it.
    narrowed: BTreeMap<(Vec<ValueId>, WeightId), ValueId>,
    /// Weights of linear layers beside which adapters were put.
    adapted: BTreeSet<String>,
}

type Built = Result<ValueId, WeightsError>;

impl<'a> GraphBuilder<'a> {
    /// An empty graph over these files.
    pub fn new(files: &'a WeightFiles) -> GraphBuilder<'a> {
        let graph = Graph {
            values: Vec::new(),
            weights: Vec::new(),
            nodes: Vec::new(),
            segments: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        GraphBuilder {
            files,
            graph,
            weight_ids: BTreeMap::new(),
            narrowed: BTreeMap::new(),
            adapted: BTreeSet::new(),
        }
    }

    /// Starts the next segment; at least one must be started before the first node.
    pub fn segment(&mut self, name: impl Into<String>) {
        self.graph.segments.push(Segment { name: name.into(), block: false });
    }

    /// As [`GraphBuilder::segment`], for one of several blocks alike.
    pub fn block(&mut self, name: impl Into<String>) {
        self.graph.segments.push(Segment { name: name.into(), block: true });
    }

    /// Declares an input.
    pub fn input(&mut self, name: &'static str, shape: &[usize], element: ElementType) -> ValueId {
        let value = self.value(shape, element);
        self.graph.inputs.push(Port { name, value });
        value
    }

    /// Declares a value to be an output.
    pub fn output(&mut self, name: &'static str, value: ValueId) {
        self.graph.outputs.push(Port { name, value });
    }

    /// The graph, complete.
    ///
    /// # Panics
    /// If the files have an adapter for a weight that no linear layer took: it would be left out.
    pub fn finish(self) -> Graph {
        for weight in self.files.adapted_weights() {
            assert!(self.adapted.contains(weight), "{weight} is adapted and of no linear layer");
        }
        self.graph
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> &[usize] {
        &self.graph.value(value).shape
    }

    /// ids `[batch, tokens]` → `[batch, tokens, features]`.
    pub fn embedding(
        &mut self,
        ids: ValueId,
        table: &str,
        vocabulary: usize,
        features: usize,
    ) -> Built {
        let weight = self.weight(table, &[vocabulary, features])?;
        let mut shape = self.shape(ids).to_vec();
        shape.push(features);
        Ok(self.node(Op::Embedding, vec![ids], vec![weight], &shape))
    }

    /// x `[batch, tokens, features]` plus the first rows of a table `[tokens_max, features]`.
    pub fn add_positions(&mut self, x: ValueId, table: &str, tokens_max: usize) -> Built {
        let shape = self.shape(x).to_vec();
        assert!(shape[1] <= tokens_max, "more tokens than positions");
        let weight = self.weight(table, &[tokens_max, shape[2]])?;
        Ok(self.node(Op::AddPositions, vec![x], vec![weight], &shape))
    }

    /// `prefix.weight` `[out, Σ features]` and `prefix.bias`, plus what the files have beside that weight,
    /// then an activation.
    pub fn linear(
        &mut self,
        xs: &[ValueId],
        prefix: &str,
        out: usize,
        activation: Activation,
    ) -> Built {
        self.matmul(xs, prefix, out, true, activation)
    }

    /// As [`GraphBuilder::linear`] without a bias.
    pub fn linear_no_bias(
        &mut self,
        x: ValueId,
        prefix: &str,
        out: usize,
        activation: Activation,
    ) -> Built {
        self.matmul(&[x], prefix, out, false, activation)
    }

    fn matmul(
        &mut self,
        xs: &[ValueId],
        prefix: &str,
        out: usize,
        bias: bool,
        activation: Activation,
    ) -> Built {
        let inner = xs.iter().map(|&x| self.graph.value(x).features()).sum();
        let name = format!("{prefix}.weight");
        let mut weights = vec![self.weight(&name, &[out, inner])?];
        if bias {
            weights.push(self.weight(&format!("{prefix}.bias"), &[out])?);
        }
        let files = self.files;
        let adapters = files.adapters(&name);
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
    fn adapt(&mut self, xs: &[ValueId], y: ValueId, adapter: &LinearAdapter) -> Built {
        let inner = xs.iter().map(|&x| self.graph.value(x).features()).sum();
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
        let op = Op::ScaledAdd { scale: adapter.scale, first_feature: adapter.first_row };
        Ok(self.same_shape(op, vec![y, change], vec![]))
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
        self.node(Op::Linear(activation), xs.to_vec(), weights, &shape)
    }

    /// An activation alone.
    pub fn activate(&mut self, x: ValueId, activation: Activation) -> ValueId {
        self.same_shape(Op::Activate(activation), vec![x], vec![])
    }

    /// Layer normalisation with `prefix.weight` and `prefix.bias`.
    pub fn layer_norm(&mut self, x: ValueId, prefix: &str, eps: f32) -> Built {
        let weights = self.scale_and_shift(x, prefix)?;
        Ok(self.same_shape(Op::Norm(Normalization::Layer { eps }), vec![x], weights))
    }

    /// Group normalisation with `prefix.weight` and `prefix.bias`, then SiLU where asked.
    pub fn group_norm(
        &mut self,
        x: ValueId,
        prefix: &str,
        groups: usize,
        eps: f32,
        silu: bool,
    ) -> Built {
        let weights = self.scale_and_shift(x, prefix)?;
        Ok(self.same_shape(Op::Norm(Normalization::Group { groups, eps, silu }), vec![x], weights))
    }

    /// RMS normalisation over `features` with `prefix.weight`: the whole row, or each head of it.
    pub fn rms_norm(&mut self, x: ValueId, prefix: &str, features: usize, eps: f32) -> Built {
        assert_eq!(self.graph.value(x).features() % features, 0, "heads do not divide the row");
        let weight = self.weight(&format!("{prefix}.weight"), &[features])?;
        Ok(self.same_shape(Op::Norm(Normalization::Rms { eps }), vec![x], vec![weight]))
    }

    /// Layer normalisation of x, scaled and shifted by chunks of `modulation`.
    pub fn ada_layer_norm(
        &mut self,
        x: ValueId,
        modulation: ValueId,
        shift_chunk: usize,
        scale_chunk: usize,
        eps: f32,
    ) -> ValueId {
        self.same_shape(
            Op::AdaLayerNorm { eps, shift_chunk, scale_chunk },
            vec![x, modulation],
            vec![],
        )
    }

    /// x + y.
    pub fn add(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.same_shape(Op::Add, vec![x, y], vec![])
    }

    /// x × y.
    pub fn mul(&mut self, x: ValueId, y: ValueId) -> ValueId {
        self.same_shape(Op::Mul, vec![x, y], vec![])
    }

    /// x + gate × y.
    pub fn gated_add(
        &mut self,
        x: ValueId,
        y: ValueId,
        modulation: ValueId,
        gate_chunk: usize,
    ) -> ValueId {
        self.same_shape(Op::GatedAdd { gate_chunk }, vec![x, y, modulation], vec![])
    }

    /// x with its heads rotated by a table `[tokens, head_dim / 2, 2]`.
    pub fn rope(&mut self, x: ValueId, table: ValueId, heads: usize) -> ValueId {
        self.same_shape(Op::Rope { heads }, vec![x, table], vec![])
    }

    /// Attention of q over k and v, with an optional bias by distance.
    pub fn attention(
        &mut self,
        qkv: [ValueId; 3],
        bias: Option<ValueId>,
        op: AttentionOp,
    ) -> ValueId {
        let inputs = qkv.into_iter().chain(bias).collect();
        self.same_shape(Op::Attention(op), inputs, vec![])
    }

    /// T5's biases for this many tokens, from a table `[buckets, heads]`.
    pub fn relative_position_bias(
        &mut self,
        table: &str,
        buckets: usize,
        heads: usize,
        tokens: usize,
        max_distance: usize,
    ) -> Built {
        let weight = self.weight(table, &[buckets, heads])?;
        let op = Op::RelativePositionBias { max_distance };
        Ok(self.node(op, vec![], vec![weight], &[heads, 2 * tokens - 1]))
    }

    /// a's tokens, then b's, in each batch item.
    pub fn concat_tokens(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let mut shape = self.shape(a).to_vec();
        shape[1] += self.shape(b)[1];
        self.node(Op::ConcatTokens, vec![a, b], vec![], &shape)
    }

    /// `count` tokens of each batch item, starting at `from`.
    pub fn slice_tokens(&mut self, x: ValueId, from: usize, count: usize) -> ValueId {
        let mut shape = self.shape(x).to_vec();
        assert!(from + count <= shape[1], "slice beyond the tokens");
        shape[1] = count;
        self.node(Op::SliceTokens { from }, vec![x], vec![], &shape)
    }

    /// x `[batch]` → `[batch, features]`.
    pub fn sinusoid(&mut self, x: ValueId, features: usize) -> ValueId {
        let batch = self.shape(x)[0];
        self.node(Op::Sinusoid, vec![x], vec![], &[batch, features])
    }

    /// Convolution with `prefix.weight` `[out, in, kernel, kernel]` and `prefix.bias`.
    pub fn conv2d(&mut self, x: ValueId, prefix: &str, out: usize, op: ConvOp) -> Built {
        assert!(op.norm.is_none(), "a norm has weights");
        self.convolve(None, x, (prefix, out), op, vec![])
    }

    /// As [`GraphBuilder::conv2d`] of x normalised with `norm_prefix.weight` and `norm_prefix.bias`; added to `sum`, if there
    /// is one.
    pub fn norm_conv2d(
        &mut self,
        sum: Option<ValueId>,
        x: ValueId,
        (norm_prefix, norm): (&str, ConvNorm),
        prefix: (&str, usize),
        op: ConvOp,
    ) -> Built {
        let scale_and_shift = self.scale_and_shift(x, norm_prefix)?;
        self.convolve(sum, x, prefix, ConvOp { norm: Some(norm), ..op }, scale_and_shift)
    }

    fn convolve(
        &mut self,
        sum: Option<ValueId>,
        x: ValueId,
        (prefix, out): (&str, usize),
        op: ConvOp,
        norm: Vec<WeightId>,
    ) -> Built {
        let mut shape = self.shape(x).to_vec(); // [batch, height, width, channels]
        let weight =
            self.weight(&format!("{prefix}.weight"), &[out, shape[3], op.kernel, op.kernel])?;
        let bias = self.weight(&format!("{prefix}.bias"), &[out])?;
        let narrow = op.is_of_pixels() && op.norm.is_none() && sum.is_none() && 2 * out <= shape[3];
        shape[1] = op.output_side(shape[1]);
        shape[2] = op.output_side(shape[2]);
        shape[3] = out;
        assert!(sum.is_none_or(|sum| self.shape(sum) == shape), "sums have one shape");
        let op = ConvOp { accumulate: sum.is_some(), narrow, ..op };
        let weights = [weight, bias].into_iter().chain(norm).collect();
        Ok(self.node(Op::Conv2d(op), sum.into_iter().chain([x]).collect(), weights, &shape))
    }

    fn scale_and_shift(&mut self, x: ValueId, prefix: &str) -> Result<Vec<WeightId>, WeightsError> {
        let features = self.graph.value(x).features();
        let scale = self.weight(&format!("{prefix}.weight"), &[features])?;
        let shift = self.weight(&format!("{prefix}.bias"), &[features])?;
        Ok(vec![scale, shift])
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<WeightId, WeightsError> {
        if let Some(&id) = self.weight_ids.get(name) {
            return Ok(id);
        }
        let tensor = self.files.require(name, shape)?;
        let id = WeightId(self.graph.weights.len());
        let segment = self.present_segment();
        self.graph.weights.push(Weight { name: name.to_owned(), tensor, segment });
        self.weight_ids.insert(name.to_owned(), id);
        Ok(id)
    }

    fn value(&mut self, shape: &[usize], element: ElementType) -> ValueId {
        self.graph.values.push(Value { shape: shape.to_vec(), element });
        ValueId(self.graph.values.len() - 1)
    }

    fn same_shape(&mut self, op: Op, inputs: Vec<ValueId>, weights: Vec<WeightId>) -> ValueId {
        let shape = self.shape(inputs[0]).to_vec();
        self.node(op, inputs, weights, &shape)
    }

    fn node(
        &mut self,
        op: Op,
        inputs: Vec<ValueId>,
        weights: Vec<WeightId>,
        shape: &[usize],
    ) -> ValueId {
        let output = self.value(shape, ElementType::F32);
        let segment = self.present_segment();
        self.graph.nodes.push(Node { op, inputs, weights, output, segment });
        output
    }

    fn present_segment(&self) -> usize {
        self.graph.segments.len().checked_sub(1).expect("a segment is started before its nodes")
    }
}
