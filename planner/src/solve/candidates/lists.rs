//! The lists of devices that a component may have: each alone, the host, and those that it may be
//! split over.

use std::cmp::Ordering;

use protocol::Phase;
use protocol::profile::ComponentProfile;

use super::super::Problem;
use super::super::time::SegmentTimes;
use crate::inventory::{Device, Inventory};
use crate::policy::pins::{Params, Pin, Split, group_counts};

/// Up to so many devices every subset is tried; of more, those that lead by speed.
pub const DEVICES_EXACT: usize = 4;

/// Of more devices, so many of those that lead are tried together.
const LEADING: [usize; 6] = [5, 6, 7, 8, 12, 16];

/// A component that has less than one part of this many of the model's weights is not split unless
/// it is pinned so: with all of it elsewhere, little is won.
const SPLIT_PART: u64 = 8;

/// Devices in order, and how a component is split over them; `None` for one device, or the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceList {
    pub devices: Vec<Option<usize>>,
    pub split: Option<Split>,
    /// Whether somebody pinned it.
    pub pinned: bool,
}

/// Which lists of devices are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lists {
    /// Those that are looked at first: all but splits in turns and pipelines that nobody pinned.
    /// These are most of all places, and seldom the best.
    First,
    /// Every list.
    All,
}

impl Lists {
    /// Whether a list is one of these.
    pub fn have(self, inventory: &Inventory, list: &DeviceList) -> bool {
        self == Lists::All || list.pinned || !is_left_out(inventory, list)
    }
}

/// Whether a list is left out at first: a pipeline, or one whose devices compute one after the
/// other, as they have layers or share a processor.
fn is_left_out(inventory: &Inventory, list: &DeviceList) -> bool {
    match list.split {
        None => false,
        Some(Split::Layer | Split::Pipeline) => true,
        Some(Split::Row | Split::Tensor | Split::Items) => {
            share_processor(inventory, &list.devices)
        }
    }
}

/// Whether all of these share the host's threads, or are parts of one GPU.
fn share_processor(inventory: &Inventory, devices: &[Option<usize>]) -> bool {
    let mut some = devices.iter().flatten();
    let share_threads = !some.any(|at| inventory.devices[*at].computes_apart());
    share_threads || inventory.gpus(devices).iter().all(|gpu| *gpu == 0)
}

/// The lists of a component, in the order in which ties are broken.
pub fn lists(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    times: &SegmentTimes<'_>,
) -> Vec<DeviceList> {
    match pin.devices.as_slice() {
        [] => free(problem, component, pin, times),
        [device] => vec![DeviceList { devices: vec![*device], split: None, pinned: true }],
        devices => {
            vec![DeviceList { devices: devices.to_vec(), split: Some(pin.split), pinned: true }]
        }
    }
}

fn free(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    times: &SegmentTimes<'_>,
) -> Vec<DeviceList> {
    let devices = choosable(problem, pin);
    let one = |device| DeviceList { devices: vec![device], split: None, pinned: false };
    let mut lists: Vec<DeviceList> = devices.iter().map(|device| one(Some(*device))).collect();
    // Weights that are streamed, or resident on a device, need one.
    let on_host = !matches!(pin.params, Some(Params::Cpu | Params::Locked | Params::Device))
        && problem.inventory.host.compute
        && !pin.forbidden.contains(&None);
    if on_host {
        lists.push(one(None));
    }
    if !is_split(problem, component) {
        return lists;
    }
    let subsets = subsets(problem, &devices);
    for split in [Split::Layer, Split::Row, Split::Tensor, Split::Items, Split::Pipeline] {
        for subset in &subsets {
            if !may_split(problem, component, subset, split, times) {
                continue;
            }
            for order in orders(&problem.inventory.devices, subset, split) {
                let devices = order.into_iter().map(Some).collect();
                lists.push(DeviceList { devices, split: Some(split), pinned: false });
            }
        }
    }
    if on_host {
        let alone = devices.iter().map(|device| vec![*device]);
        for beside in alone.chain(subsets) {
            if host_may_help(problem, component, &beside, times) {
                let devices: Vec<_> = beside.into_iter().map(Some).collect();
                for devices in [[&devices[..], &[None]].concat(), [&[None], &devices[..]].concat()]
                {
                    lists.push(DeviceList { devices, split: Some(Split::Layer), pinned: false });
                }
            }
        }
    }
    lists
}

