//! The shares of a list's devices that are tried: what is pinned, or proportions by speed, by
//! memory, and equal ones.

use protocol::profile::ComponentProfile;

use super::super::Problem;
use super::super::layouts::{heads, layers, layers_of_shares};
use super::super::time::SegmentTimes;
use super::lists::DeviceList;
use crate::policy::pins::{Pin, item_counts, item_counts_of};

/// The device of each segment, for each cut of a layer split. Beside the preferred cuts there are
/// `most` at most.
pub(super) fn cuts(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    list: &DeviceList,
    times: &SegmentTimes<'_>,
    most: usize,
) -> Vec<Vec<u32>> {
    let weights: Vec<u64> = component.segments.iter().map(|s| s.weights_bytes.0).collect();
    if !pin.shares.is_empty() {
        let shares: Vec<u64> = pin.shares.iter().map(|share| u64::from(*share)).collect();
        return vec![layers_of_shares(&weights, &shares)];
    }
    layers(&weights, list.devices.len(), &preferred(problem, &list.devices, times), most)
}

/// The shares of the pin, or those that are tried.
pub(super) fn pinned_or(pin: &Pin, tried: impl FnOnce() -> Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    match pin.shares.as_slice() {
        [] => tried(),
        shares => vec![shares.to_vec()],
    }
}

/// The shares of heads with which a list's devices compute for about as long.
pub(super) fn balanced_heads(
    devices: &[Option<usize>],
    times: &SegmentTimes<'_>,
) -> Option<Vec<u32>> {
    // After equal ones, if they are not about equal.
    heads(times.balanced(devices), &[], false).pop()
}

/// All shares of heads that are tried, for two devices in eighths too.
pub(super) fn heads_of(
    problem: &Problem<'_>,
    devices: &[Option<usize>],
    times: &SegmentTimes<'_>,
) -> Vec<Vec<u32>> {
    heads(times.balanced(devices), &preferred(problem, devices, times), true)
}

/// The items of each device of an item split, the ones by speed first.
pub fn counts(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    devices: &[Option<usize>],
    times: &SegmentTimes<'_>,
) -> Vec<Vec<u32>> {
    match pin.shares.as_slice() {
        [] => {
            let preferred = preferred(problem, devices, times);
            item_counts(component.items, devices.len(), &preferred)
        }
        shares => item_counts_of(component.items, shares),
    }
}

/// Proportions of a list's devices: by speed, by memory, and equal ones.
pub(super) fn preferred(
    problem: &Problem<'_>,
    devices: &[Option<usize>],
    times: &SegmentTimes<'_>,
) -> Vec<Vec<u64>> {
    let speed = |device: &Option<usize>| {
        // Calls in 1000 s, as whole numbers, so that proportions of equal devices are equal; 2^53
        // is exact.
        (1e3 / times.once_s(*device).max(1e-12)) as u64 + 1
    };
    let memory = |device: &Option<usize>| match device {
        Some(index) => problem.inventory.devices[*index].free_bytes.0,
        None => problem.inventory.host.available_bytes.0,
    };
    vec![
        devices.iter().map(speed).collect(),
        devices.iter().map(memory).collect(),
        vec![1; devices.len()],
    ]
}
