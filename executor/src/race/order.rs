//! The order of a trace as vector clocks: for each operation, how far it has seen each stream.

use super::{Entry, Record, StreamId};

/// For each stream, how many of its operations are before something.
pub type Clock = Vec<u32>;

/// The order of all operations.
pub struct HappensBefore {
    /// What each operation has seen, itself included.
    clocks: Vec<Clock>,
    streams: Vec<StreamId>,
    /// The operations of each stream, in order.
    queues: Vec<Vec<usize>>,
}

impl HappensBefore {
    /// Walks through a record once.
    pub fn new(record: &Record) -> HappensBefore {
        let mut now: Vec<Clock> = vec![vec![0; record.streams.len()]; record.streams.len()];
        let mut events: Vec<Clock> = Vec::with_capacity(record.events);
        let mut queues = vec![Vec::new(); record.streams.len()];
        let mut clocks = Vec::with_capacity(record.operations.len());
        for entry in &record.entries {
            match *entry {
                Entry::Operation(operation) => {
                    let stream = record.operations[operation].stream.0;
                    now[stream][stream] += 1;
                    queues[stream].push(operation);
                    clocks.push(now[stream].clone());
                }
                Entry::Signal(stream) => events.push(now[stream.0].clone()),
                Entry::Wait(stream, event) => {
                    let clock = &mut now[stream.0];
                    clock
                        .iter_mut()
                        .zip(&events[event.0])
                        .for_each(|(own, &other)| *own = other.max(*own));
                }
            }
        }
        let streams = record.operations.iter().map(|operation| operation.stream).collect();
        HappensBefore { clocks, streams, queues }
    }

    /// The stream of an operation, and its place there, from 1.
    pub fn place(&self, operation: usize) -> (StreamId, u32) {
        let stream = self.streams[operation];
        (stream, self.clocks[operation][stream.0])
    }

    /// What an operation has seen, itself included: the one at `place` of a stream is before it, or
    /// is it, if the entry of that stream is not below.
    pub fn clock(&self, operation: usize) -> &Clock {
        &self.clocks[operation]
    }

    /// What every operation from `first` on in the order of issue has seen; those that are still to
    /// come are after that, whatever they are.
    pub fn settled(&self, first: usize) -> Clock {
        let mut settled = vec![u32::MAX; self.queues.len()];
        for queue in &self.queues {
            // A stream sees ever more: its next operation has seen least.
            let next = queue.partition_point(|&operation| operation < first);
            if let Some(&operation) = queue.get(next) {
                let clock = &self.clocks[operation];
                settled.iter_mut().zip(clock).for_each(|(all, &seen)| *all = seen.min(*all));
            }
        }
        settled
    }
}

#[cfg(test)]
mod tests {
    use super::super::Trace;
    use super::*;

    #[test]
    fn what_is_settled_is_what_all_that_is_still_to_come_has_seen() {
        let trace = Trace::new();
        let [a, b, idle] = ["a", "b", "idle"].map(|name| trace.stream(name));
        trace.record(idle, "0", &[], &[]);
        let first = trace.operation(a, "1", &[], &[], &[]);
        let second = trace.operation(a, "2", &[], &[], &[]);
        trace.operation(b, "3", &[], &[], &[first]);
        trace.operation(b, "4", &[], &[], &[second]);
        trace.record(a, "5", &[], &[]);
        let order = HappensBefore::new(&trace.record_mut());
        assert_eq!(order.clock(3), &[1, 1, 0]);
        assert_eq!(order.clock(4), &[2, 2, 0]);
        assert_eq!(order.place(5), (a, 3));
        // From the first operation of `b` on, which has seen one of `a`; the idle stream does
        // nothing any more.
        assert_eq!(order.settled(2), [1, 0, 0]);
        assert_eq!(order.settled(4), [2, 0, 0]);
        assert_eq!(order.settled(5), [3, 0, 0]);
    }
}
