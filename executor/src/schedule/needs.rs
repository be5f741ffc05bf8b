//! What a schedule asks about the nodes of a graph, without knowing backends or operations.
//!
//! The answers are functions of shapes and of the assignment alone, never of the machine: a plan is
//! made for machines that are not here too.

use protocol::{BackendKind, Bytes};

use super::{Assignment, Elements};
use crate::graph::{ElementType, NodeView};

/// How a GPU reads an input of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Rounded to these elements, in which it may lie already.
    As(ElementType),
    /// The same, if all other inputs lie so too.
    WithOthersAs(ElementType),
    /// As the elements of its result: it computes nothing.
    AsResult,
}

/// What nodes need on each kind of backend.
pub trait Needs: Sync {
    /// The names of all operations, by which a lane is said not to do some of them.
    fn operations(&self) -> &'static [&'static str];

    /// Bytes beside inputs and result, for as many features of each row of the result as are
    /// computed.
    fn workspace_bytes(
        &self,
        node: NodeView<'_>,
        elements: &Elements,
        out_features: usize,
        backend: BackendKind,
        assignment: &Assignment,
    ) -> Bytes;

    /// How a GPU reads an input, by index. Other backends read what the graph says.
    fn reading(&self, node: NodeView<'_>, index: usize, assignment: &Assignment) -> Reading;

    /// Whether a GPU best writes the result in such elements, where these are not the graph's.
    fn writes(&self, node: NodeView<'_>, element: ElementType, assignment: &Assignment) -> bool;

    /// Whether the result may take the first input's place, if these are their elements.
    fn in_place(
        &self,
        node: NodeView<'_>,
        input_and_output: [ElementType; 2],
        backend: BackendKind,
        assignment: &Assignment,
    ) -> bool;
}
