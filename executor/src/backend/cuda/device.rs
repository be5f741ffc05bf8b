//! A logical device on a GPU: its streams, and what its component runs put on them.
//!
//! ```text
//! compute      nodes, and what the pipeline writes and reads between runs
//! activations  copies between lanes: after all computed so far on both; awaited by both
//! loads, slots weights, each by a thread that stages them in page-locked memory (`loads`)
//! ```
//! Everything is handed out in the order of the program and runs behind it; this thread waits only
//! where the host needs a result, or where it is too far ahead.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;

use protocol::usage::BusyMs;
use protocol::{BackendKind, Bytes, DeviceId};

use super::busy::Busy;
use super::cublas::Library;
use super::driver::{Driver, DriverError};
use super::gpu::{CAPABILITY_MIN, Gpu, GpuInfo, list};
use super::kernels::Kernels;
use super::launch::Launcher;
use super::loads::Loads;
use super::operands::CudaOperands;
use super::overhead::ProcessMemory;
use super::stream::{ByteRows, Event, Place, Stream};
use crate::backend::memory::Charge;
use crate::backend::operation::computed;
use crate::backend::{
    Backend, Link, Memory, NodeCall, OutOfMemory, Queue, Region, RegionCopy, Stopped, Ticket,
    WeightLoad,
};
use crate::race::{Edge, GpuTrace, Span};

/// Nodes between two looks at how far the GPU is behind.
const STRETCH_NODES: usize = 64;

/// Stretches that may be handed out and not computed. A cancelled command waits for them.
const STRETCHES_AHEAD: usize = 2;

/// What a process takes of a GPU before it allocates anything, in messages.
const CONTEXT: &str = "context";

/// A logical device on a GPU.
pub struct CudaDevice {
    memory: Arc<Memory>,
    gpu: Arc<Gpu>,
    kernels: Arc<Kernels>,
    compute: Stream,
    activations: Stream,
    loads: Loads,
    computing: Busy,
    copying: Busy,
    ahead: RefCell<Ahead>,
    context: Charge,
    own_kernels: Cell<bool>,
    tall_attention: Cell<bool>,
}

/// What was handed out and may not be computed yet.
#[derive(Default)]
struct Ahead {
    nodes: usize,
    stretches: VecDeque<Event>,
}

