//! Bytes and times of a combination of places, summed anew from what the documentation says of
//! them: from layouts and residencies, not from what places say that they take.

use protocol::{Phase, Residency};

use super::super::*;
use super::made_up::{Case, TIMELINE};
use crate::policy::IdleBudgets;
use crate::solve::component_ms::ComponentMs;
use crate::solve::place::WeightResidency;
use crate::solve::time::SegmentTimes;

/// What is compared, in this order: time, what the next job takes without overlap, copies in RAM,
/// how many parts there are, how full splits are.
pub(super) type Value = (u64, u64, usize, u64, usize, u64, u64);

/// Peaks by device, the host last, and by phase.
pub(super) fn peaks(case: &Case, places: &[&Place]) -> Vec<[u64; 3]> {
    sums(case, places).into_iter().map(|(peaks, _)| peaks).collect()
}

/// Peaks, and what stays between two jobs: by device, the host last.
fn sums(case: &Case, places: &[&Place]) -> Vec<([u64; 3], u64)> {
    let host = case.inventory.devices.len();
    let mut weights = vec![[0_u64; 3]; host + 1];
    let mut arenas = vec![[0_u64; 3]; host + 1];
    let mut stays = vec![0_u64; host + 1];
    let mut used = vec![false; host + 1];
    for (component, place) in case.profile.components.iter().zip(places) {
        let now = TIMELINE.iter().position(|phase| *phase == component.phase).unwrap();
        for (index, part) in place.spread.parts.iter().enumerate() {
            let in_place = index >= place.spread.devices.len();
            let device = if in_place { None } else { place.spread.devices[index] };
            let at = device.unwrap_or(host);
            used[at] |= device.is_some();
            arenas[at][now] = arenas[at][now].max(part.compute_bytes.0);
            let mut streamed = Vec::new();
            for (segment, bytes) in part.segment_bytes.iter().enumerate() {
                let Some(residency) = place.residencies(segment).nth(index) else { continue };
                match residency {
                    Residency::Mapped => {}
                    Residency::Resident => {
                        weights[at].iter_mut().for_each(|w| *w += bytes.0);
                        stays[at] += bytes.0;
                    }
                    Residency::Lazy => {
                        weights[at][now] += bytes.0;
                        if place.early {
                            weights[at][now - 1] += bytes.0;
                        }
                    }
                    Residency::Streamed => streamed.push(bytes.0),
                    Residency::Locked => {
                        streamed.push(bytes.0);
                        weights[host].iter_mut().for_each(|w| *w += bytes.0);
                        stays[host] += bytes.0;
                    }
                }
            }
            streamed.retain(|bytes| *bytes > 0);
            let slots = match &place.held {
                WeightResidency::Some { slots, .. } if !in_place => slots.on(index),
                _ => 0,
            };
            let slots = streamed.len().min(slots as usize) as u64;
            weights[at][now] += slots * streamed.iter().max().unwrap_or(&0);
        }
    }
    let devices = case.inventory.devices.iter().zip(&used);
    let pinned: u64 = devices.filter(|(_, used)| **used).map(|(d, _)| d.pinned_bytes.0).sum();
    // The context of a GPU is on the first of its parts, whichever of them is used.
    let opened = |at: usize| {
        let gpu = |at: usize| case.inventory.devices[at].part.as_ref().map(|part| &part.gpu);
        let alike = |other: &usize| *other == at || gpu(at).is_some() && gpu(*other) == gpu(at);
        (0..host).filter(alike).any(|other| used[other])
    };
    let fixed = |at: usize| match case.inventory.devices.get(at) {
        Some(device) if opened(at) => device.overhead_bytes.0,
        Some(_) => 0,
        None => case.profile.job_bytes.0 + case.profile.changed_bytes.0 + pinned,
    };
    let peak =
        |at: usize| std::array::from_fn(|phase| weights[at][phase] + arenas[at][phase] + fixed(at));
    // A job's own buffers go with it.
    let job = |at: usize| if at == host { case.profile.job_bytes.0 } else { 0 };
    (0..=host).map(|at| (peak(at), stays[at] + fixed(at) - job(at))).collect()
}

