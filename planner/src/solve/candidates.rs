//! Candidates: every place that each component may have, with exact bytes.
//!
//! What one device, or the host, takes of a component as a whole is stated by the profile. What
//! several devices take, and what a device cannot do alone, are layouts whose bytes the executor is
//! asked for first:
//! ```text
//! Problem without places ──wanted──► layouts ──Size──► bytes ──places──► Problem
//! ```
//! None of these depends on a budget. What does is made when a plan is known ([`more_rings`],
//! [`likely_cuts`], [`neighbours`], [`mod@nearby`]).

mod estimated;
mod likely_cuts;
mod likely_heads;
mod lists;
mod more_rings;
mod nearby;
mod neighbours;
mod residencies;
mod rings;
mod shares;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use protocol::profile::{ComponentProfile, Lane};
use protocol::{Bytes, Division, Layout};
use rayon::prelude::*;

use super::Problem;
use super::layouts::{CUTS_MAX, rows};
use super::place::{ComponentLayout, Place, SizedLayout, parts};
use super::time::{SegmentTimes, Timing};
use crate::inventory::DeviceKind;
use crate::policy::pins::{Split, group_counts};
pub use likely_cuts::likely_layers;
pub use likely_heads::{fastest_heads, heads_left_out, likely_heads};
pub use lists::Lists;
use lists::{DeviceList, kind_of, lists};
pub use more_rings::{
    OpenLayout, held_whole, new_layouts, open_layouts, own_slots, own_slots_in, rings_within,
};
pub use nearby::{NearbySplit, StepsBegun, most_promising, nearby};
pub use neighbours::{neighbours, other_heads};
use residencies::{Quota, ResidencyChoice, ways_to_hold};
pub use rings::Within;
use rings::{Ring, Steps, rings};
pub use shares::counts;
use shares::{balanced_heads, cuts, heads_of, pinned_or, preferred};

/// Layer splits of one component over all lists of devices.
const LAYERS_MAX: usize = 240;

/// The same over each list of more than two devices: [`likely_layers`] has others.
const LAYERS_MAX_OF_MORE: usize = 16;

/// The same of pipelines: only cuts with which all devices compute for about as long pay, and the
/// graphs of all groups take several times as long to size.
const PIPELINES_MAX: usize = 96;

/// Two devices share rows and heads in eighths too, where a host has no more kinds of pairs than
/// that. With more kinds it takes too long: a graph that is cut by heads takes more than a
/// millisecond of a core to size. Other shares of heads come later ([`other_heads`]).
const PAIRS_IN_EIGHTHS: usize = 2;

/// A layout whose bytes are to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutQuery {
    /// Index of the component.
    pub component: usize,
    /// The devices in order: indices in the inventory, `None` for the host.
    pub devices: Vec<Option<usize>>,
    /// The question.
    pub layout: Layout,
    /// The component's list of devices that it is of.
    list: usize,
}

impl LayoutQuery {
    /// The layout of a component over these devices, of no list of the solver's own.
    pub fn of(component: usize, devices: Vec<Option<usize>>, layout: Layout) -> LayoutQuery {
        LayoutQuery { component, devices, layout, list: usize::MAX }
    }

    /// The component laid out so, with the bytes that answer the question.
    pub fn answered(&self, bytes: &SizedLayout) -> ComponentLayout {
        ComponentLayout {
            devices: self.devices.clone(),
            division: self.layout.division.clone(),
            parts: Arc::clone(&bytes.parts),
            crossing_bytes: bytes.crossing_bytes,
        }
    }
}

