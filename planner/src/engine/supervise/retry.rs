//! What each failure means for the next attempt. Pure: it makes requests, and starts nothing.
//!
//! Lessons are kept by a device's lasting name, and outlive the executor and the inventory that
//! they were learnt with. Invariants: a device's limit never rises; every plan that is tried after
//! a shortage takes less of that device.

use std::collections::{BTreeMap, BTreeSet};

use protocol::message::Progress;
use protocol::{Bytes, DeviceId, Failure, FailureKind, Phase, Placement, Plan, Residency};

use super::ATTEMPTS_MAX;
use crate::engine::session::SessionError;
use crate::inventory::{Device, Inventory};
use crate::planning::{FailedDevice, Request};

/// A plan of the same layout as one that memory was short for is not tried where it takes more than
/// this part of that one's peak: what someone else takes rarely stays the same to the byte.
const MUCH_LESS: (u64, u64) = (7, 8);

/// In the last attempt a limit is used by half of it, then by one more of so many parts until a
/// plan fits.
const LIMIT_PARTS: u64 = 8;

/// How a job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It does not.
    Stop,
    /// With a new plan on the same executor; on a new one, where that has lost a device.
    Replan,
    /// With a new plan on a new executor, if the session may have one.
    Restart,
}

/// An attempt that failed.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// What it was planned from.
    pub request: &'a Request,
    /// Its plan, if it came to one.
    pub plan: Option<&'a Plan>,
    /// How far it got.
    pub progress: Option<Progress>,
}

/// What a job's failures have taught so far.
#[derive(Debug)]
pub struct RetryPolicy {
    /// Whether another plan may be made: not where one was given.
    plans: bool,
    attempts: u64,
    /// By lasting name.
    short: BTreeMap<String, Shortage>,
    /// Lasting names of those that an executor lost.
    lost: BTreeSet<String>,
    /// By lasting name, how each failed.
    failed: Vec<(String, String)>,
    /// What memory was short for.
    tried: Vec<TriedPlan>,
}

/// A device, or the host, that memory was short on.
#[derive(Debug, Clone, Copy)]
struct Shortage {
    /// The most that it can have had.
    limit: Bytes,
    times: u32,
}

/// A layout that memory was short for.
#[derive(Debug)]
struct TriedPlan {
    layout: PlacedComponents,
    device: String,
    peak_bytes: Bytes,
}

/// For each component, how it was placed.
type PlacedComponents = Vec<(Placement, Vec<DeviceId>, Residency)>;

impl RetryPolicy {
    /// Of a job that has not failed yet.
    pub fn new(plans: bool) -> RetryPolicy {
        RetryPolicy {
            plans,
            attempts: 0,
            short: BTreeMap::new(),
            lost: BTreeSet::new(),
            failed: Vec::new(),
            tried: Vec::new(),
        }
    }

    /// What an error is in the light of those before: a device that is lost by one executor after
    /// the other has failed.
    pub fn judge(&self, error: SessionError, inventory: &Inventory) -> SessionError {
        match error {
            SessionError::Failed(Failure { kind: FailureKind::DeviceLost { device }, message })
                if self.lost.contains(&lasting_name(inventory, &device.0)) =>
            {
                let message = format!("{message}; and so it was to the process before");
                Failure { kind: FailureKind::DeviceFailed { device }, message }.into()
            }
            other => other,
        }
    }

