//! The arena: an offset for every buffer, such that buffers alive together do not overlap.
//!
//! Greedy by size: the largest buffer first, each at the lowest offset that is free during its life
//! (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Ties go
//! to the earlier buffer, so that the same graph always gives the same arena.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use protocol::Bytes;

use super::ArenaBuffer;

/// How many steps share a list of the buffers that are alive in any of them. Most buffers live for
/// some steps only. Where more steps share a list, it holds more that a buffer does not meet; where
/// fewer do, each buffer is in more lists.
const STEPS: usize = 8;

/// A buffer with its place, close together in memory as many are looked at for each new one.
#[derive(Clone, Copy)]
struct PlacedBuffer {
    offset: u64,
    end: u64,
    first: u32,
    last: u32,
}

impl PlacedBuffer {
    fn new(buffer: &ArenaBuffer, offset: u64) -> PlacedBuffer {
        let end = (Bytes(offset) + buffer.bytes).0;
        let [first, last] = [buffer.first, buffer.last]
            .map(|step| u32::try_from(step).expect("fewer than 2^32 steps"));
        PlacedBuffer { offset, end, first, last }
    }

    /// The same at another place.
    fn at(self, offset: u64) -> PlacedBuffer {
        PlacedBuffer { offset, end: (Bytes(offset) + Bytes(self.end - self.offset)).0, ..self }
    }

    /// The lists that it is in.
    fn lists(&self) -> RangeInclusive<usize> {
        self.first as usize / STEPS..=self.last as usize / STEPS
    }

    fn is_alive_with(&self, other: &PlacedBuffer) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// What is placed, by the steps in which it is alive, each list in the order of offsets.
struct PlacedBySteps(Vec<Vec<PlacedBuffer>>);

impl PlacedBySteps {
    fn new(buffers: &[PlacedBuffer]) -> PlacedBySteps {
        let last = buffers.iter().map(|buffer| *buffer.lists().end());
        let mut counts = vec![0; last.max().map_or(0, |last| last + 1)];
        for buffer in buffers {
            counts[buffer.lists()].iter_mut().for_each(|count| *count += 1);
        }
        PlacedBySteps(counts.into_iter().map(Vec::with_capacity).collect())
    }

    /// The lowest place of a buffer beside those that are alive with it.
    fn lowest(&self, mut new: PlacedBuffer) -> PlacedBuffer {
        let lists = &self.0[new.lists()];
        loop {
            let before = new.offset;
            for list in lists {
                for other in list {
                    if other.offset >= new.end {
                        break;
                    }
                    if other.end > new.offset && other.is_alive_with(&new) {
                        new = new.at(other.end);
                    }
                }
            }
            // Above what one list has in the way, another one may have more. Of a single list one
            // look is enough, as it is in the order of offsets.
            if new.offset == before || lists.len() == 1 {
                return new;
            }
        }
    }

    fn add(&mut self, new: PlacedBuffer) {
        for placed in &mut self.0[new.lists()] {
            placed.insert(placed.partition_point(|other| other.offset <= new.offset), new);
        }
    }
}

/// Offsets of the buffers, in their order, and the size of the arena.
pub fn place(buffers: &[ArenaBuffer]) -> (Vec<Bytes>, Bytes) {
    let sized = buffers.iter().enumerate();
    let mut order: Vec<(Reverse<Bytes>, usize)> =
        sized.map(|(index, buffer)| (Reverse(buffer.bytes), index)).collect();
    // Stable, and of few sizes: in that it is faster than one that also compares the places.
    order.sort_by_key(|(bytes, _)| *bytes);
    let mut offsets = vec![Bytes::ZERO; buffers.len()];
    let buffers = in_fewer_steps(buffers);
    let mut placed = PlacedBySteps::new(&buffers);
    let mut arena_bytes = 0;
    for (_, index) in order {
        let new = placed.lowest(buffers[index]);
        offsets[index] = Bytes(new.offset);
        arena_bytes = new.end.max(arena_bytes);
        placed.add(new);
    }
    (offsets, Bytes(arena_bytes))
}

/// The buffers, alive together as before, but in fewer steps: those that follow one another are
/// one, until a buffer begins after another one ended. Of the steps of all lanes a lane has few.
fn in_fewer_steps(buffers: &[ArenaBuffer]) -> Vec<PlacedBuffer> {
    let end = buffers.iter().map(|buffer| buffer.last + 1).max().unwrap_or(0);
    let mut events = vec![(false, false); end];
    for buffer in buffers {
        events[buffer.first].0 = true;
        events[buffer.last].1 = true;
    }
    let (mut step, mut one_ended) = (0, false);
    let new_steps = events.into_iter().map(|(begins, ends)| {
        if begins && one_ended {
            (step, one_ended) = (step + 1, false);
        }
        one_ended |= ends;
        step
    });
    let new_steps: Vec<usize> = new_steps.collect();
    let moved = |buffer: &ArenaBuffer| {
        let (first, last) = (new_steps[buffer.first], new_steps[buffer.last]);
        PlacedBuffer::new(&ArenaBuffer { first, last, ..buffer.clone() }, 0)
    };
    buffers.iter().map(moved).collect()
}

/// Panics if two buffers that are alive together overlap: a fault of this file, which would let one
/// kernel overwrite what another still needs.
pub fn assert_disjoint(buffers: &[ArenaBuffer], offsets: &[Bytes]) {
    let placed = buffers.iter().zip(offsets).enumerate();
    let placed = placed.map(|(at, (buffer, offset))| (PlacedBuffer::new(buffer, offset.0), at));
    // What is empty overlaps nothing.
    let mut placed: Vec<(PlacedBuffer, usize)> =
        placed.filter(|(one, _)| one.offset < one.end).collect();
    placed.sort_by_key(|(one, _)| one.offset);
    for (at, (one, a)) in placed.iter().enumerate() {
        for (other, b) in placed[at + 1..].iter().take_while(|(other, _)| other.offset < one.end) {
            assert!(!one.is_alive_with(other), "buffers {a} and {b} overlap while both are alive");
        }
    }
}
