//! Plans for Qwen-Image at its true size on the shipped host profiles: golden text, made twice.
//!
//! The model is sparse files, which hold no data: nothing is computed here.

use crate::support::golden::{ACCEPT, compare};
use crate::support::sparse::qwen_image::write_qwen_image;
use crate::support::{Home, root};

/// Shipped profiles that declare everything, each with a tight budget.
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

/// Those of them whose plans are also made for quantised weights.
const QUANTISED: [&str; 4] =
    ["rtx-4060-8g", "rtx-4090-24g", "rtx-5060ti-16g-rtx-3080-10g", "2x-rtx-3090-24g"];

#[test]
fn plans_of_its_true_size_are_those_that_were_read() {
    let home = Home::new();
    let written = write_qwen_image(&home.path("qwen-image")).expect("a file system with holes");
    assert_eq!(written.dit_bytes / 10_000_000, 4086);
    assert_eq!(written.llm_bytes / 10_000_000, 1658);
    assert_eq!(written.vae_bytes / 1_000_000, 253);
    let mut differences = Vec::new();
    for (profile, tight) in HOSTS {
        for (budget, more) in [
            ("free", &[][..]),
            ("tight", tight),
            ("q8_0", &["--weights-as", "q8_0"]),
            ("q4_k", &["--weights-as", "q4_k"]),
        ] {
            let is_quantised = budget.starts_with('q');
            if is_quantised && !QUANTISED.contains(&profile) {
                continue;
            }
            let arguments = ["plan", "qwen-image", "--dry-run", "--host", profile];
            let arguments = [&arguments[..], more, &["--explain"]].concat();
            let [first, second] = [0; 2].map(|_| home.run(&arguments));
            assert!(matches!(first.code, Some(0 | 1)), "{arguments:?}: {}", first.stderr);
            let said = |ended: &crate::support::Ended| {
                let told = if ended.code == Some(0) { "" } else { ended.stderr.as_str() };
                let model = home.path("qwen-image").display().to_string();
                format!("{}{told}", ended.stdout).replace(&model, "MODEL")
            };
            assert_eq!(said(&first), said(&second), "{arguments:?}: another answer");
            let text = format!("$ berth {}\n{}\n", arguments.join(" "), said(&first).trim_end());
            let path = root().join(format!("tests/golden/qwen_image/{profile}-{budget}.txt"));
            differences.extend(compare(&path, &text));
        }
    }
    let (count, all) = (differences.len(), differences.join("\n"));
    assert!(count == 0, "{count} differ; read them, then accept with {ACCEPT}=1\n{all}");
}
