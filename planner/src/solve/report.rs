//! The report: why each component is where it is, and why not elsewhere.

use protocol::Residency;
use serde::Serialize;

use super::{Place, Problem, compose, time};
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

/// Explains a combination by changing one place at a time.
pub fn report(problem: &Problem<'_>, places: &[Place]) -> PlanReport {
    let mut reasons = Vec::new();
    let mut rejected = Vec::new();
    for (index, component) in problem.profile.components.iter().enumerate() {
        let chosen = places[index];
        let mut lost_to_time = 0;
        let mut did_not_fit = 0;
        for place in problem.places(component).into_iter().filter(|place| *place != chosen) {
            let because = match over(problem, places, index, place) {
                Some(over) => {
                    did_not_fit += 1;
                    over
                }
                None => {
                    lost_to_time += 1;
                    slower(problem, places, index, place)
                }
            };
            let placement = format!("{} {}", component.name, name(problem, place));
            rejected.push(Rejected { placement, because });
        }
        let ms = time::component_ms(problem, component, chosen);
        reasons.push(format!(
            "{}: {} to load and {} to compute; of the other places {lost_to_time} are no better and {did_not_fit} do not fit",
            name(problem, chosen),
            shown_ms(ms.load),
            shown_ms(ms.compute)
        ));
    }
    for (device, why) in problem.inventory.devices.iter().zip(&problem.unusable) {
        if let Some(why) = why {
            rejected.push(Rejected {
                placement: format!("anything on {}", device.id),
                because: why.clone(),
            });
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

fn over(problem: &Problem<'_>, places: &[Place], index: usize, place: Place) -> Option<String> {
    let mut changed = places.to_vec();
    changed[index] = place;
    let bytes = compose::bytes(problem, &changed);
    let (device, phase) = bytes.over(problem)?;
    let budget = match device {
        Some(index) => problem.budgets.devices[index],
        None => problem.budgets.host,
    };
    Some(format!(
        "{} would need {} B in the {} phase, {} B above its budget of {} B",
        problem.device_id(device),
        phase.peak_bytes.0,
        phase.phase,
        (phase.peak_bytes - budget).0,
        budget.0
    ))
}

fn slower(problem: &Problem<'_>, places: &[Place], index: usize, place: Place) -> String {
    let component = &problem.profile.components[index];
    let total = |place: Place| {
        time::component_ms(problem, component, place).counted(problem.objective, place.residency)
    };
    let more = total(place) - total(places[index]);
    if problem.objective == Objective::Memory {
        let mut changed = places.to_vec();
        changed[index] = place;
        let (bytes, best) = (compose::bytes(problem, &changed), compose::bytes(problem, places));
        let more_bytes = bytes.total().saturating_sub(best.total());
        if more_bytes.0 > 0 {
            return format!("takes {} B more", more_bytes.0);
        }
    }
    if more > 0.0 {
        return format!("predicted to take {} longer", shown_ms(more));
    }
    match place.residency {
        Residency::Lazy => "no faster, and loaded anew for every job".to_owned(),
        Residency::Resident if place.device.is_none() => "no faster, and a copy in RAM".to_owned(),
        _ => "no better; the order of the inventory decides".to_owned(),
    }
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
