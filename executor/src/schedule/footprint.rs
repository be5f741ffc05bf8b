//! What a layout takes: the bytes of its schedule, without the instructions. A planner asks for
//! hundreds of layouts and runs one.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::{BackendKind, Bytes};

use super::program::Step;
use super::resolve::{rows_of, transfer_bytes};
use super::{Assignment, Elements, LaneWeights, Needs, Outline, arena, crossing_bytes};
use crate::graph::{Graph, ValueId};

/// The bytes of one graph under an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    /// Each lane: those of the assignment, then the host's where it does what a device cannot.
    pub lanes: Vec<LaneFootprint>,
    /// Activations that cross between lanes, and between a device and the host's pipeline, in one
    /// call.
    pub crossing_bytes: Bytes,
}

/// The bytes of one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneFootprint {
    /// Size of its arena.
    pub arena_bytes: Bytes,
    /// Bytes of each segment's weights.
    pub segment_bytes: Vec<Bytes>,
}

impl Footprint {
    /// The same steps, lives and places as [`super::Schedule::new`] has. `elements` are those of
    /// the graph, where they are known.
    ///
    /// # Errors
    /// Why the graph cannot be laid out so.
    pub fn of(
        graph: &Arc<Graph>,
        assignment: &Assignment,
        needs: &dyn Needs,
        elements: Option<&Elements>,
    ) -> Result<Footprint, String> {
        assignment.check(graph, needs.operations())?;
        let Outline { program, elements, lifetimes } =
            Outline::of(graph, assignment, needs, elements);
        let mut weights = vec![LaneWeights::new(graph.segments.len()); lifetimes.len()];
        for step in &program.steps {
            let Step::Run { lane, node, rows, .. } = step else { continue };
            for &weight in &graph.nodes[*node].weights {
                let rows = rows_of(graph, weight, rows.as_ref());
                weights[*lane].place(graph, assignment, *lane, weight, rows);
            }
        }
        let lanes = lifetimes.iter().zip(weights).map(|(lifetimes, weights)| LaneFootprint {
            arena_bytes: arena::place(&lifetimes.buffers).1,
            segment_bytes: weights.segment_bytes,
        });
        let between = program.copies.iter().map(|copy| transfer_bytes(graph, &elements, copy));
        let on_device = |lane| assignment.backend(lane) != BackendKind::Host;
        let readers = |value: ValueId| {
            let lanes = program.input_lanes.get(&value).into_iter().flat_map(BTreeSet::iter);
            lanes.filter(|lane| on_device(**lane)).count()
        };
        let made = |value: ValueId| on_device(program.home[value.0]);
        Ok(Footprint {
            lanes: lanes.collect(),
            crossing_bytes: crossing_bytes(graph, between.sum(), readers, made),
        })
    }
}
