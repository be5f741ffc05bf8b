//! Plans made by hand for tests: any assignment at all, with the sizes that its own schedules have.
//!
//! It is no solver: nothing is chosen here. Each device's budget is its peak to the byte, so that a
//! run that takes more at any instant fails.

pub mod choices;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use executor::backend::{CancelFlag, Turn};
use executor::families;
use executor::models::Model;
use executor::pipeline::{Observer, Picture};
use executor::race::{Edge, Race, Trace};
use executor::runtime::{Runtime, Scheduled, parts, schedules};
use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::{Progress, Rng};
use protocol::plan::{
    ComponentPlan, DeviceBackend, DevicePlan, HostPlan, MappingPolicy, PartPlan, PhaseBytes,
    SCHEMA, STAGING_BYTES, SegmentPlan,
};
use protocol::{
    Bytes, DeviceId, Division, Embeddings, Failure, Faults, GraphOptions, Job, JobItem, JobShape,
    ModelSource, Phase, Plan, PredictedMs, Residency, UsageReport,
};

/// How many random plans a test tries: `some`, or `many` where `BERTH_PLANS_MANY` is set.
pub fn how_many(some: u64, many: u64) -> u64 {
    if std::env::var_os("BERTH_PLANS_MANY").is_some() { many } else { some }
}

/// The assignment of one component.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Numbers of its virtual devices; `None` for the host.
    pub devices: Vec<Option<usize>>,
    /// What of it computes on which of these.
    pub division: Division,
    /// For each segment, where its weights wait.
    pub residencies: Vec<Residency>,
    /// Where a segment's weights wait on one of the devices, by their numbers, if elsewhere.
    pub own_residencies: BTreeMap<(usize, usize), Residency>,
    /// Slots of the ring.
    pub lookahead: u32,
    /// Of each device, if any has fewer.
    pub own_slots: Vec<u32>,
    /// Whether weights are loaded ahead of their phase.
    pub prefetch: bool,
}

impl Choice {
    /// Everything on the host, from the mapping.
    pub fn host(segments: usize) -> Choice {
        Choice {
            devices: vec![None],
            division: Division::One,
            residencies: vec![Residency::Mapped; segments],
            own_residencies: BTreeMap::new(),
            lookahead: 0,
            own_slots: Vec::new(),
            prefetch: false,
        }
    }

    /// Everything on one device.
    pub fn one(device: usize, segments: usize, residency: Residency) -> Choice {
        Choice {
            devices: vec![Some(device)],
            residencies: vec![residency; segments],
            lookahead: if residency == Residency::Streamed { 2 } else { 0 },
            ..Choice::host(segments)
        }
    }

    /// What is asked of a device before its schedule says what the component takes there.
    fn unsized_part(&self, at: usize, device: DeviceId) -> PartPlan {
        let slots = self.own_slots.get(at).copied().unwrap_or(self.lookahead);
        PartPlan {
            device,
            resident_bytes: Bytes::ZERO,
            lazy_bytes: Bytes::ZERO,
            slot_bytes: Bytes::ZERO,
            slots: slots.min(self.lookahead),
            compute_bytes: Bytes::ZERO,
        }
    }

    /// Where a segment's weights wait on each device.
    fn of_segment(&self, segment: usize) -> Vec<Residency> {
        let own = |device| self.own_residencies.get(&(device, segment)).copied();
        (0..self.devices.len()).map(|at| own(at).unwrap_or(self.residencies[segment])).collect()
    }

    fn all_residencies(&self) -> Vec<Residency> {
        (0..self.residencies.len()).flat_map(|segment| self.of_segment(segment)).collect()
    }

    /// Whether any segment is streamed to any device.
    pub fn streams(&self) -> bool {
        self.all_residencies().iter().any(|residency| residency.is_streamed())
    }

    fn residency(&self) -> Residency {
        match self.devices.as_slice() {
            [None] => self.residencies[0],
            _ if self.streams() => Residency::Streamed,
            _ if self.all_residencies().contains(&Residency::Lazy) => Residency::Lazy,
            _ => Residency::Resident,
        }
    }
}

/// What the devices of a made plan are like.
#[derive(Debug, Clone)]
pub struct Hardware {
    /// How many.
    pub devices: usize,
    /// UUIDs of the GPUs that they are on, in turns; virtual devices where there are none.
    pub gpus: Vec<String>,
    /// Their links' rate.
    pub link_bytes_per_s: f64,
    /// Operations that the first of them cannot do.
    pub unsupported: Vec<String>,
    /// Worker threads.
    pub threads: u32,
    /// Which virtual devices compute with a thread of their own, a bit each.
    pub apart: u32,
}

