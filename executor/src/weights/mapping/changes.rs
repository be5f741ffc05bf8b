//! Whether a mapped file was changed by others since it was opened.
//!
//! The system's word, length and time of the last write, is asked of the open file, so that another
//! file under its path does not count. The time can lie: writes through mappings may tell it late,
//! and programs can set it. So some pages are compared too, by their hashes. Only pages that are in
//! the page cache are looked at, so looking reads no disk; and only in files of the user, as the
//! system does not tell of others'. Changes elsewhere, under a time that lies, are not seen.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use protocol::Bytes;
use protocol::notice::FileState;
use rustix::param::page_size;
use rustix::process::geteuid;

use super::MappedFile;

/// Most pages of a file that are looked at: the first, the last, and others evenly between. All of
/// them are 256 KiB of the page cache.
const PAGES_MAX: usize = 64;

/// What is read of a page: all of one on x86-64.
const SAMPLE_BYTES: usize = 4096;

/// What a file was when it was opened, and what stood in some of its pages when they were first
/// seen.
#[derive(Debug)]
pub(super) struct SeenFile {
    state: FileState,
    /// The hash of each page of [`pages`], once it was in the page cache.
    hashes: Mutex<Vec<Option<u64>>>,
}

impl SeenFile {
    pub fn new(path: &Path, status: &Metadata) -> SeenFile {
        let user = geteuid();
        // Of others' files the system does not tell what is in the page cache (mincore(2)).
        let is_told = user.is_root() || user.as_raw() == status.uid();
        let pages = if is_told { pages(Bytes(status.len()).as_usize()).count() } else { 0 };
        let state = FileState::of(path.to_string_lossy(), status);
        SeenFile { state, hashes: Mutex::new(vec![None; pages]) }
    }
}

impl MappedFile {
    /// What the file was when it was opened.
    pub fn state(&self) -> &FileState {
        &self.seen.state
    }

    /// Remembers what stands in some pages, as far as they are in the page cache and were not seen
    /// yet.
    pub fn look(&self) {
        let mut hashes = self.seen.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        for (hash, page) in hashes.iter_mut().zip(pages(self.bytes().len())) {
            if hash.is_none() {
                *hash = self.hash(page);
            }
        }
    }

    /// Whether the file is not what it was when it was opened, as far as that can be seen.
    pub fn has_changed(&self) -> bool {
        let Ok(status) = self.file().metadata() else { return true };
        if FileState::of(self.state().path.clone(), &status) != *self.state() {
            return true;
        }
        let hashes = self.seen.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = |(then, page): (&Option<u64>, Range<usize>)| {
            then.is_some_and(|then| self.hash(page).is_some_and(|now| now != then))
        };
        hashes.iter().zip(pages(self.bytes().len())).any(differs)
    }

    /// The hash of a page's beginning; `None` where it is not in the page cache.
    fn hash(&self, page: Range<usize>) -> Option<u64> {
        if self.cached_bytes(page.clone()).ok()? == Bytes::ZERO {
            return None;
        }
        let mut bytes = [0; SAMPLE_BYTES];
        let bytes = &mut bytes[..page.len().min(SAMPLE_BYTES)];
        // Read, not mapped: pages of a private mapping may differ from the file's.
        self.file().read_exact_at(bytes, page.start as u64).ok()?;
        let mut hasher = DefaultHasher::new();
        hasher.write(bytes);
        Some(hasher.finish())
    }
}

/// The pages of a file of this length that are looked at.
fn pages(length: usize) -> impl Iterator<Item = Range<usize>> {
    let count = length.div_ceil(page_size());
    let looked_at = count.min(PAGES_MAX);
    let page = move |at: usize| match looked_at {
        0 | 1 => 0,
        _ => at * (count - 1) / (looked_at - 1),
    };
    (0..looked_at).map(move |at| {
        let start = page(at) * page_size();
        start..(start + page_size()).min(length)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes, OpenOptions};

    use super::*;

    #[test]
    fn pages_are_spread_from_the_first_to_the_last() {
        let page = page_size();
        assert_eq!(pages(1).collect::<Vec<_>>(), vec![0..1]);
        assert_eq!(pages(page + 1).collect::<Vec<_>>(), vec![0..page, page..page + 1]);
        let many: Vec<_> = pages(1000 * page).collect();
        assert_eq!((many.len(), &many[0], &many[63]), (64, &(0..page), &(999 * page..1000 * page)));
        assert!(many.windows(2).all(|pair| pair[0].end <= pair[1].start));
    }

    /// Writes a byte, and sets the time of the last write to what it was.
    fn write_unseen(path: &Path, at: u64) {
        let modified = path.metadata().and_then(|status| status.modified()).expect("a time");
        let file = OpenOptions::new().write(true).open(path).expect("the file");
        file.write_all_at(b"!", at).expect("a write");
        file.set_times(FileTimes::new().set_modified(modified)).expect("times can be set");
    }

    #[test]
    fn what_others_write_is_seen() {
        let home = tempfile::tempdir().expect("a scratch directory");
        let path = home.path().join("file");
        let length = 3 * page_size() + 10;
        std::fs::write(&path, vec![7; length]).expect("a file");
        let open = || MappedFile::open(&path).expect("it can be mapped");

        let mapped = open();
        mapped.look();
        assert!(!mapped.has_changed());
        File::open(&path).and_then(|file| file.sync_all()).expect("it reaches the disk");
        assert!(!mapped.has_changed(), "reading changes nothing");
        write_unseen(&path, page_size() as u64 + 5);
        assert!(mapped.has_changed(), "a page that lies about its time");

        let mapped = open();
        File::options().write(true).open(&path).unwrap().set_len(5).expect("it can be cut");
        assert!(mapped.has_changed(), "its length");

        let mapped = open();
        std::fs::write(home.path().join("new"), "another").expect("a file");
        std::fs::rename(home.path().join("new"), &path).expect("it can be replaced");
        assert!(!mapped.has_changed(), "the mapping keeps the old one");
    }
}
