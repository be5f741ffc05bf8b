//! The nodes of a cut graph: each device's parts, and what each computes whole.

use std::collections::BTreeMap;
use std::ops::Range;

use protocol::dealt;

use super::Cuts;
use crate::graph::{Few, Graph, Node, NodeOp, ValueId, Weight, WeightId};
use crate::ops::add::AddOp;
use crate::weights::TensorRef;

/// In how many parts summands cross at most, and the fewest tokens of one: with more parts, or
/// shorter ones, starting products and copies takes longer than the last part's way is shorter
/// (`scripts/bench_predictions.py --host two-apart --batch 2 --dit 14 2 4`).
const TOKEN_PARTS_MAX: usize = 4;
const PART_TOKENS_MIN: usize = 128;

/// Features of a row in multiples of this are whole vectors, so that each row begins at one.
const VECTOR: usize = 8;

/// In how many parts a sum is formed, whose node is `node` in a graph that is to be cut.
pub fn token_parts(graph: &Graph, cuts: &Cuts, node: &Node) -> usize {
    let output = graph.value(node.output);
    let in_vectors = |input: &ValueId| {
        let (_, units) = cuts.class(*input).expect("all inputs are cut");
        (graph.value(*input).features() / units).is_multiple_of(VECTOR)
    };
    match output.features().is_multiple_of(VECTOR) && node.inputs.iter().all(in_vectors) {
        true => (output.rows() / PART_TOKENS_MIN).clamp(1, TOKEN_PARTS_MAX),
        false => 1,
    }
}

/// A graph in which devices with such shares each have a part of every class.
pub fn cut(graph: &Graph, largest: &Graph, cuts: &Cuts, shares: &[u32]) -> Graph {
    let copied = copied(graph, cuts);
    // Blocks that are alike have as many units.
    let mut dealt_of = BTreeMap::new();
    let dealt = cuts.units().iter().map(|units| {
        let dealt: &Vec<Range<usize>> =
            dealt_of.entry(*units).or_insert_with(|| deal(*units, shares));
        dealt.clone()
    });
    let lanes = shares.len();
    // Memory for all of it at once: vectors of this size would be copied as they grow.
    let both = graph.nodes.iter().zip(&copied);
    let nodes = both.map(|(node, copied)| nodes_of(cuts, node, *copied, lanes)).sum();
    let mut values = Vec::with_capacity(graph.values.len() + nodes);
    values.extend(graph.values.iter().cloned());
    let mut parts = CutBuilder {
        graph,
        largest,
        cuts,
        dealt: dealt.collect(),
        lanes,
        add: AddOp.into(),
        places: (0..graph.values.len() * lanes).map(|at| ValueId(at / lanes)).collect(),
        weights: vec![None; graph.weights.len()],
        out: Graph {
            values,
            weights: Vec::with_capacity(graph.weights.len() * lanes),
            nodes: Vec::with_capacity(nodes),
            segments: graph.segments.clone(),
            inputs: graph.inputs.clone(),
            outputs: graph.outputs.clone(),
            item_runs: graph.item_runs.clone(),
        },
    };
    for ((node, largest), copied) in graph.nodes.iter().zip(&largest.nodes).zip(copied) {
        parts.node(node, largest, copied);
    }
    parts.out
}

/// How many nodes of a graph that is cut over `lanes` devices stand for one of the whole graph.
fn nodes_of(cuts: &Cuts, node: &Node, copied: bool, lanes: usize) -> usize {
    let is_cut = cuts.class(node.output).is_some();
    let with_whole = if copied { lanes } else { 1 };
    match (is_cut, cuts.sums(node)) {
        (true, _) => lanes,
        (false, true) => lanes + with_whole * (lanes - 1),
        (false, false) => with_whole,
    }
}

