//! Any bytes as the header of a GGUF file: refused, or read into tensors that lie apart within the
//! file.

#![no_main]

use executor::weights::gguf::{Gguf, HEADER_BYTES_MAX, GgufValue};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let file_bytes = data.len() as u64;
    let Ok(read) = Gguf::read(data, file_bytes).expect("memory can be read") else { return };
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for entry in read.tensors.values() {
        let end = entry.offset_bytes.checked_add(entry.size_bytes).expect("an end");
        assert!(end <= file_bytes);
        ranges.push((entry.offset_bytes, end));
        if let (Some(storage), Some((elements, _))) = (entry.dtype.storage(), entry.dtype.block()) {
            let all = entry.shape.as_slice().iter().product::<usize>() as u64;
            assert!(all.is_multiple_of(elements));
            assert_eq!(storage.bytes(all).0, entry.size_bytes);
        }
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    for (_, value) in read.keys.iter() {
        if let GgufValue::Array(array) = value {
            assert!(array.offset_bytes + array.size_bytes <= file_bytes.min(HEADER_BYTES_MAX));
        }
        assert!(value.to_string().len() < 1024);
    }
    // What was said to be longer than it is ends in an answer too.
    let _ = Gguf::read(data, u64::MAX).expect("memory can be read");
});
