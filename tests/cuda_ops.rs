//! Every operation on a GPU against the host's kernel, with odd sizes and all storage types.
//!
//! The cases are ignored tests: they need a driver. `simulated` runs them on the simulator; on a machine with a GPU
//! `cargo test --test cuda_ops -- --ignored` runs them there.

#[path = "cuda_ops/attention.rs"]
mod attention;
#[path = "cuda_ops/bench.rs"]
mod bench;
#[path = "cuda_ops/conv.rs"]
mod conv;
#[path = "cuda_ops/convert.rs"]
mod convert;
#[path = "cuda_ops/decode.rs"]
mod decode;
#[path = "cuda_ops/elementwise.rs"]
mod elementwise;
#[path = "cuda_ops/group_norm.rs"]
mod group_norm;
#[path = "cuda_ops/linear.rs"]
mod linear;
#[path = "cuda_ops/norm.rs"]
mod norm;
#[path = "support/simulator.rs"]
mod simulator;
#[path = "cuda_ops/tokens.rs"]
mod tokens;

use std::process::Command;

use simulator::Machine;

/// Runs every case on a machine of this kind.
fn run_on(machine: &Machine) {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    machine.apply(&mut command);
    let output = command.arg("--ignored").output().expect("the cases start");
    let [said, told] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}: {said}{told}", machine.value());
    assert!(!said.contains(" 0 passed"), "no case was run: {said}");
}

#[test]
fn simulated() {
    // Threads in order, then in a shuffled one, where a missing barrier shows.
    run_on(&Machine::new(1).with("capability", "8.6"));
    run_on(&Machine::new(1).with("capability", "7.5").with("seed", 3));
}
