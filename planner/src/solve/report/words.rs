//! Places and times in words.

use std::collections::BTreeSet;

use protocol::profile::ComponentProfile;
use protocol::{Division, Residency};

use super::super::Problem;
use super::super::place::{ComponentLayout, Place, WeightResidency};
use super::super::time::{CallBound, SegmentTimes, Timing};

/// The kind of a place.
pub fn name(problem: &Problem<'_>, place: &Place) -> String {
    let devices = place.spread.devices.iter().map(|device| problem.device_id(*device).0);
    let devices = devices.collect::<Vec<_>>().join("&");
    let split = match place.spread.division {
        Division::One => "",
        Division::Layer { .. } => " by layers",
        Division::Row { .. } => " by rows",
        Division::Tensor { .. } => " by heads",
        Division::Items { .. } => " by items",
        Division::Pipeline { .. } => " as a pipeline",
    };
    let residency = match place.residency() {
        Residency::Mapped => "computed in place from the file mapping",
        Residency::Resident => "resident",
        Residency::Lazy => "lazy",
        Residency::Streamed | Residency::Locked => "streamed",
    };
    format!("on {devices}{split}, {residency}")
}

/// What tells a place from others of its kind.
pub fn details(place: &Place) -> String {
    let mut details = String::new();
    let spread = &place.spread;
    let numbers =
        |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(":");
    match &spread.division {
        Division::One => {}
        Division::Layer { segments } => {
            details.push_str(&format!(" ({} segments)", numbers(&on_each(spread, segments))));
        }
        Division::Pipeline { segments, counts } => {
            let (on_each, counts) = (numbers(&on_each(spread, segments)), numbers(counts));
            details.push_str(&format!(" ({on_each} segments, groups of {counts} items)"));
        }
        Division::Row { shares } => {
            details.push_str(&format!(" ({} of the rows)", numbers(shares)))
        }
        Division::Tensor { shares } => {
            details.push_str(&format!(" ({} of the heads)", numbers(shares)))
        }
        Division::Items { counts } => {
            details.push_str(&format!(" ({} of the items)", numbers(counts)))
        }
    }
    if let WeightResidency::Some { residency, slots: counts, .. } = &place.held {
        let segments = 0..spread.segments();
        let all = segments.len();
        let are_any = |is_it: fn(Residency) -> bool| {
            segments.clone().filter(|segment| place.residencies(*segment).any(is_it)).count()
        };
        let streamed = are_any(Residency::is_streamed);
        let locked = are_any(|residency| residency == Residency::Locked);
        let lanes = 0..spread.devices.len();
        let own = lanes.filter(|lane| place.parts[*lane].slots > 0).map(|lane| counts.on(lane));
        let unlike = own.collect::<BTreeSet<u32>>().len() > 1;
        let most = slots(place.lookahead());
        let through = if unlike { format!("up to {most}") } else { most };
        let slots = match locked {
            0 => through,
            count => format!("{through}, {count} of them from page-locked RAM"),
        };
        details.push_str(&match streamed {
            count if count == all => format!(" (all {all} segments through {slots})"),
            count => {
                format!(" ({count} of {all} segments through {slots}, the others {residency})")
            }
        });
    }
    if spread.parts.len() > spread.devices.len() {
        details.push_str(", the host doing what the device cannot");
    }
    details
}

/// How many of the segments each device has.
fn on_each(spread: &ComponentLayout, segments: &[u32]) -> Vec<u32> {
    let lanes = 0..spread.devices.len() as u32;
    lanes.map(|lane| segments.iter().filter(|at| **at == lane).count() as u32).collect()
}

/// What a component's calls take as long as, where weights are streamed.
pub fn bound(problem: &Problem<'_>, component: &ComponentProfile, place: &Place) -> String {
    let WeightResidency::Some { stays, locked, .. } = &place.held else { return String::new() };
    let chunk = problem.options.attention_chunk;
    let times = SegmentTimes::new(problem.inventory, component, chunk);
    let device = |index| problem.device_id(Some(index));
    let by = match Timing::new(&times, &place.spread).call_bound(stays, locked.as_deref()) {
        CallBound::Computing => "the computation".to_owned(),
        CallBound::Link(index) => format!("the link of {}", device(index)),
        CallBound::PageCache(index) => format!("the page cache, copied for {}", device(index)),
        CallBound::Memory => "the host's memory".to_owned(),
        CallBound::Storage => "the storage".to_owned(),
    };
    format!(", bound by {by}")
}

/// A number of stream slots.
pub fn slots(count: u32) -> String {
    if count == 1 { "1 slot".to_owned() } else { format!("{count} slots") }
}

/// A time for people.
pub fn shown_ms(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms if ms < 60_000.0 => format!("{:.1} s", ms / 1e3),
        ms => format!("{:.1} min", ms / 6e4),
    }
}
