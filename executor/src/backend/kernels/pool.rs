//! Threads that wait for a function, all call it, and wait for the next one.
//!
//! Who gives the function calls it too, as worker 0. A job is a number that goes up by one; helpers
//! wait for it to differ from the last that they did, and count themselves down when done. Both
//! sides spin for some microseconds, as operations follow each other that soon, then sleep. A
//! helper that wakes on the core of another worker leaves it ([`Cores`]).
//!
//! Invariants: there is one job at a time, and a job's function is not touched when [`Pool::run`]
//! has returned. A sleeper is never missed: it says that it sleeps before it looks for the last
//! time, and who has news tells them before looking for sleepers, all in one total order.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::cores::Cores;

/// Looks before sleeping: with a pause of some 40 ns between two (Intel's optimisation manual, on
/// Skylake and later) about twice what waking a thread takes.
const SPINS: usize = 500;

/// The helpers of a pool.
pub(super) struct Pool {
    shared: Arc<PoolState>,
    helpers: Vec<JoinHandle<()>>,
    /// Held while a job runs: of several callers, one at a time is served.
    turn: Mutex<()>,
}

/// A function whose lifetime is forgotten: it lives while its job runs.
type ErasedJob = *const (dyn Fn(usize) + Sync);

struct PoolState {
    /// The number of the present job.
    job: AtomicU64,
    /// Its function; written only while no job runs, before its number.
    work: UnsafeCell<Option<ErasedJob>>,
    /// Helpers that have not done it yet.
    left: AtomicUsize,
    /// What a helper panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Whether the next job is the end.
    end: AtomicBool,
    /// Where helpers wait for a job.
    begun: Bell,
    /// Where the caller waits for the helpers.
    done: Bell,
    /// Where workers run.
    cores: Cores,
}

// SAFETY: the function is written by the caller while helpers only wait, and read by them after its
// number; it may be called from all threads. All else is synchronised by itself.
unsafe impl Send for PoolState {}
// SAFETY: as above.
unsafe impl Sync for PoolState {}

/// Where threads wait for a condition that others bring about.
#[derive(Default)]
struct Bell {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    rings: Condvar,
}

impl Bell {
    /// Returns when `ready`, which reads with sequential consistency; says whether it slept.
    fn wait(&self, ready: impl Fn() -> bool) -> bool {
        for _ in 0..SPINS {
            if ready() {
                return false;
            }
            std::hint::spin_loop();
        }
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !ready() {
            lock = self.rings.wait(lock).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        true
    }

    /// Wakes all who wait; called after the condition was brought about, with sequential
    /// consistency.
    fn ring(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A sleeper that has not seen the news holds the lock until it hears.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.rings.notify_all();
        }
    }
}

impl Pool {
    /// A pool of so many workers, the caller among them.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn new(count: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(PoolState {
            job: AtomicU64::new(0),
            work: UnsafeCell::new(None),
            left: AtomicUsize::new(0),
            panic: Mutex::new(None),
            end: AtomicBool::new(false),
            begun: Bell::default(),
            done: Bell::default(),
            cores: Cores::of(count),
        });
        // Dropped with an error, it ends the threads that were started.
        let mut pool = Pool { shared, helpers: Vec::new(), turn: Mutex::new(()) };
        for worker in 1..count {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("berth-worker-{worker}"));
            pool.helpers.push(thread.spawn(move || shared.help(worker))?);
        }
        Ok(pool)
    }

    /// How many workers there are.
    pub(super) fn count(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Calls `work(worker)` once on each worker, and returns when all have. A panic of any of them
    /// goes on here. May not be called from `work`.
    pub(super) fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. No helper has the function after the wait below.
        let work_of_any_time =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), ErasedJob>(work) };
        // SAFETY: all helpers wait for the next number.
        unsafe { *shared.work.get() = Some(work_of_any_time) };
        shared.left.store(self.helpers.len(), Ordering::SeqCst);
        shared.cores.look(0);
        shared.job.fetch_add(1, Ordering::SeqCst);
        shared.begun.ring();
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        shared.done.wait(|| shared.left.load(Ordering::SeqCst) == 0);
        let theirs = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(turn);
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

impl PoolState {
    /// What a helper does.
    fn help(&self, worker: usize) {
        for last in 0.. {
            let slept = self.begun.wait(|| self.job.load(Ordering::SeqCst) != last);
            if self.end.load(Ordering::SeqCst) {
                return;
            }
            if slept {
                self.cores.part(worker);
            }
            // SAFETY: the function was written before its number, and is not written again, nor
            // does it end, until this helper has counted itself down.
            let work = unsafe { &*(*self.work.get()).expect("a job has a function") };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(worker))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.done.ring();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::SeqCst);
        self.shared.job.fetch_add(1, Ordering::SeqCst);
        self.shared.begun.ring();
        for helper in self.helpers.drain(..) {
            helper.join().expect("a helper catches what its work panics with");
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("count", &self.count()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each job writes what its workers computed; the next one reads it. Long waits in between make
    /// some sleep.
    #[test]
    fn jobs_follow_each_other_whether_workers_spin_or_sleep() {
        let pool = Pool::new(4).unwrap();
        let sums: [AtomicUsize; 4] = Default::default();
        for job in 0..20_000 {
            pool.run(&|worker| {
                assert_eq!(sums[worker].fetch_add(1, Ordering::Relaxed), job);
            });
            assert!(sums.iter().all(|sum| sum.load(Ordering::Relaxed) == job + 1));
            if job % 500 == 0 {
                // Longer than any worker spins.
                for _ in 0..20 * SPINS {
                    std::hint::spin_loop();
                }
            }
            if job % 700 == 0 {
                pool.run(&|worker| {
                    if worker == job / 700 % 4 {
                        (0..20 * SPINS).for_each(|_| std::hint::spin_loop());
                    }
                });
            }
        }
    }

    #[test]
    fn several_callers_and_several_pools_do_not_mix() {
        let pools = [Pool::new(3).unwrap(), Pool::new(2).unwrap()];
        std::thread::scope(|scope| {
            for caller in 0..4 {
                let pool = &pools[caller % 2];
                scope.spawn(move || {
                    for _ in 0..2_000 {
                        let calls = AtomicUsize::new(0);
                        pool.run(&|worker| {
                            calls.fetch_add(1 << (8 * worker), Ordering::Relaxed);
                        });
                        let each = if pool.count() == 3 { 0x01_01_01 } else { 0x01_01 };
                        assert_eq!(calls.into_inner(), each);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_when_all_are_done_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for panicking in 0..3 {
            let done = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|worker| {
                    assert_ne!(worker, panicking, "as asked");
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert!(caught.is_err());
            assert_eq!(done.into_inner(), 2);
        }
    }
}
