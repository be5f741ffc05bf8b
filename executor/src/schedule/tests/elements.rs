//! Which values of a schedule have 16 bits, worked out anew from the graph and from who runs what.

use super::*;
use crate::ops::conv2d::ConvOp;
use crate::ops::norm::NormOp;

/// Features of a head that the kernels of attention read in 16 bits.
const HALF_HEAD_DIM: usize = 32;

/// Graphs that GPUs run, whose attention reads 16 bits: in place of linear layers, which have no
/// weights here, norms and rotations.
fn any_gpu_graph() -> impl Strategy<Value = Graph> {
    let kind = prop_oneof![0..2_u8, 4..10_u8, Just(5_u8)];
    let recipe = (kind, any::<[usize; 3]>(), prop::bool::weighted(0.1));
    let recipes = prop::collection::vec(recipe, 1..40);
    (1..4_usize, recipes).prop_map(|(heads, recipes)| graph_of([heads, HALF_HEAD_DIM], &recipes))
}

/// The kinds of the devices that touch each value.
fn kinds_of_values(schedule: &Schedule) -> Vec<BTreeSet<BackendKind>> {
    let mut kinds = vec![BTreeSet::new(); schedule.graph.values.len()];
    for run in runs(schedule) {
        let node = &schedule.graph.nodes[run.node];
        for value in node.inputs.iter().chain([&node.output]) {
            kinds[value.0].insert(schedule.lanes[run.lane].lane.backend);
        }
    }
    kinds
}

/// Nobody reads in 16 bits what he cannot, and no product reads some inputs so and others not.
fn assert_elements_change_nothing(schedule: &Schedule) {
    let graph = &schedule.graph;
    let element = |value: ValueId| schedule.elements.of(value);
    let is_half = |value: ValueId| element(value) != graph.value(value).element;
    for port in graph.inputs.iter().chain(&graph.outputs) {
        assert!(!is_half(port.value), "{} is the host's", port.name);
    }
    for (value, kinds) in kinds_of_values(schedule).into_iter().enumerate() {
        let only_gpus = kinds.iter().all(|&kind| kind == BackendKind::Cuda);
        assert!(!is_half(ValueId(value)) || only_gpus, "{kinds:?} touch value {value}");
    }
    for node in &graph.nodes {
        let halves: Vec<ElementType> = node
            .inputs
            .iter()
            .filter(|&&input| is_half(input))
            .map(|&input| element(input))
            .collect();
        let all_are = |expected: ElementType| halves.iter().all(|&element| element == expected);
        let accumulates = node.op.get::<ConvOp>().is_some_and(|conv| conv.accumulate);
        match node.op.name() {
            "Attention" => {
                let bias = node.inputs.get(3).is_some_and(|&bias| is_half(bias));
                assert!(all_are(ElementType::F16) && !bias, "{node:?}");
            }
            "Conv2d" => {
                let added = accumulates && is_half(node.inputs[0]);
                assert!(all_are(ElementType::BF16) && !added, "{node:?}");
            }
            "Linear" => {
                let whole = halves.is_empty() || halves.len() == node.inputs.len();
                assert!(all_are(ElementType::BF16) && whole, "{node:?}");
            }
            "ConcatTokens" | "SliceTokens" => {
                let moved = node.inputs.iter().all(|&i| element(i) == element(node.output));
                assert!(moved, "{node:?} computes nothing");
            }
            _ => assert!(halves.is_empty(), "{node:?}"),
        }
        let written = match node.op.name() {
            "AdaLayerNorm" | "Norm" | "Linear" | "Rope" => true,
            "ConcatTokens" | "SliceTokens" => true,
            "Attention" => element(node.output) != ElementType::F16,
            "Conv2d" => !accumulates,
            _ => false,
        };
        assert!(!is_half(node.output) || written, "{node:?}");
    }
}

