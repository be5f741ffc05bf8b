//! The graphs of one component for some of its items each, as one graph: node by node in turns, on
//! the same weights. Between two of them nothing crosses.

use protocol::division::ItemRun;
use protocol::limits::FEW_ROWS;

use super::{Graph, Node, Port, Value, ValueId};

impl Graph {
    /// One graph of all these, each with the items that it is for. `whole` is the graph of a whole
    /// batch.
    ///
    /// # Errors
    /// Why the items would not be, to the bit, what they are in a whole batch.
    ///
    /// # Panics
    /// The graphs are not of the same nodes and weights.
    pub fn joined(whole: &Graph, runs: Vec<(ItemRun, &Graph)>) -> Result<Graph, String> {
        let mut joined = Graph {
            values: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            item_runs: Vec::new(),
            ..whole.clone()
        };
        let mut nodes: Vec<Vec<Node>> = vec![Vec::new(); whole.nodes.len()];
        for (index, (run, graph)) in runs.into_iter().enumerate() {
            assert!(is_alike(whole, graph), "graphs of other nodes or weights are joined");
            check_bits(whole, graph, &run)?;
            let first = joined.values.len();
            let moved = |value: ValueId| ValueId(first + value.0);
            for (together, node) in nodes.iter_mut().zip(&graph.nodes) {
                let inputs = node.inputs.iter().map(|&input| moved(input)).collect();
                let output = moved(node.output);
                together.push(Node { inputs, output, item_run: index, ..node.clone() });
            }
            let port = |(port, of_all): (&Port, &Port)| {
                let (value, all) = (graph.value(port.value), whole.value(of_all.value));
                let begin = begin(value, all, &run);
                Port { name: port.name, value: moved(port.value), item_run: index, begin }
            };
            joined.inputs.extend(graph.inputs.iter().zip(&whole.inputs).map(port));
            joined.outputs.extend(graph.outputs.iter().zip(&whole.outputs).map(port));
            joined.values.extend(graph.values.iter().cloned());
            joined.item_runs.push(run);
        }
        joined.nodes = nodes.into_iter().flatten().collect();
        Ok(joined)
    }
}

/// Where a run's items begin in the value of a whole batch, in elements. A value that is as large
/// for the run as for the batch has all items, or has none: it begins at 0.
fn begin(value: &Value, all: &Value, run: &ItemRun) -> usize {
    match value.elements() == all.elements() {
        true => 0,
        false => value.elements() / run.items.len() * run.items.start,
    }
}

fn is_alike(one: &Graph, other: &Graph) -> bool {
    let nodes = one.nodes.iter().zip(&other.nodes);
    one.nodes.len() == other.nodes.len()
        && one.values.len() == other.values.len()
        && one.weights.len() == other.weights.len()
        && one.segments == other.segments
        && nodes.into_iter().all(|(a, b)| a.weights == b.weights && a.op.name() == b.op.name())
}

/// Products of few rows are summed up in another order than those of more: no node may have few
/// here that has many in the whole batch.
fn check_bits(whole: &Graph, graph: &Graph, run: &ItemRun) -> Result<(), String> {
    let few = |graph: &Graph, node: &Node| graph.value(node.output).rows() <= FEW_ROWS as usize;
    let mut products =
        whole.nodes.iter().zip(&graph.nodes).filter(|(node, _)| node.op.is_product());
    match products.all(|(all, some)| few(whole, all) == few(graph, some)) {
        true => Ok(()),
        false => Err(format!(
            "{} of its items apart would differ in the last bits from those of a whole batch",
            run.items.len()
        )),
    }
}
