//! The runtime: a loaded plan, and the only place that allocates.
//!
//! ```text
//! Runtime::load(plan, …)  devices opened, resident weights allocated and on their way
//!  or follow(plan, …)     the loaded plan's weights kept, only what is new loaded
//!   └ enter(phase)        its weights waited for; an arena for each device that computes, rings
//!                         started; the next phase's weights on their way, where the plan says so
//!       └ component(name) its inputs written, its program run, its outputs read; nothing allocated
//!   └ leave()             arenas, rings and lazy weights freed; the phase's peaks recorded
//! ```
//! Invariants: every allocation has the size that the plan states, so a plan either fits as a whole
//! or is refused; a plan is never adjusted. Nothing is freed before the copies that touch it have
//! ended.

mod accounts;
mod bound;
mod buffers;
mod component;
mod devices;
mod gpus;
mod verify;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use protocol::check::check_keeps;
use protocol::usage::IdleUsage;
use protocol::{Bytes, DeviceId, Failure, Phase, Plan, UsageReport};

pub use accounts::Accounts;
pub use bound::{Bound, PASSES_MAX};
pub use buffers::JobBuffers;
pub use component::Component;
pub use devices::{Devices, Traced, open_device};
pub use verify::{Scheduled, parts, schedules, verify};
pub use watched::WatchedFiles;

use crate::backend::memory::Charge;
use crate::backend::{CancelFlag, CudaDevice, Memory, Region};
use crate::failure::refused;
use crate::models::Model;

/// A plan with everything that it asked for in place.
pub struct Runtime {
    /// What is carried out.
    pub plan: Plan,
    /// What its graphs and names are from.
    pub model: Arc<dyn Model>,
    // Before the devices, whose engines end what these have on its way.
    components: Vec<Component>,
    arenas: BTreeMap<DeviceId, Arc<Region>>,
    devices: Devices,
    accounts: Accounts,
    /// The files that it reads, looked at as they are read.
    pub watched: WatchedFiles,
    _changed: Charge,
}

impl Runtime {
    /// Opens the devices of a plan that the checker has passed, and loads what is resident.
    ///
    /// # Errors
    /// `PlanRefused` where the plan disagrees with its own schedule on `model`, `BadModel`,
    /// `OutOfMemory`, `DeviceFailed`, `Cancelled`.
    pub fn load(
        plan: Plan,
        model: Arc<dyn Model>,
        cancel: &CancelFlag,
    ) -> Result<Runtime, Failure> {
        Runtime::load_traced(plan, model, cancel, None)
    }

    /// As [`Runtime::load`], with all that happens recorded in a trace where one is given.
    pub fn load_traced(
        plan: Plan,
        model: Arc<dyn Model>,
        cancel: &CancelFlag,
        trace: Option<Traced<'_>>,
    ) -> Result<Runtime, Failure> {
        if let Some(storage) = plan.options.weights_as {
            return Err(refused(format!(
                "the plan is for weights stored in {storage}, and was made for files that are not there; hint: make one without --weights-as"
            )));
        }
        let schedules = schedules(&plan, &*model)?;
        verify::compare(&plan, &*model, &schedules)?;
        for component in &plan.components {
            model.files(&component.name).advise(plan.mapping_policy)?;
        }
        let devices = Devices::open(&plan, trace)?;
        let host = devices.backend(&DeviceId::host()).memory();
        let changed = host.charge("weights changed by LoRA", plan.host.changed_bytes)?;
        let components = components(&plan, &*model, schedules);
        let mut runtime = Runtime {
            plan,
            model,
            components,
            arenas: BTreeMap::new(),
            devices,
            accounts: Accounts::default(),
            watched: WatchedFiles::default(),
            _changed: changed,
        };
        runtime.load_held(cancel)?;
        Ok(runtime)
    }

