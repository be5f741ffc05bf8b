//! Reads numbers and texts one after the other, never beyond the file nor the longest header.

use std::io::{self, BufReader, Read};

use super::{GgufError, HEADER_BYTES_MAX};
use crate::weights::excerpt::excerpt;

/// Why reading ended early.
pub(super) enum GgufStop {
    /// The system could not read on.
    Io(io::Error),
    /// The file is not as it must be.
    Fault(GgufError),
}

impl From<GgufError> for GgufStop {
    fn from(fault: GgufError) -> GgufStop {
        GgufStop::Fault(fault)
    }
}

/// A file, and how far it was read.
pub(super) struct GgufReader<R> {
    file: BufReader<R>,
    at: u64,
    file_bytes: u64,
}

impl<R: Read> GgufReader<R> {
    /// A file of `file_bytes` bytes from its start.
    pub(super) fn new(file: R, file_bytes: u64) -> GgufReader<R> {
        GgufReader { file: BufReader::new(file), at: 0, file_bytes }
    }

    /// The first byte that was not read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Refuses `bytes` more of `what` if they are not there, or more than a header may have.
    pub(super) fn require(&self, bytes: u64, what: &str) -> Result<(), GgufError> {
        match self.at.checked_add(bytes) {
            Some(end) if end <= self.file_bytes.min(HEADER_BYTES_MAX) => Ok(()),
            Some(end) if end <= self.file_bytes => Err(GgufError::HeaderTooLong),
            _ => Err(GgufError::Truncated {
                what: what.to_owned(),
                at_byte: self.at,
                bytes,
                file_bytes: self.file_bytes,
            }),
        }
    }

    /// The next bytes, which are part of `what`.
    pub(super) fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufStop> {
        self.require(N as u64, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufStop> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufStop> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// The next `bytes` bytes as text; they are no more than the caller's limit.
    pub(super) fn text(&mut self, bytes: u64, what: &str) -> Result<String, GgufStop> {
        self.require(bytes, what)?;
        let mut text = vec![0; bytes as usize];
        self.fill(&mut text, what)?;
        String::from_utf8(text).map_err(|fault| {
            let start = excerpt(&String::from_utf8_lossy(fault.as_bytes()));
            GgufError::NotUtf8 { what: what.to_owned(), start }.into()
        })
    }

    /// Passes over bytes of `what`.
    pub(super) fn skip(&mut self, bytes: u64, what: &str) -> Result<(), GgufStop> {
        self.require(bytes, what)?;
        let passed = io::copy(&mut self.file.by_ref().take(bytes), &mut io::sink());
        match passed.map_err(GgufStop::Io)? {
            passed if passed == bytes => {
                self.at += bytes;
                Ok(())
            }
            passed => Err(self.ended(passed, bytes, what)),
        }
    }

    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), GgufStop> {
        match self.file.read_exact(bytes) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Ok(())
            }
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.ended(0, bytes.len() as u64, what))
            }
            Err(cause) => Err(GgufStop::Io(cause)),
        }
    }

    /// The file turned out to be shorter than it was said to be.
    fn ended(&self, passed: u64, bytes: u64, what: &str) -> GgufStop {
        let (at_byte, file_bytes) = (self.at, self.at + passed);
        GgufError::Truncated { what: what.to_owned(), at_byte, bytes, file_bytes }.into()
    }
}
