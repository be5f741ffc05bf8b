//! Where sockets are: the first place that is good for one, whatever the environment names; and
//! that a killed planner's folder is removed by the next run.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::failure::{SILENT, SOON, script};
use crate::support::watched::{PATIENCE, Process, Watched};
use crate::support::{Ended, Home};

/// `berth inspect` by an executor that tells where its socket is.
fn inspect(home: &Home) -> Command {
    let berth = env!("CARGO_BIN_EXE_berth");
    script(home, &format!("echo \"socket: $1\" >&2\nexec {berth} executor \"$@\""));
    home.berth(&["inspect", "--executor", "./executor", "--verbose"])
}

/// Runs it to its end, which must be a good one: where the socket was.
fn socket(command: Command) -> PathBuf {
    let ended = Watched::start(command).end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    // Two processes write, each when it comes to it.
    let mut lines: Vec<&str> = ended.stderr.lines().collect();
    lines.sort_unstable();
    let [started, socket] = lines.as_slice() else { panic!("more is said: {}", ended.stderr) };
    assert!(started.starts_with("berth: executor "), "{started}");
    socket.strip_prefix("socket: ").expect("it tells its socket").into()
}

/// Names in a directory that begin as sockets' folders do.
fn folders(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("the directory is there");
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(".berth-") || name.starts_with(".tmp")).collect()
}

#[test]
fn a_place_that_is_missing_full_of_letters_or_not_writable_is_passed_over() {
    let home = Home::new();
    let file = home.path("a_file");
    std::fs::write(&file, "").unwrap();
    let long = home.path(&"x".repeat(100));
    std::fs::create_dir(&long).unwrap();
    // Nobody makes a directory there, not even root.
    let refused = PathBuf::from("/proc/self");
    for bad in [home.path("missing"), file, long.clone(), refused, PathBuf::from("tmp")] {
        let mut command = inspect(&home);
        command.env("TMPDIR", &bad).env("XDG_RUNTIME_DIR", &bad);
        let socket = socket(command);
        assert!(socket.is_absolute() && !socket.starts_with(&bad), "{}", socket.display());
        assert!(socket.as_os_str().len() < 108 && !socket.exists(), "{}", socket.display());
    }
    assert_eq!(std::fs::read_dir(&long).unwrap().count(), 0);
    // A name that was cut to the length of a socket's.
    let cut = home.files().into_iter().filter(|name| name.starts_with('x')).count();
    assert_eq!(cut, 1, "{:?}", home.files());
}

#[test]
fn the_runtime_directory_is_the_first_place() {
    let home = Home::new();
    let found = socket(inspect(&home));
    assert!(found.starts_with(home.beside("runtime")), "{}", found.display());
    let mut without = inspect(&home);
    without.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", home.path("tmp"));
    let of_user = PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
    let found = socket(without);
    assert!(
        found.starts_with(&of_user) || found.starts_with(home.path("tmp")),
        "{}",
        found.display()
    );
    for place in [home.beside("runtime"), home.path("tmp")] {
        assert_eq!(folders(&place), Vec::<String>::new());
    }
}

/// A planner that waits for an executor which will not connect.
fn waiting(home: &Home) -> (Watched, Process) {
    script(home, SILENT);
    let mut berth =
        Watched::start(home.berth(&["inspect", "--executor", "./executor", "--verbose"]));
    let line = berth.line("waiting: ");
    let executor = Process::open(line["waiting: ".len()..].parse().unwrap());
    (berth, executor)
}

#[test]
fn the_folder_of_a_killed_planner_is_removed_by_the_next_run_and_that_of_a_running_one_is_not() {
    let home = Home::new();
    let runtime = home.beside("runtime");
    let (killed, orphan) = waiting(&home);
    let left = folders(&runtime);
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(left[0].starts_with(&format!(".berth-{}-", killed.process.pid)), "{left:?}");
    killed.process.send(Signal::KILL);
    assert_eq!(killed.end(SOON).code, None);
    orphan.send(Signal::KILL);
    assert_eq!(folders(&runtime), left, "it is left over");

    let (running, executor) = waiting(&home);
    let held = folders(&runtime);
    assert_eq!(held.len(), 1, "{held:?}");
    assert!(held[0].starts_with(&format!(".berth-{}-", running.process.pid)), "{held:?}");

    socket(inspect(&home));
    assert_eq!(folders(&runtime), held, "the running one's stays");
    running.process.send(Signal::TERM);
    let Ended { code, stderr, .. } = running.end(SOON);
    assert_eq!(code, Some(143), "{stderr}");
    assert!(executor.ends_within(SOON));
    assert_eq!(folders(&runtime), Vec::<String>::new());
}
