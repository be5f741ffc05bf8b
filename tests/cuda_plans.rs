//! Random plans on GPUs: each runs within its bytes to the last one, and gives the picture that one
//! GPU gives; and the race checker finds an order for all that the streams were really given.
//!
//! No test program of libtest's: the driver is chosen by the environment, so the program starts
//! itself again on a simulated machine. With `BERTH_TEST_GPU` set it runs on the GPUs that are
//! here, which asks for `BERTH_CUDA_PATH` to be empty: the pictures of splits are the same to the
//! bit by our own kernels only.

#[path = "plans/choices.rs"]
mod choices;
mod plans;
#[path = "support/simulator.rs"]
mod simulator;
mod wide;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

use choices::choice;
use executor::backend::cuda::cublas::PATH_VARIABLE;
use executor::backend::cuda::driver::{DRIVER_VARIABLE, Driver};
use executor::backend::cuda::gpu::list;
use executor::families;
use executor::models::Model;
use executor::race::Edge;
use plans::{Choice, Hardware};
use protocol::{GraphOptions, JobShape, Plan, Residency};
use simulator::Machine;
use wide::{SplitMix64 as Random, Wide};

const JOB: JobShape = JobShape {
    width: 32,
    height: 16,
    steps: 2,
    batch: 1,
    max_sequence_length: 16,
    true_cfg: false,
    init_image: false,
    first_step: 0,
};

fn main() -> ExitCode {
    // As libtest's programs do: named tests of others are not these.
    let others = |argument: &String| {
        argument == "--list"
            || !argument.starts_with('-') && !"cuda_plans".contains(argument.as_str())
    };
    if std::env::args().skip(1).any(|argument| others(&argument)) {
        return ExitCode::SUCCESS;
    }
    let is_here = |name: &str| std::env::var_os(name).is_some();
    if is_here(DRIVER_VARIABLE) || is_here("BERTH_TEST_GPU") {
        let cublas = std::env::var_os(PATH_VARIABLE);
        assert!(
            cublas.is_some_and(|path| path.is_empty()),
            "{PATH_VARIABLE}= is not set to nothing"
        );
        run_here();
        return ExitCode::SUCCESS;
    }
    // Late copies and kernels, and devices that reach each other or do not.
    for machine in
        [Machine::new(4).with("delay", 60).with("seed", 5), Machine::new(2).with("peer", 1)]
    {
        let mut again =
            Command::new(std::env::current_exe().expect("a running program has a path"));
        machine.apply(&mut again);
        let status = again.status().expect("the program starts again");
        assert!(status.success(), "on {}: {status}", machine.value());
        println!("random plans on {}: ok", machine.value());
    }
    ExitCode::SUCCESS
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
    bench.every_plan_gives_one_picture(0..24);
    bench.each_kind_of_edge_is_missed(100..130);
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
            let rows = executor::schedule::assignment::splits_rows(&graph.variants[0]);
            let segments = graph.variants[0].segments.len();
            // What the host computes differs in its last bits: everything is on GPUs here.
            let all_on_gpus = |choice: &Choice| choice.devices.iter().all(Option::is_some);
            let mut tries =
                (0..).map(|_| choice(random, devices, segments, rows, graph.phase == first));
            tries.find(all_on_gpus).expect("most choices are")
        });
        let choices: Vec<Choice> = choices.collect();
        plans::plan(self.dir, &*self.model, &JOB, &options, &self.hardware(devices), &choices)
    }

    fn every_plan_gives_one_picture(&self, seeds: std::ops::Range<u64>) {
        let options = GraphOptions::default();
        let graphs = self.model.graphs(&JOB, &options).expect("a possible job");
        let on_one = |graph: &executor::models::ComponentGraph| {
            Choice::one(0, graph.variants[0].segments.len(), Residency::Resident)
        };
        let choices: Vec<Choice> = graphs.iter().map(on_one).collect();
        let one = plans::plan(self.dir, &*self.model, &JOB, &options, &self.hardware(1), &choices);
        let expected = plans::run(&one, &self.model).expect("one GPU");
        for seed in seeds {
            let plan = self.any(seed);
            let (result, races) = plans::run_traced(&plan, &self.model, None)
                .unwrap_or_else(|failure| panic!("seed {seed}: {failure}\n{plan:#?}"));
            assert!(races.is_empty(), "seed {seed}: {}\n{plan:#?}", races[0]);
            assert!(result.pixels == expected.pixels, "seed {seed}: another picture\n{plan:#?}");
            for phase in result.usage.devices.iter().flat_map(|device| &device.phases) {
                let [predicted, measured] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
                assert_eq!(predicted, measured, "seed {seed}: {phase:?}\n{plan:#?}");
            }
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
