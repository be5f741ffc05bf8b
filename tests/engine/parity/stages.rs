//! One component at a time, from golden inputs, at every kind of place where it can compute.

use std::sync::Arc;

use executor::backend::kernels::Workers;
use executor::backend::virtual_device::VirtualProperties;
use executor::backend::{
    Backend, CancelFlag, HostBackend, LaneMemory, Memory, NodeCall, Queue, Region, VirtualDevice,
    WeightLoad, WeightMove,
};
use executor::families::{self, flux1::Flux1};
use executor::graph::Graph;
use executor::models::Model;
use executor::ops::OperationNeeds;
use executor::schedule::{Assignment, Instruction, Schedule, WeightPlace};
use executor::weights::WeightFiles;
use protocol::plan::STAGING_BYTES;
use protocol::{BackendKind, Bytes, DeviceId, Faults, GraphOptions, JobShape, Residency};

use crate::parity::compare::{
    BF16_DEMO, BF16_DENOISER, BF16_TEXT, DECODER, DENOISER, INTEGER_DENOISER, INTEGER_TEXT, TEXT,
    assert_close, mean_deviation,
};
use crate::parity::golden::{Case, DenoiserCall, Golden};

/// What the DiT's timestep and guidance are multiplied by (`FluxTransformer2DModel.forward`).
const THOUSANDTHS: f32 = 1000.0;

/// A place to compute, and how.
struct Place {
    kind: BackendKind,
    threads: usize,
    /// Whether weights are used from the mapping of their files.
    mapped: bool,
}

const PLACES: [Place; 4] = [
    Place { kind: BackendKind::Host, threads: 1, mapped: false },
    Place { kind: BackendKind::Host, threads: 2, mapped: false },
    Place { kind: BackendKind::Host, threads: 1, mapped: true },
    Place { kind: BackendKind::Virtual, threads: 2, mapped: false },
];

/// Inputs of a component by name.
pub type Inputs<'a> = Vec<(&'a str, Vec<u8>)>;

/// Runs a component at every place, which must all give the same bits, and returns its output.
#[track_caller]
pub fn compute(
    what: &str,
    graph: &Graph,
    files: &Arc<WeightFiles>,
    inputs: &Inputs,
    exact: bool,
) -> Vec<f32> {
    let at = |place| (place, compute_at(place, graph, files, inputs, exact));
    let mut results = PLACES.iter().map(at);
    let (_, first) = results.next().expect("there are places");
    for (Place { kind, threads, mapped }, result) in results {
        assert_eq!(
            bits(&first),
            bits(&result),
            "{what} on {kind:?} with {threads} threads, mapped: {mapped}"
        );
    }
    first
}

