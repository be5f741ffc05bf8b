//! Tokenizers that are small files and ask for much: each is refused before anything grows.

use std::path::Path;

use serde_json::{Value, json};

use crate::bad_input::bounded;
use crate::bad_input::case::{ERROR, GENERATE, changes, contents, copy, edit_json, faults_of};
use crate::support::{Home, fixture, golden};

const TOKENIZER: &str = "model/tokenizer_2/tokenizer.json";

/// What every refusal ends with.
const HINT: &str = "hint: take the tokenizer from the model's own repository";

/// A home whose model has a changed tokenizer.
fn home(change: impl FnOnce(&mut Value)) -> Home {
    let home = Home::new();
    copy(&fixture("flux_schnell"), &home.path("model"));
    edit_json(&home.path(TOKENIZER), change);
    home
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({ "type": "Replace", "pattern": { "String": pattern }, "content": content })
}

fn sequence(kind: &str, rules: Vec<Value>) -> Value {
    json!({ "type": "Sequence", kind: rules })
}

/// The two: 10 GB and 15 GB of memory from files of some megabytes.
#[test]
fn tokenizers_that_grow_without_bound_are_refused_with_a_hint() {
    let arguments: Vec<&str> = GENERATE.split(' ').collect();
    let replaces = home(|document| {
        let rule = replace("a", &"a".repeat(50_000));
        document["normalizer"] = sequence("normalizers", vec![rule.clone(), rule.clone(), rule]);
    });
    let ended = bounded::run(&replaces, &arguments);
    golden::said("tokenizer_that_replaces", &replaces, &arguments, &ended, &[]);

    let template = home(|document| {
        let piece = json!({ "SpecialToken": { "id": "</s>", "type_id": 0 } });
        let processor = &mut document["post_processor"];
        processor["single"] = vec![piece; 100_000].into();
        processor["special_tokens"]["</s>"]["ids"] = vec![1; 1000].into();
        processor["special_tokens"]["</s>"]["tokens"] = vec!["</s>"; 1000].into();
    });
    let ended = bounded::run(&template, &arguments);
    golden::said("tokenizer_that_repeats", &template, &arguments, &ended, &[]);

    let growing = home(|document| {
        let rules = ["a", "b", "c", "d"].map(|letter| replace(letter, &"abcd".repeat(16)));
        document["normalizer"] = sequence("normalizers", rules.to_vec());
    });
    let ended = bounded::run(&growing, &arguments);
    golden::said("tokenizer_that_grows", &growing, &arguments, &ended, &[]);
}

#[test]
fn whatever_a_tokenizer_asks_for_has_a_limit() {
    type Change = fn(&mut Value);
    let cases: [(&str, Change, &str); 13] = [
        (
            "rules",
            |document| {
                let rules =
                    vec![json!({ "type": "Strip", "strip_left": true, "strip_right": true }); 50];
                document["normalizer"] = sequence("normalizers", rules);
            },
            "33 rules, more than the 32",
        ),
        (
            "sequences in sequences",
            |document| {
                let nest = |inner, _: usize| sequence("normalizers", vec![inner]);
                document["normalizer"] = (0..20).fold(json!({ "type": "NFC" }), nest);
            },
            "5 levels of sequences, more than the 4",
        ),
        (
            "a rule that is none",
            |document| document["normalizer"] = json!([[{ "String": "a" }, "b"]]),
            "a rule is no object",
        ),
        (
            "a pattern",
            |document| {
                let pattern = json!({ "Regex": "a|".repeat(5000) });
                document["pre_tokenizer"] = json!({ "type": "Split", "pattern": pattern,
                    "behavior": "Removed", "invert": false });
            },
            "bytes of a pattern, more than the 2048",
        ),
        (
            "patterns of what decodes",
            |document| document["decoder"] = sequence("decoders", vec![replace("a", "b"); 13]),
            "13 patterns, more than the 12",
        ),
        (
            "a character map that says it is longer than all memory",
            |document| {
                let map = json!({ "type": "Precompiled", "precompiled_charsmap": "/////wA=" });
                document["normalizer"] = map;
            },
            "precompiled_charsmap is shorter than its table",
        ),
        (
            "a character that becomes a book",
            |document| {
                // No table, and one text of 3000 letters: `aaa` is YWFh in base64.
                let map = format!("AAAAAGFh{}", "YWFh".repeat(1000));
                document["normalizer"] =
                    json!({ "type": "Precompiled", "precompiled_charsmap": map });
            },
            "bytes that precompiled_charsmap makes of a character, more than the 64",
        ),
        (
            "a prefix",
            |document| {
                let prefix = "a".repeat(65);
                document["normalizer"] = json!({ "type": "Prepend", "prepend": prefix });
            },
            "65 bytes that a rule puts in, more than the 64",
        ),
        (
            "a text that stands in a template again and again",
            |document| {
                let piece = json!({ "Sequence": { "id": "A", "type_id": 0 } });
                document["post_processor"]["single"] = vec![piece; 30].into();
            },
            "times as long, more than 256 times",
        ),
        (
            "pieces of a template",
            |document| {
                let piece = json!({ "SpecialToken": { "id": "</s>", "type_id": 0 } });
                document["post_processor"]["single"] = vec![piece; 33].into();
            },
            "33 pieces of a template, more than the 32",
        ),
        (
            "ids of a piece",
            |document| {
                let token = &mut document["post_processor"]["special_tokens"]["</s>"];
                token["ids"] = vec![1; 17].into();
                token["tokens"] = vec!["</s>"; 17].into();
            },
            "17 ids of a template's special token, more than the 16",
        ),
        (
            "an added token",
            |document| document["added_tokens"][0]["content"] = "a".repeat(600).into(),
            "600 bytes of an added token, more than the 512",
        ),
        (
            "a token",
            |document| document["model"]["vocab"][5][0] = "a".repeat(600).into(),
            "600 bytes of a token, more than the 512",
        ),
    ];
    let mut faults = Vec::new();
    for (name, change, says) in cases {
        let home = home(change);
        drop(home.berth(&[]));
        let before = contents(&home);
        let ended = bounded::run(&home, &GENERATE.split(' ').collect::<Vec<_>>());
        let mut of_case = faults_of(&ended, ERROR, &[says, "tokenizer_2/tokenizer.json"]);
        if says.contains("more than") && !ended.stderr.contains(HINT) {
            of_case.push("has no hint".to_owned());
        }
        of_case.extend(changes(&before, &contents(&home)));
        if !of_case.is_empty() {
            faults.push(format!("{name}:\n    {}", of_case.join("\n    ")));
        }
    }
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

/// What a tokenizer in use may have is read: T5's own rules, and a long prompt through them.
#[test]
fn the_rules_of_published_tokenizers_are_within_the_limits() {
    let home = home(|document| {
        let map = document["normalizer"]["normalizers"][0].clone();
        assert_eq!(map["type"], "Precompiled");
        let blanks = json!({ "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": "▁" });
        let strip = json!({ "type": "Strip", "strip_left": false, "strip_right": true });
        document["normalizer"] = sequence("normalizers", vec![map, strip, blanks]);
    });
    assert!(Path::new(&home.path(TOKENIZER)).is_file());
    let prompt = "a  small ﷺ star ".repeat(2000);
    let mut arguments: Vec<&str> = GENERATE.split(' ').collect();
    let at = arguments.iter().position(|argument| *argument == "a").expect("the prompt");
    arguments[at] = &prompt;
    let ended = bounded::run(&home, &arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