/// Why a device did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The machine has no such GPU, or none that can be used.
    #[error("{0}")]
    NoGpu(String),
    /// Its memory, or the host's, does not suffice, or refuses.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The driver answered with an error.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl CudaDevice {
    /// Opens a device on the GPU of this UUID, as NVML prints it. `overhead_bytes` is what its
    /// context takes of its memory; `pinned_bytes` of the host's memory stage its weights. Its
    /// streams record in a trace where one is given.
    pub fn open(
        memory: Arc<Memory>,
        uuid: Option<&str>,
        [overhead_bytes, pinned_bytes]: [Bytes; 2],
        host: &Arc<Memory>,
        trace: Option<GpuTrace>,
    ) -> Result<CudaDevice, OpenError> {
        let driver = Driver::get().map_err(|why| OpenError::NoGpu(why.to_string()))?;
        let context = memory.charge(CONTEXT, overhead_bytes).map_err(Stopped::from)?;
        let gpu = Gpu::open(driver, &find(driver, uuid)?);
        let gpu = gpu.map_err(|error| match error.is_out_of_memory() {
            true => OpenError::Stopped(of_context(&memory, overhead_bytes, &error).into()),
            false => error.into(),
        })?;
        let kernels = Arc::clone(gpu.kernels());
        if let Some(taken) = gpu.taken() {
            let ProcessMemory { bytes, source } = taken;
            tracing::debug!(
                "{}: this process takes {bytes} of its GPU ({source:?})",
                memory.device()
            );
        }
        let name = format!("staging of {}", memory.device());
        let staging = Region::allocate_pinned(&gpu, memory.device(), host, &name, pinned_bytes)?;
        let staging = Arc::new(staging);
        let trace = trace.as_ref();
        let loads = Loads::start(memory.device(), &gpu, &staging, trace)?;
        let stream = |what: &str| Stream::new(&gpu, &format!("{} {what}", memory.device()), trace);
        let (compute, activations) = (stream("compute")?, stream("activations")?);
        Ok(CudaDevice {
            memory,
            gpu,
            kernels,
            compute,
            activations,
            loads,
            computing: Busy::default(),
            copying: Busy::default(),
            ahead: RefCell::default(),
            context,
            own_kernels: Cell::new(false),
            tall_attention: Cell::new(false),
        })
    }

    /// Whether from now on all products are formed by kernels of our own, as without cuBLASLt.
    pub fn use_own_kernels(&self, only: bool) {
        self.own_kernels.set(only);
    }

    /// Whether from now on attention takes the blocks of a large one however small it is.
    pub fn use_tall_attention(&self, always: bool) {
        self.tall_attention.set(always);
    }

    /// A launcher that chooses kernels as this device was told to.
    fn told<'a>(&self, launcher: Launcher<'a>) -> Launcher<'a> {
        let launcher = if self.own_kernels.get() { launcher.with_own_kernels() } else { launcher };
        if self.tall_attention.get() { launcher.with_tall_attention() } else { launcher }
    }

    /// The GPU that it is on.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// What is allocated of its memory: without what its context is taken to use.
    pub fn allocated_bytes(&self) -> Bytes {
        self.memory.used() - self.context.bytes()
    }

    /// How long its streams were busy since this was last asked, with what has ended by now. Starts
    /// anew.
    pub fn take_busy(&self) -> Option<BusyMs> {
        let take = || -> Result<BusyMs, DriverError> {
            Ok(BusyMs {
                compute: self.computing.take_ms()?,
                weights: self.loads.take_busy_ms()?,
                activations: self.copying.take_ms()?,
            })
        };
        take()
            .inspect_err(|error| tracing::warn!("how long it was busy is not known: {error}"))
            .ok()
    }

    /// An event after all that was handed out to compute.
    pub fn departure(&self) -> Result<Event, Stopped> {
        self.compute.recorded().map_err(|error| self.stopped(&error))
    }

    /// Says that bytes are freed by the thread that hands out work, where that is recorded: the
    /// driver waits for all work then.
    pub fn record_free(&self, bytes: Span) {
        [&self.compute, &self.activations].into_iter().for_each(Stream::trace_joined);
        self.compute.trace_issue();
        self.compute.trace("free", || [Vec::new(), vec![bytes]]);
    }

    fn stopped(&self, error: &DriverError) -> Stopped {
        Stopped::driver(self.memory.device(), error)
    }

    fn start_copy(&self, copy: &RegionCopy) -> Result<Event, DriverError> {
        let stream = &self.activations;
        stream.trace_issue();
        copy.after.iter().try_for_each(|event| stream.wait(event, Edge::Departure))?;
        stream.trace("copy", || copy.spans());
        self.copying.begin(stream)?;
        let transfer = &copy.transfer;
        let (rows, row_bytes) = (transfer.rows, transfer.row_bytes.as_usize());
        let [to_stride, from_stride] =
            [transfer.to_stride, transfer.from_stride].map(Bytes::as_usize);
        let extent = |stride: usize| (rows - 1) * stride + row_bytes;
        let from = copy.from.place(transfer.from, extent(from_stride));
        let to = copy.to.place(transfer.to, extent(to_stride));
        let other = copy.from.gpu().filter(|gpu| !Arc::ptr_eq(gpu, &self.gpu));
        match (to, from, other) {
            (Place::Device(to), Place::Device(from), Some(other)) => {
                let strides = [to_stride, from_stride];
                // SAFETY: both ends are alive from the copy's start to the wait for it, and until
                // then nothing else writes the first or touches these columns of the second: the
                // schedule's lifetimes.
                unsafe { stream.copy_rows_from(other, [to, from], strides, row_bytes, rows)? };
            }
            (to, from, _) => {
                let to = ByteRows { start: to, stride: to_stride };
                let from = ByteRows { start: from, stride: from_stride };
                // SAFETY: as above.
                unsafe { stream.copy_rows(to, from, row_bytes, rows)? };
            }
        }
        self.copying.end(stream)?;
        stream.recorded()
    }

    /// Counts a node, and waits where the GPU is too far behind.
    fn count(&self) -> Result<(), DriverError> {
        let mut ahead = self.ahead.borrow_mut();
        ahead.nodes += 1;
        if ahead.nodes < STRETCH_NODES {
            return Ok(());
        }
        ahead.nodes = 0;
        ahead.stretches.push_back(self.compute.recorded()?);
        if ahead.stretches.len() > STRETCHES_AHEAD
            && let Some(oldest) = ahead.stretches.pop_front()
        {
            oldest.synchronize()?;
        }
        Ok(())
    }
}

