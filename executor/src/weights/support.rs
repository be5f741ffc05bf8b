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

/// File systems whose files are on a disk and in the page cache besides, as statfs(2) numbers them: ext2 to
/// ext4, and XFS. Others hold files in memory, or pass advice on to one of which nothing is known here.
const CACHED_FILE_SYSTEMS: [i64; 2] = [0xef53, 0x5846_5342];

/// A directory on the disk of the test program, as the system's own place for such may be in memory; `None`
/// where that is on a file system whose page cache cannot be tested.
pub fn directory_on_disk() -> Option<TempDir> {
    let program = std::env::current_exe().expect("a running program has a path");
    let place = program.parent().expect("it is in a directory");
    let kind = rustix::fs::statfs(place).expect("it is on a file system").f_type;
    #[expect(clippy::useless_conversion, reason = "the type's width is the system's")]
    let kind = i64::from(kind);
    let tests = CACHED_FILE_SYSTEMS.contains(&kind);
    tests.then(|| tempfile::tempdir_in(place).expect("it is writable"))
}

/// Writes a file and waits for the disk: only what is there too can leave the page cache.
pub fn write_through(path: &Path, content: &[u8]) {
    std::fs::write(path, content).expect("the file can be written");
    std::fs::File::open(path).and_then(|file| file.sync_all()).expect("it reaches the disk");
}
