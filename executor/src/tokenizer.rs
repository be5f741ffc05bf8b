//! Tokenizers of the text encoders: a prompt becomes exactly the ids that transformers would make
//! of it.
//!
//! A directory's `tokenizer.json` is used as it is; a directory of CLIP's or Qwen's without one is
//! built from `vocab.json` and `merges.txt`. This is no text encoder and no prompt syntax: weights
//! such as `(word:1.2)` are ordinary characters here.
//!
//! Invariants:
//! - Every sequence with special tokens ends with the end token, also when it was cut, where the
//!   tokenizer's [kind](TokenizerKind) has it so.
//! - [`Tokenizer::encode`] returns exactly as many ids as were asked for.
//! - Files and texts have limits, checked before they are read or encoded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use protocol::Bytes;
use tokenizers::TruncationDirection;

pub use error::TokenizerError;
use files::{TokenizerConfig, read_capped};

use crate::weights::GgufKeys;

mod bounds;
mod builtin;
mod byte_level;
mod clip;
mod error;
mod files;
mod left_out;
mod pairs;
mod unigram;

/// Longest text that is encoded, in UTF-8 bytes: far beyond what 512 tokens can hold.
pub const TEXT_BYTES_MAX: Bytes = Bytes::kib(64);

/// Longest sequence that can be asked for, in tokens. The longest context of an image model's text
/// encoder is a few thousand.
pub const SEQUENCE_LENGTH_MAX: usize = 1 << 16;

/// The file of a whole tokenizer.
const DOCUMENT: &str = "tokenizer.json";

/// Largest `tokenizer.json`, `vocab.json` or `merges.txt`. The largest in use (Gemma 3) has 33 MB.
pub const VOCABULARY_FILE_BYTES_MAX: Bytes = Bytes::mib(64);

/// Largest `tokenizer_config.json`. The largest in use (Gemma 3) has 1.2 MB.
pub const CONFIG_FILE_BYTES_MAX: Bytes = Bytes::mib(8);

/// What a directory's tokenizer is, where its files do not say: which files it may consist of, and
/// which special tokens it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenizerKind {
    /// Whether `vocab.json` and `merges.txt` do for `tokenizer.json`: tokens of bytes where GGUF
    /// files have them so, else CLIP's.
    pub pairs: bool,
    /// The token that ends a text, unless `tokenizer_config.json` names another.
    pub end: &'static str,
    /// The token that fills a sequence up, unless `tokenizer_config.json` names another.
    pub pad: &'static str,
    /// Whether the tokenizer itself puts the end token behind every text.
    pub ends_texts: bool,
    /// What it is made of in a GGUF file of the text encoder, where such files have it.
    pub in_gguf: Option<GgufTables>,
}

/// The tables that make a tokenizer in a GGUF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufTables {
    /// Tokens with scores: SentencePiece's unigram model.
    Unigram,
    /// Tokens of bytes with merges.
    ByteLevel,
}

impl TokenizerKind {
    /// CLIP's lower-casing byte-level BPE: `<|startoftext|>` … `<|endoftext|>`, padded with the end
    /// token. `tokenizer.json`, or `vocab.json` and `merges.txt`.
    pub const CLIP: TokenizerKind = TokenizerKind {
        pairs: true,
        end: "<|endoftext|>",
        pad: "<|endoftext|>",
        ends_texts: true,
        in_gguf: None,
    };

    /// T5's SentencePiece unigram model: … `</s>`, padded with `<pad>`. `tokenizer.json` only.
    pub const T5: TokenizerKind = TokenizerKind {
        pairs: false,
        end: "</s>",
        pad: "<pad>",
        ends_texts: true,
        in_gguf: Some(GgufTables::Unigram),
    };

    /// Qwen's byte-level BPE, which puts nothing around a text: that is its chat template's,
    /// padded with `<|endoftext|>`. `tokenizer.json`, or `vocab.json`, `merges.txt` and the
    /// added tokens that `tokenizer_config.json` or `added_tokens.json` lists.
    pub const QWEN: TokenizerKind = TokenizerKind {
        pairs: true,
        end: "<|im_end|>",
        pad: "<|endoftext|>",
        ends_texts: false,
        in_gguf: Some(GgufTables::ByteLevel),
    };
}

