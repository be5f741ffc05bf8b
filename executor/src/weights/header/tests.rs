//! The corpus of bad headers, each with the error it must end in, and properties over damaged ones.

use std::io::{self, Read};

use proptest::prelude::*;

use super::*;
use crate::weights::excerpt::excerpt;
use crate::weights::support::{corpus, file_bytes, header_text};

/// One tensor `t` with these three fields, over `data_bytes` bytes.
fn entry(dtype: &str, shape: &str, offsets: &str, data_bytes: usize) -> Vec<u8> {
    let header =
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#);
    file_bytes(&header, data_bytes)
}

fn parse(file: &[u8]) -> Result<Header, HeaderError> {
    Header::parse(file, file.len() as u64)
}

#[track_caller]
fn refused(file: &[u8]) -> HeaderError {
    let fault = parse(file).expect_err("the file is bad");
    let read = Header::read(file, file.len() as u64).expect("memory can be read");
    assert_eq!(read.expect_err("the file is bad").to_string(), fault.to_string());
    fault
}

/// Two tensors of 8 bytes at these offsets, over `data_bytes` bytes.
fn pair(first: [u64; 2], second: [u64; 2], data_bytes: usize) -> Vec<u8> {
    let header = format!(
        r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{first:?}}},
            "b":{{"dtype":"I64","shape":[1],"data_offsets":{second:?}}}}}"#
    );
    file_bytes(&header, data_bytes)
}

#[test]
fn a_good_header_is_read() {
    let text = header_text(&[
        ("b", "BF16", &[2, 3], 12),
        ("a", "F32", &[], 4),
        ("none", "F16", &[0, 7], 0),
        ("packed", "F4", &[3, 2], 3),
        ("later", "I64", &[1], 8),
    ]);
    // Writers pad the header with spaces.
    let file = file_bytes(&format!("{text}   "), 27);
    let data_start = file.len() as u64 - 27;
    let header = parse(&file).unwrap();
    let found: Vec<_> = header
        .tensors
        .iter()
        .map(|(name, e)| {
            (&name[..], e.dtype, e.shape.as_slice(), e.offset_bytes - data_start, e.size_bytes)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("a", Dtype::F32, &[][..], 12, 4),
            ("b", Dtype::BF16, &[2, 3], 0, 12),
            ("later", Dtype::I64, &[1], 19, 8),
            ("none", Dtype::F16, &[0, 7], 16, 0),
            ("packed", Dtype::F4, &[3, 2], 16, 3),
        ]
    );
    assert_eq!(Header::read(&file[..], file.len() as u64).unwrap().unwrap(), header);
    assert_eq!(parse(&file_bytes("{}", 0)).unwrap().tensors.len(), 0);
}

#[test]
fn a_file_cut_anywhere_is_truncated() {
    let file = file_bytes(&header_text(&[("a", "F32", &[2], 8), ("b", "F32", &[1], 4)]), 12);
    for length in 0..file.len() {
        let fault = refused(&file[..length]);
        let file_bytes_seen = length as u64;
        let (full, data_start) = (file.len() as u64, file.len() as u64 - 12);
        let expected = match fault {
            HeaderError::TooShort { file_bytes } => length < 8 && file_bytes == file_bytes_seen,
            HeaderError::TruncatedHeader { promised_bytes, file_bytes } => {
                (8..data_start).contains(&file_bytes)
                    && (promised_bytes, file_bytes) == (data_start, file_bytes_seen)
            }
            HeaderError::TruncatedData { promised_bytes, file_bytes } => {
                file_bytes >= data_start && (promised_bytes, file_bytes) == (full, file_bytes_seen)
            }
            _ => false,
        };
        assert!(expected, "cut to {length}: {fault}");
        if length >= 8 {
            assert!(fault.to_string().contains("hint: its download did not finish"), "{fault}");
        }
    }
}

#[test]
fn a_file_that_is_shorter_than_it_was_said_to_be_is_truncated() {
    let file = file_bytes("{}", 0);
    let found = Header::read(&file[..9], file.len() as u64).unwrap();
    assert!(matches!(
        found,
        Err(HeaderError::TruncatedHeader { promised_bytes: 10, file_bytes: 9 })
    ));
    let found = Header::parse(&file, 9);
    assert!(matches!(found, Err(HeaderError::TruncatedHeader { file_bytes: 9, .. })));
}

