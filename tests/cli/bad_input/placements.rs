//! Placements by hand that make no sense, on the command line and in a host profile.

use crate::bad_input::case::{Case, INFEASIBLE, assert_refused};

/// A plan on two virtual devices.
const PLAN: &str = "plan model --dry-run --width 64 --height 64 --host virtual-2x2g";

/// Arguments after [`PLAN`], and what must be said of them.
type Refusal = (&'static str, &'static [&'static str]);

#[test]
fn a_placement_that_makes_no_sense_is_refused() {
    let cases: &[Refusal] = &[
        ("--backend dit=cuda0", &["no device `cuda0`; hint: there is virtual0, virtual1, cpu"]),
        ("--backend dit=virtual", &["`virtual` may be any of virtual0, virtual1; hint: "]),
        ("--backend unet2=cpu", &["no component `unet2`; hint: there is clip, t5, dit, vae"]),
        ("--backend dit=virtual0&virtual0", &["`virtual0` stands twice in the list; hint: "]),
        ("--backend dit=virtual0,dit=cpu", &["`dit` stands twice; hint: name each component once"]),
        ("--backend te=virtual0,cond=cpu", &["`te=virtual0` says otherwise of clip; hint: "]),
        ("--backend dit=virtual0:2", &["a share for the only device; hint: "]),
        (
            "--backend dit=virtual0:0&virtual1:1",
            &["`0` is not a share, a whole number from 1 to 1048576; hint: "],
        ),
        ("--backend dit=virtual0&virtual1:1", &["some of the devices have a share"]),
        ("--backend dit=", &["--backend `dit=`: a device has no name; hint: "]),
        ("--split-mode dit=row --backend dit=virtual0", &["dit has no list of devices", "hint: "]),
        ("--split-mode row", &["--split-mode `row`", "has no list of devices", "hint: "]),
        (
            "--split-mode row --backend dit=virtual0&virtual1",
            &["dit has no weights whose rows can be split; hint: name one device for it"],
        ),
        (
            "--split-mode dit=column",
            &["`column` is not a way to split; hint: write layer, row, tensor, items or pipeline"],
        ),
        ("--params-backend dit=ram", &["`ram` is not a place for weights; hint: write cpu"]),
        ("--params-backend dit=cpu --backend dit=cpu", &["dit computes on the host", "hint: "]),
        ("--lookahead 0", &["--lookahead `0`: `0` is not within 1 to 64; hint: "]),
        ("--lookahead 65 --params-backend dit=cpu", &["`65` is not within 1 to 64; hint: "]),
        (
            "--lookahead 4 --params-backend all=device",
            &["clip is not streamed: --params-backend cpu would stream it; hint: "],
        ),
        ("--lookahead vae=4 --params-backend dit=cpu,vae=disk", &["vae is not streamed", "hint: "]),
        ("--vae-tile 512x", &["`512x` is not a tile size; hint: "]),
        ("--vae-tile 512:0.6", &["`512:0.6` is not a tile size; hint: "]),
        ("--vae-tile 15", &["a tile of 15x15 pixels is smaller than the model's 16x16; hint: "]),
        ("--vae-tile 64 --vae-tiling", &["--vae-tiling is --vae-tile 512:0.25", "hint: "]),
        (
            "--weights-as q4",
            &["no storage type of that name; hint: one of f32, f16, bf16, f8_e4m3, f8_e5m2, q8_0"],
        ),
        ("--mmap-policy maybe", &["`maybe` is not one of keep, sequential, drop"]),
        ("--lora missing.safetensors:2", &["no LoRA file at missing.safetensors; hint: "]),
        ("--lora model", &["no LoRA file at model; hint: "]),
        ("--control-net-cpu", &["there is no ControlNet to be placed; hint: leave it out"]),
        ("--clip-on-cpu --backend cond=virtual0", &["says otherwise of clip; hint: "]),
    ];
    assert_refused(cases.iter().map(|&(arguments, says)| Case {
        name: arguments,
        ..Case::of("", &format!("{PLAN} {arguments}"), says)
    }));
}

#[test]
fn a_component_that_is_pinned_where_it_does_not_fit_is_told() {
    assert_refused([
        Case::of(
            "resident on a small device",
            &format!("{PLAN} --backend all=virtual0 --params-backend all=device --max-vram 100000B"),
            &["does not fit: ", " on virtual0 in the ", "hint: --max-vram "],
        )
        .exits(INFEASIBLE),
        Case::of(
            "streamed through slots that are too large",
            &format!("{PLAN} --backend dit=virtual0 --params-backend dit=cpu --lookahead 64 --max-vram 100000B"),
            &["does not fit: ", "hint: --max-vram "],
        )
        .exits(INFEASIBLE),
    ]);
}

#[test]
fn files_that_are_not_there_are_only_looked_at() {
    let plan = "plan model --width 64 --height 64 --host virtual-2x2g --weights-as q8_0";
    assert_refused([Case::of(
        "no dry run",
        plan,
        &["files that are not there; hint: add --dry-run"],
    )]);
}

#[test]
fn a_given_plan_takes_no_pins() {
    let generate = "generate model --prompt a --plan plan.toml";
    let pins: &[&str] = &[
        "--backend cpu",
        "--params-backend cpu",
        "--split-mode row",
        "--lookahead 2",
        "--vae-tile 64",
        "--mmap-policy drop",
        "--lora a.safetensors",
        "--no-prefetch",
        "--clip-on-cpu",
        "--vae-tiling",
    ];
    assert_refused(pins.iter().map(|pin| Case {
        name: pin,
        ..Case::of("", &format!("{generate} {pin}"), &["cannot be used with"])
    }));
}
