//! Which program this is, for records of what it was found to do.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use crate::backend::cuda::shipped_kernels;

/// This program, as digits that are others where it is another one: a hash of its version, of its
/// kernels' PTX, and of where its file is, how long, and when it was written. Not of the whole
/// file: that would be read at every start.
pub fn program() -> String {
    let mut hash = Fnv::new();
    hash.add(env!("CARGO_PKG_VERSION").as_bytes());
    shipped_kernels().for_each(|file| hash.add(file));
    if let Ok(path) = std::env::current_exe() {
        hash.add(path.as_os_str().as_bytes());
        if let Ok(file) = path.metadata() {
            hash.add(&file.len().to_le_bytes());
            hash.add(&file.mtime().to_le_bytes());
            hash.add(&file.mtime_nsec().to_le_bytes());
        }
    }
    format!("{:016x}", hash.0)
}

/// The hash FNV-1a of 64 bits (draft-eastlake-fnv), by words: lengths of kernels are in megabytes.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        let mut add =
            |word: u64| self.0 = (self.0 ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(23);
        add(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            add(u64::from_le_bytes(word));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts_and_so_do_lengths() {
        let of = |parts: &[&[u8]]| {
            let mut hash = Fnv::new();
            parts.iter().for_each(|part| hash.add(part));
            hash.0
        };
        let long: Vec<u8> = (0..100).collect();
        let mut other = long.clone();
        other[97] ^= 1;
        assert_ne!(of(&[&long]), of(&[&other]));
        assert_ne!(of(&[b"ab", b"c"]), of(&[b"a", b"bc"]));
        assert_ne!(of(&[b"a"]), of(&[b"a\0"]));
        assert_eq!(program(), program());
    }
}
