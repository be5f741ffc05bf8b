//! The check of a whole trace: each access against those before it that it has not seen.
//!
//! The time is about operations × spans × log cells, times the cells that a span covers; what all
//! streams have seen is forgotten on the way, so that a trace of many steps takes no more for each
//! of them than one of few.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cells::{Access, Cells};
use super::order::HappensBefore;
use super::{RACES_MAX, Race, Racer, Record, Span};

/// Operations after which it is looked again at what all streams have seen.
const SETTLE_OPERATIONS: usize = 64;

/// The first [`RACES_MAX`] pairs of operations that race, in the order of the later, then of the
/// earlier ones.
pub fn races(record: &Record) -> Vec<Race> {
    let order = HappensBefore::new(record);
    let mut regions: BTreeMap<u64, Cells> = BTreeMap::new();
    let mut races = Vec::new();
    let mut settled = Vec::new();
    for operation in 0..record.operations.len() {
        if operation % SETTLE_OPERATIONS == 0 {
            settled = order.settled(operation);
        }
        let mut found: BTreeMap<(usize, u64), FoundRace> = BTreeMap::new();
        for (span, writes) in touched(record, operation) {
            let (stream, place) = order.place(operation);
            let access = Access { operation, stream, place, writes };
            let cells = regions.entry(span.region).or_default();
            cells.access(span.bytes, access, order.clock(operation), &settled, |earlier, bytes| {
                let key = (earlier.operation, span.region);
                if races.len() + found.len() < RACES_MAX || found.contains_key(&key) {
                    found.entry(key).or_default().add([earlier.writes, writes], bytes);
                }
            });
        }
        let race = |((earlier, region), found): ((usize, u64), FoundRace)| Race {
            earlier: racer(record, earlier, found.writes[0]),
            later: racer(record, operation, found.writes[1]),
            region,
            region_name: record.regions.get(&region).cloned(),
            bytes: union(found.bytes),
        };
        races.extend(found.into_iter().map(race));
        if races.len() >= RACES_MAX {
            break;
        }
    }
    races
}

/// What is known of two operations that race over a region.
#[derive(Default)]
struct FoundRace {
    writes: [bool; 2],
    bytes: Vec<Range<u64>>,
}

impl FoundRace {
    fn add(&mut self, writes: [bool; 2], bytes: Range<u64>) {
        self.writes = [self.writes[0] || writes[0], self.writes[1] || writes[1]];
        self.bytes.push(bytes);
    }
}

fn racer(record: &Record, number: usize, writes: bool) -> Racer {
    let operation = &record.operations[number];
    let stream = record.streams[operation.stream.0].clone();
    Racer { number, name: operation.name.to_string(), stream, writes }
}

/// What an operation touches, each byte once read and once written at most.
fn touched(record: &Record, operation: usize) -> Vec<(Span, bool)> {
    let operation = &record.operations[operation];
    let mut touched = Vec::new();
    for (spans, writes) in [(&operation.reads, false), (&operation.writes, true)] {
        let mut regions: BTreeMap<u64, Vec<Range<u64>>> = BTreeMap::new();
        for span in &record.spans[spans.clone()] {
            regions.entry(span.region).or_default().push(span.bytes.clone());
        }
        for (region, bytes) in regions {
            touched.extend(union(bytes).into_iter().map(|bytes| (Span { region, bytes }, writes)));
        }
    }
    touched
}

/// The same bytes in order, as few ranges as can be.
fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut union: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match union.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => union.push(range),
        }
    }
    union
}
