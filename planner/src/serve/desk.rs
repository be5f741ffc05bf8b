//! The desk: which job runs when, and what becomes of each. Pure: no files, clock or randomness.
//!
//! ```text
//! Asked(Submit) ─► Survey ─► Quoted ─► Store ─► Stored ─► queued, and answered
//!   queued ─► (Weigh ─► Weighed ─► End some models ─► Gone) ─► Store ─► Stored ─► Run ─► Done
//!          ─► File ─► Filed
//!          ─► Store ─► Stored ─► done, and answered
//! ```
//! Jobs that are alike run together where the surveyor says that this is faster (`company`).
//!
//! It is told of everything that happens as a [`DeskEvent`] and answers with [`Action`]s; the same
//! events give the same actions. Jobs of different models compute at once where their plans share
//! no lane (`beside`). Models stay loaded beside each other where that is expected to cost less
//! than to load them again (`room`).
//!
//! Invariants, checked after each step of its simulation (`tests/simulation.rs`):
//! - A job is in one state, and that state is in the store before anybody is told of it.
//! - A ticket is answered once. A slot whose model is loading, running, or kept for a job is never
//!   ended for another one.
//! - What an executor said before its last start is not heard.
//! - Every job ends, whatever executors do; no deadline moves further away.

pub mod action;
pub mod config;
pub mod event;
pub mod job;

mod accept;
mod answers;
mod beside;
mod company;
mod ending;
mod entry;
mod forecast;
mod ids;
mod queue;
mod regain;
mod retention;
mod room;
mod running;
mod slots;
mod stopping;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, VecDeque};

use crate::engine::lanes::Lanes;
use accept::SurveyQuestion;
use action::{Action, DeskSettings};
use company::Company;
use config::DeskConfig;
use entry::Entry;
use event::{
    Ask, Asker, DeskEvent, Now, OperatorSignal, QueryId, Said, ServedModel, SlotId, Ticket, WriteId,
};
use ids::Ids;
use job::{JobError, JobId, JobRecord, KeepAlive};
use protocol::Bytes;
use regain::GainQuestion;
use room::{Demand, RoomFor, Weighing};
use slots::Slot;

/// What is done once a write is on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Then {
    /// The job is accepted.
    Accept(JobId),
    /// It is begun on its slot.
    Run(JobId, SlotId),
    /// It has ended.
    End(JobId),
    /// It is in the queue again.
    Requeue(JobId),
    /// Nothing.
    Nothing,
}

/// A write that is under way, to be done again where it fails.
#[derive(Debug)]
struct PendingWrite {
    change: action::Change,
    then: Then,
}

/// All that the daemon knows.
#[derive(Debug)]
pub struct Desk {
    config: DeskConfig,
    now: Now,
    out: Vec<Action>,
    ids: Ids,
    settings: DeskSettings,
    models: BTreeMap<String, ServedModel>,
    /// Models whose files are damaged: when they were written, and what is wrong.
    broken: BTreeMap<String, (u64, String)>,
    jobs: BTreeMap<JobId, Entry>,
    /// Jobs that were removed, and when, in milliseconds since 1970.
    removed: BTreeMap<JobId, u64>,
    slots: BTreeMap<SlotId, Slot>,
    /// Models that are to be loaded when nothing else is to be done.
    loads: VecDeque<(String, Option<KeepAlive>)>,
    /// Milliseconds of each model's last start and load; as predicted until there was one.
    load_ms: BTreeMap<String, f64>,
    demand: Demand,
    /// What is weighed before room is made; meanwhile nothing begins.
    weighing: Option<Weighing>,
    /// What more free memory is worth, asked of the surveyor.
    gain: Option<GainQuestion>,
    /// Whom room was made for: it begins without being weighed again.
    room_made: Option<RoomFor>,
    /// What computes one thing at a time, as far as it is known.
    lanes: Lanes,
    /// Counts changes of what runs and what is loaded.
    standing: u64,
    /// How many jobs were asked about beside what runs, since the last of them.
    beside_asked: usize,
    /// Who runs with the job whose turn it is.
    company: Company,
    questions: BTreeMap<QueryId, SurveyQuestion>,
    writes: BTreeMap<WriteId, PendingWrite>,
    /// Writes that failed, to be done again, and since when nothing could be written.
    failed_writes: Vec<PendingWrite>,
    store_fault: Option<String>,
    retry_store_at: Option<u64>,
    /// What was free last where pictures are kept.
    disk_free: Option<Bytes>,
    /// What the operator should know, and has not acknowledged.
    warnings: Vec<String>,
    stop: Option<stopping::Stop>,
    /// When the timer rings.
    wake_at: Option<u64>,
    /// Counts jobs that were put before all others.
    fronts: u64,
}

