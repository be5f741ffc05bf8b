//! Splits by heads that may take less than what was chosen: those that are worth asking for, as a
//! graph that is cut by heads takes more than a millisecond of a core to size.
//!
//! Their bytes are [estimated](super::estimated) by those of another one over the same devices.

use protocol::Division;
use rayon::prelude::*;

use super::super::Problem;
use super::super::place::{ComponentLayout, SizedLayout};
use super::super::time::{SegmentTimes, Timing};
use super::LayoutQuery;
use super::estimated::divided;
use super::more_rings::least_ms;
use super::neighbours::query;
use super::shares::heads_of;

/// A split whose estimate is more than this times that of the chosen one is left out. Plans of
/// shipped hosts, and of five made-up ones of three to five cards with 2 to 10 GiB of each, were
/// compared with those that leave nothing out: with 1 three of 59 were 0.5 to 1.7 % slower, with
/// 1.01 none was.
const LONGER_MAX: f64 = 1.02;

/// Of layouts those that may take about as long as the first of some tensor splits, or less.
/// Layouts over devices, or in an order, that none of these has are among them.
pub fn likely_heads(
    problem: &Problem<'_>,
    index: usize,
    splits: &[&ComponentLayout],
    others: Vec<LayoutQuery>,
) -> Vec<LayoutQuery> {
    let Some(first) = splits.first() else { return others };
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let alone = |layout: &ComponentLayout| least_ms(problem, &Timing::new(&times, layout)).alone();
    let longest_ms = LONGER_MAX * alone(first);
    let may_pay = |other: &LayoutQuery| {
        let beside = splits.iter().find(|split| split.devices == other.devices);
        let estimated = beside.and_then(|split| divided(split, other.layout.division.clone()));
        estimated.is_none_or(|estimated| alone(&estimated) <= longest_ms)
    };
    others.into_par_iter().filter(may_pay).collect()
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
    let longest_ms = LONGER_MAX * longest_ms;
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
            let ms = least_ms(problem, &Timing::new(&times, &estimated)).alone();
            (ms <= longest_ms).then(|| query(problem, index, devices.clone(), division))
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
