//! Sections of rules: normalizer, pre-tokenizer, post-processor, decoder. Each is a rule, or a
//! sequence of rules.
//!
//! Kinds are told by their fields and not by their names: the crate takes rules without a name too.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::charsmap;
use super::{
    BoundError, CONTENT_BYTES_MAX, DEPTH_MAX, PATTERN_BYTES_MAX, PATTERNS_MAX, PIECE_IDS_MAX,
    PIECES_MAX, RULES_MAX, SECTION_BYTES_MAX, VALUE_BYTES_MAX, at_most,
};

/// The most that Unicode's compatibility forms make of one byte of UTF-8
/// (<https://unicode.org/faq/normalization.html#12>).
const COMPATIBILITY_GROWTH: f64 = 11.0;

/// The same of the canonical forms: NFD and NFC make up to 3 bytes of one.
const CANONICAL_GROWTH: f64 = 3.0;

/// The most that making letters small adds: `Ⱥ` of 2 bytes becomes `ⱥ` of 3.
const LOWERCASE_GROWTH: f64 = 1.5;

/// BERT's rule puts blanks around a CJK character of 3 bytes, takes accents off and makes letters
/// small.
const BERT_GROWTH: f64 = 5.0 / 3.0 * CANONICAL_GROWTH * LOWERCASE_GROWTH;

/// The fields by which sequences hold their rules.
const SEQUENCES: [&str; 4] = ["normalizers", "pretokenizers", "processors", "decoders"];

/// A part of `tokenizer.json` that is made of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Normalizer,
    PreTokenizer,
    PostProcessor,
    Decoder,
}

/// What was counted in all sections so far.
#[derive(Default)]
pub(super) struct Rules {
    rules: usize,
    patterns: usize,
}

impl Rules {
    /// What a section may make of one byte of text; an error if it is beyond a limit.
    pub fn growth_of(
        &mut self,
        section: Section,
        json: Option<&RawValue>,
    ) -> Result<f64, BoundError> {
        let Some(json) = json.map(RawValue::get) else { return Ok(1.0) };
        at_most("bytes of rules", json.len(), SECTION_BYTES_MAX)?;
        let rule = serde_json::from_str(json).map_err(BoundError::malformed)?;
        self.growth(section, &rule, 0)
    }

    fn growth(&mut self, section: Section, rule: &Value, depth: usize) -> Result<f64, BoundError> {
        let fields = match rule {
            Value::Null => return Ok(1.0),
            Value::Object(fields) => fields,
            _ => return Err(BoundError::malformed("a rule is no object")),
        };
        self.rules += 1;
        at_most("rules", self.rules, RULES_MAX)?;
        at_most("levels of sequences", depth, DEPTH_MAX)?;
        let mut growth = own_growth(section, fields);
        for (key, value) in fields {
            growth *= match key.as_str() {
                key if SEQUENCES.contains(&key) => self.sequence(section, value, depth)?,
                "pattern" => self.pattern(value)?,
                "content" => content(value, fields.get("pattern"))?,
                "prepend" => 1.0 + text(value)? as f64,
                "precompiled_charsmap" => charsmap::growth_of_text(value)?,
                "single" => template(value)?,
                "pair" => template(value).map(|_| 1.0)?,
                "special_tokens" => special_tokens(value)?,
                _ => other(value)?,
            };
        }
        Ok(growth)
    }

    /// Rules that run one after the other.
    fn sequence(
        &mut self,
        section: Section,
        rules: &Value,
        depth: usize,
    ) -> Result<f64, BoundError> {
        let rules = rules.as_array();
        let rules = rules.ok_or_else(|| BoundError::malformed("a sequence of rules is no list"))?;
        let mut growth = 1.0;
        for rule in rules {
            growth *= self.growth(section, rule, depth + 1)?;
        }
        Ok(growth)
    }

    /// `{"Regex": …}` or `{"String": …}`, of limited length and number.
    fn pattern(&mut self, pattern: &Value) -> Result<f64, BoundError> {
        self.patterns += 1;
        at_most("patterns", self.patterns, PATTERNS_MAX)?;
        at_most("bytes of a pattern", pattern.to_string().len(), PATTERN_BYTES_MAX)?;
        Ok(1.0)
    }
}

