//! Placements by hand that once were predicted faster than what the solver chose, for FLUX.1-dev
//! and the demo model: each plan as a golden text, with what the placements by hand take beside it.
//! No one may be faster now.

use crate::support::golden::{ACCEPT, compare};
use crate::support::{Home, root, sparse};

/// How much less a placement by hand may take: plans are compared by their times to 0.2 percent.
const FASTER_MAX: f64 = 0.002;

/// Two devices. The smaller one is the faster one.
const TWO_UNLIKE: &str = r#"
name = "two-unlike"
[host]
compute = false
memory = "16GiB"
available = "12GiB"
cores = 2
cpu = "made up"
flops = "100GFLOP/s"
memory_bandwidth = "20GB/s"
storage_bandwidth = "3GB/s"
page_cache_bandwidth = "10GB/s"
[[device]]
kind = "virtual"
total = "3MiB"
link = "300MB/s"
flops = "100GFLOP/s"
half_flops = "100GFLOP/s"
memory_bandwidth = "20GB/s"
[[device]]
kind = "virtual"
total = "6MiB"
link = "300MB/s"
flops = "50GFLOP/s"
half_flops = "50GFLOP/s"
memory_bandwidth = "10GB/s"
"#;

/// A plan, and what somebody could place by hand.
struct Case {
    name: &'static str,
    /// A shipped profile, or a file in the home.
    host: &'static str,
    arguments: &'static [&'static str],
    by_hand: &'static [&'static [&'static str]],
}

/// Over all cards of two, by layers.
const TWO_BY_LAYERS: &[&[&str]] = &[
    &["--backend", "dit=cuda0&cuda1", "--split-mode", "dit=layer"],
    &["--backend", "dit=cuda1&cuda0", "--split-mode", "dit=layer"],
    &["--backend", "dit=cuda0&cuda1", "--split-mode", "dit=layer", "--lookahead", "dit=4"],
];

/// Over all cards of four, by layers, and over all as T5 too.
const FOUR_BY_LAYERS: &[&[&str]] = &[
    &["--backend", "dit=cuda0&cuda1&cuda2&cuda3", "--split-mode", "dit=layer"],
    &["--backend", "dit=cuda0&cuda1", "--split-mode", "dit=layer"],
    &["--backend", "dit=cuda0&cuda1&cuda2&cuda3,t5=cuda0&cuda1&cuda2&cuda3"],
];

const SLOTS: &[&[&str]] = &[
    &["--lookahead", "dit=1"],
    &["--lookahead", "dit=5"],
    &["--lookahead", "dit=7"],
    &["--lookahead", "dit=16"],
];

/// T5 on one card, and by rows over more: each copy reads from one storage.
const T5_BY_ROWS: &[&[&str]] = &[
    &["--backend", "t5=cuda0"],
    &["--backend", "t5=cuda0&cuda1", "--split-mode", "t5=row"],
    &["--backend", "t5=cuda1&cuda0", "--split-mode", "t5=layer"],
];

const CASES: &[Case] = &[
    // Splits by layers that stream on all of their devices.
    Case {
        name: "four-cards-3gib",
        host: "4x-rtx-a4000-16g",
        arguments: &["flux-dev", "--max-vram", "3"],
        by_hand: FOUR_BY_LAYERS,
    },
    Case {
        name: "four-cards-5gib",
        host: "4x-rtx-a4000-16g",
        arguments: &["flux-dev", "--max-vram", "5"],
        by_hand: FOUR_BY_LAYERS,
    },
    Case {
        name: "four-cards-6gib",
        host: "4x-rtx-a4000-16g",
        arguments: &["flux-dev", "--max-vram", "6"],
        by_hand: FOUR_BY_LAYERS,
    },
    Case {
        name: "two-cards-6gib",
        host: "2x-rtx-3090-24g",
        arguments: &["flux-dev", "--max-vram", "6"],
        by_hand: TWO_BY_LAYERS,
    },
    Case {
        name: "unlike-cards-6gib",
        host: "rtx-5060ti-16g-rtx-3080-10g",
        arguments: &["flux-dev", "--max-vram", "6"],
        by_hand: TWO_BY_LAYERS,
    },
    Case {
        name: "unlike-cards",
        host: "rtx-5060ti-16g-rtx-3080-10g",
        arguments: &["flux-dev"],
        by_hand: TWO_BY_LAYERS,
    },
    // Other numbers of slots than 1, 2 and 4, for splits too.
    Case { name: "slots-8gb", host: "rtx-4060-8g", arguments: &["flux-dev"], by_hand: SLOTS },
    Case {
        name: "slots-two-cards-6gib",
        host: "2x-rtx-3090-24g",
        arguments: &["flux-dev", "--max-vram", "6"],
        by_hand: SLOTS,
    },
    Case {
        name: "slots-eight-cards-2gib",
        host: "8x-h100-80g",
        arguments: &["flux-dev", "--max-vram", "2"],
        by_hand: SLOTS,
    },
    // The order of a list's devices.
    Case {
        name: "order-two-unlike",
        host: "./two-unlike.toml",
        arguments: &[],
        by_hand: &[
            &["--backend", "dit=virtual0&virtual1"],
            &["--backend", "dit=virtual1&virtual0"],
        ],
    },
    // One storage for all copies of a split.
    Case {
        name: "storage-two-cards",
        host: "2x-rtx-3090-24g",
        arguments: &["flux-dev"],
        by_hand: T5_BY_ROWS,
    },
    Case {
        name: "storage-four-cards",
        host: "4x-rtx-a4000-16g",
        arguments: &["flux-dev"],
        by_hand: T5_BY_ROWS,
    },
    Case {
        name: "storage-eight-cards",
        host: "8x-h100-80g",
        arguments: &["flux-dev"],
        by_hand: T5_BY_ROWS,
    },
];

