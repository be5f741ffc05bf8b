//! Planning with an executor: its description and profile of the model go into the solver, its
//! verification of the plan comes back.

mod advice;
mod integrated;
mod loaded;
mod measured;
mod sizes;
mod survey;
mod unusable;

use protocol::message::VerifiedBytes;
use protocol::plan::MappingPolicy;
use protocol::profile::FewSteps;
use protocol::{
    Bytes, Command, DeviceId, Event, GraphOptions, JobShape, ModelDescription, ModelSource, Plan,
};

use crate::engine::session::{Session, SessionError};
use crate::inventory::Inventory;
use crate::policy::pins::{PinError, Pins};
use crate::policy::tile::TileRequest;
use crate::policy::{Budgets, Objective, Policy};
use crate::solve::{Infeasible, Solution};
pub use advice::LONG_MS;
use measured::MeasuredModel;
pub use survey::Survey;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Nothing fits.
    #[error("{}", .0.message())]
    Infeasible(Box<DoesNotFit>),
    /// The devices could not be looked at.
    #[error("{0:#}")]
    Inventory(anyhow::Error),
    /// The executor failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The executor was killed as memory ran out, and no plan takes less of it.
    #[error("{0}\nno plan takes less of the host's memory than the one that it died with")]
    NothingLess(SessionError),
    /// The solver made a plan that the checker refuses: a fault of Berth.
    #[error("{0}; this is a fault of Berth, please report it")]
    Violation(protocol::check::Violations),
    /// A plan that was given breaks a rule.
    #[error(
        "{0}; hint: the plan's file was changed, or is of another version: make a new one by `berth plan --output`"
    )]
    Given(protocol::check::Violations),
    /// A plan that was given uses what is not here.
    #[error("{0}")]
    Elsewhere(String),
    /// A plan that was given takes more than is free.
    #[error(transparent)]
    NoRoom(Box<NoRoom>),
    /// What is pinned makes no sense for the model on this machine.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A device failed, and a component is pinned to it.
    #[error(
        "{device} failed, and {component} is pinned to it: {message}; hint: name another device in --backend"
    )]
    PinnedToFailed {
        /// What was pinned to it.
        component: String,
        /// What failed.
        device: DeviceId,
        /// How it failed.
        message: String,
    },
    /// The executor failed, and files that it read are not what they were: another attempt would
    /// read others.
    #[error(
        "{error}\n{files} was changed while the job read it, so it is not tried again; hint: run the job again once \
         nothing writes to the file"
    )]
    FilesChanged {
        /// Their paths.
        files: String,
        /// How it failed.
        error: SessionError,
    },
    /// The executor's figures and the solver's did not meet.
    #[error("the plan and its schedule differ: {0}; this is a fault of Berth, please report it")]
    Unsettled(String),
}

/// What is short for a plan that was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the plan does not fit: it takes {} B ({needed_bytes}) of {device}, {} B ({free_bytes}) are free now\nhint: end what uses the rest of {device}\nhint: without --plan a new plan is made for what is free",
    needed_bytes.0,
    free_bytes.0
)]
pub struct NoRoom {
    /// The sizes that the plan is for.
    pub job: JobShape,
    /// The device, or `host`.
    pub device: DeviceId,
    /// What the plan takes of it.
    pub needed_bytes: Bytes,
    /// What is free of it now.
    pub free_bytes: Bytes,
}

/// What does not fit, and what would.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoesNotFit {
    /// The sizes asked for.
    pub job: JobShape,
    /// What is short, and the budgets that would do.
    pub infeasible: Infeasible,
    /// The largest width and height of about the same shape that fit in the present budget.
    pub largest: Option<[u32; 2]>,
}

impl DoesNotFit {
    /// A sentence with hints.
    pub fn message(&self) -> String {
        let JobShape { width, height, batch, .. } = self.job;
        let mut message =
            format!("{width}x{height}, batch {batch}, does not fit: {}", self.infeasible.because);
        let Infeasible { max_vram, max_ram, together, margin_flag, .. } = self.infeasible;
        let vram = max_vram.map(|bytes| format!("--max-vram {}B ({bytes})", bytes.0));
        let ram = max_ram.map(|bytes| format!("--max-ram {}B ({bytes})", bytes.0));
        let mut hints = match (vram, ram) {
            (Some(vram), Some(ram)) if together => {
                vec![format!("{vram} with {ram} is the smallest budget that fits")]
            }
            (vram, ram) => {
                let each = vram.into_iter().chain(ram);
                each.map(|budget| format!("{budget} is the smallest budget that fits")).collect()
            }
        };
        let largest = self.largest.map(|[width, height]| {
            format!("--width {width} --height {height} is the largest size that fits")
        });
        hints.extend(largest);
        hints.extend(margin_flag.map(|flag| {
            format!("{flag}=-128MiB keeps 128 MiB free in place of the margin, or as much as is written there")
        }));
        if hints.is_empty() {
            hints.push("no budget and no size fits on these devices".to_owned());
        }
        for hint in hints {
            message.push_str("\nhint: ");
            message.push_str(&hint);
        }
        message
    }
}