/// A prompt as a text encoder takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoding {
    /// Exactly the asked number of token ids, special tokens and padding included.
    pub ids: Vec<u32>,
    /// How many of `ids` come before the padding, special tokens included.
    pub length_before_padding: usize,
    /// Whether tokens of the text were dropped to fit.
    pub truncated: bool,
}

/// A tokenizer loaded from a directory; see the [module](self).
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    max_length: Option<usize>,
    eos_id: u32,
    pad_id: u32,
    vocabulary_size: usize,
    /// Tokens that the post-processor puts around every text.
    special_count: usize,
}

impl Tokenizer {
    /// Tokens of the built-in tokenizers.
    pub const CLIP_TOKENS: usize = 49_408;

    /// Reads the tokenizer of `directory`, which holds `tokenizer.json` (or, where the
    /// kind takes pairs, `vocab.json` and `merges.txt`) and optionally `tokenizer_config.json`.
    ///
    /// # Errors
    /// Missing, oversized or malformed files; special tokens that the vocabulary lacks; a
    /// `tokenizer.json` that does not end sequences with the end token.
    pub fn open(directory: &Path, kind: TokenizerKind) -> Result<Tokenizer, TokenizerError> {
        let config = TokenizerConfig::read(directory)?;
        let document = directory.join(DOCUMENT);
        let inner = match read_capped(&document, VOCABULARY_FILE_BYTES_MAX)? {
            Some(bytes) => {
                bounds::check_document(&bytes).map_err(|error| error.at(&document))?;
                guarded(|| tokenizers::Tokenizer::from_bytes(&bytes))
                    .map_err(|message| TokenizerError::Malformed { path: document, message })?
            }
            None if kind.pairs && kind.in_gguf == Some(GgufTables::ByteLevel) => {
                byte_level::build(directory, kind, &config)?
            }
            None if kind.pairs => clip::build(directory, &config)?,
            None => return Err(TokenizerError::missing_unigram(directory)),
        };
        Tokenizer::checked(inner, kind, &config, directory)
    }

    /// Whether `directory` has the files that [`Tokenizer::open`] reads.
    ///
    /// # Errors
    /// A file is missing.
    pub fn check_there(directory: &Path, kind: TokenizerKind) -> Result<(), TokenizerError> {
        let has = |name: &str| directory.join(name).exists();
        if has(DOCUMENT) || kind.pairs && pairs::FILES.into_iter().all(has) {
            return Ok(());
        }
        Err(match kind.pairs {
            true => TokenizerError::missing_bpe(directory),
            false => TokenizerError::missing_unigram(directory),
        })
    }

    /// The tokenizer of every published CLIP-L, which is built into the program.
    pub fn clip() -> Tokenizer {
        builtin::clip().expect("the tables are whole")
    }

    /// The tokenizer of every published CLIP-G, likewise: that of CLIP-L, but padded with `!`,
    /// which is found whole in texts then.
    pub fn clip_g() -> Tokenizer {
        builtin::clip_g().expect("the tables are whole")
    }

    /// Whether a GGUF file of a text encoder holds a tokenizer of this kind.
    pub fn is_in_gguf(keys: GgufKeys<'_>, kind: TokenizerKind) -> bool {
        match kind.in_gguf {
            Some(GgufTables::Unigram) => unigram::is_in_gguf(keys),
            Some(GgufTables::ByteLevel) => byte_level::is_in_gguf(keys),
            None => false,
        }
    }

    /// The tokenizer that a GGUF file of a text encoder holds, if it is of this kind; the path is
    /// for messages.
    ///
    /// # Errors
    /// Tables that are incomplete or contradict each other.
    pub fn of_gguf(
        keys: GgufKeys<'_>,
        path: &Path,
        kind: TokenizerKind,
    ) -> Result<Option<Tokenizer>, TokenizerError> {
        match kind.in_gguf {
            Some(GgufTables::Unigram) => unigram::from_gguf(keys, path, kind),
            Some(GgufTables::ByteLevel) => byte_level::from_gguf(keys, path, kind),
            None => Ok(None),
        }
    }

