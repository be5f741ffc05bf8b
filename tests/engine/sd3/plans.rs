//! Plans for Stable Diffusion 3.5 at its true sizes on the shipped host profiles: golden text, made
//! twice.
//!
//! The models are sparse files, which hold no data: nothing is computed here.

use crate::support::golden::{ACCEPT, compare};
use crate::support::sparse::sd3::{LARGE, MEDIUM, write_sd35};
use crate::support::{Ended, Home, root};

/// Shipped profiles that declare everything, each with a tight budget for the larger model.
const HOSTS: [(&str, &[&str]); 8] = [
    ("rtx-3060-laptop-6g", &["--max-vram", "3"]),
    ("rtx-4060-8g", &["--max-vram", "4"]),
    ("rtx-4090-24g", &["--max-vram", "8"]),
    ("rtx-5060ti-16g-rtx-3080-10g", &["--max-vram", "cuda0=6,cuda1=4"]),
    ("2x-rtx-3090-24g", &["--max-vram", "8"]),
    ("4x-rtx-a4000-16g", &["--max-vram", "4"]),
    ("8x-h100-80g", &["--max-vram", "3"]),
    ("integrated-only", &["--max-ram", "4"]),
];

/// Those on which the smaller one is planned too, with T5 and without.
const HOSTS_OF_MEDIUM: [&str; 2] = ["rtx-3060-laptop-6g", "rtx-4060-8g"];

/// Makes one plan twice, and compares it with the golden one; what differs.
fn planned(home: &Home, arguments: &[&str], name: &str) -> Option<String> {
    let [first, second] = [0; 2].map(|_| home.run(arguments));
    assert!(matches!(first.code, Some(0 | 1)), "{arguments:?}: {}", first.stderr);
    let said = |ended: &Ended| {
        let told = if ended.code == Some(0) { "" } else { ended.stderr.as_str() };
        let home = home.path("").display().to_string();
        format!("{}{told}", ended.stdout).replace(&home, "")
    };
    assert_eq!(said(&first), said(&second), "{arguments:?}: another answer");
    let text = format!("$ berth {}\n{}\n", arguments.join(" "), said(&first).trim_end());
    compare(&root().join(format!("tests/golden/sd3/{name}.txt")), &text)
}

#[test]
fn plans_of_its_true_sizes_are_those_that_were_read() {
    let home = Home::new();
    let large = write_sd35(&home.path("large"), &LARGE).expect("a file system with holes");
    // Parameters of two bytes each: 8.057 B, 0.124 B, 0.695 B, 4.762 B.
    assert_eq!(large.dit_bytes / 2_000_000, 8056);
    assert_eq!(large.positions_bytes, 2 * 192 * 192 * 2432);
    assert_eq!([large.clip_l_bytes, large.clip_g_bytes].map(|b| b / 2_000_000), [123, 694]);
    assert_eq!(large.t5_bytes / 2_000_000, 4762);
    let medium = write_sd35(&home.path("medium"), &MEDIUM).expect("a file system with holes");
    assert_eq!(medium.dit_bytes / 2_000_000, 2243);
    let mut differences = Vec::new();
    for (profile, tight) in HOSTS {
        for (budget, more) in [("free", &[][..]), ("tight", tight)] {
            let arguments = ["plan", "large", "--dry-run", "--host", profile];
            let arguments = [&arguments[..], more, &["--explain"]].concat();
            differences.extend(planned(&home, &arguments, &format!("large-{profile}-{budget}")));
        }
    }
    for profile in HOSTS_OF_MEDIUM {
        for (parts, more) in [("whole", &[][..]), ("without-t5", &["--t5xxl", "none"])] {
            let arguments = ["plan", "medium", "--dry-run", "--host", profile];
            let arguments = [&arguments[..], more, &["--explain"]].concat();
            differences.extend(planned(&home, &arguments, &format!("medium-{profile}-{parts}")));
        }
    }
    let (count, all) = (differences.len(), differences.join("\n"));
    assert!(count == 0, "{count} differ; read them, then accept with {ACCEPT}=1\n{all}");
}
