//! Two processes: what one has planned is not free to the other, until it ends, however it does.

use std::fs::File;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use super::*;
use crate::support::watched::{PATIENCE, Watched};

/// Holds a plan's file in the registry, as another process of Berth would.
fn hold(machine: &Machine, name: &str, text: &str) -> File {
    let path = machine.home.beside("runtime/berth/plans").join(name);
    write(&path, text);
    let file = File::open(path).unwrap();
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    file
}

fn registry(home: &Home) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(home.beside("runtime/berth/plans")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn free(devices: &Value, index: usize) -> u64 {
    devices["devices"][index]["free_bytes"].as_u64().expect("bytes") / MIB
}

#[test]
fn what_another_process_has_planned_is_not_free() {
    let machine = Machine::new();
    let before = machine.devices(&[]);
    let total = before["host"]["total_bytes"].as_u64().unwrap();
    // All of the host but 100 MiB; of the second GPU 10 GiB, of the first less than others use
    // already.
    let text = format!(
        "pid = 1\nhost = {}\n[devices]\nGPU-bbbb0000 = {}\nGPU-aaaa0000 = {MIB}\n",
        total - 100 * MIB,
        10 * GIB
    );
    let held = hold(&machine, "1-a-0.toml", &text);
    let during = machine.devices(&[]);
    assert_eq!((free(&during, 0), free(&during, 1)), (free(&before, 0), 14 * 1024));
    assert_eq!(during["host"]["available_bytes"].as_u64(), Some(100 * MIB));
    assert_eq!(free(&during, 2), 100, "the integrated one has the host's memory");
    // Virtual devices are each process's own, and an imagined host's memory is nobody's.
    let devices = machine.devices(&["--host", "rtx-4090-24g"]);
    assert_eq!(devices["host"]["available_bytes"].as_u64(), Some(56 * GIB));
    assert_eq!(free(&machine.devices(&["--host", "virtual-2x2g"]), 0), 2048);
    // A second one adds up.
    let second = hold(
        &machine,
        "1-b-0.toml",
        &format!("pid = 1\nhost = 0\n[devices]\nGPU-bbbb0000 = {GIB}\n"),
    );
    assert_eq!(free(&machine.devices(&[]), 1), 13 * 1024);
    drop((held, second));
    let after = machine.devices(&[]);
    assert_eq!((free(&after, 0), free(&after, 1)), (free(&before, 0), free(&before, 1)));
    assert_eq!(registry(&machine.home), Vec::<PathBuf>::new());
}

#[test]
fn a_run_speaks_for_its_plan_while_it_lasts() {
    let home = Home::new();
    let profile = "name = \"slow\"\n[host]\ncompute = false\n[[device]]\nkind = \"virtual\"\ntotal = \"64MiB\"\nlink = \"8MiB/s\"\n";
    write(&home.path("slow.toml"), profile);
    let generate = |steps| {
        let prompt = [
            "generate",
            "--host",
            "./slow.toml",
            "--prompt",
            "a circle",
            "--verbose",
            "--steps",
            steps,
        ];
        home.berth(&prompt)
    };
    // Killed, it leaves its file; the next one to look removes it.
    let mut killed = Watched::start(generate("200"));
    let executor = killed.executor();
    killed.line("berth: denoise 2/200");
    let files = registry(&home);
    let [file] = files.as_slice() else { panic!("one plan is held: {files:?}") };
    let held: toml::Table = std::fs::read_to_string(file).unwrap().parse().expect("TOML");
    assert_eq!(held["pid"].as_integer(), Some(i64::from(killed.process.pid)));
    // The virtual device's memory is the host's: weights and arenas of the demo model take more
    // than 5 MiB.
    assert!(held["host"].as_integer().is_some_and(|bytes| bytes > 5 << 20), "{held:?}");
    home.json(&["devices", "--json"]);
    assert_eq!(registry(&home), files, "it is held");
    killed.process.send(Signal::KILL);
    killed.end(PATIENCE);
    assert!(executor.ends_within(PATIENCE));
    home.json(&["devices", "--json"]);
    assert_eq!(registry(&home), Vec::<PathBuf>::new());
    // Done, it leaves none.
    let done = Watched::start(generate("1")).end(PATIENCE);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(registry(&home), Vec::<PathBuf>::new());
}
