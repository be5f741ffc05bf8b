//! Numbers that are given once.

use super::event::{QueryId, SlotId, WriteId};

/// The last of each kind.
#[derive(Debug, Default)]
pub struct Ids {
    query: u64,
    write: u64,
    slot: u32,
    epoch: u64,
}

impl Ids {
    /// A question to the surveyor.
    pub fn query(&mut self) -> QueryId {
        self.query += 1;
        QueryId(self.query)
    }

    /// A change on its way to the store.
    pub fn write(&mut self) -> WriteId {
        self.write += 1;
        WriteId(self.write)
    }

    /// A model's place for an executor.
    pub fn slot(&mut self) -> SlotId {
        self.slot += 1;
        SlotId(self.slot)
    }

    /// A start of an executor, in any slot.
    pub fn epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }
}
