//! What the end-to-end tests share: the real program, in a home of its own, and its answers.

#![allow(dead_code, reason = "each test program uses its own part of this module")]

pub mod bfl;
pub mod damaged;
pub mod gguf;
pub mod golden;
pub mod kills;
pub mod lora;
#[allow(clippy::duplicate_mod, reason = "examples use models that find their own place")]
pub mod place;
pub mod plans;
pub mod simulator;
pub mod sparse;
pub mod terminal;
pub mod watched;
pub mod wide;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

pub use place::root;

/// A host that is said to be so slow that any job takes long.
pub const SLOW_HOST: &str = r#"
name = "slow"
[host]
memory = "8GiB"
available = "6GiB"
cores = 2
cpu = "made up"
flops = "1MFLOP/s"
memory_bandwidth = "10GB/s"
storage_bandwidth = "1GB/s"
"#;

/// The program under test: `BERTH_TEST_PROGRAM`, where this test program was built elsewhere, or
/// the one built with it.
pub fn program() -> PathBuf {
    std::env::var_os("BERTH_TEST_PROGRAM")
        .map_or_else(|| env!("CARGO_BIN_EXE_berth").into(), Into::into)
}

/// A model directory under `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

/// The RGB of a picture.
pub fn pixels(path: &Path) -> Vec<u8> {
    let file = std::fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = png::Decoder::new(std::io::BufReader::new(file)).read_info().expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
    let frame = reader.next_frame(&mut bytes).expect("a whole PNG");
    bytes.truncate(frame.buffer_size());
    bytes
}

/// A directory of its own for one test: cache, temporary files, outputs.
pub struct Home {
    directory: TempDir,
    /// What a user's and a system's directories are to it, apart from what a run may leave.
    surroundings: TempDir,
    /// What else its programs are given.
    environment: Vec<(&'static str, OsString)>,
}

/// How a run of the program ended.
pub struct Ended {
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Home {
    /// A new, empty one.
    pub fn new() -> Home {
        let directory = || TempDir::new().expect("a temporary directory");
        let environment = Vec::new();
        let home = Home { directory: directory(), surroundings: directory(), environment };
        std::fs::create_dir(home.beside("runtime")).expect("a runtime directory");
        home
    }

    /// Gives all its programs these variables.
    pub fn with(self, environment: Vec<(&'static str, OsString)>) -> Home {
        Home { environment, ..self }
    }

    /// A path beside it: `config`, `state`, `runtime` and `system` are the directories of those
    /// names.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.surroundings.path().join(name)
    }

    /// A path within.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `berth` with these arguments, ready to start in this home.
    pub fn berth(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        let temporary = self.path("tmp");
        std::fs::create_dir_all(&temporary).expect("a directory for temporary files");
        command
            .args(arguments)
            .current_dir(self.directory.path())
            .env("XDG_CACHE_HOME", self.path("cache"))
            .env("XDG_CONFIG_HOME", self.beside("config"))
            .env("XDG_STATE_HOME", self.beside("state"))
            .env("XDG_RUNTIME_DIR", self.beside("runtime"))
            .env("BERTH_SYSTEM_DIR", self.beside("system"))
            .env("TMPDIR", temporary)
            .env_remove("BERTH_HOST")
            .env_remove("BERTH_EXECUTOR")
            .env_remove("BERTH_LOG")
            .env_remove("BERTH_STATE_DIR")
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    /// Runs `berth` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(self.berth(arguments).output().expect("berth starts"))
    }

    /// Runs `berth`, which must succeed, and reads its standard output as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        ended.json()
    }

    /// Names of the files directly within.
    pub fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).expect("the home is there");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Ended {
    /// From a finished process.
    pub fn of(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in {:?}; {}", self.stdout, self.stderr))
    }
}

/// Runs a test of this program again, alone in a process; the answer is whether this is that
/// process.
pub fn alone(name: &str) -> bool {
    const ALONE: &str = "BERTH_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("a running program has a path");
    let again = Command::new(program).args([name, "--exact"]).env(ALONE, "1").output();
    let ended = Ended::of(again.expect("the program starts again"));
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("1 passed"), "{name} is not a test: {}", ended.stdout);
    false
}
