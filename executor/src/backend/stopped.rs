//! Why something that was asked of a device came to no end.

use protocol::{Bytes, DeviceId};

use super::cancel::Cancelled;
use super::cuda::driver::DriverError;
use super::memory::OutOfMemory;

/// Why a copy, an allocation, or a command with them, came to no end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// The command was cancelled.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// The device has too little memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// The device does not answer, or refuses.
    #[error("{device} has failed: {why}")]
    DeviceFailed {
        /// On which it was to be done.
        device: DeviceId,
        /// What of it failed.
        why: String,
    },
    /// The device does nothing more for this process. Another one may find it in order.
    #[error("{device} is lost to this process: {why}")]
    DeviceLost {
        /// On which it was to be done.
        device: DeviceId,
        /// What of it failed.
        why: String,
    },
}

impl Stopped {
    /// A copy to or from a device came to no end.
    pub fn copy_failed(device: &DeviceId) -> Stopped {
        let why = "a copy to or from it did not end".to_owned();
        Stopped::DeviceFailed { device: device.clone(), why }
    }

    /// A device's driver answered with an error.
    pub fn driver(device: &DeviceId, error: &DriverError) -> Stopped {
        let (device, why) = (device.clone(), error.to_string());
        if error.is_out_of_memory() {
            let free = error.free_bytes().map(Bytes);
            return OutOfMemory::of_driver(device, why, free).into();
        }
        match error.ends_context() {
            true => Stopped::DeviceLost { device, why },
            false => Stopped::DeviceFailed { device, why },
        }
    }
}
