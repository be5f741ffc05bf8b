//! The report: why each component is where it is, and why not elsewhere.

use protocol::profile::ComponentProfile;
use protocol::{Bytes, ModelProfile, Residency};
use serde::Serialize;

use super::{Place, Problem, compose, search, time};
use crate::policy::Objective;

/// Why a plan is as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanReport {
    /// For each component, why it was given its place.
    pub reasons: Vec<String>,
    /// Places that lost, with the rest of the plan as it is.
    pub rejected: Vec<Rejected>,
}

/// A place that lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Component, device and residency.
    pub placement: String,
    /// Why it lost.
    pub because: String,
}

/// Explains a combination: each other place of each component is tried with the rest solved anew around it.
pub fn report(problem: &Problem<'_>, places: &[Place]) -> PlanReport {
    let mut reasons = Vec::new();
    let mut rejected = Vec::new();
    for (index, component) in problem.profile.components.iter().enumerate() {
        let chosen = places[index];
        let (mut worse, mut too_large) = (0, 0);
        for place in problem.places(component).into_iter().filter(|place| *place != chosen) {
            let because = match search::best_with(problem, Some((index, place))) {
                Some(others) => {
                    worse += 1;
                    worse_because(problem, places, &others, place)
                }
                None => {
                    too_large += 1;
                    does_not_fit_because(problem, component, place)
                }
            };
            let placement = format!("{} {}", component.name, name(problem, place));
            rejected.push(Rejected { placement, because });
        }
        let ms = time::component_ms(problem, component, chosen);
        reasons.push(format!(
            "{}: {} to load, {} to compute; of the other places {worse} are no better, {too_large} do not fit",
            name(problem, chosen),
            shown_ms(ms.load),
            shown_ms(ms.compute)
        ));
    }
    for (device, why) in problem.inventory.devices.iter().zip(&problem.unusable) {
        if let Some(why) = why {
            let placement = format!("anything on {}", device.id);
            rejected.push(Rejected { placement, because: why.clone() });
        }
    }
    if !problem.inventory.host.compute {
        rejected.push(Rejected {
            placement: "anything on host".to_owned(),
            because: "the host profile says that the host only feeds devices".to_owned(),
        });
    }
    PlanReport { reasons, rejected }
}

fn name(problem: &Problem<'_>, place: Place) -> String {
    let residency = match place.residency {
        Residency::Mapped => "computed in place from the file mapping",
        Residency::Resident => "resident",
        Residency::Lazy => "lazy",
    };
    format!("on {}, {residency}", problem.device_id(place.device))
}

/// Why a place has no plan at all: too large for itself, or for what must stand beside it.
fn does_not_fit_because(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    place: Place,
) -> String {
    let profile = ModelProfile { components: vec![component.clone()], ..problem.profile.clone() };
    let alone = Problem { profile: &profile, ..problem.clone() };
    let bytes = compose::bytes(&alone, &[place]);
    match bytes.over(&alone) {
        Some((device, phase)) => format!(
            "needs {} B in the {} phase, the budget of {} is {} B",
            phase.peak_bytes.0,
            phase.phase,
            problem.device_id(device),
            problem.budget(device).0
        ),
        None => "does not fit beside the other components, wherever they are".to_owned(),
    }
}

/// Why the best plan with another place is no better than the chosen one.
fn worse_because(problem: &Problem<'_>, best: &[Place], others: &[Place], place: Place) -> String {
    if problem.objective == Objective::Memory {
        let (bytes, least) = (compose::bytes(problem, others), compose::bytes(problem, best));
        let more_bytes = bytes.total().saturating_sub(least.total());
        if more_bytes > Bytes::ZERO {
            return format!("takes {} B more", more_bytes.0);
        }
    }
    let more_ms = counted_ms(problem, others) - counted_ms(problem, best);
    if more_ms > 0.0 {
        return format!("predicted to take {} longer", shown_ms(more_ms));
    }
    match (place.residency, place.device) {
        (Residency::Lazy, _) => "no faster, and loaded anew for every job".to_owned(),
        (Residency::Resident, None) => "no faster, and a copy in RAM".to_owned(),
        _ => "no better; the order of the inventory decides".to_owned(),
    }
}

fn counted_ms(problem: &Problem<'_>, places: &[Place]) -> f64 {
    let components = problem.profile.components.iter().zip(places);
    let counted = components.map(|(component, place)| {
        time::component_ms(problem, component, *place).counted(problem.objective, place.residency)
    });
    counted.sum()
}

/// A time for people.
pub fn shown_ms(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms if ms < 60_000.0 => format!("{:.1} s", ms / 1e3),
        ms => format!("{:.1} min", ms / 6e4),
    }
}
