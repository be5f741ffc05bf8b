//! Builds a graph, checking every weight against the files as it goes.
//!
//! The methods that add a node of some operation stand with that operation, in `ops`.

use std::collections::{BTreeMap, BTreeSet};

use super::{ElementType, Graph, Node, NodeOp, Port, Segment, Value, ValueId, Weight, WeightId};
use crate::weights::{TensorRef, WeightFiles, WeightsError};

/// Collects a graph. Shapes that do not fit together are a bug of the family's file and panic;
/// weights that do not fit are the model's fault and an error.
pub struct GraphBuilder<'a> {
    files: &'a WeightFiles,
    graph: Graph,
    weight_ids: BTreeMap<String, WeightId>,
    /// Inputs already multiplied with an adapter's first factor: fused projections share it.
    pub(crate) narrowed: BTreeMap<(Vec<ValueId>, WeightId), ValueId>,
    /// Weights of linear layers beside which adapters were put.
    pub(crate) adapted: BTreeSet<String>,
}

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
            item_runs: Vec::new(),
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

    /// Declares what is written before each call, by its name.
    pub fn input(&mut self, name: &'static str, shape: &[usize], element: ElementType) -> ValueId {
        let value = self.value(shape, element);
        self.graph.inputs.push(Port { name, value, item_run: 0, begin: 0 });
        value
    }

    /// Declares a value to be an output.
    pub fn output(&mut self, name: &'static str, value: ValueId) {
        self.graph.outputs.push(Port { name, value, item_run: 0, begin: 0 });
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

    /// The innermost dimension of a value.
    pub(crate) fn features(&self, value: ValueId) -> usize {
        self.graph.value(value).features()
    }

    /// The files whose weights it takes.
    pub(crate) fn files(&self) -> &'a WeightFiles {
        self.files
    }

    /// `prefix.weight` and `prefix.bias`, both of as many elements as x has features.
    pub(crate) fn scale_and_shift(
        &mut self,
        x: ValueId,
        prefix: &str,
    ) -> Result<Vec<WeightId>, WeightsError> {
        let features = self.features(x);
        let scale = self.weight(&format!("{prefix}.weight"), &[features])?;
        let shift = self.weight(&format!("{prefix}.bias"), &[features])?;
        Ok(vec![scale, shift])
    }

    /// A weight of this shape, which belongs to the present segment if it is new.
    pub(crate) fn weight(&mut self, name: &str, shape: &[usize]) -> Result<WeightId, WeightsError> {
        self.weight_part(name, shape, |tensor| Some(*tensor))
    }

    /// As [`GraphBuilder::weight`], of a tensor that is stored in this shape and of which a part is
    /// used, the same wherever it is used.
    ///
    /// # Errors
    /// As of [`GraphBuilder::weight`]; and where there is no such part, since it begins or ends
    /// within a block.
    pub(crate) fn weight_part(
        &mut self,
        name: &str,
        shape: &[usize],
        part: impl Fn(&TensorRef) -> Option<TensorRef>,
    ) -> Result<WeightId, WeightsError> {
        if let Some(&id) = self.weight_ids.get(name) {
            return Ok(id);
        }
        let tensor = self.files.require(name, shape)?;
        let tensor = part(&tensor).ok_or_else(|| self.files.cut_blocks(name))?;
        let id = WeightId(self.graph.weights.len());
        let segment = self.present_segment();
        self.graph.weights.push(Weight { name: name.into(), tensor, segment });
        self.weight_ids.insert(name.to_owned(), id);
        Ok(id)
    }

    fn value(&mut self, shape: &[usize], element: ElementType) -> ValueId {
        self.graph.values.push(Value { shape: shape.into(), element });
        ValueId(self.graph.values.len() - 1)
    }

    /// A node whose result has its first input's shape.
    pub(crate) fn same_shape(
        &mut self,
        op: impl Into<NodeOp>,
        inputs: Vec<ValueId>,
        weights: Vec<WeightId>,
    ) -> ValueId {
        let shape = self.shape(inputs[0]).to_vec();
        self.node(op, inputs, weights, &shape)
    }

    /// A node whose result, of f32, has this shape.
    pub(crate) fn node(
        &mut self,
        op: impl Into<NodeOp>,
        inputs: Vec<ValueId>,
        weights: Vec<WeightId>,
        shape: &[usize],
    ) -> ValueId {
        let output = self.value(shape, ElementType::F32);
        let segment = self.present_segment();
        let op = op.into();
        let (inputs, weights) = (inputs.as_slice().into(), weights.as_slice().into());
        let (lane, item_run, token_parts) = (None, 0, 1);
        let node = Node { op, inputs, weights, output, segment, lane, item_run, token_parts };
        self.graph.nodes.push(node);
        output
    }

    fn present_segment(&self) -> usize {
        self.graph.segments.len().checked_sub(1).expect("a segment is started before its nodes")
    }
}
