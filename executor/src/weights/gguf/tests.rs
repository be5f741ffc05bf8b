//! Headers made byte by byte: good ones read, bad ones refused with what is wrong, damaged ones
//! without a panic.

use proptest::prelude::*;

use super::*;
use crate::weights::support::corpus;
use crate::weights::support::gguf::{
    ARRAY, BOOL, F32, File, I32, TEXT, U32, array, key, tensor, text,
};
use crate::weights::{Dtype, GgmlType};

fn parse(file: &[u8]) -> Result<Gguf, GgufError> {
    Gguf::read(file, file.len() as u64).expect("memory can be read")
}

#[track_caller]
fn refused(file: &File) -> GgufError {
    parse(&file.bytes()).expect_err("the file is bad")
}

/// Two tensors, and a key of each kind.
fn good() -> File {
    File::new()
        .with_key("u32", U32, &7u32.to_le_bytes())
        .with_key("i32", I32, &(-7i32).to_le_bytes())
        .with_key("f32", F32, &0.5f32.to_le_bytes())
        .with_key("bool", BOOL, &[1])
        .with_key("long", TEXT, &text("x".repeat(5000)))
        .with_key("texts", ARRAY, &array(TEXT, 2, &[text("a"), text("bc")].concat()))
        .with_key("shape", ARRAY, &array(I32, 2, &[3, 0, 0, 0, 255, 255, 255, 255]))
        .with_key("nested", ARRAY, &array(ARRAY, 2, &array(U32, 0, &[]).repeat(2)))
        .with("b.weight", &[64, 3], 8, &[1; 204])
        .with("a", &[2], 0, &[2; 8])
}

#[test]
fn a_good_header_is_read() {
    for version in VERSIONS {
        let file = File { version, ..good() };
        let bytes = file.bytes();
        let read = parse(&bytes).unwrap();
        let start = (bytes.len() - file.data.len()) as u64;
        let found: Vec<_> = read
            .tensors
            .iter()
            .map(|(name, e)| {
                (&name[..], e.dtype, e.shape.as_slice(), e.offset_bytes - start, e.size_bytes)
            })
            .collect();
        let q8_0 = Dtype::Ggml(GgmlType::from_number(8));
        let expected =
            [("a", Dtype::F32, &[2][..], 224, 8), ("b.weight", q8_0, &[3, 64][..], 0, 204)];
        assert_eq!(found, expected);
        let keys = &read.keys;
        assert_eq!(keys.text("general.architecture"), Some("test"));
        assert_eq!((keys.integer("u32"), keys.integer("i32")), (Some(7), None));
        assert_eq!(keys.value("i32"), Some(&GgufValue::Signed(-7)));
        assert_eq!(keys.value("f32"), Some(&GgufValue::Float(0.5)));
        assert_eq!(keys.value("bool"), Some(&GgufValue::Bool(true)));
        assert_eq!(
            (keys.text("long"), keys.value("long")),
            (None, Some(&GgufValue::LongText(5000)))
        );
        assert_eq!(keys.array("shape").unwrap().integers, [3, -1]);
        let texts = keys.array("texts").unwrap();
        assert_eq!((texts.element, texts.count, texts.size_bytes), (ValueType::Text, 2, 19));
        assert_eq!(keys.array("nested").unwrap().size_bytes, 24);
        assert_eq!(keys.iter().count(), 9);
    }
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let file = good();
    let (bytes, header) = (file.bytes(), file.header());
    for length in 0..bytes.len() {
        let fault = parse(&bytes[..length]).expect_err("it is cut");
        match fault {
            GgufError::Truncated { file_bytes, .. } => {
                assert!(length < header.len() && file_bytes == length as u64, "{length}: {fault}");
            }
            GgufError::PastEnd { file_bytes, .. } => {
                assert!(length >= header.len() && file_bytes == length as u64, "{length}: {fault}");
            }
            other => panic!("cut to {length}: {other}"),
        }
        // A file that shrinks between being asked for its size and being read is as good as cut.
        let shrunk = Gguf::read(&bytes[..length], bytes.len() as u64).unwrap();
        assert_eq!(shrunk.is_err(), length < header.len(), "{length}");
    }
}

#[test]
fn the_end_of_the_padding_may_be_missing_and_gaps_may_be_there() {
    let mut file = File::new();
    file.alignment = 64;
    let file = file.with_key("general.alignment", U32, &64u32.to_le_bytes());
    let mut file = file.with("a", &[1], 0, &[0; 4]);
    file.data.extend([0; 300]);
    file.tensors.push(tensor("b", &[1], 0, 256));
    assert_eq!(parse(&file.bytes()).unwrap().tensors.len(), 2);
    assert_eq!(parse(&File::new().header()).unwrap().tensors.len(), 0);
    let mut empty = File::new();
    empty.tensors.push(tensor("empty", &[0, 4], 0, 0));
    assert_eq!(parse(&empty.header()).unwrap().tensors["empty"].size_bytes, 0);
}

