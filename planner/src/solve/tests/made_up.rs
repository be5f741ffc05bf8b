//! Made-up problems, and an enumeration of everything that solves them.
//!
//! Bytes and times are summed here anew, from what the documentation says of them. Rates are powers of two, so
//! that all these sums are exact, and ties are ties.

use std::collections::BTreeSet;

use protocol::plan::{Lora, STAGING_BYTES};
use protocol::profile::{BackendBytes, ComponentProfile, SegmentProfile, StorageBytes};
use protocol::{Phase, Residency, StorageType};

use super::super::*;
use crate::inventory::Rate;
use crate::inventory::tests::{device_of, host_of};

/// The host, among the columns of [`peaks`], stands after the devices.
pub(super) type Peaks = Vec<Vec<u64>>;

/// The phases of a job without a picture to start from.
pub(super) const TIMELINE: [Phase; 3] = [Phase::Condition, Phase::Denoise, Phase::Decode];

/// What a problem borrows.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) inventory: Inventory,
    pub(super) budgets: Budgets,
    pub(super) unusable: Vec<Option<String>>,
    pub(super) profile: ModelProfile,
    job: JobShape,
    options: GraphOptions,
}

/// A place of a component that is not split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whole {
    /// Index of the device; `None` for the host.
    pub(super) device: Option<usize>,
    pub(super) residency: Residency,
}

/// What is compared, in this order: bytes for `memory` only, time, lazy components, copies in RAM, bytes.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(super) struct Value(u64, f64, usize, usize, u64);

/// Numbers that look random and are the same in every run (SplitMix64).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A rate between 2^10 and 2^13 per second.
    pub(super) fn rate(&mut self) -> Rate {
        Rate::declared(f64::from(1024u32 << self.below(4)))
    }

    /// A size that weights and arenas may have.
    fn aligned(&mut self) -> Bytes {
        Bytes(256 * (1 + self.below(8)))
    }
}

pub(super) fn segment(
    name: &str,
    weights: Bytes,
    storage: StorageType,
    flops: f64,
) -> SegmentProfile {
    SegmentProfile {
        name: name.to_owned(),
        block: true,
        weights_bytes: weights,
        storage: vec![StorageBytes { storage, bytes: weights }],
        arena_bytes: Bytes::ZERO,
        carried_bytes: Bytes::ZERO,
        workspace: Vec::new(),
        flops,
        moved_bytes: weights,
    }
}

pub(super) fn component(
    name: &str,
    phase: Phase,
    segments: Vec<SegmentProfile>,
) -> ComponentProfile {
    let weights_bytes = segments.iter().map(|segment| segment.weights_bytes).sum();
    let kinds = [BackendKind::Host, BackendKind::Virtual, BackendKind::Cuda];
    ComponentProfile {
        name: name.to_owned(),
        phase,
        calls: 1,
        tensor_bytes: weights_bytes,
        weights_bytes,
        compute: kinds.map(|backend| BackendBytes { backend, bytes: Bytes(512) }).to_vec(),
        boundary_bytes: Bytes::ZERO,
        splits_rows: false,
        segments,
    }
}

impl Case {
    /// So many virtual devices with so much memory each, a host without limits, and these components.
    pub(super) fn plain(devices: usize, budget: Bytes, components: Vec<ComponentProfile>) -> Case {
        let ids = (0..devices).map(|index| format!("virtual{index}"));
        Case {
            inventory: Inventory {
                source: "test".to_owned(),
                host: host_of(Bytes::gib(4), Bytes::gib(4)),
                devices: ids.map(|id| device_of(&id, Bytes::gib(1), Bytes::gib(1))).collect(),
                why_no_devices: None,
            },
            budgets: Budgets {
                devices: vec![budget; devices],
                ceilings: vec![Bytes::gib(1); devices],
                host: Bytes::gib(4),
                host_ceiling: Bytes::gib(4),
            },
            unusable: vec![None; devices],
            profile: ModelProfile {
                family: "test".to_owned(),
                components,
                job_bytes: Bytes(100),
                changed_bytes: Bytes::ZERO,
                notices: Vec::new(),
            },
            job: JobShape {
                width: 64,
                height: 64,
                steps: 4,
                batch: 1,
                max_sequence_length: 32,
                true_cfg: false,
                init_image: false,
                first_step: 0,
            },
            options: GraphOptions::default(),
        }
    }

