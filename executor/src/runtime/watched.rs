//! The files that a loaded plan reads while it runs, and whether others change them.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::notice::FileState;

use crate::weights::MappedFile;

/// The files of a plan's model and of its LoRA.
#[derive(Default)]
pub struct WatchedFiles(Vec<Arc<MappedFile>>);

impl WatchedFiles {
    /// Each of these files once, whatever mappings there are of it.
    pub fn new(files: impl IntoIterator<Item = Arc<MappedFile>>) -> WatchedFiles {
        let mut known = BTreeSet::new();
        let mut files: Vec<_> = files.into_iter().collect();
        files.retain(|file| known.insert((file.state().device, file.state().inode)));
        WatchedFiles(files)
    }

    /// What they were when they were opened.
    pub fn states(&self) -> Vec<FileState> {
        self.0.iter().map(|file| file.state().clone()).collect()
    }

    /// Remembers what stands in them, as far as they have been read.
    pub fn look(&self) {
        self.0.iter().for_each(|file| file.look());
    }

    /// Paths of those that are not what they were.
    pub fn changed(&self) -> Vec<String> {
        let changed = self.0.iter().filter(|file| file.has_changed());
        changed.map(|file| file.state().path.clone()).collect()
    }
}
