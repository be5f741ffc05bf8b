//! The CUDA backend: NVIDIA GPUs through the driver, with kernels of our own and, where it is,
//! cuBLASLt.
//!
//! ```text
//! driver ─► context ─► gpu (kernels, cublas) ─► stream, event ─► launch ─► ops ─► operands
//!                                                           └► memory, loads (regions, weights)
//! ```

pub mod address;
pub mod buffer;
pub mod busy;
pub mod context;
pub mod cublas;
pub mod device;
pub mod driver;
pub mod gpu;
pub mod kernels;
pub mod launch;
pub mod loads;
pub mod memory;
pub mod ops;
pub mod overhead;
pub mod stream;

mod operands;
mod ptx;
mod unread;

pub use device::{CudaDevice, OpenError, cublas_told};
pub use operands::CudaOperands;
pub use ptx::shipped as shipped_kernels;
pub use unread::unread;
