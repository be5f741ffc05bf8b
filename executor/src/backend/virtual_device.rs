//! The virtual backend: host kernels over a memory of its own with a hard capacity, reached only
//! through a copy engine that is paced to the declared link, and as much slower than they are as is
//! declared. It stands in for a GPU wherever none is.
//!
//! It computes with the host's threads, in the thread that hands out nodes, and so in turns with
//! the host and its like; or, where its profile gives it some, with threads of its own, beside
//! them.

mod compute_thread;
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
use crate::race::Edge;
use compute_thread::ComputeThread;
use copy_engine::CopyEngine;
use pace::Pace;

/// A device that exists only in its host profile.
pub struct VirtualDevice {
    memory: Arc<Memory>,
    // Before the copy engine, for which what it computes may wait.
    computing: Computing,
    engine: CopyEngine,
    _context: Charge,
}

/// Who computes.
enum Computing {
    /// The thread that hands out nodes, with the host's workers.
    Here { workers: Arc<Workers>, pace: Pace },
    /// Threads of the device's own.
    Apart(ComputeThread),
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
    /// How many threads of its own compute; `None` for the host's.
    pub threads: Option<usize>,
}

/// Why a virtual device does not open.
#[derive(Debug, thiserror::Error)]
pub enum VirtualOpenError {
    /// Its context does not fit.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The system starts no more threads.
    #[error(
        "{device} cannot start a thread: {cause}; hint: allow more threads (ulimit -u) or more address space (ulimit -v)"
    )]
    Thread {
        /// Whose work it was to do.
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
        let device = memory.device().clone();
        let computing = match properties.threads {
            None => Computing::Here { workers, pace },
            Some(threads) => {
                let thread = ComputeThread::start(device.clone(), threads, pace);
                Computing::Apart(
                    thread.map_err(|cause| VirtualOpenError::Thread { device, cause })?,
                )
            }
        };
        Ok(VirtualDevice { memory, computing, engine, _context: context })
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
        // A slot is filled again only when its segment was computed.
        let after = if queue == Queue::Slots { self.departure() } else { None };
        self.engine.load(load, queue, after)
    }

    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) -> Result<(), Stopped> {
        self.finish()?;
        self.engine.write(region, offset, source)
    }

    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) -> Result<(), Stopped> {
        self.finish()?;
        self.engine.read(region, offset, target)
    }

    fn copy(&self, copy: RegionCopy) -> Ticket {
        self.engine.copy(copy)
    }

    fn link(&self) -> Option<&Arc<Link>> {
        Some(self.engine.link())
    }

    fn run(&self, call: &NodeCall<'_>) -> Result<(), Stopped> {
        match &self.computing {
            Computing::Here { workers, pace } => {
                compute(call, workers, pace);
                Ok(())
            }
            Computing::Apart(thread) => thread.run(call),
        }
    }

    fn finish(&self) -> Result<(), Stopped> {
        match &self.computing {
            Computing::Here { .. } => Ok(()),
            Computing::Apart(thread) => thread.finish(),
        }
    }

    fn end_call(&self) -> Result<(), Stopped> {
        self.finish()
    }

    fn departure(&self) -> Option<Ticket> {
        match &self.computing {
            Computing::Here { .. } => None,
            Computing::Apart(thread) => Some(thread.departure()),
        }
    }

    fn join(&self, ticket: &Ticket, _edge: Edge) -> Result<(), Stopped> {
        match &self.computing {
            Computing::Here { .. } => ticket.wait(),
            Computing::Apart(thread) => thread.join(ticket),
        }
    }
}

/// Computes a node, for as long as the device's pace says.
fn compute(call: &NodeCall<'_>, workers: &Workers, pace: &Pace) {
    let start = Instant::now();
    computed(&call.node().op).run_on_host(&HostOperands::new(call, workers));
    pace.computed(start.elapsed());
}

#[cfg(test)]
mod tests;