/// For each node that makes a whole value, whether every device computes it by itself: what they
/// need for their parts, and what follows from no product within the blocks.
pub fn copied(graph: &Graph, cuts: &Cuts) -> Vec<bool> {
    let mut needed = vec![false; graph.values.len()];
    let mut copied = vec![false; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let is_cut = cuts.class(node.output).is_some() || cuts.sums(node);
        copied[index] = needed[node.output.0]
            && graph.segments[node.segment].block
            && (!node.op.is_product() || cuts.sums(node));
        if is_cut || copied[index] {
            let whole = node.inputs.iter().filter(|input| cuts.class(**input).is_none());
            whole.for_each(|input| needed[input.0] = true);
        }
    }
    copied
}

/// The units that each device has by its share, one after the other.
pub(super) fn deal(units: usize, shares: &[u32]) -> Vec<Range<usize>> {
    let shares: Vec<u64> = shares.iter().copied().map(u64::from).collect();
    let mut end = 0;
    let range = |count| {
        end += count as usize;
        end - count as usize..end
    };
    dealt(units as u32, &shares).into_iter().map(range).collect()
}

/// A cut graph while it is made.
struct CutBuilder<'a> {
    graph: &'a Graph,
    /// Of the inputs at their largest.
    largest: &'a Graph,
    cuts: &'a Cuts,
    /// For each class and device, which units that has.
    dealt: Vec<Vec<Range<usize>>>,
    lanes: usize,
    /// What adds two summands.
    add: NodeOp,
    /// For each value of the graph and each device, what that has of it: its part, or all. What a
    /// device has not computed it reads of the first.
    places: Vec<ValueId>,
    /// For each weight that is used whole, which one it is.
    weights: Vec<Option<WeightId>>,
    out: Graph,
}

