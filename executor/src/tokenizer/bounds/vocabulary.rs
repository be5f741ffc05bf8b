//! Vocabularies: how many tokens and merges, and how long, counted while they are parsed and
//! without keeping any.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{BoundError, at_most};

/// Most tokens of a vocabulary, and most merges. The largest in use (Gemma 3) has 262,208 tokens
/// and 514,906 merges.
const ENTRIES_MAX: usize = 1 << 20;

/// Longest token, in bytes. The longest in use are runs of some 100 blanks.
const TOKEN_BYTES_MAX: usize = 512;

/// Longest merge, in bytes: two tokens with a blank between them.
const MERGE_BYTES_MAX: usize = 2 * TOKEN_BYTES_MAX + 1;

/// Bytes of all tokens of a unigram model together. The largest in use (UMT5) has 2.6 MB. The crate
/// keeps a table for each byte that begins a token or goes on with one.
const UNIGRAM_BYTES_MAX: usize = 4 << 20;

/// Most tokens that are added to a vocabulary. The most in use (Gemma 3) are 6,415.
const ADDED_MAX: usize = 1 << 16;

/// Bytes of all added tokens together. They are normalised when a tokenizer is loaded, and grow by
/// it.
const ADDED_BYTES_MAX: usize = 512 << 10;

/// Longest other value of a model, as JSON: names of tokens, prefixes, numbers.
const OTHER_BYTES_MAX: usize = 128;

/// How many tokens there are, and how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    count: usize,
    longest_bytes: usize,
    bytes: usize,
}

impl Tokens {
    /// Those of a list.
    pub fn of<'a>(tokens: impl IntoIterator<Item = &'a str>) -> Tokens {
        let mut counted = Tokens::default();
        tokens.into_iter().for_each(|token| counted.add(token));
        counted
    }

    fn add(&mut self, token: &str) {
        self.count += 1;
        self.longest_bytes = self.longest_bytes.max(token.len());
        self.bytes += token.len();
    }

    /// As a vocabulary.
    pub fn check(&self) -> Result<(), BoundError> {
        at_most("tokens", self.count, ENTRIES_MAX)?;
        at_most("bytes of a token", self.longest_bytes, TOKEN_BYTES_MAX)
    }

    /// As the vocabulary of a unigram model.
    pub fn check_unigram(&self) -> Result<(), BoundError> {
        self.check()?;
        at_most("bytes of tokens together", self.bytes, UNIGRAM_BYTES_MAX)
    }

    /// As tokens that are added to a vocabulary.
    pub fn check_added(&self) -> Result<(), BoundError> {
        at_most("added tokens", self.count, ADDED_MAX)?;
        at_most("bytes of an added token", self.longest_bytes, TOKEN_BYTES_MAX)?;
        at_most("bytes of added tokens together", self.bytes, ADDED_BYTES_MAX)
    }
}

/// `vocab.json`, before a table is made of it.
pub fn check_json(vocabulary: &[u8]) -> Result<(), BoundError> {
    let vocabulary: Vocabulary =
        serde_json::from_slice(vocabulary).map_err(BoundError::malformed)?;
    vocabulary.tokens.check()
}

/// An error if there are more merges than are read.
pub fn check_merges(count: usize) -> Result<(), BoundError> {
    at_most("merges", count, ENTRIES_MAX)
}

/// `model` of `tokenizer.json`.
#[derive(Default)]
pub(super) struct ModelDocument {
    vocabulary: Vocabulary,
    merges: Tokens,
    /// The longest of its other values.
    other_bytes: usize,
}

impl ModelDocument {
    pub fn check(&self) -> Result<(), BoundError> {
        match self.vocabulary {
            Vocabulary { tokens, is_list: true } => tokens.check_unigram()?,
            Vocabulary { tokens, is_list: false } => tokens.check()?,
        }
        check_merges(self.merges.count)?;
        at_most("bytes of a merge", self.merges.longest_bytes, MERGE_BYTES_MAX)?;
        at_most("bytes of a value of the model", self.other_bytes, OTHER_BYTES_MAX)
    }
}

