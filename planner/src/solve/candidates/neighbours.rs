//! Layouts next to one that was chosen: its devices in another order, each with as much as it has,
//! and a segment, or some heads and features, from one device to another. Not all of these are
//! tried at first.

use std::collections::BTreeSet;

use protocol::profile::ComponentProfile;
use protocol::{Division, Layout, dealt};

use super::super::Problem;
use super::super::layouts::in_lowest_terms;
use super::super::place::ComponentLayout;
use super::{LayoutQuery, kinds_of, lane};

/// How many parts of a head move from one device to another.
pub(super) const MOVES_OF_HEADS: [u32; 4] = [HEAD_PARTS, 1, 2, 4];

/// Parts of a head. Features are finer than heads: with a part more, a device may have as many
/// heads and compute for as long as the others. Of 24 heads a part is half a percent.
pub(super) const HEAD_PARTS: u32 = 8;

/// With at most this many devices, segments and heads move between any two of them. With more, only
/// the first number of [`MOVES_OF_HEADS`] does, and only between neighbours.
const MOVED_EXACT: usize = 6;

/// With at most this many devices, every order is tried.
const ORDERS_EXACT: usize = 3;

/// The layouts next to one of a component, of other orders and with other segments; none where its
/// devices are pinned.
pub fn neighbours(
    problem: &Problem<'_>,
    index: usize,
    layout: &ComponentLayout,
) -> Vec<LayoutQuery> {
    let count = layout.devices.len();
    if count < 2 || !problem.pins[index].devices.is_empty() {
        return Vec::new();
    }
    let on_devices = layout.devices.iter().all(Option::is_some);
    let ordered = |shares: &[u32], order: &[usize]| {
        let devices: Vec<Option<usize>> = order.iter().map(|at| layout.devices[*at]).collect();
        let shares: Vec<u32> = order.iter().map(|at| shares[*at]).collect();
        (devices, shares)
    };
    let shares: Vec<u32> = match &layout.division {
        Division::Layer { segments } | Division::Pipeline { segments, .. } => {
            segment_counts(count, segments)
        }
        Division::Row { shares } | Division::Tensor { shares } => shares.clone(),
        Division::One | Division::Items { .. } => return Vec::new(),
    };
    let in_layers = layout.division.segments().is_some();
    let orders = match (on_devices, in_layers) {
        (false, _) => Vec::new(),
        (true, true) => orders(count),
        // Only the first does more than its share.
        (true, false) => (1..count).map(|at| swapped(count, 0, at)).collect(),
    };
    let mut near: Vec<(Vec<Option<usize>>, Vec<u32>)> =
        orders.iter().map(|order| ordered(&shares, order)).collect();
    if in_layers {
        let moved = moved(&shares, &[1]).into_iter();
        near.extend(moved.map(|shares| (layout.devices.clone(), shares)));
    }
    // Devices that are alike change places without any difference.
    let kind =
        |devices: &[Option<usize>], shares: &[u32]| (kinds_of(problem, devices), shares.to_vec());
    let mut seen = vec![kind(&layout.devices, &shares)];
    near.retain(|(devices, shares)| {
        let kind = kind(devices, shares);
        let new = !seen.contains(&kind);
        seen.push(kind);
        new
    });
    let query = |(devices, shares)| {
        let division = match &layout.division {
            Division::Row { .. } => Division::Row { shares },
            Division::Tensor { .. } => Division::Tensor { shares },
            Division::Pipeline { counts, .. } => {
                Division::Pipeline { segments: layers(shares), counts: counts.clone() }
            }
            _ => Division::Layer { segments: layers(shares) },
        };
        query(problem, index, devices, division)
    };
    near.into_iter().map(query).collect()
}

