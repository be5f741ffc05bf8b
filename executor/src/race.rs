//! The race checker: records who reads and writes which bytes in what order, and finds accesses
//! that no order relates. For tests; nothing is recorded where there is no [`Trace`].
//!
//! ```text
//! stream     host   ──run a──signal e1──────────────────wait e2──run c──►   e1: a is computed
//!                              ╲ issue                  ╱                   e2: b is copied
//! stream     copies ────────────wait e1──copy b──signal e2──────────────►
//!
//! stream     slots  ──load 0──signal r0──load 1──signal r1──wait u0──load 2 into slot 0──►
//!                              ╲ready                       ╱used
//! stream     compute ───────────wait r0──run 0──signal u0──────────────────────────────►
//! ```
//! A stream is a queue whose operations run one after the other: the thread that issues work, each
//! queue of a copy engine, a CUDA stream. An event carries what its stream did so far to the
//! streams that wait for it. Operation x is before y if a path of streams and events leads from x
//! to y; two that touch common bytes of one region, one of them writing, must be ordered so. What
//! the clock on the wall said does not matter: a race is found even where the run was lucky.
//!
//! Everything is recorded when it is issued, by whoever issues it:
//! - work of the issuing thread: [`Trace::record`] on its own stream;
//! - work handed to an engine: [`Trace::operation`] on the engine's stream, after an event that the
//!   issuing stream [signals](Trace::signal) (it starts no earlier than it was handed out); the
//!   event that it returns is the copy's end, and whoever waits for the copy [waits](Trace::wait)
//!   for that;
//! - `cudaEventRecord` is a signal, `cudaStreamWaitEvent` a wait, `cudaEventSynchronize` a wait of
//!   the thread's;
//! - freeing a region: a write of all of it by the thread that frees.
//!
//! Invariants: an event is signalled before it can be waited for, so the order has no circles; a
//! region that is freed and allocated anew has another number, as [`crate::backend::Region::id`]
//! has.

mod cells;
mod check;
mod order;
mod tracer;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use tracer::{Edge, GpuTrace, Tracer};

/// Most races that are told of: one is a bug already, and a trace without its events has them by
/// the million.
pub const RACES_MAX: usize = 10_000;

/// An in-order queue of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(usize);

/// A point of a stream that others can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(usize);

/// Some bytes of one region.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Span {
    /// Number of the region; one that was freed is not used again.
    pub region: u64,
    /// The bytes, from the region's start. An empty range touches nothing.
    pub bytes: Range<u64>,
}

impl Span {
    /// `length` bytes from `start`.
    pub fn new(region: u64, start: u64, length: u64) -> Span {
        Span { region, bytes: start..start + length }
    }

    /// Rows of `row_bytes` bytes, one every `stride` bytes from `start`: some columns of a matrix.
    pub fn rows(
        region: u64,
        start: u64,
        row_bytes: u64,
        stride: u64,
        rows: u64,
    ) -> impl Iterator<Item = Span> {
        (0..rows).map(move |row| Span::new(region, start + row * stride, row_bytes))
    }
}

/// A record of operations and of what orders them. Shared between threads; locked for each entry.
#[derive(Debug, Default)]
pub struct Trace(Mutex<Record>);

/// What was recorded, in the order of issue.
#[derive(Debug, Default)]
struct Record {
    streams: Vec<String>,
    regions: BTreeMap<u64, String>,
    entries: Vec<Entry>,
    operations: Vec<TracedOperation>,
    /// Spans of all operations, one after the other.
    spans: Vec<Span>,
    events: usize,
}

#[derive(Debug, Clone, Copy)]
enum Entry {
    Operation(usize),
    /// The events are numbered in the order of their signals.
    Signal(StreamId),
    Wait(StreamId, EventId),
}

#[derive(Debug)]
struct TracedOperation {
    stream: StreamId,
    name: Box<str>,
    /// Its reads among all spans.
    reads: Range<usize>,
    /// Its writes among all spans.
    writes: Range<usize>,
}

impl Trace {
    /// An empty one.
    pub fn new() -> Trace {
        Trace::default()
    }

    /// Adds a stream; the name is for messages.
    pub fn stream(&self, name: &str) -> StreamId {
        let mut record = self.record_mut();
        record.streams.push(name.to_owned());
        StreamId(record.streams.len() - 1)
    }