/// The layouts whose bytes no profile states, of each component over these lists of devices. A
/// component with `None` is left out.
pub fn wanted(problem: &Problem<'_>, of: &[Option<Lists>]) -> Vec<LayoutQuery> {
    let mut wanted = Vec::new();
    for (index, component) in problem.profile.components.iter().enumerate() {
        let Some(of) = of[index] else { continue };
        let pin = &problem.pins[index];
        let times =
            SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
        let lists = lists(problem, component, pin, &times);
        let most = |all: usize, split| (all / lane_lists(problem, &lists, split)).min(CUTS_MAX);
        let layers_max = most(LAYERS_MAX, Split::Layer);
        let pipelines_max = most(PIPELINES_MAX, Split::Pipeline);
        let mut in_eighths = vec![Split::Row, Split::Tensor];
        in_eighths.retain(|split| pairs(problem, &lists, *split) <= PAIRS_IN_EIGHTHS);
        let in_eighths = |split| in_eighths.contains(&split);
        for (at, list) in
            lists.into_iter().enumerate().filter(|(_, list)| of.have(problem.inventory, list))
        {
            let lanes: Vec<Lane> = list.devices.iter().map(|d| lane(problem, *d)).collect();
            let mut want = |division| {
                let (component, lanes) = (component.name.clone(), lanes.clone());
                let layout = Layout { component, lanes, division };
                let devices = list.devices.clone();
                wanted.push(LayoutQuery { component: index, devices, layout, list: at });
            };
            match list.split {
                None if list.devices[0].is_some_and(|device| lacks(problem, device)) => {
                    want(Division::One);
                }
                None => {}
                Some(Split::Layer) => {
                    let few = list.devices.len() <= 2;
                    let most = if few { layers_max } else { layers_max.min(LAYERS_MAX_OF_MORE) };
                    let cuts = cuts(problem, component, pin, &list, &times, most).into_iter();
                    cuts.for_each(|segments| want(Division::Layer { segments }));
                }
                Some(Split::Row) => {
                    let preferred = preferred(problem, &list.devices, &times);
                    let tried = || rows(list.devices.len(), &preferred, in_eighths(Split::Row));
                    let all = pinned_or(pin, tried).into_iter();
                    all.for_each(|shares| want(Division::Row { shares }));
                }
                Some(Split::Tensor) => {
                    let tried = || match in_eighths(Split::Tensor) {
                        true => heads_of(problem, &list.devices, &times),
                        false => balanced_heads(&list.devices, &times).into_iter().collect(),
                    };
                    let all = pinned_or(pin, tried).into_iter();
                    all.for_each(|shares| want(Division::Tensor { shares }));
                }
                Some(Split::Items) => {
                    let counts = counts(problem, component, pin, &list.devices, &times).into_iter();
                    counts.for_each(|counts| want(Division::Items { counts }));
                }
                Some(Split::Pipeline) => {
                    let groups = group_counts(component.items, list.devices.len());
                    for segments in cuts(problem, component, pin, &list, &times, pipelines_max) {
                        for counts in groups.iter().cloned() {
                            want(Division::Pipeline { segments: segments.clone(), counts });
                        }
                    }
                }
            }
        }
    }
    wanted
}

/// The devices of a component's splits that are left out at first, of pipelines or of all others,
/// and the host where that computes what one of them cannot. None where it has no such split.
pub fn devices_left_out(
    problem: &Problem<'_>,
    index: usize,
    times: &SegmentTimes<'_>,
    pipelines: bool,
) -> Vec<Option<usize>> {
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    let lists = lists(problem, component, pin, times);
    let left_out = lists.iter().filter(|list| {
        let is_pipeline = list.split == Some(Split::Pipeline);
        is_pipeline == pipelines && !Lists::First.have(problem.inventory, list)
    });
    let devices = left_out.flat_map(|list| list.devices.iter().copied());
    let mut devices: BTreeSet<Option<usize>> = devices.collect();
    if devices.iter().flatten().any(|device| lacks(problem, *device)) {
        devices.insert(None);
    }
    devices.into_iter().collect()
}

/// How many kinds of lists of two devices there are with such a split.
fn pairs(problem: &Problem<'_>, lists: &[DeviceList], split: Split) -> usize {
    let pairs = lists.iter().filter(|list| list.split == Some(split) && list.devices.len() == 2);
    pairs.map(|list| kinds_of(problem, &list.devices)).collect::<BTreeSet<_>>().len()
}

/// How many lists with such a split there are whose cuts have bytes of their own: lists of other
/// kinds of lanes; 1 at least.
fn lane_lists(problem: &Problem<'_>, lists: &[DeviceList], split: Split) -> usize {
    let in_layers = lists.iter().filter(|list| list.split == Some(split));
    let lanes = in_layers.map(|list| list.devices.iter().map(|d| lane(problem, *d)).collect());
    lanes.collect::<BTreeSet<Vec<Lane>>>().len().max(1)
}

