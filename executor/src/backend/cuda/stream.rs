//! Streams and events: the only place that hands asynchronous work to the driver.
//!
//! Work of one stream is done in its order; an event recorded on one and waited for on another
//! orders the two. Who hands out work keeps what it touches alive until an event after it has
//! passed.

use std::ffi::{c_uint, c_void};
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D_PEER, CUevent, CUmemorytype, CUstream};

use super::address::Address;
use super::driver::DriverError;
use super::gpu::Gpu;
use super::kernels::Function;
use crate::race::{Edge, EventId, GpuTrace, Span, StreamId};

/// Rows of bytes in the memory of a GPU or of the host.
#[derive(Debug, Clone, Copy)]
pub struct ByteRows {
    /// The first byte.
    pub start: Place,
    /// From one row to the next, in bytes.
    pub stride: usize,
}

/// Where bytes are.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// In a GPU's memory.
    Device(Address),
    /// In RAM.
    Host(*mut u8),
}

/// A point in a stream's work.
pub struct Event {
    gpu: Arc<Gpu>,
    raw: CUevent,
    /// Where it was recorded in a trace.
    traced: OnceLock<(GpuTrace, EventId)>,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Event {}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event({:p})", self.raw)
    }
}

impl Event {
    /// An event that was not recorded yet; `timed` ones can be compared in time.
    pub fn new(gpu: &Arc<Gpu>, timed: bool) -> Result<Event, DriverError> {
        /// `CU_EVENT_DISABLE_TIMING`, without which recording costs more.
        const UNTIMED: c_uint = 2;
        /// `CU_EVENT_BLOCKING_SYNC`: who waits for it, as the threads that stage weights, sleeps.
        const SLEPT_FOR: c_uint = 1;
        gpu.enter()?;
        let mut raw: CUevent = std::ptr::null_mut();
        let flags = if timed { 0 } else { UNTIMED | SLEPT_FOR };
        // SAFETY: the pointer is to a pointer of its own.
        let code = unsafe { (gpu.driver.functions.event_create)(&raw mut raw, flags) };
        gpu.check("cuEventCreate", code)?;
        Ok(Event { gpu: Arc::clone(gpu), raw, traced: OnceLock::new() })
    }

    /// Whether all before it is done, asked by who does not go on by the answer.
    pub(super) fn is_past(&self) -> Result<bool, DriverError> {
        // SAFETY: the event is alive.
        let code = unsafe { (self.gpu.driver.functions.event_query)(self.raw) };
        self.gpu.check_ready("cuEventQuery", code)
    }

    /// Whether all before it is done. Asked by the thread that hands out work, of weights that it
    /// waits for.
    pub fn has_passed(&self) -> Result<bool, DriverError> {
        let passed = self.is_past()?;
        if let Some((trace, event)) = self.traced.get()
            && passed
            && trace.left_out != Some(Edge::Loaded)
        {
            trace.trace.wait(trace.host, *event);
        }
        Ok(passed)
    }

    /// Waits on the thread that hands out work until all before it is done.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        if let Some((trace, event)) = self.traced.get() {
            trace.trace.wait(trace.host, *event);
        }
        self.block()
    }

    /// Waits on a thread of its own until all before it is done.
    pub(super) fn block(&self) -> Result<(), DriverError> {
        // SAFETY: the event is alive.
        let code = unsafe { (self.gpu.driver.functions.event_synchronize)(self.raw) };
        self.gpu.check("cuEventSynchronize", code)
    }

    /// Milliseconds from another event to this one. Both are timed, and have passed.
    pub fn ms_since(&self, start: &Event) -> Result<f32, DriverError> {
        let mut ms = 0.0;
        // SAFETY: both events are alive, and the pointer is to a number of its own.
        let code = unsafe {
            (self.gpu.driver.functions.event_elapsed_ms)(&raw mut ms, start.raw, self.raw)
        };
        self.gpu.check("cuEventElapsedTime", code)?;
        Ok(ms)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the event is alive; the driver frees it once it has passed.
        unsafe { (self.gpu.driver.functions.event_destroy)(self.raw) };
    }
}

/// A queue of work on a GPU.
pub struct Stream {
    gpu: Arc<Gpu>,
    raw: CUstream,
    traced: Option<(GpuTrace, StreamId)>,
}

