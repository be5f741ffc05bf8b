//! GGUF beside safetensors: what is recognised, what its keys hold, types that nobody computes
//! with, scales.

use super::*;
use crate::weights::GgmlType;
use crate::weights::files::keys::{ARRAY_BYTES_MAX, ELEMENTS_MAX};
use crate::weights::gguf::GgufError;
use crate::weights::support::gguf::{ARRAY, F32, File, I32, TEXT, array, text};

/// A file with this content and an unhelpful name.
fn opened(content: &[u8]) -> (TempDir, Result<WeightFiles, WeightsError>) {
    let dir = directory(&[("weights.bin", content.to_vec())]);
    let files = WeightFiles::open_file(&dir.path().join("weights.bin"));
    (dir, files)
}

#[test]
fn a_gguf_file_is_known_by_how_it_begins() {
    let file = File::new()
        .with_key("general.name", TEXT, &text("a name"))
        .with("half", &[2, 1], 1, &[0, 0x3c, 0, 0xc0])
        .with("blocks", &[32], 8, &[[0, 0x38].as_slice(), &[4; 32]].concat());
    let (dir, files) = opened(&file.bytes());
    let files = files.unwrap();
    let half = files.require("half", &[1, 2]).unwrap();
    assert_eq!((half.storage(), half.size(), half.scale()), (StorageType::F16, Bytes(4), 1.0));
    assert_eq!(half.view(&files).to_f32(), [1.0, -2.0]);
    let blocks = files.require("blocks", &[32]).unwrap();
    assert_eq!(blocks.view(&files).to_f32(), [2.0; 32]);
    assert_eq!(files.total_tensor_bytes(), Bytes(38));

    let path = dir.path().join("weights.bin");
    let (_, notes) = WeightFiles::open_file_with_notes(&path).unwrap();
    assert_eq!(notes["general.name"], "a name");
    assert_eq!(files.gguf_keys().unwrap().keys().text("general.architecture"), Some("test"));

    fs::rename(&path, dir.path().join("model.gguf")).unwrap();
    let found = WeightFiles::open(dir.path(), &STEMS).unwrap();
    assert_eq!(found.names().collect::<Vec<_>>(), ["blocks", "half"]);
    fs::write(dir.path().join("model.safetensors"), vectors(&[("first", 1)])).unwrap();
    let found = WeightFiles::open(dir.path(), &STEMS).unwrap();
    assert_eq!(found.names().collect::<Vec<_>>(), ["first"]);
    assert!(found.gguf_keys().is_none());

    let (_dir, bad) = opened(b"GGUF");
    let bad = bad.unwrap_err();
    assert!(matches!(bad, WeightsError::Gguf { fault: GgufError::Truncated { .. }, .. }), "{bad}");
}

#[test]
fn arrays_are_read_when_they_are_asked_for() {
    let scores: Vec<u8> = [0.5_f32, -1.0].iter().flat_map(|score| score.to_le_bytes()).collect();
    let kinds: Vec<u8> = (-20..20_i32).flat_map(|kind| kind.to_le_bytes()).collect();
    let wide = 5_u64.to_le_bytes();
    let file = File::new()
        .with_key("tokens", ARRAY, &array(TEXT, 2, &[text("▁a"), text("")].concat()))
        .with_key("scores", ARRAY, &array(F32, 2, &scores))
        .with_key("kinds", ARRAY, &array(I32, 40, &kinds))
        .with_key("wide", ARRAY, &array(10, 1, &wide))
        .with_key("latin", ARRAY, &array(TEXT, 1, &text([0xe9])))
        .with_key("many", ARRAY, &array(0, ELEMENTS_MAX + 1, &[0; ELEMENTS_MAX as usize + 1]))
        .with_key("large", ARRAY, &array(TEXT, 1, &text(vec![0; ARRAY_BYTES_MAX as usize])));
    let (_dir, files) = opened(&file.bytes());
    let files = files.unwrap();
    let keys = files.gguf_keys().unwrap();
    assert_eq!(keys.texts("tokens").unwrap().unwrap(), ["▁a", ""]);
    assert_eq!(keys.numbers("scores").unwrap().unwrap(), [0.5, -1.0]);
    let numbers: Vec<f64> = (-20..20).map(f64::from).collect();
    assert_eq!(keys.numbers("kinds").unwrap().unwrap(), numbers);
    assert_eq!(keys.texts("general.architecture").unwrap(), None);
    assert_eq!(keys.numbers("nothing").unwrap(), None);
    for (found, says) in [
        (keys.texts("scores").map(drop), "it is no array of texts"),
        (keys.texts("latin").map(drop), "no UTF-8"),
        (keys.numbers("wide").map(drop), "up to 32 bits"),
        (keys.numbers("tokens").map(drop), "no array of numbers"),
        (keys.numbers("many").map(drop), "longer than any that is known"),
        (keys.texts("large").map(drop), "longer than any that is known"),
    ] {
        let fault = found.unwrap_err().to_string();
        assert!(fault.contains(says), "{fault}");
    }
}

