//! The store: what must not be lost of jobs, in one file, by a thread of its own.
//!
//! ```text
//! desk ──Change──► queue ──► thread `store`: all that waits in one transaction ──► jobs.redb
//!   ▲                                                          │
//!   └───────────── DeskEvent::Stored, one for each, in order ◄─┘ once it is on the disk
//! ```
//! Not here: what a record means, which ones are kept ([`desk`](super::desk)), and
//! whether a client's idempotency key still counts. The keys stand in the records
//! ([`JobOrder::idempotency`](super::desk::job::JobOrder)) and all records are restored; the desk
//! holds a key's age, by its record's `created_at`, against its limit of 24 hours when it looks one
//! up.
//!
//! Invariants:
//! - Changes are written in the order in which they were asked for. What a restart finds is what
//!   some beginning of them made, and all of those that were answered `Ok` are in it.
//! - Each change is answered once. A write that fails takes none after it along: the file is opened
//!   again for the next.
//! - One process at a time: the directory is locked until the store is closed, over any opening
//!   again too.
//! - Single records are read beside the thread: who asks for one does not wait for a write.
//! - Nothing that cannot be read is destroyed: a damaged file is renamed, a record that this
//!   version does not understand moves to another table.

mod tables;

use std::collections::VecDeque;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};

use super::desk::action::{Change, DeskSettings};
use super::desk::config::REMOVED_MS;
use super::desk::event::{DeskEvent, WriteId};
use super::desk::job::{JobId, JobRecord};
use crate::temporary::PRIVATE_MODE;
use tables::{EncodedChange, JobTables, TablesError};

/// The database within its directory.
const FILE: &str = "jobs.redb";

/// The lock within the same directory. The database has one of its own, but gives it up while it is
/// opened again or renamed.
const LOCK: &str = "jobs.lock";

/// Permissions of directories that hold prompts and pictures.
pub const FOLDER_MODE: u32 = 0o700;

/// The most changes of one transaction: so many records of some 100 KiB are written within a
/// second, and the first of them does not wait for the last for longer.
const CHANGES_MAX: usize = 256;

/// The store of a directory, open.
#[derive(Debug)]
pub struct JobStore {
    changes: Sender<(WriteId, Change)>,
    reader: RecordReader,
    /// Ends when the thread does; nothing is sent.
    ended: Receiver<()>,
}

/// Reads single records of an open store; cheap to clone.
#[derive(Debug, Clone)]
pub struct RecordReader(OpenTables);

/// The database, while it is open and did not fail.
type OpenTables = Arc<Mutex<Option<Arc<JobTables>>>>;

/// What the store had when it was opened.
#[derive(Debug, Default)]
pub struct Restored {
    /// All jobs, the oldest first, as they were when they were last written; of those that have
    /// ended [`JobRecord::brief`].
    pub records: Vec<JobRecord>,
    /// What the desk keeps beside them.
    pub settings: DeskSettings,
    /// Jobs that were removed within [`REMOVED_MS`].
    pub removed: Vec<JobId>,
    /// Why the store begins anew, and where the damaged file is, as a sentence.
    pub damaged: Option<String>,
    /// Entries that this version does not understand and that are kept aside, a sentence each.
    pub unread: Vec<String>,
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum JobStoreError {
    /// Another daemon has it.
    #[error(
        "another `berth serve` uses {}; hint: end it, or name another directory in BERTH_STATE_DIR",
        directory.display()
    )]
    InUse {
        /// Where the store is.
        directory: PathBuf,
    },
    /// The system does not let it be read or written.
    #[error(
        "cannot open the job store {}: {cause}; hint: BERTH_STATE_DIR names a directory that can be written",
        path.display()
    )]
    Unusable {
        /// The file, or its directory.
        path: PathBuf,
        /// Why not, as a clause.
        cause: String,
    },
}

/// Opens the store of a directory, which is made where there is none. Changes are answered to
/// `events`.
///
/// # Errors
/// All of [`JobStoreError`]. A damaged file is none: it is renamed, and told of.
pub fn open(
    directory: &Path,
    events: Sender<DeskEvent>,
) -> Result<(JobStore, Restored), JobStoreError> {
    let unusable = |path: &Path, cause: &dyn std::fmt::Display| JobStoreError::Unusable {
        path: path.to_owned(),
        cause: cause.to_string(),
    };
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(directory);
    made.map_err(|cause| unusable(directory, &cause))?;
    let lock = lock(directory)?;
    let path = directory.join(FILE);
    let (tables, restored) = open_or_begin_anew(&path).map_err(|error| match error {
        TablesError::InUse => JobStoreError::InUse { directory: directory.to_owned() },
        TablesError::Damaged(cause) => unusable(&path, &cause),
        TablesError::System(cause) => unusable(&path, &cause),
    })?;
    let (changes, orders) = mpsc::channel();
    let (alive, ended) = mpsc::channel();
    let open = Arc::new(Mutex::new(Some(Arc::new(tables))));
    let reader = RecordReader(Arc::clone(&open));
    let mut writer = StoreWriter { path: path.clone(), open };
    let run = move || {
        run(&mut writer, &orders, &events);
        // In this order: who waits for the end may open the store again.
        writer.take();
        drop((writer, lock));
        drop::<Sender<()>>(alive);
    };
    let thread = thread::Builder::new().name("store".to_owned()).spawn(run);
    thread.map_err(|cause| unusable(&path, &cause))?;
    Ok((JobStore { changes, reader, ended }, restored))
}

