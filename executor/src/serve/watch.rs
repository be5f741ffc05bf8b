//! Watches the planner's process, so that the executor never outlives it.

use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

/// Starts a thread that ends this process with `code` when the planner's process ends.
pub fn exit_with(planner: i32, code: i32) -> io::Result<()> {
    let pid = Pid::from_raw(planner).ok_or_else(|| io::Error::other("no process id"))?;
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    // The planner is this process's parent; another parent means that it ended before we could
    // look.
    if getppid() != Some(pid) {
        return Err(io::Error::other("the planner has ended"));
    }
    let watch = move || {
        loop {
            let mut watched = [PollFd::new(&handle, PollFlags::IN)];
            if let Ok(ready) = poll(&mut watched, None)
                && ready > 0
            {
                std::process::exit(code);
            }
        }
    };
    std::thread::Builder::new().name("planner-watch".to_owned()).spawn(watch)?;
    Ok(())
}
