//! Room: what is left of a host for one model beside others that are loaded. Pure.
//!
//! Models hold their idle bytes at all times, and those that run their arenas beside: of a device
//! one at a time. So a plan that joins others may take at its peak what they leave while they are
//! idle; and between its own jobs it may hold no more than each of the others leaves while that one
//! runs:
//!
//! ```text
//! peak ≤ B − Σ idle      idle ≤ B − Σ idle − max (peak − idle)      (sums over the others)
//! ```
//! B is the budget with nothing of this process loaded. What runs while the new plan is to run has
//! its peak, not its idle bytes, taken off what that may take. Not here: which models stay loaded,
//! and which run at once, which is the daemon's desk's to choose.

use protocol::plan::DeviceBackend;
use protocol::{Bytes, Plan};

use crate::inventory::Inventory;
use crate::planning::Request;
use crate::policy::{Budgets, IdleBudgets};

/// A plan of another executor of this process.
#[derive(Debug, Clone, Copy)]
pub struct OtherPlan<'a> {
    /// What is loaded there, or about to be.
    pub plan: &'a Plan,
    /// Whether it goes on running while the new plan runs.
    pub runs: bool,
}

/// What a loaded plan takes of one memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    idle: Bytes,
    peak: Bytes,
    runs: bool,
}

