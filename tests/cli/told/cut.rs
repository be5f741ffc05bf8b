//! Prompts that are longer than their text encoders read.

use crate::support::{Ended, Home, fixture, golden, pixels};
use crate::told::without_figures;

/// A picture as small as can be; T5 reads 32 tokens, CLIP 77.
const SMALL: &str = "--width 64 --height 64 --steps 1 --max-sequence-length 32";

/// So many words, with their numbers.
fn words(count: usize) -> String {
    (0..count).map(|number| format!("star{number}")).collect::<Vec<_>>().join(" ")
}

fn generate(home: &Home, more: &[&str]) -> Ended {
    let model = fixture("flux_schnell");
    let model = model.to_str().expect("a path of text");
    let arguments: Vec<&str> = ["generate", model].into_iter().chain(SMALL.split(' ')).collect();
    let ended = home.run(&[arguments.as_slice(), more].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended
}

/// Holds what is told against golden text.
fn told(name: &str, home: &Home, more: &[&str]) {
    let ended = generate(home, more);
    let arguments = [&["generate", "MODEL"], more].concat();
    golden::said(name, home, &arguments, &without_figures(&ended, "left out"), &[]);
}

#[test]
fn what_is_cut_is_told_by_each_encoder_that_cuts() {
    let home = Home::new();
    told("prompt_cut_by_both", &home, &["--prompt", &words(60)]);
    let second = ["--prompt", "a star", "--prompt-2", &words(30)];
    told("second_prompt_cut", &home, &second);
    let more = words(60);
    let negative = ["--prompt", "a star", "--negative-prompt", &more, "--true-cfg-scale", "4"];
    told("negative_prompt_cut", &home, &negative);
    let control = format!("{} \u{1b}[2J\u{7}\u{202e}\nend", words(20));
    told("prompt_cut_with_control_characters", &home, &["--prompt", &control]);
}

#[test]
fn what_is_cut_stands_in_the_document() {
    let home = Home::new();
    let prompt = words(20);
    let document = generate(&home, &["--prompt", &prompt, "--json"]).json();
    let warnings = document["warnings"].as_array().expect("a list");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let told = warnings[0].as_str().expect("a sentence");
    let left_out = told.strip_prefix("T5 reads 32 tokens: left out of the prompt: \"");
    let left_out = left_out.and_then(|rest| rest.strip_suffix('"')).expect(told);
    assert!(!left_out.is_empty() && prompt.ends_with(left_out), "{left_out:?}");

    let whole = generate(&home, &["--prompt", "a star", "--json"]);
    assert_eq!(whole.json()["warnings"], serde_json::json!([]));
    assert!(!whole.stderr.contains("left out"), "{}", whole.stderr);
}

/// What is said to be left out has no effect, and what stands before it has one.
#[test]
fn what_is_left_out_has_no_effect() {
    let home = Home::new();
    let picture = |second: &str| {
        let more = ["--prompt", "a star", "--prompt-2", second, "--seed", "7"];
        let document = generate(&home, &[&more[..], &["--output", "p.png", "--json"]].concat());
        let document = document.json();
        let told = document["warnings"].as_array().expect("a list").clone();
        (pixels(&home.path("p.png")), told)
    };
    let prompt = "a small blue star over a wide green sea and one more ship ".repeat(2);
    let (cut, told) = picture(&prompt);
    let [told] = told.as_slice() else { panic!("one encoder cuts it: {told:?}") };
    let told = told.as_str().expect("a sentence");
    let quoted = told.strip_prefix("T5 reads 32 tokens: left out of the second prompt: ");
    let left_out: String = serde_json::from_str(quoted.expect(told)).expect("a quoted text");
    let kept = prompt.trim_end().strip_suffix(&left_out).expect("it is the prompt's end");
    assert!(!kept.is_empty() && left_out.contains("ship"), "{left_out:?}");
    let other = format!("{kept}{}", left_out.replace("ship", "hill"));
    assert!(picture(&other).0 == cut, "what was left out has an effect");
    let changed = picture(&prompt.replacen("small", "large", 1)).0;
    assert!(changed != cut, "what was kept has none");
}
