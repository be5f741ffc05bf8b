//! Rings that are left out at first: of splits over many kinds of devices only some layouts have
//! any, and of these not every number of streamed segments. They are made for given budgets, where
//! they may pay.

use std::sync::Arc;

use protocol::{Bytes, Residency};
use rayon::prelude::*;

use super::super::Problem;
use super::super::component_ms::ComponentMs;
use super::super::lanes::{LaneSet, SlotCounts};
use super::super::place::{ComponentLayout, Place, SizedLayout, WeightResidency};
use super::super::search::Allowance;
use super::super::time::{SegmentTimes, Timing};
use super::lists::DeviceList;
use super::residencies::ways_to_hold;
use super::rings::{Steps, Within, rings_of, rings_with_own_slots};
use super::{DeviceKinds, LayoutQuery, kinds_of, layouts_of, lists, places_of, timed};
use crate::policy::pins::Params;

/// A layout of a component in which rings may be made.
pub struct OpenLayout {
    /// It stands for all rings: it takes no memory, and no more time than any.
    pub least: Place,
    /// Places without rings that no problem has yet.
    pub others: Vec<Place>,
}

/// The layouts of a component that do not have all of their rings. `bytes` answer `wanted`.
pub fn open_layouts(
    problem: &Problem<'_>,
    index: usize,
    wanted: &[LayoutQuery],
    bytes: &[SizedLayout],
) -> Vec<OpenLayout> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let lists = lists(problem, component, pin, &times);
    let of_list = |(at, list): (usize, &DeviceList)| {
        let asked = wanted.iter().zip(bytes);
        let asked = asked.filter(|(wanted, _)| wanted.component == index && wanted.list == at);
        match list.split.is_some() {
            true => layouts_of(problem, component, list, asked),
            false => Vec::new(),
        }
    };
    let spreads: Vec<Vec<Arc<ComponentLayout>>> =
        lists.par_iter().enumerate().map(of_list).collect();
    let kinds: Vec<DeviceKinds> =
        lists.iter().map(|list| kinds_of(problem, &list.devices)).collect();
    let timed = timed(&times, &lists, &kinds, &spreads);
    let open = timed.par_iter().zip(&spreads).flat_map_iter(|(list, spreads)| {
        list.open(problem).map(|number| OpenLayout {
            least: least(problem, &list.timings[number], &spreads[number]),
            others: Vec::new(),
        })
    });
    open.collect()
}

/// Layouts of a component that are in none of its lists.
pub fn new_layouts<'w>(
    problem: &Problem<'_>,
    index: usize,
    asked: impl Iterator<Item = (&'w LayoutQuery, &'w SizedLayout)>,
) -> Vec<OpenLayout> {
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let layouts = asked.map(|(wanted, bytes)| {
        let spread = Arc::new(wanted.answered(bytes));
        let timing = Timing::new(&times, &spread);
        let least = least(problem, &timing, &spread);
        OpenLayout { least, others: timed_whole(problem, index, &timing, &spread) }
    });
    layouts.collect()
}

/// The places of a component with rings in each of these layouts.
pub fn rings_within(
    problem: &Problem<'_>,
    index: usize,
    layouts: &[&Arc<ComponentLayout>],
    within: Within<'_>,
) -> Vec<Vec<Place>> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let of_layout = |spread: &&Arc<ComponentLayout>| {
        let timing = Timing::new(&times, spread);
        if !timing.may_stream() {
            return Vec::new();
        }
        let layout = (0, &timing, Steps::All);
        let rings = rings_of(problem, component, pin, within, layout);
        let mut ways = ways_to_hold(problem, component, pin, &timing, rings.iter());
        ways.retain(|way| matches!(way.held, WeightResidency::Some { .. }));
        places_of(problem, spread, ways)
    };
    layouts.par_iter().with_max_len(1).map(of_layout).collect()
}

/// The places of a component next to a streamed one: in the same layout over several devices, each
/// of these with a number of slots of its own, and with segments exchanged where calls read from
/// the storage; as far as they are within what is allowed, or all of them, if that is `None`.
pub fn own_slots(
    problem: &Problem<'_>,
    index: usize,
    place: &Place,
    allowance: Option<&Allowance>,
) -> Vec<Place> {
    let WeightResidency::Some { slots, locked, .. } = &place.held else { return Vec::new() };
    own_slots_in(problem, index, (&place.spread, *slots, locked.is_some()), allowance)
}

/// The same next to a layout with these slots, and whether some of what is streamed is page-locked.
pub fn own_slots_in(
    problem: &Problem<'_>,
    index: usize,
    (spread, slots, locks): (&Arc<ComponentLayout>, SlotCounts, bool),
    allowance: Option<&Allowance>,
) -> Vec<Place> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    if spread.devices.len() < 2 || pin.lookahead.is_some() {
        return Vec::new();
    }
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let timing = Timing::new(&times, spread);
    let locked_max = match pin.params {
        // All of it, or it does not fit.
        Some(Params::Locked) => Bytes(u64::MAX),
        _ => problem.locked_max(&spread.devices),
    };
    let locked_max = locks.then_some(locked_max);
    let rings = rings_with_own_slots(problem, component, &timing, slots, locked_max, allowance);
    let ways = ways_to_hold(problem, component, pin, &timing, rings.iter());
    let with_rings =
        ways.into_iter().filter(|way| matches!(way.held, WeightResidency::Some { .. }));
    places_of(problem, spread, with_rings.collect())
}

/// The places of a component in a layout in which it holds all of its weights.
pub fn held_whole(
    problem: &Problem<'_>,
    index: usize,
    spread: &Arc<ComponentLayout>,
) -> Vec<Place> {
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    timed_whole(problem, index, &Timing::new(&times, spread), spread)
}

/// The same with the layout's times.
fn timed_whole(
    problem: &Problem<'_>,
    index: usize,
    timing: &Timing<'_>,
    spread: &Arc<ComponentLayout>,
) -> Vec<Place> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    places_of(problem, spread, ways_to_hold(problem, component, pin, timing, std::iter::empty()))
}

/// What stands for a layout's rings.
fn least(problem: &Problem<'_>, timing: &Timing<'_>, spread: &Arc<ComponentLayout>) -> Place {
    let held = WeightResidency::Some {
        residency: Residency::Resident,
        stays: vec![LaneSet::NONE; spread.segments()].into(),
        locked: None,
        slots: SlotCounts::alike(1),
    };
    Place {
        spread: Arc::clone(spread),
        held,
        early: problem.prefetch,
        parts: Arc::new([]),
        ms: least_ms(problem, timing),
        fullness: 0,
    }
}

/// The least that a layout's rings take, with the room that its devices have.
pub(super) fn least_ms(problem: &Problem<'_>, timing: &Timing<'_>) -> ComponentMs {
    let spread = timing.spread();
    timing.least_streamed(|lane: usize| {
        let device = spread.devices[lane].expect("a device has room");
        problem.room_for_weights(device, spread.parts[lane].compute_bytes).unwrap_or_default()
    })
}
