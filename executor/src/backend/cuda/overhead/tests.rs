//! The meter on a made-up NVML, compiled with the system's C compiler as the tests of the GPU
//! detection do it.

use std::process::Command;

use tempfile::TempDir;

use super::*;

/// One GPU of 8 GiB, of which this process has 700 MiB once it was asked twice for what is free.
const SOURCE: &str = r#"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#define MIB(count) ((unsigned long long)(count) << 20)
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long bytes; unsigned gpu, compute; };
static int asked;
int nvmlInit_v2(void) { return 0; }
#ifndef NO_SHUTDOWN
int nvmlShutdown(void) { return 0; }
#endif
int nvmlDeviceGetHandleByUUID(const char *uuid, void **gpu) {
    *gpu = &asked;
    return strcmp(uuid, "GPU-a") == 0 ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo_v2(void *gpu, struct memory_v2 *info) {
    info->total = MIB(8192);
    info->free = MIB(8000 - 900 * (asked++ > 0));
    info->used = info->total - info->free;
    info->reserved = 0;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *count, struct process *list) {
#ifdef NO_PROCESSES
    return 3;
#endif
    if (*count < 3) { *count = 3; return 7; }
    *count = 3;
    memset(list, 0, 3 * sizeof *list);
    list[0].pid = 1;
    list[0].bytes = MIB(200);
    list[1].pid = getpid() + OTHER;
    list[1].bytes = UNTOLD ? ~0ull : MIB(600);
    list[2].pid = getpid() + OTHER;
    list[2].bytes = UNTOLD ? ~0ull : MIB(100);
    return 0;
}
"#;

fn meter(macros: &[&str], uuid: &str) -> (TempDir, Result<Meter, String>) {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvml.so"));
    std::fs::write(&source, SOURCE).expect("a scratch file");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    compiler.args(macros.iter().map(|name| format!("-D{name}")));
    assert!(compiler.status().expect("the C compiler `cc`").success());
    let meter = Meter::start_with(&library, uuid);
    (folder, meter)
}

fn taken(macros: &[&str]) -> ProcessMemory {
    let (_folder, meter) = meter(macros, "GPU-a");
    meter.expect("NVML starts").taken().expect("the GPU answers")
}

#[test]
fn what_nvml_says_of_this_process_counts() {
    let told = taken(&["OTHER=0", "UNTOLD=0"]);
    assert_eq!(told, ProcessMemory { bytes: Bytes::mib(700), source: MemorySource::Process });
}

#[test]
fn else_the_difference_of_what_is_free() {
    let free = ProcessMemory { bytes: Bytes::mib(900), source: MemorySource::Free };
    for macros in [
        &["OTHER=1", "UNTOLD=0"],
        &["OTHER=0", "UNTOLD=1"],
        &["OTHER=0", "UNTOLD=0 -DNO_PROCESSES"],
    ] {
        let macros: Vec<&str> = macros.iter().flat_map(|text| text.split(" -D")).collect();
        assert_eq!(taken(&macros), free, "{macros:?}");
    }
}

#[test]
fn without_nvml_there_is_a_reason() {
    let absent = Meter::start_with(Path::new("libberth-no-such-nvml.so.1"), "GPU-a");
    let absent = absent.err().expect("no library");
    assert!(absent.starts_with("NVML does not start"), "{absent}");
    let sized = ["OTHER=0", "UNTOLD=0"];
    let (_folder, unknown) = meter(&sized, "GPU-b");
    assert!(unknown.err().expect("no such GPU").starts_with("GPU-b: "));
    let (_folder, incomplete) = meter(&[sized.as_slice(), &["NO_SHUTDOWN"]].concat(), "GPU-a");
    assert!(incomplete.err().expect("no whole library").contains("no complete NVML"));
}
