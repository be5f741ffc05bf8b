//! What the daemon's threads share of the host: its profile with what was measured on it, the
//! models by name with what is known of their files, and what each slot has loaded.
//!
//! It starts nothing and decides nothing. Each thread takes what it needs as a value, so that no
//! lock is held while anything computes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use protocol::{Bytes, DeviceId, JobShape, ModelDescription, ModelSource, Plan};

use super::conditioning::ConditioningCache;
use super::described::{DescribeError, DescribedModel};
use super::desk::event::{FreeMemory, SlotFree, SlotId};
use super::desk::job::JobError;
use super::failures::{no_model, of_request};
use super::held::{HeldPlans, OtherPlans};
use super::outages::Outages;
use crate::budget::Margins;
use crate::engine::host::{Host, SetupError};
use crate::engine::idle::IdleInventory;
use crate::engine::session::{ExecutorProgram, Session};
use crate::engine::warm::Loaded;
use crate::inventory::{Device, Inventory};
use crate::job::model::ModelName;
use crate::job::{JobRequest, PreparedJob};
use crate::planning::{self, FailedDevice};
use crate::policy::{Objective, PolicyText};

/// Most models that are remembered: a daemon serves tens.
const MODELS_MAX: usize = 256;

/// The host as all threads see it.
#[derive(Debug)]
pub struct ServedHost {
    host: RwLock<Arc<Host>>,
    /// The models that can be asked for, by name.
    models: RwLock<Arc<BTreeMap<String, ModelSource>>>,
    /// The sizes that some of them are placed for, in pixels.
    plan_for: RwLock<BTreeMap<String, [u32; 2]>>,
    /// The daemon's policy, under a request's and over the host profile's.
    policy: PolicyText,
    /// How executors are started.
    pub program: ExecutorProgram,
    /// What text encoders gave for the prompts of earlier jobs.
    pub conditioning: ConditioningCache,
    described: Mutex<Vec<Arc<DescribedModel>>>,
    /// How often a description has changed.
    descriptions: AtomicU64,
    held: Mutex<HeldPlans>,
    idle: Mutex<IdleInventory>,
    outages: Mutex<Outages>,
}

impl ServedHost {
    /// A host with the daemon's policy, and no models yet.
    pub fn new(host: Host, policy: PolicyText, program: ExecutorProgram) -> ServedHost {
        ServedHost {
            conditioning: ConditioningCache::new(host.conditioning_cache),
            host: RwLock::new(Arc::new(host)),
            models: RwLock::default(),
            plan_for: RwLock::default(),
            policy,
            program,
            described: Mutex::default(),
            descriptions: AtomicU64::new(0),
            held: Mutex::default(),
            idle: Mutex::default(),
            outages: Mutex::default(),
        }
    }

