//! A reader of OpenMetrics text that takes nothing else (the specification, version 1.0.0), as
//! `promtool check metrics` and Prometheus itself read it.

use std::collections::{BTreeMap, BTreeSet};

/// Figures of one name.
#[derive(Debug, Default)]
pub struct MetricFamily {
    /// As `counter`.
    pub kind: String,
    pub help: String,
    pub unit: String,
    pub samples: Vec<Sample>,
}

/// One figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

/// Families by name.
pub type Exposition = BTreeMap<String, MetricFamily>;

/// Reads a whole text; panics with the line that is wrong.
pub fn read(text: &str) -> Exposition {
    let body = text.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let mut families = Exposition::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            let (keyword, rest) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            let (name, value) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(name), "{line}");
            if name != current {
                assert!(!families.contains_key(name), "{name} comes in two places");
                name.clone_into(&mut current);
            }
            let family = families.entry(name.to_owned()).or_default();
            assert!(family.samples.is_empty(), "it is declared behind its figures: {line}");
            let field = match keyword {
                "HELP" => &mut family.help,
                "TYPE" => &mut family.kind,
                "UNIT" => &mut family.unit,
                _ => panic!("neither HELP nor TYPE nor UNIT: {line}"),
            };
            assert!(field.is_empty() && !value.is_empty(), "{line}");
            value.clone_into(field);
        } else {
            let sample = sample(line);
            let family = families.get_mut(&current).unwrap_or_else(|| panic!("of none: {line}"));
            let suffix = sample.name.strip_prefix(&current).unwrap_or_else(|| panic!("{line}"));
            assert!(
                suffixes(&family.kind).contains(&suffix),
                "no name of a {}: {line}",
                family.kind
            );
            assert!(seen.insert((sample.name.clone(), sample.labels.clone())), "twice: {line}");
            family.samples.push(sample);
        }
    }
    for (name, family) in &families {
        check(name, family);
    }
    families
}

/// What may stand behind the name of a family in the names of its figures.
fn suffixes(kind: &str) -> &'static [&'static str] {
    match kind {
        "counter" => &["_total", "_created"],
        "gauge" => &[""],
        "histogram" => &["_bucket", "_sum", "_count", "_created"],
        "info" => &["_info"],
        other => panic!("no type: {other}"),
    }
}

fn check(name: &str, family: &MetricFamily) {
    assert!(!family.help.is_empty() && !family.kind.is_empty(), "{name} is not declared");
    if !family.unit.is_empty() {
        assert!(name.ends_with(&format!("_{}", family.unit)), "{name} does not end with its unit");
    }
    // As promtool: what is counted or measured in base units says so.
    for unit in ["seconds", "bytes"] {
        assert_eq!(name.ends_with(&format!("_{unit}")), family.unit == unit, "{name} and its unit");
    }
    assert!(!name.ends_with("_total"), "the name of a family has no suffix: {name}");
    for sample in &family.samples {
        let grows = matches!(family.kind.as_str(), "counter" | "histogram");
        assert!(!grows || sample.value >= 0.0, "{sample:?}");
    }
    if family.kind == "histogram" {
        check_histogram(name, family);
    }
}

/// Buckets are in order, cumulative, and end with what `_count` says; there is a `_sum`.
fn check_histogram(name: &str, family: &MetricFamily) {
    let mut series: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    let of = |suffix: &'static str| {
        family.samples.iter().filter(move |sample| sample.name == format!("{name}{suffix}"))
    };
    for bucket in of("_bucket") {
        let mut labels = bucket.labels.clone();
        let le = labels.remove("le").unwrap_or_else(|| panic!("{bucket:?} has no le"));
        series.entry(labels).or_default().push((number(&le), bucket.value));
    }
    for (labels, buckets) in &series {
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0), "{name}{labels:?}: {buckets:?}");
        assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name}{labels:?}: {buckets:?}");
        let (le, count) = *buckets.last().expect("a bucket");
        assert_eq!(le, f64::INFINITY, "{name}{labels:?}");
        let counts: Vec<&Sample> = of("_count").filter(|sample| sample.labels == *labels).collect();
        assert!(
            matches!(counts[..], [only] if only.value == count),
            "{name}{labels:?}: {counts:?}"
        );
        assert_eq!(
            of("_sum").filter(|sample| sample.labels == *labels).count(),
            1,
            "{name}{labels:?}"
        );
    }
    let all = of("_count").count();
    assert_eq!(all, series.len(), "{name} has a count without buckets");
}

fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => read_labels(rest, line),
        None => (BTreeMap::new(), rest),
    };
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no space: {line}"));
    Sample { name: name.to_owned(), labels, value: number(value) }
}

/// `name="value",…}`, with `\\`, `\"` and `\n`.
fn read_labels<'a>(mut rest: &'a str, line: &str) -> (BTreeMap<String, String>, &'a str) {
    let mut labels = BTreeMap::new();
    loop {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
        assert!(is_name(name) && !name.contains(':'), "{name:?} in {line}");
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next().unwrap_or_else(|| panic!("no end: {line}")) {
                (at, '"') => break at + 1,
                (_, '\\') => match letters.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, letter @ ('"' | '\\'))) => value.push(letter),
                    other => panic!("{other:?} behind a backslash: {line}"),
                },
                (_, letter) => value.push(letter),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "{name} twice: {line}");
        rest = &after[end..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return (labels, rest.strip_prefix('}').unwrap_or_else(|| panic!("{line}"))),
        }
    }
}

fn is_name(name: &str) -> bool {
    let mut letters = name.chars();
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    letters.next().is_some_and(begins) && letters.all(|c| begins(c) || c.is_ascii_digit())
}

fn number(text: &str) -> f64 {
    match text {
        "+Inf" => f64::INFINITY,
        text => {
            let value: f64 = text.parse().unwrap_or_else(|_| panic!("no number: {text}"));
            assert!(value.is_finite(), "{text}");
            value
        }
    }
}

#[test]
fn what_is_wrong_is_found() {
    let counter = "# HELP a_b Some.\n# TYPE a_b counter\n";
    let histogram = "# HELP a H.\n# TYPE a histogram\n";
    for text in [
        "a 1\n# EOF\n".to_owned(),
        format!("{counter}a_b_total 1\n"),
        format!("{counter}a_b 1\n# EOF\n"),
        format!("{counter}a_b_total -1\n# EOF\n"),
        format!("{counter}a_b_total 1\na_b_total 1\n# EOF\n"),
        format!("{counter}a_b_total{{c=\"\\d\"}} 1\n# EOF\n"),
        format!("{counter}a_b_total 1\n# HELP c C.\n# TYPE c gauge\nc 1\n{counter}# EOF\n"),
        "# HELP a_seconds H.\n# TYPE a_seconds gauge\na_seconds 1\n# EOF\n".to_owned(),
        format!(
            "{histogram}a_bucket{{le=\"1.0\"}} 2\na_bucket{{le=\"+Inf\"}} 1\na_count 1\na_sum 1\n# EOF\n"
        ),
        format!("{histogram}a_bucket{{le=\"1.0\"}} 1\na_count 1\na_sum 1\n# EOF\n"),
        format!("{histogram}a_bucket{{le=\"+Inf\"}} 1\na_count 2\na_sum 1\n# EOF\n"),
    ] {
        let text = text.as_str();
        assert!(std::panic::catch_unwind(|| read(text)).is_err(), "{text}");
    }
    let right = format!("{counter}a_b_total{{c=\"\\\"\\\\ \\n\",d=\"\"}} 1\n# EOF\n");
    assert_eq!(read(&right)["a_b"].samples[0].labels["c"], "\"\\ \n");
}
