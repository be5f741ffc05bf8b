//! The virtual backend: host kernels over a memory of its own with a hard capacity, reached only
//! through a copy engine that is paced to the declared link, and as much slower than they are as is
//! declared. It stands in for a GPU wherever none is.

mod copy_engine;
mod pace;

use std::sync::Arc;
use std::time::Instant;

use protocol::{BackendKind, Bytes, DeviceId, Faults};

use super::kernels::Workers;
use super::memory::{Charge, OutOfMemory};
use super::operation::computed;
use super::{
    Backend, HostOperands, Link, Memory, NodeCall, Queue, Region, RegionCopy, Stopped, Ticket,
    WeightLoad,
};
use copy_engine::CopyEngine;
use pace::Pace;

/// A device that exists only in its host profile.
pub struct VirtualDevice {
    memory: Arc<Memory>,
    workers: Arc<Workers>,
    engine: CopyEngine,
    pace: Pace,
    _context: Charge,
}

/// What a host profile says of a device.
#[derive(Debug, Clone, Copy)]
pub struct VirtualProperties {
    /// What a driver's context would take, at once.
    pub overhead_bytes: Bytes,
    /// How fast bytes come and go.
    pub link_bytes_per_s: f64,
    /// What it lets fail. Its memory, which is there before it, counts the allocations.
    pub faults: Faults,
    /// How fast it computes, as a part of the host kernels' speed.
    pub speed: f64,
}

/// Why a virtual device does not open.
#[derive(Debug, thiserror::Error)]
pub enum VirtualOpenError {
    /// Its context does not fit.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The system starts no more threads.
    #[error(
        "{device} cannot start a thread for its copies: {cause}; hint: allow more threads (ulimit -u) or more address space (ulimit -v)"
    )]
    Thread {
        /// Whose copies it was to make.
        device: DeviceId,
        /// What the system said.
        cause: std::io::Error,
    },
}

impl VirtualDevice {
    /// Opens the device. `staging` is memory of the host that its weights pass through.
    pub fn open(
        memory: Arc<Memory>,
        properties: VirtualProperties,
        staging: &Arc<Region>,
        workers: Arc<Workers>,
    ) -> Result<VirtualDevice, VirtualOpenError> {
        let context = memory.charge("context", properties.overhead_bytes)?;
        let link = Arc::new(Link::new(properties.link_bytes_per_s));
        let device = memory.device().clone();
        let engine = CopyEngine::start(device.clone(), link, properties.faults.fail_copy, staging);
        let engine = engine.map_err(|cause| VirtualOpenError::Thread { device, cause })?;
        let pace = Pace::new(properties.speed);
        Ok(VirtualDevice { memory, workers, engine, pace, _context: context })
    }
}

impl Backend for VirtualDevice {
    fn kind(&self) -> BackendKind {
        BackendKind::Virtual
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn load(&self, load: WeightLoad, queue: Queue) -> Ticket {
        self.engine.load(load, queue)
    }

    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) -> Result<(), Stopped> {
        self.engine.write(region, offset, source)
    }

    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) -> Result<(), Stopped> {
        self.engine.read(region, offset, target)
    }

    fn copy(&self, copy: RegionCopy) -> Ticket {
        self.engine.copy(copy)
    }

    fn link(&self) -> Option<&Arc<Link>> {
        Some(self.engine.link())
    }

    fn run(&self, call: &NodeCall<'_>) -> Result<(), Stopped> {
        let start = Instant::now();
        computed(&call.node().op).run_on_host(&HostOperands::new(call, &self.workers));
        self.pace.computed(start.elapsed());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