impl JobStore {
    /// Has a change written; [`DeskEvent::Stored`] tells when it is on the disk.
    pub fn change(&self, write: WriteId, change: Change) {
        // The thread ends only with this.
        let _ = self.changes.send((write, change));
    }

    /// What reads its records, as long as it is open.
    pub fn reader(&self) -> RecordReader {
        self.reader.clone()
    }

    /// Writes what is still to be written and frees the directory; false where that takes longer
    /// than `grace`.
    pub fn close(self, grace: Duration) -> bool {
        let JobStore { changes, ended, .. } = self;
        drop(changes);
        ended.recv_timeout(grace) == Err(RecvTimeoutError::Disconnected)
    }
}

impl RecordReader {
    /// All of a job, as it was last written; `None` where there is none of that name. It reads the
    /// disk.
    ///
    /// # Errors
    /// It cannot be read, or the store is closed: a sentence.
    pub fn read(&self, id: &JobId) -> Result<Option<JobRecord>, String> {
        let open = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tables = open.ok_or("the job store is not open; hint: ask again soon")?;
        let failed = |cause| format!("job {id} cannot be read in the job store: {cause}");
        let read = tables.record(id).map_err(|error| failed(error.to_string()))?;
        read.transpose().map_err(failed)
    }
}

/// Milliseconds since 1970, by the system's clock.
fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// Takes the directory for this process, until the file is closed.
fn lock(directory: &Path) -> Result<File, JobStoreError> {
    let path = directory.join(LOCK);
    let unusable =
        |cause: io::Error| JobStoreError::Unusable { path: path.clone(), cause: cause.to_string() };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(PRIVATE_MODE);
    let file = options.open(&path).map_err(unusable)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(JobStoreError::InUse { directory: directory.to_owned() })
        }
        // Without locks of the file system there is the database's own.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOLCK) | Ok(()) => Ok(file),
        Err(error) => Err(unusable(error.into())),
    }
}

/// Opens the database and reads all of it; a damaged one is renamed, and an empty one made.
fn open_or_begin_anew(path: &Path) -> Result<(JobTables, Restored), TablesError> {
    let open = || {
        let tables = JobTables::open(path)?;
        let restored = tables.restore(unix_ms())?;
        Ok((tables, restored))
    };
    let is_cut_to_nothing = path.metadata().is_ok_and(|file| file.len() == 0);
    let cause = match open() {
        Ok(opened) if !is_cut_to_nothing => return Ok(opened),
        Ok(_) => "it is empty".to_owned(),
        Err(TablesError::Damaged(cause)) => cause,
        Err(error) => return Err(error),
    };
    let aside = aside(path);
    std::fs::rename(path, &aside).map_err(|error| TablesError::System(error.to_string()))?;
    let (tables, mut restored) = open()?;
    restored.damaged = Some(format!(
        "the job store was damaged ({cause}) and begins with no jobs; hint: the damaged file is {}",
        aside.display()
    ));
    Ok((tables, restored))
}

/// A name for a damaged file that no other one has.
fn aside(path: &Path) -> PathBuf {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let name = |ending: String| path.with_file_name(format!("{FILE}.damaged-{now}{ending}"));
    let names = std::iter::once(String::new()).chain((2..).map(|count: u32| format!("-{count}")));
    let mut free = names.map(name).filter(|path| !path.exists());
    free.next().expect("a directory does not hold all numbers")
}

/// Writes changes until nobody can ask for more.
fn run(writer: &mut StoreWriter, orders: &Receiver<(WriteId, Change)>, events: &Sender<DeskEvent>) {
    while let Ok(first) = orders.recv() {
        let waiting = orders.try_iter().take(CHANGES_MAX - 1);
        let (writes, changes): (VecDeque<WriteId>, Vec<Change>) =
            std::iter::once(first).chain(waiting).unzip();
        for (write, result) in writes.into_iter().zip(writer.write(changes)) {
            // Without a desk there is nobody to tell; what is asked for is written all the same.
            let _ = events.send(DeskEvent::Stored { write, result });
        }
    }
}

/// The database, and how it is opened again.
struct StoreWriter {
    path: PathBuf,
    /// `None` after a write that failed: the database refuses all others then, until it is opened
    /// again.
    open: OpenTables,
}

impl StoreWriter {
    /// Writes changes in one transaction; an answer for each, in their order.
    fn write(&mut self, changes: Vec<Change>) -> Vec<Result<(), String>> {
        let encoded: Vec<_> = changes.iter().map(EncodedChange::of).collect();
        let written = self.commit(encoded.iter().flatten());
        let answer = |encoded: Result<EncodedChange, String>| {
            encoded.map_err(|cause| self.failed(&cause))?;
            written.clone().map_err(|error| self.failed(&error.to_string()))
        };
        encoded.into_iter().map(answer).collect()
    }

    fn commit<'a>(
        &mut self,
        changes: impl Iterator<Item = &'a EncodedChange>,
    ) -> Result<(), TablesError> {
        // Never renamed here: what cannot be opened now may be whole, on a disk that is full.
        let tables = match self.lock().clone() {
            Some(tables) => tables,
            None => Arc::new(JobTables::open(&self.path)?),
        };
        let written = tables.write(changes, unix_ms());
        *self.lock() = written.is_ok().then_some(tables);
        written
    }

    /// Closes the database, as soon as nobody reads it.
    fn take(&mut self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<JobTables>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, cause: &str) -> String {
        let path = self.path.display();
        format!("cannot write the job store {path}: {cause}; hint: is its disk full, or read-only?")
    }
}

#[cfg(test)]
mod tests;
