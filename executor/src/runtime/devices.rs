//! The opened devices of a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::plan::{DeviceBackend, DevicePlan};
use protocol::{Bytes, DeviceId, Failure, Phase, Plan};

use crate::backend::cuda::OpenError;
use crate::backend::kernels::Workers;
use crate::backend::virtual_device::VirtualProperties;
use crate::backend::{
    Backend, CudaDevice, HostBackend, Memory, Region, RegionCopy, Stopped, Ticket, VirtualDevice,
};
use crate::failure::{internal, refused};
use crate::race::{Edge, GpuTrace, Span, Trace, Tracer};
use crate::schedule::Transfer;

/// A trace, and the kind of edge that is left out of it, to see that it is missed.
pub type Traced<'a> = (&'a Arc<Trace>, Option<Edge>);

/// All devices that a plan uses, and the host.
pub struct Devices {
    backends: BTreeMap<DeviceId, Box<dyn Backend>>,
    tracer: Option<Arc<Tracer>>,
}

impl Devices {
    /// Opens them; what they do is recorded where a trace is given.
    pub fn open(plan: &Plan, trace: Option<Traced<'_>>) -> Result<Devices, Failure> {
        let threads = plan.host.threads as usize;
        let workers = Arc::new(Workers::new(threads).map_err(internal)?);
        let mut backends: BTreeMap<DeviceId, Box<dyn Backend>> = BTreeMap::new();
        let memory = Memory::new(DeviceId::host(), plan.host.budget_bytes, None);
        let host = HostBackend::new(Arc::clone(&memory), Arc::clone(&workers));
        backends.insert(DeviceId::host(), Box::new(host));
        let used = || plan.devices.iter().filter(|device| plan.uses(&device.id));
        let tracer = trace.map(|traced| {
            let recorded = used().filter(|d| !matches!(d.backend, DeviceBackend::Cuda { .. }));
            let recorded = recorded.map(|device| &device.id).chain(backends.keys());
            Arc::new(Tracer::new(traced.0, recorded, traced.1))
        });
        for device in used() {
            let trace = tracer.as_deref().map(Tracer::for_gpu);
            let opened = open(device, &memory, &workers, trace)?;
            backends.insert(device.id.clone(), opened);
        }
        connect(&backends)?;
        Ok(Devices { backends, tracer })
    }

    /// Gives each device the budget of another plan, which uses the same ones.
    pub fn resize(&self, plan: &Plan) {
        self.backend(&DeviceId::host()).memory().resize(plan.host.budget_bytes);
        for device in &plan.devices {
            if let Some(backend) = self.backends.get(&device.id) {
                backend.memory().resize(capacity(device));
            }
        }
    }

    /// At the start of a phase, lets someone else have what the plan's tests of failure say.
    pub fn take(&self, plan: &Plan, phase: Phase) {
        for device in &plan.devices {
            if let DeviceBackend::Virtual { faults, .. } = &device.backend
                && faults.taken_in == Some(phase)
                && let Some(backend) = self.backends.get(&device.id)
            {
                backend.memory().shrink(left(device, faults.taken_bytes));
            }
        }
    }

    /// A device of the plan.
    pub fn backend(&self, device: &DeviceId) -> &dyn Backend {
        self.backends[device].as_ref()
    }

    /// Who records what they do.
    pub fn tracer(&self) -> Option<&Arc<Tracer>> {
        self.tracer.as_ref()
    }

    /// Says that bytes of a device are freed, where that is recorded.
    pub fn free(&self, device: &DeviceId, bytes: Span) {
        if let Some(gpu) = self.backend(device).as_cuda() {
            gpu.record_free(bytes);
        } else if let Some(tracer) = self.tracer() {
            tracer.free(device, bytes);
        }
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&DeviceId, &dyn Backend)> {
        self.backends.iter().map(|(id, backend)| (id, backend.as_ref()))
    }

    /// Starts to copy between the arenas of two devices.
    pub fn copy(
        &self,
        [from, to]: [&DeviceId; 2],
        regions: [&Arc<Region>; 2],
        transfer: Transfer,
    ) -> Ticket {
        let (source, target) = (self.backend(from), self.backend(to));
        // The device that receives carries; the host has no engine of its own, and only a GPU
        // reaches its memory.
        let by_source = to.is_host() || source.as_cuda().is_some() && target.as_cuda().is_none();
        let (carrier, other) = if by_source { (source, target) } else { (target, source) };
        let after = [source, target].into_iter().filter_map(Backend::as_cuda);
        let after = match after.map(CudaDevice::departure).collect() {
            Ok(after) => after,
            Err(stopped) => return Ticket::ended(Err(stopped)),
        };
        let ends = [from, to];
        let [from, to] = regions.map(Arc::clone);
        let computed: Vec<Ticket> =
            [source, target].into_iter().filter_map(Backend::departure).collect();
        if carrier.as_cuda().is_some() {
            // Its streams know events only.
            for ticket in &computed {
                if let Err(stopped) = ticket.wait() {
                    return Ticket::ended(Err(stopped));
                }
            }
        }
        let other_link = other.link().cloned();
        let copy = RegionCopy { from, to, transfer, other_link, after, computed };
        let event = self.tracer().and_then(|tracer| {
            let [reads, writes] = copy.spans();
            tracer.copy(carrier.memory().device(), ends, &reads, &writes)
        });
        carrier.copy(copy).with_event(event)
    }
}

