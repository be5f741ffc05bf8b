//! The registry in made-up directories: who counts, who is left over, and what is taken off.

use protocol::plan::{ComponentPlan, DevicePlan, HostPlan, MappingPolicy, PartPlan, SCHEMA};
use protocol::{
    DeviceId, Division, Faults, GraphOptions, JobShape, ModelSource, Phase, PredictedMs, Residency,
};
use tempfile::TempDir;

use super::*;
use crate::inventory::tests::{device_of, host_of};

fn peaks(host: u64, devices: &[(&str, u64)]) -> Peaks {
    let devices = devices.iter().map(|(uuid, gib)| ((*uuid).to_owned(), Bytes::gib(*gib)));
    let peak = SpokenFor { host: Bytes::gib(host), devices: devices.collect() };
    Peaks { pid: 7, peak, idle: None }
}

/// The same of an executor that takes turns with others, and holds so much between its jobs.
fn in_turns(peak: Peaks, idle: Peaks) -> Peaks {
    Peaks { idle: Some(idle.peak), ..peak }
}

fn registry() -> TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

fn names(registry: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(registry.path()).expect("the registry").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A machine with 16 GiB, 12 of them available, a GPU of 8 GiB, an integrated and a virtual device.
fn machine() -> Inventory {
    let gpu = |id: &str, uuid: &str, integrated| crate::inventory::Device {
        uuid: Some(uuid.to_owned()),
        integrated,
        ..device_of(id, Bytes::gib(8), Bytes::gib(7))
    };
    let mut virtual_device = device_of("virtual0", Bytes::gib(8), Bytes::gib(8));
    virtual_device.uuid = Some("GPU-a".to_owned());
    Inventory {
        source: "test".to_owned(),
        host: host_of(Bytes::gib(16), Bytes::gib(12)),
        devices: vec![gpu("cuda0", "GPU-a", false), gpu("cuda1", "GPU-b", true), virtual_device],
        why_no_devices: None,
    }
}

/// What is free of the host and of each device, in GiB.
fn free(others: &OtherReservations, host_is_here: bool) -> (u64, Vec<u64>) {
    let mut machine = machine();
    others.take_from(&mut machine, host_is_here);
    let gib = |bytes: Bytes| bytes.0 >> 30;
    let devices = machine.devices.iter().map(|device| gib(device.free_bytes)).collect();
    (gib(machine.host.available_bytes), devices)
}

/// A plan whose one component is on the first `used` of these devices, each with its peak in GiB.
fn plan(devices: &[(DeviceBackend, bool, u64)], used: usize) -> Plan {
    let id = |index: usize| DeviceId(format!("device{index}"));
    let part = |index| PartPlan {
        device: id(index),
        resident_bytes: Bytes::ZERO,
        lazy_bytes: Bytes::ZERO,
        slot_bytes: Bytes::ZERO,
        slots: 0,
        compute_bytes: Bytes::ZERO,
    };
    let device =
        |(index, (backend, integrated, gib)): (usize, &(DeviceBackend, bool, u64))| DevicePlan {
            id: id(index),
            name: String::new(),
            backend: backend.clone(),
            integrated: *integrated,
            total_bytes: Bytes::gib(64),
            free_bytes: Bytes::gib(64),
            budget_bytes: Bytes::gib(64),
            overhead_bytes: Bytes::ZERO,
            overhead_source: String::new(),
            pinned_bytes: Bytes::ZERO,
            phases: Vec::new(),
            peak_bytes: Bytes::gib(*gib),
            idle_bytes: Bytes::ZERO,
        };
    Plan {
        schema: SCHEMA,
        generation: 1,
        keeps_weights_of: None,
        model: ModelSource::default(),
        family: String::new(),
        job: JobShape {
            width: 16,
            height: 16,
            steps: 1,
            max_sequence_length: 1,
            ..JobShape::small()
        },
        options: GraphOptions::default(),
        mapping_policy: MappingPolicy::Keep,
        components: vec![ComponentPlan {
            name: String::new(),
            phase: Phase::Denoise,
            devices: (0..used).map(id).collect(),
            division: Division::Layer { segments: Vec::new() },
            residency: Residency::Resident,
            lookahead: 0,
            prefetch: false,
            predicted_load_ms: 0.0,
            predicted_compute_ms: 0.0,
            parts: (0..used).map(part).collect(),
            segments: Vec::new(),
            weights_bytes: Bytes::ZERO,
            tensor_bytes: Bytes::ZERO,
            reason: String::new(),
        }],
        devices: devices.iter().enumerate().map(device).collect(),
        host: HostPlan {
            budget_bytes: Bytes::ZERO,
            pool_bytes: Bytes::ZERO,
            peak_bytes: Bytes::gib(1),
            idle_bytes: Bytes::ZERO,
            pinned_bytes: Bytes::ZERO,
            locked_bytes: Bytes::ZERO,
            changed_bytes: Bytes::ZERO,
            mapped_bytes: Bytes::ZERO,
            threads: 1,
            job_bytes: Bytes::ZERO,
            phases: Vec::new(),
        },
        predicted_ms: PredictedMs::default(),
    }
}

#[test]
fn a_plan_speaks_for_the_memory_in_which_its_devices_are() {
    let gpu = |uuid: Option<&str>| DeviceBackend::Cuda {
        uuid: uuid.map(str::to_owned),
        unsupported: Vec::new(),
    };
    let simulated = DeviceBackend::Virtual {
        link_bytes_per_s: 1e9,
        faults: Faults::default(),
        speed: 1.0,
        threads: None,
        unsupported: Vec::new(),
    };
    let devices = [
        (gpu(Some("GPU-a")), false, 3),
        (gpu(Some("GPU-b")), true, 5),
        (simulated, false, 7),
        (gpu(None), false, 11),
        (gpu(Some("GPU-c")), false, 13),
    ];
    // An integrated GPU and a virtual device take of the host; a GPU that has no lasting name is
    // nobody's.
    let of = |used| Peaks::of(&plan(&devices, used), Turns::None);
    let expected =
        |host, devices: &[(&str, u64)]| Peaks { pid: std::process::id(), ..peaks(host, devices) };
    assert_eq!(of(0), expected(1, &[]));
    assert_eq!(of(1), expected(1, &[("GPU-a", 3)]));
    assert_eq!(of(4), expected(1 + 5 + 7, &[("GPU-a", 3)]));
    assert_eq!(of(5), expected(1 + 5 + 7, &[("GPU-a", 3), ("GPU-c", 13)]));
}

#[test]
fn plans_of_others_add_up_and_ones_own_do_not_count() {
    let registry = registry();
    let first = write(registry.path(), "1-a-", &peaks(2, &[("GPU-a", 3)])).expect("written");
    let second = write(registry.path(), "2-b-", &peaks(4, &[("GPU-a", 2), ("GPU-c", 1)]));
    let second = second.expect("written");
    let own = write(registry.path(), "3-c-", &peaks(1, &[("GPU-a", 1)])).expect("written");
    let others = OtherReservations::read(registry.path(), &|path| path == own.1);
    let sum =
        BTreeMap::from([("GPU-a".to_owned(), Bytes::gib(5)), ("GPU-c".to_owned(), Bytes::gib(1))]);
    assert_eq!(others.0, SpokenFor { host: Bytes::gib(6), devices: sum });
    // 16 less 6 of the host; 8 less 5 of the GPU; the integrated one has the host's; the virtual
    // one its own.
    assert_eq!(free(&others, true), (10, vec![3, 7, 8]));
    // The memory of another host is not spoken for here.
    assert_eq!(free(&others, false), (12, vec![3, 7, 8]));
    drop((first, second, own));
}

#[test]
fn what_the_system_reports_counts_where_it_is_less() {
    let others = |host, gpu| OtherReservations(peaks(host, &[("GPU-a", gpu)]).peak);
    assert_eq!(free(&others(0, 0), true), (12, vec![7, 7, 8]));
    assert_eq!(free(&others(4, 1), true), (12, vec![7, 7, 8]));
    assert_eq!(free(&others(10, 2), true), (6, vec![6, 6, 8]));
    assert_eq!(free(&others(99, 99), true), (0, vec![0, 0, 8]));
}

#[test]
fn what_is_left_over_is_removed_and_the_rest_is_left_alone() {
    let registry = registry();
    let (file, path) = write(registry.path(), "1-a-", &peaks(2, &[])).expect("written");
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("1-a-") && names(&registry) == [name]);
    assert_eq!(OtherReservations::read(registry.path(), &nobodys).0.host, Bytes::gib(2));
    // As when the process ends without a word: its lock goes, the file stays.
    drop(file);
    assert!(path.exists());
    fs::write(registry.path().join("x.part"), "").expect("scratch file");
    assert_eq!(OtherReservations::read(registry.path(), &nobodys), OtherReservations::default());
    assert_eq!(names(&registry), ["x.part"]);
    assert_eq!(
        OtherReservations::read(&registry.path().join("absent"), &nobodys),
        OtherReservations::default()
    );
}

