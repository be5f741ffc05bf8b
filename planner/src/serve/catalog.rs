//! The models as the daemon's threads know them: the directory of models, looked at again whenever
//! that is asked for or something in it has changed.
//!
//! Invariant: whoever looks tells the desk, so that names, files and the state of each model are of
//! one look.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::config::ServeConfig;
use super::desk::event::DeskEvent;
use super::models::ModelDirectory;
use super::shared::ServedHost;

/// The directory of models; clones share it.
#[derive(Clone)]
pub struct Catalog {
    directory: Arc<Mutex<ModelDirectory>>,
    shared: Arc<ServedHost>,
    events: Sender<DeskEvent>,
}

impl Catalog {
    /// Looks at what is configured, and tells of it.
    ///
    /// # Errors
    /// As [`ModelDirectory::open`].
    pub fn open(
        config: &ServeConfig,
        shared: Arc<ServedHost>,
        events: Sender<DeskEvent>,
    ) -> Result<Catalog, String> {
        let directory = Arc::new(Mutex::new(ModelDirectory::open(config)?));
        let catalog = Catalog { directory, shared, events };
        catalog.tell(&catalog.now());
        Ok(catalog)
    }

    /// The models as they were at the last look.
    pub fn now(&self) -> ModelDirectory {
        self.lock().clone()
    }

    /// Goes by another configuration from now on.
    ///
    /// # Errors
    /// As [`ModelDirectory::open`]; all stays as it was.
    pub fn configure(&self, config: &ServeConfig) -> Result<(), String> {
        self.replace(ModelDirectory::open(config)?);
        Ok(())
    }

    /// Looks again, and says what there is.
    pub fn rescan(&self) -> Value {
        let mut directory = self.now();
        directory.rescan();
        let names: Vec<&String> = directory.sources().keys().collect();
        let document = json!({"models": names, "problems": directory.problems()});
        self.replace(directory);
        document
    }

    /// Looks whether anything is other than it was, and if so tells of it.
    pub fn rescan_if_changed(&self) {
        let mut directory = self.now();
        if directory.rescan() {
            self.replace(directory);
        }
    }

    fn replace(&self, directory: ModelDirectory) {
        *self.lock() = directory.clone();
        self.tell(&directory);
    }

    fn tell(&self, directory: &ModelDirectory) {
        for problem in directory.problems() {
            tracing::warn!("{problem}");
        }
        self.shared.set_models(directory.sources().clone(), directory.plan_for());
        let _ = self.events.send(DeskEvent::Models(directory.served()));
    }

    fn lock(&self) -> MutexGuard<'_, ModelDirectory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