    /// The host, with what was measured of it by now.
    pub fn host(&self) -> Arc<Host> {
        Arc::clone(&self.host.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// After a run has taught something: reads again what was measured.
    pub fn learn_anew(&self) {
        let host = Arc::new(self.host().measured_now());
        if let Some(ignored) = &host.ignored {
            tracing::warn!(%ignored, "what was measured cannot be read again");
        }
        *self.host.write().unwrap_or_else(PoisonError::into_inner) = host;
    }

    /// What plans leave free of each device, in their order; empty where the policy names other
    /// devices than these.
    pub fn margins(&self, devices: &[Device]) -> Vec<Bytes> {
        let below = self.policy.clone().over(&self.host().profile.profile.policy);
        let margins = below.margin.as_deref().map(Margins::parse);
        let margins = margins.transpose().ok().map(Option::unwrap_or_default);
        margins.and_then(|margins| margins.of(devices).ok()).unwrap_or_default()
    }

    /// From now on these are the models, and the sizes that some of them are placed for.
    pub fn set_models(
        &self,
        models: BTreeMap<String, ModelSource>,
        plan_for: BTreeMap<String, [u32; 2]>,
    ) {
        *self.plan_for.write().unwrap_or_else(PoisonError::into_inner) = plan_for;
        *self.models.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(models);
    }

    /// The job for which a model is placed before it is loaded for this one: as this one, of the
    /// size that the model's configuration names. `None` where it names none, or this job is
    /// larger.
    pub fn placed_for(&self, name: &str, job: &JobShape) -> Option<JobShape> {
        let sizes = self.plan_for.read().unwrap_or_else(PoisonError::into_inner);
        let [width, height] = *sizes.get(name)?;
        let pixels = |width: u32, height: u32| u64::from(width) * u64::from(height);
        let is_within = job.batch == 1 && pixels(job.width, job.height) <= pixels(width, height);
        is_within.then(|| JobShape { width, height, ..job.clone() })
    }

    /// A request looked at, its model by its files.
    ///
    /// # Errors
    /// There is no such model, or something of the request makes no sense.
    pub fn prepare(&self, request: &JobRequest, host: &Host) -> Result<PreparedJob, JobError> {
        let models = Arc::clone(&self.models.read().unwrap_or_else(PoisonError::into_inner));
        let mut request = request.clone();
        if let ModelName::Name(name) = &request.model {
            let source = models.get(name);
            let source = source.ok_or_else(|| no_model(name, models.keys().cloned().collect()))?;
            // A picture names its model by files: they are the same to who makes it again.
            request.model = ModelName::Files(source.clone());
        }
        let mut below = self.policy.clone().over(&host.profile.profile.policy);
        // The next job comes on the same executor, where nobody says otherwise.
        below.optimize.get_or_insert_with(|| Objective::Throughput.name().to_owned());
        request.prepare(&BTreeMap::new(), &below).map_err(|error| of_request(&error))
    }

    /// What is in a model: as it is known, while its files stay as they were, or asked of an
    /// executor.
    ///
    /// # Errors
    /// Something is wrong with its files, or the executor failed.
    pub fn describe(
        &self,
        session: &mut Session,
        model: &ModelSource,
    ) -> Result<Arc<DescribedModel>, DescribeError> {
        let is_it = |known: &Arc<DescribedModel>| known.description.model == *model;
        let known = lock(&self.described).iter().find(|known| is_it(known)).cloned();
        if let Some(known) = known.filter(|known| known.is_current()) {
            return known.sound();
        }
        let found = Arc::new(DescribedModel::of(planning::inspect(session, model, true)?));
        let mut described = lock(&self.described);
        described.retain(|known| !is_it(known));
        if described.len() == MODELS_MAX {
            described.remove(0);
        }
        described.push(Arc::clone(&found));
        drop(described);
        self.descriptions.fetch_add(1, Ordering::SeqCst);
        found.sound()
    }

    /// How often any description has changed: whoever shows them looks again when it is another.
    pub fn descriptions(&self) -> u64 {
        self.descriptions.load(Ordering::SeqCst)
    }

    /// What was last found in the model of a name, sound or not; `None` where nobody has looked.
    pub fn description_of(&self, name: &str) -> Option<Arc<ModelDescription>> {
        let source = self.source_of(name)?;
        let described = lock(&self.described);
        let known = described.iter().find(|known| known.description.model == source)?;
        Some(Arc::clone(&known.description))
    }

    /// Where the model of a name is, from the root; `None` where nothing is there.
    pub fn source_of(&self, name: &str) -> Option<ModelSource> {
        let models = Arc::clone(&self.models.read().unwrap_or_else(PoisonError::into_inner));
        ModelName::Name(name.to_owned()).source(&models).ok()
    }

    /// Models that nobody has looked into yet, by name.
    pub fn undescribed(&self) -> Vec<String> {
        let models = Arc::clone(&self.models.read().unwrap_or_else(PoisonError::into_inner));
        models.keys().filter(|name| self.description_of(name).is_none()).cloned().collect()
    }

    /// What a slot has loaded.
    pub fn loaded(&self, slot: SlotId) -> Option<Arc<Loaded>> {
        lock(&self.held).loaded.get(&slot).cloned()
    }

    /// What all slots have loaded.
    pub fn all_loaded(&self) -> Vec<Arc<Loaded>> {
        lock(&self.held).loaded.values().cloned().collect()
    }

    /// What all slots but some hold, and whether they run.
    pub fn others(&self, left_out: &[SlotId]) -> OtherPlans {
        lock(&self.held).others(left_out)
    }

    /// What would be free if no executor of this daemon held anything. `own` is the slot that asks,
    /// where that is about to run, with what it holds.
    ///
    /// # Errors
    /// The host's memory cannot be read.
    pub fn inventory_if_idle(
        &self,
        own: Option<(SlotId, Option<&Plan>)>,
    ) -> Result<Inventory, SetupError> {
        let slot = own.map(|(slot, _)| slot);
        let look = || {
            let held = lock(&self.held);
            let others = held.others(slot.as_slice());
            (held.runs_beside(slot), others)
        };
        let (ran, before) = look();
        let mut idle = before.that(false);
        idle.extend(own.and_then(|(_, plan)| plan));
        let now = self.host().inventory_without(&idle)?;
        let (runs, after) = look();
        let changed = before.claims != after.claims || ran != runs;
        let is_here = self.host().profile.profile.memory_is_here();
        Ok(lock(&self.idle).seen(now, &before.that(true), ran || changed, is_here))
    }

    /// The last of these that was read while nothing ran, if any was.
    pub fn last_idle_inventory(&self) -> Option<Inventory> {
        lock(&self.idle).last()
    }

    /// What each loaded model could have of an inventory that was read while nothing ran.
    pub fn free_for_slots(&self, inventory: &Inventory) -> Vec<SlotFree> {
        let loaded = lock(&self.held).loaded.clone();
        let host = self.host();
        let slots = loaded.iter().map(|(slot, own)| {
            let others = loaded.iter().filter(|(other, _)| *other != slot);
            let others: Vec<&Plan> = others.map(|(_, loaded)| &loaded.plan).collect();
            let now = host.free_for(inventory, &own.plan, &others);
            SlotFree { slot: *slot, memories: memories(&own.inventory, &now) }
        });
        slots.collect()
    }

    /// A slot's idle executor has ended by itself.
    pub fn lost(&self, slot: SlotId) {
        lock(&self.held).loaded.remove(&slot);
    }

    /// A device of a plan has failed: jobs do without it for a while.
    pub fn device_failed(&self, inventory: &Inventory, device: &DeviceId, because: &str) {
        let Some(found) = inventory.device(&device.0) else { return };
        lock(&self.outages).failed(&found.lasting_name(), because, Instant::now());
    }

    /// A job was done by a plan: the devices that it used are sound.
    pub fn devices_worked(&self, inventory: &Inventory, plan: &Plan) {
        let used =
            inventory.devices.iter().filter(|device| plan.uses(&DeviceId(device.id.clone())));
        for device in used {
            lock(&self.outages).worked(&device.lasting_name());
        }
    }

    /// The devices that jobs do without now.
    pub fn failed_devices(&self, inventory: &Inventory) -> Vec<FailedDevice> {
        let failed = |device: &Device| {
            let (_, message) = self.outage(device)?;
            Some(FailedDevice { device: DeviceId(device.id.clone()), message })
        };
        inventory.devices.iter().filter_map(failed).collect()
    }

    /// For how long jobs do without a device, and why; `None` where they do not.
    pub fn outage(&self, device: &Device) -> Option<(Duration, String)> {
        let outages = lock(&self.outages);
        let (left, because) = outages.left(&device.lasting_name(), Instant::now())?;
        Some((left, because.to_owned()))
    }

    /// Whether anything runs.
    pub fn is_running(&self) -> bool {
        lock(&self.held).runs()
    }

    /// Something begins to run, or to be ended.
    pub fn begin(&self, slot: SlotId) {
        lock(&self.held).begin(slot);
    }

    /// A slot is about to run by a plan; false where that is in another run's way.
    pub fn claim(&self, slot: SlotId, plan: &Plan, claims: u64) -> bool {
        lock(&self.held).claim(slot, plan, claims)
    }

    /// It has ended, and this is what the slot has loaded from then on.
    pub fn end(&self, slot: SlotId, loaded: Option<Loaded>) {
        lock(&self.held).end(slot, loaded);
    }
}

/// What was free of each memory that is still here, and what is.
fn memories(planned: &Inventory, now: &Inventory) -> Vec<FreeMemory> {
    let devices = now.devices.iter().filter_map(|device| {
        let planned = planned.device(&device.id)?.free_bytes;
        Some(FreeMemory { planned, now: device.free_bytes })
    });
    let host = FreeMemory { planned: planned.host.available_bytes, now: now.host.available_bytes };
    devices.chain([host]).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
