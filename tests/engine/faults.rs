//! Each allocation and each copy of a small run fails in turn: the run ends with a typed reason,
//! everything that it held is free, and the same runtime makes the right picture afterwards.

use std::path::Path;
use std::sync::Arc;

use crate::support::plans::{self, Choice, Hardware};
use crate::support::wide::Wide;
use crate::support::{Ended, Home, fixture, pixels};
use executor::families;
use executor::models::Model;
use executor::runtime::Runtime;
use protocol::plan::DeviceBackend;
use protocol::{
    Bytes, DeviceId, Division, Failure, FailureKind, GraphOptions, JobShape, Phase, Plan, Residency,
};

const JOB: JobShape =
    JobShape { width: 64, height: 48, steps: 2, max_sequence_length: 32, ..JobShape::small() };

/// Devices, of which the second one computes with a thread of its own.
fn hardware(devices: usize) -> Hardware {
    Hardware { devices, apart: 0b10, link_bytes_per_s: 1e10, ..Hardware::none() }
}

/// CLIP lazy on one device, T5 in layers over two, the DiT streamed and in layers over three, the
/// decoder prefetched.
fn layers_and_rings(dir: &Path, model: &dyn Model) -> Plan {
    let options = GraphOptions::default();
    let graphs = model.graphs(&JOB, &options).expect("a possible job");
    let [clip, t5, dit, vae] = [0, 1, 2, 3].map(|c: usize| graphs[c].variants[0].segments.len());
    let layers = |segments: usize, lanes: usize, residency| Choice {
        devices: (0..lanes).map(Some).collect(),
        division: Division::Layer {
            segments: (0..segments).map(|segment| (segment * lanes / segments) as u32).collect(),
        },
        ..Choice::one(0, segments, residency)
    };
    let mut dit = layers(dit, 3, Residency::Streamed);
    dit.residencies[1] = Residency::Lazy;
    let choices = [
        Choice::one(1, clip, Residency::Lazy),
        layers(t5, 2, Residency::Resident),
        Choice { prefetch: true, ..dit },
        Choice { prefetch: true, ..Choice::one(2, vae, Residency::Lazy) },
    ];
    plans::plan(dir, model, &JOB, &options, &hardware(3), &choices)
}

/// The DiT on the first devices, divided so and streamed; the rest on the host.
fn divided(dir: &Path, model: &dyn Model, job: &JobShape, on: &[usize], by: Division) -> Plan {
    let residency = match by {
        Division::Pipeline { .. } => Residency::Lazy,
        _ => Residency::Streamed,
    };
    let dit = |segments| Choice {
        devices: on.iter().copied().map(Some).collect(),
        division: by.clone(),
        ..Choice::one(0, segments, residency)
    };
    let choices = plans::with_dit(model, job, dit);
    plans::plan(dir, model, job, &GraphOptions::default(), &hardware(on.len()), &choices)
}

/// A way to make a device fail, at an occasion counted from 1.
type Fault = fn(&mut DeviceBackend, u32);

fn at_allocation(backend: &mut DeviceBackend, at: u32) {
    if let DeviceBackend::Virtual { faults, .. } = backend {
        faults.fail_allocation = Some(at);
    }
}

fn at_copy(backend: &mut DeviceBackend, at: u32) {
    if let DeviceBackend::Virtual { faults, .. } = backend {
        faults.fail_copy = Some(at);
    }
}

/// What a device holds between jobs: its context and the resident weights.
fn held(plan: &Plan, device: &DeviceId) -> Bytes {
    let components = plan.components.iter().flat_map(|component| &component.parts);
    let here = components.filter(|part| part.device == *device);
    let resident: Bytes = here.map(|part| part.resident_bytes).sum();
    let device = plan.devices.iter().find(|d| d.id == *device);
    resident + device.map(|d| d.overhead_bytes).unwrap_or(plan.host.pinned_bytes)
}

#[track_caller]
fn assert_typed(failure: &Failure, device: &DeviceId) {
    let named = match &failure.kind {
        FailureKind::OutOfMemory { device, .. } | FailureKind::DeviceFailed { device } => device,
        other => panic!("{other:?}: {failure}"),
    };
    assert_eq!(named, device, "{failure}");
}

