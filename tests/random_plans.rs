//! Random plans, of every placement and residency at once: each runs within its bytes to the last one, and gives
//! the picture that the host gives; and the race checker finds an order for all that happened.

mod plans;
mod wide;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use executor::models::Model;
use executor::race::Edge;
use plans::{Choice, Hardware, Result};
use protocol::{DeviceId, GraphOptions, JobShape, Placement, Plan, Residency};
use wide::{SplitMix64 as Random, Wide};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

fn job(true_cfg: bool, batch: u32) -> JobShape {
    JobShape {
        width: 64,
        height: 48,
        steps: 2,
        batch,
        max_sequence_length: 32,
        true_cfg,
        init_image: false,
        first_step: 0,
    }
}

/// Different devices, in any order.
fn some_devices(random: &mut Random, all: usize, count: usize) -> Vec<usize> {
    let mut devices: Vec<usize> = (0..all).collect();
    for index in (1..all).rev() {
        devices.swap(index, random.below(index + 1));
    }
    devices.truncate(count);
    devices
}

/// Contiguous segments over lanes, each of which has at least one.
fn cuts(random: &mut Random, segments: usize, lanes: usize) -> Vec<usize> {
    let mut starts: Vec<usize> = some_devices(random, segments - 1, lanes - 1);
    starts.sort_unstable();
    (0..segments).map(|segment| starts.iter().filter(|&&start| start < segment).count()).collect()
}

fn residencies(random: &mut Random, segments: usize) -> Vec<Residency> {
    match random.below(3) {
        0 => vec![Residency::Resident; segments],
        1 => vec![Residency::Lazy; segments],
        _ => {
            let streamed = random.below(100);
            let held = if random.chance(50) { Residency::Lazy } else { Residency::Resident };
            let mut all: Vec<Residency> = (0..segments)
                .map(|_| if random.chance(streamed) { Residency::Streamed } else { held })
                .collect();
            all[random.below(segments)] = Residency::Streamed;
            all
        }
    }
}

/// Any choice for a component of so many segments; `rows` if it can be split by rows, `first` if its phase is
/// the first.
fn choice(random: &mut Random, devices: usize, segments: usize, rows: bool, first: bool) -> Choice {
    let mut choice = Choice::host(segments);
    let kind = random.below(10);
    if kind == 0 {
        let of_host = [Residency::Mapped, Residency::Resident, Residency::Lazy];
        choice.residencies = vec![of_host[random.below(3)]; segments];
        return choice;
    }
    let lanes_max = devices.min(segments);
    if kind <= 3 || lanes_max < 2 {
        choice.placement = Placement::One;
        choice.devices = vec![Some(random.below(devices))];
    } else if kind <= 6 && rows {
        let lanes = 2 + random.below(devices.min(4) - 1);
        choice.placement = Placement::Row;
        choice.devices = some_devices(random, devices, lanes).into_iter().map(Some).collect();
        choice.row_shares = (0..lanes).map(|_| 1 + random.below(5) as u32).collect();
    } else {
        let lanes = 2 + random.below(lanes_max - 1);
        choice.placement = Placement::Layer;
        choice.devices = some_devices(random, devices, lanes).into_iter().map(Some).collect();
        choice.segments = cuts(random, segments, lanes);
    }
    choice.residencies = residencies(random, segments);
    if choice.placement == Placement::Layer && random.chance(20) {
        let on_host = random.below(choice.devices.len());
        choice.devices[on_host] = None;
        for (segment, residency) in choice.residencies.iter_mut().enumerate() {
            if choice.segments[segment] == on_host {
                *residency = Residency::Mapped;
            }
        }
    }
    let has = |residency| choice.residencies.contains(&residency);
    if has(Residency::Streamed) {
        choice.lookahead = 1 + random.below(4) as u32;
    }
    // Nothing but weights that wait for their phase can be prefetched in the first.
    let early = has(Residency::Lazy) || has(Residency::Streamed);
    choice.prefetch = random.chance(50) && !(first && early);
    choice
}

