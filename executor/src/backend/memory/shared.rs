//! Memory that the planner reads and this process writes again and again, in turns: allocated once,
//! so that a denoising step that shows a preview allocates nothing.
//!
//! ```text
//! free ──write──► lent (the planner reads) ──taken back──► free
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ipc_channel::ipc::IpcSharedMemory;

/// Whose turn it is. Clones are of the same turn.
#[derive(Debug, Clone, Default)]
pub struct Turn {
    is_lent: Arc<AtomicBool>,
}

impl Turn {
    /// The planner has read what it was lent.
    pub fn take_back(&self) {
        self.is_lent.store(false, Ordering::Release);
    }

    fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Acquire)
    }
}

/// Shared memory of a fixed length.
pub struct SharedBytes {
    memory: IpcSharedMemory,
    turn: Turn,
}

impl SharedBytes {
    /// Zeros, which nobody reads yet.
    pub fn allocate(bytes: usize) -> SharedBytes {
        SharedBytes { memory: IpcSharedMemory::from_byte(0, bytes), turn: Turn::default() }
    }

    /// By which the planner's answer gives the memory back.
    pub fn turn(&self) -> Turn {
        self.turn.clone()
    }

    /// Writes the memory anew and lends it; `None`, and nothing is written, while it is lent.
    pub fn write_and_lend(&mut self, write: impl FnOnce(&mut [u8])) -> Option<IpcSharedMemory> {
        if self.turn.is_lent() {
            return None;
        }
        // SAFETY: this process has the only handle that writes, and it is borrowed here alone. The
        // other handles are the planner's: it reads only between being lent the memory and giving
        // it back, and then drops its own.
        write(unsafe { self.memory.deref_mut() });
        self.turn.is_lent.store(true, Ordering::Release);
        Some(self.memory.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_not_written() {
        let mut shared = SharedBytes::allocate(3);
        let lent = shared.write_and_lend(|bytes| bytes.copy_from_slice(&[1, 2, 3])).unwrap();
        assert!(shared.write_and_lend(|bytes| bytes.fill(9)).is_none());
        assert_eq!(*lent, [1, 2, 3]);
        drop(lent);
        shared.turn().take_back();
        let again = shared.write_and_lend(|bytes| bytes[0] = 7).unwrap();
        assert_eq!(*again, [7, 2, 3]);
    }
}