/// What the planner hears of a GPU that does not open.
fn open_failure(id: &DeviceId, error: OpenError) -> Failure {
    match error {
        OpenError::Stopped(stopped) => stopped.into(),
        OpenError::NoGpu(why) => Stopped::DeviceFailed { device: id.clone(), why }.into(),
        OpenError::Driver(error) => Stopped::driver(id, &error).into(),
    }
}

/// Lets GPUs reach each other's memory directly, where the machine can.
fn connect(backends: &BTreeMap<DeviceId, Box<dyn Backend>>) -> Result<(), Failure> {
    let gpus = || backends.values().filter_map(|backend| backend.as_cuda());
    for one in gpus() {
        for other in gpus() {
            let reached = one.gpu().reach(other.gpu());
            let reached = reached.map_err(|why| Stopped::driver(one.memory().device(), &why))?;
            let [one, other] = [one, other].map(|device| device.memory().device());
            tracing::debug!(
                "{one} reaches {other} {}",
                if reached { "directly" } else { "through the host" }
            );
        }
    }
    Ok(())
}

/// What is left of a device's budget once someone else took so much of it.
fn left(device: &DevicePlan, taken: Bytes) -> Bytes {
    device.budget_bytes.min(device.free_bytes.saturating_sub(taken))
}

/// The most that a plan may have of a device when it is loaded.
fn capacity(device: &DevicePlan) -> Bytes {
    match &device.backend {
        DeviceBackend::Virtual { faults, .. } if faults.taken_in.is_none() => {
            left(device, faults.taken_bytes)
        }
        DeviceBackend::Virtual { .. } | DeviceBackend::Cuda { .. } => device.budget_bytes,
    }
}

fn open(
    device: &DevicePlan,
    host: &Arc<Memory>,
    workers: &Arc<Workers>,
    trace: Option<GpuTrace>,
) -> Result<Box<dyn Backend>, Failure> {
    let sizes = [capacity(device), device.overhead_bytes, device.pinned_bytes];
    open_device(&device.id, &device.backend, sizes, host, workers, trace)
}

/// Opens a device of which at most `capacity` may be used, with what its context takes of that;
/// `pinned` is taken of the host. What a GPU is given is recorded where a trace is given.
///
/// # Errors
/// `PlanRefused` for a device that this executor does not compute on, `OutOfMemory`.
pub fn open_device(
    id: &DeviceId,
    backend: &DeviceBackend,
    [capacity, overhead_bytes, pinned]: [Bytes; 3],
    host: &Arc<Memory>,
    workers: &Arc<Workers>,
    trace: Option<GpuTrace>,
) -> Result<Box<dyn Backend>, Failure> {
    match backend {
        DeviceBackend::Virtual { link_bytes_per_s, faults, speed, threads, .. } => {
            let own_threads = threads.unwrap_or(0) as usize;
            if own_threads > workers.count() {
                // Workspaces are made for as many threads as the host's.
                let host_threads = workers.count();
                return Err(refused(format!(
                    "{id} has {own_threads} threads of its own, more than the host's {host_threads}"
                )));
            }
            let memory = Memory::new(id.clone(), capacity, faults.fail_allocation);
            let staging = Region::allocate(host, &format!("staging of {id}"), pinned)?;
            let properties = VirtualProperties {
                overhead_bytes,
                link_bytes_per_s: *link_bytes_per_s,
                faults: *faults,
                speed: *speed,
                threads: threads.map(|threads| threads as usize),
            };
            let (staging, workers) = (Arc::new(staging), Arc::clone(workers));
            Ok(Box::new(VirtualDevice::open(memory, properties, &staging, workers)?))
        }
        DeviceBackend::Cuda { uuid, .. } => {
            let memory = Memory::new(id.clone(), capacity, None);
            let sizes = [overhead_bytes, pinned];
            let opened = CudaDevice::open(memory, uuid.as_deref(), sizes, host, trace);
            Ok(Box::new(opened.map_err(|error| open_failure(id, error))?))
        }
    }
}
