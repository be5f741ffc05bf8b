//! On which cores the workers of a pool run, so that none waits for another one's core.
//!
//! Linux may wake a helper on its caller's core while another one idles: on a virtual machine a
//! core that has halted counts as taken by another guest. As long as operations are shorter than
//! the clock's tick it stays there, the two take turns, and the second thread is worse than none
//! (seen with `perf sched timehist` on a machine of two cores). A helper that wakes so leaves that
//! core, and does not come back to it until the caller is somewhere else.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The core of a worker that has not been seen yet.
const UNSEEN: usize = usize::MAX;

/// Where each worker of a pool was seen last.
pub(super) struct Cores {
    seen: Vec<AtomicUsize>,
    /// Where workers may run; `None` where the system does not say.
    allowed: Option<CpuSet>,
}

impl Cores {
    /// Of so many workers, which may run where the calling thread may.
    pub(super) fn of(workers: usize) -> Cores {
        let seen = (0..workers).map(|_| AtomicUsize::new(UNSEEN)).collect();
        Cores { seen, allowed: sched_getaffinity(None).ok() }
    }

    /// Notes the core of the calling thread, which is this worker.
    pub(super) fn look(&self, worker: usize) -> usize {
        let core = sched_getcpu();
        self.seen[worker].store(core, Ordering::Relaxed);
        core
    }

    /// Moves the calling thread, which is this worker, off the core of a worker of a lower number,
    /// to cores that no worker is on. Where there is none, or the system forbids it, it stays.
    pub(super) fn part(&self, worker: usize) {
        let core = self.look(worker);
        let seen = self.seen.iter().map(|seen| seen.load(Ordering::Relaxed));
        if seen.clone().take(worker).all(|of_other| of_other != core) {
            return;
        }
        let Some(mut free) = self.allowed else { return };
        seen.filter(|&core| core < CpuSet::MAX_CPU).for_each(|core| free.unset(core));
        if free.count() > 0 && sched_setaffinity(None, &free).is_ok() {
            self.look(worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_leaves_the_core_of_another() {
        let cores = Cores::of(2);
        let only_one = cores.allowed.unwrap().count() == 1;
        for _ in 0..100 {
            // As if the caller were where this thread is.
            let core = cores.look(0);
            cores.part(1);
            // The scheduler may have moved it before it could.
            let now = cores.seen[1].load(Ordering::Relaxed);
            assert!(now != core || only_one, "still on {core}");
        }
    }

    #[test]
    fn workers_stay_where_no_core_is_left() {
        let allowed = sched_getaffinity(None).unwrap();
        let cores = Cores::of(CpuSet::MAX_CPU + 1);
        for (core, seen) in cores.seen.iter().enumerate().take(CpuSet::MAX_CPU) {
            seen.store(core, Ordering::Relaxed);
        }
        cores.part(CpuSet::MAX_CPU);
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
