//! The heap: how much of what is freed stays with the process, to be used again.
//!
//! While a plan is made, a hundred graphs of a few megabytes are made and dropped one after the
//! other. glibc gives each back to the system and gets the pages of the next one anew: a tenth of
//! the time of `berth plan` (four A4000 with 3 GiB of each, `perf stat`: 36,000 page faults, with
//! the sizes below 7,000). All goes back a second after the last command, and before a plan is
//! loaded: while a job runs, what is freed would count as the process's memory.

/// From this size on an allocation is a mapping of its own, which ends when it is freed: larger
/// than any list of a graph.
const PLANNING_MAPPED: i32 = 4 << 20;

/// So much of what is freed at the end of a thread's heap stays: a few graphs.
const PLANNING_KEPT: i32 = 16 << 20;

/// What glibc begins with for both.
const RUNNING: i32 = 128 << 10;

/// When as much as this is freed, glibc looks at the end of its heap
/// (`FASTBIN_CONSOLIDATION_THRESHOLD` of its `malloc.c` is 64 KiB). It is less than [`RUNNING`].
const FREED_BYTES: usize = 96 << 10;

/// What is freed from now on stays, for the graphs of the next layout.
pub fn keep_for_plans() {
    set(PLANNING_MAPPED, PLANNING_KEPT);
}

/// What is free goes back to the system, and what is freed from now on.
pub fn give_back() {
    set(RUNNING, RUNNING);
    // `malloc_trim` leaves the ends of threads' heaps. These go when something is freed there that
    // is not small.
    let free_something = || drop(std::hint::black_box(Vec::<u8>::with_capacity(FREED_BYTES)));
    rayon::broadcast(|_| free_something());
    free_something();
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number and may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Tells glibc. Other allocators are told nothing.
fn set(mapped_bytes: i32, kept_bytes: i32) {
    #[cfg(target_env = "gnu")]
    // SAFETY: both take a number, and may be called at any time, from any thread.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, mapped_bytes);
        libc::mallopt(libc::M_TRIM_THRESHOLD, kept_bytes);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = (mapped_bytes, kept_bytes);
}
