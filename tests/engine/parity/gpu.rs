//! Golden cases on a simulated GPU, or with `BERTH_TEST_GPU` set on those that are here: within the
//! tolerances of f32 where products are exact, and within their own where their operands have 16
//! bits.
//!
//! A product of halves rounds each operand once: f16 to 11 bits, bf16 to 8. Rounding errors are
//! independent, so a sum of many is off by some 2^-12 (2^-9) of its own size, root mean square; a
//! stage adds those of its layers. Tolerances are about three times what was measured here, stage
//! by stage, and a mistake in any kernel is off by more than all of them.

use crate::parity::compare::mean_deviation;
use crate::parity::files;
use crate::parity::golden::{Case, Golden, Tensor};
use crate::parity::{Noise, compare_all, generate};
use crate::support::Home;
use crate::support::simulator::Machine;

/// Everything is computed on the GPUs of this machine.
const GPU_ONLY: &str = "name = \"gpu-only\"\ndescription = \"The GPUs.\"\ndevices = \"detect\"\n\n[host]\ncompute = false\n";

/// What halves may be off, root mean square over that of the golden values: text encoders, the DiT
/// and latents, pictures before rounding.
struct Tolerances {
    text: f64,
    latents: f64,
    picture: f64,
}

/// Levels by which a value of a picture may differ with halves.
const LEVELS_APART_MAX: u8 = 2;

/// Whether the GPUs of this machine compute.
fn is_here() -> bool {
    std::env::var_os("BERTH_TEST_GPU").is_some()
}

/// One simulated GPU.
fn machine(capability: &str) -> Machine {
    Machine::new(1).with("capability", capability)
}

/// The machines to try: a real GPU has its own capability.
fn machines() -> Vec<Machine> {
    // Before 8.0 all operands are f16.
    let capabilities: &[&str] = if is_here() { &["8.6"] } else { &["8.6", "7.5"] };
    capabilities.iter().map(|capability| machine(capability)).collect()
}

/// How many cases of a model are run: a simulated GPU takes seconds for each.
fn cases(golden: &Golden) -> &[Case] {
    if is_here() { &golden.cases } else { &golden.cases[..1] }
}

/// A home whose programs run on this machine, or on the GPUs that are here.
fn home(machine: &Machine) -> Home {
    let home = match is_here() {
        true => Home::new(),
        false => Home::new().with(machine.environment()),
    };
    std::fs::write(home.path("gpu-only.toml"), GPU_ONLY).expect("the home can be written");
    home
}

/// A model's cases, exactly.
fn matches_exactly(golden: &Golden) {
    let home = home(&machine("8.6"));
    for case in cases(golden) {
        let profile = Some(("./gpu-only.toml", "cuda"));
        let dumped = generate(&home, golden, case, profile, Noise::Golden, &[]);
        compare_all(
            &format!("{}/{} on a GPU", golden.name, case.name),
            case,
            &dumped,
            Noise::Golden,
            1.0,
        );
    }
}

/// A model's cases, with halves.
fn is_near(golden: Golden, machine: &Machine, tolerances: &Tolerances) {
    let golden = Golden { exact: false, ..golden };
    let home = home(machine);
    for case in cases(&golden) {
        case_is_near(&home, &golden, case, tolerances);
    }
}

fn case_is_near(home: &Home, golden: &Golden, case: &Case, tolerances: &Tolerances) {
    let dumped =
        generate(home, golden, case, Some(("./gpu-only.toml", "cuda")), Noise::Golden, &[]);
    let mut wrong = Vec::new();
    for (name, expected) in case.tensors.iter().filter(|(name, _)| !name.contains(".in.")) {
        let Some(got) = dumped.get(name) else { continue };
        match (got, expected) {
            (Tensor::Floats(got), Tensor::Floats(expected)) => {
                let allowed = match name.as_str() {
                    name if name.starts_with("text_encoder") => tolerances.text,
                    "vae.out" => tolerances.picture,
                    _ => tolerances.latents,
                };
                let off = mean_deviation(got, expected);
                if off > allowed {
                    wrong.push(format!("{name} is {off:.1e} off, {allowed:.0e} is allowed"));
                }
            }
            (Tensor::Levels(got), Tensor::Levels(expected)) => {
                let off = got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
                if off > Some(LEVELS_APART_MAX) {
                    wrong.push(format!("{name}: a value is {off:?} levels off"));
                }
            }
            (Tensor::Ids(got), Tensor::Ids(expected)) => assert_eq!(got, expected, "{name}"),
            _ => panic!("{name} is of another type than its golden values"),
        }
    }
    assert!(wrong.is_empty(), "{}/{}: {wrong:#?}", golden.name, case.name);
}

#[test]
fn f32_on_a_gpu_matches_as_on_the_host() {
    matches_exactly(&Golden::fixture("flux_schnell"));
    matches_exactly(&Golden::fixture("flux_dev"));
    matches_exactly(&Golden::demo());
}

#[test]
fn halves_on_a_gpu_are_near() {
    // bf16 weights and so bf16 activations; measured: 3.9e-3, 3.7e-3, 4.0e-3.
    let tolerances = Tolerances { text: 1.2e-2, latents: 1.2e-2, picture: 1e-2 };
    for machine in machines() {
        is_near(Golden::fixture("flux_dev"), &machine, &tolerances);
    }
}

#[test]
fn halves_by_cublas_are_near() {
    // All of its products have bf16 operands, as ours; measured: as without it.
    let fixture = Tolerances { text: 1.2e-2, latents: 1.2e-2, picture: 1e-2 };
    let demo = Tolerances { text: 5e-3, latents: 3e-2, picture: 5e-3 };
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (golden, tolerances) in [(Golden::fixture("flux_dev"), fixture), (Golden::demo(), demo)] {
        let log = folder.path().join(golden.name);
        is_near(golden, &machine("8.6").with_cublas().logged(&log), &tolerances);
        let log = std::fs::read_to_string(log).expect("the log of calls");
        let done = |what: &str| log.lines().filter(|line| line.contains(what)).count();
        assert!(done("call cublasLtMatmul device=0 ") > 0, "no product");
        assert_eq!(done("kernel=linear_half"), 0, "products by our kernels");
    }
}

#[test]
fn the_trained_demo_on_a_gpu_makes_its_pictures() {
    // f16 weights; measured: 1.5e-3, 8.9e-3 in the last of eight steps (2.0e-3 in the first),
    // 8.7e-4.
    let tolerances = Tolerances { text: 5e-3, latents: 3e-2, picture: 5e-3 };
    for machine in machines() {
        is_near(Golden::demo(), &machine, &tolerances);
    }
}

#[test]
fn quantised_weights_on_a_gpu_are_near() {
    // All activations are rounded to bf16, and from capability 8.0 on the decoded weights of the
    // DiT too: to 8 bits, each operand off by 2^-9 of its size or so. Measured there: at most 4e-3,
    // 3.5e-3, 3e-3.
    let tolerances = Tolerances { text: 1.2e-2, latents: 1.2e-2, picture: 1e-2 };
    for machine in machines() {
        for golden in files::quantised() {
            is_near(golden, &machine, &tolerances);
        }
    }
}
