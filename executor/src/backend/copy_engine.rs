//! The copy engine of a virtual device: one thread that copies in order, no faster than the link.
//!
//! ```text
//! submit ──► queue ──► copy a chunk ──► wait until the link would have carried it ──► … ──► event
//! ```
//! Whoever submits waits for the event, so what a copy reads and writes outlives it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::Bytes;

use super::{CancelFlag, Cancelled, Region, WeightMove};
use crate::weights::WeightFiles;

/// Largest piece that is copied before the pace is checked: 4 ms of a 64 MiB/s link.
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Longest time that one piece takes on a slow link, so that a cancelled load ends soon.
const CHUNK_SECONDS_MAX: f64 = 0.02;

/// How often a waiting thread looks whether the engine still lives.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// A thread with a queue of copies.
pub struct CopyEngine {
    queue: Option<Sender<Copy>>,
    thread: Option<JoinHandle<()>>,
}

struct Copy {
    work: Work,
    done: Arc<CopyEvent>,
}

enum Work {
    Load {
        files: Arc<WeightFiles>,
        moves: Vec<WeightMove>,
        region: Arc<Region>,
        cancel: CancelFlag,
    },
    Write {
        region: Arc<Region>,
        offset: Bytes,
        source: HostBytes,
    },
    Read {
        region: Arc<Region>,
        offset: Bytes,
        target: HostBytes,
    },
}

/// Bytes of a slice that the submitting thread holds until the copy's event.
struct HostBytes {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the submitter keeps the slice borrowed and untouched until the event.
unsafe impl Send for HostBytes {}

/// Tells that a copy has ended.
#[derive(Default)]
struct CopyEvent {
    ended: Mutex<Option<Result<(), Cancelled>>>,
    changed: Condvar,
}

impl CopyEvent {
    fn signal(&self, result: Result<(), Cancelled>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.changed.notify_all();
    }
}

impl CopyEngine {
    /// Starts the thread.
    pub fn start(link_bytes_per_s: f64) -> CopyEngine {
        assert!(link_bytes_per_s > 0.0, "a link without a rate");
        let (queue, copies) = channel();
        let body = move || serve(&copies, link_bytes_per_s);
        let thread = std::thread::Builder::new()
            .name("copy-engine".to_owned())
            .spawn(body)
            .expect("the system can start a thread");
        CopyEngine { queue: Some(queue), thread: Some(thread) }
    }

    /// Copies weights into a region; returns when all are there or the load was cancelled.
    pub fn load(
        &self,
        files: &Arc<WeightFiles>,
        moves: Vec<WeightMove>,
        region: &Arc<Region>,
        cancel: &CancelFlag,
    ) -> Result<(), Cancelled> {
        self.submit(Work::Load {
            files: Arc::clone(files),
            moves,
            region: Arc::clone(region),
            cancel: cancel.clone(),
        })
    }

    /// Copies a slice into a region.
    pub fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) {
        let source = HostBytes { start: source.as_ptr().cast_mut(), bytes: source.len() };
        let work = Work::Write { region: Arc::clone(region), offset, source };
        self.submit(work).expect("a write is never cancelled");
    }

    /// Copies from a region into a slice.
    pub fn read(&self, region: &Arc<Region>, offset: Bytes, target: &mut [u8]) {
        let target = HostBytes { start: target.as_mut_ptr(), bytes: target.len() };
        let work = Work::Read { region: Arc::clone(region), offset, target };
        self.submit(work).expect("a read is never cancelled");
    }

    fn submit(&self, work: Work) -> Result<(), Cancelled> {
        let done = Arc::new(CopyEvent::default());
        let queue = self.queue.as_ref().expect("the queue is open until the engine is dropped");
        let sent = queue.send(Copy { work, done: Arc::clone(&done) });
        assert!(sent.is_ok(), "the copy engine has ended");
        let mut ended = done.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(result) = *ended {
                return result;
            }
            let waited = done.changed.wait_timeout(ended, WATCH_INTERVAL);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            let alive = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            assert!(alive || ended.is_some(), "the copy engine has ended in the middle of a copy");
        }
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A panic in it has been reported by the waiting thread already.
            let _ = thread.join();
        }
    }
}

fn serve(copies: &Receiver<Copy>, link_bytes_per_s: f64) {
    let mut pace = Pace { link_bytes_per_s, free_at: Instant::now() };
    for copy in copies {
        let result = perform(copy.work, &mut pace);
        copy.done.signal(result);
    }
}

fn perform(work: Work, pace: &mut Pace) -> Result<(), Cancelled> {
    match work {
        Work::Load { files, moves, region, cancel } => {
            for entry in moves {
                let source = entry.tensor.view(&files).bytes;
                let mut offset = entry.offset;
                for chunk in source.chunks(pace.chunk_bytes()) {
                    cancel.check()?;
                    // SAFETY: nothing computes from a region before its load has ended, and copies run in order.
                    unsafe { region.bytes_mut(offset, chunk.len()) }.copy_from_slice(chunk);
                    pace.carry(chunk.len());
                    offset += Bytes(chunk.len() as u64);
                }
            }
        }
        Work::Write { region, offset, source } => {
            // SAFETY: the submitter keeps the slice borrowed until the event.
            let source = unsafe { std::slice::from_raw_parts(source.start, source.bytes) };
            // SAFETY: the submitter is the thread that runs nodes, and it waits.
            unsafe { region.bytes_mut(offset, source.len()) }.copy_from_slice(source);
            pace.carry(source.len());
        }
        Work::Read { region, offset, target } => {
            // SAFETY: the submitter keeps the slice borrowed, and untouched, until the event.
            let target = unsafe { std::slice::from_raw_parts_mut(target.start, target.bytes) };
            // SAFETY: the submitter is the thread that runs nodes, and it waits.
            target.copy_from_slice(unsafe { region.bytes(offset, target.len()) });
            pace.carry(target.len());
        }
    }
    Ok(())
}

/// When the link is free again.
struct Pace {
    link_bytes_per_s: f64,
    free_at: Instant,
}

impl Pace {
    fn chunk_bytes(&self) -> usize {
        ((self.link_bytes_per_s * CHUNK_SECONDS_MAX) as usize).clamp(1, CHUNK_BYTES_MAX)
    }

    /// Returns when the link would have carried these bytes after all earlier ones.
    fn carry(&mut self, bytes: usize) {
        let now = Instant::now();
        let seconds = bytes as f64 / self.link_bytes_per_s;
        // An idle link saves nothing up.
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(seconds);
        // Shorter waits than a timer can do are left to add up.
        if self.free_at > now + Duration::from_micros(200) {
            std::thread::sleep(self.free_at - now);
        }
    }
}
