//! A made-up world around the desk: executors, a surveyor, a store, files and clients, all of whom
//! take their time, die, hang and say what is long past, as random numbers have it.
//!
//! Everything happens by a heap of events in time, so a day takes seconds, and the same seed gives
//! the same day.

mod executors;
mod leisure;
mod memory;
mod surveyor;

use std::cmp::Reverse;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::super::Desk;
use super::super::action::{Action, Change, DeskSettings, FileOrder, Note, Reply, RunOrder};
use super::super::config::DeskConfig;
use super::super::event::{
    Ask, DeskEvent, FiledPicture, Now, OperatorSignal, Said, SlotId, Ticket, WriteId,
};
use super::super::job::{IdempotencyKey, JobId, JobRecord, JobState, OnDisconnect, PictureRecord};
use super::chance::{Faults, Random};
use super::{asker, config, job_id, order, served};
use crate::engine::lanes::Lanes;
use memory::MadePlan;

/// What will happen.
#[derive(Debug)]
enum Coming {
    Event(DeskEvent),
    /// Somebody does something.
    Client,
    /// A run's plan is made.
    Planning(SlotId, u64),
    /// A run's next attempt is planned.
    Again(SlotId, u64),
    /// A slot's executor ends by itself, if it is idle then.
    Loss(SlotId, u64),
    /// The watch reads what is free.
    Reading,
    /// The daemon is killed, and begins anew.
    Kill,
}

/// An executor.
#[derive(Debug, Default)]
struct Executor {
    epoch: u64,
    alive: bool,
    /// The run under way: what the desk has not been told the end of.
    running: Option<RunOrder>,
    cancelled: bool,
    /// Whether the run is the next one of the job that ran before.
    follows: bool,
    /// What is loaded, or about to be.
    plan: Option<MadePlan>,
    /// Whether the run computes by it.
    claimed: bool,
}

pub struct World {
    pub desk: Desk,
    pub random: Random,
    faults: Faults,
    config: DeskConfig,
    now_ms: u64,
    order: u64,
    heap: BinaryHeap<Reverse<(u64, u64)>>,
    coming: BTreeMap<u64, Coming>,
    executors: BTreeMap<SlotId, Executor>,
    /// What the disk has.
    disk: BTreeMap<JobId, JobRecord>,
    settings: DeskSettings,
    /// Open tickets: whether they wait for a job's end.
    tickets: BTreeSet<Ticket>,
    next_ticket: u64,
    next_job: u64,
    /// Jobs that somebody was told are accepted.
    pub accepted: BTreeSet<JobId>,
    /// The last state that was told of each.
    pub told: BTreeMap<JobId, JobState>,
    /// Pictures by job, as they were filed: place to times.
    pub made: BTreeMap<JobId, BTreeMap<u32, u32>>,
    pub exited: bool,
    /// How many runs began while another one went on.
    pub beside: u64,
    /// How many of them were in the other's way.
    pub in_the_way: u64,
    /// How many jobs ran with another one.
    pub joined: u64,
    /// How often a model was loaded anew for more free memory.
    pub regained: u64,
    /// How often the daemon was killed.
    pub kills: u64,
    pub steps: u64,
    wake: Option<u64>,
    /// Jobs that were told of, or kept, since the last check.
    touched: BTreeSet<JobId>,
    log: DefaultHasher,
    clients_left: u64,
}

/// All jobs are looked at each so many steps.
const ALL_CHECKED_EVERY: u64 = 256;

pub const MODELS: [&str; 3] = ["one", "two", "three"];