/// A context that did not fit, though the account has room for it.
fn of_context(memory: &Memory, overhead_bytes: Bytes, error: &DriverError) -> OutOfMemory {
    memory.refused(CONTEXT, overhead_bytes, error.free_bytes().map(Bytes))
}

/// Starts the kernels of a node.
fn run(call: &NodeCall<'_>, on: &Launcher<'_>) -> Result<(), DriverError> {
    computed(&call.node().op).run_on_cuda(&CudaOperands::new(call, on))
}

/// Whether the driver starts and shows a GPU that is new enough; if not, why not.
pub fn usable() -> Result<(), OpenError> {
    let driver = Driver::get().map_err(|why| OpenError::NoGpu(why.to_string()))?;
    let gpus = list(driver)?;
    if gpus.iter().any(|gpu| gpu.capability >= CAPABILITY_MIN) {
        return Ok(());
    }
    Err(OpenError::NoGpu(format!("the CUDA driver shows {} GPUs, all too old", gpus.len())))
}

/// Which library serves the GPUs that are here, by version and place; or why none does. Nothing
/// where none can be used.
///
/// This loads it: some 60 ms and 100 MiB of the host's memory, measured with 12.9.3 and 13.4.1. So
/// a run has it loaded when a product first wants it.
pub fn cublas_told() -> Option<String> {
    usable().ok()?;
    Some(match Library::get(Driver::get().ok()?.version) {
        Ok(library) => library.to_string(),
        Err(why) => format!("not used, Berth's own kernels multiply: {why}"),
    })
}

/// The GPU of a UUID; without one, the only one that there is.
fn find(driver: &'static Driver, uuid: Option<&str>) -> Result<GpuInfo, OpenError> {
    let gpus = list(driver)?;
    let found = match uuid {
        Some(uuid) => gpus.iter().find(|gpu| same_uuid(&gpu.uuid, uuid)),
        None => gpus.first().filter(|_| gpus.len() == 1),
    };
    let Some(gpu) = found else {
        let shown: Vec<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        return Err(OpenError::NoGpu(format!(
            "the CUDA driver shows no GPU {}, but {}; hint: look at CUDA_VISIBLE_DEVICES",
            uuid.unwrap_or("without a UUID"),
            if shown.is_empty() { "none".to_owned() } else { shown.join(", ") },
        )));
    };
    if gpu.capability < CAPABILITY_MIN {
        let ((major, minor), (least_major, least_minor)) = (gpu.capability, CAPABILITY_MIN);
        return Err(OpenError::NoGpu(format!(
            "{} has compute capability {major}.{minor}, below {least_major}.{least_minor}; hint: --backend host computes without it",
            gpu.uuid
        )));
    }
    // A MIG instance is known to NVML by the name that the plan has.
    let uuid = uuid.map_or_else(|| gpu.uuid.clone(), str::to_owned);
    Ok(GpuInfo { uuid, ..gpu.clone() })
}

/// Whether two UUIDs have the same digits: of a MIG instance NVML says `MIG-…`, and the driver
/// shows its digits.
fn same_uuid(one: &str, other: &str) -> bool {
    let digits = |uuid: &str| uuid.split_once('-').map(|(_, digits)| digits.to_ascii_lowercase());
    digits(one) == digits(other)
}