/// What is planned for.
#[derive(Debug, Clone)]
pub struct Request {
    /// Where the model is.
    pub model: ModelSource,
    /// Width and height must be multiples of this.
    pub side_multiple_pixels: u32,
    /// The sizes asked for.
    pub job: JobShape,
    /// What is.
    pub inventory: Inventory,
    /// What may be used of it.
    pub budgets: Budgets,
    /// What the plan is to be best at.
    pub objective: Objective,
    /// Devices that failed: they are not used again.
    pub failed: Vec<FailedDevice>,
    /// Devices that are not used, to see what a plan without them takes.
    pub left_out: Vec<DeviceId>,
    /// What is pinned of places.
    pub pins: Pins,
    /// Whether weights may be on their way before their phase.
    pub prefetch: bool,
    /// Pieces of the VAE.
    pub tile: TileRequest,
    /// Whether the report tells what was rejected, and why: it takes some searches more.
    pub explain: bool,
    /// Whether the report tells what integrated devices change: a plan more for each of them.
    pub compare_integrated: bool,
    /// How much longer the plan may take than the best one, as a part of its time. 0 for a plan
    /// that is run or shown; more where only its time is told.
    pub longer_max: f64,
    /// The model's own way to fewer steps, to be told of long jobs.
    pub few_steps: Option<FewSteps>,
    /// What beside the job, and beside the tile, decides what is computed; which components' LoRA
    /// products are added while they run is decided by their places.
    pub options: GraphOptions,
    /// What happens to the pages of weight files.
    pub mapping_policy: MappingPolicy,
    /// Whether devices count that this executor cannot compute on: for plans that are only shown.
    pub imagined: bool,
    /// The loaded plan whose weights are to stay where they lie; `None` for a plan of its own.
    pub keeps: Option<Box<Plan>>,
}

impl Request {
    /// What a policy wants of a job on an inventory: the best plan, with nothing failed, compared,
    /// imagined or kept, and the default options.
    pub fn new(
        model: ModelSource,
        side_multiple_pixels: u32,
        job: JobShape,
        inventory: Inventory,
        budgets: Budgets,
        policy: &Policy,
    ) -> Request {
        Request {
            model,
            side_multiple_pixels,
            job,
            inventory,
            budgets,
            objective: policy.optimize,
            failed: Vec::new(),
            left_out: Vec::new(),
            pins: policy.pins.clone(),
            prefetch: policy.prefetch,
            tile: policy.vae_tile,
            explain: false,
            compare_integrated: false,
            longer_max: 0.0,
            few_steps: None,
            options: GraphOptions::default(),
            mapping_policy: policy.mapping_policy,
            imagined: false,
            keeps: None,
        }
    }

    /// The same for a plan that follows a loaded one and leaves its weights where they lie.
    pub fn keeping(&self, loaded: &Plan) -> Request {
        let mut request = Request { keeps: Some(Box::new(loaded.clone())), ..self.clone() };
        request.options.lora_runtime.clone_from(&loaded.options.lora_runtime);
        request
    }

    /// Whether a plan for `other` is one for this too, as far as that is fit for what is free now:
    /// devices and budgets are looked at apart.
    pub fn asks_the_same(&self, other: &Request) -> bool {
        self.places_the_same(other)
            && self.job == other.job
            && self.options == other.options
            && self.objective == other.objective
            && self.prefetch == other.prefetch
            && self.tile == other.tile
    }

    fn failed_devices(&self) -> impl Iterator<Item = &DeviceId> {
        self.failed.iter().map(|failed| &failed.device)
    }

    /// Whether what is asked of places is the same, so that a plan for `other` may leave the
    /// weights of one for this where they lie.
    pub fn places_the_same(&self, other: &Request) -> bool {
        self.model == other.model
            && self.failed_devices().eq(other.failed_devices())
            && self.left_out == other.left_out
            && self.pins == other.pins
            && self.mapping_policy == other.mapping_policy
            && self.imagined == other.imagined
    }
}

/// A device that failed while a plan ran on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedDevice {
    /// What failed, by its name in the inventory.
    pub device: DeviceId,
    /// How it failed, as a sentence.
    pub message: String,
}

