//! One heap for all threads, where the address space is limited: glibc reserves 64 MiB of it for
//! the heap of each thread, which would be most of a small one. Also for the daemon, which lives
//! for weeks: each of its threads would keep what it freed for itself, and what is large would
//! leave gaps between what is small. glibc reads how it is to be once, when a program begins.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, getrlimit};

/// The environment variable by which glibc is told how many heaps there may be.
const HEAPS_MAX: &str = "MALLOC_ARENA_MAX";

/// Those of the sizes in bytes from which on an allocation is a mapping of its own, and the unused
/// end of a heap is given back. Where nothing is said, both grow with what was freed, to 32 and
/// 64 MiB, and the heap with them.
const FIXED: [&str; 2] = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"];

/// What [`FIXED`] are: what glibc begins with.
const FIXED_BYTES: &str = "131072";

/// Begins this program anew with one heap where that matters and nothing was said of heaps: as the
/// same process, with the same arguments. `lives_long`: as the daemon does.
pub fn begin_with_one(lives_long: bool) {
    let matters = lives_long || getrlimit(Resource::As).current.is_some();
    if !matters || env::var_os(HEAPS_MAX).is_some() {
        return;
    }
    // That it could not begin anew is no reason not to go on.
    if let Ok(program) = env::current_exe() {
        let mut anew = Command::new(program);
        anew.args(env::args_os().skip(1)).env(HEAPS_MAX, "1");
        if lives_long {
            anew.envs(FIXED.map(|name| (name, FIXED_BYTES)));
        }
        let _ = anew.exec();
    }
}