impl<'de> Deserialize<'de> for ModelDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ModelDocument, D::Error> {
        struct TokenizerModel;

        impl<'de> Visitor<'de> for TokenizerModel {
            type Value = ModelDocument;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with the vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelDocument, A::Error> {
                let mut model = ModelDocument::default();
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    match &key[..] {
                        "vocab" => model.vocabulary = map.next_value()?,
                        "merges" => model.merges = map.next_value::<Merges>()?.0,
                        _ => {
                            let value = map.next_value::<&RawValue>()?.get();
                            let bytes = key.len().max(value.len());
                            model.other_bytes = model.other_bytes.max(bytes);
                        }
                    }
                }
                Ok(model)
            }
        }

        deserializer.deserialize_map(TokenizerModel)
    }
}

/// `vocab`: an object of tokens with ids, or for a unigram model a list of tokens with scores.
#[derive(Clone, Copy, Default)]
struct Vocabulary {
    tokens: Tokens,
    is_list: bool,
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vocabulary, D::Error> {
        struct VocabularyVisitor;

        impl<'de> Visitor<'de> for VocabularyVisitor {
            type Value = Vocabulary;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or a list of tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
                let mut tokens = Tokens::default();
                while let Some((TokenText(token), Number)) = map.next_entry()? {
                    tokens.add(&token);
                }
                Ok(Vocabulary { tokens, is_list: false })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocabulary, A::Error> {
                let mut tokens = Tokens::default();
                while let Some((TokenText(token), Number)) = list.next_element()? {
                    tokens.add(&token);
                }
                Ok(Vocabulary { tokens, is_list: true })
            }
        }

        deserializer.deserialize_any(VocabularyVisitor)
    }
}

/// `merges`: each a text, or a pair of texts.
struct Merges(Tokens);

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Merges, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Merge<'a> {
            #[serde(borrow)]
            Joined(TokenText<'a>),
            #[serde(borrow)]
            Pair([TokenText<'a>; 2]),
        }

        struct MergesVisitor;

        impl<'de> Visitor<'de> for MergesVisitor {
            type Value = Merges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
                let mut merges = Tokens::default();
                while let Some(merge) = list.next_element::<Merge<'de>>()? {
                    match merge {
                        Merge::Joined(TokenText(text)) => merges.add(&text),
                        Merge::Pair([TokenText(left), TokenText(right)]) => {
                            merges.add(if left.len() < right.len() { &right } else { &left });
                        }
                    }
                }
                Ok(Merges(merges))
            }
        }

        deserializer.deserialize_seq(MergesVisitor)
    }
}

/// `added_tokens`: only their contents are measured.
#[derive(Default)]
pub(super) struct AddedTokens(Tokens);

impl AddedTokens {
    pub fn check(&self) -> Result<(), BoundError> {
        self.0.check_added()
    }
}

impl<'de> Deserialize<'de> for AddedTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AddedTokens, D::Error> {
        #[derive(Deserialize)]
        struct Content<'a> {
            #[serde(borrow)]
            content: TokenText<'a>,
        }

        struct AddedTokensVisitor;

        impl<'de> Visitor<'de> for AddedTokensVisitor {
            type Value = AddedTokens;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of added tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AddedTokens, A::Error> {
                let mut tokens = Tokens::default();
                while let Some(Content { content: TokenText(content) }) = list.next_element()? {
                    tokens.add(&content);
                }
                Ok(AddedTokens(tokens))
            }
        }

        deserializer.deserialize_seq(AddedTokensVisitor)
    }
}

/// A text, borrowed where it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct TokenText<'a>(#[serde(borrow)] Cow<'a, str>);

/// A score, whatever it is.
struct Number;

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        f64::deserialize(deserializer).map(|_| Number)
    }
}
