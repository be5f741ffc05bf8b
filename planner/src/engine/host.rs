//! A host that runs jobs: its profile, what is free of it now, and what was measured on it.
//!
//! Made of plain data, whoever starts it. It knows no job until one is asked of it, and keeps
//! nothing of one but what its run taught: every run by a plan of our own teaches, once, by the
//! inventory that this plan was made for ([`Host::run`]); nobody else learns.

use std::path::Path;

use protocol::{Bytes, DeviceId, ModelDescription, ModelSource, Plan};

use super::events::{EventHandler, Events};
use super::lanes::Lanes;
use super::reservations::OtherReservations;
use super::room::{self, OtherPlan};
use super::supervise::{Inventorize, Outcome, Work, supervise};
use super::warm::{Holding, Warm, give_back};
use crate::budget::CapError;
use crate::calibration::{Calibration, Machine, Store, StoreError};
use crate::inventory::{Device, HostError, Inventory};
use crate::job::{JobEvent, PreparedJob, ResolvedJob};
use crate::planning::{PlanError, Request};
use crate::policy::pins::PinError;
use crate::policy::{Budgets, Policy};
use crate::profile::ProfileError;
use crate::profile::layers::{LayerFiles, Layered};
use crate::self_test::SelfTests;

/// The machine that jobs run on, or one that a profile describes.
#[derive(Debug)]
pub struct Host {
    /// The profile of all layers, its policy, and where it comes from.
    pub profile: Layered,
    /// What was measured before, and where it is kept.
    pub calibration: Calibration,
    /// Why the kept measurements are not used, where they are not.
    pub ignored: Option<StoreError>,
    /// What is known of its GPUs' kernels.
    pub self_tests: SelfTests,
    /// RAM in which this process keeps what text encoders gave: no plan has it.
    pub conditioning_cache: Bytes,
}

/// Why a host cannot be planned for.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A layer cannot be used.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The host's own facts.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A cap names a device that is not here, or is of another kind.
    #[error(transparent)]
    Cap(#[from] CapError),
    /// A pin names a device that is not here.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// An error of a policy that stands in several files, each of which was readable by itself.
    #[error("the flags over {files}: {error}")]
    Joined {
        /// The files under the flags.
        files: String,
        /// What is wrong.
        error: Box<SetupError>,
    },
    /// A GPU that the profile names is not here, and the plan is to be carried out.
    #[error(
        "{device} of the host profile: {why}; hint: `berth devices --host this-machine` lists what is here, `plan --dry-run` plans for what is not"
    )]
    Missing {
        /// Its name in the profile.
        device: String,
        /// Why it is not here, as a clause.
        why: String,
    },
}

impl Host {
    /// This machine, or the one of a host profile: a file, or the name of a shipped one.
    ///
    /// # Errors
    /// A profile cannot be used, or the machine's own facts cannot be read.
    pub fn open(profile: Option<&str>) -> Result<Host, SetupError> {
        let profile = Layered::load(&LayerFiles::of_this_process(), profile)?;
        let (calibration, ignored) = Calibration::read(Machine::this()?, Store::of_user());
        let Layered { files, host, .. } = &profile;
        tracing::debug!(?files, ?host, calibration = ?calibration.path(), "read profiles");
        let self_tests = SelfTests::under(calibration.path().and_then(Path::parent));
        Ok(Host { profile, calibration, ignored, self_tests, conditioning_cache: Bytes::ZERO })
    }

    /// What is, now, with what was measured of it; for a model also with its corrections.
    ///
    /// # Errors
    /// The host's memory cannot be read.
    pub fn inventory(&self, model: Option<&ModelSource>) -> Result<Inventory, SetupError> {
        self.inventory_beside(model, Holding::NOTHING)
    }

    /// The same for an executor that holds something: that is free for its next plan.
    fn inventory_beside(
        &self,
        model: Option<&ModelSource>,
        holding: Holding<'_>,
    ) -> Result<Inventory, SetupError> {
        let mut inventory = self.uncalibrated_beside(holding)?;
        let model = model.map(ModelSource::to_string);
        self.calibration.apply(&mut inventory, model.as_deref());
        Ok(inventory)
    }

