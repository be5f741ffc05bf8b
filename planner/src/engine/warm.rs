//! A warm executor: a session that outlives its jobs, and the plan that it has loaded.
//!
//! ```text
//! run(job) ─► the loaded plan does as it is? ──yes──► Generate
//!                 │no
//!                 ├─ a plan that keeps its weights, and one of its own: which is sooner done?
//!                 │        └─ keeping: Load, which moves no weights ─► Generate
//!                 └─ its own: Load, which frees what is held and loads anew ─► Generate
//! ```
//! Generations never fall. What the executor holds between jobs is its own: it counts as free for
//! the next plan of this executor, and as taken for everybody else, other executors of this process
//! too.

mod places;
mod staying;

use protocol::message::Progress;
use protocol::notice::FileState;
use protocol::plan::DeviceBackend;
use protocol::{Bytes, Command, Event, Plan};

use super::files::changed_files;
use super::reservations::{Reservation, Turns};
use super::session::{Session, SessionError};
use super::settling::settle;
use crate::inventory::Inventory;
use crate::inventory::parts::share;
use crate::planning::{PlanError, Request, plan, plan_keeping};
use crate::policy::Budgets;
use crate::solve::{PlanReport, Solution};
use staying::Staying;
pub use staying::{next_ms, whole_first};

/// An executor that takes one job after the other.
pub struct Warm {
    /// The executor.
    pub session: Session,
    loaded: Option<Loaded>,
    /// Of the last plan that was made for this executor.
    generation: u64,
    reservation: Option<Reservation>,
    turns: Turns,
    /// Whether this executor was given a plan that has GPUs, whose memory outlives it for a moment.
    has_gpus: bool,
    /// Whether the next decision looks for a better plan though the loaded one does.
    looks_for_better: bool,
    /// Whether weights stay where they are as long as that is possible.
    stays_placed: bool,
}

/// What an executor has loaded: plain data, which others may look at while it runs.
#[derive(Clone)]
pub struct Loaded {
    /// What it carries out.
    pub plan: Plan,
    /// Why it is so; empty for a plan that was given.
    pub report: PlanReport,
    /// The inventory that it was made for.
    pub inventory: Inventory,
    /// What it was planned for; `None` for a plan that was given.
    request: Option<Request>,
    /// The files that it reads, as they were when they were opened.
    files: Vec<FileState>,
    /// What jobs lose by it that bring their embeddings, of the last such job's kind.
    staying: Option<Staying>,
}

/// What a plan was made for.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// The question, or what is here where the plan was given.
    pub request: &'a Request,
    /// Whether somebody else made the plan.
    pub given: bool,
}

/// What an executor holds, as it is to be counted when its next plan is made.
#[derive(Clone, Copy)]
pub struct Holding<'a> {
    /// What is loaded.
    pub plan: Option<&'a Plan>,
    /// What this executor has spoken for.
    pub reservation: Option<&'a Reservation>,
}

/// How a job begins.
pub enum Decision {
    /// With the plan that is loaded.
    Reuse,
    /// With this plan, which is to be loaded first.
    Load(Box<Solution>),
}

impl Warm {
    /// An executor that holds nothing yet.
    pub fn new(session: Session) -> Warm {
        Warm {
            session,
            loaded: None,
            generation: 0,
            reservation: None,
            turns: Turns::None,
            has_gpus: false,
            looks_for_better: false,
            stays_placed: false,
        }
    }

    /// One that runs by turns with other executors of this process, unless
    /// [`Warm::set_beside`] says otherwise.
    pub fn taking_turns(session: Session) -> Warm {
        Warm { turns: Turns::Taken, ..Warm::new(session) }
    }

    /// Whether its next run is beside one of another executor of this process: then others see all
    /// that it takes, and not only the largest of what those take that run by turns.
    pub fn set_beside(&mut self, beside: bool) {
        let turns = if beside { Turns::None } else { Turns::Taken };
        if std::mem::replace(&mut self.turns, turns) != turns {
            self.speak_for_loaded();
        }
    }

    /// The plan that is loaded.
    pub fn plan(&self) -> Option<&Plan> {
        self.loaded.as_ref().map(|loaded| &loaded.plan)
    }

    /// What is loaded, to be looked at by others.
    pub fn held(&self) -> Option<Loaded> {
        self.loaded.clone()
    }

    /// The plan that is loaded, and why it is so.
    ///
    /// # Panics
    /// None is loaded.
    pub fn loaded(&self) -> &Loaded {
        self.loaded.as_ref().expect("a plan is loaded")
    }

