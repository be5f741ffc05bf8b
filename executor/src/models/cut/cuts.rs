//! Which values of a graph are cut, and into how many parts at most.
//!
//! Values that an operation needs cut alike are a class. A class begins with products of whole
//! inputs and ends where products sum it up; one that meets an operation which needs whole values
//! stays whole, and so does the lightest of several that could be cut, but not together.

use std::collections::{BTreeMap, BTreeSet};

use protocol::profile::WorkKind;

use crate::graph::{Cutting, Graph, Node, NodeView, ValueId};
use crate::weights::RUNS_MAX;

/// Features come in multiples of this where nothing else says how: then a tile of the widest
/// kernels, and a block of activations that are quantised, is of one device.
const FEATURE_MULTIPLE: usize = 32;

/// What of a graph is cut.
#[derive(Debug)]
pub struct Cuts {
    /// For each value, its class; `None` where it is whole.
    classes: Vec<Option<usize>>,
    /// For each class, its units: equal runs of features, as heads are. A device has whole ones.
    units: Vec<usize>,
    /// Whether all attention within blocks is cut.
    attends: bool,
}

impl Cuts {
    /// What can be cut of a graph.
    pub fn of(graph: &Graph) -> Cuts {
        let mut whole = BTreeSet::new();
        loop {
            let mut search = ClassSearch::new(graph, &whole);
            (0..graph.nodes.len()).for_each(|node| search.node(node));
            let kept = search.kept_whole();
            if kept.is_empty() {
                return search.cuts();
            }
            whole.extend(kept);
        }
    }

    /// The class of a value, with the number of its units; `None` where the value is whole.
    pub fn class(&self, value: ValueId) -> Option<(usize, usize)> {
        self.classes[value.0].map(|class| (class, self.units[class]))
    }

    /// The units of each class.
    pub fn units(&self) -> &[usize] {
        &self.units
    }

    /// Whether a node sums up values that are cut.
    pub fn sums(&self, node: &Node) -> bool {
        node.op.is_product() && self.classes[node.inputs[0].0].is_some()
    }

    /// The most devices that can each have a part of everything that is cut; 1 where attention
    /// within blocks stays whole, or there is none.
    pub fn parts_max(&self) -> usize {
        match self.attends {
            true => self.units.iter().copied().min().unwrap_or(1),
            false => 1,
        }
    }
}

/// Whether a product within a block may be made in parts by rows of its matrix.
fn may_begin(node: NodeView<'_>) -> bool {
    let graph = node.graph;
    let tensors = || node.node.weights.iter().map(|weight| &graph.weights[weight.0].tensor);
    graph.segments[node.node.segment].block
        && node.weight_shape(0).len() == 2
        && tensors().all(|tensor| tensor.has_whole_rows())
        && tensors().skip(1).all(|vector| !vector.storage().is_blocks())
}

/// One attempt, from the first node to the last.
struct ClassSearch<'a> {
    graph: &'a Graph,
    /// Products that leave their results whole, by their nodes.
    whole: &'a BTreeSet<usize>,
    classes: Vec<Option<usize>>,
    /// The node that makes each value.
    makers: Vec<Option<usize>>,
    groups: Vec<Group>,
}

/// A class while it is looked for; one that was joined to another names that.
#[derive(Debug, Default)]
struct Group {
    joined_to: Option<usize>,
    /// The products that it begins with.
    begins: Vec<usize>,
    /// Bytes of their weights.
    weight_bytes: u64,
    /// The most units, by all that was seen.
    units: usize,
    /// Features of its widest value.
    features: usize,
    /// Whether a product sums it up.
    summed: bool,
    /// Whether something needs it whole.
    needed_whole: bool,
}

