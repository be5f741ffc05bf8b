//! What a slot tells the desk while it works, and what became of attempts that failed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::Phase;

use super::super::desk::event::{DeskEvent, Said, SlotId};
use super::SlotBell;
use super::switch::RunSwitch;
use crate::engine::session::{EndBell, ExecutorListener, Interrupts, SessionError};
use crate::job::FailedAttempt;

/// Tells of one slot; clones tell of the same.
#[derive(Debug, Clone)]
pub struct RunTeller {
    slot: SlotId,
    epoch: Arc<AtomicU64>,
    events: Sender<DeskEvent>,
    attempt: Arc<Mutex<RunAttempt>>,
}

/// Where the present attempt is, and what became of those before.
#[derive(Debug, Default)]
struct RunAttempt {
    generation: u64,
    phase: Option<Phase>,
    failures: Vec<FailedAttempt>,
}

impl RunTeller {
    /// Of a slot that has not been started yet.
    pub fn new(slot: SlotId, events: Sender<DeskEvent>) -> RunTeller {
        RunTeller { slot, epoch: Arc::default(), events, attempt: Arc::default() }
    }

    /// A run begins, of this epoch: nothing has failed yet.
    pub fn begin(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
        *self.attempt() = RunAttempt::default();
    }

    /// Tells the desk. Where that is gone, so is the daemon.
    pub fn tell(&self, said: Said) {
        let (slot, epoch) = (self.slot, self.epoch.load(Ordering::SeqCst));
        let _ = self.events.send(DeskEvent::Runner { slot, epoch, said });
    }

    /// A plan is about to be loaded.
    pub fn planned(&self, generation: u64) {
        let mut attempt = self.attempt();
        attempt.generation = generation;
        attempt.phase = None;
    }

    /// The attempt is in this phase.
    pub fn in_phase(&self, phase: Phase) {
        self.attempt().phase = Some(phase);
    }

    /// The attempt failed, and another follows.
    pub fn retrying(&self, because: String) {
        let mut attempt = self.attempt();
        let (generation, phase) = (attempt.generation, attempt.phase.take());
        let reason = because.clone();
        attempt.failures.push(FailedAttempt {
            generation,
            phase,
            device: None,
            reason,
            requested_bytes: None,
            free_bytes: None,
        });
        drop(attempt);
        self.tell(Said::Retrying { because });
    }

    /// What became of attempts of a run that has no result to tell it.
    pub fn take_failures(&self) -> Vec<FailedAttempt> {
        std::mem::take(&mut self.attempt().failures)
    }

    fn attempt(&self) -> MutexGuard<'_, RunAttempt> {
        self.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears of a slot's executors: the desk is told, and the switch knows how to reach them.
pub struct SlotListener {
    /// Whom it tells.
    pub teller: RunTeller,
    /// What ends a run.
    pub switch: Arc<RunSwitch>,
    /// Rung when a process has ended.
    pub bell: SlotBell,
}

impl ExecutorListener for SlotListener {
    fn starting(&mut self, interrupts: Interrupts) {
        self.switch.watch(interrupts);
    }

    fn bell(&self) -> Option<EndBell> {
        let bell = self.bell.clone();
        Some(Box::new(move || bell.ring()))
    }

    fn started(&mut self, pid: u32) {
        self.teller.tell(Said::Started { pid });
    }

    fn died(&mut self, error: &SessionError) {
        self.teller.retrying(error.to_string());
    }

    fn silent(&mut self, seconds: u64) {
        tracing::warn!(slot = self.teller.slot.0, seconds, "the executor is silent");
    }

    fn answers(&mut self) {
        tracing::info!(slot = self.teller.slot.0, "the executor is heard again");
    }
}