impl Backend for CudaDevice {
    fn kind(&self) -> BackendKind {
        BackendKind::Cuda
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn allocate(&self, name: &str, bytes: Bytes) -> Result<Arc<Region>, Stopped> {
        Region::allocate_on(&self.gpu, &self.memory, name, bytes).map(Arc::new)
    }

    fn allocate_locked(
        &self,
        host: &Arc<Memory>,
        name: &str,
        bytes: Bytes,
    ) -> Result<Arc<Region>, Stopped> {
        Region::allocate_pinned(&self.gpu, self.memory.device(), host, name, bytes).map(Arc::new)
    }

    fn load(&self, load: WeightLoad, queue: Queue) -> Ticket {
        // What computes from a slot was handed out before its bytes are filled again.
        match self.departure() {
            Ok(after) => self.loads.load(load, queue, after),
            Err(stopped) => Ticket::ended(Err(stopped)),
        }
    }

    fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) -> Result<(), Stopped> {
        let to = region.address(offset, source.len());
        self.compute.trace_issue();
        self.compute.trace("write", || {
            [Vec::new(), vec![Span::new(region.id(), offset.0, source.len() as u64)]]
        });
        // SAFETY: the source is not page-locked: the driver reads it during the call. In the order
        // of the stream nothing else touches these bytes.
        let written = unsafe { self.compute.copy_to_device(to, source.as_ptr(), source.len()) };
        written.map_err(|error| self.stopped(&error))
    }

    fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) -> Result<(), Stopped> {
        let from = region.address(offset, target.len());
        self.compute.trace("read", || {
            [vec![Span::new(region.id(), offset.0, target.len() as u64)], Vec::new()]
        });
        self.computing.end(&self.compute).map_err(|error| self.stopped(&error))?;
        // SAFETY: the target is borrowed until the stream was waited for.
        let read = unsafe { self.compute.copy_to_host(target.as_mut_ptr(), from, target.len()) };
        // Also after an error, so that nothing writes the target later.
        let waited = self.compute.synchronize();
        self.compute.trace_joined();
        self.ahead.borrow_mut().stretches.clear();
        read.and(waited).map_err(|error| self.stopped(&error))
    }

    fn copy(&self, copy: RegionCopy) -> Ticket {
        match self.start_copy(&copy) {
            Ok(event) => Ticket::issued(self.memory.device(), event),
            Err(error) => Ticket::ended(Err(self.stopped(&error))),
        }
    }

    fn link(&self) -> Option<&Arc<Link>> {
        None
    }

    fn prepare(&self, call: &NodeCall<'_>) -> Result<(), Stopped> {
        let launcher = self.told(Launcher::loading(&self.compute, &self.kernels));
        let loaded = self.gpu.enter().and_then(|()| run(call, &launcher));
        loaded.map_err(|error| self.stopped(&error))
    }

    fn run(&self, call: &NodeCall<'_>) -> Result<(), Stopped> {
        let launcher = self.told(Launcher::new(&self.compute, &self.kernels));
        self.compute.trace_issue();
        self.compute.trace(call.node().op.name(), || call.spans());
        let begun = self.computing.begin(&self.compute);
        let ran = begun.and_then(|()| run(call, &launcher)).and_then(|()| self.count());
        ran.map_err(|error| self.stopped(&error))
    }

    fn finish(&self) -> Result<(), Stopped> {
        let ended = self.computing.end(&self.compute);
        ended.and_then(|()| self.compute.synchronize()).map_err(|error| self.stopped(&error))
    }

    fn join(&self, ticket: &Ticket, edge: Edge) -> Result<(), Stopped> {
        self.computing.end(&self.compute).map_err(|error| self.stopped(&error))?;
        ticket.order(self.memory.device(), &self.compute, edge)
    }

    fn as_cuda(&self) -> Option<&CudaDevice> {
        Some(self)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // What an abandoned run left behind ends before its streams go.
        let device: &DeviceId = self.memory.device();
        for stream in [&self.compute, &self.activations] {
            if let Err(error) = stream.synchronize() {
                tracing::warn!("{device}: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mig_instance_is_found_by_its_digits() {
        assert!(same_uuid(
            "GPU-00112233-4455-6677-8899-aabbccddeeff",
            "MIG-00112233-4455-6677-8899-AABBCCDDEEFF"
        ));
        assert!(!same_uuid(
            "GPU-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-00112233-4455-6677-8899-aabbccddeefe"
        ));
    }
}