impl World {
    pub fn new(seed: u64, faults: Faults, clients: u64) -> World {
        let config =
            DeskConfig { queue_max: 40, room_wait_ms: 20_000, join_jobs: true, ..config() };
        let (desk, actions) = Desk::new(
            config.clone(),
            DeskSettings::default(),
            Vec::new(),
            BTreeMap::new(),
            Now::default(),
        );
        assert!(actions.is_empty(), "{actions:?}");
        let mut world = World {
            desk,
            random: Random::new(seed),
            faults,
            config,
            now_ms: 0,
            order: 0,
            heap: BinaryHeap::new(),
            coming: BTreeMap::new(),
            executors: BTreeMap::new(),
            disk: BTreeMap::new(),
            settings: DeskSettings::default(),
            tickets: BTreeSet::new(),
            next_ticket: 0,
            next_job: 0,
            accepted: BTreeSet::new(),
            told: BTreeMap::new(),
            made: BTreeMap::new(),
            exited: false,
            beside: 0,
            in_the_way: 0,
            joined: 0,
            regained: 0,
            kills: 0,
            steps: 0,
            wake: None,
            touched: BTreeSet::new(),
            log: DefaultHasher::new(),
            clients_left: clients,
        };
        world.at(0, Coming::Event(DeskEvent::Models(MODELS.map(served).to_vec())));
        let lanes = Lanes::named(memory::LANES);
        world.at(0, Coming::Event(DeskEvent::Lanes(lanes)));
        world.at(1, Coming::Client);
        world.at(2, Coming::Reading);
        world
    }

    /// What all actions so far come to.
    pub fn digest(&self) -> u64 {
        self.log.finish()
    }

    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    fn at(&mut self, in_ms: u64, coming: Coming) {
        self.order += 1;
        self.heap.push(Reverse((self.now_ms + in_ms, self.order)));
        self.coming.insert(self.order, coming);
    }

    fn event(&mut self, in_ms: u64, event: DeskEvent) {
        self.at(in_ms, Coming::Event(event));
    }

    /// Lets one thing happen; false where nothing is left.
    pub fn go_on(&mut self) -> bool {
        let Some(Reverse((at, order))) = self.heap.pop() else { return false };
        let Some(coming) = self.coming.remove(&order) else { return true };
        self.now_ms = at;
        match coming {
            Coming::Event(event) => self.step(event),
            Coming::Client => self.client(),
            Coming::Planning(slot, epoch) => self.plan(slot, epoch),
            Coming::Again(slot, epoch) => self.again(slot, epoch),
            Coming::Loss(slot, epoch) => self.lose(slot, epoch),
            Coming::Reading => self.reading(),
            Coming::Kill => self.kill(),
        }
        true
    }

    /// Until everything that was asked has come to its end.
    pub fn finish(&mut self) {
        self.faults = Faults::NONE;
        self.clients_left = 0;
        let limit = self.steps + 1_000_000;
        while self.go_on() {
            assert!(self.steps < limit, "it never ends");
        }
    }

    fn now(&self) -> Now {
        Now { ms: self.now_ms, unix_ms: 1_700_000_000_000 + self.now_ms }
    }

    pub fn step(&mut self, event: DeskEvent) {
        if self.exited {
            return;
        }
        if matches!(event, DeskEvent::Rang) {
            if self.wake != Some(self.now_ms) {
                return;
            }
            self.wake = None;
        }
        if let DeskEvent::Left { ticket } = &event {
            self.tickets.remove(ticket);
        }
        if let DeskEvent::Runner { slot, epoch, said } = &event {
            self.heard(*slot, *epoch, said);
        }
        self.steps += 1;
        let actions = self.desk.step(self.now(), event);
        for action in actions {
            format!("{action:?}").hash(&mut self.log);
            self.act(action);
        }
        self.check();
    }

    fn heard(&mut self, slot: SlotId, epoch: u64, said: &Said) {
        let Some(executor) = self.executors.get_mut(&slot).filter(|e| e.epoch == epoch) else {
            return;
        };
        if matches!(
            said,
            Said::Done(_) | Said::Cancelled | Said::InTheWay | Said::Failed { .. } | Said::Gone
        ) {
            executor.running = None;
            executor.cancelled = false;
            executor.claimed = false;
        }
        if matches!(said, Said::Failed { .. } | Said::Gone) {
            executor.plan = None;
        }
        if matches!(said, Said::Gone) {
            executor.alive = false;
        }
    }

    /// What must hold after each step: of the jobs that it was about, and once in a while of all.
    fn check(&mut self) {
        let unplanned = self.executors.values().filter(|e| e.running.is_some() && !e.claimed);
        let unplanned =
            unplanned.filter(|executor| !executor.cancelled && !executor.follows).count();
        assert!(unplanned <= 1, "two runs are planned at a time: {:?}", self.executors);
        self.check_room();
        self.check_nothing_idles();
        let mut touched = std::mem::take(&mut self.touched);
        if self.steps.is_multiple_of(ALL_CHECKED_EVERY) {
            touched.extend(self.told.keys().chain(self.desk.jobs.keys()).cloned());
        }
        touched.iter().for_each(|id| self.check_job(id));
    }

