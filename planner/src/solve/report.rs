//! The report: why each component is where it is, and why not elsewhere.
//!
//! Places of one component on the same devices, split the same way and with the same residency, are one entry: their best
//! one speaks for them.

use protocol::{Bytes, Placement, Residency};
use serde::Serialize;

use super::Problem;
use super::compose::Composition;
use super::place::{Held, Place};
use super::search::Choices;
use crate::policy::Objective;

/// Why a plan is as it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PlanReport {
    /// For each component, why it was given its place.
    pub reasons: Vec<String>,
    /// Places that lost, with the rest of the plan as it is.
    pub rejected: Vec<Rejected>,
    /// What the user should know of the files, a sentence each.
    pub notices: Vec<String>,
}

/// A place that lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Component, device and residency.
    pub placement: String,
    /// Why it lost.
    pub because: String,
}

/// Explains a combination: each other kind of place of each component is tried with the rest solved anew around it.
pub fn report(problem: &Problem<'_>, choices: &Choices<'_>, chosen: &[usize]) -> PlanReport {
    let mut reasons = Vec::new();
    let mut rejected = Vec::new();
    for (index, component) in problem.profile.components.iter().enumerate() {
        let places = &problem.places[index];
        let place = &places[chosen[index]];
        let (mut worse, mut too_large) = (0, 0);
        for group in groups(places).iter().filter(|group| !group.contains(&chosen[index])) {
            let other = &places[group[0]];
            let because = match choices.best_with(index, group) {
                Some(others) => {
                    worse += 1;
                    worse_because(problem, chosen, &others, other)
                }
                None => {
                    too_large += 1;
                    does_not_fit_because(problem, index, group)
                }
            };
            let placement = format!("{} {}", component.name, name(problem, other));
            rejected.push(Rejected { placement, because });
        }
        reasons.push(format!(
            "{}{}: {} to load, {} to compute; of the other places {worse} are no better, {too_large} do not fit",
            name(problem, place),
            details(problem, place),
            shown_ms(place.ms.load + place.ms.first_read),
            shown_ms(place.ms.compute)
        ));
    }
    rejected.extend(unused(problem));
    PlanReport { reasons, rejected, notices: problem.profile.notices.clone() }
}

/// Devices, and the host, on which nothing can be.
fn unused(problem: &Problem<'_>) -> Vec<Rejected> {
    let named =
        |device: Option<usize>| problem.pins.iter().any(|pin| pin.devices.contains(&device));
    let mut rejected = Vec::new();
    for (index, why) in problem.unusable.iter().enumerate() {
        if let Some(why) = why.as_ref().filter(|_| !named(Some(index))) {
            let placement = format!("anything on {}", problem.inventory.devices[index].id);
            rejected.push(Rejected { placement, because: why.clone() });
        }
    }
    if !problem.inventory.host.compute && !named(None) {
        rejected.push(Rejected {
            placement: "anything on host".to_owned(),
            because: "the host profile says that the host only feeds devices".to_owned(),
        });
    }
    rejected
}

/// Indices of places that are one kind, in the order of their first ones.
fn groups(places: &[Place]) -> Vec<Vec<usize>> {
    let kind = |place: &Place| (place.spread.placement, place.residency());
    let alike = |a: &Place, b: &Place| kind(a) == kind(b) && a.spread.devices == b.spread.devices;
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, place) in places.iter().enumerate() {
        match groups.iter_mut().find(|group| alike(&places[group[0]], place)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// The kind of a place.
fn name(problem: &Problem<'_>, place: &Place) -> String {
    let devices = place.spread.devices.iter().map(|device| problem.device_id(*device).0);
    let devices = devices.collect::<Vec<_>>().join("&");
    let split = match place.spread.placement {
        Placement::Layer => " by layers",
        Placement::Row => " by rows",
        Placement::One | Placement::Host => "",
    };
    let residency = match place.residency() {
        Residency::Mapped => "computed in place from the file mapping",
        Residency::Resident => "resident",
        Residency::Lazy => "lazy",
        Residency::Streamed => "streamed",
    };
    format!("on {devices}{split}, {residency}")
}

/// What tells a place from others of its kind.
fn details(problem: &Problem<'_>, place: &Place) -> String {
    let mut details = String::new();
    let spread = &place.spread;
    let numbers =
        |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(":");
    match spread.placement {
        Placement::Layer => {
            let lanes = 0..spread.devices.len() as u32;
            let count = |lane| spread.segments.iter().filter(|at| **at == lane).count() as u32;
            let counts: Vec<u32> = lanes.map(count).collect();
            details.push_str(&format!(" ({} segments)", numbers(&counts)));
        }
        Placement::Row => {
            details.push_str(&format!(" ({} of the rows)", numbers(&spread.row_shares)))
        }
        Placement::One | Placement::Host => {}
    }
    if let Held::Some { residency, lookahead, .. } = &place.held {
        let segments = 0..spread.segments.len();
        let all = segments.len();
        let streamed = segments.filter(|s| place.segment_residency(*s) == Residency::Streamed);
        details.push_str(&format!(
            " ({} of {all} segments through {lookahead} slots, the others {residency})",
            streamed.count()
        ));
    }
    if spread.parts.len() > spread.devices.len() {
        details.push_str(", the host doing what the device cannot");
    }
    if place.last_resort {
        let device = problem.device_id(spread.devices[0]);
        details.push_str(&format!(", as its weights have no room on {device} otherwise"));
    }
    details
}

/// Why a kind of place has no plan at all: too large for itself, or for what must stand beside it.
fn does_not_fit_because(problem: &Problem<'_>, component: usize, group: &[usize]) -> String {
    let profile = problem.profile_alone(component);
    let alone = problem.alone(component, &profile);
    let places = group.iter().map(|index| &problem.places[component][*index]);
    let bytes: Vec<Composition> = places.map(|p| Composition::of(&alone, &[p])).collect();
    let least = bytes.iter().min_by_key(|bytes| bytes.total()).expect("a group has places");
    match least.over(&alone).filter(|_| bytes.iter().all(|bytes| !bytes.fits(&alone))) {
        Some(over) => format!(
            "needs {} B in the {} phase, the budget of {} is {} B",
            over.needed_bytes.0,
            over.phase,
            problem.device_id(over.device),
            over.budget_bytes.0
        ),
        None => "does not fit beside the other components, wherever they are".to_owned(),
    }
}

/// Why the best plan with another place is no better than the chosen one.
fn worse_because(problem: &Problem<'_>, best: &[usize], others: &[usize], place: &Place) -> String {
    let total = |indices: &[usize]| Composition::of(problem, &problem.chosen(indices)).total();
    if problem.objective == Objective::Memory {
        let more_bytes = total(others).saturating_sub(total(best));
        if more_bytes > Bytes::ZERO {
            return format!("takes {} B more", more_bytes.0);
        }
    }
    let more_ms = counted_ms(problem, others) - counted_ms(problem, best);
    if more_ms > 0.0 {
        return format!("predicted to take {} longer", shown_ms(more_ms));
    }
    match (place.residency(), place.spread.devices.as_slice()) {
        (Residency::Lazy, _) => "no faster, and loaded anew for every job".to_owned(),
        (Residency::Resident, [None]) => "no faster, and a copy in RAM".to_owned(),
        _ => "no better; the order of the inventory decides".to_owned(),
    }
}

fn counted_ms(problem: &Problem<'_>, chosen: &[usize]) -> f64 {
    let places = problem.chosen(chosen).into_iter();
    places.map(|place| place.ms.counted(problem.objective, place.reloads())).sum()
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
