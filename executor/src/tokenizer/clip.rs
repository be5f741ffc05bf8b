//! CLIP's tokenizer from `vocab.json` and `merges.txt`, for directories without `tokenizer.json`,
//! and for files that come without a tokenizer.
//!
//! The text is brought into NFC, runs of white space become one blank, letters become small; it is
//! split into words by CLIP's pattern, and each word's bytes are merged in the order of
//! `merges.txt`, with `</w>` on the last. The result is what transformers saves as `tokenizer.json`
//! for the same files.

use std::collections::HashMap;
use std::path::Path;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, Replace};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, SplitDelimiterBehavior, normalizers, pre_tokenizers};

use super::bounds::vocabulary;
use super::files::{SpecialToken, TokenizerConfig, parse_json, read_capped};
use super::{TokenizerError, TokenizerKind, VOCABULARY_FILE_BYTES_MAX, guarded};

/// What CLIP takes for one word, from the tokenizer published with it (openai/CLIP,
/// `simple_tokenizer.py`). The two special tokens keep a literal mention in one piece.
const WORD_PATTERN: &str = concat!(
    r"<\|startoftext\|>|<\|endoftext\|>",
    r"|'s|'t|'re|'ve|'m|'ll|'d",
    r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
);

/// Marks the last piece of a word in CLIP's vocabulary.
const END_OF_WORD: &str = "</w>";

/// The token that begins a sequence, unless `tokenizer_config.json` names another.
const DEFAULT_START: &str = "<|startoftext|>";

/// Builds the tokenizer of `directory`; both files must be there.
pub(super) fn build(
    directory: &Path,
    config: &TokenizerConfig,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let vocabulary_path = directory.join("vocab.json");
    let merges_path = directory.join("merges.txt");
    let (Some(vocabulary), Some(merges)) = (
        read_capped(&vocabulary_path, VOCABULARY_FILE_BYTES_MAX)?,
        read_capped(&merges_path, VOCABULARY_FILE_BYTES_MAX)?,
    ) else {
        return Err(TokenizerError::missing_bpe(directory));
    };
    build_of(directory, &vocabulary, &merges, config)
}

/// Builds the tokenizer of these files' content; the directory is for messages.
pub(super) fn build_of(
    directory: &Path,
    vocabulary: &[u8],
    merges: &[u8],
    config: &TokenizerConfig,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let vocabulary_path = directory.join("vocab.json");
    let merges_path = directory.join("merges.txt");
    vocabulary::check_json(vocabulary).map_err(|error| error.at(&vocabulary_path))?;
    let vocabulary: HashMap<String, u32> = parse_json(&vocabulary_path, vocabulary)?;
    let merges = parse_merges(&merges_path, merges, &vocabulary)?;

    let named = |token: &Option<SpecialToken>, default: &str| {
        token.clone().unwrap_or_else(|| SpecialToken::Text(default.to_owned()))
    };
    let end = named(&config.eos_token, TokenizerKind::CLIP.end);
    let start = named(&config.bos_token, DEFAULT_START);
    let roles = [
        ("bos_token", &start),
        ("eos_token", &end),
        ("unk_token", &named(&config.unk_token, end.content())),
        ("pad_token", &named(&config.pad_token, end.content())),
    ];

    let unknown = roles[2].1.content().to_owned();
    let words = guarded(|| assemble(vocabulary.into_iter().collect(), merges, unknown));
    let mut tokenizer = words
        .map_err(|message| TokenizerError::Malformed { path: vocabulary_path.clone(), message })?;
    add_special_tokens(&mut tokenizer, directory, config, &roles)?;

    let with_id = |token: &SpecialToken| {
        let id = tokenizer.token_to_id(token.content()).expect("special tokens were just added");
        (token.content().to_owned(), id)
    };
    let around = RobertaProcessing::new(with_id(&end), with_id(&start))
        .trim_offsets(false)
        .add_prefix_space(false);
    tokenizer.with_post_processor(Some(around));
    Ok(tokenizer)
}

/// Everything but the special tokens.
fn assemble(
    vocabulary: Vocab,
    merges: Merges,
    unknown: String,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let model = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .unk_token(unknown)
        .end_of_word_suffix(END_OF_WORD.to_owned())
        .build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_normalizer(Some(normalizers::Sequence::new(vec![
        NFC.into(),
        Replace::new(ReplacePattern::Regex(r"\s+".to_owned()), " ")?.into(),
        Lowercase.into(),
    ])))?;
    let pattern = SplitPattern::Regex(WORD_PATTERN.to_owned());
    tokenizer.with_pre_tokenizer(Some(pre_tokenizers::sequence::Sequence::new(vec![
        Split::new(pattern, SplitDelimiterBehavior::Removed, true)?.into(),
        ByteLevel::default().add_prefix_space(false).into(),
    ])));
    Ok(tokenizer)
}

/// Makes the configured tokens be found whole in a text: first the listed ones with their own
/// matching rules, then those that only have a role.
fn add_special_tokens(
    tokenizer: &mut tokenizers::Tokenizer,
    directory: &Path,
    config: &TokenizerConfig,
    roles: &[(&'static str, &SpecialToken)],
) -> Result<(), TokenizerError> {
    let mut added: Vec<AddedToken> = Vec::new();
    added.extend(config.added_tokens_decoder.values().map(|entry| entry.to_added_token()));
    for (role, token) in roles {
        let listed = added.iter().any(|entry| entry.content == token.content());
        if !listed && tokenizer.token_to_id(token.content()).is_none() {
            return Err(TokenizerError::UnknownSpecialToken {
                directory: directory.to_owned(),
                role,
                token: token.content().to_owned(),
            });
        }
        if !listed {
            added.push(token.to_added_token());
        }
    }
    let listed: Vec<String> = added.iter().map(|token| token.content.clone()).collect();
    guarded(|| tokenizer.add_tokens(added)).map_err(|message| TokenizerError::Malformed {
        path: directory.join("tokenizer_config.json"),
        message,
    })?;
    for (&expected, token) in config.added_tokens_decoder.keys().zip(listed) {
        let got = tokenizer.token_to_id(&token);
        if got != Some(expected) {
            return Err(TokenizerError::SpecialTokenId {
                directory: directory.to_owned(),
                token,
                expected,
                got,
            });
        }
    }
    Ok(())
}

/// The pairs of `merges.txt`, first the one that is merged first. Each pair and its result must be
/// in the vocabulary.
fn parse_merges(
    path: &Path,
    bytes: &[u8],
    vocabulary: &HashMap<String, u32>,
) -> Result<Merges, TokenizerError> {
    let text = std::str::from_utf8(bytes).map_err(|error| TokenizerError::Malformed {
        path: path.to_owned(),
        message: error.to_string(),
    })?;
    vocabulary::check_merges(text.lines().count()).map_err(|error| error.at(path))?;
    let mut merges = Vec::new();
    let mut joined = String::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with("#version") {
            continue;
        }
        let fail = |message: String| TokenizerError::Merge {
            path: path.to_owned(),
            line: index + 1,
            message,
        };
        let (left, right) = line
            .split_once(' ')
            .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains(' '))
            .ok_or_else(|| fail("expected two tokens with one blank between them".to_owned()))?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        for token in [left, right, &joined] {
            if !vocabulary.contains_key(token) {
                return Err(fail(format!("{token:?} is not in vocab.json")));
            }
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}