#[test]
fn types_that_are_not_known_are_passed_over() {
    let file = File::new().with("a", &[5], 777, &[0; 10]).with("b", &[256], 29, &[0; 56]).with(
        "c",
        &[5, 7],
        4,
        &[0; 9],
    );
    let bytes = file.bytes();
    let tensors = parse(&bytes).unwrap().tensors;
    let sizes: Vec<_> = tensors.values().map(|entry| entry.size_bytes).collect();
    assert_eq!(sizes, [32, 56, 9]);
    assert!(tensors.values().all(|entry| entry.dtype.storage().is_none()));
    assert_eq!(tensors["b"].dtype.to_string(), "IQ1_M (ggml type 29)");
}

#[test]
fn a_tensor_gets_the_shape_that_a_key_gives_it() {
    let shape = |sizes: &[i32]| {
        let bytes: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        array(I32, sizes.len() as u64, &bytes)
    };
    let with = |value: &[u8], kind| {
        let file = File::new().with("conv", &[256, 3], 1, &[0; 1536]);
        file.with_key("comfy.gguf.orig_shape.conv", kind, value).with_key(
            "comfy.gguf.orig_shape.other",
            kind,
            value,
        )
    };
    let read = parse(&with(&shape(&[16, 16, 3, 1]), ARRAY).bytes()).unwrap();
    assert_eq!(read.tensors["conv"].shape.as_slice(), [16, 16, 3, 1]);
    for bad in [shape(&[16, 16]), shape(&[-16, -16, 3, 1]), shape(&[1; 9]), shape(&[])] {
        let fault = refused(&with(&bad, ARRAY));
        assert!(matches!(fault, GgufError::Shape { .. }), "{fault}");
    }
    let fault = refused(&with(&768u32.to_le_bytes(), U32));
    assert!(fault.to_string().contains("is 768, which is no shape"), "{fault}");
}

#[test]
fn every_claim_of_a_header_is_checked_before_it_is_believed() {
    type Damage = fn(&mut File);
    let cases: [(Damage, &str); 30] = [
        (|f| f.magic = *b"GGML", "it begins with the bytes [71, 71, 77, 76]"),
        (|f| f.version = 1, "it has version 1"),
        (|f| f.version = 4, "it has version 4"),
        (|f| f.version = 3u32.swap_bytes(), "it is big-endian"),
        (|f| f.tensor_count = Some(u64::MAX), "it says that it has 18446744073709551615 tensors"),
        (|f| f.tensor_count = Some(90_000), "the name of a tensor has"),
        (|f| f.key_count = Some(100_001), "it says that it has 100001 keys"),
        (|f| f.keys[0] = u64::MAX.to_le_bytes().to_vec(), "a key has 18446744073709551615 bytes"),
        (|f| f.keys[0] = key("k".repeat(1025), BOOL, &[0]), "a key has 1025 bytes"),
        (|f| f.keys[0] = key([255, 254], BOOL, &[0]), "\"a key\" is no UTF-8"),
        (|f| f.keys[0] = key("u32", U32, &[0; 4]), "the key \"u32\" stands twice"),
        (|f| f.keys[0] = key("k", 13, &[0; 8]), "the unknown type 13"),
        (|f| f.keys[0] = key("k", ARRAY, &array(13, 1, &[0])), "the unknown type 13"),
        (|f| f.keys[0] = key("k", BOOL, &[2]), "the truth value 2"),
        (|f| f.keys[0] = key("k", ARRAY, &array(BOOL, 2, &[0, 7])), "the truth value 7"),
        (|f| f.keys[0] = key("k", TEXT, &text([255])), "\"k\" is no UTF-8"),
        (
            |f| f.keys[0] = key("k", TEXT, &u64::MAX.to_le_bytes()),
            "\"k\" needs 18446744073709551615",
        ),
        (
            |f| f.keys[0] = key("k", ARRAY, &array(U32, 1 << 62, &[])),
            "\"k\" needs 18446744073709551615",
        ),
        (|f| f.keys[0] = key("k", ARRAY, &array(U32, 1 << 40, &[])), "\"k\" needs 4398046511104"),
        (|f| f.keys[0] = key("k", ARRAY, &array(TEXT, 1 << 40, &[])), "\"k\" needs 8796093022208"),
        (
            |f| {
                let deep =
                    (0..5).fold(array(TEXT, 1, &text("")), |inner, _| array(ARRAY, 1, &inner));
                f.keys[0] = key("k", ARRAY, &array(ARRAY, 17, &deep.repeat(17)));
            },
            "the key \"k\" has arrays within arrays",
        ),
        (|f| f.keys[0] = key("general.alignment", U32, &[48, 0, 0, 0]), "its alignment is 48"),
        (|f| f.keys[0] = key("general.alignment", U32, &[0; 4]), "its alignment is 0"),
        (|f| f.keys[0] = key("general.alignment", TEXT, &text("32")), "its alignment is \"32\""),
        (
            |f| f.tensors[0] = u64::MAX.to_le_bytes().to_vec(),
            "the name of a tensor has 18446744073709551615",
        ),
        (
            |f| f.tensors[0] = tensor("n".repeat(513), &[1], 0, 0),
            "the name of a tensor has 513 bytes",
        ),
        (|f| f.tensors[0] = tensor([0xc0], &[1], 0, 0), "\"the name of a tensor\" is no UTF-8"),
        (|f| f.tensors[0] = tensor("a", &[1], 0, 0), "the name \"a\" stands twice"),
        (|f| f.tensors[0] = tensor("n", &[1; 9], 0, 0), "has 9 dimensions"),
        (|f| f.tensors[0] = tensor("n", &[1 << 33, 1 << 33], 0, 0), "its size overflows"),
    ];
    for (damage, says) in cases {
        let mut file = good();
        damage(&mut file);
        let fault = refused(&file).to_string();
        assert!(fault.contains(says), "{fault} does not say {says}");
    }
}

