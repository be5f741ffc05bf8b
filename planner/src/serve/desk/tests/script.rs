//! A desk that is driven by hand, and its actions as words.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use protocol::{Bytes, UsageReport};
use serde_json::Value;

use super::super::Desk;
use super::super::action::{Action, Change, DeskSettings, Note, Reply};
use super::super::config::DeskConfig;
use super::super::event::{
    Ask, DeskEvent, FiledPicture, FinishedWork, FreeMemory, GainTimes, JoinTimes, MadePicture, Now,
    QueryId, Quoted, RoomTimes, Said, SlotFree, SlotId, Ticket, WriteId,
};
use super::super::job::{JobOrder, JobRecord, Offer, PictureRecord};
use super::{asker, job_id, offer, order, served};
use crate::engine::lanes::Lanes;
use crate::job::infotext::Settings;
use crate::job::model::ModelName;

/// A desk, and what it did so far.
pub struct Script {
    desk: Desk,
    now_ms: u64,
    pub text: String,
    /// The last record that was to be kept.
    pub last: JobRecord,
    /// The last question to the surveyor.
    pub query: u64,
    /// The last one about room beside what runs, and its model, until it is taken.
    pub beside: Option<(u64, String)>,
}

impl Script {
    pub fn new(config: DeskConfig) -> Script {
        Script::restored(config, Vec::new())
    }

    pub fn restored(config: DeskConfig, records: Vec<JobRecord>) -> Script {
        let settings = DeskSettings::default();
        let (desk, actions) = Desk::new(config, settings, records, BTreeMap::new(), Now::default());
        let last = empty_record();
        let mut script =
            Script { desk, now_ms: 0, text: String::new(), last, query: 0, beside: None };
        script.note("start", &actions);
        script.event("models", DeskEvent::Models(["one", "two"].map(served).to_vec()));
        script
    }

    pub fn event(&mut self, what: &str, event: DeskEvent) {
        let now = Now { ms: self.now_ms, unix_ms: 1_000_000 + self.now_ms };
        let actions = self.desk.step(now, event);
        self.note(what, &actions);
    }

    fn note(&mut self, what: &str, actions: &[Action]) {
        for action in actions {
            if let Action::Store(_, Change::Put(record)) = action {
                self.last = (**record).clone();
            }
            if let Action::Survey(query, _) | Action::Join(query, _) | Action::Weigh(query, _) =
                action
            {
                self.query = query.0;
            }
            if let Action::Weigh(query, order) = action
                && let ModelName::Name(name) = &order.request.model
                && !order.running.is_empty()
            {
                self.beside = Some((query.0, name.clone()));
            }
        }
        if actions.is_empty() && what == "start" || what == "models" && actions.is_empty() {
            return;
        }
        let _ = writeln!(self.text, "{} {what}", self.now_ms);
        for action in actions {
            let _ = writeln!(self.text, "  {}", words(action));
        }
    }

