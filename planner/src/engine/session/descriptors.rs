//! Whether this process can open as many files as a session takes: told before it begins. In its
//! midst a channel or a picture that finds no descriptor is lost.

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{PidfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_open, setrlimit};

/// Descriptors that a session takes: channels, pipes, sockets, files and locks take about 30, and
/// each picture of a job one, of which there are [`BATCH_MAX`](protocol::limits::BATCH_MAX) at
/// most.
const DESCRIPTORS: u32 = 64 + protocol::limits::BATCH_MAX;

/// The limit that is asked for where the user's is lower and may be raised: the usual one of Linux.
const LIMIT: u64 = 1024;

/// Fewer files can be opened than a session takes.
#[derive(Debug, thiserror::Error)]
#[error(
    "too few files can be opened at once: the limit is {limit}; hint: raise it by `ulimit -n {LIMIT}`"
)]
pub struct TooFewDescriptors {
    limit: u64,
}

/// Makes sure of the descriptors of a session: raises the limit where it may be, and tries.
pub fn check() -> Result<(), TooFewDescriptors> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = LIMIT.min(maximum.unwrap_or(LIMIT));
    let limit = match current {
        Some(current) if current < raised => {
            let wanted = Rlimit { current: Some(raised), maximum };
            setrlimit(Resource::Nofile, wanted).map_or(current, |()| raised)
        }
        current => current.unwrap_or(u64::MAX),
    };
    let handle =
        pidfd_open(getpid(), PidfdFlags::empty()).map_err(|_| TooFewDescriptors { limit })?;
    let copies = (0..DESCRIPTORS).map(|_| fcntl_dupfd_cloexec(&handle, 0));
    let opened: Result<Vec<_>, _> = copies.collect();
    opened.map(drop).map_err(|_| TooFewDescriptors { limit })
}
