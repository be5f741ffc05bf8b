//! What a tokenizer's files may expand to. A small `tokenizer.json` can ask for much: rules that
//! each make a text longer, templates that repeat it, patterns that compile to large programs,
//! vocabularies that become large tables. All of it is bounded here before the `tokenizers` crate
//! sees the file.
//!
//! Not here: whether a file makes sense, which the crate says.
//!
//! Invariants:
//! - Each part has a limit, and so has the product of what all rules may make of one byte of text.
//! - What is not understood counts as the worst that it can be, or is refused.

pub(super) mod charsmap;
mod rules;
pub(super) mod vocabulary;

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::TokenizerError;
use rules::{Rules, Section};
use vocabulary::{AddedTokens, ModelDocument};

/// The most that the rules of a tokenizer may make of one byte of text, in bytes. T5's character
/// map with its two rules for blanks, the most in use, is estimated at 200; with
/// [`super::TEXT_BYTES_MAX`] it makes 16 MiB.
pub(super) const GROWTH_MAX: usize = 256;

/// Most rules of all sections, sequences and those within them. In use are up to 12.
const RULES_MAX: usize = 32;

/// Deepest nesting of sequences; in use is one level.
const DEPTH_MAX: usize = 4;

/// Longest pattern, in bytes. The longest in use (the words of GPT-4o's tokenizer) has 400.
const PATTERN_BYTES_MAX: usize = 2048;

/// Most patterns of all sections. In use are up to 6, and each may compile to 10 MB.
const PATTERNS_MAX: usize = 12;

/// Longest other value of a rule, as JSON. The longest in use, a pair's template, has 300 bytes.
const VALUE_BYTES_MAX: usize = 8192;

/// Longest text that a rule puts in, in bytes. In use are a few characters.
const CONTENT_BYTES_MAX: usize = 64;

/// Most pieces of a template. In use are up to 6.
const PIECES_MAX: usize = 32;

/// Most ids that one piece of a template stands for; in use is one.
const PIECE_IDS_MAX: usize = 16;

/// Largest section of rules, in bytes of JSON: a character map takes the most, 320 kB in use.
const SECTION_BYTES_MAX: usize = 2 << 20;

/// What of a file is beyond a limit, or not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum BoundError {
    /// It is more than any tokenizer needs.
    #[error("{0}")]
    Beyond(String),
    /// It is not what a tokenizer has there.
    #[error("{0}")]
    Malformed(String),
}

impl BoundError {
    fn malformed(message: impl fmt::Display) -> BoundError {
        BoundError::Malformed(message.to_string())
    }

    /// As an error about the file at `path`.
    pub fn at(self, path: &Path) -> TokenizerError {
        let path = path.to_owned();
        match self {
            BoundError::Beyond(message) => TokenizerError::Beyond { path, message },
            BoundError::Malformed(message) => TokenizerError::Malformed { path, message },
        }
    }
}

/// A count that is at most its limit.
fn at_most(what: &str, got: usize, limit: usize) -> Result<(), BoundError> {
    if got <= limit {
        return Ok(());
    }
    Err(BoundError::Beyond(format!("{got} {what}, more than the {limit} that are read")))
}

/// The parts of `tokenizer.json`. Only the model and the added tokens are parsed here.
#[derive(Deserialize)]
struct TokenizerDocument<'a> {
    #[serde(borrow)]
    normalizer: Option<&'a RawValue>,
    #[serde(borrow)]
    pre_tokenizer: Option<&'a RawValue>,
    #[serde(borrow)]
    post_processor: Option<&'a RawValue>,
    #[serde(borrow)]
    decoder: Option<&'a RawValue>,
    #[serde(borrow)]
    truncation: Option<&'a RawValue>,
    #[serde(borrow)]
    padding: Option<&'a RawValue>,
    #[serde(borrow)]
    version: Option<Cow<'a, str>>,
    #[serde(default)]
    added_tokens: AddedTokens,
    model: ModelDocument,
}

/// Checks `tokenizer.json` against every limit. The error is malformed JSON, or names the limit.
pub(super) fn check_document(bytes: &[u8]) -> Result<(), BoundError> {
    let document: TokenizerDocument<'_> =
        serde_json::from_slice(bytes).map_err(BoundError::malformed)?;
    for section in [document.truncation, document.padding].into_iter().flatten() {
        at_most("bytes of settings", section.get().len(), PATTERN_BYTES_MAX)?;
    }
    at_most("bytes of version", document.version.map_or(0, |v| v.len()), CONTENT_BYTES_MAX)?;
    document.model.check()?;
    document.added_tokens.check()?;
    let mut rules = Rules::default();
    let growth = rules.growth_of(Section::Normalizer, document.normalizer)?
        * rules.growth_of(Section::PreTokenizer, document.pre_tokenizer)?
        * rules.growth_of(Section::PostProcessor, document.post_processor)?;
    // Nothing is decoded here, but the patterns are compiled.
    rules.growth_of(Section::Decoder, document.decoder)?;
    check_growth(growth)
}

/// A growth that is at most its limit.
pub(super) fn check_growth(growth: f64) -> Result<(), BoundError> {
    if growth <= GROWTH_MAX as f64 {
        return Ok(());
    }
    Err(BoundError::Beyond(format!(
        "its rules may make a text {growth:.0} times as long, more than {GROWTH_MAX} times"
    )))
}

#[cfg(test)]
mod tests;
