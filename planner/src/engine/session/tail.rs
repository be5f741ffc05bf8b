//! The last lines that the executor wrote, for the message that tells of its death.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::ChildStderr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Lines that are kept.
const LINES_MAX: usize = 12;

/// Bytes of one line that are kept.
const LINE_BYTES_MAX: u64 = 4096;

/// How long the rest of what a dead process wrote may take to be read.
const REST_GRACE: Duration = Duration::from_millis(200);

/// The last lines so far.
#[derive(Debug)]
pub struct Tail {
    lines: Lines,
    /// Disconnected when all has been read.
    ended: Receiver<()>,
}

type Lines = Arc<Mutex<VecDeque<String>>>;

impl Tail {
    /// Reads until the end, on a thread; also shows each line where it is `shown`.
    pub fn follow(stderr: ChildStderr, shown: bool) -> std::io::Result<Tail> {
        let lines = Lines::default();
        let (end, ended) = channel();
        let read_lines = Arc::clone(&lines);
        let body = move || {
            read(BufReader::new(stderr), &read_lines, shown);
            drop(end);
        };
        std::thread::Builder::new().name("executor-stderr".to_owned()).spawn(body)?;
        Ok(Tail { lines, ended })
    }

    /// The last lines of a process that has ended: waits a moment for what is not read yet.
    pub fn lines(&self) -> Vec<String> {
        // Nothing is ever sent: this ends with the reading, or with the grace.
        let _ = self.ended.recv_timeout(REST_GRACE);
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

fn read(mut source: impl BufRead, lines: &Lines, shown: bool) {
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line beyond the cap is kept in pieces: memory stays bounded whatever is written.
        match source.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        if shown {
            eprintln!("{text}");
        }
        let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(text);
    }
}