/// Runs a component in memory that is exactly as large as its schedule says.
fn compute_at(
    place: &Place,
    graph: &Graph,
    files: &Arc<WeightFiles>,
    inputs: &Inputs,
    exact: bool,
) -> Vec<f32> {
    let residency = if place.mapped { Residency::Mapped } else { Residency::Resident };
    let mut assignment = Assignment::on_one(graph, place.kind, place.threads);
    assignment.residencies[0].fill(residency);
    assignment.exact_matmul = exact;
    let schedule = Arc::new(Schedule::new(Arc::new(graph.clone()), assignment, &OperationNeeds));
    let lane = &schedule.lanes[0];
    let backend = open(place, lane.arena_bytes + lane.weights.resident_bytes);
    let allocate = |name, bytes| {
        Arc::new(Region::allocate(backend.memory(), name, bytes).expect("what the schedule says"))
    };
    let arena = allocate("arena", lane.arena_bytes);
    let region = allocate("weights", lane.weights.resident_bytes);
    let moves = lane.weights.slices.iter().filter_map(|slice| match slice.place {
        WeightPlace::Resident(offset) => {
            let tensor = graph.weights[slice.weight.0].tensor;
            Some(WeightMove { tensor, bytes: 0..tensor.size().as_usize(), offset })
        }
        _ => None,
    });
    let load = WeightLoad {
        files: Arc::clone(files),
        moves: moves.collect(),
        region: Arc::clone(&region),
        base: Bytes::ZERO,
        stop: CancelFlag::default(),
        locked: None,
        once: true,
    };
    backend.load(load, Queue::Loads).wait().expect("weights load");
    for (port, bytes) in inputs {
        let value = graph.input(port);
        assert_eq!(graph.value(value).bytes().as_usize(), bytes.len(), "size of input {port}");
        for (_, offset) in schedule.input_places(value) {
            backend.write(&arena, offset, bytes).expect("a device that works");
        }
    }
    assert_eq!(inputs.len(), graph.inputs.len(), "every input is given");
    let output = graph.outputs[0].value;
    let memory = LaneMemory {
        arena: Some(Arc::clone(&arena)),
        resident: Some(region),
        ..Default::default()
    };
    let run = || {
        for instruction in &schedule.program {
            let Instruction::Run(run) = instruction else { panic!("one lane only runs") };
            backend
                .run(&NodeCall { schedule: &schedule, run, memory: &memory, files })
                .expect("the host runs");
        }
        let mut bytes = vec![0; graph.value(output).bytes().as_usize()];
        let (_, offset) = schedule.output_place(output);
        backend.read(&arena, offset, &mut bytes).expect("a device that works");
        bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect::<Vec<_>>()
    };
    let first = run();
    // Inputs are given once for several runs, so no run may have touched them.
    assert_eq!(bits(&first), bits(&run()), "a second run from the same inputs");
    first
}

