//! The report: why each component is where it is, why not elsewhere, and what kept the job from
//! being faster.
//!
//! Places of one component on one device, or on one of several alike, or split the same way, with
//! the same residency, are one entry: their best one speaks for them.

mod words;

use protocol::plan::VaeTile;
use protocol::profile::ComponentProfile;
use protocol::{Bytes, DeviceId, GraphOptions, Phase, Residency};
use rayon::prelude::*;
use serde::Serialize;

use super::advice::Advice;
use super::compose::Composition;
use super::place::Place;
use super::search::{self, Choices, Found, KnownChoices, Limits, Score};
use super::timeline;
use super::{Problem, Solution};
use crate::inventory::Device;
use crate::policy::Objective;
use words::{bound, details, name};
pub use words::{shown_ms, slots};

/// Branches of the search for the best plan with a place that lost: what it costs is told as far as
/// it was found by then.
const EXPLAIN_BRANCHES_MAX: u64 = 100;

/// A memory bounds a job where all of it would save more than this part of the job's time.
const SAVED_PART_MIN: f64 = 0.005;

/// Why a plan is as it is.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct PlanReport {
    /// For each component, why it was given its place.
    pub reasons: Vec<String>,
    /// Places that lost.
    pub rejected: Vec<Rejected>,
    /// What kept the job from being faster, a sentence each: the memories that were full, with what
    /// more of them would have saved.
    pub bounds: Vec<String>,
    /// What the user should know of the files, a sentence each.
    pub notices: Vec<String>,
    /// What other plans would take.
    pub advice: Advice,
}

/// A place that lost.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Rejected {
    /// Component, device and residency.
    pub placement: String,
    /// Why it lost.
    pub because: String,
    /// How much longer the job would take with the best plan that has it, in milliseconds; `None`
    /// where none fits.
    pub more_ms: Option<f64>,
    /// How many bytes more that plan takes on devices and host together; below 0 where it takes
    /// fewer. `None` where none fits.
    pub more_bytes: Option<i64>,
    /// Where none fits: the memory that is short.
    pub short: Option<Shortfall>,
}

/// A memory that is short.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shortfall {
    /// The device, or `host`.
    pub device: DeviceId,
    /// When most is needed.
    pub phase: Phase,
    /// What is needed then.
    pub needed_bytes: Bytes,
    /// What may be used.
    pub budget_bytes: Bytes,
}

/// The reasons of chosen places.
pub fn reasons(problem: &Problem<'_>, chosen: &[&Place]) -> PlanReport {
    let reason = |(component, place): (&ComponentProfile, &&Place)| {
        format!(
            "{}{}: {} to load, {} to compute{}",
            name(problem, place),
            details(place),
            shown_ms(place.ms.load + place.ms.first_read),
            shown_ms(place.ms.compute),
            bound(problem, component, place)
        )
    };
    let components = problem.profile.components.iter();
    PlanReport {
        reasons: components.zip(chosen).map(reason).collect(),
        rejected: Vec::new(),
        bounds: Vec::new(),
        notices: problem.profile.notices.clone(),
        advice: Advice::default(),
    }
}

