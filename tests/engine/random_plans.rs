//! Random plans, of every placement and residency at once: each runs within its bytes to the last
//! one, and gives the picture that the host gives; and the race checker finds an order for all that
//! happened. `BERTH_PLANS_MANY=1` tries more of them.

use std::path::Path;

use crate::support::fixture;
use crate::support::plans::choices::{Divisible, choice};
use crate::support::plans::{self, Choice, Hardware, Result};
use crate::support::wide::{SplitMix64 as Random, Wide};
use executor::families;
use executor::models::Model;
use executor::race::Edge;
use protocol::{DeviceId, GraphOptions, JobShape, Plan};

fn job(true_cfg: bool, batch: u32) -> JobShape {
    JobShape {
        width: 64,
        height: 48,
        steps: 2,
        batch,
        max_sequence_length: 32,
        true_cfg,
        ..JobShape::small()
    }
}

fn random_plan(
    random: &mut Random,
    dir: &Path,
    model: &dyn Model,
    job: &JobShape,
    options: &GraphOptions,
) -> Plan {
    let graphs = model.graphs(job, options).expect("a possible job");
    let unsupported = ["Conv2d", "Attention", "Add", "Norm", "Linear"];
    let unable = random.chance(20).then(|| unsupported[random.below(5)].to_owned());
    let hardware = Hardware {
        devices: 1 + random.below(8),
        gpus: Vec::new(),
        link_bytes_per_s: [2e8, 1e9, 1e10][random.below(3)],
        unsupported: unable.into_iter().collect(),
        threads: 1 + random.below(2) as u32,
        apart: random.below(256) as u32,
    };
    let alike = hardware.unsupported.is_empty();
    let first = graphs[0].phase;
    let choices: Vec<Choice> = graphs
        .iter()
        .map(|graph| {
            let of = Divisible::of(graph, alike);
            choice(random, hardware.devices, of, graph.phase == first)
        })
        .collect();
    plans::plan(dir, model, job, options, &hardware, &choices)
}

/// Predicted and measured peaks are the same on every device and in every phase.
#[track_caller]
fn assert_exact(result: &Result, seed: u64) {
    for device in &result.usage.devices {
        for phase in &device.phases {
            assert_eq!(
                phase.predicted_peak_bytes, phase.measured_peak_bytes,
                "seed {seed}: {} in {}",
                device.id, phase.phase
            );
        }
    }
}

fn run_random(dir: &Path, job: &JobShape, seeds: std::ops::Range<u64>) {
    let model = families::open(dir).expect("a whole model");
    let of_both = [false, true].map(|exact_matmul| {
        let options = GraphOptions { exact_matmul, ..GraphOptions::default() };
        let graphs = model.graphs(job, &options).expect("a possible job");
        let on_host: Vec<Choice> =
            graphs.iter().map(|graph| Choice::host(graph.variants[0].segments.len())).collect();
        let plan = plans::plan(dir, &*model, job, &options, &Hardware::none(), &on_host);
        (plans::run(&plan, &model).expect("the host alone"), options)
    });
    for seed in seeds {
        let exact = seed % 2 == 1;
        let (expected, options) = &of_both[usize::from(exact)];
        let plan = random_plan(&mut Random::new(seed), dir, &*model, job, options);
        let (result, races) = match plans::run_traced(&plan, &model, None) {
            Ok(result) => result,
            Err(failure) => panic!("seed {seed}: {failure}\n{plan:#?}"),
        };
        assert!(races.is_empty(), "seed {seed}: {}\n{plan:#?}", races[0]);
        let (most, part) = plans::apart(&result.pixels, &expected.pixels);
        let close = plans::is_close(most, part, exact);
        let same = most == 0 || plans::sums_apart(&plan) && close;
        assert!(same, "seed {seed}: another picture, {most} levels off\n{plan:#?}");
        assert_exact(&result, seed);
        let used = plan.devices.iter().filter(|device| plan.uses(&device.id)).count();
        let reported = result.usage.devices.iter().filter(|d| d.id != DeviceId::host()).count();
        assert_eq!(reported, used, "seed {seed}: every used device reports");
    }
}

#[test]
fn plans_of_schnell_give_the_hosts_picture_in_the_planned_bytes() {
    run_random(&fixture("flux_schnell"), &job(false, 1), 0..plans::how_many(40, 100));
}

#[test]
fn plans_of_dev_with_two_passes_give_the_hosts_pictures_in_the_planned_bytes() {
    run_random(&fixture("flux_dev"), &job(true, 2), 1000..1000 + plans::how_many(20, 50));
}

#[test]
fn plans_with_rows_split_give_the_hosts_picture_in_the_planned_bytes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    run_random(dir.path(), &job(false, 1), 2000..2000 + plans::how_many(60, 150));
}

#[test]
fn each_kind_of_edge_is_missed_by_the_race_checker_when_it_is_left_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    let model = families::open(dir.path()).expect("a whole model");
    for edge in [Edge::Ready, Edge::Used, Edge::Departure, Edge::Arrival, Edge::Loaded] {
        let found = (2000..2030).any(|seed| {
            let (random, options) = (&mut Random::new(seed), GraphOptions::default());
            let plan = random_plan(random, dir.path(), &*model, &job(false, 1), &options);
            let (_, races) = plans::run_traced(&plan, &model, Some(edge)).expect("a run");
            !races.is_empty()
        });
        assert!(found, "{edge:?} is left out, and no race is seen");
    }
}
