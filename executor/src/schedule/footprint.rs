//! What a layout takes: the bytes of its schedule, without the instructions. A planner asks for
//! hundreds of layouts and runs one.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use protocol::{BackendKind, Bytes};

use super::program::{Program, Step};
use super::resolve::{rows_of, transfer_bytes};
use super::{
    ArenaBuffer, Assignment, Elements, LaneWeights, Needs, Outline, arena, crossing_bytes,
};
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

/// What is known of a graph's schedule.
#[derive(Debug, Clone, Copy)]
pub enum Known<'k> {
    /// All is worked out anew.
    Nothing,
    /// What its values are held in.
    Elements(&'k Elements),
    /// The outline of the first of several graphs with the same nodes and values, on the same
    /// lanes. It is made when it is needed.
    Outline(&'k OnceLock<Outline<'static>>),
}

impl Footprint {
    /// The same steps, lives and places as [`super::Schedule::new`] has.
    ///
    /// # Errors
    /// Why the graph cannot be laid out so.
    pub fn of(
        graph: &Graph,
        assignment: &Assignment,
        needs: &dyn Needs,
        known: Known<'_>,
    ) -> Result<Footprint, String> {
        assignment.check(graph, needs.operations())?;
        let elements = match known {
            Known::Elements(elements) => Some(elements),
            Known::Nothing => None,
            Known::Outline(shared) => {
                let mut is_own = false;
                let shared = shared.get_or_init(|| {
                    is_own = true;
                    Outline::of(graph, assignment, needs, None)
                });
                if is_own {
                    let steps = (&shared.program, &*shared.elements);
                    return Ok(Footprint::outlined(graph, assignment, steps, shared.buffers()));
                }
                if let Some((program, buffers)) = shared.buffers_of(graph, assignment, needs) {
                    let steps = (&program, &*shared.elements);
                    return Ok(Footprint::outlined(graph, assignment, steps, buffers.iter()));
                }
                None
            }
        };
        let outline = Outline::of(graph, assignment, needs, elements);
        let steps = (&outline.program, &*outline.elements);
        Ok(Footprint::outlined(graph, assignment, steps, outline.buffers()))
    }

    /// With these buffers on each lane.
    fn outlined<'b>(
        graph: &Graph,
        assignment: &Assignment,
        (program, elements): (&Program, &Elements),
        buffers: impl ExactSizeIterator<Item = &'b Vec<ArenaBuffer>>,
    ) -> Footprint {
        let mut weights = vec![LaneWeights::new(graph.segments.len()); buffers.len()];
        for step in &program.steps {
            let Step::Run { lane, node, rows, .. } = step else { continue };
            for &weight in &graph.nodes[*node].weights {
                let rows = rows_of(graph, weight, rows.as_ref());
                weights[*lane].place(graph, assignment, *lane, weight, rows);
            }
        }
        let lanes = buffers.zip(weights).map(|(buffers, weights)| LaneFootprint {
            arena_bytes: arena::place(buffers).1,
            segment_bytes: weights.segment_bytes,
        });
        let between = program.copies.iter().map(|copy| transfer_bytes(graph, elements, copy));
        let on_device = |lane| assignment.backend(lane) != BackendKind::Host;
        let readers = |value: ValueId| {
            let lanes = program.input_lanes.get(&value).into_iter().flat_map(BTreeSet::iter);
            lanes.filter(|lane| on_device(**lane)).count()
        };
        let made = |value: ValueId| on_device(program.home[value.0]);
        Footprint {
            lanes: lanes.collect(),
            crossing_bytes: crossing_bytes(graph, between.sum(), readers, made),
        }
    }
}
