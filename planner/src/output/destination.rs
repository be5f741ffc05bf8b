//! One output: what stands at its path, and how it is written.

use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags};

use super::asked::{AskedOutput, unwritable};
use super::links::{self, LinkTarget};
use super::pending::{Existing, FILE_MODE, Pending};
use super::stream::{STDOUT, Stream};
use super::{OutputError, folder_of};
use crate::temporary;

/// What an output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// Text, which may be shown.
    Text,
    /// Bytes that are never shown on a terminal.
    Picture,
    /// A file of safetensors, likewise.
    Tensors,
}

impl OutputKind {
    /// In a sentence, where it is not text.
    fn named(self) -> &'static str {
        match self {
            OutputKind::Text => "this",
            OutputKind::Picture => "a picture",
            OutputKind::Tensors => "a file of tensors",
        }
    }
}

/// What tells places apart, whatever they are called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Identity {
    /// By device and inode.
    There(u64, u64),
    /// A name in a folder.
    New(u64, u64, OsString),
}

/// Where one output goes.
#[derive(Debug)]
pub struct Destination {
    asked: AskedOutput,
    kind: OutputKind,
    existing: Existing,
    way: Route,
}

#[derive(Debug)]
enum Route {
    /// By a file at this path, behind all links.
    File(PathBuf),
    /// Through what stands there.
    Stream(Stream),
}

