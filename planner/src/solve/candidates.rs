//! Candidates: every place that each component may have, with exact bytes.
//!
//! A component that nobody pins has one device, or the host; the profile states its bytes there. What is pinned to a
//! list of devices, and what a device cannot do alone, has layouts whose bytes the executor is asked for first:
//! ```text
//! Problem without places ──wanted──► layouts ──Size──► bytes ──places──► Problem
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::profile::{ComponentProfile, Lane, LayoutBytes};
use protocol::{Bytes, Layout, Placement, Residency};

use super::Problem;
use super::held::{Streamable, held_sets};
use super::layouts::{Preferences, layers, layers_of_shares, rows};
use super::place::{Held, Place, Spread, parts};
use super::time::Timing;
use crate::policy::pins::{Params, Pin, Split};

/// A layout whose bytes are to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Index of the component.
    pub component: usize,
    /// The devices in order: indices in the inventory, `None` for the host.
    pub devices: Vec<Option<usize>>,
    /// The question.
    pub layout: Layout,
    /// Whether it was made for the present budgets.
    pub adapted: bool,
}

/// The layouts whose bytes no profile states.
pub fn wanted(problem: &Problem<'_>) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for (index, (component, pin)) in components(problem).enumerate() {
        let lanes = |devices: &[Option<usize>]| {
            devices.iter().map(|device| lane(problem, *device)).collect::<Vec<Lane>>()
        };
        let whole = vec![0; component.segments.len()];
        let mut want = |devices: &[Option<usize>], segments, row_shares, adapted| {
            let component = component.name.clone();
            let layout = Layout { component, lanes: lanes(devices), segments, row_shares };
            wanted.push(Wanted { component: index, devices: devices.to_vec(), layout, adapted });
        };
        if pin.devices.len() < 2 {
            for device in devices_of(problem, pin) {
                if device.is_some_and(|device| lacks(problem, device)) {
                    want(&[device], whole.clone(), Vec::new(), false);
                }
            }
            continue;
        }
        match pin.split {
            Split::Layer => {
                for (segments, adapted) in cuts(problem, component, pin) {
                    want(&pin.devices, segments, Vec::new(), adapted);
                }
            }
            Split::Row => {
                for (shares, adapted) in row_shares(problem, component, pin) {
                    want(&pin.devices, whole.clone(), shares, adapted);
                }
            }
        }
    }
    wanted
}

/// Every place of each component, in the order in which ties are broken. `bytes` answer `wanted`, in its order.
pub fn places(
    problem: &Problem<'_>,
    wanted: &[Wanted],
    bytes: &[LayoutBytes],
) -> Arc<[Vec<Place>]> {
    assert_eq!(wanted.len(), bytes.len(), "each layout has its bytes");
    let mut asked: BTreeMap<usize, Vec<(Spread, bool)>> = BTreeMap::new();
    for (wanted, bytes) in wanted.iter().zip(bytes) {
        let spread = (spread(wanted, bytes), wanted.adapted);
        asked.entry(wanted.component).or_default().push(spread);
    }
    let places = components(problem).enumerate().map(|(index, (component, pin))| {
        let asked = asked.remove(&index).unwrap_or_default();
        let spreads = spreads(problem, component, pin, asked);
        let mut places: Vec<Place> = Vec::new();
        for (spread, of_budgets) in spreads {
            let spread = Arc::new(spread);
            let timing = Timing::new(problem.inventory, component, &spread);
            for Way { held, last_resort, adapted } in ways_to_hold(problem, component, pin, &spread)
            {
                places.push(Place {
                    parts: parts(&spread, &held),
                    ms: timing.ms(&held),
                    fullness: fullness(problem, &spread),
                    spread: Arc::clone(&spread),
                    held,
                    last_resort,
                    adapted: adapted || of_budgets,
                });
            }
        }
        places
    });
    places.collect()
}

fn components<'p>(
    problem: &'p Problem<'_>,
) -> impl Iterator<Item = (&'p ComponentProfile, &'p Pin)> {
    problem.profile.components.iter().zip(&problem.pins)
}

