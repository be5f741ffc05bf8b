//! A SentencePiece unigram tokenizer from the tables that a GGUF file of the text encoder holds
//! (`tokenizer.ggml.*`). The result is what transformers saves as `tokenizer.json` for the same
//! model.

use std::path::Path;

use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{NormalizerWrapper, Precompiled, Replace, Strip};
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, normalizers};

use super::bounds::vocabulary::Tokens;
use super::bounds::{BoundError, charsmap, check_growth};
use super::files::TokenizerConfig;
use super::{Tokenizer, TokenizerError, TokenizerKind, guarded};
use crate::weights::gguf::GgufValue;
use crate::weights::{GgufKeys, WeightsError};

/// The model of such tables, by the name that llama.cpp gives it.
const MODEL: &str = "t5";

/// Kinds of tokens (`enum llama_token_type` of `llama.h`).
const NORMAL: f64 = 1.0;
const UNUSED: f64 = 5.0;
const BYTE: f64 = 6.0;

/// Stands for a blank.
const BLANK: &str = "▁";

/// The tables of a file.
struct Tables {
    tokens: Vec<String>,
    scores: Vec<f64>,
    kinds: Vec<f64>,
    /// The rules that characters are replaced by, as SentencePiece compiles them.
    character_map: Vec<u8>,
    unknown: usize,
    end: usize,
    pad: usize,
}

/// Whether a file has a tokenizer of this kind.
pub(super) fn is_in_gguf(keys: GgufKeys<'_>) -> bool {
    keys.keys().text("tokenizer.ggml.model") == Some(MODEL)
}

/// The tokenizer within a file, if it has one of this kind.
pub(super) fn from_gguf(
    keys: GgufKeys<'_>,
    path: &Path,
    kind: TokenizerKind,
) -> Result<Option<Tokenizer>, TokenizerError> {
    if !is_in_gguf(keys) {
        return Ok(None);
    }
    let malformed = |message: String| TokenizerError::Malformed { path: path.to_owned(), message };
    let tables = Tables::read(keys).map_err(malformed)?;
    tables.check().map_err(|error| error.at(path))?;
    let [end, pad] = [tables.end, tables.pad].map(|id| tables.tokens[id].clone());
    let whole = !is_off(keys, "remove_extra_whitespaces");
    let prefix = !is_off(keys, "add_space_prefix");
    let inner = guarded(|| tables.assemble(whole, prefix)).map_err(malformed)?;
    let config = TokenizerConfig::with_tokens(&end, &pad);
    Tokenizer::checked(inner, kind, &config, path).map(Some)
}

/// Whether a switch is set to false: left out, SentencePiece has it set.
fn is_off(keys: GgufKeys<'_>, name: &str) -> bool {
    keys.keys().value(&format!("tokenizer.ggml.{name}")) == Some(&GgufValue::Bool(false))
}

impl Tables {
    fn read(keys: GgufKeys<'_>) -> Result<Tables, String> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let missing = |name: &str| format!("it has no tokenizer.ggml.{name}");
        let said = |fault: WeightsError| fault.to_string();
        let numbers =
            |name: &str| keys.numbers(&key(name)).map_err(said)?.ok_or_else(|| missing(name));
        let tokens = keys.texts(&key("tokens")).map_err(said)?.ok_or_else(|| missing("tokens"))?;
        let (scores, kinds) = (numbers("scores")?, numbers("token_type")?);
        let count = tokens.len();
        if scores.len() != count || kinds.len() != count {
            let (scores, kinds) = (scores.len(), kinds.len());
            return Err(format!("it has {count} tokens, {scores} scores, {kinds} types of tokens"));
        }
        if let Some(score) = scores.iter().find(|score| !score.is_finite()) {
            return Err(format!("a token's score is {score}"));
        }
        let map = keys.numbers(&key("precompiled_charsmap")).map_err(said)?.unwrap_or_default();
        let byte = |&number: &f64| {
            let byte = number as u8;
            (f64::from(byte) == number).then_some(byte)
        };
        let character_map: Option<Vec<u8>> = map.iter().map(byte).collect();
        let character_map = character_map.ok_or("its precompiled_charsmap holds no bytes")?;
        let id = |name: &str| {
            let id = keys.keys().integer(&key(name)).ok_or_else(|| missing(name))?;
            let id = usize::try_from(id).ok().filter(|id| *id < count);
            id.ok_or_else(|| format!("its {name} is beyond its {count} tokens"))
        };
        let (unknown, end) = (id("unknown_token_id")?, id("eos_token_id")?);
        let pad = id("padding_token_id")?;
        Ok(Tables { tokens, scores, kinds, character_map, unknown, end, pad })
    }

    /// What its rules and tokens may expand to.
    fn check(&self) -> Result<(), BoundError> {
        Tokens::of(self.tokens.iter().map(String::as_str)).check_unigram()?;
        let map = match self.character_map.as_slice() {
            [] => 1.0,
            map => charsmap::growth(map)?,
        };
        // Two blanks become one of another kind, and each piece may begin with one.
        let blank = BLANK.len() as f64;
        check_growth(map * (blank / 2.0) * (1.0 + blank))
    }

    fn assemble(
        &self,
        joins_blanks: bool,
        begins_with_blank: bool,
    ) -> tokenizers::Result<tokenizers::Tokenizer> {
        // Tokens that only fill the embedding up to a round number are no tokens of the tokenizer.
        let used = self.kinds.iter().rposition(|kind| *kind != UNUSED).map_or(0, |last| last + 1);
        let is_piece = |id: usize| self.kinds[id] == NORMAL || self.kinds[id] == BYTE;
        // Others are found whole, and have no share in the probabilities.
        let piece =
            |id: usize| (self.tokens[id].clone(), if is_piece(id) { self.scores[id] } else { 0.0 });
        let vocabulary: Vec<(String, f64)> = (0..used).map(piece).collect();
        let model = Unigram::from(vocabulary, Some(self.unknown), self.kinds.contains(&BYTE))?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);

        let mut steps: Vec<NormalizerWrapper> = Vec::new();
        if !self.character_map.is_empty() {
            steps.push(Precompiled::from(&self.character_map)?.into());
        }
        if joins_blanks {
            steps.push(Strip::new(false, true).into());
            let blanks = ReplacePattern::Regex(" {2,}".to_owned());
            steps.push(Replace::new(blanks, BLANK)?.into());
        }
        tokenizer.with_normalizer(Some(normalizers::Sequence::new(steps)))?;
        let scheme = if begins_with_blank { PrependScheme::Always } else { PrependScheme::Never };
        tokenizer.with_pre_tokenizer(Some(Metaspace::new('▁', scheme, true)));

        let whole = (0..used).filter(|id| !is_piece(*id) && self.kinds[*id] != UNUSED);
        let whole = whole.map(|id| AddedToken::from(self.tokens[id].clone(), true));
        tokenizer.add_special_tokens(whole.collect::<Vec<_>>())?;
        let end = self.tokens[self.end].clone();
        let around = TemplateProcessing::builder()
            .try_single(vec!["$A".to_owned(), end.clone()])?
            .special_tokens(vec![(end, self.end as u32)])
            .build()?;
        tokenizer.with_post_processor(Some(around));
        Ok(tokenizer)
    }
}
