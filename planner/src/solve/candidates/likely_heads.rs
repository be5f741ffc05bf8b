//! Splits by heads that may take less than one that was chosen, next to it: those that are worth
//! asking for, as a graph that is cut by heads takes more than a millisecond of a core to size.
//!
//! Their bytes are estimated: a device has as much more or less of each segment's weights as its
//! share is, and the arena that it has.

use protocol::{Bytes, Division};
use rayon::prelude::*;

use super::super::Problem;
use super::super::place::ComponentLayout;
use super::super::time::{SegmentTimes, Timing};
use super::LayoutQuery;
use super::more_rings::least_ms;

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

/// About what a tensor split is with the shares of another one; `None` where one of them is none.
fn with_shares(layout: &ComponentLayout, division: &Division) -> Option<ComponentLayout> {
    let [own, other] = [parts_of_all(&layout.division)?, parts_of_all(division)?];
    let mut estimated = ComponentLayout { division: division.clone(), ..layout.clone() };
    for segment in 0..layout.segments() {
        // The first device also has what is not cut.
        let of_others = layout.parts.iter().skip(1).map(|part| part.segment_bytes[segment].0);
        let cut_bytes = of_others.sum::<u64>() as f64 / own.iter().skip(1).sum::<f64>();
        for (part, (own, other)) in estimated.parts.iter_mut().zip(own.iter().zip(&other)) {
            let bytes = &mut part.segment_bytes[segment];
            *bytes = Bytes((bytes.0 as f64 + cut_bytes * (other - own)).max(0.0) as u64);
        }
    }
    Some(estimated)
}

/// The parts of all heads that the devices of a tensor split have.
fn parts_of_all(division: &Division) -> Option<Vec<f64>> {
    let shares = division.tensor_shares()?;
    let all: f64 = shares.iter().copied().map(f64::from).sum();
    Some(shares.iter().map(|share| f64::from(*share) / all).collect())
}
