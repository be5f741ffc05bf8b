//! Room: what is left of a host for one model beside others that are loaded. Pure.
//!
//! Models whose executors take turns hold their idle bytes at all times, and one of them its arenas
//! beside. So a plan that joins others may take at its peak what they leave while they are idle;
//! and between its own jobs it may hold no more than each of the others leaves while that one runs:
//!
//! ```text
//! peak ≤ B − Σ idle      idle ≤ B − Σ idle − max (peak − idle)      (sums over the others)
//! ```
//! B is the budget with nothing of this process loaded. Not here: which models stay loaded, which
//! is the daemon's desk's to choose.

use protocol::plan::DeviceBackend;
use protocol::{Bytes, Plan};

use crate::inventory::Inventory;
use crate::planning::Request;
use crate::policy::{Budgets, IdleBudgets};

/// What a loaded plan takes of one memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    idle: Bytes,
    peak: Bytes,
}

/// Takes what other loaded plans hold off a request, whose inventory counts all that they hold as
/// free: off its budgets, and off what it says is free.
pub fn take_others(request: &mut Request, others: &[&Plan], host_is_here: bool) {
    if others.is_empty() {
        return;
    }
    let held = others.iter().map(|plan| held(plan, &request.inventory, host_is_here));
    let held: Vec<Vec<Held>> = held.collect();
    take_from_budgets(&mut request.budgets, &held);
    take_from_inventory(&mut request.inventory, &held);
}

/// Takes what other loaded plans hold between jobs off an inventory that counts it as free.
pub fn leave_to_others(inventory: &mut Inventory, others: &[&Plan], host_is_here: bool) {
    let held = others.iter().map(|plan| held(plan, inventory, host_is_here));
    let held: Vec<Vec<Held>> = held.collect();
    take_from_inventory(inventory, &held);
}

/// What a plan takes of each device, and last of the host with all that shares its memory.
fn held(plan: &Plan, inventory: &Inventory, host_is_here: bool) -> Vec<Held> {
    let mut held = vec![Held::default(); inventory.devices.len() + 1];
    let host = held.len() - 1;
    held[host] = Held { idle: plan.host.idle_bytes, peak: plan.host.peak_bytes };
    for (planned, place) in plan.devices.iter().zip(inventory.places_of(plan)) {
        let of_device = Held { idle: planned.idle_bytes, peak: planned.peak_bytes };
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
        Held { idle: self.idle + other.idle, peak: self.peak + other.peak }
    }
}

fn take_from_budgets(budgets: &mut Budgets, held: &[Vec<Held>]) {
    let left = |budget: Bytes, at: usize| {
        let idle: Bytes = held.iter().map(|plan| plan[at].idle).sum();
        budget.saturating_sub(idle)
    };
    // What is left while the greediest of the others runs.
    let left_idle = |left: Bytes, at: usize| {
        let active = held.iter().map(|plan| plan[at].peak.saturating_sub(plan[at].idle)).max();
        left.saturating_sub(active.unwrap_or_default())
    };
    let host = budgets.devices.len();
    for (at, budget) in budgets.devices.iter_mut().enumerate() {
        *budget = left(*budget, at);
        budgets.ceilings[at] = left(budgets.ceilings[at], at);
    }
    budgets.host = left(budgets.host, host);
    budgets.host_ceiling = left(budgets.host_ceiling, host);
    let devices = budgets.devices.iter().enumerate();
    budgets.idle = Some(IdleBudgets {
        devices: devices.map(|(at, budget)| left_idle(*budget, at)).collect(),
        host: left_idle(budgets.host, host),
    });
}

fn take_from_inventory(inventory: &mut Inventory, held: &[Vec<Held>]) {
    let host = inventory.devices.len();
    let idle = |at: usize| -> Bytes { held.iter().map(|plan| plan[at].idle).sum() };
    for (at, device) in inventory.devices.iter_mut().enumerate() {
        device.free_bytes = device.free_bytes.saturating_sub(idle(at));
        if let Some(part) = &mut device.part {
            part.gpu_free_bytes = part.gpu_free_bytes.saturating_sub(idle(at));
        }
    }
    let free = &mut inventory.host.available_bytes;
    *free = free.saturating_sub(idle(host));
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
        take_others(&mut request, &[&one, &two], false);
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
        take_others(&mut here, &[&one], true);
        assert_eq!(here.budgets.host, before.host - Bytes(110));
        assert_eq!(idle(&here).host, before.host - Bytes(110) - Bytes(70));
    }

    #[test]
    fn others_that_hold_more_than_there_is_leave_nothing() {
        let (mut request, one) = case(u64::MAX / 4, u64::MAX / 2);
        take_others(&mut request, &[&one], false);
        assert_eq!(request.budgets.devices[0], Bytes::ZERO);
        assert_eq!(idle(&request).devices[0], Bytes::ZERO);
    }
}
