//! The arena: an offset for every buffer, such that buffers alive together do not overlap.
//!
//! Greedy by size: the largest buffer first, each at the lowest offset that is free during its life
//! (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). Ties go to the
//! earlier buffer, so that the same graph always gives the same arena.

use protocol::Bytes;

use super::Buffer;

/// Offsets of the buffers, in their order, and the size of the arena.
pub fn place(buffers: &[Buffer]) -> (Vec<Bytes>, Bytes) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(buffers[index].bytes), index));
    let mut offsets = vec![Bytes::ZERO; buffers.len()];
    let mut placed: Vec<usize> = Vec::with_capacity(buffers.len()); // by offset
    let mut arena_bytes = Bytes::ZERO;
    for index in order {
        let buffer = &buffers[index];
        let mut offset = Bytes::ZERO;
        for &other in &placed {
            if !alive_together(buffer, &buffers[other]) {
                continue;
            }
            if offset + buffer.bytes <= offsets[other] {
                break;
            }
            offset = offset.max(offsets[other] + buffers[other].bytes);
        }
        offsets[index] = offset;
        let at = placed.partition_point(|&other| offsets[other] <= offset);
        placed.insert(at, index);
        arena_bytes = arena_bytes.max(offset + buffer.bytes);
    }
    (offsets, arena_bytes)
}

/// Panics if two buffers that are alive together overlap: a fault of this file, which would let one
/// kernel overwrite what another still needs.
pub fn assert_disjoint(buffers: &[Buffer], offsets: &[Bytes]) {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&index| offsets[index]);
    for (place, &a) in order.iter().enumerate() {
        let end = offsets[a] + buffers[a].bytes;
        for &b in &order[place + 1..] {
            if offsets[b] >= end {
                break;
            }
            assert!(
                !alive_together(&buffers[a], &buffers[b]),
                "buffers {a} and {b} overlap while both are alive"
            );
        }
    }
}

fn alive_together(a: &Buffer, b: &Buffer) -> bool {
    a.first <= b.last && b.first <= a.last
}
