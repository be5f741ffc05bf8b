//! What is handed over to the planner in shared memory.

use ipc_channel::ipc::IpcSharedMemory;
use protocol::{Bytes, DeviceId};

use crate::backend::{OutOfMemory, limits};

/// A copy that the planner can read. Making it panics where the system refuses the memory, so it is asked before.
///
/// # Errors
/// The process's limits leave too little for it.
pub fn shared(name: &str, bytes: &[u8]) -> Result<IpcSharedMemory, OutOfMemory> {
    let requested_bytes = Bytes(bytes.len() as u64);
    match limits::left() {
        Some(left) if left < requested_bytes => Err(OutOfMemory {
            device: DeviceId::host(),
            region: name.to_owned(),
            requested_bytes,
            free_bytes: Some(left),
            limited: true,
        }),
        _ => Ok(IpcSharedMemory::from_bytes(bytes)),
    }
}
