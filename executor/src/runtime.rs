//! The runtime: a loaded plan, and the only place that allocates.
//!
//! ```text
//! Runtime::load(plan, …)  devices opened, resident weights loaded
//!   └ enter(phase)        lazy weights loaded, one arena for each device that computes
//!       └ component(name) its inputs written, its schedule run, its outputs read; nothing allocated
//!   └ leave()             arenas and lazy weights freed; the phase's peaks recorded
//! ```
//! Invariants: every allocation has the size that the plan states, so a plan either fits as a whole or is
//! refused; a plan is never adjusted.

mod accounts;
mod verify;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use protocol::plan::{DeviceBackend, DevicePlan};
use protocol::{Bytes, DeviceId, Failure, Phase, Placement, Plan, Residency};

pub use accounts::Accounts;
pub use verify::verify;

use crate::backend::kernels::Workers;
use crate::backend::{
    Backend, Call, CancelFlag, HostBackend, Memory, Region, VirtualDevice, WeightMove, WeightPlace,
};
use crate::failure::{internal, refused};
use crate::job::JobBuffers;
use crate::models::Model;
use crate::schedule::Schedule;
use crate::weights::WeightFiles;

/// A plan with everything that it asked for in place.
pub struct Runtime {
    /// The plan.
    pub plan: Plan,
    /// The model.
    pub model: Arc<Model>,
    backends: BTreeMap<DeviceId, Box<dyn Backend>>,
    components: Vec<Component>,
    arenas: BTreeMap<DeviceId, Arc<Region>>,
    accounts: Accounts,
}

struct Component {
    name: String,
    phase: Phase,
    device: DeviceId,
    residency: Residency,
    schedule: Schedule,
    files: Arc<WeightFiles>,
    weights: Option<Arc<Region>>,
}

impl Runtime {
    /// Opens the devices of a plan that the checker has passed, and loads what is resident.
    ///
    /// # Errors
    /// `PlanRefused` where the plan disagrees with its own schedule on `model`, `BadModel`,
    /// `OutOfMemory`, `Cancelled`.
    pub fn load(plan: Plan, model: Arc<Model>, cancel: &CancelFlag) -> Result<Runtime, Failure> {
        let schedules = verify::schedules(&plan, &model)?;
        verify::compare(&plan, &model, &schedules)?;

        let threads = plan.host.threads as usize;
        let workers = Arc::new(Workers::new(threads).map_err(internal)?);
        let mut backends: BTreeMap<DeviceId, Box<dyn Backend>> = BTreeMap::new();
        let memory = Memory::new(DeviceId::host(), plan.host.budget_bytes, None);
        backends.insert(DeviceId::host(), Box::new(HostBackend::new(memory, Arc::clone(&workers))));
        for device in used_devices(&plan) {
            backends.insert(device.id.clone(), open(device, &workers)?);
        }
        let components =
            plan.components.iter().zip(schedules).map(|(component, schedule)| Component {
                name: component.name.clone(),
                phase: component.phase,
                device: component.devices[0].clone(),
                residency: component.residency,
                schedule,
                files: Arc::clone(model.files(&component.name)),
                weights: None,
            });
        let components = components.collect();
        let accounts = Accounts::default();
        let arenas = BTreeMap::new();
        let mut runtime = Runtime { plan, model, backends, components, arenas, accounts };
        runtime.load_weights(cancel, |component| component.residency == Residency::Resident)?;
        Ok(runtime)
    }

    /// Loads the phase's lazy weights and allocates its arenas.
    pub fn enter(&mut self, phase: Phase, cancel: &CancelFlag) -> Result<(), Failure> {
        assert!(self.arenas.is_empty(), "a phase was entered before the last one was left");
        self.model.check_unchanged()?;
        for backend in self.backends.values() {
            backend.memory().restart_peak();
        }
        self.load_weights(cancel, |component| {
            component.residency == Residency::Lazy && component.phase == phase
        })?;
        let mut sizes: BTreeMap<DeviceId, Bytes> = BTreeMap::new();
        for component in self.components.iter().filter(|component| component.phase == phase) {
            let size = sizes.entry(component.device.clone()).or_default();
            *size = (*size).max(component.schedule.arena_bytes);
        }
        for (device, bytes) in sizes {
            let memory = self.backends[&device].memory();
            let arena = Region::allocate(memory, &format!("{phase} arena"), bytes)?;
            self.arenas.insert(device, Arc::new(arena));
        }
        Ok(())
    }

    /// Frees what [`Runtime::enter`] allocated, and records what the phase used.
    pub fn leave(&mut self, phase: Phase) {
        for (device, backend) in &self.backends {
            self.accounts.record_peak(device, phase, backend.memory().peak());
        }
        self.free();
    }

    /// Records how long a phase computed, in milliseconds.
    pub fn record_ms(&mut self, phase: Phase, ms: f64) {
        self.accounts.record_ms(phase, ms);
    }

    /// Frees after a failed or cancelled phase, and forgets what was measured.
    pub fn abandon(&mut self) {
        self.free();
        self.accounts = Accounts::default();
    }

    fn free(&mut self) {
        self.arenas.clear();
        for component in self.components.iter_mut().filter(|c| c.residency == Residency::Lazy) {
            component.weights = None;
        }
    }

