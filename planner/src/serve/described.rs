//! A model as an executor described it, with its files as they were then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::ModelDescription;
use protocol::notice::FileState;

use super::desk::job::{ErrorCode, JobError};
use super::failures::{internal, of_session};
use crate::engine::files::{changed_files, states_of};
use crate::engine::session::SessionError;
use crate::fingerprint;
use crate::job::PreparedJob;

/// A model as an executor described it.
#[derive(Debug)]
pub struct DescribedModel {
    /// What is in it.
    pub description: Arc<ModelDescription>,
    /// The files that its fingerprint is over, as they were then; `None` where one could not be
    /// looked at.
    files: Option<Vec<FileState>>,
    fingerprint: Mutex<Option<String>>,
}

/// The files that an executor has open, as they were: it knows them so until it ends.
#[derive(Debug, Clone, Default)]
pub struct OpenedFiles(Vec<FileState>);

/// Why a model is not described.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// Its files are damaged, or are no whole model.
    #[error("{0}")]
    Unsound(String),
    /// The executor failed.
    #[error(transparent)]
    Session(#[from] SessionError),
}

impl From<DescribeError> for JobError {
    fn from(error: DescribeError) -> JobError {
        match error {
            DescribeError::Unsound(faults) => JobError::new(ErrorCode::BadModel, faults),
            DescribeError::Session(error) => of_session(&error),
        }
    }
}

impl DescribedModel {
    /// With the files that it is made of, as they are now.
    pub fn of(description: ModelDescription) -> DescribedModel {
        let files = fingerprint::files_of_model(&description.model, &description).ok();
        let files = files.and_then(|files| states_of(&files));
        let description = Arc::new(description);
        DescribedModel { description, files, fingerprint: Mutex::default() }
    }

    /// Its files as they were; `None` where one could not be looked at.
    pub fn states(&self) -> Option<&[FileState]> {
        self.files.as_deref()
    }

    /// Whether its files are as they were. Which files a damaged model is made of is not known.
    pub fn is_current(&self) -> bool {
        self.faults().is_empty()
            && self.files.as_ref().is_some_and(|files| changed_files(files).is_empty())
    }

    fn faults(&self) -> Vec<&str> {
        let description = &self.description;
        description.problems.iter().chain(&description.lacks).map(String::as_str).collect()
    }

    /// A model that is whole.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn sound(self: Arc<Self>) -> Result<Arc<DescribedModel>, DescribeError> {
        match self.faults().as_slice() {
            [] => Ok(self),
            faults => Err(DescribeError::Unsound(faults.join("\n"))),
        }
    }

    /// Its fingerprint, where a run has made it.
    pub fn fingerprint(&self) -> Option<String> {
        self.lock_fingerprint().clone()
    }

    /// Keeps a fingerprint that was made of its files, unless they have changed since.
    pub fn keep_fingerprint(&self, made: Option<&String>) {
        if self.is_current() {
            *self.lock_fingerprint() = made.cloned();
        }
    }

    fn lock_fingerprint(&self) -> MutexGuard<'_, Option<String>> {
        self.fingerprint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files that an executor has open once it has described this model.
    pub fn opened_alone(&self) -> OpenedFiles {
        OpenedFiles(self.files.clone().unwrap_or_default())
    }

    /// The files that an executor has open once it was asked for a job with this model.
    ///
    /// # Errors
    /// A LoRA file is gone.
    pub fn opened_for(&self, asked: &PreparedJob) -> Result<OpenedFiles, JobError> {
        let loras: Vec<_> = asked.loras.iter().map(|lora| lora.path.clone().into()).collect();
        let loras = states_of(&loras).ok_or_else(|| internal("a LoRA file is gone"))?;
        Ok(OpenedFiles(self.files.iter().flatten().chain(&loras).cloned().collect()))
    }
}

impl OpenedFiles {
    /// Whether any of them is another one by now.
    pub fn have_changed(&self) -> bool {
        !changed_files(&self.0).is_empty()
    }
}
