//! A job from plan to result: attempts, and what each failure means for the next one.
//!
//! ```text
//! plan ──► load ──► run ──► done
//!  ▲        │        │
//!  │        ├────────┼─ OutOfMemory: the device's budget shrinks by what was missing; same executor
//!  │        └────────┴─ DeviceFailed: the device is not used again; same executor
//!  └──────────────────── death: a new executor, the inventory read again; once
//! ```
//! Every attempt has a plan of its own with the next generation. What an attempt made is dropped with it.

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::{Image, Progress};
use protocol::{Command, Event, Job, Plan, UsageReport};

use crate::planning::{PlanError, Request, plan, verify};
use crate::session::{ExecutorProgram, Interrupts, Session, SessionError};
use crate::solve::{PlanReport, Solution};
use lessons::{Lessons, Next};

mod lessons;

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
    let mut lessons = Lessons::new(given.is_none());
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
        match lessons.learn(&error, tried.as_ref(), &mut request) {
            Next::Stop => return Err(error.into()),
            Next::Replan => {
                listener.retrying(&error);
                unload(&mut session)?;
            }
            Next::Restart => {
                listener.retrying(&error);
                drop(session);
                session = Session::start(program, |interrupts| listener.starting(interrupts))?;
                listener.started(&session);
                let failed = std::mem::take(&mut request.failed);
                request = Request { failed, ..inventorize()? };
            }
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
    Ok(Solution { plan, report: PlanReport::default() })
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
