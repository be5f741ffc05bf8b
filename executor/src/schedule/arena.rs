//! The arena: an offset for every buffer, such that buffers alive together do not overlap.
//!
//! Greedy by size: the largest buffer first, each at the lowest offset that is free during its life
//! (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Ties go
//! to the earlier buffer, so that the same graph always gives the same arena.

use std::cmp::Reverse;

use protocol::Bytes;

use super::ArenaBuffer;

/// How many steps share a list of the buffers that are alive in any of them. Most buffers live for
/// some steps only. Where more steps share a list, it holds more that a buffer does not meet; where
/// fewer do, each buffer is in more lists.
const STEPS: usize = 32;

/// A buffer with its place, close together in memory as many are looked at for each new one.
#[derive(Clone, Copy)]
struct PlacedBuffer {
    offset: u64,
    end: u64,
    index: usize,
    first: usize,
    last: usize,
}

impl PlacedBuffer {
    fn new(buffers: &[ArenaBuffer], index: usize, offset: u64) -> PlacedBuffer {
        let ArenaBuffer { bytes, first, last, .. } = buffers[index];
        PlacedBuffer { offset, end: (Bytes(offset) + bytes).0, index, first, last }
    }

    fn is_alive_with(&self, other: &PlacedBuffer) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// What is placed, by the steps in which it is alive, each list in the order of offsets.
struct PlacedBySteps(Vec<Vec<PlacedBuffer>>);

impl PlacedBySteps {
    fn new(buffers: &[ArenaBuffer]) -> PlacedBySteps {
        let end = buffers.iter().map(|buffer| buffer.last + 1).max().unwrap_or(0);
        let mut counts = vec![0; end.div_ceil(STEPS)];
        for buffer in buffers {
            for count in &mut counts[buffer.first / STEPS..=buffer.last / STEPS] {
                *count += 1;
            }
        }
        PlacedBySteps(counts.into_iter().map(Vec::with_capacity).collect())
    }

    /// The lowest place of a buffer beside those that are alive with it.
    fn lowest(&self, buffers: &[ArenaBuffer], index: usize) -> PlacedBuffer {
        let mut new = PlacedBuffer::new(buffers, index, 0);
        let lists = &self.0[new.first / STEPS..=new.last / STEPS];
        loop {
            let before = new.offset;
            for list in lists {
                for other in list {
                    if other.offset >= new.end {
                        break;
                    }
                    if other.end > new.offset && other.is_alive_with(&new) {
                        new = PlacedBuffer::new(buffers, index, other.end);
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
        for placed in &mut self.0[new.first / STEPS..=new.last / STEPS] {
            placed.insert(placed.partition_point(|other| other.offset <= new.offset), new);
        }
    }
}

/// Offsets of the buffers, in their order, and the size of the arena.
pub fn place(buffers: &[ArenaBuffer]) -> (Vec<Bytes>, Bytes) {
    let sized = buffers.iter().enumerate();
    let mut order: Vec<(Reverse<Bytes>, usize)> =
        sized.map(|(index, buffer)| (Reverse(buffer.bytes), index)).collect();
    order.sort_unstable();
    let mut offsets = vec![Bytes::ZERO; buffers.len()];
    let mut placed = PlacedBySteps::new(buffers);
    let mut arena_bytes = 0;
    for (_, index) in order {
        let new = placed.lowest(buffers, index);
        offsets[index] = Bytes(new.offset);
        arena_bytes = new.end.max(arena_bytes);
        placed.add(new);
    }
    (offsets, Bytes(arena_bytes))
}

/// Panics if two buffers that are alive together overlap: a fault of this file, which would let one
/// kernel overwrite what another still needs.
pub fn assert_disjoint(buffers: &[ArenaBuffer], offsets: &[Bytes]) {
    let placed = (0..buffers.len()).map(|at| PlacedBuffer::new(buffers, at, offsets[at].0));
    // What is empty overlaps nothing.
    let mut placed: Vec<PlacedBuffer> = placed.filter(|one| one.offset < one.end).collect();
    placed.sort_by_key(|one| one.offset);
    for (at, one) in placed.iter().enumerate() {
        for other in placed[at + 1..].iter().take_while(|other| other.offset < one.end) {
            let (a, b) = (one.index, other.index);
            assert!(!one.is_alive_with(other), "buffers {a} and {b} overlap while both are alive");
        }
    }
}
