//! Words of families: where they may stand, in code, comments and messages alike.

use super::sources::{Source, none, sources};

/// What only a family, or one of its parts, is called.
const FAMILY_WORDS: [&str; 11] = [
    "flux", "schnell", "klein", "z_image", "z-image", "zimage", "qwen", "sd3", "clip", "t5",
    "gemma",
];

/// Where families and their parts are at home; and the lists of names that users may write, each
/// with its reason.
const OWN_PLACES: [(&str, &str); 6] = [
    ("executor/src/families", "a folder and a line of the registry for each"),
    ("executor/src/components", "networks are called as their papers do"),
    ("executor/src/tokenizer", "so are the tokenizers that belong to them"),
    ("protocol/src/model.rs", "PartFlag: the flags that name a part's file, a line each"),
    ("planner/src/policy/aliases.rs", "names on command lines, also of another program"),
    ("planner/src/serve/edge/sdapi/names.rs", "fields of another program's routes"),
];

/// Lines with a word of a family, outside of its own places.
fn named_elsewhere(sources: &[Source]) -> Vec<String> {
    let elsewhere = sources.iter().filter(|source| {
        let own = OWN_PLACES.iter().any(|(place, _)| source.is_under(place));
        source.module().is_some() && !source.is_tests() && !own
    });
    let mut found = Vec::new();
    for source in elsewhere {
        let lines = source.text.lines().take_while(|line| *line != "mod tests {");
        let named = lines.enumerate().filter(|(_, line)| names_family(line));
        found.extend(
            named.map(|(index, line)| format!("{}:{}: {}", source.path, index + 1, line.trim())),
        );
    }
    found
}

fn names_family(line: &str) -> bool {
    let line = line.to_lowercase().replace("clippy", "");
    FAMILY_WORDS.iter().any(|word| line.contains(word))
}

#[test]
fn families_and_their_parts_are_named_in_their_own_places_only() {
    none("no word of a family outside", named_elsewhere(&sources()));
}

#[test]
fn a_planted_word_of_a_family_is_seen() {
    let planted = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let sources = [
        planted(
            "planner/src/planning/advice.rs",
            "fn f(family: &str) -> bool {\n    family == \"flux\"\n}",
        ),
        planted("protocol/src/plan.rs", "//! As CLIP-L has it.\n#![allow(clippy::all)]"),
        planted("executor/src/graph.rs", "mod qwen3;\nmod tests {\n    use super::clip;\n}"),
        planted("executor/src/families/flux1.rs", "struct Flux1;"),
        planted("planner/src/solve/tests.rs", "const NAME: &str = \"clip\";"),
        planted("tests/parity.rs", "const NAME: &str = \"flux\";"),
    ];
    let found = named_elsewhere(&sources);
    let expected = [
        "planner/src/planning/advice.rs:2: family == \"flux\"",
        "protocol/src/plan.rs:1: //! As CLIP-L has it.",
        "executor/src/graph.rs:1: mod qwen3;",
    ];
    assert_eq!(found, expected);
}
