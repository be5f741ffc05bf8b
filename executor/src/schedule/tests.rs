//! Properties of lifetimes and arenas, on random graphs and on the reference models' own. Those of
//! elements are in [`elements`], those of graphs that are cut alike in [`outlines`].
//!
//! What is asserted is worked out anew from the graph and from byte ranges; of the code under test
//! only results are used.

mod elements;
mod outlines;
mod simulate;

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use protocol::plan::ALIGNMENT_BYTES;
use protocol::profile::SegmentProfile;
use protocol::{Division, GraphOptions, JobShape, StorageType};

use super::lifetime::AliveBytes;
use simulate::assert_values_last;

use super::*;
use crate::families;
use crate::graph::{Activation, ElementType, Few, Node, NodeOp, Port, Segment, Value};
use crate::ops::OperationNeeds;
use crate::ops::activate::ActivateOp;
use crate::ops::ada_layer_norm::AdaLayerNormOp;
use crate::ops::add::AddOp;
use crate::ops::attention::AttentionOp;
use crate::ops::concat_tokens::ConcatTokensOp;
use crate::ops::gated_add::GatedAddOp;
use crate::ops::linear::LinearOp;
use crate::ops::rope::RopeOp;
use crate::ops::slice_tokens::SliceTokensOp;

const KINDS: [BackendKind; 3] = [BackendKind::Host, BackendKind::Virtual, BackendKind::Cuda];

/// The worker counts of a laptop's and a server's kind, and an odd one.
const THREADS: [usize; 3] = [1, 2, 7];

/// Any buffers, some of them empty, whose lives overlap in every way.
fn any_buffers() -> impl Strategy<Value = Vec<ArenaBuffer>> {
    let buffer = (0..40_u64, 0..30_usize, 0..12_usize, any::<bool>());
    let buffer = buffer.prop_map(|(units, first, length, workspace)| ArenaBuffer {
        bytes: Bytes(units * ALIGNMENT_BYTES),
        first,
        last: first + length,
        workspace,
    });
    prop::collection::vec(buffer, 1..60)
}

/// Features of a head that no kernel of a GPU reads in 16 bits.
const HEAD_DIM: usize = 40;

/// How a node is made: its operation, which earlier values it reads, whether its result is an
/// output.
type Recipe = (u8, [usize; 3], bool);

/// Any graphs of two inputs, over operations of each kind: in place, with workspaces, of two inputs
/// and of three. The last result is an output; some values are never read.
fn any_graph() -> impl Strategy<Value = Graph> {
    let recipe = (0..8_u8, any::<[usize; 3]>(), prop::bool::weighted(0.1));
    let recipes = prop::collection::vec(recipe, 1..40);
    (1..4_usize, recipes).prop_map(|(heads, recipes)| graph(heads, &recipes))
}

fn graph(heads: usize, recipes: &[Recipe]) -> Graph {
    graph_of([heads, HEAD_DIM], recipes)
}

fn graph_of([heads, head_dim]: [usize; 2], recipes: &[Recipe]) -> Graph {
    let features = heads * head_dim;
    let shape = |tokens| Few::from_slice(&[1, tokens, features]);
    let value = |tokens| Value { shape: shape(tokens), element: ElementType::F32 };
    let (short, long) = (value(9), value(18));
    let mut graph = Graph {
        values: vec![short.clone(), short.clone()],
        weights: Vec::new(),
        nodes: Vec::new(),
        segments: ["first", "second", "third", "fourth"]
            .map(|name| Segment { name: name.to_owned(), block: true })
            .into(),
        inputs: vec![port("x", ValueId(0)), port("y", ValueId(1))],
        outputs: Vec::new(),
        item_runs: Vec::new(),
    };
    let mut shorts = vec![ValueId(0), ValueId(1)];
    for (at, &(kind, choices, is_output)) in recipes.iter().enumerate() {
        // Mostly late values, as in models.
        let late = |choice: usize| (choice % shorts.len()).min(choice % 5);
        let [a, b, c] = choices.map(|choice| shorts[shorts.len() - 1 - late(choice)]);
        let any = ValueId(choices[0] % graph.values.len());
        let attention = AttentionOp { heads, kv_heads: heads, scale: 1.0, causal: false };
        let norm = AdaLayerNormOp { eps: 0.0, shift_chunk: 0, scale_chunk: 0 };
        let (op, inputs, result): (NodeOp, _, _) = match kind {
            0 => (AddOp.into(), vec![a, b], &short),
            1 => (ActivateOp(Activation::Silu).into(), vec![a], &short),
            2 => (LinearOp(Activation::None).into(), vec![a], &short),
            3 => (LinearOp(Activation::None).into(), vec![a, b], &short),
            4 => (GatedAddOp { gate_chunk: 0 }.into(), vec![a, b, c], &short),
            5 => (attention.into(), vec![a, b, c], &short),
            6 => (ConcatTokensOp.into(), vec![a, b], &long),
            8 => (norm.into(), vec![a, b], &short),
            9 => (RopeOp { heads }.into(), vec![a, b], &short),
            _ => (SliceTokensOp { from: 0 }.into(), vec![any], &short),
        };
        let output = ValueId(graph.values.len());
        shorts.extend((result.shape == short.shape).then_some(output));
        graph.values.push(result.clone());
        let segment = 4 * at / recipes.len();
        let (inputs, weights, lane) = (inputs.into(), Few::new(), None);
        let (item_run, token_parts) = (0, 1);
        let node = Node { op, inputs, weights, output, segment, lane, item_run, token_parts };
        graph.nodes.push(node);
        if is_output || at + 1 == recipes.len() {
            graph.outputs.push(port("result", output));
        }
    }
    graph
}

