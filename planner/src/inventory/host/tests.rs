//! Made-up `/proc` and `/sys` trees, read as the host.

use tempfile::TempDir;

use super::*;

const GIB: u64 = 1 << 30;
const MEMINFO: &str = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n\
                       MemAvailable:   12582912 kB\nBuffers:            1024 kB\n";

/// A file tree with `/proc/meminfo` of 16 GiB, 12 of them available, and `files`.
pub fn tree(files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a scratch directory");
    for (path, text) in [("proc/meminfo", MEMINFO)].iter().chain(files) {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().expect("files lie in folders")).expect("scratch folder");
        fs::write(path, text).expect("scratch file");
    }
    root
}

fn read(files: &[(&str, &str)]) -> HostFacts {
    HostFacts::read(tree(files).path(), 8).expect("a readable tree")
}

#[test]
fn a_machine_without_control_groups_has_what_the_kernel_says() {
    let host = read(&[
        ("proc/sys/kernel/hostname", "workstation\n"),
        (
            "proc/cpuinfo",
            "processor\t: 0\nmodel name\t: Some CPU   @ 3.00GHz\n\nmodel name\t: Other\n",
        ),
    ]);
    assert_eq!((host.total_bytes, host.available_bytes), (Bytes::gib(16), Bytes::gib(12)));
    assert_eq!((host.cgroup_limit_bytes, host.cores), (None, 8));
    assert_eq!((host.name.as_str(), host.cpu.as_str()), ("workstation", "Some CPU @ 3.00GHz"));
    assert!(host.compute);
}

#[test]
fn names_that_are_missing_have_stand_ins() {
    let host = read(&[("proc/cpuinfo", "processor\t: 0\nBogoMIPS\t: 50.00\n")]);
    assert_eq!(host.name, "host");
    assert_eq!(host.cpu, format!("unknown {} CPU", std::env::consts::ARCH));
}

#[test]
fn the_tightest_group_above_the_process_counts() {
    let (four, six, half) = ((4 * GIB).to_string(), (6 * GIB).to_string(), (GIB / 2).to_string());
    let (one, three) = (GIB.to_string(), (3 * GIB).to_string());
    let host = read(&[
        ("proc/self/cgroup", "0::/user.slice/app.scope\n"),
        ("sys/fs/cgroup/user.slice/app.scope/memory.max", &six),
        ("sys/fs/cgroup/user.slice/app.scope/memory.current", &half),
        ("sys/fs/cgroup/user.slice/memory.max", &four),
        ("sys/fs/cgroup/user.slice/memory.current", &three),
        ("sys/fs/cgroup/user.slice/memory.stat", &format!("anon 5\ninactive_file {one}\nx y\n")),
    ]);
    // 4 GiB − (3 GiB used − 1 GiB of droppable cache).
    assert_eq!(host.cgroup_limit_bytes, Some(Bytes::gib(4)));
    assert_eq!(host.available_bytes, Bytes::gib(2));
}

#[test]
fn limits_of_both_versions_are_read() {
    let two = (2 * GIB).to_string();
    /// `/proc/self/cgroup`, files under its mount, the limit and what is available.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<u64>, u64);
    let cases: [Case; 7] = [
        ("0::/\n", &[("memory.max", "max\n")], None, 12 * GIB),
        ("0::/\n", &[("memory.max", &two)], Some(2 * GIB), 2 * GIB),
        ("0::/\n", &[("memory.max", "max"), ("memory.high", &two)], Some(2 * GIB), 2 * GIB),
        // A path outside the container's mount: only the mount itself answers.
        ("0::/../../elsewhere\n", &[("memory.max", &two)], Some(2 * GIB), 2 * GIB),
        (
            "4:cpu,memory:/a\n",
            &[("memory/memory.limit_in_bytes", "9223372036854771712\n")],
            None,
            12 * GIB,
        ),
        (
            "4:memory:/a\n0::/\n",
            &[
                ("memory/a/memory.limit_in_bytes", &two),
                ("memory/a/memory.usage_in_bytes", "1073741824"),
                ("memory/a/memory.stat", "inactive_file 7\ntotal_inactive_file 536870912\n"),
            ],
            Some(2 * GIB),
            2 * GIB - GIB / 2,
        ),
        // More used than the limit, after it was lowered.
        ("0::/\n", &[("memory.max", &two), ("memory.current", "4294967296")], Some(2 * GIB), 0),
    ];
    for (table, files, limit, available) in cases {
        let named: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("sys/fs/cgroup/{path}"), *text)).collect();
        let mut all: Vec<(&str, &str)> =
            named.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        all.push(("proc/self/cgroup", table));
        let host = read(&all);
        assert_eq!(host.cgroup_limit_bytes, limit.map(Bytes), "{table:?} {files:?}");
        assert_eq!(host.available_bytes, Bytes(available), "{table:?} {files:?}");
    }
}

#[test]
fn nonsense_in_the_tree_is_no_limit_and_no_panic() {
    let host = read(&[
        ("proc/self/cgroup", "\n0\n0:\n:::::\n0::/a/b\nx:memory:/q\n"),
        ("sys/fs/cgroup/a/memory.max", "-5\n"),
        ("sys/fs/cgroup/a/b/memory.max", "lots"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", ""),
    ]);
    assert_eq!((host.cgroup_limit_bytes, host.available_bytes), (None, Bytes::gib(12)));
}

#[test]
fn a_tree_without_memory_figures_is_an_error_that_names_the_file() {
    let empty = tempfile::tempdir().expect("a scratch directory");
    let error = HostFacts::read(empty.path(), 1).expect_err("nothing to read").to_string();
    assert!(error.contains("proc/meminfo"), "{error}");
    for (text, field) in [
        ("", "MemTotal"),
        ("MemTotal: 5 kB\n", "MemAvailable"),
        ("MemTotal: five kB\nMemAvailable: 5 kB\n", "MemTotal"),
        ("MemTotal: 18446744073709551615 kB\nMemAvailable: 5 kB\n", "MemTotal"),
        ("MemTotalX: 5 kB\nMemTotal: 5\n", "MemTotal"),
    ] {
        let root = tree(&[("proc/meminfo", text)]);
        let error = HostFacts::read(root.path(), 1).expect_err(text).to_string();
        assert!(error.contains(&format!("`{field}`")), "{text:?}: {error}");
    }
}

#[test]
fn assumed_rates_grow_with_the_cores_and_say_so() {
    use crate::inventory::Source;
    let (one, sixteen) = (assumed_memory_rate(1), assumed_memory_rate(16));
    assert_eq!((one.value, sixteen.value), (10e9, 40e9));
    assert_eq!(assumed_flops(6).value, 6.0 * assumed_flops(1).value);
    assert_eq!(assumed_flops(1).source, Source::Assumed);
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_is_readable() {
    let host = HostFacts::of_this_machine().expect("a Linux host");
    assert!(host.available_bytes <= host.total_bytes);
    assert!(host.available_bytes > Bytes::ZERO && host.cores >= 1);
}
