//! What nodes cost together: floating-point operations and bytes moved, for the time model.

use std::collections::BTreeMap;

use protocol::Bytes;
use protocol::profile::{Work, WorkKind};

use super::{Graph, Node};

impl Graph {
    /// The work of nodes, by kind.
    pub fn work<'n>(&self, nodes: impl Iterator<Item = &'n Node>) -> Vec<Work> {
        let mut kinds: BTreeMap<WorkKind, Work> = BTreeMap::new();
        for node in nodes {
            let view = self.view(node);
            let kind = node.op.work_kind(view);
            let none = Work { kind, operations: 0, flops: 0.0, moved_bytes: Bytes::ZERO };
            let work = kinds.entry(kind).or_insert(none);
            work.operations += 1;
            work.flops += node.op.flops(view);
            work.moved_bytes += node.op.moved_bytes(view);
        }
        kinds.into_values().collect()
    }
}
