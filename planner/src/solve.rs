//! The solver: inventory, budgets, pins and model profile in; one plan and one report out, or
//! `Infeasible`.
//!
//! Synchronous, pure, deterministic: no files, clocks, environment or randomness; ties end on the
//! order of the candidates. Each component has many places (`candidates`): any device or the host,
//! splits over several, with weights resident, lazy, streamed or mapped, early or not. The search
//! is exact for up to four devices: branch and bound over all combinations (`search`), with bytes
//! by `compose` and times by `time` and `timeline`. Splits whose devices take turns, most of all
//! places, are left out until `turns` says that they may pay. Options that change what is computed,
//! as the VAE's tiles, make problems of their own. The plan is that of the problem that has the
//! best one.
//!
//! Nothing that may be chosen so depends on a budget: more of it is never worse. Then `refine`
//! looks for a better plan with the budgets at hand, as over unlike devices most rings are left
//! out.

mod advice;
mod assemble;
mod candidates;
mod component_ms;
mod compose;
mod kept;
mod lanes;
mod layouts;
mod nearest;
mod place;
mod refine;
mod report;
mod ring;
mod search;
mod streamable;
mod time;
mod timeline;
mod turns;

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::plan::MappingPolicy;
use protocol::{
    BackendKind, Bytes, DeviceId, GraphOptions, JobShape, ModelProfile, ModelSource, Plan,
    Residency,
};

pub use advice::{Advice, Faster, Integrated};
pub use candidates::{
    KnownLists, KnownPlaces, LayoutQuery, Lists, Within, places, places_beside, wanted,
};
pub use kept::{layout as kept_layout, places as kept_places};
pub use nearest::{infeasible, smallest_budget};
pub use place::{ComponentLayout, Place, PlacePart, SizedLayout, WeightResidency};
pub use refine::{OpenLayouts, refined};
pub use report::{PlanReport, Rejected, Shortfall, explain, options, shown_ms, slots};
pub use time::SHORT_ATTENTION_CHUNK;
pub use turns::turns_that_may_beat;

use crate::inventory::{Device, Inventory};
use crate::policy::pins::Pin;
use crate::policy::{Budgets, Objective};
pub use search::{Allowance, KnownChoices};
use search::{Choices, Limits, Score};

/// Staging of all devices is little if it takes such a part, at most, of what may be page-locked.
const STAGING_PART: u64 = 16;