    pub fn later(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    pub fn submit(&mut self, number: u64, order: JobOrder, wait: bool) {
        let ask = Ask::Submit { id: job_id(number), order: Box::new(order), wait };
        self.ask(number, ask);
    }

    pub fn ask(&mut self, ticket: u64, ask: Ask) {
        let what = format!("asked {ticket}");
        let asker = asker("ann");
        self.event(&what, DeskEvent::Asked { ticket: Ticket(ticket), asker, ask });
    }

    pub fn quoted(&mut self, query: u64, load_ms: f64, run_ms: f64, batch: u32) {
        let plan = Arc::new(Value::Null);
        let quoted = Quoted { offer: offer(load_ms, run_ms, batch), plan };
        let result = Ok(Box::new(quoted));
        self.event("quoted", DeskEvent::Quoted { query: QueryId(query), result });
    }

    /// The same of a plan on these lanes, which one run makes.
    pub fn quoted_on(&mut self, query: u64, lanes: &[&str], run_ms: f64) {
        let lanes = Lanes::named(lanes.iter().copied());
        let offer = Offer { lanes, ..offer(500.0, run_ms, 1) };
        let quoted = Quoted { offer, plan: Arc::new(Value::Null) };
        let result = Ok(Box::new(quoted));
        self.event("quoted", DeskEvent::Quoted { query: QueryId(query), result });
    }

    /// What computes one thing at a time.
    pub fn lanes(&mut self, lanes: &[&str]) {
        self.event("lanes", DeskEvent::Lanes(Lanes::named(lanes.iter().copied())));
    }

    /// A run's plan is known.
    pub fn planned_on(&mut self, slot: u32, epoch: u64, lanes: &[&str]) {
        let lanes = Lanes::named(lanes.iter().copied());
        let said = Said::Planned { plan: Arc::new(Value::Null), lanes, loads: true, because: None };
        self.said(slot, epoch, "planned", said);
    }

    /// What a job takes beside what runs, on these lanes; `None` where it does not fit.
    pub fn weighed_on(&mut self, query: u64, lanes: Option<(&[&str], f64)>) {
        let times = lanes.map(|(lanes, job_ms)| {
            let lanes = Lanes::named(lanes.iter().copied());
            RoomTimes { job_ms, next_ms: job_ms, lanes }
        });
        let result = Ok(vec![times]);
        self.event("weighed", DeskEvent::Weighed { query: QueryId(query), result });
    }

    /// What a job takes by each choice: with its load, and once more.
    pub fn weighed(&mut self, query: u64, times: &[Option<(f64, f64)>]) {
        let times = times.iter().map(|times| {
            let (job_ms, next_ms) = (*times)?;
            Some(RoomTimes { job_ms, next_ms, lanes: Lanes::named(["host"]) })
        });
        let result = Ok(times.collect());
        self.event("weighed", DeskEvent::Weighed { query: QueryId(query), result });
    }

    /// What was free for a slot's model when its plan was made, and is now, in MiB.
    pub fn free(&mut self, slot: u32, planned: u64, now: u64) {
        let memory = FreeMemory { planned: Bytes::mib(planned), now: Bytes::mib(now) };
        let free = SlotFree { slot: SlotId(slot), memories: vec![memory] };
        self.event("free", DeskEvent::Free(vec![free]));
    }

    /// What the surveyor says of a plan for what is free now.
    pub fn regained(&mut self, query: u64, times: Option<(f64, f64)>) {
        let times = times.map(|(load_ms, saved_ms)| GainTimes { load_ms, saved_ms });
        self.event("regained", DeskEvent::Regained { query: QueryId(query), result: Ok(times) });
    }

    /// These of the jobs that were asked about gain by running together.
    pub fn joined(&mut self, query: u64, jobs: &[usize], run_ms: f64) {
        let times = JoinTimes { jobs: jobs.to_vec(), load_ms: 0.0, run_ms };
        let result = Ok((!jobs.is_empty()).then_some(times));
        self.event("joined", DeskEvent::Joined { query: QueryId(query), result });
    }

    pub fn stored(&mut self, write: u64) {
        self.event("stored", DeskEvent::Stored { write: WriteId(write), result: Ok(()) });
    }

    pub fn said(&mut self, slot: u32, epoch: u64, what: &str, said: Said) {
        self.event(what, DeskEvent::Runner { slot: SlotId(slot), epoch, said });
    }

    pub fn done(&mut self, slot: u32, epoch: u64, seeds: &[u64]) {
        let pictures = seeds.iter().enumerate().map(|(index, seed)| MadePicture {
            index: index as u32,
            seed: *seed,
            width: 8,
            height: 8,
            pixels: Arc::default(),
            settings: Settings::default(),
        });
        let work = FinishedWork {
            pictures: pictures.collect(),
            usage: UsageReport::default(),
            predicted_ms: 1.0,
            measured_ms: 1.0,
            idle_bytes: Vec::new(),
            failures: Vec::new(),
            notices: Vec::new(),
        };
        self.said(slot, epoch, "done", Said::Done(Box::new(work)));
    }

    pub fn filed(&mut self, job: u64, seeds: &[u64], error: Option<&str>) {
        let pictures = seeds.iter().enumerate().map(|(index, seed)| FiledPicture {
            record: PictureRecord {
                index: index as u32,
                seed: *seed,
                width: 8,
                height: 8,
                size_bytes: 100,
                file: Some(format!("{seed}.png")),
                infotext: String::new(),
            },
            png: Arc::default(),
        });
        let pictures = pictures.collect();
        let error = error.map(str::to_owned);
        self.event("filed", DeskEvent::Filed { job: job_id(job), pictures, error });
    }

    /// A job that is accepted, begun and computing, with writes from `write` on.
    pub fn running(&mut self, number: u64, order: JobOrder, write: u64) {
        self.submit(number, order, false);
        self.quoted(number, 500.0, 2000.0, 4);
        self.stored(write);
        self.stored(write + 1);
        self.said(1, 1, "started", Said::Started { pid: 77 });
    }

    #[track_caller]
    pub fn did(&mut self, expected: &str) {
        let did = std::mem::take(&mut self.text);
        let lines = |text: &str| -> Vec<String> {
            let lines = text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty());
            lines.map(|line| line.trim().to_owned()).collect()
        };
        assert_eq!(lines(&did), lines(expected), "\n{did}");
    }
}

