//! What people and programs are shown: tables, documents, progress.

pub mod document;
pub mod progress;
pub mod tables;

use std::io::{ErrorKind, Write, stdout};

/// Tells notices on standard error.
pub fn tell(notices: &[String]) {
    for notice in notices {
        eprintln!("berth: {notice}");
    }
}

/// Prints data on standard output. A reader that has had enough, as `head`, is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(stdout(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