// SAFETY: streams may be used from any thread; each is used by one at a time.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks what it must.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream that does not wait for the null stream; `name` is its one in a trace.
    pub fn new(
        gpu: &Arc<Gpu>,
        name: &str,
        trace: Option<&GpuTrace>,
    ) -> Result<Stream, DriverError> {
        /// `CU_STREAM_NON_BLOCKING`.
        const NON_BLOCKING: c_uint = 1;
        gpu.enter()?;
        let mut raw: CUstream = std::ptr::null_mut();
        // SAFETY: the pointer is to a pointer of its own.
        let code = unsafe { (gpu.driver.functions.stream_create)(&raw mut raw, NON_BLOCKING, 0) };
        gpu.check("cuStreamCreate", code)?;
        let traced = trace.map(|trace| (trace.clone(), trace.trace.stream(name)));
        Ok(Stream { gpu: Arc::clone(gpu), raw, traced })
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Records what the next work reads and writes, where a trace is kept.
    pub(super) fn trace(&self, name: &str, spans: impl FnOnce() -> [Vec<Span>; 2]) {
        if let Some((trace, stream)) = &self.traced {
            let [reads, writes] = spans();
            trace.trace.record(*stream, name, &reads, &writes);
        }
    }

    /// Records that what comes starts no earlier than the thread that hands out work is now.
    pub(super) fn trace_issue(&self) {
        if let Some((trace, stream)) = &self.traced {
            trace.trace.wait(*stream, trace.trace.signal(trace.host));
        }
    }

    /// Records that the thread that hands out work goes on only when all so far is done.
    pub(super) fn trace_joined(&self) {
        if let Some((trace, stream)) = &self.traced {
            trace.trace.wait(trace.host, trace.trace.signal(*stream));
        }
    }

    /// Starts a kernel with its packed argument, which is copied.
    pub(super) fn launch(
        &self,
        function: Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        argument: &[u8],
    ) -> Result<(), DriverError> {
        /// `CU_LAUNCH_PARAM_BUFFER_POINTER`.
        const POINTER: usize = 1;
        /// `CU_LAUNCH_PARAM_BUFFER_SIZE`.
        const SIZE: usize = 2;
        self.gpu.enter()?;
        let mut size = argument.len();
        let mut extra: [*mut c_void; 5] = [
            POINTER as *mut c_void,
            argument.as_ptr().cast_mut().cast(),
            SIZE as *mut c_void,
            (&raw mut size).cast(),
            std::ptr::null_mut(), // `CU_LAUNCH_PARAM_END`
        ];
        let ([gx, gy, gz], [bx, by, bz]) = (grid, block);
        // SAFETY: the function is of this context; the argument is read during the call only.
        let code = unsafe {
            (self.gpu.driver.functions.launch_kernel)(
                function.raw,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared_bytes,
                self.raw,
                std::ptr::null_mut(),
                extra.as_mut_ptr(),
            )
        };
        self.gpu.check("cuLaunchKernel", code).map_err(|error| error.about(function.name))?;
        self.gpu.note_launch(function.name);
        Ok(())
    }

    /// Has a library hand out its work: `call` gets the stream, and the GPU's context is current.
    pub(super) fn issue<T>(&self, call: impl FnOnce(CUstream) -> T) -> Result<T, DriverError> {
        self.gpu.enter()?;
        Ok(call(self.raw))
    }

    /// Copies from the host.
    ///
    /// # Safety
    /// `from` is valid for reading until an event after this has passed, or, where it is not
    /// page-locked, during the call.
    pub unsafe fn copy_to_device(
        &self,
        to: Address,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: the caller's promise.
        let code = unsafe {
            (self.gpu.driver.functions.copy_to_device)(to.0, from.cast(), bytes, self.raw)
        };
        self.gpu.check("cuMemcpyHtoDAsync", code)
    }

    /// Copies to the host.
    ///
    /// # Safety
    /// `to` is valid for writing, and nobody else touches it, until an event after this has passed.
    pub unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.gpu.driver.functions.copy_to_host)(to.cast(), from.0, bytes, self.raw) };
        self.gpu.check("cuMemcpyDtoHAsync", code)
    }

    /// Copies within the memory of this GPU.
    ///
    /// # Safety
    /// As for [`Stream::copy_rows`].
    unsafe fn copy_within(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: the caller's promise.
        let code =
            unsafe { (self.gpu.driver.functions.copy_within)(to.0, from.0, bytes, self.raw) };
        self.gpu.check("cuMemcpyDtoDAsync", code)
    }

    /// Copies rows within the memory of this GPU, or between it and the host's.
    ///
    /// # Safety
    /// Both ends are valid, and nobody writes the first or touches the second, until an event after
    /// this has passed.
    pub unsafe fn copy_rows(
        &self,
        to: ByteRows,
        from: ByteRows,
        row_bytes: usize,
        rows: usize,
    ) -> Result<(), DriverError> {
        // A pitch has a limit, which one row need not have, and it takes more to hand out.
        if rows == 1 {
            match (to.start, from.start) {
                (Place::Device(to), Place::Host(from)) => {
                    // SAFETY: the caller's promise.
                    return unsafe { self.copy_to_device(to, from, row_bytes) };
                }
                (Place::Host(to), Place::Device(from)) => {
                    // SAFETY: the caller's promise.
                    return unsafe { self.copy_to_host(to, from, row_bytes) };
                }
                (Place::Device(to), Place::Device(from)) => {
                    // SAFETY: the caller's promise.
                    return unsafe { self.copy_within(to, from, row_bytes) };
                }
                (Place::Host(_), Place::Host(_)) => {}
            }
        }
        self.gpu.enter()?;
        let (src_type, src_device, src_host) = operand(from.start);
        let (dst_type, dst_device, dst_host) = operand(to.start);
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: src_type,
            srcHost: src_host,
            srcDevice: src_device,
            srcArray: std::ptr::null_mut(),
            srcPitch: from.stride,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: dst_type,
            dstHost: dst_host,
            dstDevice: dst_device,
            dstArray: std::ptr::null_mut(),
            dstPitch: to.stride,
            WidthInBytes: row_bytes,
            Height: rows,
        };
        // SAFETY: the caller's promise; the description is read during the call only.
        let code = unsafe { (self.gpu.driver.functions.copy_2d)(&raw const copy, self.raw) };
        self.gpu.check("cuMemcpy2DAsync", code)
    }

    /// Copies rows from the memory of another GPU into this one's.
    ///
    /// # Safety
    /// As for [`Stream::copy_rows`].
    pub unsafe fn copy_rows_from(
        &self,
        other: &Gpu,
        [to, from]: [Address; 2],
        [to_stride, from_stride]: [usize; 2],
        row_bytes: usize,
        rows: usize,
    ) -> Result<(), DriverError> {
        self.gpu.enter()?;
        if rows == 1 {
            let [to_context, from_context] = [self.gpu.context.raw, other.context.raw];
            let copy = self.gpu.driver.functions.copy_peer;
            // SAFETY: the caller's promise.
            let code = unsafe { copy(to.0, to_context, from.0, from_context, row_bytes, self.raw) };
            return self.gpu.check("cuMemcpyPeerAsync", code);
        }
        let device = CUmemorytype::CU_MEMORYTYPE_DEVICE;
        let copy = CUDA_MEMCPY3D_PEER {
            srcXInBytes: 0,
            srcY: 0,
            srcZ: 0,
            srcLOD: 0,
            srcMemoryType: device,
            srcHost: std::ptr::null(),
            srcDevice: from.0,
            srcArray: std::ptr::null_mut(),
            srcContext: other.context.raw,
            srcPitch: from_stride,
            srcHeight: rows,
            dstXInBytes: 0,
            dstY: 0,
            dstZ: 0,
            dstLOD: 0,
            dstMemoryType: device,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.0,
            dstArray: std::ptr::null_mut(),
            dstContext: self.gpu.context.raw,
            dstPitch: to_stride,
            dstHeight: rows,
            WidthInBytes: row_bytes,
            Height: rows,
            Depth: 1,
        };
        // SAFETY: the caller's promise; the description is read during the call only.
        let code = unsafe { (self.gpu.driver.functions.copy_3d_peer)(&raw const copy, self.raw) };
        self.gpu.check("cuMemcpy3DPeerAsync", code)
    }

    /// A new event, recorded after all work so far.
    pub fn recorded(&self) -> Result<Event, DriverError> {
        let event = Event::new(&self.gpu, false)?;
        self.record(&event)?;
        Ok(event)
    }

    /// A new timed event after all work so far, which is in no trace.
    pub(super) fn mark(&self) -> Result<Event, DriverError> {
        let event = Event::new(&self.gpu, true)?;
        self.place(&event)?;
        Ok(event)
    }

    /// Records an event after all work so far.
    pub fn record(&self, event: &Event) -> Result<(), DriverError> {
        if let Some((trace, stream)) = &self.traced {
            let signalled = (trace.clone(), trace.trace.signal(*stream));
            assert!(event.traced.set(signalled).is_ok(), "an event is recorded once");
        }
        self.place(event)
    }

    fn place(&self, event: &Event) -> Result<(), DriverError> {
        self.gpu.enter()?;
        // SAFETY: both are alive and of one context.
        let code = unsafe { (self.gpu.driver.functions.event_record)(event.raw, self.raw) };
        self.gpu.check("cuEventRecord", code)
    }

    /// Lets all work from now on wait for an event that was recorded, on this GPU or another;
    /// `edge` is what that is for.
    pub fn wait(&self, event: &Event, edge: Edge) -> Result<(), DriverError> {
        self.gpu.enter()?;
        if let (Some((trace, stream)), Some((_, event))) = (&self.traced, event.traced.get())
            && trace.left_out != Some(edge)
        {
            trace.trace.wait(*stream, *event);
        }
        // SAFETY: both are alive.
        let code = unsafe { (self.gpu.driver.functions.stream_wait_event)(self.raw, event.raw, 0) };
        self.gpu.check("cuStreamWaitEvent", code)
    }

    /// Waits on this thread until all work is done.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: the stream is alive.
        let code = unsafe { (self.gpu.driver.functions.stream_synchronize)(self.raw) };
        self.gpu.check("cuStreamSynchronize", code)
    }
}

/// Memory type, device address and host address of an end of a copy.
fn operand(place: Place) -> (CUmemorytype, u64, *mut c_void) {
    match place {
        Place::Device(address) => {
            (CUmemorytype::CU_MEMORYTYPE_DEVICE, address.0, std::ptr::null_mut())
        }
        Place::Host(start) => (CUmemorytype::CU_MEMORYTYPE_HOST, 0, start.cast()),
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream is alive; the driver frees it once its work is done.
        unsafe { (self.gpu.driver.functions.stream_destroy)(self.raw) };
    }
}
