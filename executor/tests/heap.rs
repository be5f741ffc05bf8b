//! The heap keeps what is freed while a plan is made, and gives all of it back after that. In a
//! process of its own: what other tests allocate would be counted too.

#![cfg(target_env = "gnu")]

use executor::backend::heap;

const BLOCK_BYTES: usize = 64 << 10;
const BLOCKS: usize = 128;

/// What this process has in memory that is of no file, in bytes.
fn held_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("of memory");
    let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("in KiB");
    kib << 10
}

/// Takes 8 MiB in small blocks and frees them.
fn allocate_and_free() {
    let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![1; BLOCK_BYTES]).collect();
    std::hint::black_box(&blocks);
}

/// The same on each thread that makes a plan's graphs, and on this one; how much more is held then.
fn grown_by() -> usize {
    let before = held_bytes();
    rayon::broadcast(|_| allocate_and_free());
    allocate_and_free();
    held_bytes().saturating_sub(before)
}

#[test]
fn what_is_freed_stays_until_all_is_given_back() {
    let all = (rayon::current_num_threads() + 1) * BLOCKS * BLOCK_BYTES;
    let before = held_bytes();
    heap::keep_for_plans();
    let kept = grown_by();
    assert!(kept > all / 2, "{kept} of {all} bytes");
    heap::give_back();
    let left = held_bytes().saturating_sub(before);
    assert!(left < all / 8, "{left} of {all} bytes");
    let kept = grown_by();
    assert!(kept < all / 8, "{kept} of {all} bytes");
}