/// The places of a component in the lists of devices that `wanted` is over, in the order in which
/// ties are broken. `bytes` answer `wanted`, in its order, which has the layouts of this component
/// at least.
pub fn places(
    problem: &Problem<'_>,
    index: usize,
    wanted: &[LayoutQuery],
    bytes: &[SizedLayout],
) -> Arc<[Place]> {
    places_beside(problem, index, (wanted, bytes), &[], Within::Memory)
}

/// A component's places in another problem. Some of them are its places in this one too.
#[derive(Clone, Copy)]
pub struct KnownPlaces<'p> {
    /// All of the other problem's.
    pub places: &'p [Place],
    /// The lists of devices in which both problems have the same places.
    pub in_lists: KnownLists,
}

/// Lists of devices in which a component has the same places in two problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownLists {
    /// Of GPUs alone: the component is the same there.
    OfGpus,
    /// Those that are looked at first: the problems differ in the others only.
    First,
}

/// The same where some places are known: these are not made anew. The others have the rings
/// `within` some bounds.
pub fn places_beside(
    problem: &Problem<'_>,
    index: usize,
    (wanted, bytes): (&[LayoutQuery], &[SizedLayout]),
    known: &[KnownPlaces<'_>],
    within: Within<'_>,
) -> Arc<[Place]> {
    assert_eq!(wanted.len(), bytes.len(), "each layout has its bytes");
    let (component, pin) = (&problem.profile.components[index], &problem.pins[index]);
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let lists = lists(problem, component, pin, &times);
    let known = known.iter().map(|known| known_of_lists(problem, &lists, *known));
    let known: Vec<Vec<Option<&[Place]>>> = known.collect();
    let known = |at: usize| known.iter().find_map(|of_lists| of_lists[at]);
    let spreads: Vec<Vec<Arc<ComponentLayout>>> = lists
        .iter()
        .enumerate()
        .map(|(at, list)| {
            if known(at).is_some() {
                return Vec::new();
            }
            let asked = wanted.iter().zip(bytes);
            let asked = asked.filter(|(wanted, _)| wanted.component == index && wanted.list == at);
            layouts_of(problem, component, list, asked)
        })
        .collect();
    let kinds: Vec<DeviceKinds> =
        lists.iter().map(|list| kinds_of(problem, &list.devices)).collect();
    let timed = timed(&times, &lists, &kinds, &spreads);
    // The rings of lists whose devices are alike, one by one, are the same; where budgets count, if
    // these are too.
    let have_rings_of = |a: usize, b: usize| {
        let budgets = |at: usize| lists[at].devices.iter().map(|device| problem.budget(*device));
        timed[a].has_rings_of(&timed[b])
            && (matches!(within, Within::Memory) || budgets(a).eq(budgets(b)))
    };
    let all = 0..timed.len();
    let first: Vec<usize> = all
        .clone()
        .map(|at| all.clone().find(|other| have_rings_of(*other, at)).expect("its own"))
        .collect();
    // Each list by itself: those of one device have the most rings, and stand beside each other.
    let rings: Vec<Vec<Ring>> = timed
        .par_iter()
        .with_max_len(1)
        .enumerate()
        .map(|(at, list)| match first[at] == at {
            true => rings(problem, component, pin, within, list.streamed()),
            false => Vec::new(),
        })
        .collect();
    let of_list = |(at, list): (usize, &ListTimings<'_>)| {
        let mut places = known(at).unwrap_or_default().to_vec();
        let mut rings = rings[first[at]].iter().peekable();
        for (number, timing) in list.timings.iter().enumerate() {
            let own = std::iter::from_fn(|| rings.next_if(|ring| ring.layout == number));
            let ways = ways_to_hold(problem, component, pin, timing, own);
            places.extend(places_of(problem, &spreads[at][number], ways));
        }
        places
    };
    let of_lists = timed.par_iter().with_max_len(1).enumerate().map(of_list);
    let of_lists: Vec<Vec<Place>> = of_lists.collect();
    of_lists.into_iter().flatten().collect()
}

/// For each list in which another problem's places are the same, its own among all of these: they
/// stand in the order of the lists.
fn known_of_lists<'p>(
    problem: &Problem<'_>,
    lists: &[DeviceList],
    KnownPlaces { mut places, in_lists }: KnownPlaces<'p>,
) -> Vec<Option<&'p [Place]>> {
    let is_gpu = |device: &Option<usize>| {
        device.is_some_and(|index| {
            let device = &problem.inventory.devices[index];
            device.kind == DeviceKind::Cuda && device.unsupported.is_empty()
        })
    };
    let of_list = |list: &DeviceList| {
        let left: &'p [Place] = places;
        let is_known = match in_lists {
            KnownLists::OfGpus => list.devices.iter().all(is_gpu),
            KnownLists::First => Lists::First.have(problem.inventory, list),
        };
        if !is_known {
            return None;
        }
        let is_of = |place: &Place| {
            place.spread.devices == list.devices && split_of(&place.spread.division) == list.split
        };
        let Some(begin) = left.iter().position(is_of) else { return Some(&left[..0]) };
        let of_it = left[begin..].iter().take_while(|place| is_of(place)).count();
        let (own, rest) = left[begin..].split_at(of_it);
        places = rest;
        Some(own)
    };
    lists.iter().map(of_list).collect()
}

