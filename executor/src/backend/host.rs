//! The host backend: kernels in RAM, weights copied or computed in place from their mapping.

use std::sync::Arc;

use protocol::{BackendKind, Bytes};

use super::kernels::Workers;
use super::run::{Call, run};
use super::{Backend, CancelFlag, Cancelled, Memory, Region, WeightMove};
use crate::weights::WeightFiles;

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

    fn load(
        &self,
        files: &Arc<WeightFiles>,
        moves: Vec<WeightMove>,
        region: &Arc<Region>,
        cancel: &CancelFlag,
    ) -> Result<(), Cancelled> {
        for entry in moves {
            cancel.check()?;
            let source = entry.tensor.view(files).bytes;
            // SAFETY: nothing computes from a region before it is loaded, and this is its only writer.
            unsafe { region.bytes_mut(entry.offset, source.len()) }.copy_from_slice(source);
        }
        Ok(())
    }

    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) {
        // SAFETY: called between runs by the thread that runs; nothing else touches an arena.
        unsafe { region.bytes_mut(offset, source.len()) }.copy_from_slice(source);
    }

    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) {
        // SAFETY: called between runs by the thread that runs; nothing else touches an arena.
        target.copy_from_slice(unsafe { region.bytes(offset, target.len()) });
    }

    fn run(&self, call: &Call<'_>, cancel: &CancelFlag) -> Result<(), Cancelled> {
        run(call, &self.workers, cancel)
    }
}