impl Desk {
    /// A desk with what the store kept. Jobs that ran when the daemon ended come first in the
    /// queue; those whose client is gone, and those that ended the daemon twice, fail.
    pub fn new(
        config: DeskConfig,
        settings: DeskSettings,
        records: Vec<JobRecord>,
        removed: BTreeMap<JobId, u64>,
        now: Now,
    ) -> (Desk, Vec<Action>) {
        let mut desk = Desk {
            config,
            now,
            out: Vec::new(),
            ids: Ids::default(),
            settings,
            models: BTreeMap::new(),
            broken: BTreeMap::new(),
            jobs: BTreeMap::new(),
            removed,
            slots: BTreeMap::new(),
            loads: VecDeque::new(),
            load_ms: BTreeMap::new(),
            demand: Demand::default(),
            weighing: None,
            gain: None,
            room_made: None,
            lanes: Lanes::default(),
            standing: 0,
            beside_asked: 0,
            company: Company::default(),
            questions: BTreeMap::new(),
            writes: BTreeMap::new(),
            failed_writes: Vec::new(),
            store_fault: None,
            retry_store_at: None,
            disk_free: None,
            warnings: Vec::new(),
            stop: None,
            wake_at: None,
            fronts: 0,
        };
        // The oldest last: it comes before the others that ran.
        for record in records.into_iter().rev() {
            desk.restore(record);
        }
        let actions = desk.finish_step(true);
        (desk, actions)
    }

    /// One step: what happened, and what is to be done.
    pub fn step(&mut self, now: Now, event: DeskEvent) -> Vec<Action> {
        self.now = Now { ms: now.ms.max(self.now.ms), unix_ms: now.unix_ms };
        // What a run tells on its way changes nothing of the queue.
        let is_under_way =
            matches!(event, DeskEvent::Runner { said: Said::Progress(_) | Said::Preview(_), .. });
        match event {
            DeskEvent::Asked { ticket, asker, ask } => self.asked(ticket, &asker, ask),
            DeskEvent::Left { ticket } => self.left(ticket),
            DeskEvent::Quoted { query, result } => self.quoted(query, result),
            DeskEvent::Weighed { query, result } => self.weighed(query, result),
            DeskEvent::Regained { query, result } => self.regained(query, result),
            DeskEvent::Joined { query, result } => self.joined(query, result),
            DeskEvent::Runner { slot, epoch, said } => self.said(slot, epoch, said),
            DeskEvent::Stored { write, result } => self.stored(write, result),
            DeskEvent::Filed { job, pictures, error } => self.filed(&job, pictures, error),
            DeskEvent::Models(models) => self.set_models(models),
            DeskEvent::DiskFree(bytes) => self.disk_free = Some(bytes),
            DeskEvent::Free(slots) => self.free_seen(&slots),
            DeskEvent::Lanes(lanes) => self.lanes = lanes,
            DeskEvent::Warned(warning) => self.warnings.push(warning),
            DeskEvent::Rang => self.wake_at = None,
            DeskEvent::Signal(OperatorSignal::Stop) => self.stop_signal(),
            DeskEvent::Signal(OperatorSignal::Reload) => {}
        }
        // Nothing begins for it either.
        let mut actions = self.finish_step(!is_under_way || !self.is_busy());
        if !is_under_way {
            self.ask_company();
            actions.append(&mut self.out);
        }
        actions
    }

    /// What follows from time and from what happened: whoever may start does.
    fn finish_step(&mut self, may_begin: bool) -> Vec<Action> {
        self.expire();
        if may_begin {
            self.dispatch();
        }
        self.go_on_stopping();
        self.set_timer();
        std::mem::take(&mut self.out)
    }