    /// Learns from a failed attempt, and says how the job goes on.
    pub fn learn(&mut self, error: &SessionError, attempt: &Attempt<'_>) -> Next {
        if let Some(device) = error.lost_device() {
            let inventory = &attempt.request.inventory;
            let is_new = self.lost.insert(lasting_name(inventory, &device.0));
            let is_here = inventory.device(&device.0).is_some();
            return if is_new && is_here { Next::Replan } else { Next::Stop };
        }
        self.attempts += 1;
        if self.attempts >= ATTEMPTS_MAX {
            return Next::Stop;
        }
        let Failure { kind, message } = match error {
            SessionError::Died { .. } if error.is_for_want_of_memory() => {
                return self.learn_of_kill(attempt.plan);
            }
            SessionError::Died { .. } => return Next::Restart,
            SessionError::Failed(failure) if self.plans => failure,
            _ => return Next::Stop,
        };
        let inventory = &attempt.request.inventory;
        match (kind, attempt.plan) {
            (FailureKind::OutOfMemory { device, requested_bytes, free_bytes, .. }, Some(plan)) => {
                // Where nobody knows, by halves.
                let free = free_bytes.unwrap_or(part_of(*requested_bytes, 1, 2));
                let missing = requested_bytes.saturating_sub(free).max(Bytes(1));
                let held = match attempt.progress {
                    Some(progress) => held_at(plan, device, progress),
                    None => *requested_bytes,
                };
                let name = lasting_name(inventory, &device.0);
                self.fell_short(&name, held.saturating_sub(missing));
                // One that was not loaded was not tried.
                if attempt.progress.is_some() {
                    let (layout, peak_bytes) = (layout(plan), peak(plan, device));
                    self.tried.push(TriedPlan { layout, device: name, peak_bytes });
                }
                Next::Replan
            }
            (FailureKind::DeviceFailed { device }, _) if self.can_do_without(inventory, device) => {
                self.failed.push((lasting_name(inventory, &device.0), message.clone()));
                Next::Replan
            }
            _ => Next::Stop,
        }
    }

    /// Counts an attempt that failed before it came to a plan, and taught nothing.
    pub fn count_attempt(&mut self) {
        self.attempts += 1;
    }

    /// An executor that was killed with a plan is followed by one with much less of the host.
    /// Before it had one it held next to nothing.
    fn learn_of_kill(&mut self, plan: Option<&Plan>) -> Next {
        let Some(plan) = plan else { return Next::Restart };
        if !self.plans {
            return Next::Stop;
        }
        let (part, whole) = MUCH_LESS;
        self.fell_short(&DeviceId::host().0, part_of(plan.host.peak_bytes, part, whole));
        Next::Restart
    }

    fn fell_short(&mut self, name: &str, limit: Bytes) {
        let known = self.short.entry(name.to_owned()).or_insert(Shortage { limit, times: 0 });
        *known = Shortage { limit: known.limit.min(limit), times: known.times + 1 };
    }

    /// Whether a device that failed can be left out: another plan may be made without it, as it is
    /// one of the inventory's and has not failed before.
    fn can_do_without(&self, inventory: &Inventory, device: &DeviceId) -> bool {
        let name = lasting_name(inventory, &device.0);
        let again = self.failed.iter().any(|(known, _)| *known == name);
        inventory.device(&device.0).is_some() && !again
    }

    /// The requests to plan by, the most careful first: the others are for want of a plan. In the
    /// last attempt a device that was short is used by half of what it seemed to have, and one that
    /// was short twice not at all, as what it says is not to be relied on; then by half and more.
    pub fn requests(&self, request: &Request) -> Vec<Request> {
        let inventory = &request.inventory;
        let mut request = request.clone();
        for device in &inventory.devices {
            let name = lasting_name(inventory, &device.id);
            let is_out = request.failed.iter().any(|failed| failed.device.0 == device.id);
            if !is_out
                && let Some((_, message)) = self.failed.iter().find(|(known, _)| *known == name)
            {
                let (device, message) = (DeviceId(device.id.clone()), message.clone());
                request.failed.push(FailedDevice { device, message });
            }
        }
        let with = |part: &dyn Fn(&Shortage) -> u64| {
            let mut request = request.clone();
            for (name, short) in &self.short {
                lower(&mut request, name, part_of(short.limit, part(short), LIMIT_PARTS));
            }
            request
        };
        let half = LIMIT_PARTS / 2;
        let last = self.attempts + 1 == ATTEMPTS_MAX;
        let mut requests = Vec::new();
        if last {
            requests.push(with(&|short| if short.times > 1 { 0 } else { half }));
        }
        let from = if last { half } else { LIMIT_PARTS };
        requests.extend((from..=LIMIT_PARTS).map(|part| with(&|_| part)));
        requests.dedup_by(|a, b| a.budgets == b.budgets);
        requests
    }

