//! What the tests of several weight modules share: files made byte by byte, so that they can be
//! wrong.

use std::fmt::Write;
use std::path::Path;

use tempfile::TempDir;

/// A safetensors file with this header text and `data_bytes` bytes of data, 0, 1, 2, … 255, 0, ….
pub fn file_bytes(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend((0..data_bytes).map(|byte| byte as u8));
    file
}

/// A header of these (name, dtype, shape, bytes), laid out one after the other.
pub fn header_text(tensors: &[(&str, &str, &[usize], usize)]) -> String {
    let mut text = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut begin = 0;
    for (name, dtype, shape, bytes) in tensors {
        let end = begin + bytes;
        write!(
            text,
            r#","{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        )
        .expect("a String takes what is written");
        begin = end;
    }
    text.push('}');
    text
}

/// A directory on the disk of the test program: the system's own place for such may be in memory,
/// where files have no page cache beside them.
pub fn directory_on_disk() -> TempDir {
    let program = std::env::current_exe().expect("a running program has a path");
    tempfile::tempdir_in(program.parent().expect("it is in a directory")).expect("it is writable")
}

/// Writes a file and waits for the disk: only what is there too can leave the page cache.
pub fn write_through(path: &Path, content: &[u8]) {
    std::fs::write(path, content).expect("the file can be written");
    std::fs::File::open(path).and_then(|file| file.sync_all()).expect("it reaches the disk");
}
