//! The entry points of a kernel file, found by the preprocessor, and the source that registers
//! them.
//!
//! An entry point is any `extern "C" __global__ void name(Arguments arguments)`, also one that a
//! macro writes: nothing else marks it. Each file of kernels is a translation unit and a namespace
//! of its own, so helpers of the same name do not meet.

use std::ffi::OsString;
use std::path::Path;

/// A kernel, and the most threads that its launch bounds allow: an expression of its source.
#[derive(Debug, PartialEq)]
struct Entry {
    name: String,
    threads_max: String,
}

/// The source to compile for the file of kernels at `path`.
pub fn registered(path: &Path, arguments: &[OsString]) -> String {
    let scan = ["-E", "-P", "-DSIMULATOR_SCAN", "-x", "c++"].map(OsString::from);
    let arguments = [arguments, &scan, &[path.into()]].concat();
    let output = super::run_compiler(&arguments, &path.to_string_lossy());
    let entries = entries(&String::from_utf8_lossy(&output));
    assert!(!entries.is_empty(), "{} has no entry point", path.display());
    let mut source = "#include \"simulator.h\"\n#include \"launch.h\"\nnamespace {\n".to_owned();
    source += &format!("#include \"{}\"\n", path.display());
    for (index, Entry { name, threads_max }) in entries.iter().enumerate() {
        source += &format!(
            "const simulator::Register entry_{index}(simulator::entry(\"{name}\", &{name}, {threads_max}));\n"
        );
    }
    source + "}\n"
}

/// The entry points in a preprocessed text, in which the shim leaves `SIMULATOR_ENTRY` for
/// `__global__` and `SIMULATOR_BOUNDS(…)` for `__launch_bounds__(…)`.
fn entries(text: &str) -> Vec<Entry> {
    let mut parts = text.split("SIMULATOR_ENTRY");
    let mut before = parts.next().unwrap_or_default();
    let mut entries = Vec::new();
    for part in parts {
        // A template or a declaration without C linkage is no entry point.
        if before.trim_end().ends_with("extern \"C\"") {
            entries.push(entry(part));
        }
        before = part;
    }
    entries
}

/// The entry point whose text, after `__global__`, begins here.
fn entry(text: &str) -> Entry {
    let (head, threads_max) = match text.split_once("SIMULATOR_BOUNDS") {
        // Launch bounds of a later kernel stand behind this one's body.
        Some((head, rest)) if !head.contains('{') => {
            let (inside, rest) = parenthesised(rest);
            (format!("{head}{rest}"), first_argument(inside))
        }
        _ => (text.to_owned(), "simulator::BLOCK_THREADS_MAX".to_owned()),
    };
    let (signature, _) = head.split_once('(').expect("a kernel has parameters");
    let name = signature.split_whitespace().last().expect("a kernel has a name");
    Entry { name: name.to_owned(), threads_max }
}

/// What stands in the parentheses that begin the text, and what follows them.
fn parenthesised(text: &str) -> (&str, &str) {
    let start = text.find('(').expect("a parenthesis") + 1;
    let mut depth = 1;
    for (at, character) in text[start..].char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[start..start + at], &text[start + at + 1..]);
        }
    }
    panic!("a parenthesis is not closed");
}

/// The first of arguments that are apart by commas outside of parentheses.
fn first_argument(text: &str) -> String {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => return text[..at].trim().to_owned(),
            _ => {}
        }
    }
    text.trim().to_owned()
}

#[test]
fn entry_points_are_found_however_they_are_written() {
    let text = r#"
        extern "C" SIMULATOR_ENTRY void plain(Args args) { if (args.x) { call(args); } }
        extern "C" SIMULATOR_ENTRY void SIMULATOR_BOUNDS(256) bound(Args args) { }
        extern "C" SIMULATOR_ENTRY SIMULATOR_BOUNDS((THREADS + 1) * max(2, 3), 2) void
            both(const Args args) { } extern "C" SIMULATOR_ENTRY void next (Args a) {}
        template <int N> SIMULATOR_ENTRY void no_entry(Args args) { }
    "#;
    let max = "simulator::BLOCK_THREADS_MAX";
    let expected =
        [("plain", max), ("bound", "256"), ("both", "(THREADS + 1) * max(2, 3)"), ("next", max)];
    let expected = expected.map(|(name, threads_max)| Entry {
        name: name.to_owned(),
        threads_max: threads_max.to_owned(),
    });
    assert_eq!(entries(text), expected);
}
