//! What a schedule is made of, before anything has a place.

use std::borrow::Cow;

use protocol::Bytes;
use protocol::plan::ALIGNMENT_BYTES;

use super::lifetime::{ArenaBuffer, Lifetimes, lifetimes};
use super::program::{Program, Step, program};
use super::{Assignment, Elements, Needs};
use crate::graph::Graph;

/// The steps of a graph, the elements of its values, and which pieces share a buffer when.
#[derive(Debug)]
pub struct Outline<'e> {
    /// What is done, in order.
    pub(super) program: Program,
    /// What the values are held in.
    pub(super) elements: Cow<'e, Elements>,
    /// By lane.
    pub(super) lifetimes: Vec<Lifetimes>,
}

impl<'e> Outline<'e> {
    /// `elements` are those of the graph, where they are known.
    pub fn of(
        graph: &Graph,
        assignment: &Assignment,
        needs: &dyn Needs,
        elements: Option<&'e Elements>,
    ) -> Outline<'e> {
        let program = program(graph, assignment);
        let elements = match elements {
            Some(known) => Cow::Borrowed(known),
            None => Cow::Owned(Elements::new(graph, &program, assignment, needs)),
        };
        let workspace = |step: &Step| step_workspace(graph, &elements, assignment, needs, step);
        let lifetimes = lifetimes(graph, &elements, assignment, needs, &program, workspace);
        Outline { program, elements, lifetimes }
    }

    /// The buffers of each lane.
    pub(super) fn buffers(&self) -> impl ExactSizeIterator<Item = &Vec<ArenaBuffer>> {
        self.lifetimes.iter().map(|lane| &lane.buffers)
    }

    /// The program, and the buffers of each lane, of another graph with the same nodes and values,
    /// on the same lanes, whose values have other sizes: one that is cut by other shares. What is
    /// cut works in place whatever its size is. `None` where it has another outline: values with
    /// other elements, workspaces of other steps, or rows on other lanes.
    pub fn buffers_of(
        &self,
        graph: &Graph,
        assignment: &Assignment,
        needs: &dyn Needs,
    ) -> Option<(Program, Vec<Vec<ArenaBuffer>>)> {
        let elements = Elements::new(graph, &self.program, assignment, needs);
        if elements != *self.elements {
            return None;
        }
        let program = self.program.with_rows_of(graph, assignment)?;
        let lanes = self.lifetimes.iter().map(|lane| lane.buffers_of(graph, &elements, &program));
        let mut lanes: Vec<Vec<ArenaBuffer>> = lanes.collect();
        let workspaces = self.lifetimes.iter().map(|lane| lane.workspaces.iter().peekable());
        let mut workspaces: Vec<_> = workspaces.collect();
        for (at, step) in program.steps.iter().enumerate() {
            let Step::Run { lane, .. } = step else { continue };
            let bytes = step_workspace(graph, &elements, assignment, needs, step);
            match workspaces[*lane].next_if(|(step, _)| *step == at) {
                Some((_, buffer)) if bytes > Bytes::ZERO => lanes[*lane][*buffer].bytes = bytes,
                None if bytes == Bytes::ZERO => {}
                _ => return None,
            }
        }
        Some((program, lanes))
    }
}

/// What a step needs beside its values, a multiple of the alignment.
fn step_workspace(
    graph: &Graph,
    elements: &Elements,
    assignment: &Assignment,
    needs: &dyn Needs,
    step: &Step,
) -> Bytes {
    let Step::Run { lane, node, rows, tokens, .. } = step else { return Bytes::ZERO };
    let backend = assignment.backend(*lane);
    let node = &graph.nodes[*node];
    let features = rows.as_ref().map_or(graph.value(node.output).features(), |rows| rows.len());
    let view = graph.view(node);
    let view = tokens.as_ref().map_or(view, |tokens| view.of_tokens(tokens.len()));
    let bytes = needs.workspace_bytes(view, elements, features, backend, assignment);
    bytes.align_up(ALIGNMENT_BYTES)
}
