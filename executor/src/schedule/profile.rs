//! What each segment of a schedule on one lane needs: the parts that the planner's time model is
//! made of.

use protocol::profile::{BackendBytes, SegmentProfile, StorageBytes};
use protocol::{Bytes, StorageType};

use super::{Instruction, Run, Schedule, lifetime};

impl Schedule {
    /// What each segment needs. `other` are schedules of the same graph for other kinds of backend,
    /// whose workspaces are stated beside this one's.
    ///
    /// # Panics
    /// If any of them has more than one lane.
    pub fn segments(&self, other: &[&Schedule]) -> Vec<SegmentProfile> {
        let kinds: Vec<&Schedule> = std::iter::once(self).chain(other.iter().copied()).collect();
        assert!(kinds.iter().all(|schedule| schedule.lanes.len() == 1), "profiles are of one lane");
        (0..self.graph.segments.len()).map(|index| self.segment(index, &kinds)).collect()
    }

    /// The steps that compute a segment, with their places in the program.
    fn runs(&self, segment: usize) -> impl DoubleEndedIterator<Item = (usize, &Run)> {
        self.program.iter().enumerate().filter_map(move |(at, instruction)| match instruction {
            Instruction::Run(run) if self.graph.nodes[run.node].segment == segment => {
                Some((at, run))
            }
            _ => None,
        })
    }

    fn segment(&self, index: usize, kinds: &[&Schedule]) -> SegmentProfile {
        let graph = &self.graph;
        let nodes = || self.runs(index).map(|(_, run)| &graph.nodes[run.node]);
        let weights = || graph.weights.iter().filter(|weight| weight.segment == index);
        let first = self.runs(index).map(|(at, _)| at).next().unwrap_or(0);
        let last = self.runs(index).map(|(at, _)| at).next_back().unwrap_or(first);
        let storage = StorageType::ALL
            .into_iter()
            .map(|storage| StorageBytes {
                storage,
                bytes: weights()
                    .filter(|weight| weight.tensor.storage() == storage)
                    .map(|weight| weight.tensor.size())
                    .sum(),
            })
            .filter(|entry| entry.bytes > Bytes::ZERO)
            .collect();
        let workspace = kinds
            .iter()
            .map(|schedule| BackendBytes {
                backend: schedule.lanes[0].lane.backend,
                bytes: schedule
                    .runs(index)
                    .map(|(_, run)| run.workspace.1)
                    .max()
                    .unwrap_or_default(),
            })
            .collect();
        let lane = &self.lanes[0];
        SegmentProfile {
            name: graph.segments[index].name.clone(),
            block: graph.segments[index].block,
            weights_bytes: lane.weights.segment_bytes[index],
            storage,
            arena_bytes: lifetime::most_alive(&lane.buffers, first, last),
            carried_bytes: lifetime::carried(&lane.buffers, last),
            workspace,
            work: graph.work(nodes()),
        }
    }
}