    /// Goes on by another plan, which keeps the weights that this one holds: nothing is loaded but
    /// for components that only the new plan has, and arenas, slots and the job's buffers are made
    /// when a job runs.
    ///
    /// # Errors
    /// As [`Runtime::load`]'s; `PlanRefused` also where the plan does not leave all that is held
    /// where it lies. Everything is freed then.
    pub fn follow(self, plan: Plan, cancel: &CancelFlag) -> Result<Runtime, Failure> {
        check_keeps(&plan, &self.plan).map_err(refused)?;
        let schedules = schedules(&plan, &*self.model)?;
        verify::compare(&plan, &*self.model, &schedules)?;
        let mut following = components(&plan, &*self.model, schedules);
        let mut before = self.components;
        for component in &mut following {
            match before.iter_mut().find(|before| before.name == component.name) {
                Some(before) => {
                    component.check_keeps(before).map_err(refused)?;
                    component.keep_weights_of(before);
                }
                None => component.files.advise(plan.mapping_policy)?,
            }
        }
        drop(before);
        self.devices.resize(&plan);
        let mut runtime = Runtime { plan, components: following, ..self };
        runtime.load_held(cancel)?;
        Ok(runtime)
    }

    /// Loads what is resident and not there yet, and waits for what is not prefetched.
    fn load_held(&mut self, cancel: &CancelFlag) -> Result<(), Failure> {
        let start = Instant::now();
        let Runtime { components, devices, .. } = self;
        components.iter_mut().try_for_each(|component| component.load_resident(devices))?;
        // What is prefetched is waited for when its phase is entered.
        let mut now = components.iter_mut().filter(|component| !component.prefetch);
        now.try_for_each(|component| component.settle(devices, cancel))?;
        self.accounts.load_ms += start.elapsed().as_secs_f64() * 1e3;
        Ok(())
    }

    /// What a job used that took so long, and what stays allocated now that its buffers are gone;
    /// starts to measure anew.
    pub fn report(&mut self, total_ms: f64) -> UsageReport {
        let mut usage = self.take_accounts().report(&self.plan, total_ms);
        for used in &mut usage.devices {
            let planned = self.plan.devices.iter().find(|device| device.id == used.id);
            used.idle = Some(IdleUsage {
                predicted_bytes: planned.map_or(self.plan.host.idle_bytes, |d| d.idle_bytes),
                measured_bytes: self.devices.backend(&used.id).memory().used(),
            });
        }
        usage
    }

    /// Waits for the phase's weights, allocates its arenas and rings, and sends those of the next
    /// one, if that is run, on their way where the plan says so.
    pub fn enter(
        &mut self,
        phase: Phase,
        next: Option<Phase>,
        cancel: &CancelFlag,
    ) -> Result<(), Failure> {
        assert!(self.arenas.is_empty(), "a phase was entered before the last one was left");
        self.model.check_unchanged()?;
        self.watched.look();
        self.devices.take(&self.plan, phase);
        for (_, backend) in self.devices.iter() {
            backend.memory().restart_peak();
        }
        let start = Instant::now();
        let Runtime { components, devices, arenas, .. } = self;
        let (now, later): (Vec<_>, Vec<_>) =
            components.iter_mut().partition(|component| component.phase == phase);
        let mut sizes: BTreeMap<DeviceId, Bytes> = BTreeMap::new();
        let mut now: Vec<&mut Component> = now;
        for component in &mut now {
            component.load_resident(devices)?;
            component.load_lazy(devices)?;
            for (device, bytes) in component.arenas() {
                let size = sizes.entry(device.clone()).or_default();
                *size = (*size).max(bytes);
            }
        }
        for (device, bytes) in sizes {
            let arena = devices.backend(&device).allocate(&format!("{phase} arena"), bytes)?;
            arenas.insert(device, arena);
        }
        for component in &mut now {
            component.settle(devices, cancel)?;
            component.enter(devices, arenas, cancel)?;
        }
        for component in later {
            if component.prefetch && next == Some(component.phase) {
                component.load_lazy(&self.devices)?;
            }
        }
        let waited = start.elapsed();
        tracing::debug!(%phase, ms = waited.as_millis() as u64, "entered");
        self.accounts.load_ms += waited.as_secs_f64() * 1e3;
        Ok(())
    }

