//! Bytes of a combination of places, on every device in every phase.

mod headroom;

use protocol::plan::PhaseBytes;
use protocol::{Bytes, Phase};

use super::Problem;
use super::place::Place;
use super::timeline::{PHASES_MAX, position};
use crate::policy::Objective;

pub use headroom::Headroom;

/// Bytes by device and phase. Grows with each component that is added, which lets the search cut
/// what is over a budget already.
#[derive(Debug, Clone, PartialEq)]
pub struct Composition {
    timeline: &'static [Phase],
    /// The devices in the inventory's order, then the host.
    memories: Vec<MemoryBytes>,
    /// Whether any device is integrated: its memory and the host's are one.
    pooled: bool,
    /// Whether any device is a part of a GPU, whose context is the first part's.
    parted: bool,
    /// Whether weights that the host reads in place from their files count in the total: with
    /// `memory` as the objective, for which a placement is no smaller because its weights are page
    /// cache.
    counts_mapped: bool,
    /// Page-locked memory of the host: through which the weights of all used devices pass, and
    /// copies of streamed weights.
    pinned_bytes: Bytes,
    /// These copies.
    locked_bytes: Bytes,
}

/// A memory of which more is needed than may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverBudget {
    /// The device; `None` for the host.
    pub device: Option<usize>,
    /// The phase in which most is needed.
    pub phase: Phase,
    /// What is needed then.
    pub needed_bytes: Bytes,
    /// What may be used.
    pub budget_bytes: Bytes,
}

/// One device's bytes, or the host's.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct MemoryBytes {
    used: bool,
    /// Taken in every phase beside weights, arenas and slots.
    fixed_bytes: Bytes,
    /// Weights that are held in all phases, and between jobs.
    resident: Bytes,
    weights: [Bytes; PHASES_MAX],
    compute: [Bytes; PHASES_MAX],
    staging: [Bytes; PHASES_MAX],
    /// Read in place from files: in no budget.
    mapped: [Bytes; PHASES_MAX],
}

impl MemoryBytes {
    fn peak_bytes(&self, phase: usize) -> Bytes {
        self.weights[phase] + self.compute[phase] + self.staging[phase] + self.fixed_bytes
    }
}

impl Composition {
    /// A job without any component.
    pub fn new(problem: &Problem<'_>) -> Composition {
        let timeline = problem.job.timeline();
        let mut memories = vec![MemoryBytes::default(); problem.inventory.devices.len() + 1];
        if let Some(host) = memories.last_mut() {
            host.fixed_bytes = problem.profile.job_bytes;
            host.weights = [problem.profile.changed_bytes; PHASES_MAX];
            host.resident = problem.profile.changed_bytes;
        }
        let devices = &problem.inventory.devices;
        let pooled = devices.iter().any(|device| device.integrated);
        let parted = devices.iter().any(|device| device.part.is_some());
        let counts_mapped = problem.objective == Objective::Memory;
        let [pinned_bytes, locked_bytes] = [Bytes::ZERO; 2];
        Composition {
            timeline,
            memories,
            pooled,
            parted,
            counts_mapped,
            pinned_bytes,
            locked_bytes,
        }
    }

    /// The same without the job's own buffers, which differ with the options.
    pub fn without_buffers(problem: &Problem<'_>) -> Composition {
        let mut composition = Composition::new(problem);
        if let Some(host) = composition.memories.last_mut() {
            host.fixed_bytes = Bytes::ZERO;
        }
        composition
    }

    /// The first components in these places; the rest count as nowhere.
    pub fn of(problem: &Problem<'_>, places: &[&Place]) -> Composition {
        let mut composition = Composition::new(problem);
        for (component, place) in problem.profile.components.iter().zip(places) {
            composition.add(problem, component.phase, place);
        }
        composition
    }

    /// Adds a component that computes in this phase.
    pub fn add(&mut self, problem: &Problem<'_>, phase: Phase, place: &Place) {
        let now = position(self.timeline, phase);
        let host = self.memories.len() - 1;
        for part in place.parts.iter() {
            if part.locked_bytes > Bytes::ZERO {
                self.locked_bytes += part.locked_bytes;
                self.pinned_bytes += part.locked_bytes;
                for weights in &mut self.memories[host].weights {
                    *weights += part.locked_bytes;
                }
            }
            let memory = &mut self.memories[part.device.unwrap_or(host)];
            memory.resident += part.resident_bytes;
            for weights in &mut memory.weights {
                *weights += part.resident_bytes;
            }
            memory.weights[now] += part.lazy_bytes;
            if let Some(before) = now.checked_sub(1) {
                memory.weights[before] += part.early_bytes;
            }
            memory.compute[now] = memory.compute[now].max(part.compute_bytes);
            memory.staging[now] += part.staging_bytes();
            memory.mapped[now] += part.mapped_bytes;
            let newly = part.device.filter(|_| !memory.used);
            memory.used = true;
            if let Some(device) = newly {
                let inventory = &problem.inventory;
                let context = inventory.context_of(device);
                self.memories[context].fixed_bytes = inventory.devices[context].overhead_bytes;
                let pinned_bytes = inventory.devices[device].pinned_bytes;
                self.pinned_bytes += pinned_bytes;
                for staging in &mut self.memories[host].staging {
                    *staging += pinned_bytes;
                }
            }
        }
    }

    /// Becomes the same as another one of the same problem.
    pub fn copy_from(&mut self, other: &Composition) {
        self.memories.clone_from(&other.memories);
        self.pinned_bytes = other.pinned_bytes;
        self.locked_bytes = other.locked_bytes;
    }

