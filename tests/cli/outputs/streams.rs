//! Standard output, pipes, descriptors and terminals: written through, and still there afterwards.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{GENERATE, JPEG, PNG, SEED, generated, made};
use crate::support::{Ended, Home, golden};

/// A FIFO in a home.
fn fifo(home: &Home, name: &str) {
    mkfifoat(CWD, home.path(name), Mode::from_raw_mode(0o600)).unwrap();
}

/// A terminal of the test's own: what is written to the file of this name comes out here.
fn terminal() -> (File, String) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
    (File::from(controller), name)
}

fn start(home: &Home, output: &[&str]) -> Command {
    home.berth(&[&GENERATE[..], output].concat())
}

#[test]
fn a_picture_goes_to_standard_output() {
    let home = Home::new();
    generated(&home, &[&["file.png"][..], &SEED].concat());
    let file = fs::read(home.path("file.png")).unwrap();
    for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let output = start(&home, &[&[name][..], &SEED].concat()).output().unwrap();
        assert_eq!(output.stdout, file, "{name}");
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(": 32x32, 1 steps in "), "{name}: {told}");
    }
    assert_eq!(made(&home), ["file.png"]);
}

#[test]
fn a_descriptor_is_written_where_it_is() {
    let home = Home::new();
    let log = home.path("log");
    fs::write(&log, "before ").unwrap();
    let appended = OpenOptions::new().append(true).open(&log).unwrap();
    let status = start(&home, &["/dev/stdout"]).stdout(appended).stderr(Stdio::null()).status();
    assert!(status.unwrap().success());
    assert!(fs::read(&log).unwrap().starts_with(&[b"before ", PNG].concat()));
    // One of another number, which a shell opens.
    let script = "exec 7>>log; \"$0\" \"$@\" --output /dev/fd/7";
    let mut shell = home.berth(&[]);
    let berth = shell.get_program().to_owned();
    let environment: Vec<_> = shell
        .get_envs()
        .map(|(key, value)| (key.to_owned(), value.map(|v| v.to_owned())))
        .collect();
    shell = Command::new("sh");
    shell.args(["-c", script]).arg(berth).args(&GENERATE[..9]).current_dir(home.path(""));
    for (key, value) in environment {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    let length = fs::metadata(&log).unwrap().len();
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let log = fs::read(&log).unwrap();
    assert!(log.starts_with(b"before ") && log[length as usize..].starts_with(PNG));
}

#[test]
fn other_commands_write_to_standard_output_too() {
    let home = Home::new();
    let ended = home.run(&["plan", "--dry-run", "--output", "-"]);
    assert!(ended.stdout.starts_with("schema = "), "{}", ended.stdout);
    assert!(ended.stderr.contains("predicted"), "the table is beside it: {}", ended.stderr);
    let ended = home.run(&["devices", "--profile", "--output", "-"]);
    assert!(ended.stdout.contains("[host]"), "{}", ended.stdout);
    let tune = ["tune", "--points", "2", "--host", "virtual-2x2g", "--plot", "-"];
    let ended = home.run(&tune);
    assert!(ended.stdout.starts_with("<svg") && ended.stdout.trim_end().ends_with("</svg>"));
    assert!(!ended.stderr.is_empty(), "the table is beside it");
}

#[test]
fn a_fifo_gets_the_bytes_and_stays() {
    let home = Home::new();
    for (name, begins) in [("pipe", PNG), ("pipe.jpg", JPEG)] {
        fifo(&home, name);
        let path = home.path(name);
        let reader = std::thread::spawn(move || fs::read(path).unwrap());
        generated(&home, &[name]);
        assert!(reader.join().unwrap().starts_with(begins), "{name}");
        assert!(fs::metadata(home.path(name)).unwrap().file_type().is_fifo(), "{name} stays");
    }
}

/// Waits until a process has told this on standard error.
fn told(child: &mut Child, text: &str) -> String {
    let mut stderr = child.stderr.take().unwrap();
    let mut all = Vec::new();
    let mut buffer = [0; 256];
    while !String::from_utf8_lossy(&all).contains(text) {
        let length = stderr.read(&mut buffer).unwrap();
        assert!(length > 0, "it ended without: {text}; {}", String::from_utf8_lossy(&all));
        all.extend(&buffer[..length]);
    }
    child.stderr = Some(stderr);
    String::from_utf8(all).unwrap()
}

#[test]
fn waiting_for_a_reader_is_told_and_can_be_interrupted() {
    let home = Home::new();
    fifo(&home, "pipe.png");
    let mut child =
        start(&home, &["pipe.png"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let line = told(&mut child, "\n");
    assert_eq!(line, "berth: waiting for a reader of pipe.png, at most 30 s\n");
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(fs::metadata(home.path("pipe.png")).unwrap().file_type().is_fifo());
}

#[test]
fn a_reader_that_comes_late_gets_the_picture() {
    let home = Home::new();
    fifo(&home, "pipe.png");
    let mut child =
        start(&home, &["pipe.png"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    told(&mut child, "waiting for a reader");
    let read = fs::read(home.path("pipe.png")).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(read.starts_with(PNG));
}

#[test]
fn a_reader_that_goes_away_is_an_error() {
    let home = Home::new();
    fifo(&home, "pipe.png");
    let mut child =
        start(&home, &["pipe.png"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    told(&mut child, "waiting for a reader");
    drop(File::open(home.path("pipe.png")).unwrap());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("cannot write pipe.png: Broken pipe"), "{told}");
}

#[test]
fn a_terminal_gets_text_but_no_picture() {
    let home = Home::new();
    let (mut controller, name) = terminal();
    let ended = home.run(&["plan", "--dry-run", "--output", &name]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let mut text = [0; 9];
    controller.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"schema = ");
    assert!(fs::metadata(&name).unwrap().file_type().is_char_device(), "it stays a device");

    for (message, output) in [
        ("outputs-terminal", &[name.as_str()][..]),
        ("outputs-terminal-tensors", &["x.png", "--dump-tensors", &name]),
    ] {
        let arguments = [&GENERATE[..], output].concat();
        let ended = home.run(&arguments);
        golden::said(message, &home, &arguments, &ended, &[(&name, "/dev/pts/N")]);
    }
    let stdout = OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let ended = Ended::of(start(&home, &["-"]).stdout(stdout).output().unwrap());
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("standard output is a terminal, and a picture is not text"));
    assert_eq!(made(&home), [""; 0]);
}
