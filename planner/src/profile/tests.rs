//! Each shipped profile loads; each kind of wrong file is refused with its line and key.

use std::fs;

use protocol::profile::{Work, WorkKind};
use protocol::{Phase, StorageType};

use super::*;
use crate::inventory::efficiency::{
    ATTENTION, BLOCK_PRODUCTS, CONVOLUTION, HALF_PRODUCTS, INTEGER_PRODUCTS,
};
use crate::inventory::tests::host_of;
use crate::inventory::{HostFacts, Rate};

#[test]
fn every_shipped_profile_loads_and_is_named_as_its_file() {
    for name in shipped::names() {
        let profile = Profile::load(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(profile.name, name);
        assert!(profile.description.ends_with('.'), "{name}: a description is a sentence");
        let path = format!("{}/../profiles/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(Profile::load(&path).expect("the file itself"), profile, "{name}");
    }
}

/// Plans for imagined hosts are the same wherever they are made.
#[test]
fn an_imagined_host_has_nothing_of_this_machine() {
    let plain = host_of(Bytes::gib(16), Bytes::gib(12));
    let mut other = host_of(Bytes::gib(4), Bytes::gib(1));
    other.name = "other".to_owned();
    other.cpu = "Other CPU".to_owned();
    (other.cores, other.compute, other.page_cache) = (2, false, true);
    other.cgroup_limit_bytes = Some(Bytes::gib(2));
    other.speeds = other.speeds.scaled(0.1);
    other.storage_bytes_per_s = Rate::measured(1e6);
    other.page_cache_bytes_per_s = Rate::measured(1e6);
    let here = ["this-machine", "two-on-one-gpu", "virtual-1x64m", "virtual-2x2g"];
    let imagined: Vec<&str> =
        shipped::names().into_iter().filter(|name| !here.contains(name)).collect();
    assert_eq!(imagined.len(), 8);
    for name in imagined {
        let profile = Profile::load(name).expect("shipped");
        let on = |host: &HostFacts| profile.inventory_on(host);
        assert_eq!(on(&plain), on(&other), "{name}");
        assert!(!profile.memory_is_here(), "{name}");
    }
}

#[test]
fn every_profile_of_the_folder_is_shipped() {
    let folder = format!("{}/../profiles", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<String> = fs::read_dir(folder)
        .expect("the profiles' folder")
        .filter_map(|entry| entry.expect("a readable folder").file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".toml").map(str::to_owned))
        .collect();
    files.sort();
    assert_eq!(files, shipped::names());
}

#[test]
fn the_example_of_the_readme_is_a_profile() {
    let readme = include_str!("../../../profiles/README.md");
    let (_, rest) = readme.split_once("```toml\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("its end");
    let profile = Profile::parse(example, "README.md").expect("a good example");
    assert!(matches!(&profile.devices, ProfileDevices::Listed(devices) if devices.len() == 2));
    assert_eq!(profile.policy.max_vram.as_deref(), Some("cuda0=7"));
    for key in KEYS {
        assert!(readme.contains(&format!("`{key}`")), "the README does not describe `{key}`");
    }
}

/// Each key of the format and its sections, for the README's test.
const KEYS: [&str; 50] = [
    "name",
    "description",
    "devices",
    "memory",
    "available",
    "cores",
    "cpu",
    "compute",
    "flops",
    "memory_bandwidth",
    "storage_bandwidth",
    "kind",
    "total",
    "used_by_others",
    "link",
    "half_flops",
    "integer_flops",
    "integrated",
    "overhead",
    "uuid",
    "ordinal",
    "pinned",
    "fail_allocation",
    "fail_copy",
    "taken",
    "taken_in",
    "speed",
    "threads",
    "rates",
    "page_cache_bandwidth",
    "unsupported",
    "max_vram",
    "max_ram",
    "max_pinned",
    "allow",
    "forbid",
    "optimize",
    "margin",
    "backend",
    "params_backend",
    "split_mode",
    "lookahead",
    "vae_tile",
    "mmap_policy",
    "lora",
    "no_prefetch",
    "exact_matmul",
    "[host]",
    "[[device]]",
    "[policy]",
];

/// A profile with one virtual device, whose keys follow from line 3 on.
fn with_device(keys: &str) -> String {
    format!("name = \"t\"\n[[device]]\n{keys}")
}

/// A good device that ends in `more`, which is line 6.
fn with_key(kind: &str, more: &str) -> String {
    with_device(&format!("kind = \"{kind}\"\ntotal = \"2GiB\"\nlink = \"1GiB/s\"\n{more}\n"))
}

/// A policy of one key, which is line 3.
fn with_policy(key: &str) -> String {
    format!("name = \"t\"\n[policy]\n{key}\n")
}

fn many_operations() -> String {
    format!("unsupported = [{}]", "\"Conv2d\", ".repeat(65))
}

#[test]
fn a_policy_is_kept_as_it_would_be_written() {
    let text = r#"
name = "t"
[[device]]
kind = "virtual"
total = "2GiB"
link = "1GiB/s"
fail_copy = 7
taken = "5MiB"
margin = "64MiB"
taken_in = "denoise"
unsupported = ["Conv2d", "GroupNorm"]
[policy]
backend = "dit=virtual0&cpu"
params_backend = "dit=cpu"
split_mode = "layer"
lookahead = "dit=3"
vae_tile = "64:0.5"
mmap_policy = "drop"
lora = ["a.safetensors:0.5", "b:c"]
no_prefetch = true
exact_matmul = true
max_vram = "8,virtual0=1"
max_pinned = "1GiB"
margin = "0,host=2"
allow = "dit=virtual0&host"
forbid = "vae=host"
"#;
    let Profile { policy, devices, .. } = Profile::parse(text, "t").expect("a good profile");
    let ProfileDevices::Listed(devices) = devices else { panic!("one is listed") };
    let device = &devices[0];
    assert_eq!((device.faults.fail_copy, device.faults.taken_bytes), (Some(7), Bytes::mib(5)));
    assert_eq!(device.margin_bytes, Some(Bytes::mib(64)));
    assert_eq!(device.faults.taken_in, Some(Phase::Denoise));
    assert_eq!(device.unsupported, ["Conv2d", "GroupNorm"]);
    let text = |text: &str| Some(text.to_owned());
    let expected = PolicyText {
        backend: text("dit=virtual0&cpu"),
        params_backend: text("dit=cpu"),
        split_mode: text("layer"),
        lookahead: text("dit=3"),
        vae_tile: text("64:0.5"),
        mmap_policy: text("drop"),
        max_vram: text("8,virtual0=1"),
        max_pinned: text("1GiB"),
        margin: text("0,host=2"),
        allow: text("dit=virtual0&host"),
        forbid: text("vae=host"),
        lora: Some(vec!["a.safetensors:0.5".to_owned(), "b:c".to_owned()]),
        no_prefetch: Some(true),
        exact_matmul: Some(true),
        ..PolicyText::default()
    };
    assert_eq!(policy, expected);
    // A flag replaces the whole of its key, and no other.
    let flags = PolicyText { backend: text("vae=cpu"), ..PolicyText::default() };
    assert_eq!(flags.over(&policy), PolicyText { backend: text("vae=cpu"), ..expected });
}

#[test]
fn a_slow_device_has_a_part_of_the_hosts_speeds_but_for_those_declared() {
    let host = HostFacts::of_this_machine().expect("this machine has memory");
    let device = |keys: &str| {
        let profile = Profile::parse(&with_key("virtual", keys), "t").expect("a good profile");
        profile.inventory_on(&host).devices.remove(0)
    };
    assert_eq!(device("").speed, 1.0);
    assert_eq!(device("").speeds, host.speeds.scaled(1.0));
    let slow = device("speed = 0.25");
    assert_eq!((slow.speed, slow.speeds), (0.25, host.speeds.scaled(0.25)));
    let own = device("threads = 1");
    assert_eq!(own.threads, Some(1));
    assert_eq!(own.speeds, host.virtual_speeds(1.0, Some(1)));
    let (cores, flops) = (host.cores as f64, host.speeds.f32_flops_per_s.value);
    assert_eq!(own.speeds.f32_flops_per_s, Rate::assumed(flops / cores));
    assert_eq!(own.speeds.starts_per_s, host.speeds.starts_per_s);
    let half = device("threads = 1\nspeed = 0.5").speeds;
    assert_eq!(half.f32_flops_per_s, Rate::assumed(flops / cores * 0.5));
    let declared = device("speed = 0.25\nflops = \"3GFLOP/s\"").speeds;
    assert_eq!(declared.f32_flops_per_s, Rate::declared(3e9));
    let memory = host.speeds.memory_bytes_per_s.value * 0.25;
    assert_eq!(declared.memory_bytes_per_s, Rate::assumed(memory));
}

#[test]
fn what_is_wrong_is_named_with_line_and_key() {
    let cases = [
        (String::new(), 1, None, "missing field `name`"),
        ("name = \" \"".to_owned(), 1, Some("name"), "empty name"),
        ("name = \"t\"\ncolour = 3".to_owned(), 2, Some("colour"), "unknown field `colour`"),
        ("name = \"t\"\n[host]\nmemory = 5".to_owned(), 3, Some("memory"), "invalid type: integer"),
        ("name = \"t\"\n[host]\nmemory = \"0GiB\"".to_owned(), 3, Some("memory"), "size of zero"),
        (
            "name = \"t\"\n[host]\nmemory = \"lots\"".to_owned(),
            3,
            Some("memory"),
            "`lots` is no size",
        ),
        (
            "name = \"t\"\n[host]\ncores = 0".to_owned(),
            3,
            Some("cores"),
            "0 is not within 1 to 1024",
        ),
        ("name = \"t\"\n[host]\ncores = -1".to_owned(), 3, Some("cores"), "-1"),
        ("name = \"t\"\n[host]\nflops = \"9TB/s\"".to_owned(), 3, Some("flops"), "not a rate"),
        (
            "name = \"t\"\n[host]\nmemory = \"4GiB\"\navailable = \"5GiB\"".to_owned(),
            4,
            Some("available"),
            "more than the memory, 4.00 GiB",
        ),
        (
            "name = \"t\"\ndevices = \"some\"".to_owned(),
            2,
            Some("devices"),
            "unknown variant `some`",
        ),
        ("name = \"t\"\n[host]\nname = \"x\"".to_owned(), 3, Some("name"), "unknown field"),
        ("name = \"t\"\nname = \"u\"".to_owned(), 2, Some("name"), "duplicate key"),
        ("name = ".to_owned(), 1, Some("name"), ""),
        (with_device("kind = \"rocm\""), 3, Some("kind"), "unknown variant `rocm`"),
        (with_device("kind = \"virtual\"\nlink = \"1B/s\""), 2, None, "missing field `total`"),
        (with_device("kind = \"virtual\"\ntotal = \"1B\""), 2, None, "missing field `link`"),
        (with_device("kind = \"virtual\"\ntotal = \"0B\""), 4, Some("total"), "size of zero"),
        (
            with_device("kind = \"virtual\"\ntotal = \"1B\"\nlink = \"0B/s\""),
            5,
            Some("link"),
            "rate of zero",
        ),
        (with_key("virtual", "used_by_others = \"3GiB\""), 6, Some("used_by_others"), "more than"),
        (with_key("virtual", "overhead = \"2GiB\""), 6, Some("overhead"), "not below"),
        (with_key("virtual", "ordinal = 0"), 6, Some("ordinal"), "only a cuda device"),
        (with_key("cuda", "ordinal = -1"), 6, Some("ordinal"), "-1"),
        (with_key("cuda", "ordinal = 0\nuuid = \"GPU-1\""), 6, Some("ordinal"), "beside a uuid"),
        (with_key("virtual", "pinned = \"1KiB\""), 6, Some("pinned"), "not between 64.0 KiB and"),
        (with_key("cuda", "ordinal = 0\npinned = \"2GiB\""), 7, Some("pinned"), "not between"),
        (with_key("virtual", "fail_allocation = 0"), 6, Some("fail_allocation"), "from 1"),
        (with_key("cuda", "fail_allocation = 1"), 6, Some("fail_allocation"), "only a virtual"),
        (with_key("cuda", "memory_bandwidth = \"1GB/s\""), 2, None, "needs `flops`"),
        (with_key("cuda", "flops = \"1TFLOP/s\""), 2, None, "needs `memory_bandwidth`"),
        (format!("devices = \"detect\"\n{}", with_key("virtual", "")), 3, None, "beside"),
        ("name = \"t\"\n[policy]\nmax_vram = \"0\"".to_owned(), 3, Some("max_vram"), "budget of 0"),
        (
            "name = \"t\"\n[policy]\nmax_ram = \"a=1\"".to_owned(),
            3,
            Some("max_ram"),
            "not an amount",
        ),
        ("name = \"t\"\n[policy]\nmargin = \"-1\"".to_owned(), 3, Some("margin"), "not an amount"),
        ("name = \"t\"\n[policy]\noptimize = \"fun\"".to_owned(), 3, Some("optimize"), "latency"),
        (with_key("virtual", "fail_copy = 0"), 6, Some("fail_copy"), "copies are counted from 1"),
        (with_key("cuda", "fail_copy = 1"), 6, Some("fail_copy"), "only a virtual"),
        (with_key("cuda", "taken = \"1MiB\""), 6, Some("taken"), "only a virtual"),
        (with_key("virtual", "taken = \"3GiB\""), 6, Some("taken"), "more than the device's total"),
        (with_key("cuda", "taken_in = \"decode\""), 6, Some("taken_in"), "only a virtual"),
        (
            with_key("virtual", "taken_in = \"decode\""),
            6,
            Some("taken_in"),
            "`taken` says how much",
        ),
        (
            with_key("virtual", "taken_in = \"night\""),
            6,
            Some("taken_in"),
            "unknown variant `night`",
        ),
        (
            with_key("virtual", "taken_in = \"load\"\ntaken = \"1MiB\""),
            6,
            Some("taken_in"),
            "no phase of a job",
        ),
        (with_key("virtual", "speed = 0"), 6, Some("speed"), "not between 0.001 and 1"),
        (with_key("virtual", "speed = 1.5"), 6, Some("speed"), "not between 0.001 and 1"),
        (with_key("virtual", "speed = nan"), 6, Some("speed"), "not between 0.001 and 1"),
        (with_key("cuda", "speed = 0.5"), 6, Some("speed"), "only a virtual"),
        (with_key("virtual", "threads = 0"), 6, Some("threads"), "not between 1 and 1024"),
        (with_key("virtual", "threads = 1025"), 6, Some("threads"), "not between 1 and 1024"),
        (with_key("virtual", "rates = \"datasheet\""), 6, Some("rates"), "no virtual device"),
        (with_key("cuda", "rates = \"guessed\""), 6, Some("rates"), "unknown variant `guessed`"),
        (with_key("cuda", "threads = 1"), 6, Some("threads"), "only a virtual"),
        (with_key("cuda", "unsupported = []"), 6, Some("unsupported"), "only a virtual"),
        (with_key("virtual", "unsupported = \"Conv2d\""), 6, Some("unsupported"), "invalid type"),
        (
            with_key("virtual", &many_operations()),
            6,
            Some("unsupported"),
            "more than 64 operations",
        ),
        (with_key("virtual", "margin = \"-1\""), 6, Some("margin"), "not an amount"),
        (with_policy("margin = \"cuda0=1,5\""), 3, Some("margin"), "names no device"),
        (with_policy("max_vram = \"host=1\""), 3, Some("max_vram"), "--max-ram limits"),
        (with_policy("max_pinned = \"-1\""), 3, Some("max_pinned"), "not a fixed limit"),
        (with_policy("allow = \"dit=\""), 3, Some("allow"), "has no name"),
        (with_policy("forbid = \"=cpu\""), 3, Some("forbid"), "names no component"),
        (with_policy("backend = \"dit=\""), 3, Some("backend"), "has no name"),
        (
            with_policy("params_backend = \"x\""),
            3,
            Some("params_backend"),
            "not a place for weights",
        ),
        (with_policy("split_mode = \"x\""), 3, Some("split_mode"), "not a way to split"),
        (with_policy("lookahead = \"0\""), 3, Some("lookahead"), "not within 1 to 64"),
        (with_policy("lookahead = 2"), 3, Some("lookahead"), "invalid type: integer"),
        (with_policy("vae_tile = \"x\""), 3, Some("vae_tile"), "is not a tile size"),
        (with_policy("mmap_policy = \"x\""), 3, Some("mmap_policy"), "keep, sequential, drop"),
        (with_policy("lora = \"a\""), 3, Some("lora"), "invalid type: string"),
        (with_policy("lora = [\":1\"]"), 3, Some("lora"), "names no LoRA file"),
        (with_policy("no_prefetch = 1"), 3, Some("no_prefetch"), "invalid type: integer"),
    ];
    for (text, expected_line, expected_key, expected_message) in cases {
        match Profile::parse(&text, "some.toml") {
            Err(ProfileError::Invalid { origin, line, key, message }) => {
                assert_eq!(origin, "some.toml");
                assert_eq!(
                    (line, key.as_deref()),
                    (expected_line, expected_key),
                    "{text}\n{message}"
                );
                assert!(message.contains(expected_message), "{text}\n{message}");
            }
            other => panic!("{text}\n{other:?}"),
        }
    }
    let error = Profile::parse(&with_key("virtual", "overhead = \"x\""), "some.toml");
    let error = error.expect_err("no size").to_string();
    assert!(error.starts_with("some.toml:6: `overhead`: `x` is no size; hint:"), "{error}");
}

#[test]
fn hostile_files_are_refused_in_few_words() {
    for text in [
        format!("name = {}", "[".repeat(200_000)),
        format!("name = {}", "{a=".repeat(200_000)),
        format!("{}name = 1", "a.".repeat(200_000)),
        format!("name = \"t\"\ndevices = \"{}\"", "x".repeat(900_000)),
        format!("name = \"t\"\n{} = 1", "y".repeat(900_000)),
    ] {
        let error = Profile::parse(&text, "t").expect_err("no profile").to_string();
        assert!(error.len() < 1000, "an error of {} bytes", error.len());
    }
}

#[test]
fn devices_are_counted_before_they_are_believed() {
    let many = |count: usize| {
        let device = "[[device]]\nkind = \"virtual\"\ntotal = \"1MiB\"\nlink = \"1MB/s\"\n";
        format!("name = \"t\"\n{}", device.repeat(count))
    };
    assert!(Profile::parse(&many(DEVICES_MAX), "t").is_ok());
    let error = Profile::parse(&many(DEVICES_MAX + 1), "t").expect_err("too many").to_string();
    assert!(error.contains("more than 16 devices"), "{error}");
}

#[test]
fn files_that_cannot_be_read_are_errors_that_name_them() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let path = |name: &str| folder.path().join(name).display().to_string();
    fs::write(path("large.toml"), vec![b'#'; FILE_BYTES_MAX.as_usize() + 1]).expect("scratch file");
    fs::write(path("binary.toml"), [0xff, 0xfe]).expect("scratch file");
    fs::write(path("good.toml"), "name = \"good\"").expect("scratch file");
    for (argument, expected) in [
        (path("large.toml"), "larger than 1.00 MiB"),
        (path("binary.toml"), "UTF-8"),
        (path("absent.toml"), "cannot read the host profile"),
        (path(""), "not a regular file"),
        ("virtual-9x9g".to_owned(), "hint: give a path, or one of 2x-rtx-3090-24g, "),
        (String::new(), "no host profile ``"),
    ] {
        let error = Profile::load(&argument).expect_err(&argument).to_string();
        assert!(error.contains(expected), "{argument}: {error}");
    }
    assert_eq!(Profile::load(&path("good.toml")).expect("a good file").name, "good");
}

#[test]
fn threads_that_the_machine_lacks_are_told_of_the_device_that_finds_none_left() {
    let host = HostFacts { cores: 3, ..HostFacts::of_this_machine().expect("it has memory") };
    let device = |threads: &str| {
        format!("[[device]]\nkind = \"virtual\"\ntotal = \"1GiB\"\nlink = \"1GB/s\"\n{threads}\n")
    };
    let of = |cores: &str| {
        let devices = ["threads = 2", "", "threads = 1", "threads = 1"].map(device).concat();
        let text = format!("name = \"t\"\n[host]\n{cores}\n{devices}");
        let devices =
            Profile::parse(&text, "t").expect("a good profile").inventory_on(&host).devices;
        devices.into_iter().map(|device| device.missing).collect::<Vec<_>>()
    };
    let why = |left| {
        let why = "it has 1 thread of its own, and the devices before it leave";
        Some(format!("{why} {left} cores"))
    };
    assert_eq!(of(""), [None, None, None, why("0 of 3")]);
    // A machine of more cores, which is not this one.
    assert_eq!(of("cores = 8"), [None, None, None, why("0 of 3")]);
    assert_eq!(of("cores = 2"), [None, None, why("0 of 2"), why("0 of 2")]);
}

#[test]
fn a_datasheet_is_counted_with_in_part_and_a_declared_rate_whole() {
    let host = HostFacts::of_this_machine().expect("this machine has memory");
    let work = |kind| Work { kind, operations: 0, flops: 1e12, moved_bytes: Bytes::ZERO };
    let seconds = |name: &str, rates: &str, kind| {
        let text = shipped::text(name).expect("a shipped profile").replace("datasheet\"", rates);
        let profile = Profile::parse(&text, name).expect("a good profile");
        profile.inventory_on(&host).devices[0].speeds.seconds(&work(kind))
    };
    for (kind, part) in [
        (WorkKind::Matmul(StorageType::BF16), HALF_PRODUCTS.part),
        (WorkKind::Matmul(StorageType::IQ4XS), BLOCK_PRODUCTS.part),
        (WorkKind::Matmul(StorageType::Q8_0), INTEGER_PRODUCTS.part),
        (WorkKind::Matmul(StorageType::F8E4M3), INTEGER_PRODUCTS.part),
        (WorkKind::Matmul(StorageType::Q2K), INTEGER_PRODUCTS.part),
        (WorkKind::Attention, ATTENTION.part),
        (WorkKind::Convolution, CONVOLUTION.part),
    ] {
        let of_sheet = seconds("rtx-4090-24g", "datasheet\"", kind);
        let declared = seconds("rtx-4090-24g", "declared\"", kind);
        assert!((declared / of_sheet - part).abs() < 1e-9, "{declared} s of {of_sheet} s");
    }
    for name in shipped::names() {
        let inventory = Profile::load(name).expect("a good profile").inventory_on(&host);
        let gpus = inventory.devices.iter().filter(|device| device.kind == DeviceKind::Cuda);
        for device in gpus.filter(|_| name != "two-on-one-gpu") {
            assert_eq!(device.speeds.half_flops_per_s.source, Source::Datasheet, "{name}");
        }
    }
}

#[test]
fn what_is_streamed_from_ram_is_as_fast_as_the_page_cache_is_said_to_be() {
    let host = HostFacts::of_this_machine().expect("this machine has memory");
    let rate = |keys: &str| {
        let text = format!("name = \"t\"\n[host]\n{keys}\n");
        let inventory = Profile::parse(&text, "t").expect("a good profile").inventory_on(&host);
        inventory.host.page_cache_bytes_per_s
    };
    assert_eq!(rate(""), host.page_cache_bytes_per_s);
    assert_eq!(rate("memory_bandwidth = \"4GB/s\""), Rate::assumed(4e9));
    assert_eq!(rate("memory_bandwidth = \"80GB/s\""), Rate::assumed(1e10));
    let declared = "memory_bandwidth = \"80GB/s\"\npage_cache_bandwidth = \"21GB/s\"";
    assert_eq!(rate(declared), Rate::declared(21e9));
}
