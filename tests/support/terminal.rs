//! Programs that ask the person at a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, ExitStatus, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// Runs a program on a terminal of its own, and answers once it asks; how it ended, and what it
/// wrote there.
pub fn on_a_terminal(mut program: Command, question: &str, answer: &str) -> (ExitStatus, String) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&controller).expect("a terminal");
    unlockpt(&controller).expect("a terminal");
    let name = ptsname(&controller, Vec::new()).expect("a name").into_string().expect("a path");
    let mut controller = File::from(controller);
    let open = || File::options().read(true).write(true).open(&name).expect("the other end");
    let mut child =
        program.stdin(open()).stdout(Stdio::null()).stderr(open()).spawn().expect("it starts");
    // What holds the other end open.
    drop(program);
    let (mut said, mut buffer, mut is_answered) = (String::new(), [0; 4096], false);
    // Reading fails when the last process has closed the other end.
    while let Ok(count) = controller.read(&mut buffer) {
        if count == 0 {
            break;
        }
        said.push_str(&String::from_utf8_lossy(&buffer[..count]));
        if !is_answered && !question.is_empty() && said.contains(question) {
            controller.write_all(answer.as_bytes()).expect("an answer");
            is_answered = true;
        }
    }
    (child.wait().expect("it ends"), said)
}
