//! NVIDIA's cuBLASLt, where it is: the product of two matrices of 16-bit floats with sums in f32.
//!
//! It is a convenience: without it, and wherever it fails, kernels of our own multiply, and a
//! warning says why. Each GPU has one handle, made when a product first wants it. How a product is
//! computed is asked once for each shape, when its component is prepared, and kept. It is computed
//! once then, as the library loads its kernels when they are first started; afterwards nothing is
//! asked, made or loaded.
//!
//! Not here: which layers are multiplied so, and what is left to do with sums
//! (`ops/linear/library.rs`).

mod library;
mod product;
mod search;
mod status;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cudarc::cublaslt::sys::cublasLtHandle_t;
use cudarc::driver::sys::CUstream;

pub use self::library::{Library, Missing};
use self::product::Product;
pub use self::product::{Epilogue, ProductOperands, Shape};
pub use self::search::PATH_VARIABLE;
use super::context::Context;
use super::driver::DriverError;

/// The library on one GPU.
pub struct Cublas {
    library: &'static Library,
    inner: Mutex<Inner>,
}

struct Inner {
    handle: cublasLtHandle_t,
    /// By shape; nothing where the library cannot compute it.
    products: HashMap<Shape, Option<Product>>,
}

// SAFETY: a handle and what is made for it may be used from any thread, by one at a time.
unsafe impl Send for Inner {}

impl Cublas {
    /// Starts the library on a GPU.
    ///
    /// # Errors
    /// Why it does not start.
    pub(super) fn start(library: &'static Library, context: &Context) -> Result<Cublas, String> {
        context.enter().map_err(|error| error.to_string())?;
        let mut handle: cublasLtHandle_t = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of its own; the context is current.
        let code = unsafe { (library.functions.create)(&raw mut handle) };
        status::check("cublasLtCreate", code)?;
        Ok(Cublas { library, inner: Mutex::new(Inner { handle, products: HashMap::new() }) })
    }

    /// Whether the library computes products of a shape; asked of it the first time. Where a stream
    /// is given, one is computed on it then, so that the kernel is loaded.
    ///
    /// # Safety
    /// With a stream, the operands have this shape, and are valid until it has done this; nobody
    /// needs what is in the result. The stream's context is `context`.
    pub(super) unsafe fn computes(
        &self,
        context: &Context,
        shape: &Shape,
        operands: &ProductOperands,
        stream: Option<CUstream>,
    ) -> Result<bool, DriverError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = inner.products.get(shape) {
            return Ok(known.is_some());
        }
        context.enter()?;
        let (functions, handle) = (&self.library.functions, inner.handle);
        let chosen = Product::choose(functions, handle, shape, operands).and_then(|product| {
            if let Some(stream) = stream {
                // SAFETY: the caller's promise.
                unsafe { product.multiply(functions, handle, operands, stream)? };
            }
            Ok(product)
        });
        let chosen = chosen.inspect_err(|why| warn(shape, why)).ok();
        let computes = chosen.is_some();
        inner.products.insert(*shape, chosen);
        Ok(computes)
    }

    /// Hands a product to a stream; `false` where that failed, now or before: it is not tried
    /// again.
    ///
    /// # Safety
    /// The operands have this shape, and are valid until the stream has done this. The stream's
    /// context is this thread's.
    pub(super) unsafe fn multiply(
        &self,
        stream: CUstream,
        shape: &Shape,
        operands: &ProductOperands,
    ) -> bool {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = inner.handle;
        let Some(Some(product)) = inner.products.get(shape) else {
            return false;
        };
        // SAFETY: the caller's promise.
        let done = unsafe { product.multiply(&self.library.functions, handle, operands, stream) };
        if let Err(why) = &done {
            warn(shape, why);
            inner.products.insert(*shape, None);
        }
        done.is_ok()
    }
}

fn warn(shape: &Shape, why: &str) {
    let Shape { rows, columns, depth, .. } = shape;
    tracing::warn!(
        "cuBLASLt does not multiply {rows} rows of {depth} by {columns}, a kernel of Berth does: {why}"
    );
}

impl Drop for Cublas {
    fn drop(&mut self) {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.products.clear();
        // SAFETY: made by `start`; its context is there and current, as `Gpu` sees to.
        let code = unsafe { (self.library.functions.destroy)(inner.handle) };
        if let Err(why) = status::check("cublasLtDestroy", code) {
            tracing::debug!("{why}");
        }
    }
}
