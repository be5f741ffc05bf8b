//! The host backend: kernels in RAM, weights copied or computed in place from their mapping.

mod operands;

use std::sync::Arc;

use protocol::{BackendKind, Bytes};

use super::kernels::Workers;
use super::operation::computed;
use super::{
    Backend, Link, Memory, NodeCall, Queue, Region, RegionCopy, Stopped, Ticket, WeightLoad,
};

pub use operands::HostOperands;

/// The CPU with its RAM.
pub struct HostBackend {
    memory: Arc<Memory>,
    workers: Arc<Workers>,
}

impl HostBackend {
    /// Computes with these workers, allocates from this account.
    pub fn new(memory: Arc<Memory>, workers: Arc<Workers>) -> HostBackend {
        HostBackend { memory, workers }
    }
}

impl Backend for HostBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Host
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn load(&self, load: WeightLoad, _queue: Queue) -> Ticket {
        for entry in load.moves.iter() {
            if let Err(cancelled) = load.stop.check() {
                return Ticket::ended(Err(cancelled.into()));
            }
            let (source, at) = (entry.whole(&load.files), load.base + entry.offset);
            // SAFETY: nothing computes from a region before it is loaded, and this is its only
            // writer.
            source.copy_to(unsafe { load.region.bytes_mut(at, source.bytes()) });
            load.copied(entry);
        }
        Ticket::ended(Ok(()))
    }

    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) -> Result<(), Stopped> {
        // SAFETY: called between runs by the thread that runs; nothing else touches an arena.
        unsafe { region.bytes_mut(offset, source.len()) }.copy_from_slice(source);
        Ok(())
    }

    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) -> Result<(), Stopped> {
        // SAFETY: called between runs by the thread that runs; nothing else touches an arena.
        target.copy_from_slice(unsafe { region.bytes(offset, target.len()) });
        Ok(())
    }

    fn copy(&self, copy: RegionCopy) -> Ticket {
        copy.perform();
        Ticket::ended(Ok(()))
    }

    fn link(&self) -> Option<&Arc<Link>> {
        None
    }

    fn run(&self, call: &NodeCall<'_>) -> Result<(), Stopped> {
        computed(&call.node().op).run_on_host(&HostOperands::new(call, &self.workers));
        Ok(())
    }
}
