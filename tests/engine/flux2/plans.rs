//! Plans for FLUX.2 klein at its true sizes on the shipped host profiles: golden text, made twice.
//!
//! The models are sparse files, which hold no data: nothing is computed here.

use crate::support::golden::{ACCEPT, compare};
use crate::support::sparse::flux2::{KLEIN_4B, KLEIN_9B, Sizes, SparseFlux2, write_klein};
use crate::support::{Ended, Home, root};

/// A shipped profile that declares everything, with a tight budget.
type Host = (&'static str, &'static [&'static str]);

const HOSTS: [Host; 8] = [
    ("rtx-3060-laptop-6g", &["--max-vram", "3"]),
    ("rtx-4060-8g", &["--max-vram", "4"]),
    ("rtx-4090-24g", &["--max-vram", "10"]),
    ("rtx-5060ti-16g-rtx-3080-10g", &["--max-vram", "cuda0=6,cuda1=4"]),
    ("2x-rtx-3090-24g", &["--max-vram", "10"]),
    ("4x-rtx-a4000-16g", &["--max-vram", "5"]),
    ("8x-h100-80g", &["--max-vram", "3"]),
    ("integrated-only", &["--max-ram", "8"]),
];

/// The plans of a model on these hosts are those that were read.
fn each_is_as_it_was_read(name: &str, sizes: &Sizes, hosts: &[Host]) -> SparseFlux2 {
    let home = Home::new();
    let written = write_klein(&home.path(name), sizes).expect("a file system with holes");
    let mut differences = Vec::new();
    for &(profile, tight) in hosts {
        for (budget, more) in [("free", &[][..]), ("tight", tight)] {
            let arguments = ["plan", name, "--dry-run", "--host", profile];
            let arguments = [&arguments[..], more, &["--explain"]].concat();
            let [first, second] = [0; 2].map(|_| home.run(&arguments));
            assert!(matches!(first.code, Some(0 | 1)), "{arguments:?}: {}", first.stderr);
            let said = |ended: &Ended| {
                let told = if ended.code == Some(0) { "" } else { ended.stderr.as_str() };
                let model = home.path(name).display().to_string();
                format!("{}{told}", ended.stdout).replace(&model, "MODEL")
            };
            assert_eq!(said(&first), said(&second), "{arguments:?}: another answer");
            let text = format!("$ berth {}\n{}\n", arguments.join(" "), said(&first).trim_end());
            let path = format!("tests/golden/flux2/{name}-{profile}-{budget}.txt");
            differences.extend(compare(&root().join(path), &text));
        }
    }
    let (count, all) = (differences.len(), differences.join("\n"));
    assert!(count == 0, "{count} differ; read them, then accept with {ACCEPT}=1\n{all}");
    written
}

#[test]
fn plans_of_9b_are_those_that_were_read() {
    let written = each_is_as_it_was_read("klein-9b", &KLEIN_9B, &HOSTS);
    assert_eq!(written.dit_bytes / 10_000_000, 1815);
    assert_eq!(written.llm_bytes / 10_000_000, 1638);
    assert_eq!(written.vae_bytes / 10_000_000, 16);
}

#[test]
fn plans_of_4b_are_those_that_were_read() {
    // Those with the least memory: what is small elsewhere is tight there.
    let written = each_is_as_it_was_read("klein-4b", &KLEIN_4B, &HOSTS[..3]);
    assert_eq!(written.dit_bytes / 10_000_000, 775);
    assert_eq!(written.llm_bytes / 10_000_000, 804);
}