/// The devices that a component which is not split may have: the one it is pinned to, or all that may be chosen.
fn devices_of(problem: &Problem<'_>, pin: &Pin) -> Vec<Option<usize>> {
    if !pin.devices.is_empty() {
        return pin.devices.clone();
    }
    let usable = problem.unusable.iter().enumerate().filter(|(_, why)| why.is_none());
    let mut devices: Vec<Option<usize>> = usable.map(|(index, _)| Some(index)).collect();
    // Weights that are streamed, or resident on a device, need one.
    let on_host = !matches!(pin.params, Some(Params::Cpu | Params::Device));
    if on_host && problem.inventory.host.compute {
        devices.push(None);
    }
    devices
}

/// Where a component may be: as a whole by its profile, or as asked; each with whether the present budgets made it.
fn spreads(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    asked: Vec<(Spread, bool)>,
) -> Vec<(Spread, bool)> {
    // Where the host only feeds devices, it does nothing in their place.
    let host = problem.inventory.host.compute;
    let possible =
        |(spread, _): &(Spread, bool)| host || spread.parts.len() == spread.devices.len();
    let mut asked: Vec<(Spread, bool)> = asked.into_iter().filter(possible).collect();
    if pin.devices.len() > 1 {
        return asked;
    }
    let mut spreads = Vec::new();
    for device in devices_of(problem, pin) {
        if device.is_some_and(|device| lacks(problem, device)) {
            let found = asked.iter().position(|(spread, _)| spread.devices == [device]);
            spreads.extend(found.map(|index| asked.remove(index)));
        } else if let Some(bytes) = component.compute_bytes(problem.backend(device)) {
            spreads.push((Spread::whole(component, device, bytes), false));
        }
    }
    spreads
}

/// A way to hold a component's weights.
struct Way {
    held: Held,
    last_resort: bool,
    /// Whether the present budgets made it.
    adapted: bool,
}

/// When the weights of a spread component may be there, in the order in which ties are broken.
fn ways_to_hold(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    spread: &Spread,
) -> Vec<Way> {
    let all = |residencies: &[Residency]| -> Vec<Way> {
        let way = |residency: &Residency| Way {
            held: Held::All(*residency),
            last_resort: false,
            adapted: false,
        };
        residencies.iter().map(way).collect()
    };
    let on_host = spread.placement == Placement::Host;
    match pin.params {
        Some(Params::Cpu) => streamed(problem, component, pin, spread),
        Some(Params::Device) => all(&[Residency::Resident]),
        Some(Params::Disk) => all(&[Residency::Lazy]),
        None if on_host => all(&[Residency::Mapped, Residency::Resident, Residency::Lazy]),
        None => {
            let mut ways = all(&[Residency::Resident, Residency::Lazy]);
            if pin.may_stream() {
                let streamed = streamed(problem, component, pin, spread).into_iter();
                ways.extend(streamed.map(|way| Way { last_resort: true, ..way }));
            }
            ways
        }
    }
}

/// Every number of streamed segments, with the others resident, then with them lazy: as they leave equal devices, and as
/// they leave devices with the present budgets.
fn streamed(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    spread: &Spread,
) -> Vec<Way> {
    let segments = component.segments.iter().enumerate().map(|(index, segment)| {
        // Rows of a segment are streamed on all devices, or on none.
        let lane = spread.segments[index] as usize;
        let bytes = spread.parts[..spread.devices.len()].iter();
        let bytes = bytes.map(|part| part.segment_bytes[index].0).sum();
        let streamable = Streamable { lane, block: segment.block, bytes };
        (!spread.is_mapped(index)).then_some(streamable)
    });
    let segments: Vec<Option<Streamable>> = segments.collect();
    let rooms: Vec<u64> = spread.devices.iter().map(|device| problem.room(*device).0).collect();
    let lasting = held_sets(&segments, &vec![1; rooms.len()], pin.lookahead);
    let mut adapted = match spread.placement {
        Placement::Layer => held_sets(&segments, &rooms, pin.lookahead),
        _ => Vec::new(),
    };
    adapted.retain(|stays| !lasting.contains(stays));
    let sets = lasting.into_iter().map(|stays| (stays, false));
    let sets = sets.chain(adapted.into_iter().map(|stays| (stays, true)));
    let mut ways = Vec::new();
    for (stays, adapted) in sets {
        // Lazy, where anything is held that can be.
        let held = segments.iter().zip(&stays);
        let held = held.filter(|(segment, stays)| **stays && segment.is_some_and(|s| s.bytes > 0));
        let residencies = [Residency::Resident, Residency::Lazy];
        for residency in &residencies[..if held.count() > 0 { 2 } else { 1 }] {
            let (residency, stays) = (*residency, stays.clone());
            let held = Held::Some { residency, stays, lookahead: pin.lookahead };
            ways.push(Way { held, last_resort: false, adapted });
        }
    }
    ways
}