#[test]
fn a_length_field_beyond_the_limit_or_the_file_is_refused() {
    for header_bytes in [u64::MAX, u64::MAX - 7, 1 << 63, HEADER_BYTES_MAX + 1] {
        let fault = refused(&header_bytes.to_le_bytes());
        assert!(
            matches!(fault, HeaderError::TooLong { header_bytes: seen } if seen == header_bytes)
        );
    }
    assert!(matches!(refused(b"version https://git-lfs"), HeaderError::TooLong { .. }));
    let fault = refused(&HEADER_BYTES_MAX.to_le_bytes());
    assert!(matches!(fault, HeaderError::TruncatedHeader { file_bytes: 8, .. }));
}

#[test]
fn nothing_is_read_beyond_the_header() {
    let mut file = io::Cursor::new(file_bytes(&header_text(&[("a", "U8", &[5000], 5000)]), 5000));
    let length = file.get_ref().len() as u64;
    Header::read(&mut file, length).unwrap().unwrap();
    assert_eq!(file.position(), length - 5000);
}

#[test]
fn a_failing_read_is_an_error_of_its_own() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::TimedOut))
        }
    }
    let fault = Header::read(Failing, 100).expect_err("it cannot be read");
    assert_eq!(fault.kind(), io::ErrorKind::TimedOut);
}

