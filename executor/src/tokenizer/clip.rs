//! CLIP's tokenizer from `vocab.json` and `merges.txt`, for directories without `tokenizer.json`,
//! and for files that come without a tokenizer.
//!
//! The text is brought into NFC, runs of white space become one blank, letters become small; it is
//! split into words by CLIP's pattern, and each word's bytes are merged in the order of
//! `merges.txt`, with `</w>` on the last. The result is what transformers saves as `tokenizer.json`
//! for the same files.

use std::path::Path;

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, Replace};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{SplitDelimiterBehavior, normalizers, pre_tokenizers};

use super::files::{SpecialToken, TokenizerConfig};
use super::{TokenizerError, TokenizerKind, guarded, pairs};

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
    let [vocabulary, merges] = pairs::read(directory)?;
    build_of(directory, &vocabulary, &merges, config)
}

/// Builds the tokenizer of these files' content; the directory is for messages.
pub(super) fn build_of(
    directory: &Path,
    vocabulary: &[u8],
    merges: &[u8],
    config: &TokenizerConfig,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let (vocabulary, merges) = pairs::parse(directory, [vocabulary, merges])?;

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
    let path = directory.join(pairs::VOCABULARY);
    let mut tokenizer = words.map_err(|message| TokenizerError::Malformed { path, message })?;
    pairs::add_special_tokens(&mut tokenizer, directory, &config.added_tokens_decoder, &roles)?;

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
