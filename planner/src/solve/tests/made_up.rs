//! Made-up problems: small machines, small models, memory that is often short.

use std::convert::Infallible;

use protocol::plan::{Lora, STAGING_BYTES};
use protocol::profile::{
    BackendBytes, ComponentProfile, LayoutPart, SegmentProfile, StepItems, StorageBytes,
    SummandProfile, Work, WorkKind,
};
use protocol::{Division, Layout, LayoutBytes, ModelSource, Phase, StorageType};

use super::super::*;
use crate::inventory::tests::{device_of, host_of};
use crate::inventory::{DeviceKind, Part, Rate};
use crate::policy::IdleBudgets;
use crate::policy::pins::{Params, Split, group_counts};

/// The phases of a job without a picture to start from.
pub(super) const TIMELINE: [Phase; 3] = [Phase::Condition, Phase::Denoise, Phase::Decode];

/// What a problem borrows.
#[derive(Clone)]
pub(super) struct Case {
    pub(super) model: ModelSource,
    pub(super) inventory: Inventory,
    pub(super) budgets: Budgets,
    pub(super) unusable: Vec<Option<String>>,
    pub(super) profile: ModelProfile,
    pub(super) job: JobShape,
    pub(super) options: GraphOptions,
    pub(super) pins: Vec<Pin>,
    pub(super) prefetch: bool,
}

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
        work: vec![Work {
            kind: WorkKind::Matmul(storage),
            operations: 0,
            flops,
            moved_bytes: weights,
        }],
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
        cached_bytes: Bytes::ZERO,
        weights_bytes,
        compute: kinds.map(|backend| BackendBytes { backend, bytes: Bytes(512) }).to_vec(),
        boundary_bytes: Bytes::ZERO,
        splits_rows: false,
        heads_max: 1,
        summands: SummandProfile::default(),
        items: StepItems::ONE,
        segments,
    }
}

