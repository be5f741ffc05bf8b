//! Places of components whose weights lie on their devices already: where they are, and nowhere
//! else.
//!
//! A plan that follows a loaded one may leave every weight where it lies. Then a component's layout
//! and residencies are that plan's. Only what is made for each job is chosen anew: slots, and
//! whether what is loaded for a phase comes early. What is resident takes no time to load.

use std::sync::Arc;

use protocol::plan::{ComponentPlan, LOOKAHEAD, SegmentPlan};
use protocol::profile::ComponentProfile;
use protocol::{Division, Layout, Plan, Residency};

use super::Problem;
use super::candidates::{LayoutQuery, counts, lane};
use super::lanes::{LaneSet, SlotCounts};
use super::place::{ComponentLayout, Place, SizedLayout, WeightResidency, parts};
use super::time::{SegmentTimes, Timing};
use crate::policy::pins::group_counts;

/// The layout of a component in a plan, whose bytes are to be asked for; `None` where the devices
/// of that plan are not all here.
pub fn layout(problem: &Problem<'_>, index: usize, loaded: &Plan) -> Option<LayoutQuery> {
    let name = &problem.profile.components[index].name;
    let component = loaded.components.iter().find(|component| component.name == *name)?;
    let places = problem.inventory.places_of(loaded);
    let mut devices = Vec::new();
    for id in &component.devices {
        devices.push(match id.is_host() {
            true => None,
            false => {
                let planned = loaded.devices.iter().position(|device| device.id == *id)?;
                Some(places[planned]?)
            }
        });
    }
    let (profile, pin) = (&problem.profile.components[index], &problem.pins[index]);
    // The weights are the same for this job's items, whoever has how many of them.
    let division = match &component.division {
        Division::Pipeline { segments, .. } => {
            let segments = segments.clone();
            match group_counts(profile.items, devices.len()).into_iter().next() {
                Some(counts) => Division::Pipeline { segments, counts },
                None => Division::Layer { segments },
            }
        }
        Division::Items { .. } => {
            let chunk = problem.options.attention_chunk;
            let times = SegmentTimes::new(problem.inventory, profile, chunk);
            let counts = counts(problem, profile, pin, &devices, &times).into_iter().next()?;
            Division::Items { counts }
        }
        other => other.clone(),
    };
    let layout = Layout {
        component: name.clone(),
        lanes: devices.iter().map(|device| lane(problem, *device)).collect(),
        division,
    };
    Some(LayoutQuery::of(index, devices, layout))
}

/// The places of a component that is laid out as in a plan; none where what it holds there cannot
/// be held so by the solver's own places.
pub fn places(
    problem: &Problem<'_>,
    wanted: &LayoutQuery,
    bytes: &SizedLayout,
    loaded: &Plan,
) -> Arc<[Place]> {
    let profile = &problem.profile.components[wanted.component];
    let before = loaded.components.iter().find(|component| component.name == profile.name);
    let before = before.expect("a layout of this plan");
    let spread = Arc::new(spread(profile, wanted, bytes));
    let times = SegmentTimes::new(problem.inventory, profile, problem.options.attention_chunk);
    let timing = Timing::new(&times, &spread);
    let mut places = Vec::new();
    for held in ways(before) {
        for early in earliness(problem, profile, before, &held) {
            let mut place = Place {
                parts: parts(&spread, &held, early).into(),
                ms: timing.ms(&held),
                fullness: 0,
                spread: Arc::clone(&spread),
                held: held.clone(),
                early,
            };
            place.ms = place.ms.again(place.reloads());
            places.push(place);
        }
    }
    places.into()
}

fn spread(
    profile: &ComponentProfile,
    wanted: &LayoutQuery,
    bytes: &SizedLayout,
) -> ComponentLayout {
    let on_host = wanted.devices == [None];
    ComponentLayout {
        devices: wanted.devices.clone(),
        division: wanted.layout.division.clone(),
        parts: Arc::clone(&bytes.parts),
        crossing_bytes: match &*bytes.parts {
            // As the solver counts what a component alone on a device exchanges with the host.
            [_] if !on_host => profile.boundary_bytes,
            _ => bytes.crossing_bytes,
        },
    }
}

/// How its weights may be held: as they are, with as many slots as before, or with fewer.
fn ways(before: &ComponentPlan) -> Vec<WeightResidency> {
    if before.residency != Residency::Streamed {
        return vec![WeightResidency::All(before.residency)];
    }
    let is_any = |segment: &SegmentPlan, is_it: fn(Residency) -> bool| {
        segment.residencies.iter().any(|residency| is_it(*residency))
    };
    let is_locked = |residency| residency == Residency::Locked;
    // Of a segment all devices that stream it have copies, or none: no other plan is made.
    let from_files = |segment: &SegmentPlan| is_any(segment, |r| r == Residency::Streamed);
    if before.segments.iter().any(|s| from_files(s) && is_any(s, is_locked)) {
        return Vec::new();
    }
    let stays = |segment: &SegmentPlan| {
        let mut stays = LaneSet::ALL;
        for (lane, residency) in segment.residencies.iter().enumerate() {
            stays.set(LaneSet::from(lane), !residency.is_streamed());
        }
        stays
    };
    let stays: Arc<[LaneSet]> = before.segments.iter().map(stays).collect();
    let locked: Arc<[bool]> = before.segments.iter().map(|s| is_any(s, is_locked)).collect();
    let locked = locked.contains(&true).then_some(locked);
    let mut held = before.segments.iter().flat_map(|segment| segment.residencies.iter().copied());
    let is_kind =
        |residency: &Residency| matches!(residency, Residency::Resident | Residency::Lazy);
    let residency = held.find(is_kind).unwrap_or(Residency::Lazy);
    if held.filter(is_kind).any(|other| other != residency) {
        return Vec::new();
    }
    let lanes = before.parts.iter().take(before.devices.len()).enumerate();
    let as_before = lanes.fold(SlotCounts::alike(before.lookahead), |slots, (lane, part)| {
        slots.with(lane, part.slots)
    });
    let fewer = [LOOKAHEAD, 1].into_iter().filter(|fewer| *fewer < before.lookahead);
    let slots = std::iter::once(as_before).chain(fewer.map(SlotCounts::alike));
    let way = |slots| {
        let (stays, locked) = (Arc::clone(&stays), locked.clone());
        WeightResidency::Some { residency, stays, locked, slots }
    };
    slots.map(way).collect()
}

/// Whether what is held may come early: as before, and what is loaded for its phase also not.
fn earliness(
    problem: &Problem<'_>,
    profile: &ComponentProfile,
    before: &ComponentPlan,
    held: &WeightResidency,
) -> Vec<bool> {
    let first = problem.job.timeline()[0];
    let lazy = match held {
        WeightResidency::All(residency) | WeightResidency::Some { residency, .. } => {
            *residency == Residency::Lazy
        }
    };
    match before.prefetch && profile.phase != first {
        true if lazy => vec![true, false],
        early => vec![early],
    }
}
