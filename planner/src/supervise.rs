//! A job from plan to result: attempts, and what each failure means for the next one.
//!
//! ```text
//! plan ──► load ──► run ──► done
//!  ▲        │        │
//!  │        └────────┴─ OutOfMemory: the device's budget shrinks by what was missing; same executor
//!  └──────────────────── death: a new executor, the inventory read again; once
//! ```
//! Every attempt has a plan of its own with the next generation. What an attempt made is dropped with it.

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::{Image, Progress};
use protocol::{Bytes, Command, DeviceId, Event, Failure, FailureKind, Job, Plan, UsageReport};

use crate::planning::{PlanError, Request, plan, verify};
use crate::session::{ExecutorProgram, Interrupts, Session, SessionError};
use crate::solve::{PlanReport, Solution};

/// How often a job is started anew after its executor died.
const DEATHS_MAX: u32 = 1;

/// How often a job is planned anew after an allocation failed.
const SHORTAGES_MAX: u32 = 3;

/// What is to be done by a plan.
#[derive(Debug, Clone)]
pub enum Work {
    /// Load it, go through all phases without computing, unload.
    Rehearse,
    /// Make pictures.
    Generate(Box<Job>),
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The plan that it ran by.
    pub plan: Plan,
    /// Why it is so; empty for a plan that was given.
    pub report: PlanReport,
    /// What it used.
    pub usage: UsageReport,
    /// The pictures in order.
    pub images: Vec<Image>,
    /// The intermediate tensors, where they were asked for.
    pub tensors: Option<IpcSharedMemory>,
    /// Plans that were tried.
    pub attempts: u32,
}

/// Hears of the job while it runs.
pub trait Listener {
    /// A new executor is about to start.
    fn starting(&mut self, interrupts: Interrupts);
    /// A new executor runs.
    fn started(&mut self, session: &Session);
    /// A plan is about to be loaded.
    fn planned(&mut self, solution: &Solution);
    /// The job got further.
    fn progress(&mut self, progress: Progress);
    /// An attempt failed, and another one follows.
    fn retrying(&mut self, error: &SessionError);
}

/// Makes an attempt's request from the devices as they are now; asked again after a death.
pub type Inventorize<'a> = dyn Fn() -> Result<Request, PlanError> + 'a;

/// Plans and runs a job, or runs it by a `given` plan.
pub fn supervise(
    program: &ExecutorProgram,
    mut session: Session,
    inventorize: &Inventorize<'_>,
    work: &Work,
    given: Option<&Plan>,
    listener: &mut dyn Listener,
) -> Result<Outcome, PlanError> {
    let mut request = inventorize()?;
    let mut generation = 0_u64;
    let (mut deaths, mut shortages) = (0, 0);
    loop {
        generation += 1;
        let mut tried = None;
        let attempted = decide(&mut session, &request, given, generation).and_then(|solution| {
            listener.planned(&solution);
            tried = Some(solution.plan.clone());
            carry_out(&mut session, solution, work, listener)
        });
        let error = match attempted {
            Ok(mut outcome) => {
                outcome.attempts = generation as u32;
                session.end();
                return Ok(outcome);
            }
            Err(PlanError::Session(error)) => error,
            Err(other) => return Err(other),
        };
        match &error {
            SessionError::Died { .. } if deaths < DEATHS_MAX => {
                deaths += 1;
                listener.retrying(&error);
                drop(session);
                session = Session::start(program, |interrupts| listener.starting(interrupts))?;
                listener.started(&session);
                request = inventorize()?;
            }
            SessionError::Failed(Failure {
                kind: FailureKind::OutOfMemory { device, requested_bytes, free_bytes, .. },
                ..
            }) if shortages < SHORTAGES_MAX && given.is_none() => {
                shortages += 1;
                listener.retrying(&error);
                if let Some(plan) = &tried {
                    let missing = requested_bytes.saturating_sub(*free_bytes);
                    shrink(&mut request, plan, device, missing, shortages);
                }
                unload(&mut session)?;
            }
            _ => return Err(error.into()),
        }
    }
}

/// A new plan, or the given one, checked again.
fn decide(
    session: &mut Session,
    request: &Request,
    given: Option<&Plan>,
    generation: u64,
) -> Result<Solution, PlanError> {
    let Some(given) = given else {
        return plan(session, request, generation);
    };
    let plan = Plan { generation, ..given.clone() };
    protocol::check::check(&plan).map_err(PlanError::Given)?;
    verify(session, &plan)?;
    Ok(Solution { plan, report: PlanReport { reasons: Vec::new(), rejected: Vec::new() } })
}

/// Loads a plan and runs the work by it.
fn carry_out(
    session: &mut Session,
    Solution { plan, report }: Solution,
    work: &Work,
    listener: &mut dyn Listener,
) -> Result<Outcome, PlanError> {
    let rehearse = matches!(work, Work::Rehearse);
    session.send(Command::Load { plan: Box::new(plan.clone()), rehearse })?;
    let mut outcome = Outcome {
        plan,
        report,
        usage: UsageReport::default(),
        images: Vec::new(),
        tensors: None,
        attempts: 1,
    };
    listen(session, listener, &mut outcome)?;
    if let Work::Generate(job) = work {
        let generation = outcome.plan.generation;
        session.send(Command::Generate { generation, job: job.clone() })?;
        listen(session, listener, &mut outcome)?;
    } else {
        unload(session)?;
    }
    Ok(outcome)
}

/// Listens until the running command is done.
fn listen(
    session: &mut Session,
    listener: &mut dyn Listener,
    outcome: &mut Outcome,
) -> Result<(), SessionError> {
    loop {
        match session.next_event()? {
            Event::Progress(progress) => listener.progress(progress),
            Event::Image(image) => outcome.images.push(image),
            Event::Tensors(tensors) => outcome.tensors = Some(tensors),
            Event::Usage(usage) => outcome.usage = usage,
            Event::Loaded(usage) => {
                outcome.usage = usage;
                return Ok(());
            }
            Event::Done { .. } => return Ok(()),
            Event::Failed(failure) => return Err(failure.into()),
            other => tracing::warn!(?other, "an event that nobody asked for"),
        }
    }
}

fn unload(session: &mut Session) -> Result<(), SessionError> {
    session.ask("Unload", Command::Unload, |event| match event {
        Event::Unloaded => Ok(()),
        other => Err(other),
    })
}

/// Lowers a device's budget, so that the next plan uses less of it than `plan` did: at first less by what was
/// missing, then half, and in the last attempt nothing at all, as what the device says is not to be relied on.
fn shrink(request: &mut Request, plan: &Plan, device: &DeviceId, missing: Bytes, shortages: u32) {
    let planned = plan.devices.iter().find(|d| d.id == *device);
    let peak = planned.map_or(plan.host.peak_bytes, |device| device.peak_bytes);
    let limit = match shortages {
        1 => peak.saturating_sub(missing.max(Bytes(1))),
        2.. if shortages < SHORTAGES_MAX => Bytes(peak.0 / 2),
        _ => Bytes::ZERO,
    };
    let budgets = &mut request.budgets;
    let (budget, ceiling) = match request.inventory.devices.iter().position(|d| d.id == device.0) {
        Some(index) => (&mut budgets.devices[index], &mut budgets.ceilings[index]),
        None => (&mut budgets.host, &mut budgets.host_ceiling),
    };
    *budget = limit.min(*budget);
    *ceiling = limit.min(*ceiling);
}
