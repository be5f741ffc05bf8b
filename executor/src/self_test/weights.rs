//! The weights of the self-test: a GGUF file in memory, mapped as a model's is.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use protocol::{Failure, StorageType};
use rustix::fs::MemfdFlags;

use super::cases::{BUCKETS, CHANNELS, FEATURES, HEADS, ODD_FEATURES, PRODUCT, TABLE_ROWS};
use crate::calibrate::file::{FileTensor, PART_BYTES, header, part};
use crate::failure::internal;
use crate::weights::WeightFiles;

/// Writes and maps it.
pub fn weights() -> Result<WeightFiles, Failure> {
    let memory = rustix::fs::memfd_create("berth-self-test", MemfdFlags::CLOEXEC);
    let mut file = File::from(memory.map_err(internal)?);
    let (header, data_bytes) = header(&tensors());
    file.write_all(&header).map_err(internal)?;
    let part = part();
    for begin in (0..data_bytes).step_by(PART_BYTES) {
        file.write_all(&part[..PART_BYTES.min(data_bytes - begin)]).map_err(internal)?;
    }
    // The mapping keeps the memory when the file is closed.
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    WeightFiles::open_file(&path).map_err(internal)
}

/// All of them: names, types and shapes. Each type that GGUF has multiplies.
fn tensors() -> Vec<FileTensor> {
    use StorageType::{BF16, F8E4M3, F8E5M2, F32};
    let [inner, out] = PRODUCT;
    let mut tensors: Vec<FileTensor> = Vec::new();
    let mut add = |name: &str, storage, shape: &[usize]| {
        tensors.push((name.to_owned(), storage, shape.to_vec()));
    };
    for storage in StorageType::ALL {
        if !matches!(storage, F8E4M3 | F8E5M2) {
            add(&format!("{storage}.weight"), storage, &[out, inner]);
            add(&format!("{storage}.bias"), BF16, &[out]);
        }
    }
    for (prefix, shape) in [
        ("second", &[out, out][..]),
        ("odd", &[out, ODD_FEATURES]),
        ("conv", &[CHANNELS, CHANNELS, 3, 3]),
        ("pixels", &[CHANNELS, CHANNELS, 1, 1]),
    ] {
        add(&format!("{prefix}.weight"), BF16, shape);
        add(&format!("{prefix}.bias"), BF16, &shape[..1]);
    }
    for (prefix, features) in [("norm", FEATURES), ("head", FEATURES / 2), ("image", CHANNELS)] {
        add(&format!("{prefix}.weight"), F32, &[features]);
        add(&format!("{prefix}.bias"), F32, &[features]);
    }
    add("table", BF16, &[TABLE_ROWS, FEATURES]);
    add("buckets", F32, &[BUCKETS, HEADS]);
    add("padding", BF16, &[1, FEATURES]);
    tensors
}