    /// Finds the special tokens, which must be there and be used; the directory is for messages.
    fn checked(
        inner: tokenizers::Tokenizer,
        kind: TokenizerKind,
        config: &TokenizerConfig,
        directory: &Path,
    ) -> Result<Tokenizer, TokenizerError> {
        let mut inner = inner;
        // A document may carry the settings of its last use; here each call says what it wants.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| TokenizerError::Encode { message: error.to_string() })?;

        let id_of = |role: &'static str, token: &str| {
            inner.token_to_id(token).ok_or_else(|| TokenizerError::UnknownSpecialToken {
                directory: directory.to_owned(),
                role,
                token: token.to_owned(),
            })
        };
        let end = config.eos_token().unwrap_or(kind.end);
        let eos_id = id_of("eos_token", end)?;
        let pad_id = id_of("pad_token", config.pad_token().unwrap_or(kind.pad))?;
        let max_id = inner.get_vocab(true).into_values().max().unwrap_or(0);

        let mut tokenizer = Tokenizer {
            max_length: config.max_length(),
            eos_id,
            pad_id,
            vocabulary_size: max_id as usize + 1,
            special_count: 0,
            inner,
        };
        let empty = tokenizer.ids("")?;
        if kind.ends_texts && empty.last() != Some(&eos_id) {
            return Err(TokenizerError::NoEnd {
                directory: directory.to_owned(),
                token: end.to_owned(),
            });
        }
        tokenizer.special_count = empty.len();
        Ok(tokenizer)
    }

    /// Encodes `text` into exactly `max_length` ids, as transformers does with
    /// `padding="max_length", truncation=True`: a longer text loses its last tokens but keeps the
    /// special ones, a shorter one is followed by pad ids.
    ///
    /// # Errors
    /// A text beyond [`TEXT_BYTES_MAX`]; a length that cannot hold the special tokens or is beyond
    /// [`SEQUENCE_LENGTH_MAX`].
    pub fn encode(&self, text: &str, max_length: usize) -> Result<Encoding, TokenizerError> {
        if !(self.special_count..=SEQUENCE_LENGTH_MAX).contains(&max_length) {
            return Err(TokenizerError::SequenceLength {
                got: max_length,
                least: self.special_count,
                most: SEQUENCE_LENGTH_MAX,
            });
        }
        let mut encoding = self.content(text)?;
        let room = max_length - self.special_count;
        let truncated = encoding.len() > room;
        encoding.truncate(room, 0, TruncationDirection::Right);
        let encoding = guarded(|| self.inner.post_process(encoding, None, true))
            .map_err(|message| TokenizerError::Encode { message })?;
        let mut ids = encoding.get_ids().to_vec();
        let length_before_padding = ids.len();
        assert!(length_before_padding <= max_length, "special tokens depend on the text");
        ids.resize(max_length, self.pad_id);
        Ok(Encoding { ids, length_before_padding, truncated })
    }

    /// The ids of `text` with the special tokens around it, neither cut nor padded.
    ///
    /// # Errors
    /// A text beyond [`TEXT_BYTES_MAX`].
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.run(text, true).map(|encoding| encoding.get_ids().to_vec())
    }

    /// The ids of `text` alone. Special tokens that are spelled out in `text` are still recognised.
    ///
    /// # Errors
    /// A text beyond [`TEXT_BYTES_MAX`].
    pub fn ids_without_specials(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.content(text).map(|encoding| encoding.get_ids().to_vec())
    }

    /// The sequence length that the model was trained for (`model_max_length`), in tokens, if the
    /// directory names a believable one.
    pub fn max_length(&self) -> Option<usize> {
        self.max_length
    }

    /// Id of the token that ends a sequence.
    pub fn eos_id(&self) -> u32 {
        self.eos_id
    }

    /// Id of the token that fills a sequence up.
    pub fn pad_id(&self) -> u32 {
        self.pad_id
    }

    /// One more than the largest id that can come out: the rows that an embedding needs at least.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    fn content(&self, text: &str) -> Result<tokenizers::Encoding, TokenizerError> {
        self.run(text, false)
    }

    fn run(&self, text: &str, specials: bool) -> Result<tokenizers::Encoding, TokenizerError> {
        if text.len() > TEXT_BYTES_MAX.as_usize() {
            let got = Bytes(text.len() as u64);
            return Err(TokenizerError::TextTooLong { got, limit: TEXT_BYTES_MAX });
        }
        guarded(|| self.inner.encode_fast(text, specials))
            .map_err(|message| TokenizerError::Encode { message })
    }
}

/// Calls into the `tokenizers` crate, which indexes by numbers from the file without checking them:
/// a file that contradicts itself makes it panic where an error is due. It keeps no half-made state
/// that a later call could see.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer's tables contradict each other".to_owned()),
    }
}

#[cfg(test)]
mod tests;