/// Whether the host may compute the first or the last layers of what some devices compute: only
/// where that takes less than on one of them, with the weights' way there. On the host they are
/// read in place.
fn host_may_help(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    devices: &[usize],
    times: &SegmentTimes<'_>,
) -> bool {
    let host = &problem.inventory.host;
    let cached = component.tensor_bytes <= host.available_bytes;
    let source = if cached { f64::INFINITY } else { host.storage_bytes_per_s.value };
    let on_device_s = |device: &usize| {
        let link = problem.inventory.devices[*device].link_bytes_per_s.value;
        times.once_s(Some(*device)) + component.tensor_bytes.0 as f64 / link.min(source)
    };
    let slowest_s = devices.iter().map(on_device_s).fold(0.0, f64::max);
    devices.len() < DEVICES_EXACT
        && component.segments.len() > devices.len()
        && times.once_s(None) < slowest_s
}

/// The orders of a set of devices that make a difference, the inventory's first: of layers, which
/// segments are neighbours on which device; of rows and heads, which device does what is not split;
/// of items none. Devices that are alike change places without any. Of more than two devices some
/// orders are tried: of layers the inventory's and by speed, and both turned round; of rows and
/// heads those with the fastest device first. [`super::neighbours`] has the others.
fn orders(all: &[Device], subset: &[usize], split: Split) -> Vec<Vec<usize>> {
    let kinds = |order: &[usize]| -> Vec<usize> {
        order.iter().map(|device| kind_of(all, *device)).collect()
    };
    let turned = |mut order: Vec<usize>| {
        order.reverse();
        order
    };
    let mut by_speed = subset.to_vec();
    by_speed.sort_by(|a, b| leads(all, *a, *b));
    let orders: Vec<Vec<usize>> = match split {
        Split::Row | Split::Tensor => {
            let first = |at: usize| [&subset[at..], &subset[..at]].concat();
            let kinds = kinds(subset);
            let new = |at: &usize| !kinds[..*at].contains(&kinds[*at]);
            let fastest = by_speed.first().map(|device| kind_of(all, *device));
            let few = subset.len() <= 2;
            let tried = |at: &usize| few || Some(kinds[*at]) == fastest;
            (0..subset.len()).filter(new).filter(tried).map(first).collect()
        }
        Split::Items => vec![subset.to_vec()],
        Split::Layer | Split::Pipeline => {
            vec![subset.to_vec(), by_speed.clone(), turned(subset.to_vec()), turned(by_speed)]
        }
    };
    let mut seen = Vec::new();
    let differs = |order: &Vec<usize>| {
        let kinds = kinds(order);
        let new = !seen.contains(&kinds);
        seen.push(kinds);
        new
    };
    orders.into_iter().filter(differs).collect()
}

/// The first of all devices that is like this one.
pub fn kind_of(all: &[Device], device: usize) -> usize {
    let like = |other: &Device| other.is_like(&all[device]);
    all.iter().position(like).expect("a device is like itself")
}

/// The devices that may be chosen for a component: none that is unusable or forbidden.
pub fn choosable(problem: &Problem<'_>, pin: &Pin) -> Vec<usize> {
    let usable = problem.unusable.iter().enumerate().filter(|(_, why)| why.is_none());
    usable.map(|(index, _)| index).filter(|index| !pin.forbidden.contains(&Some(*index))).collect()
}