fn random_plan(random: &mut Random, dir: &Path, model: &Model, job: &JobShape) -> Plan {
    let options = GraphOptions::default();
    let graphs = model.graphs(job, &options).expect("a possible job");
    let unsupported = ["Conv2d", "Attention", "Add", "Norm", "Linear"];
    let unable = random.chance(20).then(|| unsupported[random.below(5)].to_owned());
    let hardware = Hardware {
        devices: 1 + random.below(8),
        link_bytes_per_s: [2e8, 1e9, 1e10][random.below(3)],
        unsupported: unable.into_iter().collect(),
        threads: 1 + random.below(2) as u32,
    };
    let alike = hardware.unsupported.is_empty();
    let first = graphs[0].phase;
    let choices: Vec<Choice> = graphs
        .iter()
        .map(|graph| {
            let rows = alike && executor::schedule::assignment::splits_rows(&graph.variants[0]);
            let segments = graph.variants[0].segments.len();
            choice(random, hardware.devices, segments, rows, graph.phase == first)
        })
        .collect();
    plans::plan(dir, model, job, &options, &hardware, &choices)
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
    let model = Arc::new(Model::open(dir).expect("a whole model"));
    let options = GraphOptions::default();
    let graphs = model.graphs(job, &options).expect("a possible job");
    let on_host: Vec<Choice> =
        graphs.iter().map(|graph| Choice::host(graph.variants[0].segments.len())).collect();
    let hardware =
        Hardware { devices: 0, link_bytes_per_s: 1e9, unsupported: Vec::new(), threads: 2 };
    let plan = plans::plan(dir, &model, job, &options, &hardware, &on_host);
    let expected = plans::run(&plan, &model).expect("the host alone");
    for seed in seeds {
        let plan = random_plan(&mut Random::new(seed), dir, &model, job);
        let (result, races) = match plans::run_traced(&plan, &model, None) {
            Ok(result) => result,
            Err(failure) => panic!("seed {seed}: {failure}\n{plan:#?}"),
        };
        assert!(races.is_empty(), "seed {seed}: {}\n{plan:#?}", races[0]);
        assert!(result.pixels == expected.pixels, "seed {seed}: another picture\n{plan:#?}");
        assert_exact(&result, seed);
        let used = plan.devices.iter().filter(|device| plan.uses(&device.id)).count();
        let reported = result.usage.devices.iter().filter(|d| d.id != DeviceId::host()).count();
        assert_eq!(reported, used, "seed {seed}: every used device reports");
    }
}

#[test]
fn a_hundred_plans_of_schnell_give_the_hosts_picture_in_the_planned_bytes() {
    run_random(&fixture("flux_schnell"), &job(false, 1), 0..100);
}

#[test]
fn fifty_plans_of_dev_with_two_passes_give_the_hosts_pictures_in_the_planned_bytes() {
    run_random(&fixture("flux_dev"), &job(true, 2), 1000..1050);
}

#[test]
fn a_hundred_and_fifty_plans_with_rows_split_give_the_hosts_picture_in_the_planned_bytes() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    run_random(dir.path(), &job(false, 1), 2000..2150);
}

#[test]
fn each_kind_of_edge_is_missed_by_the_race_checker_when_it_is_left_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    let model = Arc::new(Model::open(dir.path()).expect("a whole model"));
    for edge in [Edge::Ready, Edge::Used, Edge::Departure, Edge::Arrival, Edge::Loaded] {
        let found = (2000..2030).any(|seed| {
            let plan = random_plan(&mut Random::new(seed), dir.path(), &model, &job(false, 1));
            let (_, races) = plans::run_traced(&plan, &model, Some(edge)).expect("a run");
            !races.is_empty()
        });
        assert!(found, "{edge:?} is left out, and no race is seen");
    }
}
