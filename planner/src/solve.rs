//! The solver: inventory, budgets, pins and model profile in; one plan and one report out, or `Infeasible`.
//!
//! Synchronous, pure, deterministic: no files, clocks, environment or randomness; ties end on the order of
//! the inventory. What nobody pins computes on one device or on the host; what is pinned has more places
//! (`candidates`). The search is exact: branch and bound over all combinations (`search`), with bytes by `compose` and
//! times by `time`. What is loaded early is decided last (`prefetch`).

mod assemble;
mod candidates;
mod compose;
mod held;
mod layouts;
mod nearest;
mod place;
mod prefetch;
mod prune;
mod report;
mod ring;
mod search;
mod time;

use std::sync::Arc;

use protocol::plan::MappingPolicy;
use protocol::{BackendKind, Bytes, DeviceId, GraphOptions, JobShape, ModelProfile, Plan};

pub use candidates::{Wanted, places, wanted};
pub use nearest::smallest_budget;
pub use place::{Held, Place, PlacePart, Spread};
pub use report::{PlanReport, Rejected, shown_ms};
pub use time::ComponentMs;

use crate::inventory::{DeviceKind, Inventory};
use crate::policy::pins::Pin;
use crate::policy::{Budgets, Objective};

/// Everything that a plan depends on.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    /// What is.
    pub inventory: &'a Inventory,
    /// What may be used of it.
    pub budgets: Budgets,
    /// For each device, why it is not used unless it is named, if so.
    pub unusable: Vec<Option<String>>,
    /// Path of the model.
    pub model: &'a str,
    /// What the model needs.
    pub profile: &'a ModelProfile,
    /// The sizes asked for.
    pub job: &'a JobShape,
    /// What the plan is to be best at.
    pub objective: Objective,
    /// What beside the job decides what is computed.
    pub options: &'a GraphOptions,
    /// What happens to the pages of weight files.
    pub mapping_policy: MappingPolicy,
    /// What is pinned of each component.
    pub pins: Vec<Pin>,
    /// Whether weights may be on their way before their phase.
    pub prefetch: bool,
    /// The places that each component may have: [`places`] makes them, from a problem without.
    pub places: Arc<[Vec<Place>]>,
}

impl Problem<'_> {
    /// The name of a place's device.
    pub fn device_id(&self, device: Option<usize>) -> DeviceId {
        match device {
            Some(index) => DeviceId(self.inventory.devices[index].id.clone()),
            None => DeviceId::host(),
        }
    }

    /// The budget of a device, or of the host for `None`.
    fn budget(&self, device: Option<usize>) -> Bytes {
        match device {
            Some(index) => self.budgets.devices[index],
            None => self.budgets.host,
        }
    }

    /// Room for weights: a device's budget without its overhead; on the host, what it can keep of mapped files.
    fn room(&self, device: Option<usize>) -> Bytes {
        match device {
            Some(index) => {
                let overhead = self.inventory.devices[index].overhead_bytes;
                self.budgets.devices[index].saturating_sub(overhead)
            }
            None => self.inventory.host.available_bytes,
        }
    }

    fn backend(&self, device: Option<usize>) -> BackendKind {
        match device.map(|index| self.inventory.devices[index].kind) {
            Some(DeviceKind::Cuda) => BackendKind::Cuda,
            Some(DeviceKind::Virtual) => BackendKind::Virtual,
            None => BackendKind::Host,
        }
    }

    /// The places with these indices, one for each component.
    fn chosen(&self, indices: &[usize]) -> Vec<&Place> {
        self.places.iter().zip(indices).map(|(places, index)| &places[*index]).collect()
    }

    /// The same without the places that are for want of a better one only; `None` where there are none of these.
    fn without_last_resorts(&self) -> Option<Self> {
        let mut all = self.places.iter().flatten();
        if !all.any(|place| place.last_resort) {
            return None;
        }
        let kept =
            |places: &Vec<Place>| places.iter().filter(|p| !p.last_resort).cloned().collect();
        Some(Problem { places: self.places.iter().map(kept).collect(), ..self.clone() })
    }

    /// The same with the places only that it would have with other budgets too.
    fn without_adapted(&self) -> Self {
        let kept = |places: &Vec<Place>| places.iter().filter(|p| !p.adapted).cloned().collect();
        Problem { places: self.places.iter().map(kept).collect(), ..self.clone() }
    }

    /// The problem of one component alone.
    fn alone<'b>(&'b self, index: usize, profile: &'b ModelProfile) -> Problem<'b> {
        Problem {
            profile,
            pins: vec![self.pins[index].clone()],
            places: Arc::new([self.places[index].clone()]),
            ..self.clone()
        }
    }

    /// The profile of one component alone.
    fn profile_alone(&self, index: usize) -> ModelProfile {
        let components = vec![self.profile.components[index].clone()];
        ModelProfile { components, ..self.profile.clone() }
    }
}

/// A plan and how it came about.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// What will be done.
    pub plan: Plan,
    /// Why.
    pub report: PlanReport,
}

/// Nothing fits. `nearest` budgets are exact; sizes are found by asking for their profiles in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Infeasible {
    /// Which memory is short in the least demanding placement, as a sentence.
    pub because: String,
    /// The least `--max-vram` for each device with which a plan exists.
    pub max_vram: Option<Bytes>,
    /// The least `--max-ram` with which a plan exists.
    pub max_ram: Option<Bytes>,
    /// Whether it takes both of these; else either does, with the other budget as it is.
    pub together: bool,
}

/// Whether any plan exists. Asks less than [`solve`]: neither for reasons nor for what would fit instead.
pub fn fits(problem: &Problem<'_>) -> bool {
    search::any(problem)
}

/// Finds the best plan.
pub fn solve(problem: &Problem<'_>, generation: u64) -> Result<Solution, Infeasible> {
    // What is for want of a better place only stands back while anything else fits.
    if let Some(problem) = problem.without_last_resorts()
        && let Some(solution) = solved(&problem, generation)
    {
        return Ok(solution);
    }
    solved(problem, generation).ok_or_else(|| nearest::infeasible(problem))
}

fn solved(problem: &Problem<'_>, generation: u64) -> Option<Solution> {
    let choices = search::Choices::of(problem);
    let chosen = choices.best()?;
    let report = report::report(problem, &choices, &chosen);
    let plan = assemble::plan(problem, &problem.chosen(&chosen), &report, generation);
    Some(Solution { plan, report })
}

#[cfg(test)]
mod tests;
