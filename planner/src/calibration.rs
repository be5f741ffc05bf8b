//! Calibration: what was measured on this machine, kept between runs in one TOML file that people
//! can read.
//!
//! ```text
//! file ──read──► Calibration ──apply──► inventory ──► plan ──► run ──► usage ──learn──┐
//!  ▲                                                  berth calibrate ──record────────┤
//!  └──────────────────────── locked, written whole, renamed ◄─────────────────────────┘
//! ```
//! It measures nothing itself: figures come from the executor (`berth calibrate`) and from usage
//! reports.
//!
//! Invariants:
//! - A figure that a profile declares stays; one that is assumed is replaced by a measured one, and
//!   says so.
//! - What was measured on one device, or on one machine, is never taken for another's.
//! - A file that is missing, damaged, foreign or nonsensical changes no plan and stops no run; it
//!   is told of once.
//! - The overhead that is predicted of a device is never below the last one that was measured
//!   there.
//! - An update holds a lock from its reading to its renaming: of two processes neither loses what
//!   it learned.

mod apply;
mod content;
mod figures;
mod key;
mod learn;
mod limits;
mod record;
mod smooth;
mod store;

use std::path::Path;

use protocol::{Plan, UsageReport};

pub use figures::{Figure, figures};
pub use key::Machine;
pub use learn::{MeasuredRatio, lessons, overheads};
pub(crate) use store::lock_file;
pub use store::{STATE_DIR, Store, StoreError, state_directory};

use crate::inventory::Inventory;
use content::Content;

/// What was measured on this machine, as the file had it when a command began.
#[derive(Debug, Clone)]
pub struct Calibration {
    machine: Machine,
    content: Content,
    store: Option<Store>,
    /// Whether runs may add to the file: not to one that cannot be read, which might be worth
    /// mending.
    learns: bool,
}

impl Calibration {
    /// Reads the file of a `store`, if any, for a machine; with it why the file is ignored, where
    /// it is.
    pub fn read(machine: Machine, store: Option<Store>) -> (Calibration, Option<StoreError>) {
        let (content, ignored) = match store.as_ref().map(Store::read) {
            Some(Ok(content)) => (content, None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        let content = match content {
            Some(content) => content.on(&machine),
            None => Content::new(&machine),
        };
        let learns = ignored.is_none();
        (Calibration { machine, content, store, learns }, ignored)
    }

    /// The same file, read again.
    pub fn read_again(&self) -> (Calibration, Option<StoreError>) {
        Calibration::read(self.machine.clone(), self.store.clone())
    }

    /// The file's path, where there is a place for one.
    pub fn path(&self) -> Option<&Path> {
        self.store.as_ref().map(Store::path)
    }

    /// Refines the file by a run: `inventory` is the one that its plan was made for, with this
    /// calibration applied. Whether anything was learned.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn learn(
        &self,
        inventory: &Inventory,
        plan: &Plan,
        usage: &UsageReport,
    ) -> Result<bool, StoreError> {
        let lessons = lessons(&self.machine, inventory, plan, usage);
        let overheads = overheads(inventory, usage);
        let teaches = !lessons.is_empty() || !overheads.is_empty();
        let (Some(store), true) = (&self.store, self.learns && teaches) else {
            return Ok(false);
        };
        let model = plan.model.to_string();
        store.update(&self.machine, |content| {
            content.learn(&model, &lessons);
            overheads.iter().for_each(|(key, bytes)| content.learn_overhead(key, *bytes));
        })?;
        Ok(true)
    }

    /// Puts what the executor measured in the place of what the file has of the host and these
    /// devices.
    ///
    /// # Errors
    /// There is no place for the file, it cannot be written, or the figures make no sense.
    pub fn record(
        &self,
        inventory: &Inventory,
        measured: &protocol::calibration::Calibration,
    ) -> Result<(), StoreError> {
        let store = self.store.as_ref().ok_or(StoreError::NoPlace)?;
        store.replace(&self.machine, |content| content.record(&self.machine, inventory, measured))
    }
}

#[cfg(test)]
mod tests;
