//! Parts of tensors hold the numbers of the whole, however they are read.

use proptest::prelude::*;

use super::*;
use crate::weights::support::gguf::File;

/// Rows and columns of the matrices.
const SHAPE: [usize; 2] = [5, 256];

/// A file with a matrix of blocks of 32 elements, one of f16 and a vector.
fn file() -> (TempDir, WeightFiles) {
    let elements = SHAPE.iter().product::<usize>();
    let blocks: Vec<u8> = (0..elements / 32)
        .flat_map(|block| {
            [0, 0x30].into_iter().chain((0..32).map(move |at| (block * 7 + at) as u8))
        })
        .collect();
    let halves: Vec<u8> =
        (0..elements).flat_map(|at| [at as u8, 0x30 + (at / 256) as u8]).collect();
    let vector: Vec<u8> = (0..8).flat_map(|at: u8| f32::from(at).to_le_bytes()).collect();
    let dimensions = [SHAPE[1] as u64, SHAPE[0] as u64];
    let content = File::new()
        .with("blocks", &dimensions, 8, &blocks)
        .with("halves", &dimensions, 1, &halves)
        .with("vector", &[8], 0, &vector);
    let dir = directory(&[("weights.gguf", content.bytes())]);
    let files = WeightFiles::open_file(&dir.path().join("weights.gguf")).unwrap();
    (dir, files)
}

/// The bytes of a part, read `piece` bytes at a time.
fn read(part: &TensorRef, files: &WeightFiles, piece: usize) -> Vec<u8> {
    let mut bytes = vec![0; part.size().as_usize()];
    for (at, target) in bytes.chunks_mut(piece).enumerate() {
        part.read(files, at * piece, target);
    }
    bytes
}

fn numbers(part: &TensorRef, bytes: &[u8]) -> Vec<f32> {
    part.view_of(part.shape(), bytes).to_f32()
}

proptest! {
    #[test]
    fn columns_are_those_of_the_whole(
        starts in prop::collection::vec(0..8_usize, 4),
        piece in 1..300_usize,
        blocks in any::<bool>(),
    ) {
        let (_dir, files) = file();
        let mut starts = starts;
        starts.sort_unstable();
        let runs = [starts[0] * 32..starts[1] * 32, starts[2] * 32..starts[3] * 32];
        let name = if blocks { "blocks" } else { "halves" };
        let whole = files.require(name, &SHAPE).unwrap();
        let all = whole.view(&files).to_f32();
        let expected: Vec<f32> = all
            .chunks(SHAPE[1])
            .flat_map(|row| runs.iter().flat_map(|run| &row[run.clone()]))
            .copied()
            .collect();
        prop_assume!(!expected.is_empty());
        let part = whole.columns(&runs);
        prop_assert_eq!(part.shape(), [SHAPE[0], expected.len() / SHAPE[0]]);
        prop_assert_eq!(numbers(&part, &read(&part, &files, piece)), expected);
        let range = part.byte_range();
        prop_assert!(whole.byte_range().start <= range.start);
        prop_assert!(range.end <= whole.byte_range().end && range.len() >= part.size().as_usize());
    }
}

#[test]
fn rows_lie_in_one_piece() {
    let (_dir, files) = file();
    for name in ["blocks", "halves"] {
        let whole = files.require(name, &SHAPE).unwrap();
        let part = whole.rows(1..4);
        let expected = &whole.view(&files).to_f32()[SHAPE[1]..4 * SHAPE[1]];
        assert_eq!(part.view(&files).to_f32(), expected, "{name}");
        assert_eq!(numbers(&part, &read(&part, &files, 37)), expected, "{name}");
    }
    let vector = files.require("vector", &[8]).unwrap();
    assert!(vector.has_whole_rows());
    assert_eq!(vector.rows(2..5).view(&files).to_f32(), [2.0, 3.0, 4.0]);
}

/// Filters `[3, 2, 3, 2, 2]` of which each element is its place; those of a single frame; and the
/// same in blocks.
fn filters() -> (TempDir, WeightFiles) {
    let values =
        |count: u32| (0..count).flat_map(|at| (at as f32).to_le_bytes()).collect::<Vec<_>>();
    let content =
        [("frames", vec![3, 2, 3, 2, 2], values(72)), ("one", vec![3, 2, 1, 2, 2], values(24))];
    let views = content.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
        (*name, view.expect("a whole tensor"))
    });
    let bytes = safetensors::serialize(views, None).expect("a file");
    let dir = directory(&[("filters.safetensors", bytes)]);
    let files = WeightFiles::open_file(&dir.path().join("filters.safetensors")).unwrap();
    (dir, files)
}

#[test]
fn of_filters_over_frames_the_last_taps_are_read() {
    let (_dir, files) = filters();
    let whole = files.require("frames", &[3, 2, 3, 2, 2]).unwrap();
    let last = whole.last_frame().expect("no blocks");
    assert_eq!((last.shape(), last.size().0), (&[3, 2, 2, 2][..], 4 * 24));
    let expected: Vec<f32> =
        (0..6).flat_map(|filter| (8..12).map(move |tap| (12 * filter + tap) as f32)).collect();
    for piece in [1, 4, 7, 16, 96] {
        assert_eq!(numbers(&last, &read(&last, &files, piece)), expected, "by {piece}");
    }
    // In the mapping they lie apart, to the last byte of the tensor.
    let (bytes, stride) = last.spread(&files).expect("not in one piece");
    assert_eq!((bytes.len(), stride), (4 * (72 - 8), 4 * 12));
    assert_eq!(bytes[..4], 8_f32.to_le_bytes());
    let range = last.byte_range();
    assert_eq!(range.end, whole.byte_range().end);
    assert_eq!(range.start, whole.byte_range().start);

    let one = files.require("one", &[3, 2, 1, 2, 2]).unwrap().last_frame().expect("no blocks");
    assert!(one.spread(&files).is_none(), "one frame lies in one piece");
    assert_eq!(one.view(&files).to_f32(), (0..24).map(|at| at as f32).collect::<Vec<_>>());
    assert_eq!(one.as_vector().shape(), [24]);
}

#[test]
#[should_panic(expected = "16 is within a block")]
fn columns_within_blocks_are_a_bug_of_the_caller() {
    let (_dir, files) = file();
    let _ = files.require("blocks", &SHAPE).unwrap().columns(&[16..64, 64..64]);
}