    fn check_job(&self, id: &JobId) {
        if let Some(state) = self.told.get(id) {
            let Some(kept) = self.disk.get(id) else {
                panic!("{id} is told of as {state:?}, and the store does not know it");
            };
            assert!(!state.is_ended() || kept.state == *state, "{id}");
        }
        // Of what has ended, the store alone has all.
        if let Some(entry) = self.desk.jobs.get(id) {
            let record = &entry.record;
            assert_eq!(entry.whole, !entry.state.is_ended() || entry.closing, "{id}");
            assert!(entry.whole || record.plan.is_none() && record.usage.is_none(), "{id}");
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Answer(ticket, reply) => self.answered(ticket, reply),
            Action::Tell(Note::State(view)) => {
                self.touched.insert(view.record.id.clone());
                self.told.insert(view.record.id.clone(), view.state);
            }
            Action::Tell(_) | Action::Erase(_) => {}
            Action::Survey(query, order) => {
                assert!(order.request.seed.is_some());
                self.survey(query);
            }
            Action::Weigh(query, order) => self.weigh(query, &order),
            Action::Join(query, order) => self.join(query, &order),
            Action::Regain(query, order) => self.regain(query, &order),
            Action::Run(slot, epoch, order) => self.run(slot, epoch, *order),
            Action::Cancel(slot) => self.cancel(slot),
            Action::End(slot, _) => {
                let executor = self.executors.entry(slot).or_default();
                assert!(executor.running.is_none(), "a slot that computes is ended");
                let epoch = executor.epoch;
                let in_ms = 5 + self.random.below(3000);
                self.event(in_ms, DeskEvent::Runner { slot, epoch, said: Said::Gone });
            }
            Action::Store(write, change) => self.keep(write, change),
            Action::File(order) => self.file(*order),
            Action::Wake(in_ms) => {
                self.wake = Some(self.now_ms + in_ms);
                self.event(in_ms, DeskEvent::Rang);
            }
            Action::Exit(code) => {
                assert_eq!(code, 0);
                self.exited = true;
            }
        }
    }

    fn answered(&mut self, ticket: Ticket, reply: Reply) {
        assert!(self.tickets.remove(&ticket), "answered twice, or nobody asked: {reply:?}");
        match reply {
            Reply::Job(view) => {
                self.accepted.insert(view.record.id.clone());
            }
            Reply::Ended(view, _) => {
                self.accepted.insert(view.record.id.clone());
                assert!(view.state.is_ended(), "{view:?}");
            }
            Reply::Refused { error, .. } => assert!(!error.message.is_empty()),
            _ => {}
        }
    }

    fn keep(&mut self, write: WriteId, change: Change) {
        let result = match self.random.of_thousand(self.faults.writes) {
            true => Err("the disk is full".to_owned()),
            false => Ok(()),
        };
        if result.is_ok() {
            match change {
                Change::Put(record) => {
                    let before = self.disk.get(&record.id).and_then(|kept| kept.usage.as_ref());
                    assert!(record.usage.is_some() || before.is_none(), "{} is cut", record.id);
                    self.touched.insert(record.id.clone());
                    self.disk.insert(record.id.clone(), *record);
                }
                Change::Remove(id) => {
                    self.disk.remove(&id);
                    self.told.remove(&id);
                }
                Change::Settings(settings) => self.settings = settings,
            }
        }
        let in_ms = 1 + self.random.below(5);
        // In order: the store is one thread.
        self.event(in_ms, DeskEvent::Stored { write, result });
    }

