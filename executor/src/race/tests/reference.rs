//! The checker against a slow one that follows every path between every two operations.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What is done to a trace; streams wrap, and events are counted from the last one.
#[derive(Debug, Clone)]
enum Step {
    Record { stream: usize, reads: Vec<Span>, writes: Vec<Span> },
    Signal { stream: usize },
    Wait { stream: usize, event: usize },
}

/// Bytes over which two operations race, by region.
type Races = BTreeMap<(usize, usize, u64), BTreeSet<u64>>;

/// Does the steps to a trace, and finds the races of their operations the slow way.
fn both(streams: usize, steps: &[Step]) -> (Trace, Races) {
    let trace = Trace::new();
    let ids: Vec<StreamId> = (0..streams).map(|index| trace.stream(&index.to_string())).collect();
    // Steps that are before a step, direct edges only.
    let mut edges: Vec<Vec<usize>> = Vec::new();
    let mut last: Vec<Option<usize>> = vec![None; streams];
    let mut events: Vec<(EventId, usize)> = Vec::new();
    let mut operations: Vec<(usize, &[Span], &[Span])> = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let (Step::Record { stream, .. } | Step::Signal { stream } | Step::Wait { stream, .. }) =
            step;
        let stream = stream % streams;
        let mut before: Vec<usize> = last[stream].into_iter().collect();
        match step {
            Step::Record { reads, writes, .. } => {
                trace.record(ids[stream], &number.to_string(), reads, writes);
                operations.push((number, reads, writes));
            }
            Step::Signal { .. } => events.push((trace.signal(ids[stream]), number)),
            Step::Wait { event, .. } => {
                if !events.is_empty() {
                    // One of the last events: an older one is mostly waited for in vain.
                    let back = 1 + event % events.len().min(4);
                    let (event, signalled) = events[events.len() - back];
                    trace.wait(ids[stream], event);
                    before.push(signalled);
                }
            }
        }
        edges.push(before);
        last[stream] = Some(number);
    }

    let mut races = Races::new();
    for (later, &(later_step, later_reads, later_writes)) in operations.iter().enumerate() {
        let mut seen = BTreeSet::new();
        let mut open = vec![later_step];
        while let Some(step) = open.pop() {
            open.extend(edges[step].iter().filter(|&&before| seen.insert(before)));
        }
        for (earlier, &(earlier_step, reads, writes)) in operations[..later].iter().enumerate() {
            if seen.contains(&earlier_step) {
                continue;
            }
            let pairs = [(reads, later_writes), (writes, later_reads), (writes, later_writes)];
            for (a, b) in
                pairs.iter().flat_map(|(a, b)| a.iter().flat_map(|a| b.iter().map(move |b| (a, b))))
            {
                if a.region == b.region {
                    let common = a.bytes.start.max(b.bytes.start)..a.bytes.end.min(b.bytes.end);
                    if !common.is_empty() {
                        races.entry((earlier, later, a.region)).or_default().extend(common);
                    }
                }
            }
        }
    }
    (trace, races)
}

fn spans() -> impl Strategy<Value = Vec<Span>> {
    let span = (0..2u64, 0..24u64, 0..10u64)
        .prop_map(|(region, start, length)| Span::new(region, start, length));
    prop::collection::vec(span, 0..3)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..4usize, spans(), spans())
            .prop_map(|(stream, reads, writes)| Step::Record { stream, reads, writes }),
        2 => (0..4usize).prop_map(|stream| Step::Signal { stream }),
        2 => (0..4usize, 0..4usize).prop_map(|(stream, event)| Step::Wait { stream, event }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Long enough that what all streams have seen is forgotten on the way.
    #[test]
    fn the_slow_way_finds_the_same(streams in 1..5usize, steps in prop::collection::vec(step(), 1..300)) {
        let (trace, expected) = both(streams, &steps);
        let mut found = Races::new();
        for race in trace.races() {
            prop_assert!(race.bytes.is_sorted_by_key(|range| range.start));
            let apart = race.bytes.windows(2).all(|two| two[0].end < two[1].start);
            prop_assert!(apart, "{:?}", race.bytes);
            let key = (race.earlier.number, race.later.number, race.region);
            let bytes: BTreeSet<u64> = race.bytes.into_iter().flatten().collect();
            prop_assert!(found.insert(key, bytes).is_none(), "a pair stands twice");
        }
        prop_assert!(expected.len() < RACES_MAX, "the checker stops there");
        prop_assert_eq!(found, expected);
    }
}
