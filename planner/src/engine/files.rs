//! The files that a plan reads: whether they are still those that the executor opened.

use std::fs;
use std::path::PathBuf;

use protocol::notice::FileState;

/// Paths of the files that the system now says something else of, or has others for.
pub fn changed_files(files: &[FileState]) -> Vec<String> {
    let is_same = |state: &FileState| {
        let now = fs::metadata(&state.path).map(|now| FileState::of(state.path.clone(), &now));
        now.is_ok_and(|now| now == *state)
    };
    files.iter().filter(|state| !is_same(state)).map(|state| state.path.clone()).collect()
}

/// Files as they are now; `None` where one cannot be looked at.
pub fn states_of(files: &[PathBuf]) -> Option<Vec<FileState>> {
    let state = |path: &PathBuf| {
        let now = fs::metadata(path).ok()?;
        Some(FileState::of(path.to_str()?.to_owned(), &now))
    };
    files.iter().map(state).collect()
}
