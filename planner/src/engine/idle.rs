//! What the host would have free if the daemon had loaded nothing, read while some of it runs too.
//! Pure.
//!
//! What a job holds while it runs is more than what is given back of it, and how much is not known.
//! So of a memory that a running plan holds the last figure from before counts, or less: what is
//! free now and all that the plan takes at its peak, where others took the rest meanwhile.

use protocol::{Bytes, Plan};

use super::room;
use crate::inventory::Inventory;

/// The last inventory that was read while nothing ran.
#[derive(Debug, Default)]
pub struct IdleInventory(Option<Inventory>);

impl IdleInventory {
    /// What was read last while nothing ran; `None` where nothing was.
    pub fn last(&self) -> Option<Inventory> {
        self.0.clone()
    }

    /// What there would be, from a reading that counts as free what idle plans hold. `ran` says
    /// whether anything ran then, `running` the plans by which it did, as far as they are known.
    pub fn seen(
        &mut self,
        now: Inventory,
        running: &[&Plan],
        ran: bool,
        host_is_here: bool,
    ) -> Inventory {
        let last = self.0.as_ref().filter(|last| is_same_machine(last, &now));
        let Some(last) = last.filter(|_| ran) else {
            if !ran {
                self.0 = Some(now.clone());
            }
            return now;
        };
        let mut seen = now;
        let mut peaks = vec![Bytes::ZERO; seen.devices.len() + 1];
        for plan in running {
            for (sum, peak) in peaks.iter_mut().zip(room::peaks(plan, &seen, host_is_here)) {
                *sum += peak;
            }
        }
        let on_host = peaks.pop().unwrap_or_default();
        for ((device, before), peak) in seen.devices.iter_mut().zip(&last.devices).zip(peaks) {
            if peak > Bytes::ZERO {
                device.free_bytes = before.free_bytes.min(device.free_bytes + peak);
                if let (Some(part), Some(before)) = (&mut device.part, &before.part) {
                    let now = part.gpu_free_bytes + peak;
                    part.gpu_free_bytes = before.gpu_free_bytes.min(now);
                }
            }
        }
        let host = &mut seen.host.available_bytes;
        let given_back = if host_is_here { *host + on_host } else { *host };
        *host = last.host.available_bytes.min(given_back);
        seen
    }
}

fn is_same_machine(one: &Inventory, other: &Inventory) -> bool {
    let ids = |inventory: &Inventory| -> Vec<String> {
        inventory.devices.iter().map(crate::inventory::Device::lasting_name).collect()
    };
    ids(one) == ids(other)
}

#[cfg(test)]
mod tests {
    use protocol::Residency;

    use super::super::supervise::retry::tests::{plan, request};
    use super::*;

    #[test]
    fn what_a_running_plan_holds_is_known_from_before_or_from_its_peaks() {
        let inventory = request().inventory;
        let with = |free: u64, available: u64| {
            let mut inventory = inventory.clone();
            inventory.devices[0].free_bytes = Bytes(free);
            inventory.devices[1].free_bytes = Bytes(free);
            inventory.host.available_bytes = Bytes(available);
            inventory
        };
        let mut plan = plan(Residency::Resident);
        (plan.devices[0].peak_bytes, plan.host.peak_bytes) = (Bytes(100), Bytes(30));
        plan.devices[0].backend = inventory.devices[0].backend();
        let mut idle = IdleInventory::default();
        // Nothing is known from before: it is as good as there is, and not kept.
        assert_eq!(idle.seen(with(700, 700), &[&plan], true, false), with(700, 700));
        assert_eq!(idle.last(), None);
        idle.seen(with(1000, 1000), &[], false, true);
        let free = |idle: &mut IdleInventory, free: u64, available: u64| {
            let seen = idle.seen(with(free, available), &[&plan], true, true);
            let [first, second, ..] = &seen.devices[..] else { panic!("two devices") };
            (first.free_bytes.0, second.free_bytes.0, seen.host.available_bytes.0)
        };
        // It has not allocated everything yet.
        assert_eq!(free(&mut idle, 950, 900), (1000, 950, 1000));
        // Others took some; virtual devices are memory of the host.
        assert_eq!(free(&mut idle, 600, 500), (700, 600, 500 + 30 + 100));
        assert_eq!(idle.last(), Some(with(1000, 1000)));
    }
}