/// Adds what else there was to a solution of these problems, or of the same ones with fewer places:
/// each other kind of place of each component, with the rest solved anew around it, and each other
/// problem; and what more of each memory would have saved. All of that is searched for on all
/// cores. `known` has choices of these problems.
pub fn explain(problems: &[Problem<'_>], solution: &mut Solution, known: &mut KnownChoices) {
    let Some(chosen) = &solution.chosen else { return };
    let problem = &problems[chosen.problem];
    let Some(choices) = Choices::by_time(problem, known) else { return };
    let Some(places) = problem.indices(&chosen.places) else { return };
    let limits = Limits { branches_max: Some(EXPLAIN_BRANCHES_MAX), ..Limits::of(problems, known) };
    let Some(best) = found(problem, &choices, &places) else { return };
    let lost = (0..problem.places.len()).flat_map(|component| {
        let others = groups(problem, component).into_iter();
        let others = others.filter(|group| !group.contains(&places[component]));
        others.map(move |group| (component, group)).collect::<Vec<_>>()
    });
    let lost: Vec<(usize, Vec<usize>)> = lost.collect();
    solution.report.rejected.par_extend(lost.par_iter().map(|(component, group)| {
        let with = choices.with(*component, group);
        let other = with.and_then(|with| search::best(problem, &with, limits));
        rejected(problem, *component, group, &best, other.as_ref())
    }));
    let others = problems.iter().enumerate().filter(|(index, _)| *index != chosen.problem);
    let others: Vec<(&Problem<'_>, Option<Choices>)> =
        others.map(|(_, other)| (other, Choices::by_time(other, known))).collect();
    solution.report.rejected.par_extend(
        others.into_par_iter().map(|(other, choices)| other_options(other, choices, &best, limits)),
    );
    solution.report.rejected.extend(unused(problem));
    solution.report.bounds = bounds(problem, &choices, &best, limits);
}

/// The score of chosen places: that of the only combination there is of them.
fn found(problem: &Problem<'_>, choices: &Choices, places: &[usize]) -> Option<Found> {
    let mut only = choices.clone();
    for (component, place) in places.iter().enumerate() {
        only = only.with(component, &[*place])?;
    }
    search::best(problem, &only, Limits::default())
}

/// Why a group of places lost.
fn rejected(
    problem: &Problem<'_>,
    component: usize,
    group: &[usize],
    best: &Found,
    other: Option<&Found>,
) -> Rejected {
    let place = &problem.places[component][other.map_or(group[0], |found| found.places[component])];
    let which = &problem.profile.components[component].name;
    let detail = if other.is_some() { details(place) } else { String::new() };
    let placement = format!("{which} {}{detail}", name(problem, place));
    match other {
        Some(other) => Rejected {
            placement,
            because: worse_because(problem, best, other, place),
            more_ms: Some(more_ms(best, other)),
            more_bytes: Some(other.total.0 as i64 - best.total.0 as i64),
            short: None,
        },
        None => {
            let short = short(problem, component, group);
            let because = match &short {
                Some(Shortfall { device, phase, needed_bytes, budget_bytes }) => format!(
                    "needs {} B in the {phase} phase, the budget of {device} is {} B",
                    needed_bytes.0, budget_bytes.0
                ),
                None => "does not fit beside the other components, wherever they are".to_owned(),
            };
            Rejected { placement, because, short, ..Rejected::default() }
        }
    }
}

/// Why other options lost.
fn other_options(
    problem: &Problem<'_>,
    choices: Option<Choices>,
    best: &Found,
    limits: Limits,
) -> Rejected {
    let placement = options(problem.options);
    match choices.and_then(|choices| search::best(problem, &choices, limits)) {
        Some(other) => Rejected {
            placement,
            because: match more_ms(best, &other) {
                more if more > 0.0 => format!("predicted to take {} longer", shown_ms(more)),
                _ => "no faster".to_owned(),
            },
            more_ms: Some(more_ms(best, &other)),
            more_bytes: Some(other.total.0 as i64 - best.total.0 as i64),
            short: None,
        },
        None => Rejected { placement, because: "does not fit".to_owned(), ..Rejected::default() },
    }
}

/// The options that there is a choice of.
pub fn options(options: &GraphOptions) -> String {
    let tile = match options.vae_tile {
        Some(VaeTile { width, height, .. }) => format!("VAE in tiles of {width}x{height}"),
        None => "VAE without tiles".to_owned(),
    };
    format!("{tile}, attention by {} queries", options.attention_chunk)
}

/// How much longer a job takes.
fn more_ms(best: &Found, other: &Found) -> f64 {
    timeline::ms(other.score.ticks) - timeline::ms(best.score.ticks)
}

/// For each memory with a budget below all of it, what the job would save with all of it: those
/// that would.
fn bounds(problem: &Problem<'_>, choices: &Choices, best: &Found, limits: Limits) -> Vec<String> {
    // What saves less is not told, and so not looked for.
    let ticks_max = ((1.0 - SAVED_PART_MIN) * best.score.ticks as f64) as u64;
    let beat = Some(Score::just_beaten_by(choices.step, ticks_max));
    let devices = problem.inventory.devices.iter().enumerate();
    let memories = devices.map(|(index, device)| (Some(index), device.total_bytes));
    let memories: Vec<(Option<usize>, Bytes)> =
        memories.chain([(None, problem.inventory.host.total_bytes)]).collect();
    let bound = |(device, all): (Option<usize>, Bytes)| {
        let budget = problem.budget(device);
        if budget >= all || problem.objective == Objective::Memory {
            return None;
        }
        let mut more = problem.clone();
        match device {
            Some(index) => more.budgets.devices[index] = all,
            None => (more.budgets.host, more.budgets.host_ceiling) = (all, all),
        }
        let found = choices
            .no_longer_than(&more, ticks_max)
            .and_then(|choices| search::best(&more, &choices, Limits { beat, ..limits }));
        let saved_ms = found.map_or(0.0, |found| -more_ms(best, &found));
        (saved_ms > SAVED_PART_MIN * timeline::ms(best.score.ticks)).then(|| {
            format!(
                "the budget of {} is {budget}: with all of its {all} the job would take {} less",
                problem.device_id(device),
                shown_ms(saved_ms)
            )
        })
    };
    memories.into_par_iter().filter_map(bound).collect()
}

/// Devices, and the host, on which nothing can be.
fn unused(problem: &Problem<'_>) -> Vec<Rejected> {
    let named =
        |device: Option<usize>| problem.pins.iter().any(|pin| pin.devices.contains(&device));
    let mut rejected = Vec::new();
    for (index, why) in problem.unusable.iter().enumerate() {
        if let Some(why) = why.as_ref().filter(|_| !named(Some(index))) {
            let placement = format!("anything on {}", problem.inventory.devices[index].id);
            let because = why.clone();
            rejected.push(Rejected { placement, because, ..Rejected::default() });
        }
    }
    if !problem.inventory.host.compute && !named(None) {
        rejected.push(Rejected {
            placement: "anything on host".to_owned(),
            because: "the host profile says that the host only feeds devices".to_owned(),
            ..Rejected::default()
        });
    }
    rejected
}

/// Indices of a component's places that are one kind, in the order of their first ones.
fn groups(problem: &Problem<'_>, component: usize) -> Vec<Vec<usize>> {
    let places = &problem.places[component];
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, place) in places.iter().enumerate() {
        let of_its_kind = |group: &&mut Vec<usize>| {
            let first = &places[group[0]];
            first.spread.placement() == place.spread.placement()
                && first.residency() == place.residency()
                && only_device(problem, first) == only_device(problem, place)
        };
        match groups.iter_mut().find(of_its_kind) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// The device of a place that has only one, `None` in it for the host. Of devices that are alike
/// the first one speaks for all.
fn only_device(problem: &Problem<'_>, place: &Place) -> Option<Option<usize>> {
    let [device] = place.spread.devices.as_slice() else { return None };
    Some(device.map(|index| {
        let devices = &problem.inventory.devices;
        let mut before = devices[..index].iter();
        before.position(|other| are_alike(other, &devices[index])).unwrap_or(index)
    }))
}

fn are_alike(a: &Device, b: &Device) -> bool {
    a.kind == b.kind
        && a.name == b.name
        && a.speeds.half_flops_per_s.value == b.speeds.half_flops_per_s.value
        && a.speeds.integer_flops_per_s == b.speeds.integer_flops_per_s
        && a.link_bytes_per_s.value == b.link_bytes_per_s.value
}

/// The memory that is short for each of a group's places even alone, in the least of them; `None`
/// where some fits alone.
fn short(problem: &Problem<'_>, component: usize, group: &[usize]) -> Option<Shortfall> {
    let profile = problem.profile_alone(component);
    let alone = problem.alone(component, &profile);
    let places = group.iter().map(|index| &problem.places[component][*index]);
    let bytes: Vec<Composition> = places.map(|p| Composition::of(&alone, &[p])).collect();
    if bytes.iter().any(|bytes| bytes.fits(&alone)) {
        return None;
    }
    let least = bytes.iter().min_by_key(|bytes| bytes.total())?;
    let over = least.over(&alone)?;
    Some(Shortfall {
        device: problem.device_id(over.device),
        phase: over.phase,
        needed_bytes: over.needed_bytes,
        budget_bytes: over.budget_bytes,
    })
}

/// Why the best plan with another place is no better than the chosen one.
fn worse_because(problem: &Problem<'_>, best: &Found, other: &Found, place: &Place) -> String {
    let more_bytes = other.total.saturating_sub(best.total);
    if problem.objective == Objective::Memory && more_bytes > Bytes::ZERO {
        return format!("takes {} B more", more_bytes.0);
    }
    match (more_ms(best, other), place.residency(), place.spread.devices.as_slice()) {
        (more, _, _) if more > 0.0 => format!("predicted to take {} longer", shown_ms(more)),
        (_, Residency::Lazy, _) => "no faster, and loaded anew for every job".to_owned(),
        (_, Residency::Resident, [None]) => "no faster, and a copy in RAM".to_owned(),
        _ if more_bytes > Bytes::ZERO => format!("no faster, and takes {} B more", more_bytes.0),
        _ => "as good; the first of equal ones is taken".to_owned(),
    }
}