    /// What would be if no executor of this process held anything: `held` are the plans that are
    /// loaded and idle, whose memory counts as free. What runs is not given back.
    ///
    /// # Errors
    /// The host's memory cannot be read.
    pub fn inventory_without(&self, held: &[&Plan]) -> Result<Inventory, SetupError> {
        self.looked_at(held, &OtherReservations::of_other_processes())
    }

    /// What is, now, as devices and profile say it.
    ///
    /// # Errors
    /// The host's memory cannot be read.
    pub fn uncalibrated(&self) -> Result<Inventory, SetupError> {
        self.uncalibrated_beside(Holding::NOTHING)
    }

    fn uncalibrated_beside(&self, holding: Holding<'_>) -> Result<Inventory, SetupError> {
        let others = OtherReservations::of_this_host(holding.reservation);
        self.looked_at(holding.plan.as_slice(), &others)
    }

    /// What is, now, with what idle plans hold given back, and what others have planned taken off.
    fn looked_at(
        &self,
        held: &[&Plan],
        others: &OtherReservations,
    ) -> Result<Inventory, SetupError> {
        let profile = &self.profile.profile;
        let mut inventory = profile.inventory()?;
        self.count_free(&mut inventory, held, others);
        let free = inventory.devices.iter().map(|device| (&device.id, device.free_bytes));
        let free: Vec<String> = free.map(|(id, bytes)| format!("{id} {bytes}")).collect();
        tracing::debug!(host = %inventory.host.available_bytes, devices = ?free, "free now");
        Ok(inventory)
    }

    /// An inventory that was read while nothing ran, as it is for a loaded plan: what that holds
    /// is free, what `others` of this process hold is not.
    pub fn free_for(&self, inventory: &Inventory, own: &Plan, others: &[&Plan]) -> Inventory {
        let mut inventory = inventory.clone();
        let held: Vec<&Plan> = [own].into_iter().chain(others.iter().copied()).collect();
        self.count_free(&mut inventory, &held, &OtherReservations::of_other_processes());
        room::leave_to_others(&mut inventory, others, self.profile.profile.memory_is_here());
        inventory
    }

    fn count_free(&self, inventory: &mut Inventory, held: &[&Plan], others: &OtherReservations) {
        let is_here = self.profile.profile.memory_is_here();
        for plan in held {
            give_back(plan, inventory, is_here);
        }
        others.take_from(inventory, is_here);
        let host = &mut inventory.host;
        host.available_bytes = host.available_bytes.saturating_sub(self.conditioning_cache);
    }

    /// The same host with what was measured by now.
    pub fn measured_now(&self) -> Host {
        let profile = self.profile.clone();
        let (calibration, ignored) = self.calibration.read_again();
        let self_tests = self.self_tests.clone();
        let conditioning_cache = self.conditioning_cache;
        Host { profile, calibration, ignored, self_tests, conditioning_cache }
    }

    /// What may be used of an inventory.
    ///
    /// # Errors
    /// A cap names a device that the inventory does not have.
    pub fn budgets(&self, policy: &Policy, inventory: &Inventory) -> Result<Budgets, SetupError> {
        policy.budgets(inventory).map_err(|error| self.joined(error.into()))
    }

    /// Checks what a policy says of devices before anything starts.
    ///
    /// # Errors
    /// A cap or a pin names a device that is not here.
    pub fn check(&self, policy: &Policy) -> Result<(), SetupError> {
        let inventory = self.inventory(None)?;
        self.budgets(policy, &inventory)?;
        policy.pins.named(&inventory).map(drop).map_err(|error| self.joined(error.into()))
    }

    /// With an error, the files whose policy it may be about.
    fn joined(&self, error: SetupError) -> SetupError {
        match self.profile.files.as_slice() {
            [] => error,
            files => SetupError::Joined { files: files.join(", "), error: Box::new(error) },
        }
    }