fn split_of(division: &Division) -> Option<Split> {
    match division {
        Division::One => None,
        Division::Layer { .. } => Some(Split::Layer),
        Division::Row { .. } => Some(Split::Row),
        Division::Tensor { .. } => Some(Split::Tensor),
        Division::Items { .. } => Some(Split::Items),
        Division::Pipeline { .. } => Some(Split::Pipeline),
    }
}

/// The layouts of each list, with their times.
fn timed<'t>(
    times: &'t SegmentTimes<'_>,
    lists: &[DeviceList],
    kinds: &'t [DeviceKinds],
    spreads: &'t [Vec<Arc<ComponentLayout>>],
) -> Vec<ListTimings<'t>> {
    let mut split_kinds: BTreeMap<Option<Split>, BTreeSet<&DeviceKinds>> = BTreeMap::new();
    for (list, kinds) in lists.iter().zip(kinds) {
        split_kinds.entry(list.split).or_default().insert(kinds);
    }
    let each = lists.par_iter().with_max_len(1).zip(spreads).zip(kinds);
    each.map(|((list, spreads), kinds)| ListTimings {
        kinds,
        timings: spreads.iter().map(|spread| Timing::new(times, spread)).collect(),
        quota: Quota::of(list, split_kinds[&list.split].len(), spreads.len()),
    })
    .collect()
}

/// The layouts of one list, with their bytes.
fn layouts_of<'w>(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    list: &DeviceList,
    asked: impl Iterator<Item = (&'w LayoutQuery, &'w SizedLayout)>,
) -> Vec<Arc<ComponentLayout>> {
    let mut spreads: Vec<ComponentLayout> =
        asked.map(|(wanted, bytes)| wanted.answered(bytes)).collect();
    if let ([device], true) = (list.devices.as_slice(), spreads.is_empty()) {
        let bytes = component.compute_bytes(problem.backend(*device));
        spreads.extend(bytes.map(|bytes| ComponentLayout::whole(component, *device, bytes)));
    }
    // Where the host only feeds devices, it does nothing in their place.
    let host = problem.inventory.host.compute;
    spreads.retain(|spread| host || spread.parts.len() == spread.devices.len());
    spreads.into_iter().map(Arc::new).collect()
}

/// The layouts of one list, with their times.
struct ListTimings<'t> {
    kinds: &'t DeviceKinds,
    timings: Vec<Timing<'t>>,
    quota: Quota,
}

impl<'t> ListTimings<'t> {
    /// Whether both have the same layouts over devices that are alike.
    fn has_rings_of(&self, other: &ListTimings<'_>) -> bool {
        let divisions = self.timings.iter().map(|timing| &timing.spread().division);
        let others = other.timings.iter().map(|timing| &timing.spread().division);
        self.kinds == other.kinds && divisions.eq(others)
    }

