//! A file mapped into memory, read-only. Mapping reads nothing: pages come from the page cache when
//! they are first touched, and cost no anonymous memory.
//!
//! A [`PrivateMapping`] can also be written: a page becomes this process's own at the first write
//! to it, the others stay in the page cache, and the file never changes. Its own pages are the only
//! copy of what was written, so advice that drops pages (`MADV_DONTNEED`) must not reach them.
//!
//! Invariant: the mapping is as long as the file was when it was opened, and at least one byte.
//!
//! Touching a page beyond the end of a file that shrank is a bus error, which no check on this side
//! can exclude. [`MappedFile::check_unchanged`] before the pages are used turns all but a race into
//! an error.
//!
//! A mapping policy says what becomes of the pages: [`MappedFile::advise`] is told it once, and
//! [`MappedFile::release`] which bytes are not needed any more. Neither changes what is read.

mod changes;

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memmap2::{Advice, Mmap, MmapMut, MmapOptions, UncheckedAdvice};
use protocol::Bytes;
use protocol::plan::MappingPolicy;
use rustix::fs::{Advice as FileAdvice, fadvise};
use rustix::param::page_size;

use super::WeightsError;
use crate::read::{self, ReadError};
use changes::SeenFile;

/// The system caches a file in pieces of up to so many bytes, and drops a piece only whole: the
/// huge page of x86-64, and of arm64 with pages of 4 KiB (`MAX_PAGECACHE_ORDER` of Linux).
const PIECE_BYTES_MAX: usize = 2 << 20;

/// A regular file and its mapping.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: Mmap,
    private: bool,
    pages: Mutex<Pages>,
    /// Of private copies too.
    seen: Arc<SeenFile>,
}

/// What becomes of a file's pages.
#[derive(Debug, Default)]
struct Pages {
    policy: MappingPolicy,
    /// What was released, as runs in order that do not touch.
    released: Vec<Range<usize>>,
}

/// A mapping of a file that can be written without changing the file.
#[derive(Debug)]
pub struct PrivateMapping {
    path: PathBuf,
    file: File,
    map: MmapMut,
    seen: Arc<SeenFile>,
}

impl MappedFile {
    /// Opens and maps the file at `path`; links are followed. Pages are kept, until
    /// [`MappedFile::advise`] says otherwise.
    ///
    /// # Errors
    /// [`WeightsError::Open`], [`WeightsError::NotRegularFile`], [`WeightsError::EmptyFile`] and
    /// [`WeightsError::Map`].
    pub fn open(path: &Path) -> Result<MappedFile, WeightsError> {
        let (file, file_bytes) = open_regular(path)?;
        if file_bytes == 0 {
            return Err(WeightsError::EmptyFile { path: path.to_owned() });
        }
        let map_error =
            |cause| WeightsError::Map { path: path.to_owned(), size: Bytes(file_bytes), cause };
        let length = usize::try_from(file_bytes)
            .map_err(|_| map_error(io::Error::from(io::ErrorKind::FileTooLarge)))?;
        // SAFETY: the mapping is private to this value, read-only, and no longer than the file is
        // now. Others may write to the file meanwhile; its bytes are only ever read as plain
        // numbers, for which every bit pattern is valid, and users call `check_unchanged` before a
        // phase.
        let map = unsafe { MmapOptions::new().len(length).map(&file) }.map_err(map_error)?;
        let pages = Mutex::default();
        let status =
            file.metadata().map_err(|cause| WeightsError::Read { path: path.to_owned(), cause })?;
        let seen = Arc::new(SeenFile::new(path, &status));
        Ok(MappedFile { path: path.to_owned(), file, map, private: false, pages, seen })
    }

    /// The file's content.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Length of file and mapping.
    pub fn size(&self) -> Bytes {
        Bytes(self.map.len() as u64)
    }

    /// Where the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file, to read from it without touching the mapping; it lacks what was written in a
    /// private one. Its cursor starts at 0 and stays where the last reader left it, in private
    /// copies too.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether pages may differ from the file's; see the [module](self) for what that forbids.
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Maps the same file once more, to be written to. Costs no memory before the first write.
    ///
    /// # Errors
    /// [`WeightsError::Map`].
    pub fn private_copy(&self) -> Result<PrivateMapping, WeightsError> {
        let map_error =
            |cause| WeightsError::Map { path: self.path.clone(), size: self.size(), cause };
        let file = self.file.try_clone().map_err(map_error)?;
        // Only the pages that are written need memory, so none is reserved for the others.
        let mut options = MmapOptions::new();
        options.len(self.map.len()).no_reserve_swap();
        // SAFETY: as in `open`. Writes are to pages of this process alone; others may write to the
        // file meanwhile, and its bytes are only ever read as plain numbers.
        let map = unsafe { options.map_copy(&file) }.map_err(map_error)?;
        let seen = Arc::clone(&self.seen);
        Ok(PrivateMapping { path: self.path.clone(), file, map, seen })
    }