#[test]
fn tensors_lie_apart_within_the_file() {
    type Damage = fn(&mut File);
    let cases: [(Damage, &str); 7] = [
        (|f| f.tensors[0] = tensor("b", &[65, 3], 8, 0), "rows of 65 elements"),
        (|f| f.tensors[0] = tensor("b", &[], 8, 0), "rows of 1 elements"),
        (|f| f.tensors[0] = tensor("b", &[1 << 62], 0, 0), "its size overflows"),
        (|f| f.tensors[0] = tensor("b", &[64, 3], 8, 4), "begins at byte 4 of the data"),
        (|f| f.tensors[0] = tensor("b", &[64, 3], 8, 1 << 40), "ends at byte"),
        (|f| f.tensors[0] = tensor("b", &[64, 3], 8, !31), "ends at byte 18446744073709551615"),
        (|f| f.tensors[1] = tensor("a", &[2], 0, 192), "\"b.weight\" and \"a\" overlap"),
    ];
    for (damage, says) in cases {
        let mut file = good();
        damage(&mut file);
        let fault = refused(&file).to_string();
        assert!(fault.contains(says), "{fault} does not say {says}");
    }
    let unknown = good().with("c", &[1], 999, &[]);
    assert_eq!(parse(&unknown.bytes()).unwrap().tensors["c"].size_bytes, 0);
}

#[test]
fn a_header_beyond_the_limit_is_refused_unread() {
    /// A source that never ends.
    struct Zeros;
    impl Read for Zeros {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            to.fill(0);
            Ok(to.len())
        }
    }
    let bytes = array(0, HEADER_BYTES_MAX, &[]);
    let file = File { keys: vec![key("k", ARRAY, &bytes)], ..File::new() }.header();
    let read = Gguf::read(file.chain(Zeros), 1 << 40).unwrap();
    assert!(matches!(read, Err(GgufError::HeaderTooLong)));
}

#[test]
fn the_corpus_of_the_fuzzer_ends_in_answers() {
    let (mut read, mut refused) = (0, 0);
    for bytes in corpus("gguf") {
        match parse(&bytes) {
            Ok(_) => read += 1,
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!(read > 5 && refused > 50, "{read} read and {refused} refused");
}

proptest! {
    #[test]
    fn no_change_of_bytes_makes_the_parser_panic(
        changes in proptest::collection::vec((0usize..1000, any::<u8>()), 1..6),
        cut in 0usize..1000,
    ) {
        let good = good();
        // The long text would take most of the changes.
        let mut bytes = File { keys: [&good.keys[..5], &good.keys[6..]].concat(), ..good }.bytes();
        let length = bytes.len();
        for (at, byte) in changes {
            bytes[at % length] = byte;
        }
        if cut < 100 {
            bytes.truncate(cut * length / 100);
        }
        let file_bytes = bytes.len() as u64;
        if let Ok(read) = parse(&bytes) {
            let mut ranges: Vec<_> =
                read.tensors.values().map(|e| (e.offset_bytes, e.offset_bytes + e.size_bytes)).collect();
            ranges.sort_unstable();
            prop_assert!(ranges.iter().all(|&(_, end)| end <= file_bytes));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
    }
}
