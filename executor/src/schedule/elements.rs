//! What the elements of each value are: as the graph says, or 16 bits.
//!
//! A value is held in 16 bits where every node that reads it wants it so, its producer can write it
//! so, and all of them run on devices that know such values. What is passed on unchanged is wanted
//! as its copy is. Inputs and outputs of the graph stay as they are, since the host writes and
//! reads them.
//!
//! What each operation wants is said by [`Needs`]: products and attention, what they round their
//! inputs to anyway, so that a result does not depend on where its inputs were rounded;
//! convolutions, what halves the largest values.
//!
//! Invariant: a product reads all inputs in 16 bits or all as the graph has them, and what is
//! passed on is what it was.

use protocol::Bytes;
use protocol::profile::BackendKind;

use super::Assignment;
use super::needs::{Needs, Reading};
use super::program::{Program, Step};
use crate::graph::{ElementType, Graph, Node, ValueId};

/// The element types of a graph's values, as the lanes of one assignment hold them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elements(Vec<ElementType>);

impl Elements {
    /// Decides for all values.
    pub fn new(
        graph: &Graph,
        program: &Program,
        assignment: &Assignment,
        needs: &dyn Needs,
    ) -> Elements {
        Elements::keeping(kept(graph, program, assignment), graph, assignment, needs)
    }

    /// Those of a graph that GPUs compute alone: the same over any of them, however it is divided.
    pub fn on_gpus(graph: &Graph, assignment: &Assignment, needs: &dyn Needs) -> Elements {
        Elements::keeping(ends(graph), graph, assignment, needs)
    }

    fn keeping(
        mut kept: Vec<bool>,
        graph: &Graph,
        assignment: &Assignment,
        needs: &dyn Needs,
    ) -> Elements {
        let readings = Readings::new(graph, assignment, needs);
        loop {
            let elements = Elements::unless(&kept, graph, &readings, assignment, needs);
            let apart = elements.apart(graph, &readings);
            if apart.is_empty() {
                return elements;
            }
            apart.into_iter().for_each(|value| kept[value.0] = true);
        }
    }

    /// What each value would be if all inputs of a node could be as it wants them. The nodes are
    /// gone through from the last to the first, so that a value's readers come before its producer.
    fn unless(
        kept: &[bool],
        graph: &Graph,
        readings: &Readings,
        assignment: &Assignment,
        needs: &dyn Needs,
    ) -> Elements {
        let mut elements: Vec<ElementType> = graph.values.iter().map(|v| v.element).collect();
        let mut wanted: Vec<Option<ElementType>> = vec![None; graph.values.len()];
        for (number, node) in graph.nodes.iter().enumerate().rev() {
            let output = node.output.0;
            if let Some(element) = wanted[output].filter(|wanted| *wanted != elements[output])
                && !kept[output]
                && needs.writes(graph.view(node), element, assignment)
            {
                elements[output] = element;
            }
            for (input, reading) in node.inputs.iter().zip(readings.of(number)) {
                let own = graph.value(*input).element;
                let as_read = match *reading {
                    Reading::As(element) | Reading::WithOthersAs(element) => element,
                    Reading::AsResult => elements[output],
                };
                let all = &mut wanted[input.0];
                *all = Some(if all.is_none_or(|other| other == as_read) { as_read } else { own });
            }
        }
        Elements(elements)
    }

    /// Values that have to stay as they are since others, which a node reads with them or makes of
    /// them, do.
    fn apart(&self, graph: &Graph, readings: &Readings) -> Vec<ValueId> {
        let (mut apart, mut group) = (Vec::new(), Vec::new());
        for (number, node) in graph.nodes.iter().enumerate() {
            group.clear();
            for (&input, reading) in node.inputs.iter().zip(readings.of(number)) {
                let element = match *reading {
                    Reading::As(_) => continue,
                    Reading::WithOthersAs(element) => element,
                    Reading::AsResult => {
                        group.push((node.output, self.of(node.output)));
                        self.of(node.output)
                    }
                };
                group.push((input, element));
            }
            group.retain(|&(value, wanted)| wanted != graph.value(value).element);
            let as_wanted = |&&(value, wanted): &&(ValueId, ElementType)| self.of(value) == wanted;
            if group.iter().any(|one| !as_wanted(&one)) {
                apart.extend(group.iter().filter(as_wanted).map(|&(value, _)| value));
            }
        }
        apart
    }

    /// The elements of a value.
    pub fn of(&self, value: ValueId) -> ElementType {
        self.0[value.0]
    }

    /// Size of a value in memory, alignment not counted.
    pub fn bytes(&self, graph: &Graph, value: ValueId) -> Bytes {
        graph.value(value).bytes_as(self.of(value))
    }
}

/// How each node reads its inputs: asked once, as a graph has thousands of them.
struct Readings {
    all: Vec<Reading>,
    /// Where each node's begin, and where the last one's end.
    begins: Vec<usize>,
}

impl Readings {
    fn new(graph: &Graph, assignment: &Assignment, needs: &dyn Needs) -> Readings {
        let mut readings = Readings { all: Vec::new(), begins: vec![0] };
        for node in &graph.nodes {
            let inputs = 0..node.inputs.len();
            let own = inputs.map(|index| needs.reading(graph.view(node), index, assignment));
            readings.all.extend(own);
            readings.begins.push(readings.all.len());
        }
        readings
    }

    fn of(&self, node: usize) -> &[Reading] {
        &self.all[self.begins[node]..self.begins[node + 1]]
    }
}

/// The values at the graph's ends.
fn ends(graph: &Graph) -> Vec<bool> {
    let mut ends = vec![false; graph.values.len()];
    let ports = graph.inputs.iter().chain(&graph.outputs);
    ports.for_each(|port| ends[port.value.0] = true);
    ends
}

/// The values that the host touches, in its arena or across the graph's ends.
fn kept(graph: &Graph, program: &Program, assignment: &Assignment) -> Vec<bool> {
    let mut kept = ends(graph);
    for step in &program.steps {
        if let Step::Run { lane, node, .. } = step
            && assignment.backend(*lane) != BackendKind::Cuda
        {
            let Node { inputs, output, .. } = &graph.nodes[*node];
            inputs.iter().chain([output]).for_each(|value| kept[value.0] = true);
        }
    }
    kept
}