/// Everything that a plan depends on.
#[derive(Debug, Clone)]
pub struct Problem<'a> {
    /// What is.
    pub inventory: &'a Inventory,
    /// What may be used of it.
    pub budgets: Budgets,
    /// For each device, why it is not used unless it is named, if so.
    pub unusable: Vec<Option<String>>,
    /// Where the model is.
    pub model: &'a ModelSource,
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
    pub places: Vec<Arc<[Place]>>,
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

    /// What a device's budget leaves for weights and slots beside an arena; `None` where it has not
    /// even room for that. Parts of a GPU have one context, which the search adds.
    fn room_for_weights(&self, device: usize, compute_bytes: Bytes) -> Option<Bytes> {
        let Device { part, overhead_bytes, .. } = &self.inventory.devices[device];
        let fixed = if part.is_some() { Bytes::ZERO } else { *overhead_bytes };
        let left = self.budgets.devices[device].0.checked_sub(fixed.0)?;
        left.checked_sub(compute_bytes.0).map(Bytes)
    }

    /// What page-locked copies of a component's weights may take beside the job's own buffers and
    /// the staging of its devices; of all devices, where that is little.
    fn locked_max(&self, devices: &[Option<usize>]) -> Bytes {
        let Budgets { host, pinned, .. } = &self.budgets;
        let host = host.saturating_sub(self.profile.job_bytes + self.profile.changed_bytes);
        let most = pinned.map_or(host, |pinned| pinned.min(host));
        let staging = |device: usize| self.inventory.devices[device].pinned_bytes;
        let of_all: Bytes = (0..self.inventory.devices.len()).map(staging).sum();
        if of_all.0 <= most.0 / STAGING_PART {
            return most.saturating_sub(of_all);
        }
        let own: BTreeSet<usize> = devices.iter().copied().flatten().collect();
        most.saturating_sub(own.into_iter().map(staging).sum())
    }

    fn backend(&self, device: Option<usize>) -> BackendKind {
        device.map_or(BackendKind::Host, |index| self.inventory.devices[index].kind.backend())
    }

    /// The places with these indices, one for each component.
    fn chosen(&self, indices: &[usize]) -> Vec<&Place> {
        self.places.iter().zip(indices).map(|(places, index)| &places[*index]).collect()
    }

    /// The indices of these places; `None` where one of them is not here.
    fn indices(&self, chosen: &[Place]) -> Option<Vec<usize>> {
        let each = self.places.iter().zip(chosen);
        each.map(|(places, chosen)| places.iter().position(|place| place == chosen)).collect()
    }

    /// The same without places where weights cannot be changed when they are loaded, as they are
    /// streamed or split by rows or heads, but for components that are pinned there or whose LoRA
    /// products are added while they run.
    pub fn without_products(&self, runtime: &[String]) -> Self {
        let components = self.profile.components.iter().zip(&self.pins);
        let places = components.zip(&self.places).map(|((component, pin), places)| {
            if runtime.contains(&component.name) || pin.forbids_changes() {
                return Arc::clone(places);
            }
            let changes = |place: &&Place| {
                place.residency() != Residency::Streamed && place.spread.division.shares().is_none()
            };
            places.iter().filter(changes).cloned().collect()
        });
        Problem { places: places.collect(), ..self.clone() }
    }

    /// The problem of one component alone.
    fn alone<'b>(&'b self, index: usize, profile: &'b ModelProfile) -> Problem<'b> {
        Problem {
            profile,
            pins: vec![self.pins[index].clone()],
            places: vec![Arc::clone(&self.places[index])],
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
    /// `None` for a plan that somebody else made.
    chosen: Option<Chosen>,
}

/// What a plan was made of.
#[derive(Debug, Clone, PartialEq)]
struct Chosen {
    /// The problem that it solves, of those that were given.
    problem: usize,
    /// The place of each component.
    places: Vec<Place>,
    /// What it is compared by.
    score: Score,
}

impl Solution {
    /// A plan that somebody else made.
    pub fn given(plan: Plan) -> Solution {
        Solution { plan, report: PlanReport::default(), chosen: None }
    }

    /// Which of the problems it solves, by its index; `None` for a plan that somebody else made.
    pub fn problem(&self) -> Option<usize> {
        self.chosen.as_ref().map(|chosen| chosen.problem)
    }

    /// How long weights are loaded, and the storage reads those that are streamed, in milliseconds:
    /// about as long with any other sizes of the job. 0 of a plan that somebody else made.
    pub fn reading_ms(&self) -> f64 {
        let places = self.chosen.iter().flat_map(|chosen| &chosen.places);
        places.map(|place| place.ms.load + place.ms.storage).sum()
    }
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
    /// Where all of a memory that is free is its margin: the flag that says how much stays free
    /// instead.
    pub margin_flag: Option<&'static str>,
}

/// Whether any plan exists. Asks less than [`solve`]: neither for the best nor for what would fit
/// instead.
pub fn fits(problems: &[Problem<'_>]) -> bool {
    problems.iter().any(search::any)
}

/// Finds the best plan of problems that differ in their options; of equal ones the first's. The
/// report has reasons only.
pub fn solve(problems: &[Problem<'_>], generation: u64) -> Result<Solution, Infeasible> {
    let found = better(problems, generation, None, &mut KnownChoices::default());
    found.ok_or_else(|| infeasible(problems))
}

/// The best plan that is better than another one, if there is one. `known` has choices of these
/// problems, and gets those that are made.
pub fn better(
    problems: &[Problem<'_>],
    generation: u64,
    than: Option<&Solution>,
    known: &mut KnownChoices,
) -> Option<Solution> {
    let mut limits = Limits::of(problems, known);
    limits.beat = than.and_then(|solution| solution.chosen.as_ref()).map(|chosen| chosen.score);
    let mut best = None;
    for (index, problem) in problems.iter().enumerate() {
        let Some(choices) = Choices::by_time(problem, known) else { continue };
        if let Some(found) = search::best(problem, &choices, limits) {
            limits.beat = Some(found.score);
            best = Some((index, found));
        }
    }
    let (index, found) = best?;
    let (problem, places) = (&problems[index], problems[index].chosen(&found.places));
    let report = report::reasons(problem, &places);
    let plan = assemble::plan(problem, &places, &report, generation);
    let places = places.into_iter().cloned().collect();
    let chosen = Some(Chosen { problem: index, places, score: found.score });
    Some(Solution { plan, report, chosen })
}

#[cfg(test)]
mod tests;
