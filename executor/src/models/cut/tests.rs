//! What is cut of the reference models, and that nothing is lost of what is.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;
use protocol::{GraphOptions, JobShape, StorageType};

use super::parts::deal;
use super::*;

const JOB: JobShape =
    JobShape { width: 64, height: 48, steps: 2, max_sequence_length: 32, ..JobShape::small() };

/// The graph of a component of a reference model.
fn graph(name: &str, component: &str) -> Graph {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let model = crate::families::open(&fixtures.join(name)).unwrap();
    let graphs = model.graphs(&JOB, &GraphOptions::default()).unwrap();
    let mut graphs = graphs.into_iter().filter(|graph| graph.name == component);
    graphs.next().unwrap().variants.remove(0)
}

#[test]
fn heads_are_the_most_parts_of_components_whose_attention_is_cut() {
    for (name, component, most) in [
        ("flux_schnell", "dit", 2),
        ("flux_dev", "dit", 4),
        ("zimage_turbo", "dit", 2),
        ("flux2_klein", "dit", 2),
        // Keys that are padding are so for all heads.
        ("flux2_klein", "llm", 2),
        ("qwen_image", "dit", 2),
        // Biases by distance are of all heads.
        ("flux_dev", "t5", 1),
        ("flux_dev", "vae", 1),
    ] {
        assert_eq!(Cuts::of(&graph(name, component)).parts_max(), most, "{name} {component}");
    }
}

#[test]
fn blocks_of_stored_types_decide_how_fine_heads_are_shared() {
    let mut graph = graph("flux_dev", "dit");
    // Four heads of 16 features.
    graph.store_as(StorageType::Q8_0);
    assert_eq!(Cuts::of(&graph).parts_max(), 2);
    assert_eq!(
        cut(&graph, &graph, &Cuts::of(&graph), &[1, 1, 1]).unwrap_err(),
        "its heads can be shared by 2 devices, not by 3"
    );
    graph.store_as(StorageType::F16);
    assert_eq!(Cuts::of(&graph).parts_max(), 4);
}

/// Elements of each weight, by name.
fn elements(graph: &Graph) -> BTreeMap<&str, usize> {
    let mut sizes = BTreeMap::new();
    for weight in &graph.weights {
        *sizes.entry(&*weight.name).or_default() += weight.tensor.shape().iter().product::<usize>();
    }
    sizes
}

#[test]
fn parts_of_weights_are_the_weights() {
    for name in ["flux_schnell", "flux_dev", "zimage_turbo", "flux2_klein", "qwen_image"] {
        let whole = graph(name, "dit");
        let two = cut(&whole, &whole, &Cuts::of(&whole), &[3, 1]).unwrap();
        assert_eq!(elements(&two), elements(&whole), "{name}");
        let flops = |graph: &Graph| -> f64 {
            graph
                .work(graph.nodes.iter().filter(|node| node.op.is_product()))
                .iter()
                .map(|w| w.flops)
                .sum()
        };
        assert_eq!(flops(&two), flops(&whole), "{name}: all products once");
        for lane in [0, 1] {
            let attends = two
                .nodes
                .iter()
                .filter(|node| node.lane == Some(lane) && node.op.name().ends_with("Attention"));
            let all =
                whole.nodes.iter().filter(|node| node.op.name().ends_with("Attention")).count();
            assert_eq!(attends.count(), all, "{name}: each device has heads");
        }
    }
}

proptest! {
    #[test]
    fn units_are_dealt_once_each_near_their_share(
        units in 8..2000_usize,
        shares in prop::collection::vec(1..1000_u32, 2..8),
    ) {
        let dealt = deal(units, &shares);
        let sum: u32 = shares.iter().sum();
        let mut at = 0;
        for (range, &share) in dealt.iter().zip(&shares) {
            prop_assert_eq!(range.start, at);
            prop_assert!(!range.is_empty(), "each has some");
            at = range.end;
            let exact = units as f64 * f64::from(share) / f64::from(sum);
            let off = (range.len() as f64 - exact).abs();
            prop_assert!(off <= shares.len() as f64, "{:?} {}", range, exact);
        }
        prop_assert_eq!(at, units);
    }
}
