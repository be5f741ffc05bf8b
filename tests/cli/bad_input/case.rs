//! A case of bad input: what is damaged, how the program is run, and what must hold of its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Ended, Home, fixture};

/// The smallest whole job on the copied model.
pub const GENERATE: &str = "generate model --prompt a --width 64 --height 64 --steps 1";

/// An answer that is none: exit 2.
pub const ERROR: i32 = 2;

/// Nothing fits: exit 1.
pub const INFEASIBLE: i32 = 1;

/// A line of a table of cases: its name, what is done to the model first, what must be said.
pub type Line = (&'static str, fn(&Path), &'static [&'static str]);

/// One thing that is wrong, and what must be said of it.
pub struct Case {
    pub name: &'static str,
    pub fixture: &'static str,
    pub damage: Box<dyn Fn(&Path)>,
    pub arguments: Vec<String>,
    pub code: i32,
    pub says: Vec<&'static str>,
}

impl Case {
    /// A run with these arguments, separated by blanks, in a home with a sound `model`.
    pub fn of(name: &'static str, arguments: &str, says: &'static [&'static str]) -> Case {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        let (fixture, damage, says) = ("flux_schnell", Box::new(|_: &Path| {}), says.to_vec());
        Case { name, fixture, damage, arguments, code: ERROR, says }
    }

    /// A generation on a model to which `damage` was done first.
    pub fn damaged(
        name: &'static str,
        damage: impl Fn(&Path) + 'static,
        says: &'static [&'static str],
    ) -> Case {
        Case::of(name, GENERATE, says).after(damage)
    }

    pub fn and(mut self, argument: &str) -> Case {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn on(self, fixture: &'static str) -> Case {
        Case { fixture, ..self }
    }

    pub fn after(self, damage: impl Fn(&Path) + 'static) -> Case {
        Case { damage: Box::new(damage), ..self }
    }

    pub fn exits(self, code: i32) -> Case {
        Case { code, ..self }
    }

    /// What is not as it must be; empty where all is.
    fn faults(&self) -> Vec<String> {
        let home = Home::new();
        copy(&fixture(self.fixture), &home.path("model"));
        (self.damage)(&home.path("model"));
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        let mut command = home.berth(&arguments);
        let before = contents(&home);
        let ended = Ended::of(command.output().expect("berth starts"));
        let mut faults = faults_of(&ended, self.code, &self.says);
        faults.extend(changes(&before, &contents(&home)));
        faults
    }
}

pub fn faults_of(ended: &Ended, code: i32, says: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    if ended.code != Some(code) {
        faults.push(format!("exit {:?}, expected {code}", ended.code));
    }
    let message = &ended.stderr;
    faults.extend(
        says.iter()
            .filter(|text| !message.contains(**text))
            .map(|text| format!("does not say {text:?}")),
    );
    for never in ["panicked", "fault of Berth", "RUST_BACKTRACE"] {
        if message.contains(never) {
            faults.push(format!("says {never:?}"));
        }
    }
    if !["berth: ", "error: "].iter().any(|start| message.starts_with(start)) {
        faults.push("does not start as a message".to_owned());
    }
    if message.matches("(os error").count() > 1 {
        faults.push("says the cause twice".to_owned());
    }
    if !faults.is_empty() {
        faults.push(format!("stdout {:?}, stderr {message:?}", ended.stdout));
    }
    faults
}

/// Runs every case, and names all that are not answered as they must be.
pub fn assert_refused(cases: impl IntoIterator<Item = Case>) {
    let faults: Vec<String> = cases
        .into_iter()
        .filter_map(|case| {
            let faults = case.faults();
            (!faults.is_empty()).then(|| format!("{}:\n    {}", case.name, faults.join("\n    ")))
        })
        .collect();
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

/// What was made, changed or lost between two looks at a home.
pub fn changes(before: &BTreeMap<PathBuf, u64>, after: &BTreeMap<PathBuf, u64>) -> Option<String> {
    let paths = before.keys().chain(after.keys());
    let changed: BTreeSet<_> = paths.filter(|path| before.get(*path) != after.get(*path)).collect();
    (!changed.is_empty()).then(|| format!("leaves changes: {changed:?}"))
}

/// Paths and sizes of everything in the home but the cache, which may keep the demo model.
pub fn contents(home: &Home) -> BTreeMap<PathBuf, u64> {
    fn walk(directory: &Path, found: &mut BTreeMap<PathBuf, u64>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                walk(&path, found);
            }
            found.insert(path, if metadata.is_file() { metadata.len() } else { 0 });
        }
    }
    let mut found = BTreeMap::new();
    walk(&home.path("."), &mut found);
    found.retain(|path, _| !path.starts_with(home.path("./cache")));
    found
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::write(target, fs::read(entry.path()).unwrap()).unwrap();
        }
    }
}

/// Header and data of a safetensors file.
pub fn split(path: &Path) -> (String, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let header_bytes = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(header_bytes);
    (String::from_utf8(header.to_vec()).unwrap(), data.to_vec())
}

pub fn join(path: &Path, header: &str, data: &[u8]) {
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat())
        .unwrap();
}

/// Changes a safetensors header as a document, and leaves the data alone.
pub fn edit_header(path: &Path, change: impl FnOnce(&mut Value)) {
    let (header, data) = split(path);
    let mut header: Value = serde_json::from_str(&header).unwrap();
    change(&mut header);
    join(path, &header.to_string(), &data);
}

pub fn edit_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut document = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut document);
    fs::write(path, document.to_string()).unwrap();
}

pub fn set_length_field(path: &Path, length: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

/// A home with a sound model and the plan of a small job on it, and what the plan says.
pub fn planned() -> (Home, toml::Table) {
    let home = Home::new();
    copy(&fixture("flux_schnell"), &home.path("model"));
    let shape = ["--width", "64", "--height", "64", "--steps", "1", "--host", "virtual-2x2g"];
    let ended =
        home.run(&[&["plan", "model", "--dry-run", "--output", "plan.toml"], &shape[..]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let plan = fs::read_to_string(home.path("plan.toml")).unwrap().parse().unwrap();
    (home, plan)
}