fn open(place: &Place, capacity: Bytes) -> Box<dyn Backend> {
    let workers = Arc::new(Workers::new(place.threads).expect("threads start"));
    match place.kind {
        BackendKind::Host => {
            let memory = Memory::new(DeviceId::host(), capacity, None);
            Box::new(HostBackend::new(memory, workers))
        }
        BackendKind::Virtual => {
            let memory = Memory::new(DeviceId("virtual0".to_owned()), capacity, None);
            let host = Memory::new(DeviceId::host(), STAGING_BYTES, None);
            let staging = Region::allocate(&host, "staging", STAGING_BYTES).expect("some RAM");
            let properties = VirtualProperties {
                overhead_bytes: Bytes::ZERO,
                link_bytes_per_s: 1e10,
                faults: Faults::default(),
                speed: 1.0,
                threads: None,
            };
            let opened = VirtualDevice::open(memory, properties, &Arc::new(staging), workers);
            Box::new(opened.expect("a device without overhead"))
        }
        BackendKind::Cuda => panic!("no place of these tests"),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Values as a component's input.
pub fn float_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// A golden model, opened.
pub struct Opened {
    /// Its golden tensors.
    pub golden: Golden,
    /// The model.
    pub model: Arc<dyn Model>,
    /// How far text encoders and the DiT may be off where products are not exact.
    pub rounded: [f64; 2],
}

impl Opened {
    /// Opens it.
    pub fn new(golden: Golden) -> Opened {
        let model = families::open_source(&golden.source).expect("a whole model");
        Opened { golden, model, rounded: [INTEGER_TEXT, INTEGER_DENOISER] }
    }

    /// The model as its family's.
    pub fn flux(&self) -> Arc<Flux1> {
        Arc::clone(&self.model).downcast()
    }

    /// The graph of a component for a case, and its files.
    fn part(&self, component: &str, case: &Case) -> (Graph, &Arc<WeightFiles>) {
        let job = JobShape {
            width: case.width,
            height: case.height,
            steps: case.steps,
            max_sequence_length: case.max_sequence_length,
            true_cfg: case.true_cfg_scale.is_some(),
            ..JobShape::small()
        };
        let graphs = self.model.graphs(&job, &GraphOptions::default()).expect("possible jobs");
        let graph = graphs.into_iter().find(|part| part.name == component).expect("a component");
        (graph.variants[0].clone(), self.model.files(component))
    }

    /// Compares what a component made from golden inputs, with the tolerance of exact products, or
    /// of rounded ones.
    fn assert_close(&self, what: &str, got: &[f32], golden: &[f32], [exact, rounded]: [f64; 2]) {
        if self.golden.exact {
            return assert_close(what, got, golden, exact);
        }
        let apart = mean_deviation(got, golden);
        println!("{what} is {apart:.1e} off");
        assert!(apart <= rounded, "{what} is {apart:.1e} off, {rounded:.0e} is allowed");
    }

    /// Compares both text encoders.
    pub fn text_encoders(&self) {
        let mut compared = 0;
        for case in &self.golden.cases {
            for (prefix, component) in [("text_encoder", "clip"), ("text_encoder_2", "t5")] {
                for prompt in ["c", "u"] {
                    let name = format!("{prefix}.{prompt}");
                    let Some(ids) = case.tensors.get(&format!("{name}.input_ids")) else {
                        assert_eq!(prompt, "u", "every case has a prompt");
                        continue;
                    };
                    let what = format!("{}/{} {name}", self.golden.name, case.name);
                    self.text_encoder(&what, component, case, &name, ids.ids());
                    compared += 1;
                }
            }
        }
        assert!(compared >= 2 * self.golden.cases.len());
    }

    fn text_encoder(&self, what: &str, component: &str, case: &Case, name: &str, ids: &[i64]) {
        let (graph, files) = self.part(component, case);
        let bytes = ids.iter().flat_map(|&id| (id as i32).to_ne_bytes()).collect();
        let hidden = compute(what, &graph, files, &vec![("input_ids", bytes)], self.golden.exact);
        let golden = case.floats(&format!("{name}.last_hidden_state"));
        self.assert_close(
            &format!("{what}.last_hidden_state"),
            &hidden,
            golden,
            [TEXT, self.rounded[0]],
        );
        if component == "clip" {
            let ids: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
            let golden = case.floats(&format!("{name}.pooler_output"));
            let start = self.flux().clip().pooled_token(&ids) * golden.len();
            let pooled = &hidden[start..start + golden.len()];
            self.assert_close(
                &format!("{what}.pooler_output"),
                pooled,
                golden,
                [TEXT, self.rounded[0]],
            );
        }
    }

    /// Compares the DiT.
    pub fn denoiser(&self) {
        for case in &self.golden.cases {
            let (graph, files) = self.part("dit", case);
            let calls = case.denoiser_calls();
            assert_eq!(calls[0].number, 0, "every case has the first call");
            for call in calls {
                let what = format!("{}/{} call{}", self.golden.name, case.name, call.number);
                let mut inputs = vec![
                    ("latents", float_bytes(&call.latents)),
                    ("timestep", float_bytes(&[call.timestep * THOUSANDTHS])),
                    ("rope", float_bytes(&self.rope(&call))),
                    ("encoder_hidden_states", float_bytes(&call.text)),
                    ("pooled", float_bytes(&call.pooled)),
                ];
                if self.flux().dit().guidance_embeds {
                    let guidance = case.guidance_scale * THOUSANDTHS;
                    inputs.push(("guidance", float_bytes(&[guidance])));
                }
                let velocity = compute(&what, &graph, files, &inputs, self.golden.exact);
                self.assert_close(&what, &velocity, &call.velocity, [DENOISER, self.rounded[1]]);
            }
        }
    }

    /// Cosines and sines of every token's position on every axis, at frequencies 10000^(-2i/width).
    fn rope(&self, call: &DenoiserCall) -> Vec<f32> {
        let axes = self.flux().dit().axes_dims_rope;
        let mut table = Vec::new();
        for position in call.positions.as_chunks::<3>().0 {
            for (&position, width) in position.iter().zip(axes) {
                for pair in 0..width / 2 {
                    let frequency = 10_000_f64.powf(-2.0 * pair as f64 / width as f64);
                    let (sine, cosine) = (f64::from(position) * frequency).sin_cos();
                    table.extend([cosine as f32, sine as f32]);
                }
            }
        }
        table
    }

    /// Decodes latents `[channels, height, width]` to a picture `[3, height, width]`.
    pub fn decoded(&self, what: &str, latents: &[f32], height: usize, width: usize) -> Vec<f32> {
        let files = self.model.files("vae");
        let graph = self.flux().vae().decoder(files, height, width).expect("a whole decoder");
        let channels = latents.len() / (height * width);
        let nhwc = transposed(latents, channels, height * width);
        let picture = compute(what, &graph, files, &vec![("latents", float_bytes(&nhwc))], true);
        transposed(&picture, picture.len() / 3, 3)
    }

    /// Compares the decoder.
    pub fn decoder(&self) {
        let mut compared = 0;
        for case in &self.golden.cases {
            let Some(golden) = case.tensors.get("vae.out") else { continue };
            let what = format!("{}/{} vae.out", self.golden.name, case.name);
            let (height, width) = (case.height as usize / 8, case.width as usize / 8);
            let picture = self.decoded(&what, case.floats("vae.in"), height, width);
            assert_close(&what, &picture, golden.floats(), DECODER);
            compared += 1;
        }
        assert!(compared >= 2);
    }
}

/// Rows and columns changed over.
pub fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    assert_eq!(values.len(), rows * columns, "a whole matrix");
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
}

#[test]
fn text_encoders_match_from_golden_ids() {
    Opened::new(Golden::fixture("flux_schnell")).text_encoders();
    Opened::new(Golden::fixture("flux_dev")).text_encoders();
    Opened::new(Golden::demo()).text_encoders();
}

#[test]
fn the_dit_of_schnell_matches_from_golden_inputs() {
    Opened::new(Golden::fixture("flux_schnell")).denoiser();
}

#[test]
fn the_dit_of_dev_matches_from_golden_inputs_with_both_guidances() {
    let opened = Opened::new(Golden::fixture("flux_dev"));
    assert!(opened.flux().dit().guidance_embeds);
    let two_calls = |case: &Case| case.denoiser_calls().iter().any(|call| call.number == 1);
    assert!(opened.golden.cases.iter().any(two_calls));
    opened.denoiser();
}

#[test]
fn the_dit_of_the_demo_matches_in_every_step_from_golden_inputs() {
    let opened = Opened::new(Golden::demo());
    for case in &opened.golden.cases {
        assert_eq!(case.denoiser_calls().len(), case.steps as usize);
    }
    opened.denoiser();
}

#[test]
fn products_of_bf16_are_near() {
    // Of the trained demo's eight steps the last tells small differences of its input apart.
    for (golden, denoiser) in
        [(Golden::fixture("flux_dev"), BF16_DENOISER), (Golden::demo(), BF16_DEMO)]
    {
        let golden = Golden { exact: false, ..golden };
        let rounded = [BF16_TEXT, denoiser];
        let opened = Opened { rounded, ..Opened::new(golden) };
        opened.text_encoders();
        opened.denoiser();
    }
}

#[test]
fn the_decoder_matches_from_golden_latents() {
    Opened::new(Golden::fixture("flux_schnell")).decoder();
    Opened::new(Golden::fixture("flux_dev")).decoder();
    Opened::new(Golden::demo()).decoder();
}

#[test]
fn the_decoder_matches_at_an_odd_size() {
    for name in ["flux_schnell", "flux_dev"] {
        let opened = Opened::new(Golden::fixture(name));
        let what = format!("{name} vae/decode");
        let picture = opened.decoded(&what, opened.golden.others["z"].floats(), 11, 14);
        assert_close(&what, &picture, opened.golden.others["decode"].floats(), DECODER);
    }
}
