//! Device memory filled and read back at once: for single operations that are tested or measured.
//!
//! Not here: memory of a plan's regions, and copies beside a computation.

use super::address::Address;
use super::driver::DriverError;
use super::memory::DeviceMemory;
use super::stream::Stream;

/// Memory of a GPU with the bytes that it was made of, until a kernel writes others.
pub struct Buffer {
    memory: DeviceMemory,
    bytes: usize,
}

impl Buffer {
    /// Memory with these bytes, of which there is at least one.
    pub fn of(stream: &Stream, bytes: &[u8]) -> Result<Buffer, DriverError> {
        let memory = DeviceMemory::allocate(stream.gpu(), bytes.len())?;
        // SAFETY: the bytes are borrowed until the copy is done, which is waited for.
        unsafe { stream.copy_to_device(memory.start(), bytes.as_ptr(), bytes.len()) }?;
        stream.synchronize()?;
        Ok(Buffer { memory, bytes: bytes.len() })
    }

    /// The first byte: a multiple of 256.
    pub fn address(&self) -> Address {
        self.memory.start()
    }

    /// Its bytes when all work of the stream is done.
    pub fn read(&self, stream: &Stream) -> Result<Vec<u8>, DriverError> {
        let mut bytes = vec![0; self.bytes];
        // SAFETY: the vector is this function's own until the copy is done, which is waited for.
        unsafe { stream.copy_to_host(bytes.as_mut_ptr(), self.address(), bytes.len()) }?;
        stream.synchronize()?;
        Ok(bytes)
    }
}
