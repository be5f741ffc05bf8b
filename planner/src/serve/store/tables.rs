//! The database's tables: records, removed jobs, settings, and what could not be read.
//!
//! The only place that knows redb. Its checksums are checked over the whole file at each opening;
//! what it does not find, and panics at, is taken for damage too.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{REMOVED_MS, Restored};
use crate::serve::desk::action::{Change, DeskSettings};
use crate::serve::desk::job::{JobId, JobRecord, RECORD_VERSION};
use crate::temporary::PRIVATE_MODE;

/// Jobs by their names, as JSON.
const JOBS: TableDefinition<&str, &[u8]> = TableDefinition::new("jobs");

/// What stood in other tables and could not be read, by table and key.
const UNREAD: TableDefinition<&str, &[u8]> = TableDefinition::new("unread");

/// When a job was removed, in milliseconds since 1970.
const REMOVED: TableDefinition<&str, u64> = TableDefinition::new("removed");

/// What is not of a job, as JSON.
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");

/// The key of [`DeskSettings`] in [`META`].
const SETTINGS: &str = "settings";

/// What redb may keep in memory. A store of 1000 jobs has some tens of megabytes and is read once;
/// writes, and reads of single jobs, touch a few pages.
const CACHE_BYTES: usize = 4 << 20;

/// Why the database cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TablesError {
    /// Another process has it open.
    InUse,
    /// It is not what was written; why, as a clause.
    Damaged(String),
    /// The system refuses; why, as a clause.
    System(String),
}

impl fmt::Display for TablesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TablesError::InUse => f.write_str("another process has it open"),
            TablesError::Damaged(cause) | TablesError::System(cause) => f.write_str(cause),
        }
    }
}

impl From<redb::Error> for TablesError {
    fn from(error: redb::Error) -> TablesError {
        match error {
            redb::Error::DatabaseAlreadyOpen => TablesError::InUse,
            redb::Error::Io(cause) => match cause.kind() {
                // redb's word for a file that is none of its own, or ends too early.
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                    TablesError::Damaged(cause.to_string())
                }
                _ => TablesError::System(cause.to_string()),
            },
            error @ (redb::Error::PreviousIo
            | redb::Error::ValueTooLarge(_)
            | redb::Error::Unsupported) => TablesError::System(error.to_string()),
            error => TablesError::Damaged(error.to_string()),
        }
    }
}

/// A change as it is written.
pub enum EncodedChange {
    /// A job, and its record as JSON.
    Put(JobId, Vec<u8>),
    /// No more of this job than when it was removed.
    Remove(JobId),
    /// What the desk keeps beside jobs, as JSON.
    Settings(Vec<u8>),
}

impl EncodedChange {
    /// Makes it text, and reads that again: what a restart could not read is not written.
    ///
    /// # Errors
    /// Why not, as a clause.
    pub fn of(change: &Change) -> Result<EncodedChange, String> {
        let json = |text: serde_json::Result<Vec<u8>>| text.map_err(|error| error.to_string());
        match change {
            Change::Put(record) => {
                let text = json(serde_json::to_vec(record))?;
                let read = record_of(&record.id.0, &text);
                read.map_err(|error| format!("the record of job {} has {error}", record.id))?;
                Ok(EncodedChange::Put(record.id.clone(), text))
            }
            Change::Remove(id) => Ok(EncodedChange::Remove(id.clone())),
            Change::Settings(settings) => {
                json(serde_json::to_vec(settings)).map(EncodedChange::Settings)
            }
        }
    }
}

/// The database, open.
#[derive(Debug)]
pub struct JobTables {
    database: Database,
}

impl JobTables {
    /// Opens the file, which is made where there is none, and checks all of it.
    pub fn open(path: &Path) -> Result<JobTables, TablesError> {
        let file = OpenOptions::new().append(true).create(true).mode(PRIVATE_MODE).open(path);
        drop(file.map_err(|cause| TablesError::System(cause.to_string()))?);
        guarded(|| {
            let mut builder = Builder::new();
            builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
            Ok(JobTables { database: builder.create(path)? })
        })
    }