    /// The request of a job's plan, for what is free now. Devices that this executor cannot compute
    /// on count in a plan that is only shown (`dry_run`), and only where a profile names them. What
    /// the executor holds already is free for its own plan.
    ///
    /// # Errors
    /// A cap names a device that is not here; or the profile names a GPU that is not, and the plan
    /// is to be carried out.
    pub fn request(
        &self,
        asked: &PreparedJob,
        job: &ResolvedJob,
        description: &ModelDescription,
        dry_run: bool,
        holding: Holding<'_>,
    ) -> Result<Request, SetupError> {
        let inventory = self.uncalibrated_beside(holding)?;
        self.request_on(asked, job, description, inventory, dry_run)
    }

    /// The request of a job's plan beside `others` of this process, on an inventory as if none of
    /// them held anything.
    ///
    /// # Errors
    /// As [`Host::request`].
    pub fn request_beside(
        &self,
        asked: &PreparedJob,
        job: &ResolvedJob,
        description: &ModelDescription,
        inventory: Inventory,
        others: &[OtherPlan<'_>],
    ) -> Result<Request, SetupError> {
        let mut request = self.request_on(asked, job, description, inventory, false)?;
        request.left_out.extend(left_out(&request.inventory, others));
        room::take_others(&mut request, others, self.profile.profile.memory_is_here());
        Ok(request)
    }

    /// The request on an inventory that was read before, or that is as if something were otherwise;
    /// what was measured is put into it here.
    ///
    /// # Errors
    /// As [`Host::request`].
    pub fn request_on(
        &self,
        asked: &PreparedJob,
        job: &ResolvedJob,
        description: &ModelDescription,
        mut inventory: Inventory,
        dry_run: bool,
    ) -> Result<Request, SetupError> {
        let policy = &asked.policy;
        self.calibration.apply(&mut inventory, Some(&description.model.to_string()));
        let budgets = self.budgets(policy, &inventory)?;
        let missing = |device: &Device| {
            let (device, why) = (device.id.clone(), device.missing.clone()?);
            Some(SetupError::Missing { device, why })
        };
        if !dry_run && let Some(missing) = inventory.devices.iter().find_map(missing) {
            return Err(missing);
        }
        let mut request = Request {
            few_steps: description.few_steps.clone(),
            options: job.options.clone(),
            imagined: dry_run && self.profile.names_devices,
            ..Request::new(
                description.model.clone(),
                description.side_multiple_pixels,
                job.shape.clone(),
                inventory,
                budgets,
                policy,
            )
        };
        self.self_tests.apply(&mut request);
        Ok(request)
    }

    /// Plans and runs a job on an executor, or runs it by a `given` plan, and learns from it.
    /// `request` makes each attempt's request from what is free at that moment; `hear` hears of
    /// everything in order, the end last.
    ///
    /// # Errors
    /// The last attempt's failure, or what no other plan could mend.
    pub fn run(
        &self,
        warm: &mut Warm,
        request: &Inventorize<'_>,
        work: &Work,
        given: Option<&Plan>,
        hear: &mut EventHandler<'_>,
    ) -> Result<Outcome, PlanError> {
        let result = supervise(warm, &self.self_tests, request, work, given, &mut Events(hear));
        if let Ok(outcome) = &result {
            for image in &outcome.images {
                let (index, seed, width, height) =
                    (image.index, image.seed, image.width, image.height);
                let _ = hear(JobEvent::Output { index, seed, width, height });
            }
            // What a given plan predicts was made with other rates.
            if given.is_none()
                && let Err(error) = self.learn(outcome)
            {
                let _ = hear(JobEvent::NotLearned { because: error.to_string() });
            }
        }
        let error = result.as_ref().err().map(ToString::to_string);
        let _ = hear(JobEvent::Ended { error });
        result
    }

    /// Learns from a run, by the inventory that its plan was made for.
    fn learn(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let Outcome { inventory, plan, usage, .. } = outcome;
        self.calibration.learn(inventory, plan, usage).map(drop)
    }
}

/// Devices that plans which go on running compute on.
fn left_out(inventory: &Inventory, others: &[OtherPlan<'_>]) -> Vec<DeviceId> {
    let mut taken = Lanes::default();
    for other in others.iter().filter(|other| other.runs) {
        taken.join(&Lanes::of(other.plan));
    }
    let devices = inventory.devices.iter();
    let devices = devices.filter(|device| Lanes::of_device(device).shares(&taken));
    devices.map(|device| DeviceId(device.id.clone())).collect()
}
