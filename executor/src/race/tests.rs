//! Traces in order, in which nothing is found, and the same with one thing left out, in which just
//! that is.

mod reference;
mod rings;

use std::thread;

use super::*;

/// A trace with named streams.
fn trace<const N: usize>(streams: [&str; N]) -> (Trace, [StreamId; N]) {
    let trace = Trace::new();
    let ids = streams.map(|name| trace.stream(name));
    (trace, ids)
}

fn span(region: u64, bytes: Range<u64>) -> Span {
    Span { region, bytes }
}

/// The names of racing operations and their bytes, as "load, run: 0..64".
fn found(trace: &Trace) -> Vec<String> {
    let text = |race: Race| {
        let bytes: Vec<String> = race.bytes.iter().map(|range| format!("{range:?}")).collect();
        format!("{}, {}: {}", race.earlier.name, race.later.name, bytes.join(" "))
    };
    trace.races().into_iter().map(text).collect()
}

#[test]
fn one_stream_is_in_order() {
    let (trace, [host]) = trace(["host"]);
    trace.record(host, "write", &[], &[span(1, 0..100)]);
    trace.record(host, "add in place", &[span(1, 0..100), span(1, 50..60)], &[span(1, 0..100)]);
    trace.record(host, "read", &[span(1, 20..30)], &[]);
    assert_eq!((trace.operations(), trace.races()), (3, Vec::new()));
}

#[test]
fn two_streams_without_an_event_race_where_they_meet() {
    let (trace, [host, copies]) = trace(["host", "copies"]);
    trace.record(host, "make", &[], &[span(1, 0..100), span(2, 0..100)]);
    trace.record(copies, "send", &[span(1, 60..200)], &[span(3, 0..40)]);
    // Other bytes of the region, another region, and reads of what is only read.
    trace.record(copies, "send more", &[span(1, 100..200)], &[span(4, 0..100)]);
    trace.record(host, "look", &[span(1, 100..200)], &[]);
    let races = trace.races();
    assert_eq!(races.len(), 1);
    let race = &races[0];
    assert_eq!(found(&trace), ["make, send: 60..100"]);
    assert_eq!(race.region, 1);
    assert_eq!((race.earlier.number, race.later.number), (0, 1));
    assert_eq!((race.earlier.writes, race.later.writes), (true, false));
    let says = "make (operation 0 on host) writes and send (operation 1 on copies) reads, in no order, \
                60..100 of region 1";
    assert_eq!(race.to_string(), says);
    trace.name_region(1, "dit arena");
    assert_eq!(trace.races()[0].to_string(), format!("{says} (dit arena)"));
}

#[test]
fn a_copy_that_nobody_waited_for_races_with_its_reader() {
    for waits in [true, false] {
        let (trace, [host, copies]) = trace(["host", "copies"]);
        trace.record(host, "make", &[], &[span(1, 0..64)]);
        let made = trace.signal(host);
        let sent = trace.operation(copies, "send", &[span(1, 0..64)], &[span(2, 0..64)], &[made]);
        if waits {
            trace.wait(host, sent);
        }
        trace.record(host, "use", &[span(2, 0..64)], &[]);
        let expected = if waits { vec![] } else { vec!["send, use: 0..64"] };
        assert_eq!(found(&trace), expected);
    }
}

#[test]
fn a_source_that_is_used_anew_before_its_copy_has_ended_races() {
    for waits in [true, false] {
        let (trace, [host, copies]) = trace(["host", "copies"]);
        trace.record(host, "make", &[], &[span(1, 0..64)]);
        let made = trace.signal(host);
        let sent = trace.operation(copies, "send", &[span(1, 0..64)], &[span(2, 0..64)], &[made]);
        if waits {
            trace.wait(host, sent);
        }
        trace.record(host, "make another", &[], &[span(1, 32..96)]);
        let expected = if waits { vec![] } else { vec!["send, make another: 32..64"] };
        assert_eq!(found(&trace), expected);
    }
}

#[test]
fn a_region_that_is_freed_under_a_copy_races_and_a_new_one_is_another() {
    let (trace, [host, copies]) = trace(["host", "copies"]);
    trace.operation(copies, "load", &[], &[span(1, 0..64)], &[]);
    trace.record(host, "free", &[], &[span(1, 0..1 << 30)]);
    trace.record(host, "make", &[], &[span(2, 0..64)]);
    assert_eq!(found(&trace), ["load, free: 0..64"]);
}

#[test]
fn two_writers_race_where_their_columns_overlap() {
    // Rows of 64 bytes: one device sends the first 40 columns' bytes, the other the rest, or a byte
    // too many.
    for (start, bytes, races) in [(40, 24, false), (39, 25, true)] {
        let (trace, [host, first, second]) = trace(["host", "virtual0", "virtual1"]);
        let rows =
            |start: u64, bytes: u64| Span::rows(7, 1000 + start, bytes, 64, 5).collect::<Vec<_>>();
        let parts = [
            trace.operation(first, "gather of virtual0", &[], &rows(0, 40), &[]),
            trace.operation(second, "gather of virtual1", &[], &rows(start, bytes), &[]),
        ];
        parts.into_iter().for_each(|part| trace.wait(host, part));
        trace.record(host, "use", &[span(7, 1000..1320)], &[]);
        let found = trace.races();
        assert_eq!(found.len(), usize::from(races));
        if let Some(race) = found.first() {
            let bytes: Vec<_> = (0..5).map(|row| 1039 + 64 * row..1040 + 64 * row).collect();
            assert_eq!(race.bytes, bytes);
            assert!(
                race.to_string()
                    .contains("1039..1040, 1103..1104, 1167..1168 and 2 more ranges of")
            );
            assert!(race.earlier.writes && race.later.writes);
        }
    }
}

