//! How an operation hands its kernels to a stream.

use std::sync::Arc;

use protocol::StorageType;

use super::cublas::{Cublas, ProductOperands, Shape};
use super::driver::DriverError;
use super::kernels::Kernels;
use super::stream::{ByteRows, Place, Stream};

pub use super::address::Address;

/// What a product by cuBLASLt is called among kernels.
pub const LIBRARY_PRODUCT: &str = "cublasLtMatmul";

/// Weights in a GPU's memory, as they are stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoredWeight {
    /// The first byte.
    pub address: Address,
    /// How elements are stored.
    pub storage: StorageType,
    /// Multiplies each element.
    pub scale: f32,
}

/// A stream, and the kernels of its GPU.
pub struct Launcher<'a> {
    stream: &'a Stream,
    kernels: &'a Arc<Kernels>,
    starts: bool,
    own_kernels: bool,
    tall_attention: bool,
    bytes: bool,
}

impl<'a> Launcher<'a> {
    /// Operations go to this stream.
    pub fn new(stream: &'a Stream, kernels: &'a Arc<Kernels>) -> Launcher<'a> {
        Launcher {
            stream,
            kernels,
            starts: true,
            own_kernels: false,
            tall_attention: false,
            bytes: false,
        }
    }

    /// The kernels of operations are loaded. Nothing is started but a product of each shape that is
    /// new to cuBLASLt, by which that loads its own.
    pub fn loading(stream: &'a Stream, kernels: &'a Arc<Kernels>) -> Launcher<'a> {
        Launcher { starts: false, ..Launcher::new(stream, kernels) }
    }

    /// All products are formed by kernels of our own, as without cuBLASLt.
    pub fn with_own_kernels(self) -> Launcher<'a> {
        Launcher { own_kernels: true, ..self }
    }

    /// Attention takes the blocks of a large one however few queries there are, where the GPU has
    /// room for them: for tests, which are small.
    pub fn with_tall_attention(self) -> Launcher<'a> {
        Launcher { tall_attention: true, ..self }
    }

    /// Quantised weights are multiplied as bytes on every GPU: for tests and measurements.
    pub fn with_bytes(self) -> Launcher<'a> {
        Launcher { bytes: true, ..self }
    }

    /// The GPU's compute capability.
    pub fn capability(&self) -> (u32, u32) {
        self.stream.gpu().info.capability
    }

    /// Units that each run blocks of their own.
    pub fn multiprocessors(&self) -> u32 {
        self.stream.gpu().multiprocessors
    }

    /// Shared memory of each of them, in bytes.
    pub fn multiprocessor_shared_bytes(&self) -> u32 {
        self.stream.gpu().multiprocessor_shared_bytes
    }

    /// Whether attention takes the blocks of a large one however few queries there are.
    pub(super) fn prefers_tall_attention(&self) -> bool {
        self.tall_attention
    }

    /// Whether quantised weights are multiplied as bytes on every GPU.
    pub(super) fn prefers_bytes(&self) -> bool {
        self.bytes
    }

    /// Starts to copy bytes within the GPU's memory.
    ///
    /// # Safety
    /// Both ends are valid and apart, and nobody else touches the second, until the stream has done
    /// this.
    pub unsafe fn copy(&self, to: Address, from: Address, bytes: usize) -> Result<(), DriverError> {
        if !self.starts {
            return Ok(());
        }
        let [to, from] =
            [to, from].map(|start| ByteRows { start: Place::Device(start), stride: bytes });
        // SAFETY: the caller's promise.
        unsafe { self.stream.copy_rows(to, from, bytes, 1) }
    }

    /// cuBLASLt, where it computes products of this shape; asked of it the first time. While
    /// kernels are loaded only, it computes one then.
    ///
    /// # Safety
    /// The operands have this shape, and are valid until the stream has computed a product of them.
    /// While kernels are loaded only, nobody needs what is in the result.
    pub(super) unsafe fn library_for(
        &self,
        shape: &Shape,
        operands: &ProductOperands,
    ) -> Result<Option<&Cublas>, DriverError> {
        let gpu = self.stream.gpu();
        let Some(cublas) = gpu.cublas().filter(|_| !self.own_kernels) else {
            return Ok(None);
        };
        let stream = (!self.starts).then(|| self.stream.issue(|stream| stream)).transpose()?;
        // SAFETY: the caller's promise.
        let computes = unsafe { cublas.computes(&gpu.context, shape, operands, stream)? };
        Ok(computes.then_some(cublas))
    }

    /// Starts a product by cuBLASLt; `false` where it failed.
    ///
    /// # Safety
    /// The operands have this shape, and are valid until the stream has done this.
    pub(super) unsafe fn multiply(
        &self,
        cublas: &Cublas,
        shape: &Shape,
        operands: &ProductOperands,
    ) -> Result<bool, DriverError> {
        if !self.starts {
            return Ok(true);
        }
        self.stream.gpu().note_launch(LIBRARY_PRODUCT);
        self.stream.issue(|stream| {
            // SAFETY: the caller's promise; `issue` makes the context current.
            unsafe { cublas.multiply(stream, shape, operands) }
        })
    }

    /// Starts a kernel, by its entry point's name, with its only argument. `shared_bytes`: what it
    /// takes beside the shared memory that it declares, the same in each launch of it.
    pub fn launch<A: bytemuck::NoUninit>(
        &self,
        kernel: &'static str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        argument: &A,
    ) -> Result<(), DriverError> {
        let gpu = self.stream.gpu();
        gpu.enter()?;
        let function = self.kernels.function(kernel, shared_bytes);
        let function = function.map_err(|error| gpu.explained(error))?;
        if !self.starts {
            return Ok(());
        }
        self.stream.launch(function, grid, block, shared_bytes, bytemuck::bytes_of(argument))
    }
}
