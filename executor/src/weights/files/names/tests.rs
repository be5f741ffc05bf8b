//! Names of a component over files that call its tensors otherwise.

use protocol::StorageType;

use super::*;
use crate::weights::support::{file_bytes, header_text};

/// A file of f32 tensors with these names and shapes.
fn opened(tensors: &[(&str, &[usize])]) -> (tempfile::NamedTempFile, WeightFiles) {
    let bytes = |shape: &[usize]| 4 * shape.iter().product::<usize>();
    let rows: Vec<_> = tensors.iter().map(|(n, shape)| (*n, "F32", *shape, bytes(shape))).collect();
    let total = rows.iter().map(|row| row.3).sum();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), file_bytes(&header_text(&rows), total)).unwrap();
    let files = WeightFiles::open_file(file.path()).unwrap();
    (file, files)
}

fn fused() -> Names {
    let mut names = Names::behind("model.");
    for (part, rows) in [("q", 0..2), ("k", 2..4), ("wide", 4..9)] {
        names.rows(part, "fused", rows.clone(), 9);
        names.rows(&format!("{part}.bias"), "fused.bias", rows, 9);
    }
    names.whole("renamed", "old");
    names.matrix("matrix", "conv");
    names
}

const FILE: [(&str, &[usize]); 6] = [
    ("model.conv", &[3, 2, 1, 1]),
    ("model.fused", &[9, 4]),
    ("model.fused.bias", &[9]),
    ("model.left.over", &[5]),
    ("model.old", &[2]),
    ("other.tensor", &[7]),
];

#[test]
fn rows_are_the_same_bytes_of_the_same_mapping() {
    let (_file, plain) = opened(&FILE);
    let named = plain.named(fused()).unwrap();
    let whole = plain.bytes(&plain.tensor("model.fused").unwrap());
    for (part, rows) in [("q", 0..2), ("k", 2..4), ("wide", 4..9)] {
        let tensor = named.require(part, &[rows.len(), 4]).unwrap();
        let expected = &whole[rows.start * 16..rows.end * 16];
        assert_eq!(tensor.view(&named).bytes.as_ptr_range(), expected.as_ptr_range(), "{part}");
        let bias = named.require(&format!("{part}.bias"), &[rows.len()]).unwrap();
        assert_eq!((bias.size().as_usize(), bias.storage()), (4 * rows.len(), StorageType::F32));
    }
}

#[test]
fn a_view_has_what_is_listed_and_what_is_left_behind_the_prefix() {
    let (_file, plain) = opened(&FILE);
    let named = plain.named(fused()).unwrap();
    let names: Vec<&str> = named.names().collect();
    let expected = ["k", "k.bias", "left.over", "matrix", "q", "q.bias", "renamed", "wide"];
    assert_eq!(names, [&expected[..], &["wide.bias"]].concat());
    assert!(named.require("matrix", &[3, 2]).is_ok() && named.require("renamed", &[2]).is_ok());
    let others = plain.tensor("other.tensor").unwrap().size;
    assert_eq!(named.total_tensor_bytes() + others, plain.total_tensor_bytes());
}

#[test]
fn messages_are_in_the_files_own_words() {
    let (_file, plain) = opened(&FILE);
    let mut names = fused();
    names.whole("gone", "model.was.here");
    let named = plain.named(names).unwrap();
    for (asked, own) in [("gone", "model.model.was.here"), ("left.ovr", "model.left.ovr")] {
        let missing = named.require(asked, &[1]).unwrap_err();
        let says = matches!(&missing, WeightsError::MissingTensor { tensor, .. } if tensor == own);
        assert!(says, "{missing}");
    }
    let nearest = named.require("left.ovr", &[1]).unwrap_err().to_string();
    assert!(nearest.contains("\"model.left.over\""), "{nearest}");
    let wrong = named.require("k", &[2, 6]).unwrap_err();
    assert!(
        matches!(&wrong, WeightsError::WrongShape { tensor, expected, got, .. }
            if tensor == "model.fused" && *expected == [9, 6] && *got == [9, 4]),
        "{wrong}"
    );
}

#[test]
fn a_fused_tensor_of_other_rows_is_refused() {
    for shape in [&[8, 4][..], &[9, 4, 1], &[1], &[]] {
        let (_file, plain) = opened(&[("model.fused", shape)]);
        match plain.named(fused()) {
            Ok(_) => assert_eq!(shape[0], 9),
            Err(WeightsError::WrongShape { tensor, expected, got, .. }) => {
                assert!(tensor == "model.fused" && got == shape && expected != got);
            }
            Err(other) => panic!("{shape:?}: {other}"),
        }
    }
}
