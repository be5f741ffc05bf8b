//! The file of weights that is written, read and computed with. It has a name only until it has been created.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use protocol::{Bytes, Failure, StorageType};

use crate::backend::CancelFlag;
use crate::failure::{bad_request, internal};
use crate::weights::{Dtype, WeightFiles};

/// Tensors that are only read, of as many bytes as a matrix of a large DiT has.
pub const BULK_TENSORS: usize = 6;

/// Their shape, in bf16: 16 MiB.
pub const BULK_SHAPE: [usize; 2] = [2048, 4096];

/// Bytes that are written between two looks at the cancel flag.
const PART_BYTES: usize = 1 << 20;

/// Bytes after which the system is made to write what it has, so that no later wait for it takes long.
const SYNC_BYTES: usize = 16 << 20;

/// Names that are tried before it is said that there is no free one.
const NAMES_MAX: u32 = 100;

/// A safetensors file without a name.
pub struct WeightFile {
    file: File,
}

/// The name of a tensor that is only read.
pub fn bulk_name(index: usize) -> String {
    format!("bulk.{index}")
}

impl WeightFile {
    /// Writes a file of all weights in a directory, and waits until the storage has it.
    pub fn write(directory: &Path, cancel: &CancelFlag) -> Result<WeightFile, Failure> {
        let mut file = nameless(directory).map_err(|cause| unwritable(directory, &cause))?;
        let (header, data_bytes) = header();
        let head = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        file.write_all(&head).map_err(|cause| unwritable(directory, &cause))?;
        let part = part();
        let mut written = 0;
        while written < data_bytes {
            cancel.check()?;
            let bytes = PART_BYTES.min(data_bytes - written);
            let mut wrote = file.write_all(&part[..bytes]);
            written += bytes;
            if written.is_multiple_of(SYNC_BYTES) || written == data_bytes {
                wrote = wrote.and_then(|()| file.sync_data());
            }
            wrote.map_err(|cause| unwritable(directory, &cause))?;
        }
        Ok(WeightFile { file })
    }

    /// Maps it anew.
    pub fn open(&self) -> Result<WeightFiles, Failure> {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        WeightFiles::open_file(&path).map_err(internal)
    }
}

fn unwritable(directory: &Path, cause: &io::Error) -> Failure {
    bad_request(format!(
        "cannot write a file in {} to measure its storage: {cause}; hint: name a directory that can be written to",
        directory.display()
    ))
}

/// Creates a file, and takes its name away before anything is in it.
fn nameless(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    for number in 0..NAMES_MAX {
        let path = directory.join(format!(".berth-calibration-{}-{number}", std::process::id()));
        match options.open(&path) {
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
            Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(cause),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

/// The header's text, and how many bytes of tensors follow it.
fn header() -> (String, usize) {
    let mut tensors = super::work::weights();
    let bulk = (0..BULK_TENSORS).map(|n| (bulk_name(n), StorageType::BF16, BULK_SHAPE.to_vec()));
    tensors.extend(bulk);
    let mut end = 0;
    let entry = |(name, storage, shape): (String, StorageType, Vec<usize>)| {
        let begin = end;
        end += Bytes((shape.iter().product::<usize>() * storage.element_bytes()) as u64).as_usize();
        let dtype = Dtype::of_storage(storage);
        format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        )
    };
    let entries: Vec<String> = tensors.into_iter().map(entry).collect();
    (format!("{{{}}}", entries.join(",")), end)
}

/// What is repeated in the file: half precision numbers of magnitude 0.5 to 2, of either sign, in f16 and in bf16; and
/// so in f32. Numbers that are not normal would be computed with at another speed.
fn part() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = |_| {
        // Xorshift (Marsaglia, 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        0x3f00 | (state >> 40) as u16 & 0x80ff
    };
    (0..PART_BYTES / 2).map(next).flat_map(u16::to_le_bytes).collect()
}
