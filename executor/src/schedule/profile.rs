//! What each segment of a schedule on one lane needs: the parts that the planner's time model is
//! made of.

use protocol::profile::{BackendBytes, SegmentProfile, StorageBytes};
use protocol::{BackendKind, Bytes, StorageType};

use super::lifetime::AliveBytes;
use super::{Instruction, Run, Schedule};
use crate::weights::TensorRef;

/// The steps that compute a segment, with their places in the program.
type SegmentRuns<'s> = Vec<(usize, &'s Run)>;

impl Schedule {
    /// What each segment needs. `other` are schedules of the same graph for other kinds of backend,
    /// whose workspaces are stated beside this one's.
    ///
    /// # Panics
    /// If any of them has more than one lane.
    pub fn segments(&self, other: &[&Schedule]) -> Vec<SegmentProfile> {
        let kinds: Vec<&Schedule> = std::iter::once(self).chain(other.iter().copied()).collect();
        assert!(kinds.iter().all(|schedule| schedule.lanes.len() == 1), "profiles are of one lane");
        let runs: Vec<Vec<SegmentRuns<'_>>> = kinds.iter().map(|kind| kind.runs()).collect();
        let alive = AliveBytes::of(&self.lanes[0].buffers, self.program.len());
        let mut weights = vec![Vec::new(); self.graph.segments.len()];
        self.graph.weights.iter().for_each(|weight| weights[weight.segment].push(&weight.tensor));
        let of_segment = |(index, weights): (usize, Vec<&TensorRef>)| {
            let backends = kinds.iter().map(|schedule| schedule.lanes[0].lane.backend);
            let runs = runs.iter().map(|runs| &runs[index]);
            self.segment(index, &weights, &alive, &backends.zip(runs).collect::<Vec<_>>())
        };
        weights.into_iter().enumerate().map(of_segment).collect()
    }

    /// Those of each segment.
    fn runs(&self) -> Vec<SegmentRuns<'_>> {
        let mut runs = vec![Vec::new(); self.graph.segments.len()];
        for (at, instruction) in self.program.iter().enumerate() {
            if let Instruction::Run(run) = instruction {
                runs[self.graph.nodes[run.node].segment].push((at, run));
            }
        }
        runs
    }

    /// What a segment with these weights needs. `kinds` have its steps on each kind of backend,
    /// this schedule's first.
    fn segment(
        &self,
        index: usize,
        weights: &[&TensorRef],
        alive: &AliveBytes,
        kinds: &[(BackendKind, &SegmentRuns<'_>)],
    ) -> SegmentProfile {
        let graph = &self.graph;
        let own = kinds[0].1;
        let nodes = own.iter().map(|(_, run)| &graph.nodes[run.node]);
        let first = own.first().map_or(0, |(at, _)| *at);
        let last = own.last().map_or(first, |(at, _)| *at);
        let of_type = |storage| {
            let own = weights.iter().filter(|tensor| tensor.storage() == storage);
            StorageBytes { storage, bytes: own.map(|tensor| tensor.size()).sum() }
        };
        let storage = StorageType::ALL.into_iter().map(of_type);
        let workspace = kinds.iter().map(|(backend, runs)| {
            let bytes = runs.iter().map(|(_, run)| run.workspace.1).max().unwrap_or_default();
            BackendBytes { backend: *backend, bytes }
        });
        SegmentProfile {
            name: graph.segments[index].name.clone(),
            block: graph.segments[index].block,
            weights_bytes: self.lanes[0].weights.segment_bytes[index],
            storage: storage.filter(|entry| entry.bytes > Bytes::ZERO).collect(),
            arena_bytes: alive.most(first, last),
            carried_bytes: alive.carried(last),
            workspace: workspace.collect(),
            work: graph.work(nodes),
        }
    }
}