/// Asks the executor what is in a model, and, if it `makes_tokenizers`, whether these are sound: a
/// job would find out before it loads anything.
pub fn inspect(
    session: &mut Session,
    model: &ModelSource,
    makes_tokenizers: bool,
) -> Result<ModelDescription, SessionError> {
    let command = Command::Inspect { model: model.clone(), makes_tokenizers };
    session.ask("Inspect", command, |event| match event {
        Event::Inspected(description) => Ok(*description),
        other => Err(other),
    })
}

/// Makes a plan that the executor agrees with to the byte.
pub fn plan(
    session: &mut Session,
    request: &Request,
    generation: u64,
) -> Result<Solution, PlanError> {
    let mut solution = Survey::new(session, request)?.plan(session, request, generation)?;
    solution.report.advice = advice::of(session, request, &solution)?;
    Ok(solution)
}

/// Makes a plan that follows a loaded one and leaves its weights where they lie; `None` where none
/// does, by what is free or by what is asked.
pub fn plan_keeping(
    session: &mut Session,
    request: &Request,
    loaded: &Plan,
    generation: u64,
) -> Result<Option<Solution>, PlanError> {
    let request = request.keeping(loaded);
    let planned = Survey::new(session, &request)?.plan(session, &request, generation);
    only_keeping(planned, loaded)
}

/// What was planned by [`Request::keeping`], where it does keep the loaded plan's weights.
///
/// # Errors
/// What was no answer, as [`Survey::plan`] has it.
pub fn only_keeping(
    planned: Result<Solution, PlanError>,
    loaded: &Plan,
) -> Result<Option<Solution>, PlanError> {
    let solution = match planned {
        Ok(solution) => solution,
        Err(PlanError::Infeasible(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    // What else is asked may be another place for a component, or other options.
    let keeps = protocol::check::check_keeps(&solution.plan, loaded).is_ok();
    Ok(keeps.then_some(solution))
}

/// Asks the executor for the exact bytes of a plan.
pub fn verify(session: &mut Session, plan: &Plan) -> Result<Vec<VerifiedBytes>, SessionError> {
    let command = Command::Verify { plan: Box::new(plan.clone()) };
    session.ask("Verify", command, |event| match event {
        Event::Verified(bytes) => Ok(bytes),
        other => Err(other),
    })
}

/// The first place where the executor's figure is not the plan's.
fn difference(plan: &Plan, verified: &[VerifiedBytes]) -> Option<String> {
    verified.iter().find_map(|exact| {
        let (phases, overhead) = match plan.devices.iter().find(|d| d.id == exact.device) {
            Some(device) => (&device.phases, device.overhead_bytes),
            None => (&plan.host.phases, Bytes::ZERO),
        };
        let stated = phases.iter().find(|entry| entry.phase == exact.phase)?;
        let stated = stated.peak_bytes.saturating_sub(overhead);
        (exact.bytes != stated).then(|| {
            format!(
                "{} in the {} phase: planned {} B, scheduled {} B",
                exact.device, exact.phase, stated.0, exact.bytes.0
            )
        })
    })
}

fn does_not_fit(
    session: &mut Session,
    request: &Request,
    runtime: &[String],
    infeasible: Infeasible,
) -> PlanError {
    match largest_size(session, request, runtime) {
        Ok(largest) => PlanError::Infeasible(Box::new(DoesNotFit {
            job: request.job.clone(),
            infeasible,
            largest,
        })),
        Err(error) => error,
    }
}

/// The largest size of about the same shape that fits: the longer side in steps of what the model
/// allows, the shorter one in proportion.
fn largest_size(
    session: &mut Session,
    request: &Request,
    runtime: &[String],
) -> Result<Option<[u32; 2]>, PlanError> {
    let multiple = request.side_multiple_pixels;
    let JobShape { width, height, .. } = request.job;
    let longest = width.max(height) / multiple;
    let scaled = |side: u32, steps: u32| {
        let exact = f64::from(side) * f64::from(steps) / f64::from(longest);
        ((exact / f64::from(multiple)) as u32).max(1) * multiple
    };
    let (mut enough, mut too_large) = (0, longest);
    while enough + 1 < too_large {
        let steps = enough + (too_large - enough) / 2;
        let job = JobShape {
            width: scaled(width, steps),
            height: scaled(height, steps),
            ..request.job.clone()
        };
        // With all LoRA products added while components run, any placement may have them.
        let mut runtime = runtime.to_vec();
        let mut measured = MeasuredModel::ask(session, request, &job, &mut runtime)?;
        if measured.fits(session, request)? { enough = steps } else { too_large = steps }
    }
    Ok((enough > 0).then(|| [scaled(width, enough), scaled(height, enough)]))
}