/// A port of a graph that is not joined.
fn port(name: &'static str, value: ValueId) -> Port {
    Port { name, value, item_run: 0, begin: 0 }
}

/// A graph of activations, one after the other, that starts from the second of its two inputs.
fn chain(length: usize) -> Graph {
    graph(1, &vec![(1, [0; 3], false); length])
}

/// Every graph of the models in `tests/fixtures`, for small, wide and batched jobs.
fn real_graphs() -> Vec<Graph> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    let job = |width, height, batch, true_cfg| JobShape {
        width,
        height,
        steps: 2,
        batch,
        max_sequence_length: 48,
        true_cfg,
        ..JobShape::small()
    };
    let jobs = [job(64, 64, 1, false), job(96, 48, 3, true)];
    let mut graphs = Vec::new();
    for name in ["flux_schnell", "flux_dev"] {
        let model = families::open(&fixtures.join(name)).unwrap();
        for job in &jobs {
            let options = GraphOptions::default();
            let parts = model.graphs(job, &options).unwrap();
            graphs.extend(parts.into_iter().flat_map(|part| part.variants));
        }
    }
    graphs
}

fn on_one(graph: Graph, kind: BackendKind, threads: usize) -> Schedule {
    let assignment = Assignment::on_one(&graph, kind, threads);
    Schedule::new(Arc::new(graph), assignment, &OperationNeeds)
}

/// The models' graphs on each kind of device, with their weights as they are and in 16 bits.
fn real_schedules() -> impl Iterator<Item = Schedule> {
    let mut halves = real_graphs();
    halves.iter_mut().for_each(|graph| graph.store_as(StorageType::BF16));
    let each = |graph: Graph| {
        KINDS.into_iter().flat_map(move |kind| {
            let graph = graph.clone();
            THREADS.into_iter().map(move |threads| on_one(graph.clone(), kind, threads))
        })
    };
    real_graphs().into_iter().chain(halves).flat_map(each)
}

/// A graph cut at random over some lanes; some of them cannot do everything, and one may be the
/// host.
fn cut(graph: Graph, cuts: &[usize], lanes: usize, unable: usize, host: bool) -> Schedule {
    cut_over(BackendKind::Virtual, graph, cuts, lanes, unable, host)
}

fn cut_over(
    kind: BackendKind,
    graph: Graph,
    cuts: &[usize],
    lanes: usize,
    unable: usize,
    host: bool,
) -> Schedule {
    let mut assignment = Assignment::on_one(&graph, kind, 2);
    assignment.lanes = vec![assignment.lanes[0].clone(); lanes];
    assignment.residencies = vec![assignment.residencies[0].clone(); lanes];
    if host {
        assignment.lanes[lanes - 1].backend = BackendKind::Host;
    }
    let ops = ["Add", "Linear", "Attention", "ConcatTokens", "GatedAdd"];
    if let Some(op) = ops.get(unable) {
        assignment.lanes[0].unsupported = vec![(*op).to_owned()];
    }
    let mut segments: Vec<u32> =
        (0..graph.segments.len()).map(|s| (cuts[s % cuts.len()] % lanes) as u32).collect();
    segments.sort_unstable();
    assignment.division = Division::Layer { segments };
    Schedule::new(Arc::new(graph), assignment, &OperationNeeds)
}

fn range(offset: Bytes, bytes: Bytes) -> Range<u64> {
    offset.0..offset.0 + bytes.0
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
}