/// A shipped profile of a host.
fn shipped(profile: &str) -> String {
    let path = root().join(format!("profiles/{profile}.toml"));
    std::fs::read_to_string(path).expect("a shipped profile")
}

/// The same with as much RAM available.
fn with_available(profile: &str, available: &str) -> String {
    let text = shipped(profile);
    let lines = text.lines().filter(|line| !line.starts_with("available ="));
    let with = |line: &str| match line {
        "[host]" => format!("[host]\navailable = \"{available}\"\n"),
        line => format!("{line}\n"),
    };
    lines.map(with).collect()
}

fn home() -> Home {
    let home = Home::new();
    sparse::write_flux_dev(&home.path("flux-dev")).expect("a file system with holes");
    std::fs::write(home.path("two-unlike.toml"), TWO_UNLIKE).expect("a profile");
    home
}

/// What a job and its step are predicted to take, in milliseconds; `None` where nothing fits.
fn predicted_ms(home: &Home, arguments: &[&str]) -> Option<[f64; 2]> {
    let ended = home.run(&[&["plan", "--dry-run", "--json"], arguments].concat());
    assert!(matches!(ended.code, Some(0 | 1)), "{arguments:?}: {}", ended.stderr);
    let document = (ended.code == Some(0)).then(|| ended.json());
    document.map(|document| {
        ["total", "denoise_step"]
            .map(|key| document["predicted_ms"][key].as_f64().expect("a time of the job"))
    })
}

#[test]
fn no_placement_by_hand_is_faster_than_what_is_chosen() {
    let home = home();
    let model = home.path("flux-dev").display().to_string();
    let (mut differences, mut compared) = (Vec::new(), 0);
    for case in CASES {
        let arguments = [case.arguments, &["--host", case.host]].concat();
        let ended = home.run(&[&["plan", "--dry-run"], &arguments[..]].concat());
        let mut text = format!("$ berth plan --dry-run {}\n{}", arguments.join(" "), ended.stdout);
        let [chosen_ms, _] = predicted_ms(&home, &arguments).expect("a plan");
        for pins in case.by_hand {
            let by_hand = predicted_ms(&home, &[&arguments, *pins].concat());
            let told = match by_hand {
                Some([total_ms, _]) => format!("{:+.1} %", 100.0 * (total_ms / chosen_ms - 1.0)),
                None => "does not fit".to_owned(),
            };
            text += &format!("by hand: {}: {told}\n", pins.join(" "));
            if let Some([total_ms, _]) = by_hand {
                let least_ms = chosen_ms * (1.0 - FASTER_MAX);
                assert!(total_ms >= least_ms, "{}: {pins:?}: {total_ms} ms", case.name);
                compared += 1;
            }
        }
        let path = root().join("tests/golden/plans_by_hand").join(format!("{}.txt", case.name));
        differences.extend(compare(&path, &text.replace(&model, "MODEL")));
    }
    assert!(compared > 2 * CASES.len(), "{compared} placements fit: little was tested");
    assert!(
        differences.is_empty(),
        "read them, then accept with {ACCEPT}=1\n{}",
        differences.join("\n")
    );
}

/// Weights that do not fit in RAM as a whole are read from it as far as what is streamed fits.
#[test]
fn a_little_less_memory_than_the_file_has_costs_no_step_a_read_of_all() {
    let home = home();
    for (profile, less, more, arguments) in [
        ("rtx-3060-laptop-6g", "11GiB", "12GiB", &["--weights-as", "q8_0"][..]),
        ("rtx-4090-24g", "22GiB", "56GiB", &[]),
    ] {
        let step_ms = |available: &str| {
            let host = with_available(profile, available);
            std::fs::write(home.path("host.toml"), host).expect("a profile");
            let arguments = [&["flux-dev", "--host", "./host.toml"], arguments].concat();
            predicted_ms(&home, &arguments).expect("a plan")[1]
        };
        let (less_ms, more_ms) = (step_ms(less), step_ms(more));
        assert!(less_ms <= 1.01 * more_ms, "{profile}: {less_ms} ms, {more_ms} ms");
    }
}

/// Where weights may be page-locked, a streamed step takes the link's rate and not the page
/// cache's.
#[test]
fn page_locked_copies_halve_a_streamed_step() {
    let home = home();
    let arguments = ["flux-dev", "--max-vram", "8", "--host"];
    let with = |host: &str| predicted_ms(&home, &[&arguments[..], &[host]].concat());
    let [total_ms, step_ms] = with("rtx-4090-24g").expect("a plan");
    // Room for the staging of the card.
    let nothing = format!("{}[policy]\nmax_pinned = \"64MiB\"\n", shipped("rtx-4090-24g"));
    std::fs::write(home.path("host.toml"), nothing).expect("a profile");
    let [unlocked_ms, unlocked_step_ms] = with("./host.toml").expect("a plan");
    assert!(2.0 * step_ms < unlocked_step_ms, "{step_ms} ms, {unlocked_step_ms} ms");
    assert!(total_ms < unlocked_ms);
}