impl<'a> ClassSearch<'a> {
    fn new(graph: &'a Graph, whole: &'a BTreeSet<usize>) -> ClassSearch<'a> {
        let mut makers = vec![None; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            makers[node.output.0] = Some(index);
        }
        let (classes, groups) = (vec![None; graph.values.len()], Vec::new());
        ClassSearch { graph, whole, classes, makers, groups }
    }

    fn node(&mut self, index: usize) {
        let node = &self.graph.nodes[index];
        let groups: Vec<Option<usize>> =
            node.inputs.iter().map(|input| self.group_of(*input)).collect();
        match node.op.cutting(self.graph.view(node)) {
            Cutting::Whole => self.need_whole(groups.into_iter().flatten()),
            Cutting::Along { inputs, units } => self.along(index, &groups, inputs, units),
            Cutting::Product { sums } => self.product(index, &groups, sums),
        }
    }

    /// The class of a value now.
    fn group_of(&self, value: ValueId) -> Option<usize> {
        let mut group = self.classes[value.0]?;
        while let Some(other) = self.groups[group].joined_to {
            group = other;
        }
        Some(group)
    }

    fn need_whole(&mut self, groups: impl Iterator<Item = usize>) {
        groups.for_each(|group| self.groups[group].needed_whole = true);
    }

    fn along(&mut self, index: usize, groups: &[Option<usize>], inputs: usize, units: usize) {
        let node = &self.graph.nodes[index];
        let (own, others) = groups.split_at(inputs.min(groups.len()));
        self.need_whole(others.iter().copied().flatten());
        let cut: Vec<usize> = own.iter().copied().flatten().collect();
        if cut.is_empty() || cut.len() < own.len() && !self.keep_lightest(node, &cut) {
            return;
        }
        let joined = cut[1..].iter().fold(cut[0], |first, other| self.join(first, *other));
        self.narrow(joined, units, self.graph.value(node.output).features());
        self.classes[node.output.0] = Some(joined);
    }

    /// Of the classes that meet in a node with values that are whole, or are behind the products
    /// that make these, the lightest stays whole: so the rest is cut. Whether it is none of those
    /// that meet: then, without it, all that meet are cut.
    fn keep_lightest(&mut self, node: &Node, cut: &[usize]) -> bool {
        let makers = node.inputs.iter().filter_map(|input| self.makers[input.0]);
        let behind = makers.flat_map(|maker| &self.graph.nodes[maker].inputs);
        let behind = behind.filter_map(|input| self.group_of(*input));
        let all = cut.iter().copied().chain(behind);
        let lightest = all.min_by_key(|group| (self.groups[*group].weight_bytes, *group));
        self.need_whole(lightest.into_iter());
        lightest.is_some_and(|lightest| !cut.contains(&lightest))
    }

    fn product(&mut self, index: usize, groups: &[Option<usize>], sums: bool) {
        let node = self.graph.view(&self.graph.nodes[index]);
        let cut: Vec<usize> = groups.iter().copied().flatten().collect();
        if cut.is_empty() {
            if may_begin(node) && !self.whole.contains(&index) {
                self.begin(index);
            }
            return;
        }
        let tensor = &self.graph.weights[node.node.weights[0].0].tensor;
        let block = tensor.storage().block_elements() as usize;
        let begins = node.inputs().scan(0, |at, input| {
            let begin = *at;
            *at += input.features();
            Some(begin)
        });
        let possible = sums
            && cut.len() == groups.len()
            && cut.len() <= RUNS_MAX
            && tensor.has_whole_rows()
            && begins.into_iter().all(|begin| begin.is_multiple_of(block));
        if !possible {
            self.need_whole(cut.into_iter());
            return;
        }
        for (group, input) in cut.into_iter().zip(node.inputs()) {
            let features = input.features();
            self.narrow(group, features / block, features);
            self.groups[group].summed = true;
            // What is left over is in no whole block.
            self.groups[group].needed_whole |= !features.is_multiple_of(block);
        }
    }

    fn begin(&mut self, index: usize) {
        let node = &self.graph.nodes[index];
        let features = self.graph.value(node.output).features();
        let weight_bytes = self.graph.view(node).weight_bytes().0;
        self.classes[node.output.0] = Some(self.groups.len());
        let begins = vec![index];
        let units = features;
        self.groups.push(Group { begins, weight_bytes, units, features, ..Group::default() });
    }

    fn narrow(&mut self, group: usize, units: usize, features: usize) {
        let group = &mut self.groups[group];
        group.units = gcd(group.units, units);
        group.features = group.features.max(features);
    }

    fn join(&mut self, into: usize, other: usize) -> usize {
        if into == other {
            return into;
        }
        let moved = std::mem::take(&mut self.groups[other]);
        self.groups[other].joined_to = Some(into);
        let group = &mut self.groups[into];
        group.begins.extend(moved.begins);
        group.weight_bytes += moved.weight_bytes;
        group.summed |= moved.summed;
        group.needed_whole |= moved.needed_whole;
        self.narrow(into, moved.units, moved.features);
        into
    }

    /// The products whose results have to stay whole after all.
    fn kept_whole(&mut self) -> Vec<usize> {
        let outputs = self.graph.outputs.iter().filter_map(|port| self.group_of(port.value));
        let outputs: Vec<usize> = outputs.collect();
        self.need_whole(outputs.into_iter());
        let lost = |group: &&Group| group.needed_whole || !group.summed || group.units < 2;
        self.groups.iter().filter(lost).flat_map(|group| group.begins.clone()).collect()
    }

    fn cuts(self) -> Cuts {
        let mut numbers = BTreeMap::new();
        let mut units = Vec::new();
        let classes = (0..self.classes.len()).map(|value| {
            let group = self.group_of(ValueId(value))?;
            Some(*numbers.entry(group).or_insert_with(|| {
                units.push(self.groups[group].units());
                units.len() - 1
            }))
        });
        let classes: Vec<Option<usize>> = classes.collect();
        let attention = self.graph.nodes.iter().filter(|node| {
            let kind = node.op.work_kind(self.graph.view(node));
            self.graph.segments[node.segment].block && kind == WorkKind::Attention
        });
        let attends = attention.clone().count() > 0 && { attention }
            .all(|node| classes[node.output.0].is_some());
        Cuts { classes, units, attends }
    }
}

impl Group {
    /// Its units; single features in multiples that suit kernels.
    fn units(&self) -> usize {
        match self.units == self.features && self.features.is_multiple_of(FEATURE_MULTIPLE) {
            true => self.units / FEATURE_MULTIPLE,
            false => self.units,
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