impl Hardware {
    /// A host alone.
    pub fn none() -> Hardware {
        let (gpus, unsupported) = (Vec::new(), Vec::new());
        Hardware { devices: 0, gpus, link_bytes_per_s: 1e9, unsupported, threads: 2, apart: 0 }
    }

    /// The name of a device.
    fn id(&self, device: Option<usize>) -> DeviceId {
        match device {
            Some(index) if self.gpus.is_empty() => DeviceId(format!("virtual{index}")),
            Some(index) => DeviceId(format!("cuda{index}")),
            None => DeviceId::host(),
        }
    }

    fn backend(&self, index: usize) -> DeviceBackend {
        let unsupported = if index == 0 { self.unsupported.clone() } else { Vec::new() };
        if !self.gpus.is_empty() {
            let uuid = self.gpus[index % self.gpus.len()].clone();
            return DeviceBackend::Cuda { uuid: Some(uuid), unsupported };
        }
        DeviceBackend::Virtual {
            link_bytes_per_s: self.link_bytes_per_s,
            faults: Faults::default(),
            speed: 1.0,
            threads: (self.apart >> index & 1 == 1).then_some(1),
            unsupported,
        }
    }
}

/// The plan of these choices, one for each component of the model in order.
pub fn plan(
    dir: &Path,
    model: &dyn Model,
    job: &JobShape,
    options: &GraphOptions,
    hardware: &Hardware,
    choices: &[Choice],
) -> Plan {
    let graphs = model.graphs(job, options).expect("a possible job");
    assert_eq!(graphs.len(), choices.len(), "one choice for each component");
    let components = graphs.iter().zip(choices).map(|(graph, choice)| {
        let segments = graph.variants[0].segments.iter().enumerate();
        let segments = segments.map(|(index, segment)| SegmentPlan {
            name: segment.name.clone(),
            residencies: choice.of_segment(index),
            weights_bytes: Bytes::ZERO,
            part_bytes: Vec::new(),
        });
        let devices = choice.devices.iter().map(|&device| hardware.id(device));
        let parts = devices.clone().enumerate().map(|(at, id)| choice.unsized_part(at, id));
        ComponentPlan {
            name: graph.name.to_owned(),
            phase: graph.phase,
            devices: devices.collect(),
            division: choice.division.clone(),
            residency: choice.residency(),
            lookahead: choice.lookahead,
            prefetch: choice.prefetch,
            parts: parts.collect(),
            segments: segments.collect(),
            weights_bytes: Bytes::ZERO,
            tensor_bytes: Bytes::ZERO,
            predicted_load_ms: 0.0,
            predicted_compute_ms: 0.0,
            reason: "a test's".to_owned(),
        }
    });
    let mut plan = Plan {
        schema: SCHEMA,
        generation: 1,
        keeps_weights_of: None,
        model: ModelSource::of(dir.to_str().expect("a path of UTF-8")),
        family: model.family().to_owned(),
        job: job.clone(),
        options: options.clone(),
        mapping_policy: MappingPolicy::Keep,
        components: components.collect(),
        devices: (0..hardware.devices).map(|index| device(index, hardware)).collect(),
        host: host(hardware.threads),
        predicted_ms: PredictedMs::default(),
    };
    let schedules = schedules(&plan, model).expect("a possible assignment");
    for (component, Scheduled { variants, .. }) in plan.components.iter_mut().zip(&schedules) {
        component.parts = parts(component, variants);
        component.tensor_bytes = variants[0].tensor_bytes();
        for (index, segment) in component.segments.iter_mut().enumerate() {
            let lanes = variants[0].lanes.iter();
            segment.part_bytes = lanes.map(|lane| lane.weights.segment_bytes[index]).collect();
            segment.weights_bytes = segment.part_bytes.iter().copied().sum();
        }
        component.weights_bytes = component.segments.iter().map(|s| s.weights_bytes).sum();
    }
    plan.host.job_bytes = model.buffers(job, options).expect("a possible job").bytes();
    plan.host.changed_bytes = model.changed_bytes();
    set_budgets(&mut plan);
    plan
}

fn device(index: usize, hardware: &Hardware) -> DevicePlan {
    DevicePlan {
        id: hardware.id(Some(index)),
        name: "a device of a test".to_owned(),
        backend: hardware.backend(index),
        integrated: false,
        total_bytes: Bytes::ZERO,
        free_bytes: Bytes::ZERO,
        budget_bytes: Bytes::ZERO,
        overhead_bytes: Bytes::ZERO,
        overhead_source: "declared".to_owned(),
        pinned_bytes: STAGING_BYTES,
        phases: Vec::new(),
        peak_bytes: Bytes::ZERO,
        idle_bytes: Bytes::ZERO,
    }
}

