//! Backends: where memory is and where nodes run.
//!
//! A closed set: [`host`] computes in RAM, in place from file mappings where asked; [`virtual_device`] computes
//! with the same kernels over a memory of its own behind a paced copy engine. Everything above this
//! module is safe code: raw memory is touched in `region`, `run`, `copy_engine` and `kernels` only.

pub mod host;
pub mod kernels;
pub mod memory;
pub mod region;
pub mod virtual_device;

mod copy_engine;
mod run;
mod workspace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use protocol::{BackendKind, Bytes};

pub use host::HostBackend;
pub use memory::{Memory, OutOfMemory};
pub use region::Region;
pub use run::{Call, WeightPlace};
pub use virtual_device::VirtualDevice;
pub use workspace::workspace_bytes;

use crate::weights::{TensorRef, WeightFiles};

/// Kinds of backend that this executor can compute on.
pub const SUPPORTED: [BackendKind; 2] = [BackendKind::Host, BackendKind::Virtual];

/// The running command was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// Set from another thread to end one command soon.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Asks for the end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// An error once the end was asked for.
    pub fn check(&self) -> Result<(), Cancelled> {
        if self.0.load(Ordering::Acquire) { Err(Cancelled) } else { Ok(()) }
    }
}

/// Where one weight goes in a region.
#[derive(Debug, Clone)]
pub struct WeightMove {
    /// Where it is in the files.
    pub tensor: TensorRef,
    /// Where it goes, from the region's start.
    pub offset: Bytes,
}

/// A place with memory that can run nodes.
pub trait Backend: Send {
    /// What it is.
    fn kind(&self) -> BackendKind;

    /// Its memory, with the count of what is allocated.
    fn memory(&self) -> &Arc<Memory>;

    /// Copies weights from their files into a region, and returns when all are there.
    fn load(
        &self,
        files: &Arc<WeightFiles>,
        moves: Vec<WeightMove>,
        region: &Arc<Region>,
        cancel: &CancelFlag,
    ) -> Result<(), Cancelled>;

    /// Copies activations from the host into a region.
    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]);

    /// Copies activations from a region to the host.
    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]);

    /// Runs all nodes of a schedule in order.
    fn run(&self, call: &Call<'_>, cancel: &CancelFlag) -> Result<(), Cancelled>;
}
