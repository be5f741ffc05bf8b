//! Random plans on GPUs: each runs within its bytes to the last one, and gives the picture that one
//! GPU gives; and the race checker finds an order for all that the streams were really given.
//!
//! The driver is chosen by the environment, so the program starts itself again on a simulated
//! machine. `BERTH_CUDA_PATH= cargo test --workspace --test gpu
//! plans::on_the_gpus_that_are_here -- --ignored` runs on the GPUs that are here: without
//! cuBLASLt, as the pictures of splits are the same to the bit by our own kernels only.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::support::Ended;
use crate::support::plans::choices::{Divisible, choice};
use crate::support::plans::{self, Choice, Hardware};
use crate::support::simulator::Machine;
use crate::support::wide::{SplitMix64 as Random, Wide};
use executor::backend::cuda::cublas::PATH_VARIABLE;
use executor::backend::cuda::driver::Driver;
use executor::backend::cuda::gpu::list;
use executor::families;
use executor::models::Model;
use executor::race::Edge;
use protocol::{Division, GraphOptions, JobShape, Plan, Residency};

const JOB: JobShape =
    JobShape { width: 32, height: 16, steps: 2, max_sequence_length: 16, ..JobShape::small() };

/// By how many levels a picture of summands of several GPUs may be off: what they are made of is
/// rounded to bf16, and summed up in another order.
const LEVELS_APART_MAX: u8 = 4;

/// The test that runs on the GPUs of the environment.
const HERE: &str = "plans::on_the_gpus_that_are_here";

/// Late copies and kernels, and devices that reach each other or do not.
#[test]
fn on_simulated_machines() {
    for machine in
        [Machine::new(4).with("delay", 60).with("seed", 5), Machine::new(2).with("peer", 1)]
    {
        let program = std::env::current_exe().expect("a running program has a path");
        let mut again = Command::new(program);
        machine.apply(&mut again);
        let output = again.args(["--ignored", "--exact", HERE]).output();
        let ended = Ended::of(output.expect("the program starts again"));
        let said = format!("on {}: {}{}", machine.value(), ended.stdout, ended.stderr);
        assert!(ended.code == Some(0) && said.contains(" 1 passed"), "{said}");
    }
}

#[test]
#[ignore = "the driver is chosen by the environment"]
fn on_the_gpus_that_are_here() {
    let cublas = std::env::var_os(PATH_VARIABLE);
    assert!(cublas.is_some_and(|path| path.is_empty()), "{PATH_VARIABLE}= is not set to nothing");
    run_here();
}

/// A model, and the GPUs of this machine.
struct Bench<'a> {
    dir: &'a Path,
    model: Arc<dyn Model>,
    gpus: Vec<String>,
}

fn run_here() {
    let driver = Driver::get().unwrap_or_else(|why| panic!("{why}"));
    let gpus = list(driver).expect("the driver lists its GPUs");
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    let bench = Bench {
        dir: dir.path(),
        model: families::open(dir.path()).expect("a whole model"),
        gpus: gpus.into_iter().map(|gpu| gpu.uuid).collect(),
    };
    bench.every_plan_gives_one_picture(0..plans::how_many(8, 24));
    bench.operations_are_left_to_the_host();
    bench.groups_give_the_pictures_of_one_gpu();
    bench.each_kind_of_edge_is_missed(100..130);
}

/// What was predicted of each phase is what was measured.
#[track_caller]
fn assert_exact(result: &plans::Result, what: &str) {
    for phase in result.usage.devices.iter().flat_map(|device| &device.phases) {
        let [predicted, measured] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
        assert_eq!(predicted, measured, "{what}: {phase:?}");
    }
}