    /// What it holds.
    pub fn holding(&self) -> Holding<'_> {
        Holding { plan: self.plan(), reservation: self.reservation.as_ref() }
    }

    /// The number of the next plan.
    pub fn next_generation(&self) -> u64 {
        self.generation + 1
    }

    /// Decides how a job begins: with the loaded plan where that was made for the same question,
    /// still fits the budgets, and reads files that nobody changed; else with the sooner done of a
    /// plan that keeps the loaded weights and one that does not.
    pub fn decide(&mut self, request: &Request, generation: u64) -> Result<Decision, PlanError> {
        self.forget_changed()?;
        if let Some(decision) = self.decide_conditioned(request, generation)? {
            return Ok(decision);
        }
        let Some(loaded) = &self.loaded else {
            return Ok(Decision::load(plan(&mut self.session, request, generation)?));
        };
        if loaded.does(request) {
            return match std::mem::take(&mut self.looks_for_better) {
                true => self.decide_better(request, generation),
                false => Ok(Decision::Reuse),
            };
        }
        let whole = loaded.with_encoders(request);
        whole_first(whole, request, |request| self.decide_anew(request, generation))
    }

    /// The next job is planned anew, and begins with that plan where later ones are sooner done.
    pub fn look_for_better(&mut self) {
        self.looks_for_better = true;
    }

    /// Whether jobs from now on leave weights where they are, as long as they can, also where one
    /// would be sooner done otherwise.
    pub fn set_stays_placed(&mut self, stays: bool) {
        self.stays_placed = stays;
    }

    /// A plan by which jobs are sooner done than by the loaded one, which does too.
    fn decide_better(&mut self, request: &Request, generation: u64) -> Result<Decision, PlanError> {
        let executor = self.session.pid();
        let own = plan(&mut self.session, request, generation);
        if self.session.pid() != executor {
            // It died of the questions: what it held is gone.
            self.loaded = None;
            return Ok(Decision::load(own?));
        }
        match own {
            Ok(own) if own.plan.predicted_ms.next_total < self.loaded().next_ms(request) => {
                Ok(Decision::load(own))
            }
            Ok(_) | Err(PlanError::Infeasible(_)) => Ok(Decision::Reuse),
            Err(error) => Err(error),
        }
    }

    /// The sooner done of a plan that keeps the loaded weights and one that does not.
    fn decide_anew(&mut self, request: &Request, generation: u64) -> Result<Decision, PlanError> {
        let executor = self.session.pid();
        let mut kept = match self.loaded.as_ref().filter(|loaded| loaded.may_keep(request)) {
            Some(loaded) => plan_keeping(&mut self.session, request, &loaded.plan, generation)?,
            None => None,
        };
        if let Some(kept) = kept.take_if(|_| self.stays_placed && self.session.pid() == executor) {
            return Ok(Decision::load(kept));
        }
        let own = plan(&mut self.session, request, generation);
        if self.session.pid() != executor {
            // It died of the questions: what it held is gone.
            self.loaded = None;
            return Ok(Decision::load(own?));
        }
        sooner(kept, own).map(Decision::load)
    }

    /// Whether a plan that was given is the loaded one.
    pub fn has_given(&mut self, given: &Plan) -> Result<bool, PlanError> {
        self.forget_changed()?;
        let same = |loaded: &Loaded| {
            loaded.request.is_none()
                && Plan { generation: given.generation, ..loaded.plan.clone() } == *given
        };
        Ok(self.loaded.as_ref().is_some_and(same))
    }

    /// Speaks for a plan's memory and gives the plan to the executor. `listen` hears what that says
    /// until the plan is loaded, and answers with the files that it reads.
    pub fn load(
        &mut self,
        solution: &Solution,
        planned: Planned<'_>,
        rehearse: bool,
        listen: impl FnOnce(&mut Session) -> Result<Vec<FileState>, SessionError>,
    ) -> Result<(), SessionError> {
        let Solution { plan, report, .. } = solution;
        let before = self.loaded.take();
        let command = Command::Load { plan: Box::new(plan.clone()), rehearse };
        self.session.send(command)?;
        let mut files = listen(&mut self.session)?;
        if plan.keeps_weights_of.is_some() {
            // The weights are of the files as they were then.
            files = before.map(|before| before.files).unwrap_or_default();
        }
        let Planned { request, given } = planned;
        // It may have text encoders though this job brings its embeddings.
        let request = Request { job: plan.job.clone(), ..request.clone() };
        self.loaded = Some(Loaded {
            plan: plan.clone(),
            report: report.clone(),
            inventory: request.inventory.clone(),
            request: (!given).then_some(request),
            files,
            staying: None,
        });
        Ok(())
    }

    /// Speaks for the memory of a plan that is about to be loaded, and takes its number.
    pub fn reserve(&mut self, plan: &Plan) {
        self.generation = self.generation.max(plan.generation);
        let mut backends = plan.devices.iter().map(|device| &device.backend);
        self.has_gpus |= backends.any(|backend| matches!(backend, DeviceBackend::Cuda { .. }));
        self.reservation = Some(Reservation::hold(plan, self.turns));
    }

    /// Frees what is held.
    pub fn unload(&mut self) -> Result<(), SessionError> {
        self.loaded = None;
        self.session.ask("Unload", Command::Unload, |event| match event {
            Event::Unloaded => Ok(()),
            other => Err(other),
        })
    }

    /// Goes on with another executor, by which everything that was held is free.
    ///
    /// # Errors
    /// It does not start.
    pub fn renew(&mut self) -> Result<(), SessionError> {
        self.go_on_by(Session::renew).map(|()| self.speak_for_loaded())
    }

    /// Goes on with another executor after a death, by which everything that was held is free.
    pub fn restart(&mut self, error: SessionError) -> Result<(), SessionError> {
        self.go_on_by(|session| session.restart(error))
    }

    /// The same in place of one that ends by itself.
    pub fn replace_gone(&mut self) -> Result<(), SessionError> {
        self.go_on_by(Session::replace_gone)
    }

    fn go_on_by(
        &mut self,
        another: impl FnOnce(&mut Session) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        self.loaded = None;
        let pid = self.session.pid();
        another(&mut self.session).map(|()| self.settle(pid))
    }

    /// Waits until the GPUs are rid of an executor that has ended.
    fn settle(&mut self, pid: u32) {
        if std::mem::take(&mut self.has_gpus) {
            settle(pid);
        }
    }

    /// The deaths since the last call that were followed by another executor; with each, what was
    /// held is lost.
    pub fn take_deaths(&mut self) -> Vec<SessionError> {
        let deaths = self.session.take_deaths();
        if !deaths.is_empty() {
            self.loaded = None;
        }
        deaths
    }

    /// After a job that failed: frees what is held, if there is still an executor that holds it.
    pub fn forget(&mut self, error: &SessionError) {
        self.loaded = None;
        if matches!(error, SessionError::Failed(_)) && error.lost_device().is_none() {
            // Whatever becomes of it, the next plan begins with a load of its own.
            let _ = self.unload();
        }
        self.speak_for_loaded();
    }

    /// After a job that ended before its time: what it had spoken for is no more than what is
    /// loaded.
    pub fn speak_for_loaded(&mut self) {
        self.reservation = self.plan().map(|plan| Reservation::hold(plan, self.turns));
    }

    /// How far the executor got with the last command.
    pub fn progress(&self) -> Option<Progress> {
        self.session.progress()
    }

    /// Says good-bye to the executor and waits until it is gone.
    pub fn end(self) {
        self.session.end();
    }

    /// The same, and waits until the GPUs are rid of it: what is free then is free for others.
    pub fn end_settled(self) {
        let pid = self.session.pid();
        self.session.end();
        if self.has_gpus {
            settle(pid);
        }
    }

    /// Where files of the loaded plan were changed, begins with another executor: this one knows
    /// them as they were.
    fn forget_changed(&mut self) -> Result<(), SessionError> {
        let Some(loaded) = &self.loaded else { return Ok(()) };
        let changed = loaded.changed_files();
        if changed.is_empty() {
            return Ok(());
        }
        tracing::info!(
            ?changed,
            "files were changed since they were loaded: they are opened again"
        );
        self.go_on_by(Session::renew)
    }
}