fn spread(wanted: &Wanted, bytes: &LayoutBytes) -> Spread {
    let Wanted { devices, layout, .. } = wanted;
    let placement = match (devices.as_slice(), layout.row_shares.as_slice()) {
        ([_], _) => Placement::One,
        (_, []) => Placement::Layer,
        _ => Placement::Row,
    };
    Spread {
        placement,
        devices: devices.clone(),
        row_shares: layout.row_shares.clone(),
        segments: layout.segments.clone(),
        parts: bytes.parts.clone(),
        crossing_bytes: bytes.crossing_bytes,
    }
}

fn lane(problem: &Problem<'_>, device: Option<usize>) -> Lane {
    let unsupported = device.map(|index| problem.inventory.devices[index].unsupported.clone());
    Lane { backend: problem.backend(device), unsupported: unsupported.unwrap_or_default() }
}

/// Whether a device cannot do everything.
fn lacks(problem: &Problem<'_>, device: usize) -> bool {
    !problem.inventory.devices[device].unsupported.is_empty()
}

/// The segments' devices, for each cut of a layer split, with whether the present budgets made it.
fn cuts(problem: &Problem<'_>, component: &ComponentProfile, pin: &Pin) -> Vec<(Vec<u32>, bool)> {
    let weights: Vec<u64> = component.segments.iter().map(|s| s.weights_bytes.0).collect();
    if !pin.shares.is_empty() {
        let shares: Vec<u64> = pin.shares.iter().map(|share| u64::from(*share)).collect();
        return vec![(layers_of_shares(&weights, &shares), false)];
    }
    let (memory, speed, equal) = proportions(problem, component, pin);
    let filled = filled(&memory, &speed, weights.iter().sum());
    let preferences = Preferences { lasting: &[speed, equal], adapted: &[memory, filled] };
    layers(&weights, pin.devices.len(), &preferences)
}

/// The shares of a row split, with whether the present budgets made them.
fn row_shares(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
) -> Vec<(Vec<u32>, bool)> {
    if !pin.shares.is_empty() {
        return vec![(pin.shares.clone(), false)];
    }
    let (memory, speed, equal) = proportions(problem, component, pin);
    rows(&Preferences { lasting: &[speed, equal], adapted: &[memory] })
}

/// Proportions of a component's devices: by room for weights, by speed, and equal ones.
fn proportions(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
    let memory = pin.devices.iter().map(|device| problem.room(*device).0).collect();
    (memory, speeds(problem, component, &pin.devices), vec![1; pin.devices.len()])
}

/// How many calls of a component each device would do in 1000 s, alone: its speed, for proportions.
fn speeds(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    devices: &[Option<usize>],
) -> Vec<u64> {
    let speed = |device: &Option<usize>| {
        let spread = Spread::whole(component, *device, Bytes::ZERO);
        let once = Timing::new(problem.inventory, component, &spread).once_s();
        // As whole numbers, so that proportions of equal devices are equal; 2^53 is exact.
        (1e3 / once.max(1e-12)) as u64 + 1
    };
    devices.iter().map(speed).collect()
}

/// Weights given to the fastest devices first, as many as they have room for; the slower of two equals last.
fn filled(memory: &[u64], speed: &[u64], weights: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..memory.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(speed[*index]));
    let (mut shares, mut left) = (vec![0; memory.len()], weights);
    for index in order {
        shares[index] = memory[index].min(left);
        left -= shares[index];
    }
    shares
}

/// How far the fullest device of a split is filled by its weights, in parts of 2^20.
fn fullness(problem: &Problem<'_>, spread: &Spread) -> u64 {
    if spread.devices.len() < 2 {
        return 0;
    }
    let filled = |(part, device): (usize, &Option<usize>)| {
        let device = (*device)?;
        let (weights, room) = (spread.part_bytes(part).0, problem.room(Some(device)).0.max(1));
        Some(u64::try_from((u128::from(weights) << 20) / u128::from(room)).unwrap_or(u64::MAX))
    };
    spread.devices.iter().enumerate().filter_map(filled).max().unwrap_or(0)
}