/// Lets a device fail at each occasion there is, and returns how many there were.
fn fail_at_each(plan: &Plan, model: &Arc<dyn Model>, device: usize, fault: Fault) -> u32 {
    let expected = plans::run(plan, model).expect("a run without faults").pixels;
    for at in 1.. {
        let mut plan = plan.clone();
        fault(&mut plan.devices[device].backend, at);
        let id = plan.devices[device].id.clone();
        let mut runtime = match plans::load(&plan, model) {
            Ok(runtime) => runtime,
            Err(failure) => {
                assert_typed(&failure, &id);
                continue;
            }
        };
        let painted = plans::paint(&mut runtime);
        if let Ok(painted) = painted {
            assert!(painted.pixels == expected, "another picture, fault {at} of {id}");
            return at - 1;
        }
        assert_typed(&painted.unwrap_err(), &id);
        assert_only_resident(&plan, &runtime, at);
        // The fault is over: what is there still does.
        match plans::paint(&mut runtime) {
            Ok(again) => assert!(again.pixels == expected, "another picture after fault {at}"),
            // A resident weight that never arrived is asked for no second time.
            Err(failure) => assert_typed(&failure, &id),
        }
        let memories: Vec<_> = runtime.memories().cloned().collect();
        drop(runtime);
        for memory in memories {
            assert_eq!(memory.used(), Bytes::ZERO, "{} leaks, fault {at}", memory.device());
        }
    }
    unreachable!("a run without faults ends the loop")
}

#[track_caller]
fn assert_only_resident(plan: &Plan, runtime: &Runtime, at: u32) {
    for memory in runtime.memories() {
        let held = held(plan, memory.device());
        assert_eq!(memory.used(), held, "{} after fault {at}", memory.device());
    }
}

#[test]
fn every_allocation_and_copy_of_layers_and_rings_may_fail() {
    let dir = fixture("flux_schnell");
    let model = families::open(&dir).expect("a whole model");
    let plan = layers_and_rings(&dir, &*model);
    for device in 0..3 {
        let allocations = fail_at_each(&plan, &model, device, at_allocation);
        assert!(allocations >= 3, "{allocations} allocations on device {device}");
        let copies = fail_at_each(&plan, &model, device, at_copy);
        assert!(copies >= 6, "{copies} copies on device {device}");
    }
}

#[test]
fn every_allocation_and_copy_of_split_rows_may_fail() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    let model = families::open(dir.path()).expect("a whole model");
    let rows = Division::Row { shares: vec![2, 1, 1] };
    let plan = divided(dir.path(), &*model, &JOB, &[0, 1, 2], rows);
    for device in [0, 2] {
        assert!(fail_at_each(&plan, &model, device, at_allocation) >= 2);
    }
    assert!(fail_at_each(&plan, &model, 1, at_copy) >= 50);
}

#[test]
fn every_allocation_and_copy_of_split_heads_may_fail() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Wide::bf16().write(dir.path()).expect("a file system with room");
    let model = families::open(dir.path()).expect("a whole model");
    let heads = Division::Tensor { shares: vec![2, 1, 1] };
    let plan = divided(dir.path(), &*model, &JOB, &[0, 1, 2], heads);
    for device in [0, 2] {
        assert!(fail_at_each(&plan, &model, device, at_allocation) >= 2);
    }
    assert!(fail_at_each(&plan, &model, 1, at_copy) >= 30);
}

#[test]
fn every_allocation_and_copy_of_split_items_may_fail() {
    let dir = fixture("flux_schnell");
    let model = families::open(&dir).expect("a whole model");
    let (job, items) = (JobShape { batch: 3, ..JOB }, Division::Items { counts: vec![2, 1] });
    let plan = divided(&dir, &*model, &job, &[1, 0], items);
    for device in [0, 1] {
        assert!(fail_at_each(&plan, &model, device, at_allocation) >= 2);
        assert!(fail_at_each(&plan, &model, device, at_copy) >= 6);
    }
}

#[test]
fn every_allocation_and_copy_of_a_pipeline_may_fail() {
    let dir = fixture("flux_schnell");
    let model = families::open(&dir).expect("a whole model");
    let graphs = model.graphs(&JOB, &GraphOptions::default()).expect("a possible job");
    let dit = graphs.iter().find(|graph| graph.name == "dit").expect("a DiT");
    let of_dit = dit.variants[0].segments.len() as u32;
    let segments = (0..of_dit).map(|segment| u32::from(segment >= of_dit / 2)).collect();
    let (job, counts) = (JobShape { batch: 3, ..JOB }, vec![1, 1, 1]);
    let plan = divided(&dir, &*model, &job, &[1, 0], Division::Pipeline { segments, counts });
    for device in [0, 1] {
        assert!(fail_at_each(&plan, &model, device, at_allocation) >= 2);
        assert!(fail_at_each(&plan, &model, device, at_copy) >= 6);
    }
}

