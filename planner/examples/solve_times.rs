//! How long the solver takes, with the profile of a model in hand:
//!
//! `cargo run --release --example solve_times -- /tmp/flux-dev`
//!
//! The model's directory may be the sparse one that the example `sparse_flux_dev` writes. It is
//! planned for hosts with 1, 2, 4 and 16 unlike GPUs, from a picture at 1024x1024, with a second
//! short text encoder: the 6 components of a model with two CLIPs, T5, DiT, and both halves of a
//! VAE. Prints one JSON object a line: the median and the longest of some repetitions, in
//! milliseconds, for making all places and for the solution among them; and what the sizes of all
//! layouts took, once.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use executor::families;
use executor::measure;
use executor::models::Model;
use planner::inventory::Inventory;
use planner::policy::pins::Pin;
use planner::policy::{Objective, Policy};
use planner::profile::Profile;
use planner::solve::{Lists, Problem, SizedLayout, places, solve, wanted};
use protocol::plan::MappingPolicy;
use protocol::{GraphOptions, JobShape, ModelProfile, ModelSource};

/// Repetitions of each measurement.
const REPETITIONS: usize = 9;

/// A host with so many GPUs, each a little slower than the one before it, and with 8 to 24 GiB.
fn host(devices: usize) -> Inventory {
    let mut text = String::from(
        "name = \"made-up\"\n[host]\nmemory = \"128GiB\"\ncores = 16\nflops = \"800GFLOP/s\"\n\
         memory_bandwidth = \"80GB/s\"\nstorage_bandwidth = \"3GB/s\"\n",
    );
    for index in 0..devices {
        let (memory, speed) = ([16, 10, 24, 8][index % 4], 60.0 - 1.5 * index as f64);
        text.push_str(&format!(
            "[[device]]\nkind = \"cuda\"\ntotal = \"{memory}GiB\"\nlink = \"{}GB/s\"\nflops = \"{speed}TFLOP/s\"\n\
             half_flops = \"{}TFLOP/s\"\nmemory_bandwidth = \"{}GB/s\"\n",
            12 + index % 3,
            2.0 * speed,
            700 - 10 * index
        ));
    }
    let profile = Profile::parse(&text, "made-up").expect("a good profile");
    profile.inventory().expect("a readable host")
}

/// The model with its short text encoder twice.
fn six(profile: &ModelProfile) -> ModelProfile {
    let mut profile = profile.clone();
    let again: Vec<_> = profile.components.iter().filter(|c| c.name == "clip").cloned().collect();
    profile.components.extend(again);
    profile.components.sort_by_key(|component| component.phase);
    profile
}

fn median(mut times_ms: Vec<f64>) -> (f64, f64) {
    times_ms.sort_by(f64::total_cmp);
    (times_ms[times_ms.len() / 2], times_ms[times_ms.len() - 1])
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir] = arguments.as_slice() else {
        eprintln!("usage: solve_times MODEL");
        return ExitCode::from(2);
    };
    let model = match families::open(Path::new(dir)) {
        Ok(model) => model,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let job = JobShape {
        width: 1024,
        height: 1024,
        steps: 28,
        max_sequence_length: 512,
        init_image: true,
        ..JobShape::small()
    };
    let options = GraphOptions::default();
    let measured = measure::profiles(
        &*model,
        &job,
        std::slice::from_ref(&options),
        16,
        &mut Default::default(),
    )
    .expect("a profile")
    .remove(0);
    for devices in [1, 2, 4, 16] {
        let inventory = host(devices);
        for objective in [Objective::Latency, Objective::Throughput, Objective::Memory] {
            for budget in ["100%", "4"] {
                run(&*model, &inventory, &six(&measured), &job, &options, objective, budget);
            }
        }
    }
    ExitCode::SUCCESS
}

fn run(
    model: &dyn Model,
    inventory: &Inventory,
    profile: &ModelProfile,
    job: &JobShape,
    options: &GraphOptions,
    optimize: Objective,
    max_vram: &str,
) {
    let max_vram = planner::budget::VramCaps::parse(max_vram).expect("a good cap");
    let policy = Policy { max_vram, optimize, ..Policy::default() };
    let source = ModelSource::default();
    let mut problem = Problem {
        inventory,
        budgets: policy.budgets(inventory).expect("budgets"),
        unusable: vec![None; inventory.devices.len()],
        model: &source,
        profile,
        job,
        objective: optimize,
        options,
        mapping_policy: MappingPolicy::Keep,
        pins: vec![Pin::FREE; profile.components.len()],
        prefetch: true,
        places: Vec::new(),
    };
    let wanted = wanted(&problem, &vec![Some(Lists::All); profile.components.len()]);
    let layouts: Vec<_> = wanted.iter().map(|wanted| wanted.layout.clone()).collect();
    let start = Instant::now();
    let bytes = measure::sizes(model, job, options, 16, &layouts, &mut Default::default())
        .expect("sizes of layouts");
    let bytes: Vec<SizedLayout> = bytes.into_iter().map(SizedLayout::from).collect();
    let sizes_ms = start.elapsed().as_secs_f64() * 1e3;
    let (mut places_ms, mut solve_ms, mut feasible) = (Vec::new(), Vec::new(), false);
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        let all = 0..profile.components.len();
        problem.places = all.map(|index| places(&problem, index, &wanted, &bytes)).collect();
        places_ms.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        feasible = solve(std::slice::from_ref(&problem), 1).is_ok();
        solve_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let count: usize = problem.places.iter().map(|places| places.len()).sum();
    let ((places_ms, places_max_ms), (solve_ms, solve_max_ms)) =
        (median(places_ms), median(solve_ms));
    println!(
        "{{\"devices\": {}, \"components\": {}, \"objective\": \"{}\", \"max_vram\": \"{}\", \"feasible\": {feasible}, \
         \"layouts\": {}, \"sizes_ms\": {sizes_ms:.2}, \"places\": {count}, \"places_ms\": {places_ms:.2}, \"places_max_ms\": {places_max_ms:.2}, \"solve_ms\": {solve_ms:.2}, \
         \"solve_max_ms\": {solve_max_ms:.2}}}",
        inventory.devices.len(),
        profile.components.len(),
        optimize.name(),
        if problem.budgets.devices == problem.budgets.ceilings { "all" } else { "capped" },
        layouts.len(),
    );
}