/// What a match becomes, for each byte that is matched. Where nothing may match, that is before
/// each byte and at the end.
fn content(content: &Value, pattern: Option<&Value>) -> Result<f64, BoundError> {
    let bytes = text(content)? as f64;
    let matched = match pattern.and_then(Value::as_object) {
        Some(pattern) => match (pattern.get("String"), pattern.get("Regex")) {
            (Some(Value::String(text)), None) => text.len(),
            // What this does not parse, with a look around say, may match nothing.
            (None, Some(Value::String(regex))) => regex_syntax::parse(regex)
                .ok()
                .and_then(|regex| regex.properties().minimum_len())
                .unwrap_or(0),
            _ => 0,
        },
        None => 0,
    };
    Ok(match matched {
        0 => 1.0 + 2.0 * bytes,
        matched => (bytes / matched as f64).max(1.0),
    })
}

/// The pieces of a template: how often the text stands in it.
fn template(template: &Value) -> Result<f64, BoundError> {
    let pieces = template.as_array().map_or(&[][..], Vec::as_slice);
    at_most("pieces of a template", pieces.len(), PIECES_MAX)?;
    other(template)?;
    let repeats = pieces.iter().filter(|piece| piece.get("SpecialToken").is_none()).count();
    Ok(repeats.max(1) as f64)
}

/// The ids that pieces of a template stand for.
fn special_tokens(tokens: &Value) -> Result<f64, BoundError> {
    let tokens = tokens.as_object();
    let tokens = tokens.ok_or_else(|| BoundError::malformed("special tokens are no object"))?;
    at_most("special tokens of a template", tokens.len(), PIECES_MAX)?;
    for token in tokens.values() {
        let lists: Vec<&Value> = match token {
            Value::Object(fields) => fields.values().collect(),
            Value::Array(fields) => fields.iter().collect(),
            _ => Vec::new(),
        };
        for list in lists.into_iter().filter_map(Value::as_array) {
            at_most("ids of a template's special token", list.len(), PIECE_IDS_MAX)?;
        }
        other(token)?;
    }
    Ok(1.0)
}

/// Bytes of a text that a rule puts in.
fn text(text: &Value) -> Result<usize, BoundError> {
    let bytes = text.as_str().map_or_else(|| text.to_string().len(), str::len);
    at_most("bytes that a rule puts in", bytes, CONTENT_BYTES_MAX)?;
    Ok(bytes)
}

/// Any other value is small, and changes no length.
fn other(value: &Value) -> Result<f64, BoundError> {
    at_most("bytes of a rule's value", value.to_string().len(), VALUE_BYTES_MAX)?;
    Ok(1.0)
}

/// What a rule makes of one byte by its kind; what its fields make of it comes to that.
fn own_growth(section: Section, fields: &Map<String, Value>) -> f64 {
    if matches!(section, Section::PostProcessor | Section::Decoder) {
        return 1.0;
    }
    match fields.get("type").and_then(Value::as_str) {
        Some("NFKC" | "NFKD") => COMPATIBILITY_GROWTH,
        Some("NFC" | "NFD") => CANONICAL_GROWTH,
        Some("Lowercase") => LOWERCASE_GROWTH,
        // Each byte becomes a character of up to 2 bytes, and so may a blank before it.
        Some("ByteLevel") if fields.get("add_prefix_space") == Some(&Value::Bool(false)) => 2.0,
        Some("ByteLevel") => 4.0,
        // Such a character stands for a blank, and before a piece that may have a single byte.
        Some("Metaspace") => {
            let replacement = fields.get("replacement").and_then(Value::as_str);
            1.0 + replacement.map_or(4, str::len) as f64
        }
        Some("BertNormalizer" | "Bert") => BERT_GROWTH,
        Some(_) => 1.0,
        // It may be any that needs no field.
        None => COMPATIBILITY_GROWTH,
    }
}