#[test]
fn what_is_no_json_object_of_entries_is_refused() {
    let mut file = file_bytes(r#"{"a": 1}"#, 0);
    file[11] = 0xff;
    assert!(matches!(refused(&file), HeaderError::NotUtf8 { at_byte: 3 }));

    for header in ["", "[]", "null", " {}", "\"{}\"", "<html>"] {
        assert!(matches!(refused(&file_bytes(header, 0)), HeaderError::NotObject), "{header}");
    }
    for header in ["{", "{]", "{}x", "{1:2}", "{} {}", "{,}"] {
        let fault = refused(&file_bytes(header, 0));
        assert!(matches!(fault, HeaderError::NotJson(_)), "{header}: {fault}");
    }
    let twice = r#"{"format": "pt", "format": "pt"}"#;
    for metadata in ["null", "[]", "3", r#"{"format": 1}"#, r#"{"format": {}}"#, twice] {
        let fault = refused(&file_bytes(&format!(r#"{{"__metadata__":{metadata}}}"#), 0));
        assert!(matches!(fault, HeaderError::MalformedMetadata(_)), "{metadata}");
    }
}

#[test]
fn notes_are_kept() {
    let header = r#"{"__metadata__":{"format":"pt","quoted":"{\"r\": 4}"}}"#;
    let notes = parse(&file_bytes(header, 0)).unwrap().notes;
    let notes: Vec<_> = notes.iter().map(|(name, note)| (name.as_str(), note.as_str())).collect();
    assert_eq!(notes, [("format", "pt"), ("quoted", r#"{"r": 4}"#)]);
    assert!(parse(&file_bytes("{}", 0)).unwrap().notes.is_empty());
}

#[test]
fn a_malformed_entry_is_refused_by_its_name() {
    for entry in [
        "",
        "}",
        "1",
        "null",
        "[1",
        &"[".repeat(100_000),
        "{}",
        r#"{"dtype":"F32","shape":[1]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}"#,
        r#"{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}"#,
        r#"{"dtype":7,"shape":[1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":1,"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}"#,
        r#"{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616]}"#,
    ] {
        let fault = refused(&file_bytes(&format!(r#"{{"bad.weight":{entry}}}"#), 4));
        assert!(
            matches!(&fault, HeaderError::MalformedEntry { tensor, .. } if tensor == "bad.weight"),
            "{}: {fault}",
            excerpt(entry)
        );
    }
}

#[test]
fn a_name_that_stands_twice_is_refused() {
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    for (header, name) in [
        (format!(r#"{{"a":{empty},"b":{empty},"a":{empty}}}"#), "a"),
        (format!(r#"{{"a":{empty},"\u0061":{empty}}}"#), "a"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(), "__metadata__"),
    ] {
        let fault = refused(&file_bytes(&header, 0));
        assert!(
            matches!(&fault, HeaderError::DuplicateTensor { tensor } if tensor == name),
            "{header}: {fault}"
        );
    }
}

#[test]
fn counts_and_lengths_have_limits() {
    let entries = |count: usize| {
        let entry = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
        let all: Vec<_> = (0..count).map(|index| format!(r#""{index}":{entry}"#)).collect();
        file_bytes(&format!(r#"{{{},"__metadata__":{{}}}}"#, all.join(",")), 0)
    };
    assert_eq!(parse(&entries(TENSORS_MAX)).unwrap().tensors.len(), TENSORS_MAX);
    assert!(matches!(refused(&entries(TENSORS_MAX + 1)), HeaderError::TooManyTensors));

    for (length, good) in [(NAME_BYTES_MAX, true), (NAME_BYTES_MAX + 1, false)] {
        let name = "n".repeat(length);
        let found = parse(&file_bytes(&header_text(&[(&name, "F32", &[1], 4)]), 4));
        assert_eq!(found.is_ok(), good);
        if let Err(fault) = found {
            assert!(
                matches!(fault, HeaderError::NameTooLong { bytes: 513, start } if start.len() < 200)
            );
        }
    }

    assert!(parse(&entry("F32", "[1,1,1,1,1,1,1,1]", "[0,4]", 4)).is_ok());
    let fault = refused(&entry("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4));
    assert!(matches!(fault, HeaderError::TooManyDimensions { dimensions: 9, .. }));
    let fault = refused(&entry("F32", &format!("{:?}", [1; 5000]), "[0,4]", 4));
    assert!(matches!(fault, HeaderError::TooManyDimensions { dimensions: 5000, .. }));
}

#[test]
fn an_unknown_type_is_refused() {
    for name in ["F33", "f32", "", "Q8_0", &"F".repeat(9999)] {
        let fault = refused(&entry(name, "[1]", "[0,4]", 4));
        assert!(
            matches!(&fault, HeaderError::UnknownDtype { tensor, dtype }
                if tensor == "t" && name.starts_with(dtype) && dtype.len() < 200),
            "{fault}"
        );
    }
}

#[test]
fn a_shape_whose_size_wraps_is_refused() {
    for shape in [
        "[18446744073709551615]",
        "[4294967296,4294967296]",
        "[4611686018427387904,4]",
        "[4294967296,4294967296,0]",
        "[2305843009213693952]",
    ] {
        let fault = refused(&entry("F32", shape, "[0,4]", 4));
        assert!(matches!(fault, HeaderError::ShapeOverflow { .. }), "{shape}: {fault}");
    }
    assert!(matches!(refused(&entry("F4", "[3]", "[0,1]", 1)), HeaderError::PartialByte { .. }));
}

#[test]
fn offsets_must_fit_shape_and_file() {
    let fault = refused(&entry("F32", "[1]", "[4,0]", 4));
    assert!(matches!(fault, HeaderError::ReversedOffsets { begin: 4, end: 0, .. }));

    for (offsets, got) in [("[0,12]", 12), ("[0,4]", 4), ("[0,0]", 0), ("[1,8]", 7)] {
        let fault = refused(&entry("BF16", "[2,2]", offsets, 8));
        assert!(
            matches!(fault, HeaderError::WrongLength { expected_bytes: 8, got_bytes, .. }
                if got_bytes == got),
            "{offsets}: {fault}"
        );
    }

    let fault = refused(&entry("F32", "[1]", "[96,100]", 4));
    assert!(matches!(fault, HeaderError::OutOfRange { begin: 96, end: 100, data_bytes: 4, .. }));
    let fault = refused(&entry("F32", "[1]", "[18446744073709551611,18446744073709551615]", 4));
    assert!(matches!(fault, HeaderError::OutOfRange { end: u64::MAX, .. }));
    let most = u64::MAX / 8;
    let fault = refused(&entry("U8", &format!("[{most}]"), &format!("[0,{most}]"), 4));
    assert!(matches!(fault, HeaderError::TruncatedData { .. }));
}

#[test]
fn tensors_must_cover_the_data_exactly() {
    assert!(parse(&pair([0, 8], [8, 16], 16)).is_ok());
    assert!(parse(&pair([8, 16], [0, 8], 16)).is_ok());

    let fault = refused(&pair([0, 8], [4, 12], 12));
    assert!(matches!(&fault, HeaderError::Overlap { tensor, other, at_byte: 4 }
        if tensor == "a" && other == "b"));
    let fault = refused(&pair([0, 8], [0, 8], 8));
    assert!(matches!(fault, HeaderError::Overlap { at_byte: 0, .. }));

    let fault = refused(&pair([12, 20], [0, 8], 20));
    assert!(matches!(&fault, HeaderError::Hole { tensor, begin: 8, end: 12 } if tensor == "a"));

    let fault = refused(&pair([0, 8], [8, 16], 19));
    assert!(matches!(fault, HeaderError::TrailingBytes { extra_bytes: 3 }));
    assert!(matches!(refused(&file_bytes("{}", 1)), HeaderError::TrailingBytes { extra_bytes: 1 }));
}

#[test]
fn names_are_escaped_in_messages() {
    let fault = refused(&file_bytes(r#"{"a\u001b[31m\n":1}"#, 0));
    assert!(!fault.to_string().contains(char::is_control), "{fault}");
}

/// What holds for every accepted header.
fn check_sound(header: &Header, file_bytes: u64) -> Result<(), TestCaseError> {
    let mut ranges: Vec<_> = header
        .tensors
        .values()
        .map(|entry| (entry.offset_bytes, entry.offset_bytes + entry.size_bytes))
        .collect();
    ranges.sort();
    let Some(first) = ranges.first() else { return Ok(()) };
    let contiguous = ranges.windows(2).all(|two| two[0].1 == two[1].0);
    prop_assert!(contiguous && first.0 >= 8 && ranges[ranges.len() - 1].1 == file_bytes);
    for entry in header.tensors.values() {
        let elements: usize = entry.shape.as_slice().iter().product();
        prop_assert_eq!(elements as u64 * entry.dtype.element_bits(), entry.size_bytes * 8);
    }
    Ok(())
}

#[test]
fn the_corpus_of_the_fuzzer_ends_in_answers() {
    let (mut read, mut refused) = (0, 0);
    for bytes in corpus("safetensors") {
        match parse(&bytes) {
            Ok(_) => read += 1,
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                refused += 1;
            }
        }
    }
    assert!(read > 3 && refused > 50, "{read} read and {refused} refused");
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(header) = parse(&bytes) {
            check_sound(&header, bytes.len() as u64)?;
        }
    }

    #[test]
    fn a_header_of_random_bytes_does_no_harm(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut file = (bytes.len() as u64).to_le_bytes().to_vec();
        file.extend(bytes);
        if let Ok(header) = parse(&file) {
            check_sound(&header, file.len() as u64)?;
        }
    }

    #[test]
    fn a_damaged_header_is_sound_or_refused(
        damage in proptest::collection::vec(
            (any::<prop::sample::Index>(), any::<u8>(), 0u8..3),
            1..4,
        ),
    ) {
        let rows: [(&str, &str, &[usize], usize); 3] =
            [("a", "F32", &[2, 2], 16), ("b", "BF16", &[3], 6), ("c", "U8", &[5], 5)];
        let mut text = header_text(&rows).into_bytes();
        for (at, byte, kind) in damage {
            let at = at.index(text.len());
            match kind {
                0 => text[at] = byte,
                1 => text.insert(at, byte),
                _ => { text.remove(at); }
            }
        }
        let mut file = (text.len() as u64).to_le_bytes().to_vec();
        file.extend(text);
        file.extend([0; 27]);
        if let Ok(header) = parse(&file) {
            check_sound(&header, file.len() as u64)?;
        }
    }

    #[test]
    fn any_numbers_are_sound_or_refused(
        shape in proptest::collection::vec(prop_oneof![0u64..5, any::<u64>()], 0..4),
        begin in prop_oneof![0u64..20, any::<u64>()],
        end in prop_oneof![0u64..20, any::<u64>()],
    ) {
        let file = entry("F16", &format!("{shape:?}"), &format!("[{begin},{end}]"), 8);
        if let Ok(header) = parse(&file) {
            check_sound(&header, file.len() as u64)?;
        }
    }
}
