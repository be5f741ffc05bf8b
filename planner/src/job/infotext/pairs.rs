//! The last line of a text: `Key: value` pairs, some of the values quoted as JSON.
//!
//! Reads and writes what AUTOMATIC1111's `parse_generation_parameters` and `quote` do.

/// Fewest pairs of a line that is one of settings and not of the prompt.
pub const PAIRS_MIN: usize = 3;

/// Adds `Key: value` to a line, the value quoted where it would not be read back as it is.
pub fn push(line: &mut String, key: &str, value: &str) {
    if !line.is_empty() {
        line.push_str(", ");
    }
    line.push_str(key);
    line.push_str(": ");
    let is_plain = !value.is_empty()
        && value.trim() == value
        && !value.contains([',', ':', '"'])
        && !value.contains(char::is_control);
    match is_plain {
        true => line.push_str(value),
        false => line.push_str(&serde_json::Value::from(value).to_string()),
    }
}

/// The pairs of a line, in order. Text between them that is no pair is passed over.
pub fn split(line: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(':') {
        // Of what stands before the colon, the part behind the last comma is the key.
        let key = before.rsplit(',').next().unwrap_or(before).trim();
        let (value, left) = value(after.trim_start());
        rest = left;
        if is_key(key) {
            pairs.push((key.to_owned(), value));
        }
    }
    pairs
}

/// As `\w[\w \-/]+`, the pattern of keys.
fn is_key(text: &str) -> bool {
    let of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.chars().count() > 1
        && text.starts_with(of_word)
        && text.chars().all(|c| of_word(c) || matches!(c, ' ' | '-' | '/'))
}

/// The value that a text begins with, and what follows its comma.
fn value(text: &str) -> (String, &str) {
    if let Some((quoted, rest)) = quoted(text) {
        let rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix(',').or_else(|| rest.is_empty().then_some("")) {
            return (quoted, rest);
        }
    }
    let (value, rest) = text.split_once(',').unwrap_or((text, ""));
    (value.trim_end().to_owned(), rest)
}

/// The JSON string that a text begins with, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut escaped = false;
    let end = inside.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    let (string, rest) = text.split_at(end + 2);
    Some((serde_json::from_str(string).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(line: &str) -> Vec<(String, String)> {
        split(line)
    }

    fn expected(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_line_of_the_web_ui_is_read() {
        let line = r#"Steps: 20, Sampler: DPM++ 2M, CFG scale: 7, Size: 512x768, Lora hashes: "a: 12, b: 34", Version: v1.9"#;
        let read = [
            ("Steps", "20"),
            ("Sampler", "DPM++ 2M"),
            ("CFG scale", "7"),
            ("Size", "512x768"),
            ("Lora hashes", "a: 12, b: 34"),
            ("Version", "v1.9"),
        ];
        assert_eq!(pairs(line), expected(&read));
    }

    #[test]
    fn what_is_damaged_is_read_as_far_as_it_goes() {
        for (line, read) in [
            ("", &[][..]),
            ("no pair at all", &[]),
            (":::", &[]),
            ("Steps: 1, nonsense, Seed: 2", &[("Steps", "1"), ("Seed", "2")]),
            (r#"Steps: "1, Seed: 2"#, &[("Steps", "\"1"), ("Seed", "2")]),
            (r#"Steps: "1" more, Seed: 2"#, &[("Steps", "\"1\" more"), ("Seed", "2")]),
            (r#"Steps: "\x", Seed: 2"#, &[("Steps", r#""\x""#), ("Seed", "2")]),
            (r#"Steps: "\"#, &[("Steps", r#""\"#)]),
            ("a: 1, Seed: ", &[("Seed", "")]),
        ] {
            assert_eq!(pairs(line), expected(read), "{line}");
        }
    }

    #[test]
    fn values_come_back() {
        for value in
            ["", " ", "a", "a, b: c", "\"", "\\\"", "line\nline", "a\u{0}b", "赤い丸", "\\"]
        {
            let mut line = String::new();
            push(&mut line, "One", value);
            push(&mut line, "Two", value);
            assert!(!line.contains('\n'), "{line:?}");
            assert_eq!(pairs(&line), expected(&[("One", value), ("Two", value)]), "{line}");
        }
    }
}
