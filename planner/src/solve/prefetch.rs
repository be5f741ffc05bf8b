//! What is loaded early, decided when all places are: weights on their way while earlier phases compute.
//!
//! Resident weights are there in every phase anyway: on a device they may come while what runs before them
//! computes. Lazy ones, and those that a streamed component holds for its phase, may come during the phase before
//! theirs, if every budget still holds with them in it too.

use protocol::plan::PredictedMs;
use protocol::{Bytes, Phase, Placement};

use super::Problem;
use super::compose::Composition;
use super::place::{Place, PlacePart};
use crate::policy::Objective;

/// For each component whether its weights are loaded early, and the bytes of all with that.
pub fn decide(problem: &Problem<'_>, places: &[&Place]) -> (Vec<bool>, Composition) {
    let mut early = vec![false; places.len()];
    let mut bytes = Composition::of(problem, places);
    if !problem.prefetch {
        return (early, bytes);
    }
    let components = &problem.profile.components;
    let first = problem.job.timeline()[0];
    let may = |index: &usize| {
        let on_device = places[*index].spread.placement != Placement::Host;
        on_device && components[*index].phase != first
    };
    // What takes longest to load has the first choice; among equals, what runs first.
    let mut order: Vec<usize> = (0..places.len()).filter(may).collect();
    order.sort_by(|a, b| places[*b].ms.load.total_cmp(&places[*a].ms.load));
    for index in order {
        let place = places[index];
        let any =
            |bytes: fn(&PlacePart) -> Bytes| place.parts.iter().any(|p| bytes(p) > Bytes::ZERO);
        if !any(|part| part.lazy_bytes) {
            early[index] = any(|part| part.resident_bytes);
        } else if problem.objective != Objective::Memory {
            let mut with = bytes.clone();
            with.prefetch(components[index].phase, place);
            if with.fits(problem) {
                (early[index], bytes) = (true, with);
            }
        }
    }
    (early, bytes)
}

/// Times of a whole plan. Loads go one after the other, as storage is one: what is resident and not early before
/// anything is computed, what is lazy and not early before its phase. What is early is loaded while earlier
/// phases compute, in the order in which it is needed; its phase waits for the rest.
pub fn predict(problem: &Problem<'_>, places: &[&Place], early: &[bool]) -> PredictedMs {
    let components = || problem.profile.components.iter().zip(places);
    let mut times = PredictedMs::default();
    let mut left: Vec<f64> = places.iter().map(|place| place.ms.load).collect();
    for &phase in problem.job.timeline() {
        let mut compute = 0.0;
        for (index, (component, place)) in components().enumerate() {
            if component.phase == phase {
                times.load += place.ms.load + place.ms.first_read;
                times.total += left[index] + place.ms.first_read;
                left[index] = 0.0;
                compute += place.ms.compute;
            }
        }
        match phase {
            Phase::Denoise => times.denoise_step += compute / f64::from(problem.job.steps_run()),
            Phase::Decode => times.decode += compute,
            Phase::Condition => times.condition += compute,
            Phase::Load | Phase::Encode => {}
        }
        times.total += compute;
        let mut hidden = compute;
        for (index, (component, place)) in components().enumerate() {
            let soon = phase.next() == Some(component.phase) || !place.reloads();
            if early[index] && soon {
                let now = hidden.min(left[index]);
                (left[index], hidden) = (left[index] - now, hidden - now);
            }
        }
    }
    times
}
