//! Backends: where memory is and where nodes run.
//!
//! A closed set: [`host`] computes in RAM, in place from file mappings where asked;
//! [`virtual_device`] computes with the same kernels over a memory of its own behind a paced copy
//! engine; [`cuda`] computes on NVIDIA GPUs. What they compute is not known here: operations stand
//! above, and are asked through [`operation`].
//!
//! Everything above this module is safe code: raw memory is touched in `memory`, `moving`, `host`,
//! `virtual_device`, `kernels` and `cuda` only.

pub mod memory;
pub mod moving;

pub mod call;
pub mod operation;

pub mod cuda;
pub mod host;
pub mod kernels;
pub mod virtual_device;

mod cancel;
mod stopped;

use std::sync::Arc;

use protocol::{BackendKind, Bytes};

use crate::race::Edge;

pub use call::{HeldCall, LaneMemory, NodeCall};
pub use cancel::{CancelFlag, Cancelled};
pub use cuda::{CudaDevice, CudaOperands};
pub use host::{HostBackend, HostOperands};
pub use memory::{Link, Memory, OutOfMemory, Region, SharedBytes, Turn, heap, limits};
pub use moving::{
    LockedCopy, Queue, RegionCopy, Ring, RingItem, RingPlan, Ticket, WeightLoad, WeightMove,
    WeightPiece,
};
pub use operation::{CudaOperation, HostOperation};
pub use stopped::Stopped;
pub use virtual_device::VirtualDevice;

/// Kinds of backend that this executor can compute on: CUDA where its driver starts and shows a
/// GPU; if not, why not.
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

    /// Starts to copy activations between a region of its own and one of another backend, or of the
    /// host.
    fn copy(&self, copy: RegionCopy) -> Ticket;

    /// Its link; none for the host.
    fn link(&self) -> Option<&Arc<Link>>;

    /// Allocates a region of its memory, named `name` in messages.
    fn allocate(&self, name: &str, bytes: Bytes) -> Result<Arc<Region>, Stopped> {
        Ok(Arc::new(Region::allocate(self.memory(), name, bytes)?))
    }

    /// Allocates memory of the host that is page-locked for its copies.
    fn allocate_locked(
        &self,
        host: &Arc<Memory>,
        name: &str,
        bytes: Bytes,
    ) -> Result<Arc<Region>, Stopped> {
        Ok(Arc::new(Region::allocate(host, name, bytes)?))
    }

    /// Loads what computing a node takes beside memory, so that nothing is when it runs.
    fn prepare(&self, _call: &NodeCall<'_>) -> Result<(), Stopped> {
        Ok(())
    }

    /// Computes a node. A device that computes by itself may do so later, in the order of the
    /// calls.
    fn run(&self, call: &NodeCall<'_>) -> Result<(), Stopped>;

    /// Waits until all is computed that was handed out.
    fn finish(&self) -> Result<(), Stopped> {
        Ok(())
    }

    /// Ends a call of a component. A device that computes in threads of its own has computed all of
    /// it then; a GPU goes on by itself.
    fn end_call(&self) -> Result<(), Stopped> {
        Ok(())
    }

    /// Ends when all is computed that was handed out by now, where threads of the device's own
    /// compute it. Then copies wait for that, and nobody else does.
    fn departure(&self) -> Option<Ticket> {
        None
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
