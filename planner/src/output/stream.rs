//! Outputs that are no files: written through, never replaced.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::OutputError;
use super::links::of_descriptor;

/// The number of standard output.
pub const STDOUT: i32 = 1;

/// How long a FIFO may be without a reader: time to start one by hand in another window.
const READER_WAIT: Duration = Duration::from_secs(30);

/// A place to write through, opened or not yet.
#[derive(Debug)]
pub enum Stream {
    /// A pipe with a name.
    Fifo(PathBuf, Option<File>),
    /// A character device, as a terminal.
    Character(PathBuf, Option<File>),
    /// A descriptor of this process, by its number.
    Descriptor(i32),
}

impl Stream {
    /// Opens it, and says whether it is a terminal. `flag` and `shown` are how it was named.
    pub fn open(&mut self, flag: &'static str, shown: &str) -> Result<bool, OutputError> {
        let fail = |cause| OutputError::Unwritable { flag, path: shown.to_owned(), cause };
        match self {
            Stream::Fifo(path, file) => {
                let opened = open_fifo(path, shown, READER_WAIT, fail)?;
                *file = Some(opened);
                Ok(false)
            }
            Stream::Character(path, file) => {
                let opened = open_at_once(path).map_err(fail)?;
                if !opened.metadata().map_err(fail)?.file_type().is_char_device() {
                    return Err(fail(io::ErrorKind::InvalidInput.into()));
                }
                let is_terminal = opened.is_terminal();
                *file = Some(opened);
                Ok(is_terminal)
            }
            Stream::Descriptor(number) => {
                let not_open = || OutputError::Descriptor { path: shown.into(), number: *number };
                if *number == STDOUT {
                    return checked(&io::stdout()).ok_or_else(not_open);
                }
                let file = duplicate(*number).map_err(|_| not_open())?;
                checked(&file).ok_or_else(not_open)
            }
        }
    }

    /// Writes all of a content.
    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        match self {
            Stream::Fifo(_, file) | Stream::Character(_, file) => {
                file.as_ref().expect("outputs are made ready first").write_all(content)
            }
            Stream::Descriptor(STDOUT) => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(content)?;
                stdout.flush()
            }
            Stream::Descriptor(number) => duplicate(*number)?.write_all(content),
        }
    }
}

/// Whether a descriptor is a terminal; `None` where it is not open for writing.
fn checked<T: AsFd + IsTerminal>(stream: &T) -> Option<bool> {
    let mode = fcntl_getfl(stream).ok()? & OFlags::RWMODE;
    (mode != OFlags::RDONLY).then(|| stream.is_terminal())
}

/// A second descriptor of what this process has open under a number: its place in a file is one
/// with the first's.
fn duplicate(number: i32) -> io::Result<File> {
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    match own.and_then(|own| pidfd_getfd(own, number, PidfdGetfdFlags::empty())) {
        Ok(descriptor) => Ok(descriptor.into()),
        Err(rustix::io::Errno::BADF) => Err(rustix::io::Errno::BADF.into()),
        // Kernels before 5.6 and some containers: opened anew, and behind what is written already.
        Err(_) => OpenOptions::new().append(true).open(of_descriptor(number)),
    }
}

/// Opens without waiting, and without taking a terminal over; later writes wait.
fn open_at_once(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Opens a FIFO when it has a reader.
fn open_fifo(
    path: &Path,
    shown: &str,
    wait: Duration,
    fail: impl Fn(io::Error) -> OutputError,
) -> Result<File, OutputError> {
    let opened = match open_at_once(path) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            let seconds = wait.as_secs();
            eprintln!("berth: waiting for a reader of {shown}, at most {seconds} s");
            let (sender, receiver) = mpsc::channel();
            let path = path.to_owned();
            // Only a thread can wait for an open with an end. It stays where no reader comes: the
            // process ends.
            std::thread::spawn(move || sender.send(OpenOptions::new().write(true).open(path)));
            let opened = receiver.recv_timeout(wait);
            opened.map_err(|_| OutputError::NoReader { path: shown.to_owned(), seconds })?
        }
        opened => opened,
    };
    let file = opened.map_err(&fail)?;
    match file.metadata().map_err(&fail)?.file_type().is_fifo() {
        true => Ok(file),
        false => Err(fail(io::ErrorKind::InvalidInput.into())),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    #[test]
    fn a_fifo_without_a_reader_is_not_waited_for_for_ever() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pipe.png");
        mkfifoat(CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        let fail = |cause| OutputError::Unwritable { flag: "--output", path: String::new(), cause };
        let error = open_fifo(&path, "pipe.png", Duration::from_millis(20), fail).unwrap_err();
        assert!(matches!(error, OutputError::NoReader { .. }), "{error}");
        // The thread that waits is let go.
        let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let file = open_fifo(&path, "pipe.png", Duration::from_secs(60), fail).unwrap();
        let mut writer: &File = &file;
        writer.write_all(b"x").unwrap();
        drop(reader);
    }

    #[test]
    fn a_duplicate_goes_on_where_the_first_one_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one ").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(checked(&duplicate(number).unwrap()), Some(false));
        Stream::Descriptor(number).write(b"two ").unwrap();
        file.write_all(b"three").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"one two three");
        assert_eq!(checked(&File::open(&path).unwrap()), None);
        assert!(duplicate(99_999).is_err());
    }
}
