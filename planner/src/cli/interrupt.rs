//! Ctrl-C: cancels the session that runs, or ends the program where none does.

use std::sync::{Arc, Mutex, PoisonError};

use crate::session::Interrupts;

/// Where the signal handler finds the session that runs.
#[derive(Debug, Clone, Default)]
pub struct Interruption(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Running(Interrupts),
    /// Finished files are about to get their names: that takes no time, and is not interrupted.
    Writing,
}

impl Interruption {
    /// Installs the handler, for this process, once.
    pub fn install() -> anyhow::Result<Interruption> {
        let interruption = Interruption::default();
        let state = Arc::clone(&interruption.0);
        ctrlc::set_handler(move || match &*state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Idle => std::process::exit(i32::from(super::EXIT_ERROR)),
            State::Running(interrupts) => interrupts.interrupt(),
            State::Writing => {}
        })?;
        Ok(interruption)
    }

    /// From now on this session is cancelled.
    pub fn watch(&self, interrupts: Interrupts) {
        self.set(State::Running(interrupts));
    }

    /// What watches the session of each executor that starts.
    pub fn watcher(&self) -> impl Fn(Interrupts) + 'static {
        let watched = self.clone();
        move |interrupts| watched.watch(interrupts)
    }

    /// From now on no session runs: a signal ends the program.
    pub fn release(&self) {
        self.set(State::Idle);
    }

    /// From now on nothing is interrupted.
    pub fn hold(&self) {
        self.set(State::Writing);
    }

    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