fn host(threads: u32) -> HostPlan {
    HostPlan {
        budget_bytes: Bytes::ZERO,
        pool_bytes: Bytes::ZERO,
        peak_bytes: Bytes::ZERO,
        idle_bytes: Bytes::ZERO,
        pinned_bytes: Bytes::ZERO,
        locked_bytes: Bytes::ZERO,
        changed_bytes: Bytes::ZERO,
        mapped_bytes: Bytes::ZERO,
        threads,
        job_bytes: Bytes::ZERO,
        phases: Vec::new(),
    }
}

/// Sums up what each device holds in each phase, and gives it no byte more.
fn set_budgets(plan: &mut Plan) {
    let used: Vec<bool> = plan.devices.iter().map(|device| plan.uses(&device.id)).collect();
    plan.host.pinned_bytes = plan
        .devices
        .iter()
        .zip(&used)
        .filter(|(_, used)| **used)
        .map(|(d, _)| d.pinned_bytes)
        .sum();
    plan.host.locked_bytes = plan.locked_bytes();
    let held = plan.host.changed_bytes + plan.host.locked_bytes;
    let on_host = [held, plan.host.pinned_bytes, plan.host.job_bytes];
    plan.host.pinned_bytes += plan.host.locked_bytes;
    let host = phases(plan, &DeviceId::host(), on_host);
    let devices: Vec<Vec<PhaseBytes>> =
        plan.devices.iter().map(|device| phases(plan, &device.id, [Bytes::ZERO; 3])).collect();
    let peak = |phases: &[PhaseBytes]| phases.iter().map(|phase| phase.peak_bytes).max().unwrap();
    for (device, phases) in plan.devices.iter_mut().zip(devices) {
        let peak = peak(&phases);
        device.phases = phases;
        (device.total_bytes, device.free_bytes) = (peak, peak);
        (device.budget_bytes, device.peak_bytes) = (peak, peak);
    }
    for index in 0..plan.devices.len() {
        plan.devices[index].idle_bytes = resident(plan, &plan.devices[index].id.clone());
    }
    plan.host.idle_bytes =
        resident(plan, &DeviceId::host()) + plan.host.changed_bytes + plan.host.pinned_bytes;
    (plan.host.peak_bytes, plan.host.budget_bytes) = (peak(&host), peak(&host));
    plan.host.phases = host;
}

/// Weights that a device holds between jobs.
fn resident(plan: &Plan, device: &DeviceId) -> Bytes {
    let parts = plan.components.iter().flat_map(|component| &component.parts);
    parts.filter(|part| part.device == *device).map(|part| part.resident_bytes).sum()
}

fn phases(plan: &Plan, device: &DeviceId, fixed: [Bytes; 3]) -> Vec<PhaseBytes> {
    let phase = |&phase: &Phase| {
        let mut entry = PhaseBytes {
            phase,
            weights_bytes: fixed[0],
            compute_bytes: Bytes::ZERO,
            staging_bytes: fixed[1],
            peak_bytes: Bytes::ZERO,
        };
        for component in &plan.components {
            let now = component.phase == phase;
            let soon = component.prefetch && plan.job.phase_after(phase) == Some(component.phase);
            for part in component.parts.iter().filter(|part| part.device == *device) {
                entry.weights_bytes += part.resident_bytes;
                entry.weights_bytes += if now || soon { part.lazy_bytes } else { Bytes::ZERO };
                if now {
                    entry.staging_bytes += part.staging_bytes();
                    entry.compute_bytes = entry.compute_bytes.max(part.compute_bytes);
                }
            }
        }
        entry.peak_bytes =
            entry.weights_bytes + entry.compute_bytes + entry.staging_bytes + fixed[2];
        entry
    };
    plan.job.timeline().iter().map(phase).collect()
}

/// Whether pictures of a plan differ from those of one device in their last bits: it sums up in
/// another order.
pub fn sums_apart(plan: &Plan) -> bool {
    plan.components.iter().any(|component| component.division.tensor_shares().is_some())
}

/// Whether pictures of other sums, [so far apart](apart), are close: a few values are a level off.
/// Where inputs of products are rounded to bf16, a difference in the last place makes one in the
/// eighth bit of some of them.
pub fn is_close(most: u8, part: f64, exact: bool) -> bool {
    if exact { most <= 1 && part < 0.02 } else { most <= 3 && part < 0.4 }
}

/// By how many levels pictures differ at most, and which part of their values does.
pub fn apart(pixels: &[u8], expected: &[u8]) -> (u8, f64) {
    assert_eq!(pixels.len(), expected.len(), "number of values");
    let apart = pixels.iter().zip(expected).map(|(a, b)| a.abs_diff(*b));
    let (most, count) = apart
        .fold((0, 0), |(most, count), apart| (apart.max(most), count + usize::from(apart > 0)));
    (most, count as f64 / pixels.len() as f64)
}

