//! The last lines that the executor wrote, for the message that tells of its death.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, PoisonError};

/// Lines that are kept.
const LINES_MAX: usize = 12;

/// Bytes of one line that are kept.
const LINE_BYTES_MAX: u64 = 4096;

/// The last lines so far.
#[derive(Debug, Clone, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    /// Reads until the end, on a thread; also shows each line where `verbose`.
    pub fn follow(stderr: ChildStderr, verbose: bool) -> std::io::Result<Tail> {
        let tail = Tail::default();
        let lines = tail.clone();
        let body = move || lines.read(BufReader::new(stderr), verbose);
        std::thread::Builder::new().name("executor-stderr".to_owned()).spawn(body)?;
        Ok(tail)
    }

    /// The lines now.
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn read(&self, mut source: impl BufRead, verbose: bool) {
        let mut line = Vec::new();
        loop {
            line.clear();
            // A line beyond the cap is kept in pieces: memory stays bounded whatever is written.
            match source.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if verbose {
                eprintln!("{text}");
            }
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(text);
        }
    }
}
