//! What can be wrong with a tokenizer's directory, or with what it is asked to encode.

use std::path::{Path, PathBuf};

use protocol::Bytes;

use crate::read::ReadError;

/// What helps where a file is beyond a limit.
const FROM_REPOSITORY: &str = "hint: take the tokenizer from the model's own repository";

/// Why a tokenizer could not be loaded, or a text not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The directory lacks the files that this kind of tokenizer is made of.
    #[error("no tokenizer in {}: looked for {looked_for}\nhint: {hint}", directory.display())]
    Missing {
        /// Where was looked.
        directory: PathBuf,
        /// The files that would have done.
        looked_for: &'static str,
        /// What the user can do.
        hint: &'static str,
    },

    /// A file is there but cannot be read.
    #[error("cannot read {}: {cause}; {FROM_REPOSITORY}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: ReadError,
    },

    /// A file is larger than any tokenizer's.
    #[error("{} has {got}, at most {limit} are read; {FROM_REPOSITORY}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        got: Bytes,
        /// The largest size that is read.
        limit: Bytes,
    },

    /// A file is not what its name says.
    #[error("{} is malformed: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        message: String,
    },

    /// A file asks for more than any tokenizer needs.
    #[error("{}: {message}; {FROM_REPOSITORY}", path.display())]
    Beyond {
        /// The file.
        path: PathBuf,
        /// What is too much.
        message: String,
    },

    /// A line of `merges.txt` does not fit the vocabulary or the format.
    #[error("{}, line {line}: {message}", path.display())]
    Merge {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong in it.
        message: String,
    },

    /// A special token is not part of the vocabulary.
    #[error("the {role} {token:?} is not in the vocabulary of {}", directory.display())]
    UnknownSpecialToken {
        /// Where its files are.
        directory: PathBuf,
        /// Its key in `tokenizer_config.json`.
        role: &'static str,
        /// The token as text.
        token: String,
    },

    /// A special token has another id in the vocabulary than `tokenizer_config.json` says.
    #[error(
        "tokenizer_config.json in {} gives {token:?} the id {expected}, the vocabulary gives it {}",
        directory.display(),
        got.map_or("none".to_owned(), |id| id.to_string())
    )]
    SpecialTokenId {
        /// Where its files are.
        directory: PathBuf,
        /// The token as text.
        token: String,
        /// The id in `tokenizer_config.json`.
        expected: u32,
        /// The id in the vocabulary, if it is there.
        got: Option<u32>,
    },

    /// `tokenizer.json` does not end sequences as its text encoder needs them.
    #[error(
        "the tokenizer in {} does not end sequences with {token:?}\n\
         hint: its tokenizer.json was made for another kind of text encoder",
        directory.display()
    )]
    NoEnd {
        /// Where its files are.
        directory: PathBuf,
        /// What was to end each prompt.
        token: String,
    },

    /// The text is longer than any prompt.
    #[error("the text has {got}, at most {limit} are encoded\nhint: shorten the prompt")]
    TextTooLong {
        /// UTF-8 bytes of the text.
        got: Bytes,
        /// The most that is encoded.
        limit: Bytes,
    },

    /// A sequence of this length cannot be made.
    #[error("a sequence of {got} tokens cannot be made: {least} to {most} can")]
    SequenceLength {
        /// Tokens asked for.
        got: usize,
        /// Tokens that the special ones take.
        least: usize,
        /// The longest sequence.
        most: usize,
    },

    /// The vocabulary cannot express a text.
    #[error("the text cannot be encoded: {message}")]
    Encode {
        /// What the tokenizer said.
        message: String,
    },
}

impl TokenizerError {
    /// For a CLIP directory with neither `tokenizer.json` nor both of the other two.
    pub(super) fn missing_bpe(directory: &Path) -> TokenizerError {
        TokenizerError::Missing {
            directory: directory.to_owned(),
            looked_for: "tokenizer.json, or vocab.json and merges.txt",
            hint: "copy them from the model's repository",
        }
    }

    /// For a T5 directory without `tokenizer.json`; `spiece.model` alone is a common case.
    pub(super) fn missing_unigram(directory: &Path) -> TokenizerError {
        let hint = if directory.join("spiece.model").is_file() {
            "spiece.model is there but is not read: transformers writes tokenizer.json beside it \
             by AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
        } else {
            "copy it from the model's repository"
        };
        TokenizerError::Missing {
            directory: directory.to_owned(),
            looked_for: "tokenizer.json",
            hint,
        }
    }
}