/// What a run gave.
#[derive(Debug)]
pub struct Result {
    /// All pictures, one after the other.
    pub pixels: Vec<u8>,
    /// What it used.
    pub usage: UsageReport,
    /// What the text encoders gave, where that was wanted.
    pub conditioning: Vec<Embeddings>,
}

#[derive(Default)]
struct Collector {
    pixels: Vec<u8>,
    conditioning: Vec<Embeddings>,
}

impl Observer for Collector {
    fn progress(&mut self, _progress: Progress) {}

    fn previews(&mut self, _: Turn) {}

    fn preview(&mut self, _: [u32; 2], _: IpcSharedMemory) {}

    fn picture(&mut self, picture: Picture<'_>) -> std::result::Result<(), Failure> {
        self.pixels.extend_from_slice(picture.pixels);
        Ok(())
    }

    fn notice(&mut self, _: protocol::notice::Notice) {}

    fn conditioned(&mut self, embeddings: Embeddings) {
        self.conditioning.push(embeddings);
    }

    fn tensors(&mut self, _bytes: &[u8]) -> std::result::Result<(), Failure> {
        Ok(())
    }
}

/// Loads a plan in this process.
pub fn load(plan: &Plan, model: &Arc<dyn Model>) -> std::result::Result<Runtime, Failure> {
    protocol::check::check(plan).map_err(executor::failure::refused)?;
    Runtime::load(plan.clone(), Arc::clone(model), &CancelFlag::default())
}

/// Every component on the host.
pub fn on_host(_: &str, segments: usize) -> Choice {
    Choice::host(segments)
}

/// On two devices, text encoders lazy, the DiT streamed.
pub fn on_devices(name: &str, segments: usize) -> Choice {
    match name {
        "dit" => Choice::one(0, segments, Residency::Streamed),
        "vae" => Choice::one(1, segments, Residency::Resident),
        _ => Choice::one(1, segments, Residency::Lazy),
    }
}

/// A DiT as `dit` has it, by the number of its segments; the rest on the host.
pub fn with_dit(model: &dyn Model, job: &JobShape, dit: impl Fn(usize) -> Choice) -> Vec<Choice> {
    let graphs = model.graphs(job, &GraphOptions::default()).expect("a possible job");
    let choice = |graph: &executor::models::ComponentGraph| {
        let segments = graph.variants[0].segments.len();
        if graph.name == "dit" { dit(segments) } else { Choice::host(segments) }
    };
    graphs.iter().map(choice).collect()
}

/// The job whose pictures are made of a plan.
pub fn job(shape: &JobShape) -> Job {
    let item = |index| JobItem {
        prompt: "a small green circle on a black background".to_owned(),
        prompt_2: None,
        negative_prompt: String::new(),
        seed: 7 + u64::from(index),
    };
    Job {
        items: (0..shape.batch).map(item).collect(),
        guidance_scale: 3.5,
        true_cfg_scale: if shape.true_cfg { 3.0 } else { 1.0 },
        cfg_normalization: false,
        scheduler: protocol::Scheduler::Automatic,
        sigmas: Vec::new(),
        eta: None,
        rng: Rng::Cpu,
        init_image: None,
        init_latents: None,
        dump_tensors: false,
        conditioning: Vec::new(),
        keep_conditioning: false,
    }
}

/// Makes the pictures of a loaded plan.
pub fn paint(runtime: &mut Runtime) -> std::result::Result<Result, Failure> {
    let job = job(&runtime.plan.job);
    paint_job(runtime, &job)
}

/// Makes a job's pictures by a loaded plan.
pub fn paint_job(runtime: &mut Runtime, job: &Job) -> std::result::Result<Result, Failure> {
    let mut collector = Collector::default();
    let usage = families::generate(runtime, job, &CancelFlag::default(), &mut collector)?;
    let Collector { pixels, conditioning } = collector;
    Ok(Result { pixels, usage, conditioning })
}

/// Loads a plan and makes its pictures, in this process.
pub fn run(plan: &Plan, model: &Arc<dyn Model>) -> std::result::Result<Result, Failure> {
    paint(&mut load(plan, model)?)
}

/// As [`run`], with the races among all that happened. An edge that is left out of the record must
/// be missed.
pub fn run_traced(
    plan: &Plan,
    model: &Arc<dyn Model>,
    left_out: Option<Edge>,
) -> std::result::Result<(Result, Vec<Race>), Failure> {
    protocol::check::check(plan).map_err(executor::failure::refused)?;
    let (trace, cancel) = (Arc::new(Trace::new()), CancelFlag::default());
    let traced = Some((&trace, left_out));
    let mut runtime = Runtime::load_traced(plan.clone(), Arc::clone(model), &cancel, traced)?;
    let painted = paint(&mut runtime)?;
    drop(runtime);
    assert!(trace.operations() > 0, "nothing was recorded");
    Ok((painted, trace.races()))
}
