//! What is wrong with a model, or with a job asked of it: each error names the files, what they
//! should be, and what helps.

use std::error::Error;
use std::path::PathBuf;

use protocol::{Bytes, PartFlag};

use super::source::PartSpec;
use crate::read::ReadError;
use crate::tokenizer::TokenizerError;
use crate::weights::WeightsError;
use crate::weights::lora::LoraError;

/// What is wrong with a model or with a job asked of it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file that must be there is not.
    #[error(
        "{} has no {file}; hint: a model is a directory in diffusers format, whole, or files of its parts",
        dir.display()
    )]
    MissingFile {
        /// The directory looked into.
        dir: PathBuf,
        /// The file's name within it.
        file: String,
    },
    /// A file could not be read.
    #[error(
        "cannot read {}: {cause}; hint: a model's files are regular files that its user may read",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: ReadError,
    },
    /// A configuration is larger than any real one.
    #[error(
        "{} has {} bytes, more than the {} a configuration may have; hint: copy it again from the \
         model's repository",
        path.display(), got.0, limit.0
    )]
    ConfigTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        got: Bytes,
        /// The most that is read.
        limit: Bytes,
    },
    /// A configuration is no JSON or TOML, or lacks a field.
    #[error("{}: {message}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
    /// Files of a family that is known, and not run.
    #[error(
        "{}: this is {family}; Berth runs {runs} models so far; hint: name one, as {examples}",
        path.display()
    )]
    OtherFamily {
        /// The directory, or the file that holds the denoiser.
        path: PathBuf,
        /// What people call the family.
        family: String,
        /// The families that are run, as people call them.
        runs: String,
        /// Models of these.
        examples: String,
    },
    /// A pipeline class that no family here has.
    #[error(
        "{}: the family of `{class}` is unknown; hint: known is {known}", path.display()
    )]
    UnknownFamily {
        /// The model index.
        path: PathBuf,
        /// What diffusers calls the pipeline.
        class: String,
        /// The classes that are known.
        known: String,
    },
    /// Nothing was named.
    #[error("no model is named; hint: name a directory, a file, or files of parts")]
    NoModel,
    /// No file gives a part.
    #[error("no file gives {called}; hint: name one with --{flag} FILE")]
    NoPart {
        /// What people call the part.
        called: &'static str,
        /// The flag that names a file with it.
        flag: PartFlag,
    },
    /// No file gives a part that the model can do without.
    #[error(
        "no file gives {called}; hint: name one with --{flag} FILE, or do without it by --{flag} none"
    )]
    NoOptionalPart {
        /// What people call the part.
        called: &'static str,
        /// The flag that names a file with it.
        flag: PartFlag,
    },
    /// A part is left out that the model cannot do without.
    #[error("--{flag} none: this model cannot do without {called}; hint: name a file with it")]
    LeftOut {
        /// What people call the part.
        called: &'static str,
        /// The flag that says so.
        flag: PartFlag,
    },
    /// A file does not hold the part that it was named for.
    #[error(
        "{} does not hold {}: looked for {}, found {found}; hint: name the right file with --{}",
        path.display(), part.called, part.looked_for, part.flag
    )]
    NotInFile {
        /// The file.
        path: PathBuf,
        /// What was looked for in it.
        part: PartSpec,
        /// What the file holds.
        found: String,
    },
    /// A file for a part that the family does not have.
    #[error(
        "--{flag} names a part that this model's family does not have; hint: leave it out, its parts are {known}"
    )]
    NotOfFamily {
        /// The flag that was given.
        flag: PartFlag,
        /// Those that the family has.
        known: String,
    },
    /// A file whose every part comes from elsewhere.
    #[error("{} gives nothing: {holds} of it come from other files; hint: leave one of them out", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
        /// The parts that it holds.
        holds: String,
    },
    /// A file of a single part could not be opened.
    #[error("{message}")]
    Part {
        /// What is wrong with it, with its path.
        message: String,
    },
    /// A text encoder's tokenizer is in none of the files.
    #[error(
        "no file gives {called}'s tokenizer; hint: name a directory that holds {folder}/tokenizer.json with \
         --tokenizer-dir, or with --{flag} a GGUF file of {called}, which has its own"
    )]
    NoTokenizer {
        /// What people call the text encoder.
        called: &'static str,
        /// The tokenizer's folder in a diffusers directory.
        folder: &'static str,
        /// The flag that names a file with the text encoder.
        flag: PartFlag,
    },
    /// A directory of tokenizers without any.
    #[error(
        "{} has neither {} in it; hint: name the directory that holds these",
        dir.display(), folders.join(" nor ")
    )]
    NoTokenizers {
        /// The directory.
        dir: PathBuf,
        /// The folders that the family has tokenizers in.
        folders: &'static [&'static str],
    },
    /// The built-in tokenizer is of another vocabulary than the text encoder.
    #[error(
        "{} knows {knows} tokens, {called}'s tokenizer has {has}; hint: name a directory that holds the text \
         encoder's own in {folder}/ with --tokenizer-dir",
        path.display()
    )]
    OtherVocabulary {
        /// The text encoder's file.
        path: PathBuf,
        /// What people call the text encoder.
        called: &'static str,
        /// The tokenizer's folder in a diffusers directory.
        folder: &'static str,
        /// Tokens that it knows.
        knows: usize,
        /// Tokens that the tokenizer may give.
        has: usize,
    },
    /// Files none of which holds anything known.
    #[error(
        "{files}: of no known family; looked for {looked_for}; hint: name a file of a {runs} model"
    )]
    UnknownFiles {
        /// Their paths, with commas between them.
        files: String,
        /// Names of tensors, with the parts that they are of.
        looked_for: String,
        /// The families that are run, as people call them.
        runs: String,
    },
    /// The weight files are at fault.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// LoRA files are at fault.
    #[error(transparent)]
    Lora(#[from] LoraError),
    /// A tokenizer's files are at fault.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The job asks for what the model cannot do.
    #[error("{0}")]
    Job(String),
}

impl ModelError {
    /// The message with those of its causes.
    pub fn with_causes(&self) -> String {
        let mut message = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        message
    }
}
