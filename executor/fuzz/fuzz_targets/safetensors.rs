//! Any bytes as the header of a safetensors file: refused, or read into tensors that cover its
//! data.

#![no_main]

use executor::weights::header::Header;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let file_bytes = data.len() as u64;
    let parsed = Header::parse(data, file_bytes);
    let read = Header::read(data, file_bytes).expect("memory can be read");
    let Ok(header) = parsed else {
        assert!(read.is_err());
        return;
    };
    assert!(read.is_ok_and(|read| read == header));
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for entry in header.tensors.values() {
        ranges.push((entry.offset_bytes, entry.offset_bytes + entry.size_bytes));
        if let Some(storage) = entry.dtype.storage() {
            let all = entry.shape.as_slice().iter().product::<usize>() as u64;
            assert_eq!(storage.bytes(all).0, entry.size_bytes);
        }
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0));
    assert!(ranges.last().is_none_or(|last| last.1 == file_bytes));
    // A file that is longer than what could be read of it ends in an answer too.
    let _ = Header::parse(data, u64::MAX);
});
