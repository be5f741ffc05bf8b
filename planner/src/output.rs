//! Where outputs go: files written whole or not at all, and pipes, terminals and standard output,
//! written through.
//!
//! A command lists what it reads and what it writes, and asks [`Outputs::ready`] before anything
//! runs. That refuses what cannot be written, what would destroy what the job reads, and two
//! outputs on one file; it also opens pipes. At the end [`Outputs::write`] gets all contents. Files
//! go beside their places first and get their names when all of them are complete. (Names are made
//! in [`names`], pictures in [`crate::media`].)
//!
//! Invariants: a node that is no regular file is never replaced or removed; an existing file keeps
//! its permissions.

mod asked;
mod destination;
mod links;
pub mod names;
mod pending;
mod reads;
mod stream;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub use destination::{Destination, OutputKind};
pub use pending::{Existing, is_free};
pub use reads::ReadFiles;

use destination::Identity;
use pending::Pending;

/// What a command writes, and what it reads meanwhile.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Files and folders that may not be overwritten.
    pub reads: ReadFiles,
    writes: Vec<Destination>,
}

impl Outputs {
    /// None yet.
    pub fn new() -> Outputs {
        Outputs::default()
    }

    /// With one more; contents are given to [`Outputs::write`] in this order.
    pub fn add(&mut self, destination: Destination) {
        self.writes.push(destination);
    }

    /// Whether standard output gets one of them, and so has no place for anything else.
    pub fn take_stdout(&self) -> bool {
        self.writes.iter().any(Destination::is_stdout)
    }

    /// Where the first of them goes.
    pub fn first(&self) -> Option<&Destination> {
        self.writes.first()
    }

    /// Whether a place is that of one of them, or of a file that is read.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn hold(&self, place: &Destination) -> Result<bool, OutputError> {
        let Some(identity) = place.identity()? else { return Ok(false) };
        let is_written = |other: &Destination| {
            other.identity().is_ok_and(|other| other.as_ref() == Some(&identity))
        };
        Ok(self.reads.holds(&identity).is_some() || self.writes.iter().any(is_written))
    }

    /// Checks all that can be checked before the job, and opens pipes: waits for their readers, up
    /// to a limit.
    ///
    /// # Errors
    /// What would go wrong at the end, or destroy something.
    pub fn ready(&mut self) -> Result<(), OutputError> {
        let mut known: BTreeMap<Identity, &Destination> = BTreeMap::new();
        for destination in &self.writes {
            let Some(identity) = destination.identity()? else { continue };
            if let Some(what) = self.reads.holds(&identity) {
                let path = destination.shown();
                return Err(OutputError::IsRead { flag: destination.flag(), path, what });
            }
            if let Some(other) = known.insert(identity, destination) {
                return Err(OutputError::Twice {
                    first: other.flag(),
                    second: destination.flag(),
                    path: destination.shown(),
                });
            }
        }
        for destination in &self.writes {
            destination.check()?;
        }
        self.writes.iter_mut().try_for_each(Destination::open)
    }

    /// Writes all contents; `hold` is called when the last of what may wait for somebody is
    /// written. Returns the names under which they are.
    ///
    /// # Errors
    /// The first that cannot be written. Files that have no name yet are dropped then.
    pub fn write(
        self,
        contents: &[&[u8]],
        hold: impl FnOnce(),
    ) -> Result<Vec<String>, OutputError> {
        assert_eq!(contents.len(), self.writes.len(), "a content for each output");
        for (destination, content) in self.writes.iter().zip(contents) {
            destination.pass(content)?;
        }
        hold();
        let mut pending = Vec::new();
        for (destination, content) in self.writes.iter().zip(contents) {
            pending.push((destination, destination.beside(content)?));
        }
        let finish = |(destination, file): (&Destination, Option<Pending>)| match file {
            Some(file) => file.finish(),
            None => Ok(destination.shown()),
        };
        pending.into_iter().map(finish).collect()
    }
}

/// Why an output is not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The place cannot be written to.
    #[error(
        "cannot write {path}: {cause}; hint: {flag} names a file in a directory that can be written"
    )]
    Unwritable {
        /// The argument that asked for it.
        flag: &'static str,
        /// The file, as it was named.
        path: String,
        /// Why not.
        cause: io::Error,
    },
    /// The place is of a kind that is not written to.
    #[error(
        "cannot write {path}: it is {what}; hint: {flag} names a file, a FIFO, or - for standard output"
    )]
    Kind {
        /// The argument that asked for it.
        flag: &'static str,
        /// The file, as it was named.
        path: String,
        /// In a sentence: a directory, a socket.
        what: &'static str,
    },
    /// The job reads it.
    #[error("cannot write {path}: this run reads it as {what}; hint: {flag} names another file")]
    IsRead {
        /// The argument that asked for it.
        flag: &'static str,
        /// The file, as it was named.
        path: String,
        /// What it is to the job.
        what: String,
    },
    /// Two outputs are one file.
    #[error("{first} and {second} both write {path}; hint: name two files")]
    Twice {
        /// The argument of the first one.
        first: &'static str,
        /// The argument of the second one.
        second: &'static str,
        /// The file, as the second one named it.
        path: String,
    },
    /// It is there, and may not be replaced.
    #[error(
        "{path} is there already; hint: use another name ({{n}} in --output counts up), or leave out --no-overwrite"
    )]
    Exists {
        /// The file, as it was named.
        path: String,
    },
    /// Every number is taken.
    #[error("{path} is there already, and so are all numbers before it; hint: use another name")]
    AllNumbers {
        /// The file with the largest number.
        path: String,
    },
    /// What is not text would go to a terminal.
    #[error(
        "{path} is a terminal, and {what} is not text; hint: {flag} names a file, or send it on with | or >"
    )]
    Terminal {
        /// The argument that asked for it.
        flag: &'static str,
        /// The terminal, as it was named.
        path: String,
        /// What would go there.
        what: &'static str,
    },
    /// Nobody reads a FIFO.
    #[error("nobody reads the FIFO {path}, waited {seconds} s; hint: start its reader first")]
    NoReader {
        /// The FIFO, as it was named.
        path: String,
        /// How long a reader was waited for.
        seconds: u64,
    },
    /// A descriptor is not there, or not to be written.
    #[error(
        "cannot write {path}: descriptor {number} is not open for writing; hint: open it, as with {number}>FILE"
    )]
    Descriptor {
        /// The descriptor, as it was named.
        path: String,
        /// As the system counts them.
        number: i32,
    },
}

/// The folder that a file is in.
fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}