#[test]
fn order_goes_through_other_streams() {
    for (passes_on, races) in [(true, 0), (false, 1)] {
        let (trace, [a, b, c, d]) = trace(["a", "b", "c", "d"]);
        trace.record(a, "write", &[], &[span(1, 0..8)]);
        let written = trace.signal(a);
        trace.wait(b, written);
        let mut passed = trace.signal(b);
        if passes_on {
            trace.wait(c, passed);
            passed = trace.signal(c);
        } else {
            // The stream that knows is not the one that is waited for.
            passed = trace.operation(c, "other", &[], &[span(2, 0..8)], &[]);
        }
        trace.wait(d, passed);
        trace.record(d, "read", &[span(1, 0..8)], &[]);
        assert_eq!(trace.races().len(), races);
    }
}

#[test]
fn an_event_says_nothing_of_what_comes_after_it() {
    let (trace, [a, b]) = trace(["a", "b"]);
    let early = trace.signal(a);
    trace.record(a, "write", &[], &[span(1, 0..8)]);
    trace.wait(b, early);
    trace.record(b, "read", &[span(1, 0..8)], &[]);
    assert_eq!(found(&trace), ["write, read: 0..8"]);
}

#[test]
fn a_wait_says_nothing_of_what_came_before_it() {
    let (trace, [a, b]) = trace(["a", "b"]);
    trace.record(b, "read", &[span(1, 0..8)], &[]);
    let written = trace.operation(a, "write", &[], &[span(1, 0..8)], &[]);
    trace.wait(b, written);
    trace.record(b, "read again", &[span(1, 0..8)], &[]);
    assert_eq!(found(&trace), ["read, write: 0..8"]);
}

#[test]
fn each_of_many_races_is_told_of() {
    let (trace, [a, b]) = trace(["a", "b"]);
    (0..10).for_each(|_| trace.record(a, "write", &[], &[span(1, 0..8)]));
    (0..10).for_each(|_| trace.record(b, "read", &[span(1, 4..12)], &[]));
    let pairs: Vec<_> = trace.races().iter().map(|r| (r.earlier.number, r.later.number)).collect();
    let expected: Vec<_> =
        (10..20).flat_map(|later| (0..10).map(move |earlier| (earlier, later))).collect();
    assert_eq!(pairs, expected);
}

#[test]
fn a_trace_without_events_has_no_more_races_than_the_limit() {
    let (trace, [a, b]) = trace(["a", "b"]);
    (0..4 * RACES_MAX).for_each(|_| trace.record(a, "write", &[], &[span(1, 0..8)]));
    (0..4).for_each(|_| trace.record(b, "read", &[span(1, 0..8)], &[]));
    let races = trace.races();
    assert_eq!(races.len(), RACES_MAX);
    assert!(races.iter().all(|race| race.later.number == 4 * RACES_MAX));
}

#[test]
fn empty_spans_touch_nothing() {
    let (trace, [a, b]) = trace(["a", "b"]);
    trace.record(a, "write", &[], &[span(1, 4..4), span(1, 8..8)]);
    trace.record(b, "write", &[], &[span(1, 0..8)]);
    trace.record(a, "read", &[span(1, 8..16), span(1, 8..8)], &[]);
    assert_eq!(trace.races(), []);
}

#[test]
fn threads_record_side_by_side() {
    const THREADS: u64 = 4;
    const STEPS: u64 = 200;
    let (trace, [host]) = trace(["host"]);
    let start = trace.signal(host);
    let work = |thread: u64| {
        let stream = trace.stream(&format!("thread {thread}"));
        trace.wait(stream, start);
        // All threads read region 0, and each writes one of its own.
        (0..STEPS).fold(start, |before, step| {
            let reads = [span(0, step..step + 8)];
            trace.operation(stream, "step", &reads, &[span(1 + thread, 0..8)], &[before])
        })
    };
    let ends: Vec<EventId> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|index| scope.spawn(move || work(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    ends[1..].iter().for_each(|&end| trace.wait(host, end));
    trace.record(host, "end", &[], &[span(0, 0..8)]);
    assert_eq!(trace.operations() as u64, THREADS * STEPS + 1);
    // One thread was not waited for: its first eight steps read what the end writes.
    let races = trace.races();
    assert_eq!(races.len(), 8);
    assert!(races.iter().all(|race| race.earlier.stream == races[0].earlier.stream));
}

#[test]
#[should_panic(expected = "an event of another trace")]
fn an_event_of_another_trace_is_a_bug() {
    let (one, [a]) = trace(["a"]);
    let event = one.signal(a);
    let (other, [b]) = trace(["b"]);
    other.wait(b, event);
}
