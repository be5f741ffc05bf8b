//! A fixed number of threads, and how a kernel's tasks are dealt to them.
//!
//! Tasks are taken from a counter, so a slow worker takes fewer. What a task computes may not
//! depend on who takes it; what one worker may use alone is its part of the scratch.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::pool::Pool;
use super::simd::Isa;

/// Below so many scalar operations the caller does the work itself: waking a thread takes some ten
/// microseconds, in which one core does about this much.
const INLINE_OPERATIONS: usize = 1 << 18;

/// How many elements of a long vector one task of an elementwise kernel takes: 64 KiB, which stays
/// in a core's second level cache.
const CHUNK_ELEMENTS: usize = 1 << 14;

/// Why there are no workers.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The count was zero.
    #[error("0 compute threads were asked for, expected at least 1")]
    NoWorkers,
    /// The operating system gave no threads.
    #[error("could not start {count} compute threads (hint: ask for fewer threads)")]
    Threads {
        /// How many were asked for.
        count: usize,
        /// What it says.
        source: std::io::Error,
    },
}

/// A fixed number of compute threads, and the instruction set they use.
#[derive(Debug)]
pub struct Workers {
    /// `None` if the caller is the only worker.
    pool: Option<Pool>,
    isa: Isa,
}

impl Workers {
    /// `count` workers that use the best instruction set of this machine. The calling thread is one
    /// of them.
    ///
    /// # Errors
    /// If `count` is zero or the threads cannot be started.
    pub fn new(count: usize) -> Result<Workers, WorkersError> {
        Workers::with_isa(count, Isa::best())
    }

    /// As [`Workers::new`], with an instruction set chosen by the caller.
    ///
    /// # Errors
    /// If `count` is zero or the threads cannot be started.
    pub fn with_isa(count: usize, isa: Isa) -> Result<Workers, WorkersError> {
        let pool = match count {
            0 => return Err(WorkersError::NoWorkers),
            1 => None,
            _ => Some(Pool::new(count).map_err(|source| WorkersError::Threads { count, source })?),
        };
        tracing::debug!("{count} compute threads with {isa}");
        Ok(Workers { pool, isa })
    }

    /// How many workers there are.
    pub fn count(&self) -> usize {
        self.pool.as_ref().map_or(1, Pool::count)
    }

    /// The instruction set they use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `work(worker)` once on each worker, and returns when all have.
    pub fn run(&self, work: impl Fn(usize) + Sync) {
        match &self.pool {
            None => work(0),
            Some(pool) => pool.run(&work),
        }
    }

    /// Calls `work(worker, task)` once for each task in `0..tasks`, in any order. `operations` is
    /// about how many scalar operations all of them do together: few are done by the caller, as
    /// worker 0.
    pub fn for_each(&self, tasks: usize, operations: usize, work: impl Fn(usize, usize) + Sync) {
        if tasks <= 1 || operations < INLINE_OPERATIONS || self.pool.is_none() {
            (0..tasks).for_each(|task| work(0, task));
            return;
        }
        let next = AtomicUsize::new(0);
        self.run(|worker| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                work(worker, task);
            }
        });
    }

    /// As [`Workers::for_each`], where each task may use `scratch_len` elements of `scratch` that
    /// are its worker's own.
    pub(super) fn for_each_with(
        &self,
        tasks: usize,
        operations: usize,
        scratch: &mut [f32],
        scratch_len: usize,
        work: impl Fn(&mut [f32], usize) + Sync,
    ) {
        assert!(scratch.len() >= self.count() * scratch_len, "scratch is too short");
        let scratch = Disjoint::new(scratch);
        self.for_each(tasks, operations, |worker, task| {
            // SAFETY: a worker does one task at a time, and no two workers share an index.
            let own = unsafe { scratch.range(worker * scratch_len..(worker + 1) * scratch_len) };
            work(own, task);
        });
    }

    /// Cuts `values` into chunks of whole `unit`s and calls `work(first_unit, chunk)` for each.
    /// `operations` is about how many scalar operations one element takes.
    pub(super) fn for_each_chunk(
        &self,
        values: &mut [f32],
        unit: usize,
        operations: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        assert!(unit > 0 && values.len().is_multiple_of(unit), "values are not whole units");
        let len = values.len();
        let units = (CHUNK_ELEMENTS / unit).max(1);
        let chunk = units * unit;
        let values = Disjoint::new(values);
        self.for_each(len.div_ceil(chunk), len * operations, |_, task| {
            // SAFETY: the chunks of different tasks do not overlap.
            let own = unsafe { values.range(task * chunk..len.min((task + 1) * chunk)) };
            work(task * units, own);
        });
    }
}

/// A slice of which several workers write different parts at once.
pub(super) struct Disjoint<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the exclusive borrow is held for 'a, and `range` makes its callers keep the parts apart.
unsafe impl Sync for Disjoint<'_> {}

impl<'a> Disjoint<'a> {
    /// Borrows `values` for as long as parts of it are written.
    pub(super) fn new(values: &'a mut [f32]) -> Disjoint<'a> {
        Disjoint { start: values.as_mut_ptr(), len: values.len(), borrow: PhantomData }
    }

    /// Where the first element is.
    #[inline(always)]
    pub(super) fn start(&self) -> *const f32 {
        self.start
    }

    /// Where the elements in `range` begin, for code that writes only some of them.
    pub(super) fn pointer(&self, range: Range<usize>) -> *mut f32 {
        assert!(range.start <= range.end && range.end <= self.len, "range outside the output");
        self.start.wrapping_add(range.start)
    }

    /// The elements in `range`.
    ///
    /// # Safety
    /// No other slice that this function gave for an overlapping range may be alive.
    pub(super) unsafe fn range(&self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "range outside the output");
        // SAFETY: the range lies in the borrowed slice, and the caller keeps ranges apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_task_is_done_once_by_a_worker_that_exists() {
        for count in 1..=4 {
            let workers = Workers::new(count).unwrap();
            assert_eq!(workers.count(), count);
            for operations in [0, INLINE_OPERATIONS] {
                let done: Vec<AtomicUsize> = (0..57).map(|_| AtomicUsize::new(0)).collect();
                workers.for_each(done.len(), operations, |worker, task| {
                    assert!(worker < count);
                    done[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
            }
            let calls = AtomicUsize::new(0);
            workers.run(|_| {
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(calls.into_inner(), count);
        }
    }

    #[test]
    fn chunks_are_whole_units_and_cover_the_slice() {
        let workers = Workers::new(3).unwrap();
        for (unit, units) in [(1, 100_000), (7, 30_001), (40_000, 5)] {
            let mut values = vec![0.0; unit * units];
            workers.for_each_chunk(&mut values, unit, 10, |first, chunk| {
                assert!(chunk.len().is_multiple_of(unit));
                for (index, row) in chunk.chunks_mut(unit).enumerate() {
                    row.iter_mut().for_each(|value| *value += (first + index) as f32);
                }
            });
            assert!(values.iter().enumerate().all(|(at, &value)| value == (at / unit) as f32));
        }
    }

    #[test]
    fn no_workers_is_an_error() {
        assert!(matches!(Workers::new(0), Err(WorkersError::NoWorkers)));
    }
}
