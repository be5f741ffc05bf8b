//! A counting allocator: what the heap of a test program holds, and what it held at most.
//!
//! A program that has this module allocates by it. The counters are of the whole process: a test
//! that reads them has to be alone in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The system's allocator with counters.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static WATCHED: AtomicBool = AtomicBool::new(false);
static LARGEST_WATCHED: AtomicUsize = AtomicUsize::new(0);

/// Bytes allocated now.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// The most bytes allocated at one time since [`restart`].
pub fn peak_bytes() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// The largest allocation since [`restart`] while [`watch`] was on.
pub fn largest_watched_bytes() -> usize {
    LARGEST_WATCHED.load(Ordering::Relaxed)
}

/// Starts watching single allocations, or stops it.
pub fn watch(on: bool) {
    WATCHED.store(on, Ordering::Relaxed);
}

/// Starts a new peak from what is allocated now.
pub fn restart() {
    PEAK.store(live_bytes(), Ordering::Relaxed);
    LARGEST_WATCHED.store(0, Ordering::Relaxed);
}

fn count(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
    if WATCHED.load(Ordering::Relaxed) {
        LARGEST_WATCHED.fetch_max(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call goes on to the system's allocator unchanged; the counters touch no memory of
// it. Growing in place is left out: the default allocates anew, copies and frees, and so is
// counted.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }
}
