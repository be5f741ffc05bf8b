//! Backends: where memory is and where nodes run.
//!
//! A closed set: [`host`] computes in RAM, in place from file mappings where asked; [`virtual_device`] computes
//! with the same kernels over a memory of its own behind a paced copy engine; [`cuda`] computes on NVIDIA GPUs. Everything above this
//! module is safe code: raw memory is
//! touched in `region`, `host`, `moves`, `copy_engine`, `kernels` and `cuda` only.

pub mod call;
pub mod copy_engine;
pub mod cuda;
pub mod host;
pub mod kernels;
pub mod limits;
pub mod link;
pub mod memory;
pub mod moves;
pub mod operation;
pub mod pace;
pub mod region;
pub mod ring;
pub mod shared;
pub mod ticket;
pub mod virtual_device;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{BackendKind, Bytes};

use crate::race::Edge;

pub use call::{LaneMemory, NodeCall};
pub use copy_engine::Queue;
pub use cuda::{CudaDevice, CudaOperands};
pub use host::{HostBackend, HostOperands};
pub use link::Link;
pub use memory::{Memory, OutOfMemory};
pub use moves::{RegionCopy, WeightLoad, WeightMove};
pub use operation::{CudaOperation, HostOperation};
pub use region::Region;
pub use ring::{Ring, RingItem, RingPlan};
pub use shared::{SharedBytes, Turn};
pub use ticket::{Stopped, Ticket};
pub use virtual_device::VirtualDevice;

/// Kinds of backend that this executor can compute on: CUDA where its driver starts and shows a GPU; if not, why not.
pub fn supported() -> (Vec<BackendKind>, Option<String>) {
    let mut kinds = vec![BackendKind::Host, BackendKind::Virtual];
    match cuda::device::usable() {
        Ok(()) => {
            kinds.push(BackendKind::Cuda);
            (kinds, None)
        }
        Err(why) => (kinds, Some(why.to_string())),
    }
}

/// The running command was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// Set from another thread to end one command soon.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag {
    own: Arc<AtomicBool>,
    parent: Option<Arc<AtomicBool>>,
}

impl CancelFlag {
    /// A flag that is also set when this one is.
    pub fn child(&self) -> CancelFlag {
        CancelFlag { own: Arc::default(), parent: Some(Arc::clone(&self.own)) }
    }

    /// Asks for the end.
    pub fn set(&self) {
        self.own.store(true, Ordering::Release);
    }

    /// An error once the end was asked for.
    pub fn check(&self) -> Result<(), Cancelled> {
        let set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Acquire);
        if set(&self.own) || self.parent.as_ref().is_some_and(set) {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }
}

/// A place with memory that can run nodes.
pub trait Backend: Send {
    /// What it is.
    fn kind(&self) -> BackendKind;

    /// Its memory, with the count of what is allocated.
    fn memory(&self) -> &Arc<Memory>;

    /// Starts to copy weights from their files into a region.
    fn load(&self, load: WeightLoad, queue: Queue) -> Ticket;

    /// Copies activations from the host into a region.
    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) -> Result<(), Stopped>;

    /// Copies activations from a region to the host.
    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) -> Result<(), Stopped>;

    /// Starts to copy activations between a region of its own and one of another backend, or of the host.
    fn copy(&self, copy: RegionCopy) -> Ticket;

    /// Its link; none for the host.
    fn link(&self) -> Option<&Arc<Link>>;

    /// Allocates a region of its memory, named `name` in messages.
    fn allocate(&self, name: &str, bytes: Bytes) -> Result<Arc<Region>, OutOfMemory> {
        Region::allocate(self.memory(), name, bytes).map(Arc::new)
    }

    /// Loads what computing a node takes beside memory, so that nothing is when it runs.
    fn prepare(&self, _call: &NodeCall<'_>) -> Result<(), Stopped> {
        Ok(())
    }

    /// Computes a node. A device that computes by itself may do so later, in the order of the calls.
    fn run(&self, call: &NodeCall<'_>) -> Result<(), Stopped>;

    /// Waits until all is computed that was handed out.
    fn finish(&self) -> Result<(), Stopped> {
        Ok(())
    }

    /// What is computed here from now on comes after a copy, for the sake of `edge`.
    fn join(&self, ticket: &Ticket, _edge: Edge) -> Result<(), Stopped> {
        ticket.wait()
    }

    /// Itself, where it is a GPU.
    fn as_cuda(&self) -> Option<&CudaDevice> {
        None
    }
}