    /// All that is there. Removed jobs are forgotten in time, and what cannot be read is put aside.
    pub fn restore(&self, now_ms: u64) -> Result<Restored, TablesError> {
        guarded(|| {
            let mut restored = Restored::default();
            let transaction = self.database.begin_write()?;
            {
                let mut aside = transaction.open_table(UNREAD)?;
                let mut jobs = transaction.open_table(JOBS)?;
                let mut bad = Vec::new();
                for entry in jobs.iter()? {
                    let (key, value) = entry?;
                    match record_of(key.value(), value.value()) {
                        Ok(record) if record.state.is_ended() => {
                            restored.records.push(record.brief());
                        }
                        Ok(record) => restored.records.push(record),
                        Err(cause) => bad.push((key.value().to_owned(), cause)),
                    }
                }
                for (key, cause) in bad {
                    if let Some(value) = jobs.remove(key.as_str())? {
                        aside.insert(format!("jobs/{key}").as_str(), value.value())?;
                    }
                    restored
                        .unread
                        .push(format!("job {} has {cause}, and is put aside", shown(&key)));
                }
                let mut meta = transaction.open_table(META)?;
                let text = meta.get(SETTINGS)?.map(|text| text.value().to_vec());
                match text.as_deref().map(parsed::<DeskSettings>) {
                    None => {}
                    Some(Ok(settings)) => restored.settings = settings,
                    Some(Err(cause)) => {
                        let text = text.unwrap_or_default();
                        aside.insert("meta/settings", text.as_slice())?;
                        meta.remove(SETTINGS)?;
                        restored.unread.push(format!("the desk's settings have {cause}"));
                    }
                }
                let mut removed = transaction.open_table(REMOVED)?;
                removed.retain(|_, at_ms| is_remembered(at_ms, now_ms))?;
                for entry in removed.iter()? {
                    restored.removed.push(JobId(entry?.0.value().to_owned()));
                }
            }
            transaction.commit()?;
            Ok(restored)
        })
    }

    /// A job's record; within, what stands there in place of one, as the end of a sentence.
    pub fn record(&self, id: &JobId) -> Result<Option<Result<JobRecord, String>>, TablesError> {
        guarded(|| {
            let table = self.database.begin_read()?.open_table(JOBS)?;
            let text = table.get(id.0.as_str())?;
            Ok(text.map(|text| record_of(&id.0, text.value())))
        })
    }

    /// What was put aside, by table and key.
    #[cfg(test)]
    pub fn unread(&self) -> Result<Vec<(String, Vec<u8>)>, TablesError> {
        guarded(|| {
            let table = self.database.begin_read()?.open_table(UNREAD)?;
            let entry = |entry: Result<(redb::AccessGuard<&str>, redb::AccessGuard<&[u8]>), _>| {
                entry.map(|(key, value)| (key.value().to_owned(), value.value().to_vec()))
            };
            Ok(table.iter()?.map(entry).collect::<Result<_, redb::StorageError>>()?)
        })
    }

    /// Makes all of these changes, to the disk, or none of them.
    pub fn write<'a>(
        &self,
        changes: impl Iterator<Item = &'a EncodedChange>,
        now_ms: u64,
    ) -> Result<(), TablesError> {
        guarded(|| {
            let transaction = self.database.begin_write()?;
            {
                let mut jobs = transaction.open_table(JOBS)?;
                let mut removed = transaction.open_table(REMOVED)?;
                removed.retain(|_, at_ms| is_remembered(at_ms, now_ms))?;
                let mut meta = transaction.open_table(META)?;
                for change in changes {
                    match change {
                        EncodedChange::Put(id, text) => {
                            jobs.insert(id.0.as_str(), text.as_slice())?;
                        }
                        EncodedChange::Remove(id) => {
                            jobs.remove(id.0.as_str())?;
                            removed.insert(id.0.as_str(), now_ms)?;
                        }
                        EncodedChange::Settings(text) => {
                            meta.insert(SETTINGS, text.as_slice())?;
                        }
                    }
                }
            }
            transaction.commit()?;
            Ok(())
        })
    }
}

/// Does what may find damage. A panic of redb is damage that its own checks did not see.
fn guarded<T>(work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, TablesError> {
    match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Ok(result?),
        Err(_) => Err(TablesError::Damaged("its pages contradict each other".to_owned())),
    }
}

/// Whether a job that was removed then is still remembered. A time that has yet to come stands for
/// a clock that was put back, and is forgotten after as long.
fn is_remembered(at_ms: u64, now_ms: u64) -> bool {
    now_ms.abs_diff(at_ms) <= REMOVED_MS
}

/// Reads a record; else what it has in place of one, as the end of a sentence.
fn record_of(key: &str, text: &[u8]) -> Result<JobRecord, String> {
    #[derive(Deserialize)]
    struct RecordHead {
        v: u32,
    }
    let RecordHead { v } = parsed(text)?;
    if v != RECORD_VERSION {
        return Err(format!("a record of version {v}, where {RECORD_VERSION} is known"));
    }
    let record: JobRecord = parsed(text)?;
    match record.id.0 == key {
        true => Ok(record),
        false => Err(format!("the record of job {}", shown(&record.id.0))),
    }
}

fn parsed<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| format!("an unreadable record ({error})"))
}

/// As much of a name as a sentence repeats.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(80).collect()
}