/// The layouts next to a tensor split, with some heads and features on another device, or with
/// another device first; none of another split, or where its devices are pinned.
pub fn other_heads(
    problem: &Problem<'_>,
    index: usize,
    layout: &ComponentLayout,
) -> Vec<LayoutQuery> {
    let Division::Tensor { shares } = &layout.division else { return Vec::new() };
    if !problem.pins[index].devices.is_empty() {
        return Vec::new();
    }
    let (kinds, gpus) = kinds_of(problem, &layout.devices);
    let mut seen = BTreeSet::new();
    // Only the first device does more than its share: others that are alike change places without
    // any difference, but for parts of one GPU.
    let is_new = |shares: &Vec<u32>| {
        let mut of_kinds: Vec<_> = kinds.iter().zip(shares.iter().copied()).collect();
        if gpus.iter().is_sorted_by(|a, b| a < b) {
            of_kinds[1..].sort_unstable();
        }
        seen.insert(of_kinds)
    };
    let own = parts_of_heads(&problem.profile.components[index], shares);
    // Shares that are finer than parts of a head are rounded to these too.
    let is_other = in_lowest_terms(own.clone()) != in_lowest_terms(shares.clone());
    let rounded = is_other.then(|| own.clone());
    let moved = rounded.into_iter().chain(moved(&own, &MOVES_OF_HEADS)).filter(is_new);
    let query = |order: &[usize], shares: &[u32]| {
        let devices = order.iter().map(|at| layout.devices[*at]).collect();
        let shares = order.iter().map(|at| shares[*at]).collect();
        let division = Division::Tensor { shares: in_lowest_terms(shares) };
        query(problem, index, devices, division)
    };
    let count = layout.devices.len();
    let in_order: Vec<usize> = (0..count).collect();
    let others_first = (1..count).filter(|at| kinds[*at] != kinds[0]);
    let others_first = others_first.map(|at| query(&swapped(count, 0, at), &own));
    moved.map(|shares| query(&in_order, &shares)).chain(others_first).collect()
}

/// How many parts of a head each device has, by its share.
pub(super) fn parts_of_heads(component: &ComponentProfile, shares: &[u32]) -> Vec<u32> {
    let ratio: Vec<u64> = shares.iter().copied().map(u64::from).collect();
    dealt(component.heads_max.saturating_mul(HEAD_PARTS), &ratio)
}

/// The layout of a component over these devices.
pub(super) fn query(
    problem: &Problem<'_>,
    index: usize,
    devices: Vec<Option<usize>>,
    division: Division,
) -> LayoutQuery {
    let component = problem.profile.components[index].name.clone();
    let lanes = devices.iter().map(|device| lane(problem, *device)).collect();
    LayoutQuery::of(index, devices, Layout { component, lanes, division })
}

/// How many segments each device has.
pub(super) fn segment_counts(devices: usize, lanes: &[u32]) -> Vec<u32> {
    let of = |device: usize| lanes.iter().filter(|lane| **lane as usize == device).count() as u32;
    (0..devices).map(of).collect()
}

/// The device of each segment, where each has its count of them, in order.
pub(super) fn layers(counts: Vec<u32>) -> Vec<u32> {
    let of_device = |(device, count)| std::iter::repeat_n(device, count as usize);
    (0..).zip(counts).flat_map(of_device).collect()
}

/// Orders of `count` devices: every order of few devices; of more, those that swap two neighbours.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count > ORDERS_EXACT {
        return (1..count).map(|at| swapped(count, at - 1, at)).collect();
    }
    let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..count {
        let longer = orders.iter().flat_map(|order| {
            let left = (0..count).filter(|at| !order.contains(at));
            left.map(|at| [&order[..], &[at]].concat())
        });
        orders = longer.collect();
    }
    orders
}

fn swapped(count: usize, a: usize, b: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.swap(a, b);
    order
}

/// Counts with some more on one device, and as many less on another one.
pub(super) fn moved(counts: &[u32], moves: &[u32]) -> Vec<Vec<u32>> {
    let few = counts.len() <= MOVED_EXACT;
    let devices = 0..counts.len();
    let pairs = devices.clone().flat_map(|from| devices.clone().map(move |to| (from, to)));
    let pairs = pairs.filter(|(from, to)| from != to && (few || from.abs_diff(*to) == 1));
    let tried = if few { moves } else { &moves[..1] };
    let all = pairs.flat_map(|(from, to)| tried.iter().map(move |count| (from, to, *count)));
    let all = all.filter(|(from, _, count)| counts[*from] > *count);
    let moved = all.map(|(from, to, count)| {
        let mut moved = counts.to_vec();
        (moved[from], moved[to]) = (moved[from] - count, moved[to] + count);
        moved
    });
    moved.collect()
}
