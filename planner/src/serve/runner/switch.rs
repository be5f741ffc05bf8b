//! The end of a run from another thread.
//!
//! ```text
//! off ──set_on (before the order is sent)──► on ──cancel──► on, cancelled ──set_off──► off
//! ```
//! A cancel is heard whenever it comes: it stays noted, so that the runner sees it before it asks
//! an executor for anything, and a session that starts later is told at once. It never waits.
//! Invariant: while it is off nothing is cancelled; what came too late for one run is dropped by
//! the session before the next begins.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::session::Interrupts;

/// Of one slot.
#[derive(Debug, Default)]
pub struct RunSwitch(Mutex<SwitchState>);

#[derive(Debug, Default)]
struct SwitchState {
    on: bool,
    cancelled: bool,
    /// The way to the session, while there is one.
    interrupts: Option<Interrupts>,
}

impl RunSwitch {
    /// A run is ordered: from now on it can be cancelled.
    pub fn set_on(&self) {
        let mut state = self.lock();
        state.on = true;
        state.cancelled = false;
    }

    /// The run is over.
    pub fn set_off(&self) {
        let mut state = self.lock();
        state.on = false;
        state.cancelled = false;
    }

    /// Ends the run soon; nothing where none is ordered.
    pub fn cancel(&self) {
        let mut state = self.lock();
        if !state.on {
            return;
        }
        state.cancelled = true;
        ask_for_end(state.interrupts.as_ref());
    }

    /// Whether the run is to end.
    pub fn is_cancelled(&self) -> bool {
        self.lock().cancelled
    }

    /// A session starts, and is reached by this.
    pub fn watch(&self, interrupts: Interrupts) {
        let mut state = self.lock();
        if state.cancelled {
            ask_for_end(Some(&interrupts));
        }
        state.interrupts = Some(interrupts);
    }

    fn lock(&self) -> MutexGuard<'_, SwitchState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without a wait: a session hears it when it listens next, and ends an executor that does not obey
/// in time.
fn ask_for_end(interrupts: Option<&Interrupts>) {
    let _ = interrupts.and_then(Interrupts::ask_for_end);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_counts_from_the_order_to_the_end() {
        let switch = RunSwitch::default();
        switch.cancel();
        assert!(!switch.is_cancelled(), "nothing is ordered");
        switch.set_on();
        assert!(!switch.is_cancelled());
        switch.cancel();
        switch.cancel();
        assert!(switch.is_cancelled());
        switch.set_off();
        assert!(!switch.is_cancelled());
        switch.cancel();
        switch.set_on();
        assert!(!switch.is_cancelled(), "it came too late for the last one");
    }
}
