//! The file of weights that is written, read and computed with. It has a name only until it has
//! been created.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use protocol::{Failure, StorageType};

use crate::backend::CancelFlag;
use crate::failure::{bad_request, internal};
use crate::weights::WeightFiles;
use crate::weights::dtype::Dtype;

/// Tensors that are only read, of as many bytes as a matrix of a large DiT has.
pub const BULK_TENSORS: usize = 6;

/// Their shape, in bf16: 16 MiB.
pub const BULK_SHAPE: [usize; 2] = [2048, 4096];

/// How the file begins: GGUF, as safetensors has no quantised types (`docs/gguf.md` of ggml).
const MAGIC: [u8; 4] = *b"GGUF";

/// The version of GGUF that is written.
const VERSION: u32 = 3;

/// Where tensors begin, in bytes: a multiple of this (`GGUF_DEFAULT_ALIGNMENT` of `gguf.h`).
const ALIGNMENT: usize = 32;

/// Bytes that are written between two looks at the cancel flag.
pub const PART_BYTES: usize = 1 << 20;

/// Bytes after which the system is made to write what it has, so that no later wait for it takes
/// long.
const SYNC_BYTES: usize = 16 << 20;

/// Names that are tried before it is said that there is no free one.
const NAMES_MAX: u32 = 100;

/// A tensor of a file: its name, its type, and its shape.
pub type FileTensor = (String, StorageType, Vec<usize>);

/// A GGUF file without a name.
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
        let mut tensors = super::work::weights();
        let bulk = |n| (bulk_name(n), StorageType::BF16, BULK_SHAPE.to_vec());
        tensors.extend((0..BULK_TENSORS).map(bulk));
        let (header, data_bytes) = header(&tensors);
        file.write_all(&header).map_err(|cause| unwritable(directory, &cause))?;
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

/// The header of some tensors, and how many bytes of these follow it.
pub fn header(tensors: &[FileTensor]) -> (Vec<u8>, usize) {
    let mut header = MAGIC.to_vec();
    header.extend(VERSION.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend(0u64.to_le_bytes()); // keys
    let mut end = 0;
    for (name, storage, shape) in tensors {
        header.extend((name.len() as u64).to_le_bytes());
        header.extend(name.as_bytes());
        header.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|&side| header.extend((side as u64).to_le_bytes()));
        header.extend(type_number(*storage).to_le_bytes());
        header.extend((end as u64).to_le_bytes());
        let bytes = storage.bytes(shape.iter().product::<usize>() as u64).as_usize();
        end += bytes.next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    (header, end)
}

/// The number of a type (`enum ggml_type` of `ggml.h`).
///
/// # Panics
/// If GGUF does not have it.
fn type_number(storage: StorageType) -> u32 {
    match Dtype::of_storage(storage) {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::BF16 => 30,
        Dtype::Ggml(of) => of.number(),
        other => panic!("GGUF has no {other}"),
    }
}

/// What is repeated in the file: half precision numbers of magnitude 0.5 to 2, of either sign, in
/// f16 and in bf16; and so in f32, and so are the scales of blocks. Numbers that are not normal
/// would be computed with at another speed.
pub fn part() -> Vec<u8> {
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