/// A record that stands for none.
pub fn empty_record() -> JobRecord {
    JobRecord {
        id: job_id(0),
        order: order("one", "ann", 1),
        offer: offer(0.0, 1000.0, 1),
        ..crate::serve::testing::record("")
    }
}

fn words(action: &Action) -> String {
    let short = |id: &super::JobId| id.0.trim_start_matches('0').to_owned();
    match action {
        Action::Answer(Ticket(ticket), reply) => format!("answer {ticket} {}", answer(reply)),
        Action::Tell(Note::State(view)) => {
            format!("tell {} {:?}", short(&view.record.id), view.state)
        }
        Action::Tell(Note::Model(model, state)) => format!("tell {model} {state:?}"),
        Action::Tell(Note::Progress(id, _)) => format!("tell {} progress", short(id)),
        Action::Tell(Note::Reordered(id, class)) => format!("tell {} {class:?}", short(id)),
        Action::Tell(_) => "tell".to_owned(),
        Action::Survey(QueryId(query), order) => {
            let unloaded: Vec<u32> = order.unloaded.iter().map(|SlotId(slot)| *slot).collect();
            let without =
                if unloaded.is_empty() { String::new() } else { format!(" without {unloaded:?}") };
            format!("survey {query} busy {}{without}", order.busy)
        }
        Action::Weigh(QueryId(query), order) => {
            let choices: Vec<Vec<u32>> = order
                .choices
                .iter()
                .map(|choice| choice.iter().map(|SlotId(slot)| *slot).collect())
                .collect();
            let running: Vec<u32> = order.running.iter().map(|SlotId(slot)| *slot).collect();
            let beside =
                if running.is_empty() { String::new() } else { format!(" beside {running:?}") };
            format!("weigh {query} without {choices:?}{beside}")
        }
        Action::Regain(QueryId(query), order) => format!("regain {query} on {}", order.slot.0),
        Action::Join(QueryId(query), order) => {
            format!("join {query}: {} busy {}", order.requests.len(), order.busy)
        }
        Action::Run(SlotId(slot), epoch, order) => {
            let job = order.job.as_ref().map_or("none".to_owned(), short);
            let count = order.request.shape.batch.unwrap_or(0);
            let company = match order.company.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let anew = if order.anew { ", anew" } else { "" };
            format!("run {job} of {count}{company} on {slot}, epoch {epoch}{anew}")
        }
        Action::Cancel(SlotId(slot)) => format!("cancel {slot}"),
        Action::End(SlotId(slot), _) => format!("end {slot}"),
        Action::Store(WriteId(write), change) => match change {
            Change::Put(record) => {
                format!("store {write}: {} {:?}", short(&record.id), record.state)
            }
            Change::Remove(id) => format!("store {write}: without {}", short(id)),
            Change::Settings(settings) => format!("store {write}: paused {}", settings.paused),
        },
        Action::File(order) => format!("file {} from {}", short(&order.job), order.first),
        Action::Erase(record) => format!("erase {}", short(&record.id)),
        Action::Wake(ms) => format!("wake in {ms}"),
        Action::Exit(code) => format!("exit {code}"),
    }
}

fn answer(reply: &Reply) -> String {
    match reply {
        Reply::Refused { error, retry_after_s } => {
            let after = retry_after_s.map_or(String::new(), |s| format!(" again in {s} s"));
            format!("{:?}: {}{after}", error.code, error.message.lines().next().unwrap_or(""))
        }
        Reply::Job(view) => format!("job {:?}", view.state),
        Reply::Ended(view, filed) => format!("{:?} with {} files", view.state, filed.len()),
        Reply::Quote { wait_ms, evicts, .. } => format!("quote, wait {wait_ms}, ends {evicts:?}"),
        other => format!("{other:?}").chars().take(60).collect(),
    }
}
