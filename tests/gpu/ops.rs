//! Every operation on a GPU against the host's kernel, with odd sizes and all storage types.
//!
//! The cases are ignored tests: they need a driver. `simulated` runs them on the simulator; on a
//! machine with a GPU `cargo test --workspace --test gpu ops:: -- --ignored` runs them there, those
//! of `by_library` with its cuBLASLt.

mod attention;
mod bench;
mod by_library;
mod conv;
mod convert;
mod decode;
mod elements;
mod elementwise;
mod group_norm;
mod linear;
mod linear_bytes;
mod linear_case;
mod linear_decoded;
mod linear_halves;
mod modulated;
mod norm;
mod tokens;

use std::path::Path;
use std::process::Command;

use crate::support::simulator::Machine;

/// What the names of all cases begin with.
const CASES: &str = "ops::";

/// What the names of cases of attention begin with.
const ATTENTION: &str = "ops::attention::";

/// What is in the names of cases with cuBLASLt.
const WITH_LIBRARY: &str = "by_library::";

/// Runs every case without cuBLASLt on a machine of this kind.
fn run_on(machine: &Machine) {
    run(machine, &[CASES, "--skip", WITH_LIBRARY]);
}

/// Runs cases on a machine of this kind.
fn run(machine: &Machine, which: &[&str]) {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    machine.apply(&mut command);
    let output = command.arg("--ignored").args(which).output().expect("the cases start");
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

/// Attention where a multiprocessor has shared memory for two blocks of 128 queries.
#[test]
fn simulated_with_tall_attention() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    let machine = Machine::new(1).with("capability", "9.0").logged(&log);
    for machine in [machine.clone(), machine.with("seed", 3)] {
        run(&machine, &[ATTENTION]);
        let text = std::fs::read_to_string(&log).expect("the log of calls");
        let asked =
            "call cuFuncSetAttribute device=0 kernel=attention_tall_128 attribute=8 value=65536 ";
        assert!(text.contains(asked), "{asked}");
        let calls = text.lines().filter(|line| line.contains("kernel=attention_tall_128 grid="));
        let launches: Vec<&str> =
            calls.filter(|line| line.contains("call cuLaunchKernel")).collect();
        assert!(!launches.is_empty());
        assert!(launches.iter().all(|line| line.contains(" shared=65536 ")), "{launches:?}");
    }
}

/// The products that cuBLASLt was handed, as the simulator's log has them.
fn products(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).expect("the log of calls");
    let calls = text.lines().filter(|line| line.contains("call cublasLtMatmul device="));
    calls.map(str::to_owned).collect()
}

#[test]
fn simulated_with_cublas() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (capability, bf16) in [("8.6", true), ("7.5", false)] {
        let log = folder.path().join(capability);
        let machine = Machine::new(1).with("capability", capability).with_cublas().logged(&log);
        run(&machine, &[WITH_LIBRARY]);
        let products = products(&log);
        let has = |what: &str| products.iter().any(|line| line.contains(what));
        assert!(products.iter().all(|line| line.contains("workspace=0 result=0")), "{products:?}");
        assert!(has("type=f16 epilogue=1 "), "{products:?}");
        // Plain sums, with a bias, with GELU, with both.
        for epilogue in [1, 4, 32, 36] {
            let product = format!("type=bf16 epilogue={epilogue} ");
            assert_eq!(has(&product), bf16, "{capability}, {product}: {products:?}");
        }
        // Results in bf16, with a bias and GELU; sums of several products, of which the last has
        // the epilogue.
        for product in ["epilogue=36 into=bf16 adds=0", "epilogue=36 into=f32 adds=1"] {
            assert_eq!(has(product), bf16, "{capability}, {product}: {products:?}");
        }
        assert!(!has("into=bf16 adds=1"), "{products:?}");
    }
}

/// Our kernels multiply wherever cuBLASLt is not or fails.
#[test]
fn simulated_with_a_cublas_that_fails() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let broken = folder.path().join("broken");
    std::fs::create_dir(&broken).expect("room");
    let nvml = crate::support::simulator::Simulator::built().nvml();
    std::os::unix::fs::symlink(nvml, broken.join("libcublasLt.so.12")).expect("a link");
    let log = folder.path().join("log");
    let machine = || Machine::new(1).logged(&log);
    let run_case = |machine: Machine, case: &str| {
        let _ = std::fs::remove_file(&log);
        run(&machine, &[case, "--test-threads", "1"]);
        let products = products(&log);
        let (done, failed): (Vec<String>, Vec<String>) =
            products.into_iter().partition(|line| line.contains(" result=0 "));
        let text = std::fs::read_to_string(&log).expect("the log of calls");
        let own = text.lines().filter(|line| line.contains("call cuLaunchKernel"));
        (done.len(), failed.len(), own.filter(|line| line.contains("kernel=linear_half")).count())
    };
    let run = |machine: Machine| run_case(machine, "by_library::a_layer_twice");
    // No library, one without its functions, and one that does not start: all by our kernels.
    let (products, failed, own) = run(machine().with_cublas());
    assert!(products > 0 && (failed, own) == (0, 0), "{products} {failed} {own}");
    for machine in [
        machine(),
        machine().with_cublas_in(folder.path()),
        machine().with_cublas_in(&broken),
        machine().with_cublas().with("fail", "cublasLtCreate:1:1"),
    ] {
        assert_eq!(run(machine.clone()), (0, 0, products), "{}", machine.value());
    }
    // Nothing proposed, or no descriptor: that shape is ours, the others stay the library's. A
    // product that fails is ours from then on.
    for (function, failed, own) in [
        ("cublasLtMatmulAlgoGetHeuristic:1:15", 0, 2),
        ("cublasLtMatmulDescCreate:1:3", 0, 2),
        ("cublasLtMatrixLayoutCreate:2:3", 0, 2),
        ("cublasLtMatmulPreferenceSetAttribute:1:7", 0, 2),
        ("cublasLtMatmul:1:14", 1, 2),
        ("cublasLtMatmul:2:13", 1, 1),
    ] {
        let machine = machine().with_cublas().with("fail", function);
        assert_eq!(run(machine), (products - own, failed, own), "{function}");
    }
    // Three products a layer. One that fails leaves the whole layer to our kernels, then and later;
    // what was not asked for, too.
    let parts = "by_library::parts_of_a_layer";
    assert_eq!(run_case(machine().with_cublas(), parts), (6, 0, 0));
    for (function, done) in [
        ("cublasLtMatmul:1:14", (0, 1, 2)),
        ("cublasLtMatmul:3:14", (2, 1, 2)),
        ("cublasLtMatmul:5:14", (4, 1, 1)),
        ("cublasLtMatmulAlgoGetHeuristic:2:15", (0, 0, 2)),
    ] {
        let machine = machine().with_cublas().with("fail", function);
        assert_eq!(run_case(machine, parts), done, "{function}");
    }
}