/// Whether every budget holds at every instant.
pub(super) fn fits(case: &Case, places: &[&Place]) -> bool {
    let peaks = peaks(case, places);
    let (host, devices) = peaks.split_last().unwrap();
    let budgets = &case.budgets;
    let used = |at: usize| places.iter().any(|p| p.spread.devices.contains(&Some(at)));
    let pool = |phase: usize| -> u64 {
        let integrated = |at: &usize| case.inventory.devices[*at].integrated;
        (0..devices.len()).filter(integrated).map(|at| devices[at][phase]).sum()
    };
    let all = case.inventory.devices.iter().enumerate();
    let pinned: u64 = all.filter(|(at, _)| used(*at)).map(|(_, d)| d.pinned_bytes.0).sum();
    let locked = |place: &&&Place| place.residency() == Residency::Streamed;
    let locked: u64 = places.iter().filter(locked).map(|place| locked_bytes(place)).sum();
    let pinned = pinned + locked;
    devices.iter().zip(&budgets.devices).all(|(peaks, b)| peaks.iter().all(|p| *p <= b.0))
        && host.iter().all(|peak| *peak <= budgets.host.0)
        && (0..3).all(|p| pool(p) == 0 || pool(p) + host[p] <= budgets.host.0)
        && budgets.pinned.is_none_or(|limit| pinned <= limit.0)
        && budgets.idle.as_ref().is_none_or(|limits| idles_within(case, places, limits))
}

/// Page-locked copies of a streamed component's weights.
fn locked_bytes(place: &Place) -> u64 {
    let devices = place.spread.devices.len();
    let of = |segment: usize| {
        let parts = place.spread.parts[..devices].iter().zip(place.residencies(segment));
        let locked = parts.filter(|(_, residency)| *residency == Residency::Locked);
        locked.map(|(part, _)| part.segment_bytes[segment].0).sum::<u64>()
    };
    (0..place.spread.segments()).map(of).sum()
}

/// Whether what stays between two jobs is within its limits.
fn idles_within(case: &Case, places: &[&Place], limits: &IdleBudgets) -> bool {
    let stays: Vec<u64> = sums(case, places).into_iter().map(|(_, stays)| stays).collect();
    let (host, devices) = stays.split_last().unwrap();
    let all = case.inventory.devices.iter().zip(devices);
    let shared: u64 = all.filter(|(device, _)| device.integrated).map(|(_, stays)| stays).sum();
    devices.iter().zip(&limits.devices).all(|(stays, limit)| *stays <= limit.0)
        && host + shared <= limits.host.0
}

/// Ticks of 2^-20 ms, in whole steps: a single storage works through the loads in the order in
/// which they are needed, each from when it may begin, while phases compute one after the other.
pub(super) fn ticks(case: &Case, problem: &Problem<'_>, places: &[&Place], warm: bool) -> u64 {
    let ticks = whole_steps(problem);
    let components = &case.profile.components;
    let mut loads: Vec<(Phase, Phase, u64)> = Vec::new();
    let (mut computes, mut idles) = ([0_u64; 3], [0_u64; 3]);
    for (component, place) in components.iter().zip(places) {
        let now = TIMELINE.iter().position(|phase| *phase == component.phase).unwrap();
        let ComponentMs { load, first_read, compute, storage, storage_again } = place.ms;
        let (busy, compute) =
            if warm { (storage_again, compute) } else { (storage, first_read + compute) };
        computes[now] += ticks(compute);
        // Nothing else is loaded while the storage is busy with what is streamed.
        idles[now] += ticks(f64::max(compute - busy, 0.0)).min(ticks(compute));
        let kept = !place.reloads();
        let begins = match (place.early, kept) {
            (false, _) => component.phase,
            (true, true) => TIMELINE[0],
            (true, false) => TIMELINE[now - 1],
        };
        if !(warm && kept) {
            loads.push((begins, component.phase, ticks(load)));
        }
    }
    loads.sort_by_key(|(_, needed, _)| *needed);
    let mut total = 0;
    for ((phase, compute), idle) in TIMELINE.iter().zip(computes).zip(idles) {
        for (_, _, left) in loads.iter_mut().filter(|(_, needed, _)| needed == phase) {
            total += std::mem::take(left);
        }
        total += compute;
        let mut idle = idle;
        for (begins, _, left) in &mut loads {
            if *begins <= *phase {
                let done = idle.min(*left);
                *left -= done;
                idle -= done;
            }
        }
    }
    total
}

/// Milliseconds as ticks, in multiples of the finest difference that is added up: the largest power
/// of two that the least time of the denoise phase on any device has 2^14 times, else a tick.
fn whole_steps(problem: &Problem<'_>) -> impl Fn(f64) -> u64 {
    let step = step(problem);
    move |ms| (ms * f64::from(1 << 20) / step as f64).round() as u64 * step
}