/// Whether splits of a component are tried. A VAE is not: it is its activations that are large, and
/// these are made smaller by tiles.
fn is_split(problem: &Problem<'_>, component: &ComponentProfile) -> bool {
    let all: u64 = problem.profile.components.iter().map(|c| c.weights_bytes.0).sum();
    let tiled = matches!(component.phase, Phase::Encode | Phase::Decode);
    !tiled && component.weights_bytes.0.saturating_mul(SPLIT_PART) >= all
}

/// Sets of two or more devices, in the inventory's order: all of few; of many those that lead by
/// speed.
fn subsets(problem: &Problem<'_>, devices: &[usize]) -> Vec<Vec<usize>> {
    let mut leading = devices.to_vec();
    leading.sort_by(|a, b| leads(&problem.inventory.devices, *a, *b));
    let few = &leading[..leading.len().min(DEVICES_EXACT)];
    let mut subsets: Vec<Vec<usize>> = Vec::new();
    for bits in (0..1_usize << few.len()).filter(|bits| bits.count_ones() > 1) {
        let members = few.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
        subsets.push(members.map(|(_, device)| *device).collect());
    }
    for count in LEADING {
        if count > DEVICES_EXACT && count <= leading.len() {
            subsets.push(leading[..count].to_vec());
        }
    }
    for subset in &mut subsets {
        subset.sort_unstable();
    }
    subsets.sort_by_key(|subset| (subset.len(), subset.clone()));
    subsets.dedup();
    subsets
}

/// Which of two devices comes first: the faster one, then the one with more memory.
fn leads(devices: &[Device], a: usize, b: usize) -> Ordering {
    let speed = |index: usize| devices[index].speeds.half_flops_per_s.value;
    let by_speed = speed(b).total_cmp(&speed(a));
    let by_memory = devices[b].free_bytes.cmp(&devices[a].free_bytes);
    by_speed.then(by_memory).then(a.cmp(&b))
}

/// Whether a component can be split so over these devices.
fn may_split(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    devices: &[usize],
    split: Split,
    times: &SegmentTimes<'_>,
) -> bool {
    let device = |index: &usize| &problem.inventory.devices[*index];
    match split {
        Split::Layer => component.segments.len() >= devices.len(),
        Split::Row => {
            let kind = device(&devices[0]).kind;
            let whole = |index| device(index).kind == kind && device(index).unsupported.is_empty();
            // Where heads can be split, rows take longer: each product's input and result cross,
            // and one device attends alone. docs/planning.md has how much longer.
            let has_heads = component.heads_max as usize >= devices.len();
            component.splits_rows && !has_heads && devices.iter().all(whole)
        }
        Split::Tensor => {
            let kind = device(&devices[0]).kind;
            let whole = |index| device(index).kind == kind && device(index).unsupported.is_empty();
            component.heads_max as usize >= devices.len()
                && devices.iter().all(whole)
                && summands_may_pay(devices, times)
        }
        Split::Items => {
            let whole = |index| device(index).unsupported.is_empty();
            component.items.count() as usize >= devices.len() && devices.iter().all(whole)
        }
        Split::Pipeline => {
            let whole = |index| device(index).unsupported.is_empty();
            let some: Vec<Option<usize>> = devices.iter().copied().map(Some).collect();
            component.segments.len() >= devices.len()
                && !group_counts(component.items, devices.len()).is_empty()
                && devices.iter().all(whole)
                && !share_processor(problem.inventory, &some)
        }
    }
}

/// Whether these devices may share heads. Up to four always may. Each device gives its summands to
/// each other one, so that with more devices the copies alone can take longer than the fastest
/// device takes for everything: then they may not.
fn summands_may_pay(devices: &[usize], times: &SegmentTimes<'_>) -> bool {
    let alone_s = devices.iter().map(|device| times.once_s(Some(*device)));
    devices.len() <= DEVICES_EXACT
        || times.least_summands_s(devices) < alone_s.fold(f64::INFINITY, f64::min)
}
