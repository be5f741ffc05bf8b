//! The files that a plan reads: whether they are still those that the executor opened.

use std::fs;

use protocol::notice::FileState;

/// Paths of the files that the system now says something else of, or has others for.
pub fn changed_files(files: &[FileState]) -> Vec<String> {
    let is_same = |state: &FileState| {
        let now = fs::metadata(&state.path).map(|now| FileState::of(state.path.clone(), &now));
        now.is_ok_and(|now| now == *state)
    };
    files.iter().filter(|state| !is_same(state)).map(|state| state.path.clone()).collect()
}