impl Case {
    /// So many virtual devices with so much memory each, a host without limits, and these
    /// components.
    pub(super) fn plain(devices: usize, budget: Bytes, components: Vec<ComponentProfile>) -> Case {
        let count = components.len();
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
                pinned: None,
                idle: None,
            },
            model: ModelSource::of("/models/test"),
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
                max_sequence_length: 32,
                ..JobShape::small()
            },
            options: GraphOptions::default(),
            pins: vec![Pin::FREE; count],
            prefetch: true,
        }
    }

    /// Makes all GPUs parts of one: the first has its context.
    pub(super) fn divide(&mut self) {
        let devices = self.inventory.devices.iter_mut();
        let gpus = devices.filter(|device| device.kind == DeviceKind::Cuda);
        for (index, device) in gpus.enumerate() {
            device.part = Some(Part {
                gpu: "GPU-1".to_owned(),
                index,
                room_bytes: device.total_bytes,
                gpu_total_bytes: device.total_bytes,
                gpu_free_bytes: device.free_bytes,
            });
            if index > 0 {
                device.overhead_bytes = Bytes::ZERO;
            }
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
                device.pinned_bytes = device.kind.staging_bytes();
            }
            device.link_bytes_per_s = dice.rate();
            device.speeds.f32_flops_per_s = dice.rate();
            device.speeds.half_flops_per_s = dice.rate();
            device.speeds.memory_bytes_per_s = dice.rate();
            device.overhead_bytes = Bytes(dice.below(3) * 100);
            let ceiling = Bytes(1 + dice.below(20_000));
            (device.total_bytes, device.free_bytes) = (Bytes(20_000), ceiling);
            device.integrated = dice.one_in(8);
            case.budgets.ceilings[index] = ceiling;
            let less = if dice.one_in(2) { dice.below(ceiling.0 + 1) } else { 0 };
            case.budgets.devices[index] = ceiling - Bytes(less);
            case.unusable[index] = dice.one_in(6).then(|| "it is a stone".to_owned());
        }
        let host = &mut case.inventory.host;
        host.compute = dice.one_in(2);
        host.available_bytes = Bytes(dice.below(4000));
        host.speeds.f32_flops_per_s = dice.rate();
        host.speeds.memory_bytes_per_s = dice.rate();
        host.storage_bytes_per_s = dice.rate();
        if dice.one_in(2) {
            host.page_cache_bytes_per_s = dice.rate();
        }
        // Some hosts have no room for the pinned memory of all their devices.
        let spared = usize::from(dice.one_in(6));
        let pinned = case.inventory.devices.iter().skip(spared).map(|d| d.pinned_bytes.0);
        let pinned: u64 = pinned.sum();
        // Weights are changed by LoRA only.
        if dice.below(2) == 1 {
            case.profile.changed_bytes = Bytes(300);
            case.options.loras.push(Lora { path: "lora".to_owned(), weight: 1.0 });
        }
        case.budgets.host_ceiling = Bytes(1000 + dice.below(12_000) + pinned);
        let less = match dice.below(6) {
            0 => dice.below(case.budgets.host_ceiling.0 + 1),
            1..3 => dice.below(case.budgets.host_ceiling.0.min(12_000) + 1),
            _ => 0,
        };
        case.budgets.host = case.budgets.host_ceiling - Bytes(less);
        if dice.one_in(10) {
            case.budgets.pinned = Some(Bytes(STAGING_BYTES.0 * dice.below(3) + dice.below(3000)));
        }
        case.prefetch = !dice.one_in(3);
        if !dice.one_in(4) {
            (case.job.true_cfg, case.job.batch) = (dice.one_in(2), 1 + dice.below(3) as u32);
            let denoises = |c: &&mut ComponentProfile| c.phase == Phase::Denoise;
            for component in case.profile.components.iter_mut().filter(denoises) {
                component.items = StepItems::of(&case.job, &[]);
                component.calls *= component.items.passes;
            }
        }
        if dice.one_in(2) {
            let pins = case.profile.components.iter().map(|c| random_pin(dice, &case, c));
            case.pins = pins.collect();
        }
        // Some have GPUs that are parts of one.
        if dice.one_in(3) {
            case.divide();
        }
        // Beside some, other models are loaded.
        if dice.one_in(4) {
            let mut limit = |budget: &Bytes| Bytes(dice.below(budget.0 + 1));
            let devices = case.budgets.devices.iter().map(&mut limit).collect();
            let host = limit(&case.budgets.host);
            case.budgets.idle = Some(IdleBudgets { devices, host });
        }
        case
    }

    /// A pin that makes sense for one of the components.
    pub(super) fn random_pin(&self, dice: &mut Dice, component: usize) -> Pin {
        random_pin(dice, self, &self.profile.components[component])
    }

    /// The problem of a case, its layouts sized by [`sized`].
    pub(super) fn problem(&self, objective: Objective) -> Problem<'_> {
        self.problem_over(objective, Lists::All)
    }

    /// The same with places in some lists of devices.
    pub(super) fn problem_over(&self, objective: Objective, lists: Lists) -> Problem<'_> {
        let mut problem = Problem {
            inventory: &self.inventory,
            budgets: self.budgets.clone(),
            unusable: self.unusable.clone(),
            model: &self.model,
            profile: &self.profile,
            job: &self.job,
            objective,
            options: &self.options,
            mapping_policy: MappingPolicy::Keep,
            pins: self.pins.clone(),
            prefetch: self.prefetch,
            places: Vec::new(),
        };
        let (wanted, bytes) = self.sized(&problem, lists);
        let components = 0..self.profile.components.len();
        problem.places = components.map(|at| places(&problem, at, &wanted, &bytes)).collect();
        problem
    }

    /// One of these with the places that a better plan may have, where splits in turns may take
    /// this.
    pub(super) fn problem_of_plan<'c>(
        &'c self,
        first: &Problem<'c>,
        may_beat: &[Option<Allowance>],
    ) -> Problem<'c> {
        let mut problem = first.clone();
        let (wanted, bytes) = self.sized(&problem, Lists::All);
        for (index, allowance) in may_beat.iter().enumerate() {
            let Some(allowance) = allowance else { continue };
            let known = KnownPlaces { places: &first.places[index], in_lists: KnownLists::First };
            let (sized, within) = ((&wanted[..], &bytes[..]), Within::Plan(allowance));
            problem.places[index] = places_beside(first, index, sized, &[known], within);
        }
        problem
    }

    /// The layouts of a problem of this case, with their bytes.
    pub(super) fn sized(
        &self,
        problem: &Problem<'_>,
        lists: Lists,
    ) -> (Vec<LayoutQuery>, Vec<SizedLayout>) {
        let wanted = wanted(problem, &vec![Some(lists); self.profile.components.len()]);
        let bytes = self.sizes(&wanted);
        (wanted, bytes)
    }

    pub(super) fn solve(&self, objective: Objective) -> Result<Solution, Infeasible> {
        solve(&[self.problem(objective)], 1)
    }

    /// The same with what is left out at first.
    pub(super) fn solve_refined(&self, objective: Objective) -> Result<Solution, Infeasible> {
        let problems = [self.problem(objective)];
        let solution = solve(&problems, 1)?;
        let (wanted, bytes) = self.sized(&problems[0], Lists::All);
        let known = &mut KnownChoices::default();
        let refined =
            refined(&problems, solution, (&wanted, &bytes), |w| Ok(self.sizes(w)), (1, 0.0), known);
        let Ok::<_, Infallible>((solution, _)) = refined;
        Ok(solution)
    }

    /// The bytes of layouts of this case.
    pub(super) fn sizes(&self, wanted: &[LayoutQuery]) -> Vec<SizedLayout> {
        let sized =
            |w: &LayoutQuery| sized(&self.profile.components[w.component], &w.layout).into();
        wanted.iter().map(sized).collect()
    }
}