/// Takes what other loaded plans hold off a request, whose inventory counts all that they hold as
/// free: off its budgets, and off what it says is free.
pub fn take_others(request: &mut Request, others: &[OtherPlan<'_>], host_is_here: bool) {
    if others.is_empty() {
        return;
    }
    let held = others.iter().map(|other| held(*other, &request.inventory, host_is_here));
    let held: Vec<Vec<Held>> = held.collect();
    take_from_budgets(&mut request.budgets, &held);
    take_from_inventory(&mut request.inventory, &held);
    // What is page-locked stays so between jobs.
    let pinned: Bytes = others.iter().map(|other| other.plan.host.pinned_bytes).sum();
    if let Some(limit) = &mut request.budgets.pinned {
        *limit = limit.saturating_sub(pinned);
    }
}

/// Takes what other loaded plans hold between jobs off an inventory that counts it as free.
pub fn leave_to_others(inventory: &mut Inventory, others: &[&Plan], host_is_here: bool) {
    let idle = others.iter().map(|plan| OtherPlan { plan, runs: false });
    let held = idle.map(|other| held(other, inventory, host_is_here));
    let held: Vec<Vec<Held>> = held.collect();
    take_from_inventory(inventory, &held);
}

/// What a plan takes at its peak of each device, and last of the host with all that shares its
/// memory.
pub(super) fn peaks(plan: &Plan, inventory: &Inventory, host_is_here: bool) -> Vec<Bytes> {
    let held = held(OtherPlan { plan, runs: true }, inventory, host_is_here);
    held.into_iter().map(Held::now).collect()
}

/// What a plan takes of each device, and last of the host with all that shares its memory.
fn held(other: OtherPlan<'_>, inventory: &Inventory, host_is_here: bool) -> Vec<Held> {
    let OtherPlan { plan, runs } = other;
    let mut held = vec![Held { runs, ..Held::default() }; inventory.devices.len() + 1];
    let host = held.len() - 1;
    held[host] = Held { idle: plan.host.idle_bytes, peak: plan.host.peak_bytes, runs };
    for (planned, place) in plan.devices.iter().zip(inventory.places_of(plan)) {
        let of_device = Held { idle: planned.idle_bytes, peak: planned.peak_bytes, runs };
        if let Some(place) = place {
            held[place] = held[place].with(of_device);
        }
        let is_virtual = matches!(planned.backend, DeviceBackend::Virtual { .. });
        if planned.integrated || is_virtual && host_is_here {
            held[host] = held[host].with(of_device);
        }
    }
    held
}

impl Held {
    fn with(self, other: Held) -> Held {
        Held { idle: self.idle + other.idle, peak: self.peak + other.peak, runs: self.runs }
    }

    /// What it takes meanwhile.
    fn now(self) -> Bytes {
        if self.runs { self.peak } else { self.idle }
    }
}

fn take_from_budgets(budgets: &mut Budgets, held: &[Vec<Held>]) {
    let left = |budget: Bytes, at: usize| {
        let now: Bytes = held.iter().map(|plan| plan[at].now()).sum();
        budget.saturating_sub(now)
    };
    // What is left while the greediest of the others runs.
    let left_idle = |budget: Bytes, at: usize| {
        let idle: Bytes = held.iter().map(|plan| plan[at].idle).sum();
        let active = held.iter().map(|plan| plan[at].peak.saturating_sub(plan[at].idle)).max();
        budget.saturating_sub(idle + active.unwrap_or_default())
    };
    let host = budgets.devices.len();
    let devices = budgets.devices.iter().enumerate();
    let idle = IdleBudgets {
        devices: devices.map(|(at, budget)| left_idle(*budget, at)).collect(),
        host: left_idle(budgets.host, host),
    };
    for (at, budget) in budgets.devices.iter_mut().enumerate() {
        *budget = left(*budget, at);
        budgets.ceilings[at] = left(budgets.ceilings[at], at);
    }
    budgets.host = left(budgets.host, host);
    budgets.host_ceiling = left(budgets.host_ceiling, host);
    budgets.idle = Some(idle);
}

fn take_from_inventory(inventory: &mut Inventory, held: &[Vec<Held>]) {
    let host = inventory.devices.len();
    let now = |at: usize| -> Bytes { held.iter().map(|plan| plan[at].now()).sum() };
    for (at, device) in inventory.devices.iter_mut().enumerate() {
        device.free_bytes = device.free_bytes.saturating_sub(now(at));
        if let Some(part) = &mut device.part {
            part.gpu_free_bytes = part.gpu_free_bytes.saturating_sub(now(at));
        }
    }
    let free = &mut inventory.host.available_bytes;
    *free = free.saturating_sub(now(host));
}

#[cfg(test)]
mod tests {
    use protocol::{Faults, Residency};

    use super::super::supervise::retry::tests::{plan, request};
    use super::*;

    /// The request, and a plan on its first device that holds so much of it, and of the host.
    fn case(idle: u64, peak: u64) -> (Request, Plan) {
        let mut plan = plan(Residency::Resident);
        (plan.devices[0].idle_bytes, plan.devices[0].peak_bytes) = (Bytes(idle), Bytes(peak));
        (plan.host.idle_bytes, plan.host.peak_bytes) = (Bytes(10), Bytes(30));
        (request(), plan)
    }

    fn idle(request: &Request) -> &IdleBudgets {
        request.budgets.idle.as_ref().expect("limits")
    }

    fn idle_plan(plan: &Plan) -> OtherPlan<'_> {
        OtherPlan { plan, runs: false }
    }

    #[test]
    fn what_runs_meanwhile_keeps_its_arenas() {
        let (mut request, mut one) = case(100, 150);
        let (_, two) = case(40, 120);
        request.budgets.pinned = Some(Bytes(20));
        one.host.pinned_bytes = Bytes(5);
        let (before, free) = (request.budgets.clone(), request.inventory.clone());
        let running = OtherPlan { plan: &one, runs: true };
        take_others(&mut request, &[running, idle_plan(&two)], false);
        assert_eq!(request.budgets.pinned, Some(Bytes(15)));
        assert_eq!(request.budgets.host, before.host - Bytes(30 + 10));
        assert_eq!(request.budgets.devices[0], before.devices[0] - Bytes(150 + 40));
        let left = free.host.available_bytes - Bytes(30 + 10);
        assert_eq!(request.inventory.host.available_bytes, left);
        // Later the first one is idle, and the other one may run.
        assert_eq!(idle(&request).host, before.host - Bytes(10 + 10 + 20));
        assert_eq!(idle(&request).devices[0], before.devices[0] - Bytes(100 + 40 + 80));
    }

    #[test]
    fn nothing_beside_limits_nothing() {
        let (mut request, _) = case(0, 0);
        let before = request.budgets.clone();
        take_others(&mut request, &[], true);
        assert_eq!(request.budgets, before);
    }

    #[test]
    fn others_keep_their_idle_bytes_and_one_of_them_its_arenas() {
        let (mut request, one) = case(100, 150);
        let (_, two) = case(40, 120);
        let (before, free) = (request.budgets.clone(), request.inventory.clone());
        take_others(&mut request, &[&one, &two].map(idle_plan), false);
        let Budgets { devices, host, .. } = &request.budgets;
        assert_eq!(devices[0], before.devices[0] - Bytes(140));
        assert_eq!(*host, before.host - Bytes(20));
        assert_eq!(devices[1], before.devices[1]);
        // The second one takes 80 beside what it holds, the first one 50.
        assert_eq!(idle(&request).devices[0], before.devices[0] - Bytes(140 + 80));
        assert_eq!(idle(&request).host, before.host - Bytes(20 + 20));
        assert_eq!(
            request.inventory.devices[0].free_bytes,
            free.devices[0].free_bytes - Bytes(140)
        );
    }

    #[test]
    fn virtual_devices_are_memory_of_the_host_that_is_here() {
        let (mut here, mut one) = case(100, 150);
        one.devices[0].backend = DeviceBackend::Virtual {
            link_bytes_per_s: 1e9,
            faults: Faults::default(),
            speed: 1.0,
            threads: None,
            unsupported: Vec::new(),
        };
        let before = here.budgets.clone();
        take_others(&mut here, &[idle_plan(&one)], true);
        assert_eq!(here.budgets.host, before.host - Bytes(110));
        assert_eq!(idle(&here).host, before.host - Bytes(110) - Bytes(70));
    }

    #[test]
    fn others_that_hold_more_than_there_is_leave_nothing() {
        let (mut request, one) = case(u64::MAX / 4, u64::MAX / 2);
        take_others(&mut request, &[idle_plan(&one)], false);
        assert_eq!(request.budgets.devices[0], Bytes::ZERO);
        assert_eq!(idle(&request).devices[0], Bytes::ZERO);
    }
}