impl Destination {
    /// The place that an argument names; `-` is standard output. Nothing is opened or made.
    ///
    /// # Errors
    /// It is a socket, a block device or a directory, or cannot be looked at.
    pub fn of(
        flag: &'static str,
        given: &Path,
        kind: OutputKind,
        existing: Existing,
    ) -> Result<Destination, OutputError> {
        let asked = AskedOutput { flag, given: given.to_owned() };
        let (fail, refuse) = (|cause| asked.unwritable(cause), |what| asked.refused(what));
        let way = if given == Path::new("-") {
            Route::Stream(Stream::Descriptor(STDOUT))
        } else if given.as_os_str().as_bytes().ends_with(b"/") || given.file_name().is_none() {
            return Err(refuse("a directory"));
        } else {
            let leads = links::follow(given).map_err(|error| match error.raw_os_error() {
                Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
                    refuse("a link that leads back to itself")
                }
                _ => fail(error),
            });
            match leads? {
                LinkTarget::ToDescriptor(number) => Route::Stream(Stream::Descriptor(number)),
                LinkTarget::To(path) => match fs::symlink_metadata(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Route::File(path),
                    there => match there.map_err(fail)?.file_type() {
                        kind if kind.is_file() => Route::File(path),
                        kind if kind.is_fifo() => Route::Stream(Stream::Fifo(path, None)),
                        kind if kind.is_char_device() => {
                            Route::Stream(Stream::Character(path, None))
                        }
                        kind => return Err(refuse(unwritable(kind))),
                    },
                },
            }
        };
        Ok(Destination { asked, kind, existing, way })
    }

    /// The argument that asked for it.
    pub fn flag(&self) -> &'static str {
        self.asked.flag
    }

    /// The name of the file as it was given; `None` where it is no file.
    pub fn file(&self) -> Option<&Path> {
        matches!(self.way, Route::File(_)).then_some(&*self.asked.given)
    }

    /// Writes a file whole, in place of what is there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn replace(&self, content: &[u8]) -> Result<(), OutputError> {
        match self.beside(content)? {
            Some(file) => file.finish().map(drop),
            None => self.pass(content),
        }
    }

    /// Its name, for people and programs.
    pub fn shown(&self) -> String {
        self.asked.shown()
    }

    /// Whether it is no file: one stream of bytes, that takes one output.
    pub fn is_stream(&self) -> bool {
        matches!(self.way, Route::Stream(_))
    }

    /// Whether it is standard output, by whatever name.
    pub fn is_stdout(&self) -> bool {
        matches!(self.way, Route::Stream(Stream::Descriptor(STDOUT)))
    }

    /// What tells it apart from other places; `None` where two outputs do no harm, as on a
    /// character device, and where nothing is.
    pub(super) fn identity(&self) -> Result<Option<Identity>, OutputError> {
        let there = |metadata: Metadata| Identity::There(metadata.dev(), metadata.ino());
        match &self.way {
            Route::Stream(Stream::Character(..)) => Ok(None),
            Route::Stream(Stream::Fifo(path, _)) => Ok(fs::metadata(path).ok().map(there)),
            Route::Stream(Stream::Descriptor(number)) => {
                let metadata = fs::metadata(links::of_descriptor(*number)).ok();
                let metadata = metadata.filter(|m| !m.file_type().is_char_device());
                Ok(metadata.map(there))
            }
            Route::File(path) => match fs::metadata(path) {
                Ok(metadata) => Ok(Some(there(metadata))),
                Err(_) => {
                    let folder =
                        fs::metadata(folder_of(path)).map_err(|e| self.asked.unwritable(e))?;
                    let name = path.file_name().unwrap_or_default().to_owned();
                    Ok(Some(Identity::New(folder.dev(), folder.ino(), name)))
                }
            },
        }
    }

    /// An error now if it could not be written later. Removes what ended processes left beside it.
    pub(super) fn check(&self) -> Result<(), OutputError> {
        let path = match &self.way {
            Route::File(path) => path,
            Route::Stream(Stream::Descriptor(number)) => return self.check_descriptor(*number),
            Route::Stream(_) => return Ok(()),
        };
        if fs::symlink_metadata(path).is_ok() {
            if self.existing == Existing::Refused {
                return Err(OutputError::Exists { path: self.shown() });
            }
            // Renaming over a file asks nobody whether it may be written.
            rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)
                .map_err(|errno| self.asked.unwritable(errno.into()))?;
            if is_mounted(path) {
                return Err(self.asked.refused("mounted by itself, and cannot be replaced"));
            }
        }
        let folder = folder_of(path);
        temporary::sweep(&folder);
        // Of the error only its kind: its text names the temporary file.
        let made = temporary::file_in(&folder, FILE_MODE);
        made.map(drop).map_err(|error| self.asked.unwritable(error.kind().into()))
    }

    fn check_descriptor(&self, number: i32) -> Result<(), OutputError> {
        let not_open = || OutputError::Descriptor { path: self.shown(), number };
        let metadata = fs::metadata(links::of_descriptor(number)).map_err(|_| not_open())?;
        if metadata.is_dir() || metadata.file_type().is_block_device() {
            return Err(self.asked.refused(unwritable(metadata.file_type())));
        }
        Ok(())
    }

    /// Opens a stream, and waits for the reader of a FIFO.
    pub(super) fn open(&mut self) -> Result<(), OutputError> {
        let (flag, path, kind) = (self.asked.flag, self.shown(), self.kind);
        let Route::Stream(stream) = &mut self.way else { return Ok(()) };
        let is_terminal = stream.open(flag, &path)?;
        match is_terminal && kind != OutputKind::Text {
            true => Err(OutputError::Terminal { flag, path, what: kind.named() }),
            false => Ok(()),
        }
    }

    /// Writes to a stream; nothing where it is a file.
    pub(super) fn pass(&self, content: &[u8]) -> Result<(), OutputError> {
        let Route::Stream(stream) = &self.way else { return Ok(()) };
        match stream.write(content) {
            // A reader of text that has had enough, as `head`, is no error.
            Err(error)
                if error.kind() == io::ErrorKind::BrokenPipe && self.kind == OutputKind::Text =>
            {
                Ok(())
            }
            written => written.map_err(|cause| self.asked.unwritable(cause)),
        }
    }

    /// Writes a file beside its place; `None` where it is no file.
    pub(super) fn beside(&self, content: &[u8]) -> Result<Option<Pending<'_>>, OutputError> {
        let Route::File(path) = &self.way else { return Ok(None) };
        Pending::write(&self.asked, path, &self.existing, content).map(Some)
    }
}

/// Whether something is mounted at this very path: a name that cannot be given to another file.
fn is_mounted(path: &Path) -> bool {
    let said = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::empty());
    said.is_ok_and(|said| said.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}
