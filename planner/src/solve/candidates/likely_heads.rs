//! Splits by heads that may take less than what was chosen: those that are worth asking for, as a
//! graph that is cut by heads takes more than a millisecond of a core to size.
//!
//! Their bytes are estimated by those of another one over the same devices: a device has as much
//! more or less of each segment's weights as its share is, and the arena that it has.

use protocol::{Bytes, Division};
use rayon::prelude::*;

use super::super::Problem;
use super::super::place::{ComponentLayout, SizedLayout};
use super::super::time::{SegmentTimes, Timing};
use super::LayoutQuery;
use super::more_rings::least_ms;
use super::neighbours::query;
use super::shares::heads_of;

/// A split whose estimate is more than this times that of the chosen one is left out. Plans of
/// shipped hosts, and of five made-up ones of three to five cards with 2 to 10 GiB of each, were
/// compared with those that leave nothing out: with 1 three of 59 were 0.5 to 1.7 % slower, with
/// 1.01 none was.
const LONGER_MAX: f64 = 1.02;

/// Of layouts those that may take about as long as a tensor split over the same devices, or less.
/// Layouts over other devices are among them.
pub fn likely_heads(
    problem: &Problem<'_>,
    index: usize,
    chosen: &ComponentLayout,
    others: Vec<LayoutQuery>,
) -> Vec<LayoutQuery> {
    let component = &problem.profile.components[index];
    let times = SegmentTimes::new(problem.inventory, component, problem.options.attention_chunk);
    let alone = |layout: &ComponentLayout| least_ms(problem, &Timing::new(&times, layout)).alone();
    let longest_ms = LONGER_MAX * alone(chosen);
    let may_pay = |other: &LayoutQuery| {
        other.devices != chosen.devices
            || with_shares(chosen, &other.layout.division).is_none_or(|o| alone(&o) <= longest_ms)
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
            let estimated = with_shares(&asked, &division)?;
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

/// About what a tensor split is with the shares of another one; `None` where one of them is none.
fn with_shares(layout: &ComponentLayout, division: &Division) -> Option<ComponentLayout> {
    let [own, other] = [parts_of_all(&layout.division)?, parts_of_all(division)?];
    let mut parts = layout.parts.to_vec();
    for segment in 0..layout.segments() {
        // The first device also has what is not cut.
        let of_others = layout.parts.iter().skip(1).map(|part| part.segment_bytes[segment].0);
        let cut_bytes = of_others.sum::<u64>() as f64 / own.iter().skip(1).sum::<f64>();
        for (part, (own, other)) in parts.iter_mut().zip(own.iter().zip(&other)) {
            let bytes = &mut part.segment_bytes[segment];
            *bytes = Bytes((bytes.0 as f64 + cut_bytes * (other - own)).max(0.0) as u64);
        }
    }
    Some(ComponentLayout { division: division.clone(), parts: parts.into(), ..layout.clone() })
}

/// The parts of all heads that the devices of a tensor split have.
fn parts_of_all(division: &Division) -> Option<Vec<f64>> {
    let shares = division.tensor_shares()?;
    let all: f64 = shares.iter().copied().map(f64::from).sum();
    Some(shares.iter().map(|share| f64::from(*share) / all).collect())
}
