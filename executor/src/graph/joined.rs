//! The graphs of one component for some of its items each, as one graph, on the same weights.
//! Between two of them nothing crosses.
//!
//! Replicas run node by node in turns. The groups of a pipeline follow one another through its
//! stages, in slots. In a slot each stage has the group after that of the next stage, and their
//! nodes take turns too: whoever hands nodes out is held up where a device has many that wait, and
//! would let the others idle if it gave each all of its slot at once.
//! ```text
//! stage 0:  group 0 │ group 1 │ group 2 │
//! stage 1:          │ group 0 │ group 1 │ group 2
//! ```

use protocol::division::ItemRun;
use protocol::limits::FEW_ROWS;

use super::{Graph, Node, Port, Value, ValueId};

impl Graph {
    /// One graph of all these, each with the items that it is for. `whole` is the graph of a whole
    /// batch. Of a pipeline `stages` tells the stage of each segment.
    ///
    /// # Errors
    /// Why the items would not be, to the bit, what they are in a whole batch.
    ///
    /// # Panics
    /// The graphs are not of the same nodes and weights.
    pub fn joined(
        whole: &Graph,
        runs: Vec<(ItemRun, &Graph)>,
        stages: Option<&[u32]>,
    ) -> Result<Graph, String> {
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
        joined.nodes = match stages {
            None => nodes.into_iter().flatten().collect(),
            Some(stages) => in_slots(whole, nodes, &joined.item_runs, stages),
        };
        Ok(joined)
    }
}

/// The nodes of a pipeline in the order of their slots. In one, each stage is as far on with its
/// group as the others with theirs, the oldest group first. `nodes` has for each node of the whole
/// graph that of each run.
fn in_slots(whole: &Graph, nodes: Vec<Vec<Node>>, runs: &[ItemRun], stages: &[u32]) -> Vec<Node> {
    let stage = |node: &Node| stages[node.segment] as usize;
    let mut lengths = vec![0_u64; stages.iter().max().map_or(0, |last| *last as usize + 1)];
    let places = whole.nodes.iter().map(|node| {
        let length = &mut lengths[stage(node)];
        *length += 1;
        *length - 1
    });
    let places: Vec<u64> = places.collect();
    let mut ordered = Vec::new();
    for (together, place) in nodes.into_iter().zip(places) {
        for node in together {
            let (part, stage) = (runs[node.item_run].part, stage(&node));
            // How far on the stage is with it, in parts of 2^32.
            let progress = ((2 * place + 1) << 32) / (2 * lengths[stage]);
            ordered.push(((part + stage, progress, part), node));
        }
    }
    // Nodes that are as far on keep their order: those of one group, for several passes.
    ordered.sort_by_key(|(slot, _)| *slot);
    ordered.into_iter().map(|(_, node)| node).collect()
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use protocol::{GraphOptions, JobShape, item_runs};

    use super::*;
    use crate::families;

    /// The DiT of a model for so many pictures in one pass.
    fn dit(batch: u32) -> Graph {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/flux_schnell");
        let job =
            JobShape { width: 64, height: 64, batch, max_sequence_length: 32, ..JobShape::small() };
        let graphs = families::open(&dir).unwrap().graphs(&job, &GraphOptions::default()).unwrap();
        let dit = graphs.into_iter().find(|graph| graph.name == "dit").expect("a DiT");
        dit.variants.into_iter().next().expect("a graph")
    }

    #[test]
    fn groups_follow_one_another_through_the_stages() {
        let (whole, one) = (dit(3), dit(1));
        let stages: Vec<u32> = (0..whole.segments.len() as u32).map(|at| at.min(2)).collect();
        let runs: Vec<_> = item_runs(&[1, 1, 1], 3).into_iter().map(|run| (run, &one)).collect();
        let joined = Graph::joined(&whole, runs.clone(), Some(&stages)).expect("the same bits");
        let slot = |node: &Node| node.item_run + stages[node.segment] as usize;
        assert!(joined.nodes.is_sorted_by_key(slot), "slot by slot");
        let mut there: BTreeSet<_> = joined.inputs.iter().map(|port| port.value).collect();
        for node in &joined.nodes {
            assert!(
                node.inputs.iter().all(|input| there.contains(input)),
                "made before it is read"
            );
            there.insert(node.output);
        }
        // All devices have their nodes in turns: of the slot in which each has a group, the first
        // third has about a third of the nodes of each.
        let third: Vec<&Node> = joined.nodes.iter().filter(|node| slot(node) == 2).collect();
        for stage in 0..3 {
            let is_of = |node: &&&Node| stages[node.segment] == stage;
            let (all, early) = (
                third.iter().filter(is_of).count(),
                third[..third.len() / 3].iter().filter(is_of).count(),
            );
            assert!(early.abs_diff(all / 3) <= 1, "stage {stage}: {early} of {all}");
        }
        let in_turns = Graph::joined(&whole, runs, None).expect("the same bits");
        assert_eq!(in_turns.nodes.len(), joined.nodes.len());
        assert_eq!(in_turns.nodes[..3].iter().map(|n| n.item_run).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