/// Bytes of a layout, as the protocol says they are: layers hold their segments' weights, rows a
/// share of each in steps of 256 bytes, replicas all of them, the host what belongs to every third
/// segment where a device lacks something. What crosses in a pipeline does so for all passes.
fn sized(component: &ComponentProfile, layout: &Layout) -> LayoutBytes {
    let lanes = layout.lanes.len();
    let lacks = layout.lanes.iter().any(|lane| !lane.unsupported.is_empty());
    let on_host = lacks && layout.lanes.iter().all(|lane| lane.backend != BackendKind::Host);
    let mut parts: Vec<LayoutPart> = (0..lanes + usize::from(on_host))
        .map(|part| LayoutPart {
            compute_bytes: Bytes(256 * (1 + (part as u64 + component.weights_bytes.0 / 256) % 5)),
            segment_bytes: vec![Bytes::ZERO; component.segments.len()],
        })
        .collect();
    let dealt = layout.division.shares().unwrap_or_default();
    let replicas = layout.division.is_replicated();
    let shares: u64 = dealt.iter().map(|share| u64::from(*share)).sum();
    for (index, segment) in component.segments.iter().enumerate() {
        let weights = segment.weights_bytes;
        if on_host && index % 3 == 1 {
            parts[lanes].segment_bytes[index] = weights;
        } else if replicas {
            parts[..lanes].iter_mut().for_each(|part| part.segment_bytes[index] = weights);
        } else if shares > 0 && segment.block {
            for (part, share) in parts.iter_mut().zip(dealt) {
                let rows = weights.0 * u64::from(*share) / shares;
                part.segment_bytes[index] = Bytes(rows).align_up(256);
            }
        } else {
            parts[layout.division.lane(index).unwrap()].segment_bytes[index] = weights;
        }
    }
    let calls = match layout.division {
        Division::Pipeline { .. } => u64::from(component.items.passes),
        _ => 1,
    };
    let crossing_bytes = component.boundary_bytes + Bytes(64 * lanes as u64);
    LayoutBytes { parts, crossing_bytes: Bytes(calls * crossing_bytes.0) }
}

pub(super) fn random_component(dice: &mut Dice, name: &str, phase: Phase) -> ComponentProfile {
    let storage = [StorageType::F32, StorageType::BF16][dice.below(2) as usize];
    let segments = (0..1 + dice.below(4))
        .map(|_| segment("block", dice.aligned(), storage, dice.below(4096) as f64))
        .collect();
    let mut component = component(name, phase, segments);
    component.calls = 1 + dice.below(4) as u32;
    component.splits_rows = dice.one_in(2);
    component.heads_max = 4;
    component.tensor_bytes = component.tensor_bytes - Bytes(dice.below(256));
    component.boundary_bytes = Bytes(dice.below(512));
    component.compute.iter_mut().for_each(|entry| entry.bytes = dice.aligned());
    if dice.one_in(6) {
        component.compute.retain(|entry| entry.backend != BackendKind::Cuda);
    }
    component
}

/// A pin that makes sense for a component.
fn random_pin(dice: &mut Dice, case: &Case, component: &ComponentProfile) -> Pin {
    let mut devices: Vec<Option<usize>> = (0..case.inventory.devices.len()).map(Some).collect();
    if dice.below(3) == 0 {
        devices.push(None);
    }
    for index in (1..devices.len()).rev() {
        devices.swap(index, dice.below(index as u64 + 1) as usize);
    }
    devices.truncate(dice.below(4) as usize);
    let mut split = Split::Layer;
    if devices.len() > component.segments.len() {
        devices.truncate(1);
    }
    let kinds = |device: &Option<usize>| device.map(|index| case.inventory.devices[index].kind);
    let alike =
        devices.iter().all(|device| device.is_some() && kinds(device) == kinds(&devices[0]));
    if devices.len() > 1 && alike && component.splits_rows && dice.below(2) == 0 {
        split = Split::Row;
    }
    let shared = (2..=component.heads_max as usize).contains(&devices.len());
    let able = |device: &Option<usize>| {
        device.is_some_and(|index| case.inventory.devices[index].unsupported.is_empty())
    };
    if split == Split::Layer && shared && alike && devices.iter().all(able) && component.calls > 1 {
        split = Split::Tensor;
    }
    let replicas = (2..=component.items.count() as usize).contains(&devices.len());
    if replicas && !devices.contains(&None) && dice.below(2) == 0 {
        split = Split::Items;
    }
    let pipeline = devices.len() > 1
        && !devices.contains(&None)
        && !group_counts(component.items, devices.len()).is_empty();
    if pipeline && dice.below(3) == 0 {
        split = Split::Pipeline;
    }
    let shared = devices.len() > 1 && dice.below(3) == 0;
    let shares = devices.iter().filter(|_| shared).map(|_| 1 + dice.below(4) as u32).collect();
    let any =
        [None, Some(Params::Cpu), Some(Params::Disk), Some(Params::Device), Some(Params::Locked)];
    let mut params = if devices == [None] { None } else { any[dice.below(5) as usize] };
    let mut lookahead = dice.one_in(2).then(|| 1 + dice.below(3) as u32);
    if split == Split::Pipeline {
        (params, lookahead) = (params.filter(|params| !params.is_streamed()), None);
    }
    let forbidden = if devices.is_empty() && dice.one_in(3) { vec![Some(0)] } else { Vec::new() };
    Pin { devices, shares, split, params, lookahead, forbidden }
}