proptest! {
    #[test]
    fn any_graph_over_gpus_and_the_host_keeps_its_results(
        graph in any_gpu_graph(),
        cuts in prop::collection::vec(0..8_usize, 4),
        (lanes, unable, host) in (1..5_usize, 0..8_usize, any::<bool>()),
    ) {
        let host = host && lanes > 1;
        let schedule = cut_over(BackendKind::Cuda, graph, &cuts, lanes, unable, host);
        assert_elements_change_nothing(&schedule);
        assert_values_last(&schedule);
    }
}

#[test]
fn elements_of_the_models_change_nothing() {
    real_schedules().for_each(|schedule| assert_elements_change_nothing(&schedule));
}

#[test]
fn only_gpus_hold_values_of_16_bits_and_not_where_products_are_exact() {
    for schedule in real_schedules() {
        let graph = &schedule.graph;
        let is_half = |value| schedule.elements.of(ValueId(value)) != graph.values[value].element;
        if schedule.lanes[0].lane.backend != BackendKind::Cuda {
            assert!(!(0..graph.values.len()).any(is_half));
        }
        let exact = Assignment { exact_matmul: true, ..schedule.assignment.clone() };
        let exact = Schedule::new(Arc::clone(graph), exact, &OperationNeeds);
        let held = (0..graph.values.len()).map(|value| exact.elements.of(ValueId(value)));
        assert!(held.eq(graph.values.iter().map(|value| value.element)), "exact products read f32");
    }
}

/// Whether a node made a value that best writes it so, and that the host does not touch. What
/// cuBLASLt may multiply, with weights of bf16, it writes in bf16 where its own epilogue is all
/// that follows, and never in f16.
fn can_be(element: ElementType, graph: &Graph, value: ValueId) -> bool {
    let ports = graph.inputs.iter().chain(&graph.outputs);
    let maker = graph.nodes.iter().find(|node| node.output == value);
    let able = maker.is_some_and(|node| match node.op.name() {
        "Norm" => !matches!(node.op.get(), Some(NormOp::Group { .. })),
        "AdaLayerNorm" | "Rope" | "Attention" => true,
        "Linear" => {
            let LinearOp(activation) = node.op.get().expect("a linear layer");
            let mut storages = node.weights.iter().map(|id| graph.weights[id.0].tensor.storage());
            let is_library_s = storages.next() == Some(StorageType::BF16);
            let by_epilogue = matches!(activation, Activation::None | Activation::GeluTanh)
                && storages.all(|bias| bias == StorageType::BF16);
            !is_library_s || element == ElementType::BF16 && by_epilogue
        }
        "ConcatTokens" | "SliceTokens" => {
            node.inputs.iter().all(|&input| can_be(element, graph, input))
        }
        _ => false,
    });
    able && ports.into_iter().all(|port| port.value != value)
}

#[test]
fn products_and_attention_of_the_models_read_16_bits() {
    let mut read = [0, 0];
    let storages = [StorageType::BF16, StorageType::F8E4M3];
    let graphs = real_graphs().into_iter().flat_map(|graph| storages.map(|s| (graph.clone(), s)));
    for (mut graph, storage) in graphs {
        graph.store_as(storage);
        let schedule = on_one(graph, BackendKind::Cuda, 2);
        let graph = &schedule.graph;
        let rows = |value: ValueId| graph.value(value).rows();
        for node in &graph.nodes {
            let (kind, element) = match node.op.name() {
                "Linear" if rows(node.output) > 8 => (0, ElementType::BF16),
                "Attention" => {
                    let AttentionOp { heads, .. } = node.op.get().expect("an attention");
                    let head_dim = graph.value(node.output).features() / heads;
                    if ![16, 32, 64, 128].contains(&head_dim) {
                        continue;
                    }
                    (1, ElementType::F16)
                }
                _ => continue,
            };
            let inputs = node.inputs.iter().take(3);
            let able: Vec<_> = inputs.filter(|&&input| can_be(element, graph, input)).collect();
            if kind == 0 && able.len() < node.inputs.len() {
                continue;
            }
            read[kind] += able.len();
            let held = able.iter().all(|&&input| schedule.elements.of(input) == element);
            assert!(held, "{node:?} reads {element:?}");
        }
    }
    assert!(read[0] > 100 && read[1] > 30, "{read:?}");
}