impl Bench<'_> {
    fn hardware(&self, devices: usize) -> Hardware {
        Hardware { devices, gpus: self.gpus.clone(), ..Hardware::none() }
    }

    /// Any plan, on more devices than there may be GPUs: some share one.
    fn any(&self, seed: u64) -> Plan {
        let random = &mut Random::new(seed);
        let devices = 1 + random.below(2 * self.gpus.len());
        let options = GraphOptions::default();
        let graphs = self.model.graphs(&JOB, &options).expect("a possible job");
        let first = graphs[0].phase;
        let choices = graphs.iter().map(|graph| {
            let of = Divisible::of(graph, true);
            // What the host computes differs in its last bits: everything is on GPUs here.
            let all_on_gpus = |choice: &Choice| choice.devices.iter().all(Option::is_some);
            let mut tries = (0..).map(|_| choice(random, devices, of, graph.phase == first));
            tries.find(all_on_gpus).expect("most choices are")
        });
        let choices: Vec<Choice> = choices.collect();
        plans::plan(self.dir, &*self.model, &JOB, &options, &self.hardware(devices), &choices)
    }

    /// All on one GPU, which cannot do some operations.
    fn on_one(&self, unsupported: &[&str]) -> Plan {
        let options = GraphOptions::default();
        let graphs = self.model.graphs(&JOB, &options).expect("a possible job");
        let on_one = |graph: &executor::models::ComponentGraph| {
            Choice::one(0, graph.variants[0].segments.len(), Residency::Resident)
        };
        let choices: Vec<Choice> = graphs.iter().map(on_one).collect();
        let unsupported = unsupported.iter().map(|&name| name.to_owned()).collect();
        let hardware = Hardware { unsupported, ..self.hardware(1) };
        plans::plan(self.dir, &*self.model, &JOB, &options, &hardware, &choices)
    }

    /// The host does what a GPU cannot, within the plan's bytes and in an order that is enforced.
    fn operations_are_left_to_the_host(&self) {
        let expected = plans::run(&self.on_one(&[]), &self.model).expect("one GPU");
        for lacking in [&["Linear"][..], &["Conv2d"], &["Attention", "Add"], &["Norm", "Rope"]] {
            let plan = self.on_one(lacking);
            let (result, races) = plans::run_traced(&plan, &self.model, None)
                .unwrap_or_else(|failure| panic!("without {lacking:?}: {failure}\n{plan:#?}"));
            assert!(races.is_empty(), "without {lacking:?}: {}\n{plan:#?}", races[0]);
            let (most, part) = plans::apart(&result.pixels, &expected.pixels);
            assert!(most <= LEVELS_APART_MAX, "without {lacking:?}: {most} levels, {part}");
            assert_exact(&result, &format!("without {lacking:?}"));
        }
    }

    /// Groups of items follow one another through devices that compute beside each other, or share
    /// a GPU.
    fn groups_give_the_pictures_of_one_gpu(&self) {
        let job = JobShape { batch: 3, ..JOB };
        let options = GraphOptions::default();
        let plan = |devices: usize, counts: &[u32]| {
            let dit = |segments: usize| {
                let mut choice = Choice::one(0, segments, Residency::Resident);
                if devices > 1 {
                    choice.devices = (0..devices).map(Some).collect();
                    let device = |segment: usize| (segment * devices / segments) as u32;
                    let (segments, counts) = ((0..segments).map(device).collect(), counts.to_vec());
                    choice.division = Division::Pipeline { segments, counts };
                }
                choice
            };
            let (hardware, model) = (self.hardware(devices), &*self.model);
            let choices = plans::with_dit(model, &job, dit);
            plans::plan(self.dir, model, &job, &options, &hardware, &choices)
        };
        let expected = plans::run(&plan(1, &[]), &self.model).expect("one GPU").pixels;
        for (devices, counts) in [(2, &[1, 1, 1][..]), (2, &[2, 1]), (3, &[1, 1, 1])] {
            let what = format!("{devices} devices, {counts:?}");
            let ran = plans::run_traced(&plan(devices, counts), &self.model, None);
            let (result, races) = ran.unwrap_or_else(|failure| panic!("{what}: {failure}"));
            assert!(races.is_empty(), "{what}: {}", races[0]);
            assert!(result.pixels == expected, "{what}: other pictures");
            assert_exact(&result, &what);
        }
    }

    fn every_plan_gives_one_picture(&self, seeds: std::ops::Range<u64>) {
        let expected = plans::run(&self.on_one(&[]), &self.model).expect("one GPU");
        for seed in seeds {
            let plan = self.any(seed);
            let (result, races) = plans::run_traced(&plan, &self.model, None)
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}\n{plan:#?}"));
            assert!(races.is_empty(), "seed {seed}: {}\n{plan:#?}", races[0]);
            let (most, part) = plans::apart(&result.pixels, &expected.pixels);
            let same = most == 0 || plans::sums_apart(&plan) && most <= LEVELS_APART_MAX;
            assert!(same, "seed {seed}: another picture, {most} levels, {part} of it\n{plan:#?}");
            assert_exact(&result, &format!("seed {seed}"));
        }
    }

    /// An edge that is not recorded is a race that is seen.
    fn each_kind_of_edge_is_missed(&self, seeds: std::ops::Range<u64>) {
        for edge in [Edge::Ready, Edge::Used, Edge::Departure, Edge::Arrival, Edge::Loaded] {
            let found = seeds.clone().any(|seed| {
                let (_, races) =
                    plans::run_traced(&self.any(seed), &self.model, Some(edge)).expect("a run");
                !races.is_empty()
            });
            assert!(found, "{edge:?} is left out, and no race is seen");
        }
    }
}