#[test]
fn a_type_that_nobody_computes_with_is_refused_when_it_is_asked_for() {
    let file = File::new().with("known", &[256], 29, &[0; 56]).with("unknown", &[3], 99, &[0; 7]);
    let (_dir, files) = opened(&file.bytes());
    let files = files.unwrap();
    assert_eq!(files.tensor("unknown").unwrap().dtype, Dtype::Ggml(GgmlType::from_number(99)));
    for (name, shape, says) in [
        ("known", 256, "has type IQ1_M (ggml type 29), supported are F32"),
        ("unknown", 3, "has type ggml type 99, which is not known, supported are F32"),
    ] {
        let fault = files.require(name, &[shape]).unwrap_err().to_string();
        assert!(fault.contains(says), "{fault}");
    }
}

#[test]
fn a_scale_beside_a_weight_multiplies_it() {
    let rows: [(&str, &str, &[usize], usize); 7] = [
        ("older.weight", "F8_E4M3", &[2], 2),
        ("older.scale_weight", "F32", &[], 4),
        ("newer.weight", "F8_E5M2", &[2], 2),
        ("newer.weight_scale", "BF16", &[1], 2),
        ("plain.weight", "F8_E4M3", &[2], 2),
        ("scaled_fp8", "F8_E4M3", &[0], 0),
        ("alone.scale_weight", "I64", &[1], 8),
    ];
    let with = |scale: f32, newer: &[u8]| {
        let mut content = file_bytes(&header_text(&rows), 0);
        content.extend([0x38, 0xb8]); // 1 and -1 of E4M3
        content.extend(scale.to_le_bytes());
        content.extend([0x3c, 0xc0]); // 1 and -2 of E5M2
        content.extend(newer);
        content.extend([0x38, 0x7e, 0, 0, 0, 0, 0, 0, 0, 0]);
        content
    };
    let (_dir, files) = opened(&with(0.3, &[0x40, 0x40]));
    let files = files.unwrap();
    let values = |name| files.require(name, &[2]).unwrap().view(&files).to_f32();
    assert_eq!(values("older.weight"), [0.3, -0.3]);
    assert_eq!(values("newer.weight"), [3.0, -6.0]);
    assert_eq!(values("plain.weight"), [1.0, 448.0]);
    assert_eq!(files.require("older.weight", &[2]).unwrap().scale(), 0.3);

    for (content, says) in [
        (with(f32::NAN, &[0, 0]), "\"older.scale_weight\""),
        (with(1.0, &[0x80, 0x7f]), "\"newer.weight_scale\""),
    ] {
        let fault = opened(&content).1.unwrap_err().to_string();
        assert!(fault.contains(says) && fault.contains("hint: "), "{fault}");
    }
    let plain = [("a.weight", "F16", &[1][..], 2), ("a.weight_scale", "F32", &[1], 4)];
    let scaled =
        |scale: f32| [&file_bytes(&header_text(&plain), 2)[..], &scale.to_le_bytes()].concat();
    assert!(opened(&scaled(1.0)).1.is_ok());
    let fault = opened(&scaled(2.0)).1.unwrap_err();
    assert!(fault.to_string().contains("is 2, beside a weight of type F16"), "{fault}");
    let per_row = [("a.weight", "F8_E4M3", &[2][..], 2), ("a.weight_scale", "F32", &[2], 8)];
    let fault = opened(&file_bytes(&header_text(&per_row), 10)).1.unwrap_err();
    assert!(fault.to_string().contains("of type F32 and shape [2] is no single number"), "{fault}");
}
