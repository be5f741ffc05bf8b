//! Golden plans: what the real program answers for eight hosts, three models and three budgets, as
//! text and as JSON, beside files that people have read. Every plan is made twice, and both answers
//! are the same bytes.
//!
//! Hosts are shipped profiles that declare everything, and FLUX.1-dev is sparse files, so that the
//! answers are those of any machine. Only the path of the model is taken out. After a change that
//! is meant: `BERTH_ACCEPT_GOLDEN=1 cargo test --workspace --test engine golden_plans::` writes the
//! files anew, to be read before they land.

mod by_hand;
mod reduced;

use crate::support::sparse;
use std::fs;
use std::path::PathBuf;

use crate::support::golden::{ACCEPT, compare};
use crate::support::{Ended, Home, root};
use serde_json::Value;

/// What all files may take together.
const GOLDEN_BYTES_MAX: u64 = 3 << 20;

/// A shipped profile, with a middle and a tight budget for each kind of model; the first is always
/// what is free.
struct Host {
    profile: &'static str,
    /// For FLUX.1-dev.
    large: [&'static [&'static str]; 2],
    /// For the demo model, which takes 7 MB beside a context of 576 MiB.
    small: [&'static [&'static str]; 2],
}

/// Room for a context and some of the demo model; for a context and little more.
const SMALL: [&[&str]; 2] = [&["--max-vram", "580MiB"], &["--max-vram", "578MiB"]];

const HOSTS: [Host; 8] = [
    Host {
        profile: "rtx-3060-laptop-6g",
        large: [&["--max-vram", "4"], &["--max-vram", "2"]],
        small: SMALL,
    },
    Host {
        profile: "rtx-4060-8g",
        large: [&["--max-vram", "6"], &["--max-vram", "3"]],
        small: SMALL,
    },
    Host {
        profile: "rtx-4090-24g",
        large: [&["--max-vram", "16"], &["--max-vram", "8"]],
        small: SMALL,
    },
    Host {
        profile: "rtx-5060ti-16g-rtx-3080-10g",
        large: [&["--max-vram", "cuda0=12,cuda1=8"], &["--max-vram", "cuda0=6,cuda1=4"]],
        small: SMALL,
    },
    Host {
        profile: "2x-rtx-3090-24g",
        large: [&["--max-vram", "14"], &["--max-vram", "8"]],
        small: SMALL,
    },
    Host {
        profile: "4x-rtx-a4000-16g",
        large: [&["--max-vram", "8"], &["--max-vram", "4"]],
        small: SMALL,
    },
    Host {
        profile: "8x-h100-80g",
        large: [&["--max-vram", "6"], &["--max-vram", "3"]],
        small: SMALL,
    },
    // Its device has the host's memory, which is the budget; nothing else there is comparable, so
    // it is used unasked.
    Host {
        profile: "integrated-only",
        large: [&["--backend", "dit=cuda0", "--max-ram", "40"], &["--max-ram", "4"]],
        small: [&["--backend", "all=cuda0"], &["--max-ram", "64MiB"]],
    },
];

/// A model by its name in the files' names.
struct Model {
    name: &'static str,
    arguments: &'static [&'static str],
    large: bool,
}

const MODELS: [Model; 3] = [
    Model { name: "demo", arguments: &[], large: false },
    Model { name: "flux-dev", arguments: &["flux-dev"], large: true },
    Model { name: "flux-dev-q8_0", arguments: &["flux-dev", "--weights-as", "q8_0"], large: true },
];

const BUDGETS: [&str; 3] = ["free", "middle", "tight"];

/// One host with one model and one budget.
struct Case {
    /// Its files without their extension, under the folder of golden plans.
    path: String,
    arguments: Vec<&'static str>,
}

fn cases(host: &Host) -> Vec<Case> {
    let mut cases = Vec::new();
    for model in &MODELS {
        let [middle, tight] = if model.large { host.large } else { host.small };
        for (budget, more) in BUDGETS.iter().zip([&[], middle, tight]) {
            let fixed = ["--dry-run", "--host", host.profile];
            cases.push(Case {
                path: format!("{}/{}-{budget}", host.profile, model.name),
                arguments: [&["plan"], model.arguments, &fixed, more].concat(),
            });
        }
    }
    cases
}

fn folder() -> PathBuf {
    root().join("tests/golden/plans")
}