    /// Where a plan is much like one that memory was short for: the request with much less of that
    /// device. After that the same is not asked again, so that there is an end.
    pub fn much_less(&self, request: &Request, plan: &Plan) -> Option<Request> {
        let layout = layout(plan);
        let limit = |tried: &TriedPlan| {
            let (part, whole) = MUCH_LESS;
            part_of(tried.peak_bytes, part, whole)
        };
        let id = |tried: &TriedPlan| present_id(&request.inventory, &tried.device);
        let alike = self.tried.iter().find(|tried| {
            let now = id(tried).map(|id| peak(plan, &id));
            tried.layout == layout && now.is_some_and(|now| now > limit(tried))
        })?;
        let mut smaller = request.clone();
        lower(&mut smaller, &alike.device, limit(alike));
        Some(smaller)
    }
}

/// What an attempt can have held of a device when it failed, the failed allocation included: what
/// the plan has there in that phase. While it loads that is what is there in all phases, so the
/// least, and no arena yet; a rehearsal goes through all phases after that, without telling which.
fn held_at(plan: &Plan, device: &DeviceId, progress: Progress) -> Bytes {
    let planned = plan.devices.iter().find(|planned| planned.id == *device);
    let phases = planned.map_or(&plan.host.phases, |planned| &planned.phases);
    let held = match progress {
        Progress { phase: Phase::Load, step: 0, .. } => {
            phases.iter().map(|bytes| bytes.peak_bytes.saturating_sub(bytes.compute_bytes)).min()
        }
        Progress { phase, .. } => {
            phases.iter().find(|bytes| bytes.phase == phase).map(|bytes| bytes.peak_bytes)
        }
    };
    held.unwrap_or_else(|| peak(plan, device))
}

fn part_of(bytes: Bytes, part: u64, whole: u64) -> Bytes {
    Bytes((u128::from(bytes.0) * u128::from(part) / u128::from(whole)) as u64)
}

/// What a plan has of a device, or of the host, at most.
fn peak(plan: &Plan, device: &DeviceId) -> Bytes {
    let planned = plan.devices.iter().find(|planned| planned.id == *device);
    planned.map_or(plan.host.peak_bytes, |planned| planned.peak_bytes)
}

fn layout(plan: &Plan) -> PlacedComponents {
    let components = plan.components.iter();
    components.map(|c| (c.placement(), c.devices.clone(), c.residency)).collect()
}

/// What a device is known by: ids may change from one look to the next.
fn lasting_name(inventory: &Inventory, id: &str) -> String {
    inventory.device(id).map_or_else(|| id.to_owned(), Device::lasting_name)
}

/// The present id behind a lasting name; `None` where the device is gone.
fn present_id(inventory: &Inventory, name: &str) -> Option<DeviceId> {
    if DeviceId::host().0 == name {
        return Some(DeviceId::host());
    }
    let mut devices = inventory.devices.iter();
    let device = devices.find(|device| lasting_name(inventory, &device.id) == name)?;
    Some(DeviceId(device.id.clone()))
}

/// Lowers the budget of a device, or of the host, and what any cap could make of it.
fn lower(request: &mut Request, name: &str, limit: Bytes) {
    let Some(id) = present_id(&request.inventory, name) else { return };
    let budgets = &mut request.budgets;
    let (budget, ceiling) = match request.inventory.devices.iter().position(|d| d.id == id.0) {
        Some(index) => (&mut budgets.devices[index], &mut budgets.ceilings[index]),
        None => (&mut budgets.host, &mut budgets.host_ceiling),
    };
    *budget = limit.min(*budget);
    *ceiling = limit.min(*ceiling);
}

#[cfg(test)]
pub(crate) mod tests;
