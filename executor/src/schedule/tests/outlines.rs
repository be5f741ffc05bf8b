//! Outlines that cut graphs have in common: their bytes are those that each has alone.

use std::path::Path;
use std::sync::OnceLock;

use super::*;
use crate::graph::GraphBuilder;
use crate::models::cut::{Cuts, cut};
use crate::weights::support::opened;

const JOB: JobShape =
    JobShape { width: 64, height: 48, steps: 2, max_sequence_length: 32, ..JobShape::small() };

/// A DiT with four heads, its weights stored so, cut by these shares.
fn cut_dit(storage: StorageType, shares: &[u32]) -> Graph {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let model = families::open(&fixtures.join("flux_dev")).unwrap();
    let graphs = model.graphs(&JOB, &GraphOptions::default()).unwrap();
    let mut dit = graphs.into_iter().find(|graph| graph.name == "dit").unwrap().variants.remove(0);
    dit.store_as(storage);
    cut(&dit, &dit, &Cuts::of(&dit), shares).unwrap()
}

/// On as many GPUs as have shares.
fn on_gpus(graph: &Graph, shares: &[u32]) -> Assignment {
    let one = Assignment::on_one(graph, BackendKind::Cuda, 2);
    let (lanes, residencies) = (shares.len(), one.residencies[0].clone());
    Assignment {
        lanes: vec![one.lanes[0].clone(); lanes],
        division: Division::Tensor { shares: shares.to_vec() },
        residencies: vec![residencies; lanes],
        ..one
    }
}

fn outline_of(graph: &Graph, assignment: &Assignment) -> Outline<'static> {
    Outline::of(graph, assignment, &OperationNeeds, None)
}

fn footprint(graph: &Graph, assignment: &Assignment, known: Known<'_>) -> Footprint {
    Footprint::of(graph, assignment, &OperationNeeds, known).unwrap()
}

#[test]
fn graphs_that_are_cut_by_other_shares_have_their_own_bytes() {
    for (storage, all) in [
        (StorageType::BF16, vec![[3, 1], [1, 1], [1, 3]]),
        (StorageType::F16, vec![[1, 3], [1, 1], [3, 1]]),
        (StorageType::Q8_0, vec![[1, 1], [1, 2]]),
    ] {
        let (shared, mut seen) = (OnceLock::new(), Vec::new());
        for shares in all {
            let graph = cut_dit(storage, &shares);
            let assignment = on_gpus(&graph, &shares);
            let own = footprint(&graph, &assignment, Known::Nothing);
            assert_eq!(footprint(&graph, &assignment, Known::Outline(&shared)), own);
            let outline: &Outline<'_> = shared.get().expect("the first made it");
            assert!(outline.buffers_of(&graph, &assignment, &OperationNeeds).is_some());
            seen.push(own);
        }
        assert!(storage == StorageType::Q8_0 || seen[0] != seen[1], "other shares, other bytes");
    }
    let (shared, four) = (OnceLock::new(), [1, 1, 1, 1]);
    let graph = cut_dit(StorageType::BF16, &four);
    let assignment = on_gpus(&graph, &four);
    let own = footprint(&graph, &assignment, Known::Nothing);
    assert_eq!(footprint(&graph, &assignment, Known::Outline(&shared)), own);
}

/// Two products in a block, with matrices that are split by rows; of the second the results are
/// gathered on the first device.
fn products() -> Graph {
    let weights = [("a.weight", &[256, 256], 2 << 16), ("b.weight", &[512, 256], 4 << 16)];
    let files = opened(&weights.map(|(name, shape, bytes)| (name, "BF16", &shape[..], bytes)));
    let mut graph = GraphBuilder::new(&files);
    graph.block("products");
    let x = graph.input("x", &[1, 24, 256], ElementType::F32);
    let a = graph.linear_no_bias(x, "a", 256, Activation::Silu).unwrap();
    let b = graph.linear_no_bias(a, "b", 512, Activation::None).unwrap();
    graph.output("b", b);
    graph.finish()
}

#[test]
fn rows_that_are_dealt_out_otherwise_have_their_own_bytes() {
    let graph = products();
    let by_rows = |shares: &[u32]| Assignment {
        division: Division::Row { shares: shares.to_vec() },
        ..on_gpus(&graph, shares)
    };
    let (shared, mut seen) = (OnceLock::new(), Vec::new());
    for shares in [[1, 1, 2], [2, 1, 1], [1, 1, 1], [5, 2, 1]] {
        let assignment = by_rows(&shares);
        let own = footprint(&graph, &assignment, Known::Nothing);
        assert_eq!(footprint(&graph, &assignment, Known::Outline(&shared)), own);
        let outline: &Outline<'_> = shared.get().expect("the first made it");
        let found = outline.buffers_of(&graph, &assignment, &OperationNeeds);
        let (program, buffers) = found.expect("the same lanes have rows");
        assert_eq!(program.steps, outline_of(&graph, &assignment).program.steps);
        assert_eq!(program.copies, outline_of(&graph, &assignment).program.copies);
        assert!(outline_of(&graph, &assignment).buffers().eq(&buffers));
        assert!(!seen.contains(&own), "other shares, other bytes");
        seen.push(own);
    }
    // A device whose share is no 32 rows has none.
    let none = by_rows(&[100, 100, 1]);
    let outline: &Outline<'_> = shared.get().expect("the first made it");
    assert!(outline.buffers_of(&graph, &none, &OperationNeeds).is_none());
    let own = footprint(&graph, &none, Known::Nothing);
    assert_eq!(footprint(&graph, &none, Known::Outline(&shared)), own);
    // Nor do rows that nobody had before go unseen.
    let others = OnceLock::from(outline_of(&graph, &none));
    let assignment = by_rows(&[1, 1, 1]);
    let outline: &Outline<'_> = others.get().expect("it is there");
    assert!(outline.buffers_of(&graph, &assignment, &OperationNeeds).is_none());
}

#[test]
fn a_graph_with_another_outline_is_looked_at_by_itself() {
    let shares = [3, 1];
    let graph = cut_dit(StorageType::BF16, &shares);
    let assignment = on_gpus(&graph, &shares);
    // Products in f32 leave no value in 16 bits, and need no workspace.
    let in_f32 = Assignment { exact_matmul: true, ..assignment.clone() };
    let other = OnceLock::from(outline_of(&graph, &in_f32));
    assert!(other.get().unwrap().buffers_of(&graph, &assignment, &OperationNeeds).is_none());
    let own = footprint(&graph, &assignment, Known::Nothing);
    assert_eq!(footprint(&graph, &assignment, Known::Outline(&other)), own);
    assert_ne!(footprint(&graph, &in_f32, Known::Nothing), own);
}
