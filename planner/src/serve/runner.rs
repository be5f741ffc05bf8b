//! Runners: for each slot a thread that owns its model's executor and carries out one order after
//! the other.
//!
//! ```text
//! run ──► executor started, or the one that is there ──► model described ──► Host::run
//!          │ Started                                                │ Planned, Progress, Preview,
//!          ▼                                                        │ Retrying
//!        Failed: the executor is ended, the next order starts one   ▼
//!        Cancelled: it stays, with what it has loaded             Done: it stays, warm
//!        InTheWay: so it does; its plan shares a lane with another run
//!        Damaged before Failed: by the model's files, as they still are
//! end ──► Gone, whatever was there
//! its process ends, nothing runs ──► Lost
//! ```
//! Not here: which job runs when ([`super::desk`]), and how one runs ([`crate::engine`]).
//!
//! Invariants: each `run` is answered by one of `Done`, `Cancelled`, `InTheWay` and `Failed`, each
//! `end` by `Gone`, and nothing else says these; by then nothing computes any more, and what the
//! slot holds is known to the surveyor. A panic is a failed run.

mod finished;
mod heard;
mod order;
mod switch;
mod told;

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::desk::action::RunOrder;
use super::desk::event::{DeskEvent, Said, SlotId};
use super::failures::internal;
use super::shared::ServedHost;
use order::{EndedRun, SlotExecutor};
use switch::RunSwitch;
use told::RunTeller;

/// What a slot's thread is told.
#[derive(Debug)]
enum SlotOrder {
    /// Do this.
    Run { epoch: u64, order: Box<RunOrder> },
    /// Nothing more is done here for now: the executor's memory is wanted.
    End,
    /// A process of this slot has ended: look whether it was the idle executor.
    Look,
}

/// The threads of all slots.
pub struct Runners {
    shared: Arc<ServedHost>,
    events: Sender<DeskEvent>,
    slots: BTreeMap<SlotId, SlotHandle>,
    /// Every thread holds one end, so that the other tells when all have ended.
    ends: (Sender<()>, Receiver<()>),
}

/// The way to a slot's thread.
struct SlotHandle {
    /// Shared with the bells of executors, which do not keep the slot's thread alive.
    orders: Arc<Sender<SlotOrder>>,
    switch: Arc<RunSwitch>,
}

impl Runners {
    /// None yet. What they have to say goes to `events`.
    pub fn new(shared: Arc<ServedHost>, events: Sender<DeskEvent>) -> Runners {
        Runners { shared, events, slots: BTreeMap::new(), ends: channel() }
    }

    /// Has a slot do something, which it tells of under this `epoch`.
    pub fn run(&mut self, slot: SlotId, epoch: u64, order: Box<RunOrder>) {
        let shared = Arc::clone(&self.shared);
        let handle = match self.slot(slot) {
            Ok(handle) => handle,
            Err(error) => {
                let error = Box::new(internal(format!("there is no thread for a run: {error}")));
                let said = Said::Failed { error, failures: Vec::new() };
                let _ = self.events.send(DeskEvent::Runner { slot, epoch, said });
                return;
            }
        };
        // Before the order is sent: a cancel that comes next must find it on.
        handle.switch.set_on();
        shared.begin(slot);
        let sent = handle.orders.send(SlotOrder::Run { epoch, order });
        debug_assert!(sent.is_ok(), "a slot's thread ends with its orders");
    }

    /// Ends what a slot runs soon, and does not wait for that. Its executor stays where it obeys.
    pub fn cancel(&self, slot: SlotId) {
        if let Some(handle) = self.slots.get(&slot) {
            handle.switch.cancel();
        }
    }

    /// Ends a slot's executor once nothing runs there.
    pub fn end(&mut self, slot: SlotId) {
        match self.slots.get(&slot) {
            Some(handle) => {
                self.shared.begin(slot);
                let _ = handle.orders.send(SlotOrder::End);
            }
            // Nothing was ever started: of the first epoch, as no other was ever told of.
            None => {
                let said = Said::Gone;
                let _ = self.events.send(DeskEvent::Runner { slot, epoch: 0, said });
            }
        }
    }

    /// Ends all of them, and waits so long at most until they are gone.
    pub fn finish(self, grace: Duration) {
        let Runners { slots, ends: (own, all), .. } = self;
        for handle in slots.values() {
            handle.switch.cancel();
        }
        drop(slots);
        drop(own);
        // Nobody ever sends: the wait ends when the last thread has.
        let _ = all.recv_timeout(grace);
    }

    fn slot(&mut self, slot: SlotId) -> io::Result<&SlotHandle> {
        if !self.slots.contains_key(&slot) {
            let switch = Arc::<RunSwitch>::default();
            let teller = RunTeller::new(slot, self.events.clone());
            let (orders, received) = channel();
            let orders = Arc::new(orders);
            let bell = SlotBell(Arc::downgrade(&orders));
            let (shared, end) = (Arc::clone(&self.shared), self.ends.0.clone());
            let ends_run = Arc::clone(&switch);
            let work = move || {
                let _end = end;
                serve(SlotExecutor::new(slot, shared, ends_run, teller, bell), &received);
            };
            std::thread::Builder::new().name(format!("runner-{}", slot.0)).spawn(work)?;
            self.slots.insert(slot, SlotHandle { orders, switch });
        }
        Ok(&self.slots[&slot])
    }
}

/// Carries out a slot's orders until there is nobody any more who gives some.
fn serve(mut executor: SlotExecutor, orders: &Receiver<SlotOrder>) {
    for order in orders {
        match order {
            SlotOrder::Run { epoch, order } => {
                executor.teller.begin(epoch);
                let run = AssertUnwindSafe(|| executor.run(&order));
                let ended = catch_unwind(run).unwrap_or_else(|panic| EndedRun::of_panic(&*panic));
                tell_end(&mut executor, ended);
            }
            SlotOrder::End => {
                executor.end();
                executor.shared.end(executor.slot, None);
                executor.teller.tell(Said::Gone);
            }
            SlotOrder::Look => {
                if executor.end_lost() {
                    executor.shared.lost(executor.slot);
                    executor.teller.tell(Said::Lost);
                }
            }
        }
    }
    executor.end();
}

/// A run is over: what the slot holds is shown before anybody may act on it.
fn tell_end(executor: &mut SlotExecutor, ended: EndedRun) {
    if let EndedRun::Failed(_) = &ended {
        executor.end();
    }
    executor.shared.end(executor.slot, executor.held());
    executor.switch.set_off();
    let said = match ended {
        EndedRun::Done(work) => Said::Done(work),
        EndedRun::Cancelled => Said::Cancelled,
        EndedRun::InTheWay => Said::InTheWay,
        EndedRun::Failed(error) => {
            Said::Failed { error, failures: executor.teller.take_failures() }
        }
    };
    executor.teller.tell(said);
}

/// Has a slot looked at when its executor's process has ended.
#[derive(Debug, Clone)]
pub struct SlotBell(Weak<Sender<SlotOrder>>);

impl SlotBell {
    /// Rings it; nothing where the slot's thread is about to end.
    pub fn ring(&self) {
        if let Some(orders) = self.0.upgrade() {
            let _ = orders.send(SlotOrder::Look);
        }
    }
}

impl EndedRun {
    fn of_panic(panic: &(dyn Any + Send)) -> EndedRun {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "a panic".to_owned());
        tracing::error!(%text, "a runner panicked");
        let message = format!("{text}; this is a fault of Berth, please report it");
        EndedRun::Failed(Box::new(internal(message)))
    }
}
