//! Reading a tokenizer's files with caps, and the part of `tokenizer_config.json` that matters
//! here.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::Bytes;
use serde::Deserialize;
use tokenizers::AddedToken;

use super::bounds::vocabulary::Tokens;
use super::{CONFIG_FILE_BYTES_MAX, SEQUENCE_LENGTH_MAX, TokenizerError};
use crate::read::{self, ReadError};

/// `tokenizer_config.json`, all of it optional, unknown keys ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TokenizerConfig {
    /// transformers writes 1e30 where no length is known.
    model_max_length: Option<f64>,
    pub(super) bos_token: Option<SpecialToken>,
    pub(super) eos_token: Option<SpecialToken>,
    pub(super) pad_token: Option<SpecialToken>,
    pub(super) unk_token: Option<SpecialToken>,
    /// Tokens that are found in a text before it is split, by id.
    pub(super) added_tokens_decoder: BTreeMap<u32, TokenEntry>,
}

impl TokenizerConfig {
    /// The configuration in `directory`, or an empty one where there is none.
    pub(super) fn read(directory: &Path) -> Result<TokenizerConfig, TokenizerError> {
        let path = directory.join("tokenizer_config.json");
        match read_capped(&path, CONFIG_FILE_BYTES_MAX)? {
            Some(bytes) => {
                let config: TokenizerConfig = parse_json(&path, &bytes)?;
                config.tokens().check_added().map_err(|error| error.at(&path))?;
                Ok(config)
            }
            None => Ok(TokenizerConfig::default()),
        }
    }

    /// All tokens that it names.
    fn tokens(&self) -> Tokens {
        let added = self.added_tokens_decoder.values().map(|entry| entry.content.as_str());
        let roles = [&self.bos_token, &self.eos_token, &self.pad_token, &self.unk_token];
        Tokens::of(added.chain(roles.into_iter().flatten().map(SpecialToken::content)))
    }

    /// One that names these special tokens, and nothing else.
    pub(super) fn with_tokens(end: &str, pad: &str) -> TokenizerConfig {
        let token = |text: &str| Some(SpecialToken::Text(text.to_owned()));
        TokenizerConfig {
            eos_token: token(end),
            pad_token: token(pad),
            ..TokenizerConfig::default()
        }
    }

    /// `model_max_length` where it is a number of tokens that can be meant.
    pub(super) fn max_length(&self) -> Option<usize> {
        let believable = 1.0..=SEQUENCE_LENGTH_MAX as f64;
        self.model_max_length.filter(|l| believable.contains(l)).map(|l| l as usize)
    }

    pub(super) fn eos_token(&self) -> Option<&str> {
        self.eos_token.as_ref().map(SpecialToken::content)
    }

    pub(super) fn pad_token(&self) -> Option<&str> {
        self.pad_token.as_ref().map(SpecialToken::content)
    }
}

/// A special token's value: its text, or an object with text and matching rules.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum SpecialToken {
    Text(String),
    Entry(TokenEntry),
}

impl SpecialToken {
    pub(super) fn content(&self) -> &str {
        match self {
            SpecialToken::Text(text) => text,
            SpecialToken::Entry(entry) => &entry.content,
        }
    }

    /// As the vocabulary takes it. A bare text stands for an exact match in the text as it was
    /// typed.
    pub(super) fn to_added_token(&self) -> AddedToken {
        match self {
            SpecialToken::Text(text) => AddedToken::from(text.as_str(), true),
            SpecialToken::Entry(entry) => entry.to_added_token().special(true),
        }
    }
}

/// The tokens of `added_tokens.json` by id, each to be found as it stands; none where there is no
/// such file.
pub(super) fn added_tokens(directory: &Path) -> Result<BTreeMap<u32, TokenEntry>, TokenizerError> {
    let path = directory.join("added_tokens.json");
    let Some(bytes) = read_capped(&path, CONFIG_FILE_BYTES_MAX)? else {
        return Ok(BTreeMap::new());
    };
    let ids: BTreeMap<String, u32> = parse_json(&path, &bytes)?;
    let tokens = Tokens::of(ids.keys().map(String::as_str));
    tokens.check_added().map_err(|error| error.at(&path))?;
    Ok(ids.into_iter().map(|(content, id)| (id, TokenEntry::exact(content))).collect())
}

/// How an added token is matched; the keys are those of transformers' `AddedToken`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TokenEntry {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl TokenEntry {
    /// A special token that is found as it stands.
    fn exact(content: String) -> TokenEntry {
        let (single_word, lstrip, rstrip, normalized) = (false, false, false, false);
        TokenEntry { content, single_word, lstrip, rstrip, normalized, special: true }
    }

    pub(super) fn to_added_token(&self) -> AddedToken {
        AddedToken::from(self.content.as_str(), self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized)
    }
}

/// The bytes of `path`, or `None` where there is no such file.
pub(super) fn read_capped(path: &Path, limit: Bytes) -> Result<Option<Vec<u8>>, TokenizerError> {
    match read::bytes(path, limit) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_missing() => Ok(None),
        Err(ReadError::TooLarge { got, limit }) => {
            Err(TokenizerError::TooLarge { path: path.to_owned(), got, limit })
        }
        Err(cause) => Err(TokenizerError::Read { path: path.to_owned(), cause }),
    }
}

/// The JSON document that was read from `path`.
pub(super) fn parse_json<'de, T: Deserialize<'de>>(
    path: &Path,
    bytes: &'de [u8],
) -> Result<T, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|error| TokenizerError::Malformed {
        path: path.to_owned(),
        message: error.to_string(),
    })
}
