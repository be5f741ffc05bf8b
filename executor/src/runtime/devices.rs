//! The opened devices of a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::plan::{DeviceBackend, DevicePlan};
use protocol::{Bytes, DeviceId, Failure, Phase, Plan};

use crate::backend::kernels::Workers;
use crate::backend::virtual_device::VirtualProperties;
use crate::backend::{Backend, HostBackend, Memory, Region, RegionCopy, Ticket, VirtualDevice};
use crate::failure::{internal, no_backend, refused};
use crate::race::{Edge, Trace, Tracer};
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
        for device in plan.devices.iter().filter(|device| plan.uses(&device.id)) {
            backends.insert(device.id.clone(), open(device, &memory, &workers)?);
        }
        let tracer = trace.map(|traced| Arc::new(Tracer::new(traced.0, backends.keys(), traced.1)));
        Ok(Devices { backends, tracer })
    }

    /// At the start of a phase, lets someone else have what the plan's tests of failure say.
    pub fn take(&self, plan: &Plan, phase: Phase) {
        for device in &plan.devices {
            if let DeviceBackend::Virtual { taken_bytes, taken_in: Some(when), .. } =
                &device.backend
                && *when == phase
                && let Some(backend) = self.backends.get(&device.id)
            {
                backend.memory().shrink(left(device, *taken_bytes));
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
        // The device that receives carries; the host has no engine of its own.
        let (carrier, other) = if to.is_host() { (source, target) } else { (target, source) };
        let ends = [from, to];
        let [from, to] = regions.map(Arc::clone);
        let copy = RegionCopy { from, to, transfer, other_link: other.link().cloned() };
        let event = self.tracer().map(|tracer| {
            let [reads, writes] = copy.spans();
            tracer.copy(carrier.memory().device(), ends, &reads, &writes)
        });
        carrier.copy(copy).with_event(event)
    }
}

/// What is left of a device's budget once someone else took so much of it.
fn left(device: &DevicePlan, taken: Bytes) -> Bytes {
    device.budget_bytes.min(device.free_bytes.saturating_sub(taken))
}

fn open(
    device: &DevicePlan,
    host: &Arc<Memory>,
    workers: &Arc<Workers>,
) -> Result<Box<dyn Backend>, Failure> {
    let capacity = match &device.backend {
        DeviceBackend::Virtual { taken_bytes, taken_in: None, .. } => left(device, *taken_bytes),
        DeviceBackend::Virtual { .. } | DeviceBackend::Cuda { .. } => device.budget_bytes,
    };
    let sizes = [capacity, device.overhead_bytes, device.pinned_bytes];
    open_device(&device.id, &device.backend, sizes, host, workers)
}

/// Opens a device of which at most `capacity` may be used, with what its context takes of that; `pinned` is taken
/// of the host.
///
/// # Errors
/// `PlanRefused` for a device that this executor does not compute on, `OutOfMemory`.
pub fn open_device(
    id: &DeviceId,
    backend: &DeviceBackend,
    [capacity, overhead_bytes, pinned]: [Bytes; 3],
    host: &Arc<Memory>,
    workers: &Arc<Workers>,
) -> Result<Box<dyn Backend>, Failure> {
    match backend {
        DeviceBackend::Virtual { link_bytes_per_s, fail_allocation, fail_copy, speed, .. } => {
            let memory = Memory::new(id.clone(), capacity, *fail_allocation);
            let staging = Region::allocate(host, &format!("staging of {id}"), pinned)?;
            let properties = VirtualProperties {
                overhead_bytes,
                link_bytes_per_s: *link_bytes_per_s,
                fail_copy: *fail_copy,
                speed: *speed,
            };
            let (staging, workers) = (Arc::new(staging), Arc::clone(workers));
            Ok(Box::new(VirtualDevice::open(memory, properties, &staging, workers)?))
        }
        DeviceBackend::Cuda { .. } => Err(refused(no_backend(id))),
    }
}