impl CutBuilder<'_> {
    /// `largest` is the same node of the largest graph.
    fn node(&mut self, node: &Node, largest: &Node, copied: bool) {
        if self.cuts.class(node.output).is_some() {
            // What the thread that hands out computes itself comes last.
            for lane in (0..self.lanes).rev() {
                self.part(node, lane);
            }
        } else if self.cuts.sums(node) {
            self.sum(node, copied, token_parts(self.largest, self.cuts, largest));
        } else if copied {
            for lane in (0..self.lanes).rev() {
                let features = self.graph.value(node.output).features();
                let output = match lane {
                    0 => node.output,
                    _ => self.new_value(node.output, features),
                };
                *self.place(node.output, lane) = output;
                let (inputs, weights) = (self.inputs(node, lane), self.whole(&node.weights));
                self.node_on(node, lane, node.op.clone(), (inputs, weights), output, 1);
            }
        } else {
            let weights = self.whole(&node.weights);
            self.out.nodes.push(Node { weights, ..node.clone() });
        }
    }

    fn place(&mut self, value: ValueId, lane: usize) -> &mut ValueId {
        &mut self.places[value.0 * self.lanes + lane]
    }

    /// What a device has of a node's inputs.
    fn inputs(&self, node: &Node, lane: usize) -> Few<ValueId> {
        let mut inputs = node.inputs.clone();
        inputs.iter_mut().for_each(|input| *input = self.places[input.0 * self.lanes + lane]);
        inputs
    }

    /// A device's part of a result that is cut.
    fn part(&mut self, node: &Node, lane: usize) {
        let (class, units) = self.cuts.class(node.output).expect("it is cut");
        let (own, features) =
            (self.dealt[class][lane].clone(), self.graph.value(node.output).features());
        let op = node.op.on_units(own.len(), units).unwrap_or_else(|| node.op.clone());
        let inputs = self.inputs(node, lane);
        let columns = scaled(&own, features, units);
        let weights = match node.op.is_product() {
            true => {
                let rows = |tensor: &TensorRef| tensor.rows(columns.clone());
                node.weights.iter().map(|weight| self.weight(node, *weight, rows)).collect()
            }
            false => self.whole(&node.weights),
        };
        let output = self.new_value(node.output, columns.len());
        *self.place(node.output, lane) = output;
        self.node_on(node, lane, op, (inputs, weights), output, 1);
    }

    /// The sum of what each device makes of its part of the inputs; on every device, or the first.
    /// It is formed in so many parts.
    fn sum(&mut self, node: &Node, copied: bool, token_parts: usize) {
        let features = self.graph.value(node.output).features();
        let mut summands = vec![node.output; self.lanes];
        for lane in (0..self.lanes).rev() {
            let runs = self.runs(node, lane);
            let matrix = self.weight(node, node.weights[0], |tensor| tensor.columns(&runs));
            let mut weights = Few::from_slice(&[matrix]);
            if lane == 0 {
                // Biases are in the first summand.
                weights.extend(self.whole(&node.weights[1..]));
            }
            let inputs = self.inputs(node, lane);
            summands[lane] = self.new_value(node.output, features);
            let (op, operands) = (node.op.clone(), (inputs, weights));
            self.node_on(node, lane, op, operands, summands[lane], token_parts);
        }
        let lanes = if copied { self.lanes } else { 1 };
        let mut sums = vec![summands[0]; lanes];
        for (at, summand) in summands.iter().enumerate().skip(1) {
            let is_whole = at + 1 == self.lanes;
            // The first device takes over its own summand, which the others have by then.
            for lane in (0..lanes).rev() {
                let output = match (is_whole, lane) {
                    (true, 0) => node.output,
                    _ => self.new_value(node.output, features),
                };
                let inputs = Few::from_slice(&[sums[lane], *summand]);
                let (op, operands) = (self.add.clone(), (inputs, Few::new()));
                self.node_on(node, lane, op, operands, output, token_parts);
                sums[lane] = output;
            }
        }
        for (lane, sum) in sums.into_iter().enumerate() {
            *self.place(node.output, lane) = sum;
        }
    }

    /// The columns of a node's matrix that a device multiplies its part of the inputs with.
    fn runs(&self, node: &Node, lane: usize) -> Vec<Range<usize>> {
        let mut begin = 0;
        let run = |input: &ValueId| {
            let (class, units) = self.cuts.class(*input).expect("all inputs are cut");
            let features = self.graph.value(*input).features();
            let own = scaled(&self.dealt[class][lane], features, units);
            begin += features;
            own.start + begin - features..own.end + begin - features
        };
        node.inputs.iter().map(run).collect()
    }

    /// Weights that are used whole.
    fn whole(&mut self, weights: &[WeightId]) -> Few<WeightId> {
        let CutBuilder { graph, weights: known, out, .. } = self;
        let place = |weight: &WeightId| {
            *known[weight.0].get_or_insert_with(|| {
                out.weights.push(graph.weights[weight.0].clone());
                WeightId(out.weights.len() - 1)
            })
        };
        weights.iter().map(place).collect()
    }

    /// A part of a weight, in the segment of the node.
    fn weight(
        &mut self,
        node: &Node,
        weight: WeightId,
        part: impl Fn(&TensorRef) -> TensorRef,
    ) -> WeightId {
        let whole = &self.graph.weights[weight.0];
        let (name, tensor) = (whole.name.clone(), part(&whole.tensor));
        self.out.weights.push(Weight { name, tensor, segment: node.segment });
        WeightId(self.out.weights.len() - 1)
    }

    /// A new value with the shape and type of `like`, but for its number of features.
    fn new_value(&mut self, like: ValueId, features: usize) -> ValueId {
        let mut value = self.graph.value(like).clone();
        *value.shape.last_mut().expect("values have dimensions") = features;
        self.out.values.push(value);
        ValueId(self.out.values.len() - 1)
    }

    fn node_on(
        &mut self,
        node: &Node,
        lane: usize,
        op: NodeOp,
        (inputs, weights): (Few<ValueId>, Few<WeightId>),
        output: ValueId,
        token_parts: usize,
    ) {
        let (segment, item_run) = (node.segment, node.item_run);
        let lane = Some(lane);
        let node = Node { op, inputs, weights, output, segment, lane, item_run, token_parts };
        self.out.nodes.push(node);
    }
}

/// Units as the features that they are.
fn scaled(units: &Range<usize>, features: usize, of: usize) -> Range<usize> {
    units.start * features / of..units.end * features / of
}
