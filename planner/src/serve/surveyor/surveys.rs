//! Surveys that were made before: measuring a model takes many questions to an executor, solving
//! for other budgets none.

use std::time::{Duration, Instant};

use protocol::{Bytes, Plan};

use crate::engine::session::Session;
use crate::inventory::Inventory;
use crate::planning::{self, PlanError, Request, Survey, only_keeping};
use crate::solve::Solution;

/// Most surveys that are kept: some sizes of some models. One has some megabytes.
const SURVEYS_MAX: usize = 16;

/// How long one is good for: what of the files is in the page cache changes without a word.
pub const AGE_MAX: Duration = Duration::from_secs(60);

/// The number of a plan that nobody loads.
const GENERATION: u64 = 1;

/// By what was asked, the last used at the end.
#[derive(Default)]
pub struct Surveys(Vec<KeptSurvey>);

struct KeptSurvey {
    request: Request,
    /// The request's inventory, without what is free.
    machine: Inventory,
    survey: Survey,
    made_at: Instant,
}

impl Surveys {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets all of them.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A plan of a job's own.
    ///
    /// # Errors
    /// As [`planning::plan`].
    pub fn own(&mut self, session: &mut Session, request: &Request) -> Result<Solution, PlanError> {
        match request.explain {
            // With all that is told beside it.
            true => planning::plan(session, request, GENERATION),
            false => self.plan(session, request, GENERATION),
        }
    }

    /// A plan that leaves a loaded one's weights where they lie; `None` where none does.
    ///
    /// # Errors
    /// As [`planning::plan_keeping`].
    pub fn keeping(
        &mut self,
        session: &mut Session,
        request: &Request,
        loaded: &Plan,
    ) -> Result<Option<Solution>, PlanError> {
        let generation = loaded.generation + 1;
        only_keeping(self.plan(session, &request.keeping(loaded), generation), loaded)
    }

    fn plan(
        &mut self,
        session: &mut Session,
        request: &Request,
        generation: u64,
    ) -> Result<Solution, PlanError> {
        self.0.retain(|kept| kept.made_at.elapsed() < AGE_MAX);
        let machine = without_free(&request.inventory);
        let at = self.0.iter().position(|kept| kept.is_for(request, &machine));
        let mut kept = match at {
            Some(at) => self.0.remove(at),
            None => {
                let survey = Survey::new(session, request)?;
                let request = request.clone();
                KeptSurvey { request, machine, survey, made_at: Instant::now() }
            }
        };
        let solution = kept.survey.plan(session, request, generation);
        if self.0.len() == SURVEYS_MAX {
            self.0.remove(0);
        }
        self.0.push(kept);
        solution
    }
}

impl KeptSurvey {
    fn is_for(&self, request: &Request, machine: &Inventory) -> bool {
        self.request.asks_the_same(request)
            && self.request.keeps == request.keeps
            && self.machine == *machine
    }
}

/// An inventory with nothing free: rates, sizes and names are left.
fn without_free(inventory: &Inventory) -> Inventory {
    let mut machine = inventory.clone();
    machine.host.available_bytes = Bytes::ZERO;
    for device in &mut machine.devices {
        device.free_bytes = Bytes::ZERO;
        device.used_by_others_bytes = Bytes::ZERO;
        if let Some(part) = &mut device.part {
            part.gpu_free_bytes = Bytes::ZERO;
        }
    }
    machine
}
