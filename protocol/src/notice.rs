//! What a user should know of a job that runs on, and what the files were that it reads.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// What a user should know, though the job goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// A prompt is longer than its text encoder reads.
    PromptCut {
        /// The text encoder, as people call it.
        encoder: String,
        /// The tokens that it reads, special ones included.
        tokens: u32,
        /// Which of the two it was.
        prompt: PromptRole,
        /// The end of the prompt, which has no effect.
        left_out: String,
        /// The places in the batch of the pictures that have this prompt.
        pictures: Vec<u32>,
    },
    /// Something about a GPU is not used, since the self-test found it to be wrong.
    SelfTest {
        /// What was found and what follows, as a sentence.
        message: String,
    },
    /// A file was changed while the job used it.
    FileChanged {
        /// The file.
        path: String,
    },
}

/// Which of a job's prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromptRole {
    /// What the picture should show.
    Prompt,
    /// The long text encoder's own.
    Second,
    /// What the picture is not to show.
    Negative,
}

impl fmt::Display for PromptRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PromptRole::Prompt => "prompt",
            PromptRole::Second => "second prompt",
            PromptRole::Negative => "negative prompt",
        })
    }
}

/// A file when it was opened. Another one under the same path, and one that was written to, differ
/// from it; one that was only read does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Where it was opened.
    pub path: String,
    /// The device that it is on.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Its length.
    pub size: Bytes,
    /// When it was last written to, in nanoseconds since 1970.
    pub modified_ns: i128,
}

impl FileState {
    /// Of what the system says of the file at a path.
    pub fn of(path: impl Into<String>, status: &Metadata) -> FileState {
        let [seconds, nanoseconds] = [status.mtime(), status.mtime_nsec()].map(i128::from);
        FileState {
            path: path.into(),
            device: status.dev(),
            inode: status.ino(),
            size: Bytes(status.len()),
            modified_ns: seconds * 1_000_000_000 + nanoseconds,
        }
    }
}
