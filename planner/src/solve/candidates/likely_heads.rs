//! Splits by heads that may take less than what was chosen: those that are worth asking for, as a
//! graph that is cut by heads takes more than a millisecond of a core to size.
//!
//! Their bytes are [estimated](super::estimated) by those of another one over the same devices.
//! Most are ruled out by what their rings take at least, the others by [`about_ms`].

use protocol::Division;
use protocol::profile::ComponentProfile;
use rayon::prelude::*;

use super::super::Problem;
use super::super::lanes::SlotCounts;
use super::super::place::{ComponentLayout, SizedLayout};
use super::super::time::{SegmentTimes, Timing};
use super::LayoutQuery;
use super::estimated::{divided, with_first};
use super::more_rings::least_ms;
use super::neighbours::query;
use super::rings::StreamingSplit;
use super::shares::heads_of;

/// A split is left out if the least that its rings take is more than this times the chosen one's.
/// Plans of shipped hosts, and of five made-up ones of three to five cards with 2 to 10 GiB of
/// each, were compared with those that leave nothing out: with 1 three of 59 were 0.5 to 1.7 %
/// slower, with 1.01 none was.
const LONGER_MAX: f64 = 1.02;

/// The same of [`about_ms`], for splits next to one.
const NEAR_LONGER_MAX: f64 = 1.005;

/// The same of [`about_ms`], for shares that were left out at first.
const LEFT_OUT_LONGER_MAX: f64 = 1.03;

/// At most this many splits next to one are asked for: those with the shortest estimates. On 20
/// hosts with 2 to 14 GiB of each card, plans were no better with 12, 24, or all.
const NEAR_MAX: usize = 8;

/// Numbers of slots that are timed, on all devices alike.
const SLOTS_TIMED: [u32; 4] = [1, 2, 3, 4];

/// Of layouts next to some tensor splits those that may take about as long as the first of these
/// splits, or less. A layout over devices that no split has is not compared, and is among them.
pub fn likely_heads(
    problem: &Problem<'_>,
    index: usize,
    splits: &[&ComponentLayout],
    others: Vec<LayoutQuery>,
) -> Vec<LayoutQuery> {
    let Some(first) = splits.first() else { return others };
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let timing = Timing::new(&times, first);
    let longest_least_ms = LONGER_MAX * least_ms(problem, &timing).alone();
    let longest_ms = NEAR_LONGER_MAX * about_ms(problem, component, &timing);
    let about = |other: LayoutQuery| {
        let Some(estimated) = estimated(splits, &other) else { return Some((0.0, other)) };
        let timing = Timing::new(&times, &estimated);
        let ms = about_ms_within(problem, component, &timing, [longest_least_ms, longest_ms])?;
        Some((ms, other))
    };
    let mut likely: Vec<(f64, LayoutQuery)> = others.into_par_iter().filter_map(about).collect();
    likely.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    likely.truncate(NEAR_MAX);
    likely.into_iter().map(|(_, other)| other).collect()
}

/// Of some tensor splits of a component the one that takes about the least, if that is not more
/// than this.
pub fn fastest_heads<'l>(
    problem: &Problem<'_>,
    index: usize,
    splits: Vec<&'l ComponentLayout>,
    longest_ms: f64,
) -> Option<&'l ComponentLayout> {
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let about = |split: &'l ComponentLayout| {
        let timing = Timing::new(&times, split);
        let ms = about_ms_within(problem, component, &timing, [longest_ms; 2])?;
        Some((ms, split))
    };
    let about: Vec<(f64, &ComponentLayout)> = splits.into_par_iter().filter_map(about).collect();
    about.into_iter().min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, split)| split)
}

/// A layout with about the bytes that it has, by those of a split over its devices; if none has
/// them in its order, of one with another device first.
fn estimated(splits: &[&ComponentLayout], other: &LayoutQuery) -> Option<ComponentLayout> {
    let division = || other.layout.division.clone();
    if let Some(split) = splits.iter().find(|split| split.devices == other.devices) {
        return divided(split, division());
    }
    let turned = splits.iter().find_map(|split| {
        let first = split.devices.iter().position(|device| *device == other.devices[0])?;
        with_first(split, first).filter(|turned| turned.devices == other.devices)
    });
    divided(&turned?, division())
}

/// About what a component takes in a split: the least with some numbers of slots, with nothing
/// page-locked or as much as may be.
fn about_ms(problem: &Problem<'_>, component: &ComponentProfile, timing: &Timing<'_>) -> f64 {
    let Some(split) = StreamingSplit::new(problem, component, timing) else { return f64::INFINITY };
    let sources = [None, Some(problem.locked_max(&timing.spread().devices))];
    let ways = SLOTS_TIMED.iter().flat_map(|slots| sources.map(|locked| (*slots, locked)));
    let ways = ways.filter_map(|(slots, locked)| split.ms(SlotCounts::alike(slots), locked));
    ways.map(|ms| ms.alone()).fold(f64::INFINITY, f64::min)
}

/// The same, if neither the least that its rings take nor this is more than these.
fn about_ms_within(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    timing: &Timing<'_>,
    [longest_least_ms, longest_ms]: [f64; 2],
) -> Option<f64> {
    let may_pay = least_ms(problem, timing).alone() <= longest_least_ms;
    may_pay.then(|| about_ms(problem, component, timing)).filter(|ms| *ms <= longest_ms)
}

/// The splits by heads of a component that are left out at first, over the devices of those that
/// are not, and that may take about `longest_ms`, or less. `bytes` answer `wanted`, which has the
/// latter. None where devices are pinned.
pub fn heads_left_out(
    problem: &Problem<'_>,
    index: usize,
    (wanted, bytes): (&[LayoutQuery], &[SizedLayout]),
    longest_ms: f64,
) -> Vec<LayoutQuery> {
    if !problem.pins[index].devices.is_empty() {
        return Vec::new();
    }
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let asked = wanted.iter().zip(bytes);
    let by_heads = asked.filter(|(asked, _)| {
        asked.component == index && asked.layout.division.tensor_shares().is_some()
    });
    let by_heads: Vec<(&LayoutQuery, &SizedLayout)> = by_heads.collect();
    let beside = |(asked, bytes): &(&LayoutQuery, &SizedLayout)| {
        let devices = &asked.devices;
        let asked = asked.answered(bytes);
        let may_pay = |shares: Vec<u32>| {
            let division = Division::Tensor { shares };
            let estimated = divided(&asked, division.clone())?;
            let timing = Timing::new(&times, &estimated);
            let longest_ms = [LONGER_MAX, LEFT_OUT_LONGER_MAX].map(|longer| longer * longest_ms);
            about_ms_within(problem, component, &timing, longest_ms)?;
            Some(query(problem, index, devices.clone(), division))
        };
        let is_wanted = |shares: &Vec<u32>| {
            let is_same = |(other, _): &(&LayoutQuery, _)| {
                other.devices == *devices && other.layout.division.tensor_shares() == Some(shares)
            };
            by_heads.iter().any(is_same)
        };
        let others = heads_of(problem, devices, &times).into_iter();
        others.filter(|shares| !is_wanted(shares)).filter_map(may_pay).collect::<Vec<_>>()
    };
    by_heads.par_iter().flat_map_iter(beside).collect()
}