    /// Frees what [`Runtime::enter`] allocated for the phase, and records what the phase used.
    pub fn leave(&mut self, phase: Phase) {
        for (device, backend) in self.devices.iter() {
            let peak = backend.memory().peak();
            tracing::debug!(%phase, %device, %peak, "leaves");
            self.accounts.record_peak(device, phase, peak);
            if let Some(busy) = backend.as_cuda().and_then(CudaDevice::take_busy) {
                self.accounts.record_busy(device, phase, busy);
            }
        }
        self.accounts.record_gpus(gpus::seen(&self.devices));
        let components = self.components.iter_mut();
        let devices = &self.devices;
        components.filter(|c| c.phase == phase).for_each(|component| component.leave(devices));
        self.free_arenas();
    }

    /// Records how long a phase computed, in milliseconds.
    pub fn record_ms(&mut self, phase: Phase, ms: f64) {
        self.accounts.record_ms(phase, ms);
    }

    /// Frees after a failed or cancelled phase, and forgets what was measured.
    pub fn abandon(&mut self) {
        let devices = &self.devices;
        self.components.iter_mut().for_each(|component| component.abandon(devices));
        self.free_arenas();
        // How long what was abandoned took is nobody's measure.
        drop(self.take_accounts());
        self.devices.iter().filter_map(|(_, backend)| backend.as_cuda()).for_each(|device| {
            device.take_busy();
        });
    }

    fn free_arenas(&mut self) {
        for (device, arena) in std::mem::take(&mut self.arenas) {
            self.devices.free(&device, arena.span());
        }
    }

    /// Goes through all phases without computing, so that what the plan allocates can be measured.
    pub fn rehearse(&mut self, cancel: &CancelFlag) -> Result<(), Failure> {
        let buffers = self.model.buffers(&self.plan.job, &self.plan.options)?;
        let _buffers = JobBuffers::allocate(&buffers, self.host_memory())?;
        for &phase in self.plan.job.timeline() {
            self.enter(phase, self.plan.job.phase_after(phase), cancel)?;
            self.leave(phase);
        }
        Ok(())
    }

    /// A component of the phase that was entered.
    pub fn component(&self, name: &str) -> Bound<'_> {
        let component = self.components.iter().find(|component| component.name == name);
        Bound::new(component.expect("the plan has every component"), &self.devices)
    }

    /// A component of the phase that was entered, for inputs of another size: by the graph's place
    /// among the model's.
    pub fn variant(&self, name: &str, variant: usize) -> Bound<'_> {
        self.component(name).variant(variant)
    }

    /// The host's account, for what a job holds outside of phases.
    pub fn host_memory(&self) -> &Arc<Memory> {
        self.devices.backend(&DeviceId::host()).memory()
    }

    /// The accounts of all devices and the host.
    pub fn memories(&self) -> impl Iterator<Item = &Arc<Memory>> {
        self.devices.iter().map(|(_, backend)| backend.memory())
    }

    /// What was measured so far; starts anew.
    pub fn take_accounts(&mut self) -> Accounts {
        let components = self.components.iter();
        let components = components.filter_map(|component| component.times.take(&component.name));
        self.accounts.components = components.collect();
        std::mem::take(&mut self.accounts)
    }
}

/// The components of a plan, without memory.
fn components(plan: &Plan, model: &dyn Model, schedules: Vec<Scheduled>) -> Vec<Component> {
    let planned = plan.components.iter().zip(schedules);
    let components = planned.map(|(component, scheduled)| {
        let files = Arc::clone(model.files(&component.name));
        Component::new(component, scheduled, files)
    });
    components.collect()
}