impl Loaded {
    /// Whether it does for another question as it is: it was made for the same one, or the same but
    /// for embeddings that the job brings, and fits the budgets.
    pub fn does(&self, request: &Request) -> bool {
        let asked = self.request.as_ref();
        let is_asked =
            asked.is_some_and(|asked| asked.asks_the_same(&self.where_it_is(asked, request)));
        (is_asked && fits_budgets(&self.plan, request)) || self.stays(request)
    }

    /// Paths of the files that it reads and that are not as they were when they were opened.
    pub fn changed_files(&self) -> Vec<String> {
        changed_files(&self.files)
    }
}

/// The sooner done of a plan that keeps the loaded weights, where there is one, and one that does
/// not.
///
/// # Errors
/// There is neither: why there is none that does not.
pub fn sooner(
    kept: Option<Solution>,
    own: Result<Solution, PlanError>,
) -> Result<Solution, PlanError> {
    let is_sooner = |kept: &Solution| match &own {
        Ok(own) => kept.plan.predicted_ms.total <= own.plan.predicted_ms.total,
        Err(_) => true,
    };
    match kept.filter(is_sooner) {
        Some(kept) => Ok(kept),
        None => own,
    }
}

impl Decision {
    fn load(solution: Solution) -> Decision {
        Decision::Load(Box::new(solution))
    }
}