fn runs(schedule: &Schedule) -> Vec<&Run> {
    fn run(instruction: &Instruction) -> Option<&Run> {
        if let Instruction::Run(run) = instruction { Some(run) } else { None }
    }
    schedule.program.iter().filter_map(run).collect()
}

/// Between the most that any one node needs and everything side by side.
fn assert_arena_is_bounded(schedule: &Schedule) {
    let graph = &schedule.graph;
    let elements = &schedule.elements;
    let size = |value| elements.bytes(graph, value).align_up(ALIGNMENT_BYTES).0;
    let inputs = graph.inputs.iter().map(|port| port.value);
    let kept = inputs.filter(|&value| schedule.input_places(value).next().is_some());
    let kept: BTreeSet<ValueId> = kept.chain(graph.outputs.iter().map(|p| p.value)).collect();
    let mut all: u64 = (0..graph.values.len()).map(|value| size(ValueId(value))).sum();
    let mut most = 0;
    for (at, (node, run)) in graph.nodes.iter().zip(runs(schedule)).enumerate() {
        let workspace = run.workspace.1.0;
        assert_eq!(workspace % ALIGNMENT_BYTES, 0);
        let written = graph.nodes[..at].iter().map(|node| node.output);
        let read_later =
            |value: &ValueId| graph.nodes[at..].iter().any(|node| node.inputs.contains(value));
        let mut alive: BTreeSet<ValueId> = written.filter(read_later).collect();
        alive.extend(&kept);
        if !node.op.in_place() {
            alive.insert(node.output);
        }
        most = most.max(workspace + alive.into_iter().map(size).sum::<u64>());
        all += workspace;
    }
    let arena = schedule.lanes[0].arena_bytes.0;
    assert!(arena >= most, "{arena} is below {most}");
    assert!(arena <= all, "{arena} is above {all}");
}

/// What is said of a layout without its instructions is what its schedule takes.
fn assert_footprint_is_the_same(schedule: &Schedule) {
    let Schedule { graph, assignment, .. } = schedule;
    let on_gpus = Elements::on_gpus(graph, assignment, &OperationNeeds);
    let is_on_gpus = |lane: &LaneSchedule| lane.lane.backend == BackendKind::Cuda;
    let all_on_gpus = schedule.lanes.iter().all(is_on_gpus);
    let known = all_on_gpus.then_some(Known::Elements(&on_gpus));
    for known in [Known::Nothing].into_iter().chain(known) {
        let footprint = Footprint::of(graph, assignment, &OperationNeeds, known).unwrap();
        let lanes = schedule.lanes.iter();
        let lanes: Vec<_> =
            lanes.map(|l| (l.arena_bytes, l.weights.segment_bytes.clone())).collect();
        let stated = footprint.lanes.into_iter().map(|l| (l.arena_bytes, l.segment_bytes));
        assert_eq!(stated.collect::<Vec<_>>(), lanes);
        assert_eq!(footprint.crossing_bytes, schedule.crossing_bytes());
    }
}

type LanePlaces = (Bytes, Vec<WeightSlice>);

fn layout(schedule: &Schedule) -> (Vec<Instruction>, Vec<Transfer>, Vec<LanePlaces>) {
    let lanes = schedule.lanes.iter().map(|lane| (lane.arena_bytes, lane.weights.slices.clone()));
    (schedule.program.clone(), schedule.transfers.clone(), lanes.collect())
}