    /// The numbers of the layouts that do not have all of their rings: none has those in which each
    /// device with a part of every segment streams what it has no room for itself.
    fn open(&self, problem: &Problem<'_>) -> impl Iterator<Item = usize> {
        let all = 0..self.timings.len();
        let all = all.filter(|number| self.timings[*number].may_stream());
        all.filter(|number| {
            let spread = self.timings[*number].spread();
            self.quota.has(*number) != Some(Steps::All)
                || spread.division.is_on_each() && have_unlike_rooms(problem, spread)
        })
    }

    /// The layouts that also have rings, each with its number and its steps.
    fn streamed(&self) -> Vec<(usize, &Timing<'t>, Steps)> {
        let layouts = self.timings.iter().enumerate();
        let layouts = layouts.filter_map(|(number, timing)| {
            self.quota.has(number).map(|steps| (number, timing, steps))
        });
        layouts.collect()
    }
}

/// Whether one of a layout's devices has room for another part of its weights than the others.
fn have_unlike_rooms(problem: &Problem<'_>, spread: &ComponentLayout) -> bool {
    let lanes = spread.devices.iter().enumerate();
    let parts = lanes.map(|(lane, device)| {
        let room = problem.room_for_weights((*device)?, spread.parts[lane].compute_bytes)?;
        Some((u128::from(room.0) << 10) / u128::from(spread.part_bytes(lane).0.max(1)))
    });
    let parts: Vec<Option<u128>> = parts.collect();
    parts.windows(2).any(|pair| pair[0] != pair[1])
}

/// For each device of a list the first one of the inventory that is like it; and the first one of
/// the list that is a part of the same GPU. Lists with the same ones have the same times.
type DeviceKinds = (Vec<Option<usize>>, Vec<usize>);

fn kinds_of(problem: &Problem<'_>, devices: &[Option<usize>]) -> DeviceKinds {
    let kind = |device| kind_of(&problem.inventory.devices, device);
    let kinds = devices.iter().map(|device| device.map(kind)).collect();
    (kinds, problem.inventory.gpus(devices))
}

/// The places of a component in one layout.
fn places_of(
    problem: &Problem<'_>,
    spread: &Arc<ComponentLayout>,
    ways: Vec<ResidencyChoice>,
) -> Vec<Place> {
    let fullness = fullness(problem, spread);
    let places = ways.into_iter().map(|way| Place {
        parts: parts(spread, &way.held, way.early).into(),
        ms: way.ms,
        fullness,
        spread: Arc::clone(spread),
        held: way.held,
        early: way.early,
    });
    places.filter(|place| has_room(problem, place)).collect()
}

/// Whether each device could take the place if all of its memory were free.
fn has_room(problem: &Problem<'_>, place: &Place) -> bool {
    place.parts.iter().all(|part| match part.device {
        Some(index) => {
            let device = &problem.inventory.devices[index];
            part.held_bytes() + part.compute_bytes + device.overhead_bytes <= device.total_bytes
        }
        None => true,
    })
}

/// A device, or the host for `None`, as a layout's lane.
pub fn lane(problem: &Problem<'_>, device: Option<usize>) -> Lane {
    let unsupported = device.map(|index| problem.inventory.devices[index].unsupported.clone());
    Lane { backend: problem.backend(device), unsupported: unsupported.unwrap_or_default() }
}

/// Whether a device cannot do everything.
fn lacks(problem: &Problem<'_>, device: usize) -> bool {
    !problem.inventory.devices[device].unsupported.is_empty()
}

/// How far the fullest device of a split is filled by its weights, in parts of 2^20 of its memory.
fn fullness(problem: &Problem<'_>, spread: &ComponentLayout) -> u64 {
    if spread.devices.len() < 2 {
        return 0;
    }
    let filled = |(part, device): (usize, &Option<usize>)| {
        let total: Bytes = problem.inventory.devices[(*device)?].total_bytes;
        let filled = (u128::from(spread.part_bytes(part).0) << 20) / u128::from(total.0.max(1));
        Some(u64::try_from(filled).unwrap_or(u64::MAX))
    };
    spread.devices.iter().enumerate().filter_map(filled).max().unwrap_or(0)
}