impl Holding<'_> {
    /// Nothing is held.
    pub const NOTHING: Holding<'static> = Holding { plan: None, reservation: None };

    /// Counts what this executor holds between jobs as free: its next plan may have it.
    pub fn give_back(&self, inventory: &mut Inventory, host_is_here: bool) {
        if let Some(plan) = self.plan {
            give_back(plan, inventory, host_is_here);
        }
    }
}

/// Counts what an idle plan holds as free.
pub fn give_back(plan: &Plan, inventory: &mut Inventory, host_is_here: bool) {
    let mut on_host = plan.host.idle_bytes;
    let places = inventory.places_of(plan);
    for (planned, place) in plan.devices.iter().zip(places) {
        let is_virtual = matches!(planned.backend, DeviceBackend::Virtual { .. });
        if is_virtual || planned.integrated {
            on_host += planned.idle_bytes;
        }
        let Some(device) = place.map(|place| &mut inventory.devices[place]) else { continue };
        let (total, free) = match &mut device.part {
            // A virtual device's memory is this process's own, whatever it holds of it.
            _ if is_virtual => continue,
            Some(part) => (part.gpu_total_bytes, &mut part.gpu_free_bytes),
            None => (device.total_bytes, &mut device.free_bytes),
        };
        *free = more(*free, planned.idle_bytes, total);
    }
    if host_is_here {
        let host = &mut inventory.host;
        host.available_bytes = more(host.available_bytes, on_host, host.total_bytes);
    }
    share(&mut inventory.devices);
}

fn more(free: Bytes, held: Bytes, total: Bytes) -> Bytes {
    Bytes(free.0.saturating_add(held.0)).min(total)
}

/// Whether a loaded plan's peaks, and what it holds between two jobs, are within a request's
/// budgets; where no cap binds, also with half of the margin, which is kept for what others take
/// and give back all the time: a plan is not made anew for that.
fn fits_budgets(plan: &Plan, request: &Request) -> bool {
    let Request { budgets, inventory, .. } = request;
    let Budgets { devices, ceilings, host, host_ceiling, idle, .. } = budgets;
    let places = inventory.places_of(plan);
    let within = plan.devices.iter().zip(places).all(|(planned, place)| match place {
        None => planned.peak_bytes == Bytes::ZERO,
        Some(place) => {
            let free = inventory.devices[place].free_bytes;
            let limit = loaded_limit(devices[place], ceilings[place], free);
            let idle_limit = idle.as_ref().map_or(limit, |idle| idle.devices[place]);
            planned.peak_bytes <= limit && planned.idle_bytes <= idle_limit
        }
    });
    let limit = loaded_limit(*host, *host_ceiling, inventory.host.available_bytes);
    let idle_limit = idle.as_ref().map_or(limit, |idle| idle.host);
    within && plan.host.peak_bytes <= limit && plan.host.idle_bytes <= idle_limit
}

/// What a loaded plan may take of a memory that has so much free. Where a cap binds, that is the
/// budget: it is below what the margin alone would leave, the ceiling.
fn loaded_limit(budget: Bytes, ceiling: Bytes, free: Bytes) -> Bytes {
    let margin = free.saturating_sub(ceiling);
    if budget < ceiling { budget } else { budget.max(ceiling + Bytes(margin.0 / 2)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_may_take_half_of_the_margin_before_a_plan_is_made_anew() {
        let gib = Bytes::gib;
        // 10 free, 2 of them the margin.
        assert_eq!(loaded_limit(gib(8), gib(8), gib(10)), gib(9));
        // A cap of 6.
        assert_eq!(loaded_limit(gib(6), gib(8), gib(10)), gib(6));
        // All of it is the margin, or nothing is free.
        assert_eq!(loaded_limit(gib(0), gib(0), gib(2)), gib(1));
        assert_eq!(loaded_limit(gib(0), gib(0), gib(0)), gib(0));
    }
}
