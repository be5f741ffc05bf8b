//! Whether a split that is left out at first could beat a plan without one, before any of them is
//! measured.
//!
//! These are splits in turns, whose devices compute one after the other: by layers all do, by rows,
//! heads or items those that share a processor; and pipelines. They are most of all places, and
//! seldom the best. For each component up to three places stand for all of them: they take no
//! memory, and the least time that the times of its segments allow. Where not even these make a
//! better plan, no such split does.

use std::sync::Arc;

use protocol::profile::LayoutPart;
use protocol::{Bytes, Division, Residency};

use super::candidates::devices_left_out;
use super::lanes::{LaneSet, SlotCounts};
use super::place::{ComponentLayout, Place, WeightResidency};
use super::search::{self, Allowance, Choices, KnownChoices, Limits, Score};
use super::time::SegmentTimes;
use super::{Problem, Solution};

/// For each component what its splits that were left out may take, where a plan with one of these
/// could be better than `solution`, by more than such a part of its time; `None` where none could.
/// `solution` is the best one of these problems, which have no such splits.
pub fn turns_that_may_beat(
    problems: &[Problem<'_>],
    solution: &Solution,
    longer_max: f64,
) -> Vec<Option<Allowance>> {
    let mut may_beat: Vec<Option<Allowance>> = problems[0].places.iter().map(|_| None).collect();
    let Some(chosen) = &solution.chosen else { return may_beat };
    // Problems that differ in their tiles have most places in common.
    let (mut made, mut known): (Vec<WithLeast>, _) = (Vec::new(), KnownChoices::default());
    for problem in problems {
        let components = 0..problem.places.len();
        let with_least = components.map(|component| WithLeast::of(problem, component, &mut made));
        let with_least: Vec<WithLeast> = with_least.collect();
        if with_least.iter().all(|places| places.least == 0) {
            continue;
        }
        let places = with_least.iter().map(|places| Arc::clone(&places.all)).collect();
        let problem = Problem { places, ..problem.clone() };
        let Some(choices) = Choices::by_time(&problem, &mut known) else { continue };
        let beat = match longer_max > 0.0 {
            true => {
                let ticks_max = chosen.score.ticks as f64 * (1.0 - longer_max);
                Score::just_beaten_by(choices.step, ticks_max as u64)
            }
            false => chosen.score,
        };
        let limits = Limits { beat: Some(beat), ..Limits::default() };
        for (may_beat, (component, places)) in
            may_beat.iter_mut().zip(with_least.iter().enumerate())
        {
            let left_out: Vec<usize> = (0..places.least).collect();
            let only = choices.with(component, &left_out);
            if only.is_some_and(|only| search::any_better(&problem, &only, limits)) {
                let ticks_max = beat.ticks_max(choices.step);
                let own = Allowance::beside(&problem, &choices, component, ticks_max);
                *may_beat = Some(match may_beat.take() {
                    Some(others) => others.or(own),
                    None => own,
                });
            }
        }
    }
    may_beat
}

/// A component's places, behind those that stand for its splits that are left out.
#[derive(Clone)]
struct WithLeast {
    /// The places without these.
    without: Arc<[Place]>,
    all: Arc<[Place]>,
    /// How many of all stand for such splits.
    least: usize,
}

impl WithLeast {
    /// Those of a problem's component: `made` has those of the problems before it, and gets these.
    fn of(problem: &Problem<'_>, component: usize, made: &mut Vec<WithLeast>) -> WithLeast {
        let without = &problem.places[component];
        let known = made.iter().find(|known| Arc::ptr_eq(&known.without, without));
        if let Some(known) = known {
            return known.clone();
        }
        let least = least(problem, component);
        let all = match least.is_empty() {
            true => Arc::clone(without),
            false => least.iter().chain(&without[..]).cloned().collect(),
        };
        made.push(WithLeast { without: Arc::clone(without), all, least: least.len() });
        made[made.len() - 1].clone()
    }
}

/// Places that are at least as good as any split of a component that is left out: they take no
/// memory. With all weights there only where the devices have room for these, else only streamed,
/// which a pipeline never is. None where the component has no such split.
fn least(problem: &Problem<'_>, component: usize) -> Vec<Place> {
    let profile = &problem.profile.components[component];
    let times = SegmentTimes::new(problem.inventory, profile, problem.options.attention_chunk);
    let [devices, in_pipelines] =
        [false, true].map(|pipelines| devices_left_out(problem, component, &times, pipelines));
    // Where there are pipelines there are layers too, on the same devices.
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
        parts: Arc::new([nothing(), nothing()]),
        crossing_bytes: Bytes::ZERO,
    });
    let streamed = WeightResidency::Some {
        residency: Residency::Resident,
        stays: vec![LaneSet::NONE; profile.segments.len()].into(),
        locked: None,
        slots: SlotCounts::alike(1),
    };
    let least = times.least_in_turns(&devices);
    // The host has its weights in place, in no budget.
    let has_room = |devices: &[Option<usize>]| {
        let room = devices.iter().map(|device| device.map(|index| problem.budgets.devices[index]));
        room.sum::<Option<Bytes>>().is_none_or(|room| room >= profile.tensor_bytes)
    };
    let held = |ms| (WeightResidency::All(Residency::Resident), ms);
    let in_turns = has_room(&devices).then(|| held(least.held));
    let pipelined = (!in_pipelines.is_empty() && has_room(&in_pipelines))
        .then(|| held(times.least_pipelined(&in_pipelines)));
    let ways = in_turns.into_iter().chain([(streamed, least.streamed)]).chain(pipelined);
    let place = |(held, ms)| Place {
        spread: Arc::clone(&spread),
        held,
        early: problem.prefetch,
        parts: Arc::new([]),
        ms,
        fullness: 0,
    };
    ways.map(place).collect()
}
