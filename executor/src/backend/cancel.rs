//! Ending a running command soon, from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The running command was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

/// Set from another thread to end one command soon.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag {
    own: Arc<AtomicBool>,
    parent: Option<Arc<AtomicBool>>,
}

impl CancelFlag {
    /// A flag that is also set when this one is.
    pub fn child(&self) -> CancelFlag {
        CancelFlag { own: Arc::default(), parent: Some(Arc::clone(&self.own)) }
    }

    /// Asks for the end.
    pub fn set(&self) {
        self.own.store(true, Ordering::Release);
    }

    /// An error once the end was asked for.
    pub fn check(&self) -> Result<(), Cancelled> {
        let set = |flag: &Arc<AtomicBool>| flag.load(Ordering::Acquire);
        if set(&self.own) || self.parent.as_ref().is_some_and(set) {
            Err(Cancelled)
        } else {
            Ok(())
        }
    }
}
