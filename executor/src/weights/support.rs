//! What the tests of several weight modules share: files made byte by byte, so that they can be
//! wrong.

#[path = "../../../tests/support/gguf.rs"]
pub mod gguf;

use std::fmt::Write;
use std::path::Path;

use protocol::StorageType;
use tempfile::TempDir;

use super::WeightFiles;

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

/// Such a file of these (name, dtype, shape, bytes), open; on the disk it is gone.
pub fn opened(tensors: &[(&str, &str, &[usize], usize)]) -> WeightFiles {
    let data_bytes = tensors.iter().map(|(.., bytes)| bytes).sum();
    let directory = tempfile::tempdir().expect("there is a place for it");
    let path = directory.path().join("made.safetensors");
    std::fs::write(&path, file_bytes(&header_text(tensors), data_bytes)).expect("it is writable");
    WeightFiles::open_file(&path).expect("it is whole")
}

/// File systems whose files are on a disk and in the page cache besides, as statfs(2) numbers them:
/// ext2 to ext4, and XFS. Others hold files in memory, or pass advice on to one of which nothing is
/// known here.
const CACHED_FILE_SYSTEMS: [i64; 2] = [0xef53, 0x5846_5342];

/// A directory on the disk of the test program, as the system's own place for such may be in
/// memory; `None` where that is on a file system whose page cache cannot be tested.
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

/// Stored bytes and what they stand for, as tensors `T/bytes`, `T/dequant`, `T/rand_bytes`,
/// `T/rand_dequant`.
const BLOCKS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/golden/quant_blocks.safetensors");

/// The type that the file calls `name`.
fn type_of(name: &str) -> StorageType {
    let is = |storage: &StorageType| storage.name().to_uppercase() == name;
    StorageType::ALL.into_iter().find(is).unwrap_or_else(|| panic!("no type {name}"))
}

/// Every pair of the file: its key, its type, the stored bytes, the numbers.
pub fn quant_blocks() -> Vec<(String, StorageType, Vec<u8>, Vec<f32>)> {
    let files = WeightFiles::open_file(std::path::Path::new(BLOCKS)).unwrap();
    let stored = files.names().filter(|name| name.ends_with("bytes"));
    let pair = |key: &str| {
        let (name, kind) = key.split_once('/').unwrap();
        let info = files.tensor(&key.replace("bytes", "dequant")).unwrap();
        let values = files.require(info.name, info.shape).unwrap().view(&files).to_f32();
        let bytes = files.bytes(&files.tensor(key).unwrap()).to_vec();
        (format!("{name} {kind}"), type_of(name), bytes, values)
    };
    stored.map(pair).collect()
}

/// Asserts equality to the bit; one that is no number is as good as another.
#[track_caller]
pub fn assert_same(found: &[f32], expected: &[f32], name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{name}: element {at} is {found}, not {expected}");
    }
}

/// All inputs that are kept for a fuzz target.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = std::fs::read_dir(folder).expect("the corpus is there");
    files.map(|file| std::fs::read(file.expect("an entry").path()).expect("a file")).collect()
}