/// Runs the program, whose answer must be the same bytes a second time.
fn answer(home: &Home, arguments: &[&str]) -> Ended {
    let (first, second) = (home.run(arguments), home.run(arguments));
    assert_eq!(first.stdout, second.stdout, "{arguments:?}: another answer the second time");
    assert_eq!(first.stderr, second.stderr, "{arguments:?}: another answer the second time");
    assert!(matches!(first.code, Some(0 | 1)), "{arguments:?}: {}", first.stderr);
    assert_eq!(first.code, second.code, "{arguments:?}");
    first
}

/// The command and what it says: the plan with its explanation, or why there is none.
fn text(home: &Home, arguments: &[&str], model: &str) -> String {
    let ended = answer(home, &[arguments, &["--explain"]].concat());
    let told = if ended.code == Some(0) { "" } else { ended.stderr.as_str() };
    let said = format!("{}{told}", ended.stdout).replace(model, "MODEL");
    format!("$ berth {} --explain\n{}\n", arguments.join(" "), said.trim_end())
}

/// The document, with runs of equal segments as one line each.
fn json(home: &Home, arguments: &[&str]) -> (String, String) {
    let mut document = answer(home, &[arguments, &["--json"]].concat()).json();
    let model = document["model"].as_str().expect("every answer names its model").to_owned();
    document["model"] = Value::from("MODEL");
    reduced::reduce(&mut document);
    (format!("{document:#}\n"), model)
}

fn check(profile: &str) {
    let host = HOSTS.iter().find(|host| host.profile == profile).expect("a host of the list");
    let home = Home::new();
    sparse::write_flux_dev(&home.path("flux-dev")).expect("a file system with holes");
    let mut differences = Vec::new();
    for case in cases(host) {
        let (json, model) = json(&home, &case.arguments);
        let text = text(&home, &case.arguments, &model);
        for (extension, found) in [("txt", text), ("json", json)] {
            let path = folder().join(format!("{}.{extension}", case.path));
            differences.extend(compare(&path, &found));
        }
    }
    assert!(
        differences.is_empty(),
        "{} of {} files differ; read them, then accept with {ACCEPT}=1\n{}",
        differences.len(),
        2 * MODELS.len() * BUDGETS.len(),
        differences.join("\n")
    );
}

#[test]
fn a_laptop_with_6_gb() {
    check("rtx-3060-laptop-6g");
}

#[test]
fn a_card_of_8_gb() {
    check("rtx-4060-8g");
}

#[test]
fn a_card_of_24_gb() {
    check("rtx-4090-24g");
}

#[test]
fn cards_of_16_and_10_gb() {
    check("rtx-5060ti-16g-rtx-3080-10g");
}

#[test]
fn two_cards() {
    check("2x-rtx-3090-24g");
}

#[test]
fn four_cards() {
    check("4x-rtx-a4000-16g");
}

#[test]
fn eight_cards() {
    check("8x-h100-80g");
}

#[test]
fn a_board_with_an_integrated_gpu() {
    check("integrated-only");
}

#[test]
fn places_that_cost_nothing_have_no_lines_of_their_own() {
    let folders = fs::read_dir(folder()).expect("the folder is there");
    let files = folders.flat_map(|host| {
        fs::read_dir(host.expect("an entry").path()).expect("a folder for each host")
    });
    let mut texts = 0;
    for file in files {
        let path = file.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a text");
        for unwanted in ["+0.00 ms", " 1 slots", "/demo-"] {
            assert!(!text.contains(unwanted), "{}: {unwanted}", path.display());
        }
        texts += 1;
    }
    assert!(texts > 0);
}

#[test]
fn the_files_are_those_of_the_cases_and_small() {
    if std::env::var_os(ACCEPT).is_some() {
        // They are being written.
        return;
    }
    let mut expected: Vec<String> = HOSTS
        .iter()
        .flat_map(cases)
        .flat_map(|case| ["json", "txt"].map(|extension| format!("{}.{extension}", case.path)))
        .collect();
    expected.sort();
    let (mut found, mut bytes) = (Vec::new(), 0);
    for host in fs::read_dir(folder()).expect("the folder is there") {
        let host = host.expect("an entry").path();
        for file in fs::read_dir(&host).expect("a folder for each host") {
            let file = file.expect("an entry");
            bytes += file.metadata().expect("its size").len();
            let path = file.path();
            found.push(path.strip_prefix(folder()).expect("within").display().to_string());
        }
    }
    found.sort();
    assert_eq!(found, expected);
    assert!(bytes <= GOLDEN_BYTES_MAX, "the golden plans take {bytes} B");
}