proptest! {
    #[test]
    fn buffers_alive_together_are_apart(buffers in any_buffers()) {
        let (offsets, arena_bytes) = arena::place(&buffers);
        for (i, a) in buffers.iter().enumerate() {
            let place = range(offsets[i], a.bytes);
            prop_assert_eq!(place.start % ALIGNMENT_BYTES, 0);
            prop_assert!(place.end <= arena_bytes.0);
            for (j, b) in buffers.iter().enumerate().skip(i + 1) {
                let together = (a.first.max(b.first)..=a.last.min(b.last)).next().is_some();
                let apart = !overlap(&place, &range(offsets[j], b.bytes));
                prop_assert!(apart || !together, "buffers {} and {}", i, j);
            }
        }
    }

    #[test]
    fn the_arena_is_between_the_most_alive_and_the_sum(buffers in any_buffers()) {
        let (_, arena_bytes) = arena::place(&buffers);
        let alive = |at: usize| -> u64 {
            let now = buffers.iter().filter(|b| (b.first..=b.last).contains(&at));
            now.map(|b| b.bytes.0).sum()
        };
        let most = (0..50).map(alive).max().unwrap();
        let all: u64 = buffers.iter().map(|b| b.bytes.0).sum();
        prop_assert!((most..=all).contains(&arena_bytes.0), "{most} {arena_bytes} {all}");
    }

    #[test]
    fn alive_is_what_began_and_has_not_ended(buffers in any_buffers()) {
        let alive = AliveBytes::of(&buffers, 50);
        let bytes = |is: &dyn Fn(&ArenaBuffer) -> bool| -> Bytes {
            buffers.iter().filter(|b| !b.workspace && is(b)).map(|b| b.bytes).sum()
        };
        let at = |at: usize| bytes(&|b| b.first <= at && at <= b.last);
        prop_assert_eq!(alive.most(10, 19), (10..=19).map(at).max().unwrap());
        for step in 0..50 {
            prop_assert_eq!(alive.most(step, step), at(step));
            prop_assert_eq!(alive.carried(step), bytes(&|b| b.first <= step && step < b.last));
        }
    }

    #[test]
    fn each_buffer_is_at_the_lowest_place_beside_larger_ones(buffers in any_buffers()) {
        let mut order: Vec<usize> = (0..buffers.len()).collect();
        order.sort_by_key(|&index| (Reverse(buffers[index].bytes), index));
        let (offsets, _) = arena::place(&buffers);
        for (at, &index) in order.iter().enumerate() {
            let one = &buffers[index];
            let alive = order[..at].iter().filter(|&&other| {
                one.first <= buffers[other].last && buffers[other].first <= one.last
            });
            let taken = alive.map(|&other| range(offsets[other], buffers[other].bytes));
            let taken: Vec<_> = taken.collect();
            let is_free = |from: &u64| {
                taken.iter().all(|other| !overlap(&range(Bytes(*from), one.bytes), other))
            };
            let lowest = taken.iter().map(|other| other.end).chain([0]).filter(is_free).min();
            prop_assert_eq!(Some(offsets[index].0), lowest, "buffer {}", index);
        }
    }

    #[test]
    fn overlaps_of_living_buffers_are_noticed(
        buffers in any_buffers(),
        offsets in prop::collection::vec(0..60_u64, 60),
    ) {
        let offsets: Vec<Bytes> = offsets.iter().map(|at| Bytes(at * ALIGNMENT_BYTES)).collect();
        let clash = |i: usize, j: usize| {
            let (a, b) = (&buffers[i], &buffers[j]);
            let together = a.first <= b.last && b.first <= a.last;
            together && overlap(&range(offsets[i], a.bytes), &range(offsets[j], b.bytes))
        };
        let clashes = (0..buffers.len()).any(|i| (0..i).any(|j| clash(i, j)));
        let noticed = std::panic::catch_unwind(|| arena::assert_disjoint(&buffers, &offsets));
        prop_assert_eq!(clashes, noticed.is_err());
    }

    #[test]
    fn values_of_any_graph_last_until_they_are_read(graph in any_graph(), threads in 1..5_usize) {
        assert_values_last(&on_one(graph, BackendKind::Host, threads));
    }

    #[test]
    fn values_of_any_cut_graph_last_until_they_are_read(
        graph in any_graph(),
        cuts in prop::collection::vec(0..8_usize, 4),
        (lanes, unable, host) in (1..5_usize, 0..8_usize, any::<bool>()),
    ) {
        let schedule = cut(graph, &cuts, lanes, unable, host && lanes > 1);
        assert_values_last(&schedule);
        assert_footprint_is_the_same(&schedule);
        prop_assert_eq!(runs(&schedule).len(), schedule.graph.nodes.len());
    }

    #[test]
    fn the_arena_of_any_graph_is_bounded(graph in any_graph(), threads in 1..5_usize) {
        assert_arena_is_bounded(&on_one(graph, BackendKind::Host, threads));
    }

    #[test]
    fn the_same_graph_gets_the_same_layout(graph in any_graph()) {
        let schedule = |graph| on_one(graph, BackendKind::Virtual, 2);
        prop_assert_eq!(layout(&schedule(graph.clone())), layout(&schedule(graph)));
    }
}

#[test]
fn values_of_the_models_last_until_they_are_read() {
    real_schedules().for_each(|schedule| assert_values_last(&schedule));
}

