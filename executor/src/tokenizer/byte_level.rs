//! A byte-level BPE tokenizer from the tables that a GGUF file of a text encoder holds
//! (`tokenizer.ggml.*`), or from `vocab.json` and `merges.txt`. The result is what transformers
//! saves as `tokenizer.json` for the same model.

use std::collections::HashSet;
use std::path::Path;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, pre_tokenizers};

use super::bounds::vocabulary::{self, Tokens};
use super::files::{SpecialToken, TokenizerConfig, added_tokens};
use super::{Tokenizer, TokenizerError, TokenizerKind, guarded, pairs};
use crate::weights::{GgufKeys, WeightsError};

/// The model of such tables, by the name that llama.cpp gives it.
const MODEL: &str = "gpt2";

/// What each way of cutting a text (`tokenizer.ggml.pre`) takes for one word, from the
/// `tokenizer.json` of the models that are called so.
const WORD_PATTERNS: [(&str, &str); 1] = [(
    "qwen2",
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
)];

/// How Qwen's tokenizers cut a text, which no file of theirs but `tokenizer.json` says.
const PAIRS_PATTERN: &str = WORD_PATTERNS[0].1;

/// Kinds of tokens (`enum llama_token_type` of `llama.h`).
const CONTROL: f64 = 3.0;
const USER_DEFINED: f64 = 4.0;
const UNUSED: f64 = 5.0;

/// Builds the tokenizer of a directory without `tokenizer.json`.
///
/// # Errors
/// `vocab.json` or `merges.txt` is missing or malformed, or a special token is not in them.
pub(super) fn build(
    directory: &Path,
    kind: TokenizerKind,
    config: &TokenizerConfig,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let [vocabulary, merges] = pairs::read(directory)?;
    let (vocabulary, merges) = pairs::parse(directory, [&vocabulary, &merges])?;
    let words = guarded(|| words(vocabulary.into_iter().collect(), merges, PAIRS_PATTERN));
    let path = directory.join(pairs::VOCABULARY);
    let mut tokenizer = words.map_err(|message| TokenizerError::Malformed { path, message })?;
    let named = |token: &Option<SpecialToken>, default: &str| {
        token.clone().unwrap_or_else(|| SpecialToken::Text(default.to_owned()))
    };
    let (end, pad) = (named(&config.eos_token, kind.end), named(&config.pad_token, kind.pad));
    let roles = [("eos_token", &end), ("pad_token", &pad)];
    let of_file;
    let listed = match config.added_tokens_decoder.is_empty() {
        false => &config.added_tokens_decoder,
        true => {
            of_file = added_tokens(directory)?;
            &of_file
        }
    };
    pairs::add_special_tokens(&mut tokenizer, directory, listed, &roles)?;
    Ok(tokenizer)
}

/// Everything but the special tokens.
fn words(
    vocabulary: Vocab,
    merges: Merges,
    pattern: &str,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_normalizer(Some(NFC))?;
    let pattern = SplitPattern::Regex(pattern.to_owned());
    tokenizer.with_pre_tokenizer(Some(pre_tokenizers::sequence::Sequence::new(vec![
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into(),
        ByteLevel::default().add_prefix_space(false).use_regex(false).into(),
    ])));
    Ok(tokenizer)
}

/// The tables of a file.
struct BpeTables {
    tokens: Vec<String>,
    kinds: Vec<f64>,
    merges: Merges,
    pattern: &'static str,
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
    let tables = BpeTables::read(keys).map_err(malformed)?;
    let tokens = Tokens::of(tables.tokens.iter().map(String::as_str));
    let within = tokens.check().and_then(|()| vocabulary::check_merges(tables.merges.len()));
    within.map_err(|error| error.at(path))?;
    let [end, pad] = [tables.end, tables.pad].map(|id| tables.tokens[id].clone());
    let inner = guarded(|| tables.assemble()).map_err(malformed)?;
    let config = TokenizerConfig::with_tokens(&end, &pad);
    Tokenizer::checked(inner, kind, &config, path).map(Some)
}

impl BpeTables {
    fn read(keys: GgufKeys<'_>) -> Result<BpeTables, String> {
        let key = |name: &str| format!("tokenizer.ggml.{name}");
        let missing = |name: &str| format!("it has no tokenizer.ggml.{name}");
        let said = |fault: WeightsError| fault.to_string();
        let texts = |name: &str| keys.texts(&key(name)).map_err(said)?.ok_or_else(|| missing(name));
        let (tokens, merges) = (texts("tokens")?, texts("merges")?);
        let kinds = keys.numbers(&key("token_type")).map_err(said)?;
        let kinds = kinds.ok_or_else(|| missing("token_type"))?;
        let count = tokens.len();
        if kinds.len() != count {
            return Err(format!("it has {count} tokens and {} types of tokens", kinds.len()));
        }
        let name = keys.keys().text(&key("pre")).ok_or_else(|| missing("pre"))?;
        let pattern = WORD_PATTERNS.iter().find(|(known, _)| *known == name);
        let (_, pattern) = pattern.ok_or_else(|| {
            let known = WORD_PATTERNS.map(|(known, _)| known).join(", ");
            format!("its tokenizer.ggml.pre is {name:?}; known is {known}")
        })?;
        let id = |name: &str| {
            let id = keys.keys().integer(&key(name)).ok_or_else(|| missing(name))?;
            let id = usize::try_from(id).ok().filter(|id| *id < count);
            id.ok_or_else(|| format!("its {name} is beyond its {count} tokens"))
        };
        let (end, pad) = (id("eos_token_id")?, id("padding_token_id")?);
        let merges = pairs(&merges, &tokens)?;
        Ok(BpeTables { tokens, kinds, merges, pattern, end, pad })
    }

    fn assemble(&self) -> tokenizers::Result<tokenizers::Tokenizer> {
        // Tokens that only fill the embedding up to a round number are no tokens of the tokenizer.
        let used = self.kinds.iter().rposition(|kind| *kind != UNUSED).map_or(0, |last| last + 1);
        let used = self.tokens.iter().zip(&self.kinds).take(used);
        let vocabulary: Vocab =
            used.clone().zip(0..).map(|((token, _), id)| (token.clone(), id)).collect();
        let mut tokenizer = words(vocabulary, self.merges.clone(), self.pattern)?;
        let whole = used.filter(|(_, kind)| [CONTROL, USER_DEFINED].contains(kind));
        let whole = whole.map(|(token, kind)| {
            AddedToken::from(token.clone(), *kind == CONTROL).normalized(false)
        });
        tokenizer.add_tokens(whole.collect::<Vec<_>>())?;
        Ok(tokenizer)
    }
}

/// The merges, each a pair with a blank between; pairs and what they make are tokens.
fn pairs(merges: &[String], tokens: &[String]) -> Result<Merges, String> {
    let known: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    if known.len() < tokens.len() {
        return Err("a token stands twice".to_owned());
    }
    let pair = |merge: &String| {
        let pair = merge.split_once(' ');
        let (left, right) = pair.ok_or_else(|| format!("its merge {merge:?} is no pair"))?;
        let joined = [left, right].concat();
        for token in [left, right, &joined] {
            if !known.contains(token) {
                return Err(format!("its merge {merge:?} needs {token:?}, which is no token"));
            }
        }
        Ok((left.to_owned(), right.to_owned()))
    };
    merges.iter().map(pair).collect()
}
