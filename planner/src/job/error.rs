//! What is wrong with a request, in the words of the command line.

use std::path::PathBuf;

use protocol::PartFlag;
use protocol::limits::{BATCH_MAX, TooLong};
use protocol::model::SourceError;

use crate::demo::DemoError;
use crate::media::picture::PictureError;
use crate::policy::PolicyError;
use crate::policy::tile::TileError;

/// Why a request is none.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A number outside of its range.
    #[error("--{flag} must be {expected}, got {got}")]
    Number {
        /// The field, as its flag is called.
        flag: &'static str,
        /// What it takes: `a number ≥ 1`.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// More pictures than a job makes.
    #[error("--batch {0} is more than {BATCH_MAX}")]
    Batch(u32),
    /// A text beyond its limit.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// A model whose paths say nothing clear.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A name that no model has.
    #[error("there is no model {name:?}; hint: name one of {}", known.join(", "))]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// No model where one is said to be.
    #[error("there is no model at {}; hint: name a directory in diffusers format, or a file", .0.display())]
    NoModel(PathBuf),
    /// No file where a part is said to be.
    #[error("there is no file at --{flag} {}; hint: name a safetensors or GGUF file", path.display())]
    NoPart {
        /// By which it was named.
        flag: PartFlag,
        /// Where it should be.
        path: PathBuf,
    },
    /// A directory where a part's file is said to be.
    #[error("--{flag} {} is a directory; hint: name a file, or give the directory as MODEL", path.display())]
    PartIsDirectory {
        /// By which it was named.
        flag: PartFlag,
        /// What is a directory.
        path: PathBuf,
    },
    /// No directory where tokenizers are said to be.
    #[error("--tokenizer-dir {} is no directory; hint: name one that holds tokenizer/ or tokenizer_2/", .0.display())]
    NoTokenizers(PathBuf),
    /// A path that cannot be made one from the root.
    #[error("cannot make {} an absolute path: {cause}", path.display())]
    NoAbsolutePath {
        /// As it was given.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// A path that cannot be sent to the executor.
    #[error("the {what} {} is not UTF-8", path.display())]
    NotUtf8 {
        /// What it is: `path`, `model's path`.
        what: &'static str,
        /// What cannot be written as text.
        path: PathBuf,
    },
    /// The built-in model cannot be had.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A policy text that cannot be read.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Tiles that the model cannot have.
    #[error(transparent)]
    Tile(#[from] TileError),
    /// No LoRA file where one is said to be.
    #[error(
        "there is no LoRA file at {0}; hint: name a safetensors file, as style.safetensors:0.8"
    )]
    NoLora(String),
    /// A strength without what it is of.
    #[error("--strength says how far a picture is changed; hint: add --init-image FILE")]
    StrengthWithoutPicture,
    /// Two starts at once.
    #[error("--init-image and --init-latents are two starts of one job; hint: keep one")]
    TwoStarts,
    /// A strength by which no step runs.
    #[error(
        "--strength {strength} leaves no step of {steps} to run; hint: strength × steps must be at least 1, as with --strength {least}"
    )]
    NoStep {
        /// What was asked for, above 0 and up to 1.
        strength: f64,
        /// Steps of the job.
        steps: u32,
        /// A strength by which one runs.
        least: f64,
    },
    /// The picture to start from cannot be read.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A size or another number that no job has.
    #[error("{0}")]
    Shape(String),
    /// A negative prompt without effect.
    #[error(
        "--negative-prompt takes effect with --cfg-scale above 1 only; hint: add --cfg-scale 4"
    )]
    NegativeWithoutGuidance,
    /// Two numbers for the one guidance that a model has.
    #[error(
        "--guidance-scale {scale} and --true-cfg-scale {true_cfg} are one guidance of this model{counted}; hint: keep one"
    )]
    TwoGuidances {
        /// As its pipeline counts.
        scale: f32,
        /// Counted from 1.
        true_cfg: f32,
        /// How they are counted, as a clause, where that is not the same.
        counted: &'static str,
    },
    /// Previews without steps between them.
    #[error("--preview is 0; hint: give at least 1, or leave it out")]
    PreviewEveryZero,
    /// Fewer steps than from one preview to the next.
    #[error(
        "--preview {every} is more than the {steps} steps that run; hint: give at most {steps}"
    )]
    PreviewEveryTooMany {
        /// Steps from one preview to the next.
        every: u32,
        /// How many there are of them.
        steps: u32,
    },
    /// A sampler or a table that the model does not have.
    #[error("the {kind} {name} makes no sense for a {family} model; hint: name one of {known}")]
    NotOfModel {
        /// `sampler` or `scheduler`, as their flags are called.
        kind: &'static str,
        /// What was asked for.
        name: &'static str,
        /// What the model is of.
        family: String,
        /// The names of those that do make sense.
        known: String,
    },
    /// Levels and a table of them.
    #[error("--sigmas stands in place of --scheduler {0}; hint: keep one")]
    SigmasAndScheduler(&'static str),
    /// Other than as many levels as steps.
    #[error("--sigmas has {given} levels for --steps {steps}; hint: leave --steps out")]
    SigmasAndSteps {
        /// What `--steps` says.
        steps: u32,
        /// How many levels there are.
        given: u32,
    },
    /// Fresh noise of a rule that takes none.
    #[error("--eta has no effect on the sampler {sampler}; hint: it is of {known}")]
    EtaWithoutNoise {
        /// The rule's name.
        sampler: &'static str,
        /// The names of the model's rules that take some.
        known: String,
    },
    /// No seed can be drawn.
    #[error("the operating system gives no random seed: {0}; hint: name one, as --seed 7")]
    NoSeed(getrandom::Error),
}
