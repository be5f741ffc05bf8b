//! Whether a split by layers could beat a plan without one, before any of them is measured.
//!
//! Splits by layers are most of all places, and seldom the best. Each component's best one that is
//! conceivable stands for all: it takes no memory, and the least time that the times of its
//! segments allow. Where not even that makes a better plan, no split by layers does.

use std::sync::Arc;

use protocol::profile::LayoutPart;
use protocol::{Bytes, Division, Residency};

use super::candidates::{Lists, devices_of_layers};
use super::place::{ComponentLayout, Place, WeightResidency};
use super::search::{self, Choices, KnownChoices, Limits};
use super::time::SegmentTimes;
use super::{Problem, Solution};

/// For each component all lists of devices where a plan with a split of it by layers could be
/// better than the best one without any, which is that of these problems; else those without.
pub fn lists_that_may_beat(problems: &[Problem<'_>], solution: &Solution) -> Vec<Lists> {
    let mut may_beat = vec![Lists::WithoutLayers; problems[0].places.len()];
    for problem in problems {
        add(problem, solution, &mut may_beat);
    }
    may_beat
}

fn add(problem: &Problem<'_>, solution: &Solution, may_beat: &mut [Lists]) {
    let Some(chosen) = &solution.chosen else { return };
    let limits = Limits { beat: Some(chosen.score), ..Limits::default() };
    let least: Vec<Vec<Place>> =
        (0..may_beat.len()).map(|component| least(problem, component)).collect();
    if least.iter().all(Vec::is_empty) {
        return;
    }
    let all = problem.places.iter().zip(&least);
    let all = all.map(|(places, least)| match least.is_empty() {
        true => Arc::clone(places),
        false => least.iter().chain(&places[..]).cloned().collect(),
    });
    let beside = Problem { places: all.collect(), ..problem.clone() };
    let Some(choices) = Choices::by_time(&beside, &mut KnownChoices::default()) else { return };
    for (component, least) in least.iter().enumerate() {
        let of_layers: Vec<usize> = (0..least.len()).collect();
        let only = choices.with(component, &of_layers);
        if only.is_some_and(|only| search::any_better(&beside, &only, limits)) {
            may_beat[component] = Lists::All;
        }
    }
}

/// The places that no split by layers of a component is better than, of which each takes no memory;
/// none where it has no such split.
fn least(problem: &Problem<'_>, component: usize) -> Vec<Place> {
    let profile = &problem.profile.components[component];
    let times = SegmentTimes::new(problem.inventory, profile, problem.options.attention_chunk);
    let devices = devices_of_layers(problem, component, &times);
    if devices.is_empty() {
        return Vec::new();
    }
    let nothing = || LayoutPart {
        compute_bytes: Bytes::ZERO,
        segment_bytes: vec![Bytes::ZERO; profile.segments.len()],
    };
    // Of all that are compared the simplest: two devices, nothing loaded anew.
    let spread = Arc::new(ComponentLayout {
        devices: vec![devices[0]; 2],
        division: Division::Layer { segments: vec![0; profile.segments.len()] },
        parts: vec![nothing(), nothing()],
        crossing_bytes: Bytes::ZERO,
    });
    let streamed = WeightResidency::Some {
        residency: Residency::Resident,
        stays: vec![false; profile.segments.len()].into(),
        locked: None,
        lookahead: 1,
    };
    let least = times.least_by_layers(&devices);
    let ways =
        [(WeightResidency::All(Residency::Resident), least.held), (streamed, least.streamed)];
    let place = |(held, ms)| Place {
        spread: Arc::clone(&spread),
        held,
        early: problem.prefetch,
        parts: Vec::new(),
        ms,
        fullness: 0,
    };
    ways.map(place).into()
}
