//! What an executor tells beside its answers: notices, and the files that it reads.

use protocol::limits::{FILES_MAX, NOTICES_MAX};
use protocol::notice::{FileState, Notice};

use crate::engine::files::changed_files;

/// What was told in all attempts of a job.
#[derive(Debug, Default)]
pub struct JobNotices {
    notices: Vec<Notice>,
    /// Of the last plan.
    files: Vec<FileState>,
}

impl JobNotices {
    /// Takes a notice; false where it was told before, as another attempt tells it again.
    pub fn notice(&mut self, notice: &Notice) -> bool {
        let new = self.notices.len() < NOTICES_MAX && !self.notices.contains(notice);
        if new {
            self.notices.push(notice.clone());
        }
        new
    }

    /// Takes the files that a plan reads, as they were when the executor opened them.
    pub fn files(&mut self, mut files: Vec<FileState>) {
        files.truncate(FILES_MAX);
        self.files = files;
    }

    /// The files that the last plan reads.
    pub fn opened_files(&self) -> &[FileState] {
        &self.files
    }

    /// Paths of the files that were changed since, or are others now: by what the system says of
    /// them, and by what the executor saw.
    pub fn changed(&self) -> Vec<String> {
        let mut paths = changed_files(&self.files);
        paths.extend(self.notices.iter().filter_map(|notice| match notice {
            Notice::FileChanged { path } => Some(path.clone()),
            Notice::PromptCut { .. } | Notice::SelfTest { .. } => None,
        }));
        paths.sort();
        paths.dedup();
        paths
    }

    /// The notices, in order.
    pub fn into_notices(self) -> Vec<Notice> {
        self.notices
    }
}
