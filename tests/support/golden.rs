//! Golden files: what the program says, as text that people have read. After a change that is
//! meant, `BERTH_ACCEPT_GOLDEN=1 cargo test --workspace --test cli` writes the files anew, to be
//! read before they land.

use std::fs;
use std::path::Path;

use super::{Ended, Home, root};

/// Set to anything, it makes the present answers the golden ones.
pub const ACCEPT: &str = "BERTH_ACCEPT_GOLDEN";

/// Differing lines that are shown of a file.
const SHOWN_LINES: usize = 12;

/// Runs `berth`; what it says is `tests/golden/messages/NAME.txt`.
pub fn run(name: &str, home: &Home, arguments: &[&str]) -> Ended {
    let ended = home.run(arguments);
    said(name, home, arguments, &ended, &[]);
    ended
}

/// Holds a finished run against `tests/golden/messages/NAME.txt`: its command, exit code and both
/// streams. The home's path becomes `HOME`, and of each pair of `replaced` the first becomes the
/// second: a process id, a time.
pub fn said(name: &str, home: &Home, arguments: &[&str], ended: &Ended, replaced: &[(&str, &str)]) {
    let code = ended.code.map_or("a signal".to_owned(), |code| code.to_string());
    let mut text = format!("$ berth {}\n", arguments.join(" "));
    let stderr = without_progress(&ended.stderr);
    for (stream, content) in [("stdout", &ended.stdout), ("stderr", &stderr)] {
        if !content.is_empty() {
            text += &format!("[{stream}]\n{}\n", content.trim_end());
        }
    }
    text += &format!("[exit {code}]\n");
    let home = home.path("");
    text = text.replace(home.to_string_lossy().trim_end_matches('/'), "HOME");
    for (from, to) in replaced {
        text = text.replace(from, to);
    }
    let path = root().join("tests/golden/messages").join(format!("{name}.txt"));
    if let Some(difference) = compare(&path, &text) {
        panic!("read it, then accept it with {ACCEPT}=1\n{difference}");
    }
}

/// Without the lines that say how far a job is, which only slow machines see.
fn without_progress(stderr: &str) -> String {
    let is_progress = |line: &&str| line.starts_with("berth: ") && line.contains(" %, ");
    stderr.lines().filter(|line| !is_progress(line)).map(|line| format!("{line}\n")).collect()
}

/// Compares with the golden file, or makes it; where it differs, how.
pub fn compare(path: &Path, found: &str) -> Option<String> {
    if std::env::var_os(ACCEPT).is_some() {
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        fs::write(path, found).expect("the golden file can be written");
        return None;
    }
    let name = path.strip_prefix(root()).expect("it is in the repository").display();
    match fs::read_to_string(path) {
        Ok(golden) if golden == found => None,
        Ok(golden) => Some(format!("{name}:\n{}", difference(&golden, found))),
        Err(error) => Some(format!("{name}: {error}")),
    }
}

/// The first lines that differ, each as it was and as it is.
fn difference(golden: &str, found: &str) -> String {
    let (golden, found): (Vec<&str>, Vec<&str>) =
        (golden.lines().collect(), found.lines().collect());
    let line = |lines: &[&str], index: usize| lines.get(index).map_or("", |line| *line).to_owned();
    let all = 0..golden.len().max(found.len());
    let differing = all.filter(|&index| golden.get(index) != found.get(index));
    let shown = differing.take(SHOWN_LINES).map(|index| {
        format!("{:>5} - {}\n      + {}", index + 1, line(&golden, index), line(&found, index))
    });
    shown.collect::<Vec<_>>().join("\n")
}