    /// Goes through all phases without computing, so that what the plan allocates can be measured.
    pub fn rehearse(&mut self, cancel: &CancelFlag) -> Result<(), Failure> {
        let layout = self.model.job_layout(&self.plan.job);
        let _buffers = JobBuffers::allocate(&layout, self.host_memory())?;
        for phase in Phase::TIMELINE {
            self.enter(phase, cancel)?;
            self.leave(phase);
        }
        Ok(())
    }

    /// A component of the phase that was entered.
    pub fn component(&self, name: &str) -> Bound<'_> {
        let component =
            self.components.iter().find(|c| c.name == name).expect("the plan has every component");
        Bound {
            component,
            backend: self.backends[&component.device].as_ref(),
            arena: self.arenas.get(&component.device).expect("the component's phase was entered"),
        }
    }

    /// The host's account, for what a job holds outside of phases.
    pub fn host_memory(&self) -> &Arc<Memory> {
        self.backends[&DeviceId::host()].memory()
    }

    /// What was measured so far; starts anew.
    pub fn take_accounts(&mut self) -> Accounts {
        std::mem::take(&mut self.accounts)
    }

    fn load_weights(
        &mut self,
        cancel: &CancelFlag,
        wanted: impl Fn(&Component) -> bool,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        for component in self.components.iter_mut().filter(|component| wanted(component)) {
            let backend = &self.backends[&component.device];
            let schedule = &component.schedule;
            let name = format!("{} weights", component.name);
            let region =
                Arc::new(Region::allocate(backend.memory(), &name, schedule.weights_bytes)?);
            backend.load(&component.files, moves(schedule), &region, cancel)?;
            component.weights = Some(region);
        }
        self.accounts.load_ms += start.elapsed().as_secs_f64() * 1e3;
        Ok(())
    }
}

/// Where each weight of a schedule goes.
fn moves(schedule: &Schedule) -> Vec<WeightMove> {
    let place = |(index, weight): (usize, &crate::graph::Weight)| WeightMove {
        tensor: weight.tensor,
        offset: schedule.weight_offset(crate::graph::WeightId(index)),
    };
    schedule.graph.weights.iter().enumerate().map(place).collect()
}

fn used_devices(plan: &Plan) -> impl Iterator<Item = &DevicePlan> {
    let used = |device: &&DevicePlan| {
        plan.components
            .iter()
            .any(|c| c.placement != Placement::Host && c.devices.contains(&device.id))
    };
    plan.devices.iter().filter(used)
}

fn open(device: &DevicePlan, workers: &Arc<Workers>) -> Result<Box<dyn Backend>, Failure> {
    match &device.backend {
        DeviceBackend::Virtual { link_bytes_per_s, fail_allocation } => {
            let memory = Memory::new(device.id.clone(), device.budget_bytes, *fail_allocation);
            let workers = Arc::clone(workers);
            let opened =
                VirtualDevice::open(memory, device.overhead_bytes, *link_bytes_per_s, workers);
            Ok(Box::new(opened?))
        }
        DeviceBackend::Cuda { .. } => Err(refused(format!(
            "{} is a CUDA device, and this executor computes on the host and on virtual devices only",
            device.id
        ))),
    }
}

/// A component in its phase, ready to run.
pub struct Bound<'a> {
    component: &'a Component,
    backend: &'a dyn Backend,
    arena: &'a Arc<Region>,
}

impl Bound<'_> {
    /// Writes one batch item of a floating-point input, or the whole of one without items.
    pub fn write(&self, port: &str, item: usize, values: &[f32]) {
        self.write_bytes(port, item, bytemuck::cast_slice(values));
    }

    /// Writes token ids.
    pub fn write_ids(&self, port: &str, ids: &[i32]) {
        self.write_bytes(port, 0, bytemuck::cast_slice(ids));
    }

    fn write_bytes(&self, port: &str, item: usize, source: &[u8]) {
        let schedule = &self.component.schedule;
        let value = schedule.graph.input(port);
        let size = schedule.graph.value(value).bytes();
        let start = Bytes((item * source.len()) as u64);
        assert!(start + Bytes(source.len() as u64) <= size, "more than input {port} holds");
        self.backend.write(self.arena, schedule.value_offset(value) + start, source);
    }

    /// Reads a whole output.
    pub fn read(&self, port: &str, values: &mut [f32]) {
        let schedule = &self.component.schedule;
        let value = schedule.graph.output(port);
        assert_eq!(schedule.graph.value(value).elements(), values.len(), "size of output {port}");
        let target = bytemuck::cast_slice_mut(values);
        self.backend.read(self.arena, schedule.value_offset(value), target);
    }

    /// Runs the component once.
    pub fn run(&self, cancel: &CancelFlag) -> Result<(), Failure> {
        let weights = match &self.component.weights {
            Some(region) => WeightPlace::Region(region),
            None => {
                assert_eq!(self.component.residency, Residency::Mapped, "weights were not loaded");
                WeightPlace::Mapped
            }
        };
        let call = Call {
            schedule: &self.component.schedule,
            arena: self.arena,
            weights,
            files: &self.component.files,
        };
        Ok(self.backend.run(&call, cancel)?)
    }
}
