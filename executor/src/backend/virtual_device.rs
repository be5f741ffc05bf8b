//! The virtual backend: host kernels over a memory of its own with a hard capacity, reached only through
//! a copy engine that is paced to the declared link. It stands in for a GPU wherever none is.

use std::sync::Arc;

use protocol::{BackendKind, Bytes};

use super::copy_engine::CopyEngine;
use super::kernels::Workers;
use super::memory::{Charge, OutOfMemory};
use super::run::{Call, run};
use super::{Backend, CancelFlag, Cancelled, Memory, Region, WeightMove};
use crate::weights::WeightFiles;

/// A device that exists only in its host profile.
pub struct VirtualDevice {
    memory: Arc<Memory>,
    workers: Arc<Workers>,
    engine: CopyEngine,
    _context: Charge,
}

impl VirtualDevice {
    /// Opens the device: `overhead_bytes` are taken at once, as a driver's context would.
    pub fn open(
        memory: Arc<Memory>,
        overhead_bytes: Bytes,
        link_bytes_per_s: f64,
        workers: Arc<Workers>,
    ) -> Result<VirtualDevice, OutOfMemory> {
        let context = memory.charge("context", overhead_bytes)?;
        let engine = CopyEngine::start(link_bytes_per_s);
        Ok(VirtualDevice { memory, workers, engine, _context: context })
    }
}

impl Backend for VirtualDevice {
    fn kind(&self) -> BackendKind {
        BackendKind::Virtual
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
        self.engine.load(files, moves, region, cancel)
    }

    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) {
        self.engine.write(region, offset, source);
    }

    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) {
        self.engine.read(region, offset, target);
    }

    fn run(&self, call: &Call<'_>, cancel: &CancelFlag) -> Result<(), Cancelled> {
        run(call, &self.workers, cancel)
    }
}