    /// One to three devices, one to four components, memory that is often short.
    pub(super) fn random(seed: u64) -> Case {
        let dice = &mut Dice(seed);
        let names = ["clip", "t5", "dit", "vae"];
        let count = 1 + dice.below(4) as usize;
        let mut phases: Vec<Phase> = (0..count).map(|_| TIMELINE[dice.below(3) as usize]).collect();
        phases.sort();
        let components = phases.iter().zip(names);
        let components = components.map(|(&phase, name)| random_component(dice, name, phase));
        let components = components.collect();
        let mut case = Case::plain(1 + dice.below(3) as usize, Bytes::ZERO, components);
        for (index, device) in case.inventory.devices.iter_mut().enumerate() {
            if dice.one_in(3) {
                device.kind = DeviceKind::Cuda;
                device.id = format!("cuda{index}");
            }
            device.link_bytes_per_s = dice.rate();
            device.f32_flops_per_s = dice.rate();
            device.half_flops_per_s = dice.rate();
            device.memory_bytes_per_s = dice.rate();
            device.overhead_bytes = Bytes(dice.below(3) * 100);
            let ceiling = Bytes(1 + dice.below(12_000));
            (device.total_bytes, device.free_bytes) = (Bytes(20_000), ceiling);
            case.budgets.ceilings[index] = ceiling;
            case.budgets.devices[index] = Bytes(dice.below(ceiling.0 + 1));
            case.unusable[index] = dice.one_in(6).then(|| "it is a stone".to_owned());
        }
        let host = &mut case.inventory.host;
        host.compute = dice.one_in(2);
        host.available_bytes = Bytes(dice.below(4000));
        host.f32_flops_per_s = dice.rate();
        host.memory_bytes_per_s = dice.rate();
        host.storage_bytes_per_s = dice.rate();
        // Some hosts have no room for the pinned memory of all their devices.
        let room = case.inventory.devices.len() as u64 - u64::from(dice.one_in(4));
        // Weights are changed by LoRA only.
        if dice.below(2) == 1 {
            case.profile.changed_bytes = Bytes(300);
            case.options.loras.push(Lora { path: "lora".to_owned(), weight: 1.0 });
        }
        case.budgets.host_ceiling = Bytes(dice.below(12_000) + room * STAGING_BYTES.0);
        let less = match dice.one_in(3) {
            true => dice.below(case.budgets.host_ceiling.0 + 1),
            false => dice.below(case.budgets.host_ceiling.0.min(12_000) + 1),
        };
        case.budgets.host = case.budgets.host_ceiling - Bytes(less);
        case
    }