fn step(problem: &Problem<'_>) -> u64 {
    let components = &problem.profile.components;
    let mut counted: Vec<_> = components.iter().collect();
    if components.iter().any(|component| component.phase == Phase::Denoise) {
        counted.retain(|component| component.phase == Phase::Denoise);
    }
    let mut least_ms = 0.0;
    for component in counted {
        let times = SegmentTimes::new(problem.inventory, component, 256);
        let devices = (0..problem.inventory.devices.len()).map(Some).chain([None]);
        let once_s = devices.map(|device| times.once_s(device)).min_by(f64::total_cmp).unwrap();
        least_ms += 1e3 * f64::from(component.calls) * once_s;
    }
    let steps = |step: &u64| least_ms * f64::from(1 << 20) >= (*step << 14) as f64;
    (0..48).map(|bits| 1 << bits).take_while(steps).last().unwrap_or(1)
}

/// Ticks as they are compared, and told: in multiples of 16 steps.
pub(super) fn compared(problem: &Problem<'_>, ticks: u64) -> u64 {
    let steps = 16 * step(problem);
    ticks / steps * steps
}

/// What a combination takes at its peaks, of all devices and the host, with what the host reads in
/// place from files; it counts first with `memory`.
fn total(case: &Case, places: &[&Place]) -> u64 {
    let mut peaks = peaks(case, places);
    let host = peaks.last_mut().expect("the host is the last");
    for (component, place) in case.profile.components.iter().zip(places) {
        let now = TIMELINE.iter().position(|phase| *phase == component.phase).unwrap();
        for (index, part) in place.spread.parts.iter().enumerate() {
            let in_place = index >= place.spread.devices.len();
            for (segment, bytes) in part.segment_bytes.iter().enumerate() {
                let mut residencies = place.residencies(segment);
                if in_place || residencies.nth(index) == Some(Residency::Mapped) {
                    host[now] += bytes.0;
                }
            }
        }
    }
    peaks.iter().map(|peaks| peaks.iter().max().unwrap()).sum()
}

/// What a combination is worth: less is better. With `memory` its bytes come first.
pub(super) fn value(
    case: &Case,
    problem: &Problem<'_>,
    objective: Objective,
    places: &[&Place],
) -> (u64, Value) {
    let total = if objective == Objective::Memory { total(case, places) } else { 0 };
    let whole = whole_steps(problem);
    let load = |place: &Place| if place.reloads() { place.ms.load } else { 0.0 };
    let again = |place: &&Place| whole(load(place)) + whole(place.ms.compute);
    let again = places.iter().map(again).sum();
    let on_host = |p: &&&Place| p.spread.is_on_host();
    let copied = |p: &&&Place| p.held != WeightResidency::All(Residency::Mapped);
    let copies = places.iter().filter(on_host).filter(copied).count();
    let fullness = places.iter().map(|place| place.fullness).sum();
    let streams = |place: &&&Place| place.residency() == Residency::Streamed;
    let devices: usize = places.iter().map(|place| place.spread.devices.len() - 1).sum();
    let parts = devices + places.iter().filter(streams).count();
    let locked = places.iter().filter(streams).map(|place| locked_bytes(place)).sum();
    let ticks = ticks(case, problem, places, objective == Objective::Throughput);
    let (time, again) = (compared(problem, ticks), compared(problem, again));
    (total, (time, again, copies, locked, parts, fullness, ticks))
}

/// The least value of all combinations that fit.
pub(super) fn best(case: &Case, problem: &Problem<'_>) -> Option<(u64, Value)> {
    let mut best = None;
    let mut chosen = vec![0; problem.places.len()];
    loop {
        if chosen.iter().zip(&problem.places).all(|(index, places)| *index < places.len()) {
            let places = problem.chosen(&chosen);
            if fits(case, &places) {
                let value = value(case, problem, problem.objective, &places);
                if best.is_none_or(|best| value < best) {
                    best = Some(value);
                }
            }
        }
        // The next combination, counting with the last component as the lowest digit.
        let next = (0..chosen.len()).rev().find(|at| chosen[*at] + 1 < problem.places[*at].len());
        let Some(at) = next else { return best };
        chosen[at] += 1;
        chosen[at + 1..].fill(0);
    }
}
