//! Progress off a terminal, and on one that a test holds the other end of.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use nix::pty::openpty;

use crate::first_use::{LASTING, slow_home};
use crate::support::Home;

/// What the numbers of a line are: `berth: denoise 5/12, 46 %, about 6 s left`.
fn percent(line: &str) -> u32 {
    let parts: Vec<&str> = line.split(", ").collect();
    let [place, percent, left] = parts.as_slice() else { panic!("{line:?} has three parts") };
    let phases = ["load", "condition", "denoise", "decode"];
    let place = place.strip_prefix("berth: ").expect("it is Berth's");
    let mut words = place.split(' ');
    assert!(phases.contains(&words.next().expect("a phase")), "{line:?}");
    if let Some(steps) = words.next() {
        let (step, of) = steps.split_once('/').expect("steps of all");
        let [step, of] = [step, of].map(|number| number.parse::<u32>().expect("a number"));
        assert!(step <= of && of > 1, "{line:?}");
    }
    let is_time =
        left.starts_with("about ") && [" s left", " min left"].iter().any(|e| left.ends_with(e));
    assert!(is_time, "{line:?}");
    percent.strip_suffix(" %").expect("a percentage").parse().expect("a number")
}

#[test]
fn off_a_terminal_each_tenth_of_a_job_that_lasts_is_a_line() {
    let home = slow_home();
    let ended = home.run(&[&["generate", "--steps", "8"][..], &LASTING].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let percents: Vec<u32> = ended.stderr.lines().map(percent).collect();
    let denoising = ended.stderr.lines().filter(|line| line.contains("denoise"));
    let steps = denoising.filter(|line| line.contains("/8, ")).count();
    assert!(steps >= 3 && percents.len() <= 10, "{}", ended.stderr);
    // Each is in another tenth than the one before it.
    let tenths: Vec<u32> = percents.iter().map(|percent| percent / 10).collect();
    assert!(tenths.is_sorted() && percents.iter().all(|&p| p < 100), "{}", ended.stderr);
    assert!(percents.windows(2).all(|pair| pair[1] > pair[0]), "{}", ended.stderr);
}

/// Runs `berth` with a terminal as its standard error; the answer is all that it wrote there.
fn on_a_terminal(home: &Home, arguments: &[&str]) -> String {
    let pty = openpty(None, None).expect("a pseudo-terminal");
    let mut child = home
        .berth(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::from(pty.slave))
        .env("TERM", "xterm")
        .spawn()
        .expect("berth starts");
    let mut shown = Vec::new();
    let mut terminal = File::from(pty.master);
    let mut buffer = [0; 4096];
    // The read fails once nobody has the other end any more.
    while let Ok(count) = terminal.read(&mut buffer) {
        shown.extend_from_slice(&buffer[..count]);
    }
    assert!(child.wait().expect("it ends").success());
    String::from_utf8_lossy(&shown).into_owned()
}

/// What is left on a terminal's line after all that was written to it.
fn left_over(shown: &str) -> String {
    let mut line = String::new();
    let mut rest = shown.chars();
    while let Some(character) = rest.next() {
        match character {
            '\r' => line.clear(),
            // An escape sequence ends with a letter; `2K` clears the line.
            '\u{1b}' => {
                let sequence: String =
                    rest.by_ref().take_while(|c| !c.is_ascii_alphabetic()).collect();
                if sequence.contains('2') {
                    line.clear();
                }
            }
            other => line.push(other),
        }
    }
    line
}

#[test]
fn on_a_terminal_a_bar_shows_what_is_done_and_is_cleared() {
    let home = slow_home();
    let arguments = [&["generate", "--steps", "8"][..], &LASTING].concat();
    let shown = on_a_terminal(&home, &arguments);
    let bar = shown.contains("denoise [") && shown.contains("4/8, about ");
    assert!(bar && shown.contains("====="), "{shown:?}");
    assert_eq!(left_over(&shown).trim(), "", "{shown:?}");
    // The load takes most of a second, and is one step of one: no empty bar is drawn of it.
    assert!(!shown.contains("load ["), "{shown:?}");
    // No line of a job off a terminal.
    assert!(!shown.contains(" %"), "{shown:?}");
}