    /// Checks that all of the mapping can still be read. A file that grew passes, as the mapped
    /// part of it is still there; so does one that was replaced by renaming, as the mapping keeps
    /// the old one.
    ///
    /// # Errors
    /// [`WeightsError::FileShrank`], or [`WeightsError::Read`] if the system does not tell the
    /// length.
    pub fn check_unchanged(&self) -> Result<(), WeightsError> {
        let status = self
            .file
            .metadata()
            .map_err(|cause| WeightsError::Read { path: self.path.clone(), cause })?;
        let (mapped_bytes, present_bytes) = (self.map.len() as u64, status.len());
        if present_bytes < mapped_bytes {
            let path = self.path.clone();
            return Err(WeightsError::FileShrank { path, mapped_bytes, present_bytes });
        }
        Ok(())
    }
}

impl PrivateMapping {
    /// The content, which starts as the file's.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }

    /// Ends writing.
    ///
    /// # Errors
    /// [`WeightsError::Map`].
    pub fn finish(self) -> Result<MappedFile, WeightsError> {
        let PrivateMapping { path, file, map, seen } = self;
        let size = Bytes(map.len() as u64);
        match map.make_read_only() {
            Ok(map) => {
                let pages = Mutex::default();
                Ok(MappedFile { path, file, map, private: true, pages, seen })
            }
            Err(cause) => Err(WeightsError::Map { path, size, cause }),
        }
    }
}