    /// Gives a region a name for messages.
    pub fn name_region(&self, region: u64, name: &str) {
        self.record_mut().regions.insert(region, name.to_owned());
    }

    /// An operation on a stream, after all that is on it, and what it reads and writes. Bytes that
    /// it reads and writes, as one in place does, are no race with itself.
    pub fn record(&self, stream: StreamId, name: &str, reads: &[Span], writes: &[Span]) {
        self.record_mut().operation(stream, name, reads, writes);
    }

    /// An event behind all that is on the stream by now.
    pub fn signal(&self, stream: StreamId) -> EventId {
        self.record_mut().signal(stream)
    }

    /// Lets all that comes on the stream from now on be after the event.
    pub fn wait(&self, stream: StreamId, event: EventId) {
        self.record_mut().wait(stream, event);
    }

    /// Waits, records and signals: an operation that is handed to the stream's engine to run after
    /// these events, and the event of its end.
    pub fn operation(
        &self,
        stream: StreamId,
        name: &str,
        reads: &[Span],
        writes: &[Span],
        after: &[EventId],
    ) -> EventId {
        let mut record = self.record_mut();
        after.iter().for_each(|&event| record.wait(stream, event));
        record.operation(stream, name, reads, writes);
        record.signal(stream)
    }

    /// How many operations were recorded: a trace that nobody wrote to has no races either.
    pub fn operations(&self) -> usize {
        self.record_mut().operations.len()
    }

    /// Every pair of operations that race, in the order of the later, then of the earlier ones; the
    /// first [`RACES_MAX`] of them.
    pub fn races(&self) -> Vec<Race> {
        check::races(&self.record_mut())
    }

    fn record_mut(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn operation(&mut self, stream: StreamId, name: &str, reads: &[Span], writes: &[Span]) {
        self.known(stream);
        let start = self.spans.len();
        self.spans.extend(reads.iter().chain(writes).cloned());
        let middle = start + reads.len();
        self.entries.push(Entry::Operation(self.operations.len()));
        self.operations.push(TracedOperation {
            stream,
            name: name.into(),
            reads: start..middle,
            writes: middle..self.spans.len(),
        });
    }

    fn signal(&mut self, stream: StreamId) -> EventId {
        self.known(stream);
        let event = EventId(self.events);
        self.events += 1;
        self.entries.push(Entry::Signal(stream));
        event
    }

    fn wait(&mut self, stream: StreamId, event: EventId) {
        self.known(stream);
        assert!(event.0 < self.events, "an event of another trace");
        self.entries.push(Entry::Wait(stream, event));
    }

    fn known(&self, stream: StreamId) {
        assert!(stream.0 < self.streams.len(), "a stream of another trace");
    }
}

/// Two operations without an order that touch the same bytes, one of them writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Race {
    /// The one that was issued first.
    pub earlier: Racer,
    /// The other.
    pub later: Racer,
    /// The number of what both touch.
    pub region: u64,
    /// The region's name, if it was given one.
    pub region_name: Option<String>,
    /// The bytes over which they race, in order and apart from each other; at least one range.
    pub bytes: Vec<Range<u64>>,
}

/// One of two operations that race.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Racer {
    /// Its number among all operations, in the order of issue, from 0.
    pub number: usize,
    /// What it was recorded as.
    pub name: String,
    /// The name of its stream.
    pub stream: String,
    /// Whether it writes any of the bytes.
    pub writes: bool,
}

impl fmt::Display for Racer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = if self.writes { "writes" } else { "reads" };
        write!(f, "{} (operation {} on {}) {does}", self.name, self.number, self.stream)
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { earlier, later, region, region_name, bytes } = self;
        write!(f, "{earlier} and {later}, in no order, ")?;
        for (index, range) in bytes.iter().take(3).enumerate() {
            write!(f, "{}{}..{}", if index > 0 { ", " } else { "" }, range.start, range.end)?;
        }
        if bytes.len() > 3 {
            write!(f, " and {} more ranges", bytes.len() - 3)?;
        }
        write!(f, " of region {region}")?;
        region_name.as_ref().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

#[cfg(test)]
mod tests;
