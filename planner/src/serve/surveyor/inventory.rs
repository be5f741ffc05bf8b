//! What the host would have free if the daemon had loaded nothing.

use super::super::shared::ServedHost;
use crate::engine::host::SetupError;
use crate::inventory::Inventory;

/// The last inventory that was read while nothing ran: what a job holds while it runs is more than
/// what is given back of it.
#[derive(Default)]
pub struct IdleInventory(Option<Inventory>);

impl IdleInventory {
    /// The inventory now; where something runs (or `busy` says so), the last one from before, if
    /// there is any.
    ///
    /// # Errors
    /// The host's memory cannot be read.
    pub fn now(&mut self, shared: &ServedHost, busy: bool) -> Result<Inventory, SetupError> {
        let runs = || busy || shared.is_running();
        if let Some(last) = self.0.as_ref().filter(|_| runs()) {
            return Ok(last.clone());
        }
        let loaded = shared.all_loaded();
        let plans: Vec<&protocol::Plan> = loaded.iter().map(|loaded| &loaded.plan).collect();
        let inventory = shared.host().inventory_without(&plans)?;
        // Something may have begun meanwhile: then it is good for this question only.
        if !runs() {
            self.0 = Some(inventory.clone());
        }
        Ok(inventory)
    }
}