/// Bytes of the pages that these byte ranges of one file cover, each page counted once: what
/// writing them in a [`PrivateMapping`] makes private.
pub fn covered_page_bytes(ranges: impl IntoIterator<Item = Range<u64>>) -> Bytes {
    let page_bytes = rustix::param::page_size() as u64;
    let pages = |range: Range<u64>| range.start / page_bytes..range.end.div_ceil(page_bytes);
    let mut pages: Vec<Range<u64>> =
        ranges.into_iter().filter(|range| !range.is_empty()).map(pages).collect();
    pages.sort_unstable_by_key(|range| range.start);
    let (mut count, mut end) = (0, 0);
    for range in pages {
        count += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    Bytes(count * page_bytes)
}

/// The page cache.
impl MappedFile {
    /// Tells the system how the file will be read, and [`MappedFile::release`] what to do.
    ///
    /// # Errors
    /// [`WeightsError::PageCache`] if the system refuses.
    pub fn advise(&self, policy: MappingPolicy) -> Result<(), WeightsError> {
        let (of_mapping, of_file) = match policy {
            MappingPolicy::Keep => (Advice::Normal, FileAdvice::Normal),
            // Pages that will be dropped are read in order too; and what is read around a fault in
            // place of ahead of it would bring dropped ones back.
            MappingPolicy::Sequential | MappingPolicy::Drop => {
                (Advice::Sequential, FileAdvice::Sequential)
            }
        };
        self.map.advise(of_mapping).map_err(|cause| self.page_cache_error(cause))?;
        fadvise(&self.file, 0, None, of_file).map_err(|cause| self.page_cache_error(cause))?;
        self.pages().policy = policy;
        Ok(())
    }

    /// Says that these bytes, from the start of the file, were copied and are not needed soon.
    /// Under [`MappingPolicy::Drop`] the pages that lie whole in what was released so far leave the
    /// mapping and, where no other process has them mapped or has written to them, the page cache.
    /// They can still be read: from disk.
    ///
    /// # Errors
    /// [`WeightsError::PageCache`] if the system refuses.
    ///
    /// # Panics
    /// If the range does not lie in the file.
    pub fn release(&self, range: Range<usize>) -> Result<(), WeightsError> {
        assert!(range.start <= range.end && range.end <= self.map.len(), "bytes outside the file");
        let mut pages = self.pages();
        // Pages that LoRA changed are nowhere else.
        if pages.policy != MappingPolicy::Drop || self.private {
            return Ok(());
        }
        let run = join(&mut pages.released, &range);
        drop(pages);
        // What the range shares with released neighbours can go now too.
        let start = run.start.max(range.start.saturating_sub(PIECE_BYTES_MAX));
        let start = start.next_multiple_of(page_size());
        let end = run.end.min(range.end + PIECE_BYTES_MAX);
        // The last page belongs to the range that the file ends with.
        let end = if end == self.map.len() { end } else { end / page_size() * page_size() };
        let Some(len) = NonZeroU64::new(end.saturating_sub(start) as u64) else { return Ok(()) };
        // The page cache keeps what is mapped, so the mapping comes first.
        // SAFETY: the mapping is of a file, shared and never written to by this process, so a page
        // that leaves it loses nothing: the next access maps the file's page again.
        unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) }
            .map_err(|cause| self.page_cache_error(cause))?;
        fadvise(&self.file, start as u64, Some(len), FileAdvice::DontNeed)
            .map_err(|cause| self.page_cache_error(cause))
    }

    /// How much of these bytes is in the page cache, in whole pages. The system tells the truth to
    /// who owns the file or may write to it; to others, that all is there (mincore(2)).
    ///
    /// # Errors
    /// [`WeightsError::PageCache`] if the system refuses.
    ///
    /// # Panics
    /// If the range does not lie in the file.
    pub fn cached_bytes(&self, range: Range<usize>) -> Result<Bytes, WeightsError> {
        /// Pages asked for at a time, one byte of answer each.
        const PAGES_MAX: usize = 1 << 14;
        let mut answer = [0u8; PAGES_MAX];
        let mut pages = 0;
        let first = range.start / page_size() * page_size();
        for from in (first..range.end).step_by(PAGES_MAX * page_size()) {
            let part = &self.map[from..range.end.min(from + PAGES_MAX * page_size())];
            // SAFETY: the part begins at a page of this mapping and ends within it, and the answer
            // has a byte for each of its pages.
            let status = unsafe {
                libc::mincore(part.as_ptr().cast_mut().cast(), part.len(), answer.as_mut_ptr())
            };
            if status != 0 {
                return Err(self.page_cache_error(io::Error::last_os_error()));
            }
            let answered = &answer[..part.len().div_ceil(page_size())];
            // The other bits are reserved.
            pages += answered.iter().filter(|page| *page & 1 == 1).count();
        }
        Ok(Bytes((pages * page_size()) as u64))
    }

    /// How much of these bytes is in the page cache, in pages that lie in them whole. Unlike
    /// [`MappedFile::cached_bytes`] it takes microseconds for a file of any size, where the system
    /// has cachestat(2), Linux since 6.5. What the system does not tell, of other users' files,
    /// counts as not there.
    ///
    /// # Errors
    /// As [`MappedFile::cached_bytes`], where the system lacks cachestat(2).
    ///
    /// # Panics
    /// If the range does not lie in the file.
    pub fn cached_page_bytes(&self, range: Range<usize>) -> Result<Bytes, WeightsError> {
        assert!(range.start <= range.end && range.end <= self.map.len(), "bytes outside the file");
        let whole =
            range.start.next_multiple_of(page_size())..range.end / page_size() * page_size();
        if whole.is_empty() {
            return Ok(Bytes::ZERO);
        }
        match cachestat(&self.file, &whole) {
            Ok(pages) => Ok(Bytes(pages * page_size() as u64)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Bytes::ZERO),
            Err(_) => self.cached_bytes(whole),
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page_cache_error(&self, cause: impl Into<io::Error>) -> WeightsError {
        WeightsError::PageCache { path: self.path.clone(), cause: cause.into() }
    }
}

/// Pages of a file's bytes that the page cache holds.
fn cachestat(file: &File, range: &Range<usize>) -> io::Result<u64> {
    /// The call's number in the table that x86-64, arm64 and most others share (Linux,
    /// `scripts/syscall.tbl`); where it is another one, this is none.
    const SYS_CACHESTAT: libc::c_long = 451;
    // Offset and length; cached, dirty, in writeback, evicted and recently evicted pages: struct
    // cachestat_range and struct cachestat of `include/uapi/linux/mman.h`.
    let bytes = [range.start as u64, range.len() as u64];
    let mut pages = [0u64; 5];
    // SAFETY: both pointers are to as many numbers as the call reads and writes, and live past it.
    let status = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), bytes.as_ptr(), pages.as_mut_ptr(), 0)
    };
    if status == 0 { Ok(pages[0]) } else { Err(io::Error::last_os_error()) }
}

/// Adds `range` to runs in order that do not touch; returns the run that it is part of then.
pub(super) fn join(runs: &mut Vec<Range<usize>>, range: &Range<usize>) -> Range<usize> {
    let first = runs.partition_point(|run| run.end < range.start);
    let after = runs.partition_point(|run| run.start <= range.end);
    let touched = &runs[first..after];
    let start = touched.first().map_or(range.start, |run| run.start.min(range.start));
    let end = touched.last().map_or(range.end, |run| run.end.max(range.end));
    runs.splice(first..after, std::iter::once(start..end));
    start..end
}

/// Opens a file for reading if it is a regular one; the answer has its length in bytes.
pub(super) fn open_regular(path: &Path) -> Result<(File, u64), WeightsError> {
    let path = || path.to_owned();
    read::open(&path()).map_err(|error| match error {
        ReadError::NotRegular => WeightsError::NotRegularFile { path: path() },
        ReadError::System(cause) => WeightsError::Open { path: path(), cause },
        ReadError::NotText | ReadError::TooLarge { .. } => unreachable!("nothing is read yet"),
    })
}

#[cfg(test)]
mod tests;