    fn asked(&mut self, ticket: Ticket, asker: &Asker, ask: Ask) {
        match ask {
            Ask::Submit { id, order, wait } => self.submit(ticket, id, *order, wait),
            Ask::Plan { request, model, explain } => {
                self.plan_only(ticket, *request, model, explain);
            }
            Ask::Show(id) => self.show(ticket, asker, &id),
            Ask::List(filter) => self.list(ticket, asker, &filter),
            Ask::Cancel(id) => self.cancel_asked(ticket, asker, &id),
            Ask::InterruptSdapi => self.interrupt_sdapi(ticket, asker),
            Ask::Retry { id, new } => self.retry(ticket, asker, &id, new),
            Ask::Reorder { id, class, front } => self.reorder(ticket, asker, &id, class, front),
            Ask::Delete(id) => self.delete(ticket, asker, &id),
            Ask::Pause { unload } => self.pause(ticket, unload),
            Ask::Resume => self.resume(ticket),
            Ask::Queue => self.show_queue(ticket, asker),
            Ask::Models => self.show_models(ticket),
            Ask::LoadModel { model, keep_alive } => self.load_model(ticket, model, keep_alive),
            Ask::UnloadModel { model } => self.unload_model(ticket, &model),
            Ask::Checkpoint(model) => self.checkpoint(ticket, model),
            Ask::Acknowledge => self.acknowledge(ticket),
            Ask::Drain => self.drain(ticket),
            Ask::Ready => self.ready(ticket),
        }
    }

    fn set_models(&mut self, models: Vec<ServedModel>) {
        let is_first = self.models.is_empty();
        self.models = models.into_iter().map(|model| (model.name.clone(), model)).collect();
        let models = &self.models;
        self.broken.retain(|name, (modified_ms, _)| {
            models.get(name).is_some_and(|model| model.modified_ms == *modified_ms)
        });
        if is_first {
            let preloaded = self.models.values().filter(|model| model.preload);
            self.loads.extend(preloaded.map(|model| (model.name.clone(), None)));
        }
    }

    /// Keeps a change, and goes on with `then` once it is on the disk.
    fn store(&mut self, change: action::Change, then: Then) {
        let write = self.ids.write();
        self.out.push(Action::Store(write, change.clone()));
        self.writes.insert(write, PendingWrite { change, then });
    }

    fn stored(&mut self, write: WriteId, result: Result<(), String>) {
        let Some(pending) = self.writes.remove(&write) else { return };
        if let Err(because) = result {
            tracing::warn!(%because, "the store cannot write");
            self.store_fault = Some(because);
            self.not_stored(pending);
            return;
        }
        self.store_fault = None;
        match pending.then {
            Then::Accept(id) => self.accepted(&id),
            Then::Run(id, slot) => self.begin_run(&id, slot),
            Then::End(id) => self.ended(&id),
            Then::Requeue(id) => self.requeued(&id),
            Then::Nothing => {}
        }
    }

    /// A job that is not kept is not accepted; everything else is written again.
    fn not_stored(&mut self, pending: PendingWrite) {
        match &pending.then {
            Then::Accept(id) => {
                let id = id.clone();
                self.not_accepted(&id);
                // Something must be written again for it to be known that it can be.
                let change = action::Change::Settings(self.settings.clone());
                self.failed_writes.push(PendingWrite { change, then: Then::Nothing });
                self.retry_store_at.get_or_insert(self.now.ms + config::STORE_RETRY_MS);
                return;
            }
            // Who waits is answered: the pictures are there.
            Then::End(id) => {
                let id = id.clone();
                self.answer_waiters(&id);
            }
            _ => {}
        }
        self.failed_writes.push(pending);
        self.retry_store_at.get_or_insert(self.now.ms + config::STORE_RETRY_MS);
    }

    fn retry_writes(&mut self) {
        if self.retry_store_at.is_none_or(|at| self.now.ms < at) {
            return;
        }
        self.retry_store_at = None;
        for PendingWrite { change, then } in std::mem::take(&mut self.failed_writes) {
            // Newer records may have been kept meanwhile: none of them is undone.
            let change = match change {
                // What has ended was kept, all of it, after this one failed.
                action::Change::Put(old) => match self.jobs.get(&old.id) {
                    Some(entry) if entry.whole => {
                        action::Change::Put(Box::new((*entry.record).clone()))
                    }
                    _ => continue,
                },
                action::Change::Settings(_) => action::Change::Settings(self.settings.clone()),
                other => other,
            };
            self.store(change, then);
        }
    }

    /// Refuses a question.
    fn refuse(&mut self, ticket: Ticket, error: JobError, retry_after_s: Option<u64>) {
        let reply = action::Reply::Refused { error: Box::new(error), retry_after_s };
        self.out.push(Action::Answer(ticket, reply));
    }
}