#[test]
fn memory_that_someone_takes_in_a_phase_is_missing_from_then_on() {
    let dir = fixture("flux_schnell");
    let model = families::open(&dir).expect("a whole model");
    let plan = layers_and_rings(&dir, &*model);
    let expected = plans::run(&plan, &model).expect("a run without faults").pixels;
    let taken = |when: Option<Phase>| {
        let mut plan = plan.clone();
        let free_bytes = plan.devices[1].free_bytes;
        if let DeviceBackend::Virtual { faults, .. } = &mut plan.devices[1].backend {
            (faults.taken_bytes, faults.taken_in) = (free_bytes, when);
        }
        plan
    };
    let none_free = |failure: Failure| match failure.kind {
        FailureKind::OutOfMemory { device, free_bytes, .. } => {
            assert_eq!((device.0.as_str(), free_bytes), ("virtual1", Some(Bytes::ZERO)));
        }
        other => panic!("{other:?}"),
    };
    none_free(plans::load(&taken(None), &model).map(|_| ()).expect_err("before the load"));
    // The device computes in the first two phases: text encoders and a part of the DiT.
    for (phase, fails) in [(Phase::Condition, true), (Phase::Denoise, true), (Phase::Decode, false)]
    {
        let plan = taken(Some(phase));
        let mut runtime = plans::load(&plan, &model).expect("enough for what is resident");
        match plans::paint(&mut runtime) {
            Ok(painted) => {
                assert!(!fails, "{phase}: what was taken is missed");
                assert!(painted.pixels == expected, "{phase}: another picture");
            }
            Err(failure) => {
                assert!(fails, "{phase}: {failure}");
                none_free(failure);
            }
        }
        assert_only_resident(&plan, &runtime, 0);
    }
}

/// A device that fails at its n-th occasion, one that does not, and a host that only feeds them.
fn two_devices(key: &str, at: u32) -> String {
    let device = "[[device]]\nkind = \"virtual\"\ntotal = \"64MiB\"\nlink = \"8GiB/s\"\n";
    format!("name = \"faults\"\n[host]\ncompute = false\n{device}{key} = {at}\n{device}")
}

/// Processes that were started in a home and have not ended.
fn processes_of(home: &Home) -> Vec<String> {
    let within = home.path("tmp").display().to_string();
    let processes = std::fs::read_dir("/proc").expect("Linux");
    let command = |entry: std::io::Result<std::fs::DirEntry>| {
        let bytes = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&bytes).replace('\0', " "))
    };
    processes.filter_map(command).filter(|line| line.contains(&within)).collect()
}

/// Lets the first device fail at each of its occasions, through planner and executor; returns how
/// many there were.
fn each_ends_well(key: &str, more: &[&str]) -> u32 {
    let home = Home::new();
    let profile = home.path("faults.toml");
    let arguments =
        ["generate", "--host", "faults.toml", "--prompt", "a red circle", "--seed", "3"];
    let shape = ["--steps", "1", "--output", "picture.png", "--json"];
    let arguments = [&arguments[..], &shape, more].concat();
    let picture = home.path("picture.png");
    std::fs::write(&profile, two_devices(key, 100_000)).unwrap();
    // What one run learns of the devices' speeds could give the next one another plan.
    let run = || {
        Ended::of(home.berth(&arguments).env("BERTH_STATE_DIR", "").output().expect("it starts"))
    };
    assert_eq!(run().code, Some(0), "{key}");
    let expected = pixels(&picture);
    for at in 1.. {
        let _ = std::fs::remove_file(&picture);
        std::fs::write(&profile, two_devices(key, at)).unwrap();
        let ended = run();
        assert_eq!(processes_of(&home), Vec::<String>::new(), "{key} = {at}");
        if ended.code == Some(0) {
            assert!(pixels(&picture) == expected, "another picture, {key} = {at}");
            if ended.json()["attempts"] == 1 {
                return at - 1;
            }
        } else {
            assert!(!picture.exists(), "{key} = {at}");
            assert!(ended.stderr.contains("virtual0"), "{key} = {at}: {}", ended.stderr);
            assert!(matches!(ended.code, Some(1 | 2)), "{key} = {at}: {}", ended.stderr);
        }
        let left: Vec<String> = home.files();
        let known = ["cache", "faults.toml", "picture.png", "tmp"];
        assert!(left.iter().all(|name| known.contains(&name.as_str())), "{left:?}");
    }
    unreachable!("a run without faults ends the loop")
}

#[test]
fn every_fault_leads_to_a_safer_plan_or_a_typed_reason() {
    // Nothing is said: the planner is free to go to the other device.
    assert!(each_ends_well("fail_allocation", &[]) >= 1);
    // Each component's weights are an allocation of their own, and so is each phase's arena.
    assert!(each_ends_well("fail_allocation", &["--params-backend", "all=device"]) >= 6);
    // Streamed on the device by hand: there may be nothing but a reason to give.
    let by_hand = ["--backend", "dit=virtual0", "--params-backend", "dit=cpu"];
    assert!(each_ends_well("fail_allocation", &by_hand) >= 1);
    assert!(each_ends_well("fail_copy", &by_hand) >= 8);
}
