//! The bytes of one region, cut into cells: each holds the accesses that later ones can still race
//! with.
//!
//! ```text
//! bytes   0        256      512            1024
//!         ├ cell ──┼ cell ──┤   (untouched) ├ cell ─
//!         │ writes of slots: 7              │ reads of compute: 3, 5, 9
//! ```
//! Invariants: cells do not overlap; the accesses of a track are in the order of their stream, so
//! that those which some operation has not seen are its last ones; neighbours that are alike are
//! one cell.

use std::collections::BTreeMap;
use std::ops::Range;

use super::StreamId;
use super::order::Clock;

/// An operation's touch of some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Its number in the record.
    pub operation: usize,
    /// By which it was done.
    pub stream: StreamId,
    /// Its place on the stream, from 1.
    pub place: u32,
    /// Whether bytes change; else they are read.
    pub writes: bool,
}

/// All cells of a region, by their first byte.
#[derive(Debug, Default)]
pub struct Cells(BTreeMap<u64, Cell>);

#[derive(Debug, Clone)]
struct Cell {
    end: u64,
    tracks: Vec<Track>,
}

/// The accesses of one kind by one stream: places and operations.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Track {
    stream: StreamId,
    writes: bool,
    accesses: Vec<(u32, usize)>,
}

impl Cells {
    /// Adds an access that has seen `clock`, and tells of each earlier one that it races with, and
    /// where. What is `settled` is before all that is still to come, and is forgotten.
    pub fn access(
        &mut self,
        bytes: Range<u64>,
        access: Access,
        clock: &Clock,
        settled: &Clock,
        mut race: impl FnMut(Access, Range<u64>),
    ) {
        self.cut(bytes.start);
        self.cut(bytes.end);
        self.fill(&bytes);
        for (&start, cell) in self.0.range_mut(bytes.clone()) {
            for track in cell.tracks.iter().filter(|track| track.writes || access.writes) {
                let unseen = |&&(place, _): &&(u32, usize)| place > clock[track.stream.0];
                for &(place, operation) in track.accesses.iter().rev().take_while(unseen) {
                    let (stream, writes) = (track.stream, track.writes);
                    race(Access { operation, stream, place, writes }, start..cell.end);
                }
            }
            cell.forget(settled);
            cell.add(access);
        }
        self.join(&bytes);
    }

    /// Lets a cell begin at this byte, if one lies across it.
    fn cut(&mut self, at: u64) {
        let Some((_, cell)) = self.0.range_mut(..at).next_back() else { return };
        if cell.end > at {
            let rest = cell.clone();
            cell.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Makes cells of the bytes that nobody has touched.
    fn fill(&mut self, bytes: &Range<u64>) {
        let mut gaps = Vec::new();
        let mut at = bytes.start;
        for (&start, cell) in self.0.range(bytes.clone()) {
            gaps.push(at..start);
            at = cell.end;
        }
        gaps.push(at..bytes.end);
        for gap in gaps.into_iter().filter(|gap| !gap.is_empty()) {
            self.0.insert(gap.start, Cell { end: gap.end, tracks: Vec::new() });
        }
    }

    /// Makes one cell of neighbours that are alike, around and within these bytes.
    fn join(&mut self, bytes: &Range<u64>) {
        let before = self.0.range(..bytes.start).next_back().map(|(&start, _)| start);
        let first = before.unwrap_or(bytes.start);
        let starts: Vec<u64> = self.0.range(first..=bytes.end).map(|(&start, _)| start).collect();
        let mut kept = first;
        for start in starts.into_iter().skip(1) {
            let (cell, left) = (&self.0[&start], &self.0[&kept]);
            if left.end == start && left.tracks == cell.tracks {
                let end = cell.end;
                self.0.remove(&start);
                self.0.get_mut(&kept).expect("it was just there").end = end;
            } else {
                kept = start;
            }
        }
    }
}

impl Cell {
    fn forget(&mut self, settled: &Clock) {
        for track in &mut self.tracks {
            let gone =
                track.accesses.partition_point(|&(place, _)| place <= settled[track.stream.0]);
            track.accesses.drain(..gone);
        }
        self.tracks.retain(|track| !track.accesses.is_empty());
    }

    fn add(&mut self, access: Access) {
        let key = (access.stream, access.writes);
        let entry = (access.place, access.operation);
        // In the order of their keys, so that cells which are alike look alike.
        match self.tracks.binary_search_by_key(&key, |track| (track.stream, track.writes)) {
            Ok(index) => self.tracks[index].accesses.push(entry),
            Err(index) => {
                let track =
                    Track { stream: access.stream, writes: access.writes, accesses: vec![entry] };
                self.tracks.insert(index, track);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(stream: usize, place: u32) -> Access {
        Access { operation: place as usize, stream: StreamId(stream), place, writes: true }
    }

    /// Bounds of all cells.
    fn bounds(cells: &Cells) -> Vec<(u64, u64)> {
        cells.0.iter().map(|(&start, cell)| (start, cell.end)).collect()
    }

    #[test]
    fn cells_are_cut_where_accesses_begin_and_end_and_joined_where_they_are_alike() {
        let mut cells = Cells::default();
        let nothing = vec![0];
        let mut access = |bytes, place, settled: &Clock| {
            cells
                .access(bytes, write(0, place), &vec![place], settled, |_, _| panic!("one stream"));
            bounds(&cells)
        };
        assert_eq!(access(10..20, 1, &nothing), [(10, 20)]);
        assert_eq!(access(30..40, 2, &nothing), [(10, 20), (30, 40)]);
        let all = [(10, 15), (15, 20), (20, 30), (30, 35), (35, 40)];
        assert_eq!(access(15..35, 3, &nothing), all);
        // What all have seen makes no difference any more.
        assert_eq!(access(10..40, 4, &vec![3]), [(10, 40)]);
        assert_eq!(access(40..50, 5, &vec![4]), [(10, 40), (40, 50)]);
        assert_eq!(access(0..60, 6, &vec![5]), [(0, 60)]);
    }

    #[test]
    fn what_was_not_seen_is_told_of_with_its_bytes() {
        let mut cells = Cells::default();
        let nothing = vec![0, 0];
        for (bytes, place) in [(0..8, 1), (4..12, 2)] {
            cells.access(bytes, write(0, place), &vec![place, 0], &nothing, |_, _| {
                panic!("ordered")
            });
        }
        let mut races = Vec::new();
        let mut access = |clock: Clock| {
            cells.access(2..20, write(1, clock[1]), &clock, &nothing, |earlier, bytes| {
                races.push((earlier.place, bytes));
            });
            std::mem::take(&mut races)
        };
        assert_eq!(access(vec![1, 1]), [(2, 4..8), (2, 8..12)]);
        assert_eq!(access(vec![0, 2]), [(1, 2..4), (2, 4..8), (1, 4..8), (2, 8..12)]);
        assert_eq!(access(vec![2, 3]), []);
    }
}
