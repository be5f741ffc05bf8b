//! What is handed over to the planner in shared memory.

use ipc_channel::ipc::IpcSharedMemory;
use protocol::{Bytes, DeviceId};

use crate::backend::{OutOfMemory, limits};

/// How often ipc-channel maps a copy: when it is made, and when it is sent.
const MAPPINGS: u64 = 2;

/// What the message and the ends of pages may take beside that.
const SLACK_BYTES: Bytes = Bytes::kib(256);

/// A copy that the planner can read. ipc-channel panics where the system refuses the memory, so
/// limits are asked before.
///
/// # Errors
/// The process's limits leave too little for it.
pub fn shared(name: &str, bytes: &[u8]) -> Result<IpcSharedMemory, OutOfMemory> {
    let requested_bytes = Bytes(MAPPINGS * bytes.len() as u64) + SLACK_BYTES;
    match limits::left() {
        Some(left) if left < requested_bytes => Err(OutOfMemory {
            device: DeviceId::host(),
            region: name.to_owned(),
            requested_bytes: Some(requested_bytes),
            free_bytes: Some(left),
            limited: true,
        }),
        _ => Ok(IpcSharedMemory::from_bytes(bytes)),
    }
}