    pub(super) fn problem(&self, objective: Objective) -> Problem<'_> {
        let mut problem = Problem {
            inventory: &self.inventory,
            budgets: self.budgets.clone(),
            unusable: self.unusable.clone(),
            model: "/models/test",
            profile: &self.profile,
            job: &self.job,
            objective,
            options: &self.options,
            mapping_policy: MappingPolicy::Keep,
            pins: vec![Pin::FREE; self.profile.components.len()],
            prefetch: false,
            places: Arc::new([]),
        };
        problem.places = super::super::places(&problem, &[], &[]);
        problem
    }

    pub(super) fn solve(&self, objective: Objective) -> Result<Solution, Infeasible> {
        solve(&self.problem(objective), 1)
    }

    /// Every place of a component, from the rules: on usable devices that it has an arena for, and on a host
    /// that computes.
    pub(super) fn places(&self, component: &ComponentProfile) -> Vec<Whole> {
        let mut places = Vec::new();
        for (index, device) in self.inventory.devices.iter().enumerate() {
            let kind = match device.kind {
                DeviceKind::Cuda => BackendKind::Cuda,
                DeviceKind::Virtual => BackendKind::Virtual,
            };
            let computes = component.compute.iter().any(|entry| entry.backend == kind);
            if self.unusable[index].is_none() && computes {
                places.push(Whole { device: Some(index), residency: Residency::Resident });
                places.push(Whole { device: Some(index), residency: Residency::Lazy });
            }
        }
        if self.inventory.host.compute {
            for residency in [Residency::Mapped, Residency::Resident, Residency::Lazy] {
                places.push(Whole { device: None, residency });
            }
        }
        places
    }

    /// Peaks of each device, and then of the host, by phase.
    pub(super) fn peaks(&self, places: &[Whole]) -> Peaks {
        let devices = (0..self.inventory.devices.len()).map(Some).chain([None]);
        let peak = |device: Option<usize>, phase: Phase| {
            let (kind, fixed) = match device {
                Some(index) => {
                    let known = &self.inventory.devices[index];
                    let used = places.iter().any(|place| place.device == device);
                    let kind = match known.kind {
                        DeviceKind::Cuda => BackendKind::Cuda,
                        DeviceKind::Virtual => BackendKind::Virtual,
                    };
                    let overhead = if used { known.overhead_bytes.0 } else { 0 };
                    (kind, overhead)
                }
                None => {
                    let used: BTreeSet<usize> = places.iter().filter_map(|p| p.device).collect();
                    let pinned = STAGING_BYTES.0 * used.len() as u64;
                    let job = self.profile.job_bytes.0 + self.profile.changed_bytes.0;
                    (BackendKind::Host, job + pinned)
                }
            };
            let (mut weights, mut arena) = (0, 0);
            for (component, place) in self.profile.components.iter().zip(places) {
                if place.device == device {
                    let runs = component.phase == phase;
                    let held = match place.residency {
                        Residency::Resident => true,
                        Residency::Lazy => runs,
                        Residency::Mapped | Residency::Streamed => false,
                    };
                    weights += if held { component.weights_bytes.0 } else { 0 };
                    let entry = component.compute.iter().find(|entry| entry.backend == kind);
                    arena = if runs { arena.max(entry.unwrap().bytes.0) } else { arena };
                }
            }
            weights + arena + fixed
        };
        devices.map(|device| TIMELINE.map(|phase| peak(device, phase)).to_vec()).collect()
    }

    pub(super) fn fits(&self, places: &[Whole]) -> bool {
        let budgets = self.budgets.devices.iter().chain([&self.budgets.host]);
        let peaks = self.peaks(places);
        peaks.iter().zip(budgets).all(|(peaks, budget)| peaks.iter().all(|peak| *peak <= budget.0))
    }

    /// Seconds to load a component into a place, and to compute all of its calls there.
    pub(super) fn seconds(&self, component: &ComponentProfile, place: Whole) -> (f64, f64) {
        let host = &self.inventory.host;
        let bytes = component.tensor_bytes.0 as f64;
        let storage = host.storage_bytes_per_s.value;
        let device = place.device.map(|index| &self.inventory.devices[index]);
        let mut call = 0.0;
        for segment in &component.segments {
            let halves = segment.storage.iter().all(|entry| entry.storage != StorageType::F32);
            let (flops, bandwidth) = match device {
                Some(device) if device.kind == DeviceKind::Cuda && halves => {
                    (device.half_flops_per_s, device.memory_bytes_per_s)
                }
                Some(device) => (device.f32_flops_per_s, device.memory_bytes_per_s),
                None => (host.f32_flops_per_s, host.memory_bytes_per_s),
            };
            let moved = segment.moved_bytes.0 as f64;
            call += f64::max(segment.flops / flops.value, moved / bandwidth.value);
        }
        let calls = f64::from(component.calls);
        let uncached = component.tensor_bytes > host.available_bytes;
        match device {
            Some(device) => {
                let link = device.link_bytes_per_s.value;
                let crossing = component.boundary_bytes.0 as f64 / link;
                (bytes / storage.min(link), calls * (call + crossing))
            }
            None if place.residency == Residency::Mapped && uncached => {
                (0.0, calls * (call + bytes / storage))
            }
            None => (bytes / storage, calls * call),
        }
    }

    pub(super) fn value(&self, objective: Objective, places: &[Whole]) -> Value {
        let total = self.peaks(places).iter().map(|peaks| peaks.iter().max().unwrap()).sum();
        let mut ms = 0.0;
        for (component, place) in self.profile.components.iter().zip(places) {
            let (load, compute) = self.seconds(component, *place);
            let stays = place.residency != Residency::Lazy;
            let warm = objective == Objective::Throughput && stays;
            ms += 1e3 * if warm { compute } else { load + compute };
        }
        let lazy = places.iter().filter(|place| place.residency == Residency::Lazy).count();
        let copied = |p: &&Whole| p.device.is_none() && p.residency != Residency::Mapped;
        let copies = places.iter().filter(copied).count();
        let bytes = if objective == Objective::Memory { total } else { 0 };
        Value(bytes, ms, lazy, copies, total)
    }

    /// Every combination that fits.
    pub(super) fn fitting(&self) -> Vec<Vec<Whole>> {
        let mut combinations = vec![Vec::new()];
        for component in &self.profile.components {
            let places = self.places(component);
            let extended = combinations.iter().flat_map(|chosen: &Vec<Whole>| {
                places.iter().map(|place| [chosen.as_slice(), &[*place]].concat())
            });
            combinations = extended.collect();
        }
        combinations.retain(|places| self.fits(places));
        combinations
    }

    /// The places that a plan gives to the components.
    pub(super) fn places_of(&self, plan: &Plan) -> Vec<Whole> {
        let index = |id: &DeviceId| self.inventory.devices.iter().position(|d| d.id == id.0);
        let place = |component: &protocol::plan::ComponentPlan| Whole {
            device: index(&component.devices[0]),
            residency: component.residency,
        };
        plan.components.iter().map(place).collect()
    }

    /// The same with this cap on each device.
    pub(super) fn capped(&self, cap: Bytes) -> Case {
        let mut case = self.clone();
        case.budgets.devices = case.budgets.ceilings.iter().map(|&most| most.min(cap)).collect();
        case
    }
}

pub(super) fn random_component(dice: &mut Dice, name: &str, phase: Phase) -> ComponentProfile {
    let storage = [StorageType::F32, StorageType::BF16][dice.below(2) as usize];
    let segments = (0..1 + dice.below(2))
        .map(|_| segment("block", dice.aligned(), storage, dice.below(4096) as f64))
        .collect();
    let mut component = component(name, phase, segments);
    component.calls = 1 + dice.below(4) as u32;
    component.tensor_bytes = component.tensor_bytes - Bytes(dice.below(256));
    component.boundary_bytes = Bytes(dice.below(512));
    component.compute.iter_mut().for_each(|entry| entry.bytes = dice.aligned());
    if dice.one_in(6) {
        component.compute.retain(|entry| entry.backend != BackendKind::Cuda);
    }
    component
}
