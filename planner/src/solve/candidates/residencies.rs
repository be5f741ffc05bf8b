//! The ways to hold a component's weights in a layout: when they are there, and which layouts also
//! have rings.

use protocol::profile::ComponentProfile;
use protocol::{Division, Residency};

use super::super::Problem;
use super::super::component_ms::ComponentMs;
use super::super::layouts::SEEDS;
use super::super::place::WeightResidency;
use super::super::time::Timing;
use super::super::timeline::position;
use super::lists::{DEVICES_EXACT, DeviceList};
use super::rings::{Ring, Steps};
use crate::policy::Objective;
use crate::policy::pins::{Params, Pin, Split};

/// Row splits, tensor splits and item splits of one list that also have streamed segments: those by
/// speed, by memory, and the equal one.
const STREAMED_ROWS: usize = 3;

/// A way to hold a component's weights.
pub struct ResidencyChoice {
    pub held: WeightResidency,
    /// Whether what is held comes early.
    pub early: bool,
    /// What the component takes so.
    pub ms: ComponentMs,
}

/// Cuts that also have streamed segments, of one component over all kinds of lists without the
/// host: each takes a fraction of a millisecond to simulate.
const STREAMED_CUTS: usize = 96;

/// The same of one device beside the host, in each list.
const STREAMED_CUTS_BESIDE_HOST: usize = 48;

/// Which of a list's layouts also have streamed segments.
pub struct Quota {
    stride: usize,
    layouts: usize,
    steps: Steps,
}

impl Quota {
    /// A list's part of what all lists of the component may have. `kinds`: of how many kinds its
    /// lists with the same split are, over devices that are not alike.
    pub fn of(list: &DeviceList, kinds: usize, layouts: usize) -> Quota {
        // Of many kinds the others are made where they may pay.
        let steps = if list.pinned || kinds <= 2 { Steps::All } else { Steps::Last };
        match list.split {
            None => {
                let steps = if kinds <= DEVICES_EXACT + 1 { Steps::All } else { Steps::Fine };
                Quota { stride: 1, layouts, steps }
            }
            // Each group would need all weights anew.
            Some(Split::Pipeline) => Quota { stride: 1, layouts: 0, steps },
            _ if list.pinned => Quota { stride: 1, layouts, steps },
            Some(Split::Row | Split::Tensor | Split::Items) => {
                Quota { stride: 1, layouts: layouts.min(STREAMED_ROWS), steps }
            }
            Some(Split::Layer) if list.devices.len() > DEVICES_EXACT => {
                let steps = if kinds <= 2 { Steps::Fine } else { Steps::Last };
                Quota { stride: 1, layouts: layouts.min(SEEDS), steps }
            }
            Some(Split::Layer) => {
                let most = match list.devices.contains(&None) {
                    true if list.devices.len() == 2 => STREAMED_CUTS_BESIDE_HOST,
                    _ => (STREAMED_CUTS / kinds.max(1)).max(1),
                };
                Quota { stride: layouts.div_ceil(most).max(1), layouts, steps }
            }
        }
    }

    /// The steps of a layout, if it also has streamed segments.
    pub fn has(&self, layout: usize) -> Option<Steps> {
        (layout < self.layouts && layout.is_multiple_of(self.stride)).then_some(self.steps)
    }
}

/// When the weights of a component in one layout may be there, in the order in which ties are
/// broken; `rings` are the layout's.
pub fn ways_to_hold<'r>(
    problem: &Problem<'_>,
    component: &ComponentProfile,
    pin: &Pin,
    timing: &Timing<'_>,
    rings: impl Iterator<Item = &'r Ring>,
) -> Vec<ResidencyChoice> {
    let on_host = timing.spread().is_on_host();
    let early = problem.prefetch && !on_host && component.phase != problem.job.timeline()[0];
    let whole: &[Residency] = match pin.params {
        Some(Params::Cpu | Params::Locked) => &[],
        Some(Params::Device) => &[Residency::Resident],
        Some(Params::Disk) => &[Residency::Lazy],
        None if on_host => &[Residency::Mapped, Residency::Resident, Residency::Lazy],
        None => &[Residency::Resident, Residency::Lazy],
    };
    let whole = whole.iter().map(|residency| WeightResidency::All(*residency));
    let mut ways: Vec<ResidencyChoice> =
        whole.flat_map(|held| timed(&held, timing.ms(&held), early)).collect();
    // What a split holds for all jobs and what for one are the same to a job that starts cold, but
    // for what may come in more than the phase before.
    let soon = position(problem.job.timeline(), component.phase) < 2;
    let cold = problem.objective != Objective::Throughput && pin.devices.is_empty() && soon;
    let residencies: &[Residency] = match timing.spread().division {
        Division::One => &[Residency::Resident, Residency::Lazy],
        _ if cold => &[Residency::Lazy],
        _ => &[Residency::Resident, Residency::Lazy],
    };
    for ring in rings {
        // Lazy, where anything is held that can be.
        let residencies = if ring.holds { residencies } else { &residencies[..1] };
        for residency in residencies {
            ways.extend(timed(&ring.with(*residency), ring.ms, early && ring.holds));
        }
    }
    ways
}

/// A way to hold weights, early and not: what is resident is early wherever that may be, as it is
/// there anyway. When what stays is there makes no difference to the component's own time.
fn timed(held: &WeightResidency, ms: ComponentMs, early: bool) -> Vec<ResidencyChoice> {
    let lazy = match held {
        WeightResidency::All(residency) => *residency == Residency::Lazy,
        WeightResidency::Some { residency, .. } => *residency == Residency::Lazy,
    };
    let way = |early| ResidencyChoice { held: held.clone(), early, ms };
    match (early, lazy) {
        (true, true) => vec![way(true), way(false)],
        _ => vec![way(early)],
    }
}
