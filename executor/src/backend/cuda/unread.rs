//! Which weights no kernel of a GPU reads as they are stored.

use super::ops::reads_vectors_of;
use crate::graph::{Graph, Weight};

/// A weight of a graph that no kernel reads as it is stored: matrices may be in any type, biases
/// and what belongs to norms only in those without blocks, as files have them.
pub fn unread(graph: &Graph) -> Option<&Weight> {
    let vectors = graph
        .nodes
        .iter()
        .flat_map(|node| node.weights.get(node.op.matrices()..).unwrap_or_default());
    let mut vectors = vectors.map(|id| &graph.weights[id.0]);
    vectors.find(|weight| !reads_vectors_of(weight.tensor.storage()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::{GraphOptions, JobShape, StorageType};

    use super::*;
    use crate::graph::Node;

    #[test]
    fn a_bias_in_blocks_is_not_read() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/flux_schnell");
        let job = JobShape {
            width: 32,
            height: 32,
            steps: 1,
            max_sequence_length: 16,
            ..JobShape::small()
        };
        let model = crate::families::open(&fixture).expect("a model");
        let graphs = model.graphs(&job, &GraphOptions::default()).expect("its graphs");
        for mut graph in graphs.into_iter().flat_map(|part| part.variants) {
            assert!(unread(&graph).is_none());
            graph.store_as(StorageType::Q8_0);
            assert!(unread(&graph).is_none(), "matrices are read in any type");
            let biased = |node: &&Node| node.op.is_product() && node.weights.len() == 2;
            let Some(node) = graph.nodes.iter().find(biased) else { continue };
            let [matrix, bias] = [0, 1].map(|index| node.weights[index].0);
            graph.weights[bias].tensor = graph.weights[matrix].tensor.stored_as(StorageType::Q8_0);
            assert_eq!(unread(&graph).map(|weight| &weight.name), Some(&graph.weights[bias].name));
        }
    }
}