    fn file(&mut self, order: FileOrder) {
        let fails = self.random.of_thousand(self.faults.files);
        let made = self.made.entry(order.job.clone()).or_default();
        let pictures = order.pictures.into_iter().map(|picture| {
            let index = order.first + picture.index;
            *made.entry(index).or_default() += 1;
            let record = PictureRecord {
                index,
                seed: picture.seed,
                width: 8,
                height: 8,
                size_bytes: 100,
                file: (!fails).then(|| format!("{}-{index}.png", order.job)),
                infotext: String::new(),
            };
            FiledPicture { record, png: Arc::default() }
        });
        let pictures = pictures.collect();
        let error = fails.then(|| "no room".to_owned());
        let in_ms = 10 + self.random.below(100);
        self.event(in_ms, DeskEvent::Filed { job: order.job, pictures, error });
    }

    /// A client does something, and another one comes later.
    fn client(&mut self) {
        if self.clients_left == 0 {
            return;
        }
        self.clients_left -= 1;
        let client = format!("client {}", self.random.below(5));
        let ask = self.ask();
        let ticket = self.ticket();
        if self.random.of_thousand(self.faults.leaving) {
            let in_ms = self.random.below(5000);
            self.event(in_ms, DeskEvent::Left { ticket });
        }
        if self.random.of_thousand(self.faults.restarts) {
            let in_ms = self.random.below(5000);
            self.at(in_ms, Coming::Kill);
        }
        self.step(DeskEvent::Asked { ticket, asker: asker(&client), ask });
        let in_ms = self.random.below(6000);
        self.at(in_ms, Coming::Client);
    }

    pub fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.tickets.insert(ticket);
        ticket
    }

    fn ask(&mut self) -> Ask {
        if self.next_job > 0 && self.random.of_thousand(self.faults.cancels) {
            let id = job_id(1 + self.random.below(self.next_job));
            return match self.random.below(4) {
                0 => Ask::Show(id),
                1 => Ask::Delete(id),
                2 => Ask::Reorder { id, class: None, front: Some(true) },
                _ => Ask::Cancel(id),
            };
        }
        self.next_job += 1;
        let model = MODELS[self.random.below(3) as usize];
        let client = format!("client {}", self.random.below(5));
        let count = 1 + self.random.below(4) as u32;
        let mut order = order(model, &client, count);
        if self.random.below(4) == 0 {
            order.deadline_ms = Some(5000 + self.random.below(60_000));
        }
        if self.random.below(4) == 0 {
            let key = format!("key {}", self.random.below(1 + self.next_job));
            let body_sha256 = format!("{}", self.random.below(2));
            order.idempotency = Some(IdempotencyKey { key, body_sha256 });
        }
        if self.random.below(3) == 0 {
            order.on_disconnect = OnDisconnect::Finish;
        }
        let wait = self.random.below(2) == 0;
        Ask::Submit { id: job_id(self.next_job), order: Box::new(order), wait }
    }

    /// The daemon ends at once: what the disk has is all that is left.
    fn kill(&mut self) {
        self.kills += 1;
        self.coming
            .retain(|_, coming| matches!(coming, Coming::Client | Coming::Kill | Coming::Reading));
        self.executors.clear();
        self.tickets.clear();
        self.wake = None;
        // Pictures whose record was not kept are made again: their files have the same names.
        for (id, made) in &mut self.made {
            let kept = self.disk.get(id).map_or(0, |record| record.pictures.len() as u32);
            made.retain(|index, _| *index < kept);
        }
        let records: Vec<JobRecord> = self.disk.values().cloned().collect();
        let (desk, actions) = Desk::new(
            self.config.clone(),
            self.settings.clone(),
            records,
            BTreeMap::new(),
            self.now(),
        );
        self.desk = desk;
        for action in actions {
            self.act(action);
        }
        self.event(0, DeskEvent::Models(MODELS.map(served).to_vec()));
        self.event(0, DeskEvent::Lanes(Lanes::named(memory::LANES)));
    }

    /// Jobs of which somebody was told, that are not at their end on the disk.
    pub fn unfinished(&self) -> Vec<&JobId> {
        let ended = |id: &&JobId| self.disk.get(*id).is_some_and(|record| !record.state.is_ended());
        self.disk.keys().filter(ended).collect()
    }

    pub fn records(&self) -> impl Iterator<Item = &JobRecord> {
        self.disk.values()
    }

    pub fn open_tickets(&self) -> usize {
        self.tickets.len()
    }

    pub fn stop(&mut self) {
        self.step(DeskEvent::Signal(OperatorSignal::Stop));
    }
}