#[test]
fn nonsense_that_is_held_counts_for_nothing() {
    let registry = registry();
    let mut held = Vec::new();
    for (name, text) in [
        ("a.toml", "pid = 1\nhost = -5".to_owned()),
        ("b.toml", String::new()),
        ("c.toml", format!("pid = 1\nhost = 5\nx = \"{}\"", "y".repeat(1 << 17))),
    ] {
        let path = registry.path().join(name);
        fs::write(&path, text).expect("scratch file");
        let file = File::open(&path).expect("just written");
        flock(&file, FlockOperation::NonBlockingLockExclusive).expect("nobody else has it");
        held.push(file);
    }
    assert_eq!(OtherReservations::read(registry.path(), &nobodys), OtherReservations::default());
    assert_eq!(names(&registry).len(), 3);
    let mut others = peaks(1, &[]).peak;
    others.add(&SpokenFor { host: Bytes(u64::MAX), ..SpokenFor::default() });
    assert_eq!(others.host, Bytes(u64::MAX));
}

#[test]
fn all_that_executors_of_this_process_have_planned_can_be_left_out() {
    let registry = registry();
    let hold = |own: &str| write(registry.path(), own, &peaks(2, &[])).expect("written");
    let held = [hold("1-a-"), hold(OWN.as_str()), hold(OWN.as_str())];
    assert_eq!(OtherReservations::read(registry.path(), &nobodys).0.host, Bytes::gib(6));
    let others = OtherReservations::read(registry.path(), &is_of_this_process);
    assert_eq!(others.0.host, Bytes::gib(2));
    drop(held);
}

/// No file is one's own.
fn nobodys(_: &Path) -> bool {
    false
}

#[test]
fn of_executors_that_take_turns_one_at_a_time_takes_more_than_it_holds() {
    let registry = registry();
    let write = |own: &str, peaks: &Peaks| write(registry.path(), own, peaks).expect("written");
    let one = in_turns(peaks(5, &[("GPU-a", 6)]), peaks(1, &[("GPU-a", 2)]));
    let two = in_turns(peaks(9, &[("GPU-a", 4)]), peaks(3, &[("GPU-a", 3)]));
    let held = [write("1-a-", &one), write("1-a-", &two)];
    let others = OtherReservations::read(registry.path(), &nobodys);
    // They hold 4 and 5, and one of them takes 6 of the host, the other 4 of the GPU beside.
    assert_eq!(others.0, peaks(4 + 6, &[("GPU-a", 5 + 4)]).peak);
    // Another process has turns of its own.
    let other = write("2-b-", &one);
    let others = OtherReservations::read(registry.path(), &nobodys);
    assert_eq!(others.0, peaks(10 + 5, &[("GPU-a", 9 + 6)]).peak);
    drop((held, other));
}