#[test]
fn values_of_the_models_in_layers_last_until_they_are_read() {
    for graph in real_graphs() {
        for lanes in [2, 3, 8] {
            let cuts: Vec<usize> =
                (0..graph.segments.len()).map(|s| s * lanes / graph.segments.len()).collect();
            let schedule = cut(graph.clone(), &cuts, lanes, 9, false);
            let weights = |lane: &LaneSchedule| lane.weights.resident_bytes.0;
            let split: u64 = schedule.lanes.iter().map(weights).sum();
            let whole = on_one(graph.clone(), BackendKind::Virtual, 2);
            assert_eq!(split, whole.lanes[0].weights.resident_bytes.0, "each weight once");
            assert_values_last(&schedule);
            assert_footprint_is_the_same(&schedule);
        }
    }
}

#[test]
fn the_arenas_of_the_models_are_bounded() {
    real_schedules().for_each(|schedule| assert_arena_is_bounded(&schedule));
}

#[test]
fn the_models_get_the_same_layout_again() {
    for schedule in real_schedules() {
        let assignment = schedule.assignment.clone();
        let again = Schedule::new(Arc::clone(&schedule.graph), assignment, &OperationNeeds);
        assert_eq!(layout(&schedule), layout(&again));
    }
}

#[test]
fn weights_of_the_models_lie_aligned_and_apart() {
    for schedule in real_schedules() {
        let mut end = 0;
        let weights = &schedule.lanes[0].weights;
        assert_eq!(weights.slices.len(), schedule.graph.weights.len());
        for slice in &weights.slices {
            let weight = &schedule.graph.weights[slice.weight.0];
            let WeightPlace::Resident(offset) = slice.place else { panic!("all are resident") };
            let place = range(offset, weight.tensor.size());
            assert_eq!(place.start % ALIGNMENT_BYTES, 0, "{}", weight.name);
            assert!(place.start >= end, "{} lies in the weight before it", weight.name);
            end = place.end;
        }
        assert!(end <= weights.resident_bytes.0);
    }
}

#[test]
fn segments_of_the_models_add_up_to_their_schedule() {
    for schedule in real_schedules() {
        let segments = schedule.segments(&[]);
        let weights: u64 = segments.iter().map(|segment| segment.weights_bytes.0).sum();
        assert_eq!(weights, schedule.lanes[0].weights.resident_bytes.0);
        let stored = segments.iter().flat_map(|segment| &segment.storage);
        assert_eq!(stored.map(|entry| entry.bytes.0).sum::<u64>(), schedule.tensor_bytes().0);
        let arena = |segment: &SegmentProfile| segment.arena_bytes <= schedule.lanes[0].arena_bytes;
        assert!(segments.iter().all(arena));
        assert_eq!(segments.last().unwrap().carried_bytes, Bytes::ZERO, "nothing reads on");
    }
}

#[test]
fn segments_state_the_workspaces_of_every_kind_of_backend() {
    for graph in real_graphs() {
        let schedules = KINDS.map(|kind| on_one(graph.clone(), kind, 2));
        let [host, others @ ..] = &schedules;
        for (index, segment) in host.segments(&others.each_ref()[..]).iter().enumerate() {
            for (schedule, stated) in schedules.iter().zip(&segment.workspace) {
                let own = graph.nodes.iter().enumerate().filter(|(_, node)| node.segment == index);
                let runs = runs(schedule);
                let most = own.map(|(at, _)| runs[at].workspace.1).max().unwrap();
                assert_eq!((stated.backend, stated.bytes), (schedule.lanes[0].lane.backend, most));
            }
        }
    }
}

#[test]
fn an_input_is_never_taken_over_in_place() {
    let schedule = on_one(chain(2), BackendKind::Host, 1);
    let first = runs(&schedule)[0];
    assert_eq!(schedule.graph.nodes[0].inputs[..], [schedule.graph.input("y")]);
    assert_ne!(first.inputs[0], first.output);
    assert_values_last(&schedule);
}

#[test]
fn an_output_is_never_taken_over_in_place() {
    let mut graph = chain(3);
    let early = graph.nodes[0].output;
    graph.outputs.push(port("early", early));
    let schedule = on_one(graph, BackendKind::Host, 1);
    let next = runs(&schedule)[1];
    assert_ne!(next.inputs[0], next.output);
    assert_values_last(&schedule);
}

#[test]
fn a_chain_of_operations_in_place_needs_its_input_its_output_and_one_value() {
    let values = |length| {
        let schedule = on_one(chain(length), BackendKind::Host, 1);
        let value = schedule.graph.values[0].bytes().align_up(ALIGNMENT_BYTES);
        schedule.lanes[0].arena_bytes.0 / value.0
    };
    assert_eq!(values(1), 2);
    assert_eq!(values(10), 3);
}