    /// The phases of a device, or of the host for `None`.
    pub fn phases(&self, device: Option<usize>) -> Vec<PhaseBytes> {
        let memory = &self.memories[device.unwrap_or(self.memories.len() - 1)];
        let phases = self.timeline.iter().enumerate().map(|(index, &phase)| PhaseBytes {
            phase,
            weights_bytes: memory.weights[index],
            compute_bytes: memory.compute[index],
            staging_bytes: memory.staging[index],
            peak_bytes: memory.peak_bytes(index),
        });
        phases.collect()
    }

    /// What stays between two jobs on a device, or on the host for `None`.
    pub fn idle(&self, device: Option<usize>) -> Bytes {
        match device {
            Some(index) => self.memories[index].resident + self.memories[index].fixed_bytes,
            // The job's own buffers go with it; what is page-locked stays with the open devices.
            None => self.memories[self.memories.len() - 1].resident + self.pinned_bytes,
        }
    }

    /// What a context takes of a device, also for other parts of its GPU; nothing where none of
    /// them is used.
    pub fn overhead_bytes(&self, device: usize) -> Bytes {
        self.memories[device].fixed_bytes
    }

    /// Page-locked memory of the host.
    pub fn pinned_bytes(&self) -> Bytes {
        self.pinned_bytes
    }

    /// Page-locked copies of streamed weights, part of it.
    pub fn locked_bytes(&self) -> Bytes {
        self.locked_bytes
    }

    /// Whether any component computes on a device.
    pub fn uses(&self, device: usize) -> bool {
        self.memories[device].used
    }

    /// Whether every budget holds.
    pub fn fits(&self, problem: &Problem<'_>) -> bool {
        let phases = || 0..self.timeline.len();
        let budgets = problem.budgets.devices.iter().chain([&problem.budgets.host]);
        let mut each = self.memories.iter().zip(budgets);
        each.all(|(memory, budget)| phases().all(|phase| memory.peak_bytes(phase) <= *budget))
            && problem.budgets.pinned.is_none_or(|limit| self.pinned_bytes <= limit)
            && phases().all(|phase| self.pool_bytes(problem, phase) <= problem.budgets.host)
            && self.idles_within(problem)
    }

    /// Whether what stays between two jobs is within its limits, where there are any.
    fn idles_within(&self, problem: &Problem<'_>) -> bool {
        let Some(limits) = &problem.budgets.idle else { return true };
        let devices = &problem.inventory.devices;
        let of_devices = || (0..devices.len()).map(|device| self.idle(Some(device)));
        // An integrated device's memory is the host's.
        let shared = of_devices().zip(devices).filter(|(_, device)| device.integrated);
        let shared: Bytes = shared.map(|(bytes, _)| bytes).sum();
        of_devices().zip(&limits.devices).all(|(bytes, limit)| bytes <= *limit)
            && self.idle(None) + shared <= limits.host
    }

    /// The first memory that needs more than its budget, in the phase in which it needs most: a
    /// device's, the host's, the pool that the host shares with integrated devices, or the host's
    /// page-locked memory.
    pub fn over(&self, problem: &Problem<'_>) -> Option<OverBudget> {
        let devices = (0..problem.inventory.devices.len()).map(Some).chain([None]);
        let each = devices.map(|device| {
            let largest = self.phases(device).into_iter().max_by_key(|phase| phase.peak_bytes);
            let PhaseBytes { phase, peak_bytes, .. } = largest.expect("a timeline has phases");
            OverBudget {
                device,
                phase,
                needed_bytes: peak_bytes,
                budget_bytes: problem.budget(device),
            }
        });
        let pool = self.timeline.iter().enumerate().map(|(index, &phase)| OverBudget {
            device: None,
            phase,
            needed_bytes: self.pool_bytes(problem, index),
            budget_bytes: problem.budgets.host,
        });
        let pinned = problem.budgets.pinned.map(|budget_bytes| OverBudget {
            device: None,
            phase: self.timeline[0],
            needed_bytes: self.pinned_bytes,
            budget_bytes,
        });
        each.chain(pool).chain(pinned).find(|over| over.needed_bytes > over.budget_bytes)
    }

    /// What the host and the integrated devices take together: their memory is one. Nothing where
    /// no integrated device is used.
    fn pool_bytes(&self, problem: &Problem<'_>, phase: usize) -> Bytes {
        if !self.pooled {
            return Bytes::ZERO;
        }
        let devices = self.memories.iter().zip(&problem.inventory.devices);
        let integrated = devices.filter(|(_, device)| device.integrated);
        let shared: Bytes = integrated.map(|(memory, _)| memory.peak_bytes(phase)).sum();
        let host = self.memories.last().map_or(Bytes::ZERO, |host| host.peak_bytes(phase));
        if shared > Bytes::ZERO { shared + host } else { Bytes::ZERO }
    }

    /// Peaks of all devices and the host together; with `memory` as the objective with what is read
    /// in place.
    pub fn total(&self) -> Bytes {
        let at = |memory: &MemoryBytes, phase: usize| match self.counts_mapped {
            true => memory.peak_bytes(phase) + memory.mapped[phase],
            false => memory.peak_bytes(phase),
        };
        let peak = |memory: &MemoryBytes| {
            let phases = (0..self.timeline.len()).map(|phase| at(memory, phase));
            phases.max().unwrap_or_default()
        };
        self.memories.iter().map(peak).sum()
    }
}
