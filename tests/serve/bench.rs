//! The daemon's threads without the daemon: runners and a surveyor on a host of virtual devices,
//! with real executors.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use planner::calibration::{Calibration, Machine, Store};
use planner::engine::host::Host;
use planner::engine::session::ExecutorProgram;
use planner::job::JobRequest;
use planner::job::model::ModelName;
use planner::job::request::{Prompts, ShapeRequest};
use planner::job::seed::Seed;
use planner::policy::PolicyText;
use planner::profile::Profile;
use planner::profile::layers::Layered;
use planner::self_test::SelfTests;
use planner::serve::config::CONDITIONING_CACHE;
use planner::serve::desk::action::{GainOrder, JoinOrder, QuoteOrder, RunOrder};
use planner::serve::desk::event::{
    DeskEvent, FinishedWork, GainTimes, JoinTimes, QueryId, Quoted, Said, SlotId,
};
use planner::serve::desk::job::{JobError, JobId};
use planner::serve::runner::Runners;
use planner::serve::shared::ServedHost;
use planner::serve::surveyor::Surveyor;
use protocol::ModelSource;

use crate::support::watched::{PATIENCE, Process};
use crate::support::{Home, fixture};

/// The one slot of these tests.
pub const SLOT: SlotId = SlotId(3);

/// Runners and a surveyor.
pub struct Bench {
    home: Home,
    pub runners: Runners,
    pub surveyor: Surveyor,
    events: Receiver<DeskEvent>,
    _sender: Sender<DeskEvent>,
    epoch: u64,
    queries: u64,
}

/// One virtual device of so many MiB behind a link of this rate, and a host that only feeds it.
pub fn one_device(mib: u64, link: &str) -> String {
    format!(
        "name = \"one\"\n[host]\ncompute = false\nstorage_bandwidth = \"9GB/s\"\n[[device]]\n\
         kind = \"virtual\"\ntotal = \"{mib}MiB\"\noverhead = \"1MiB\"\nlink = \"{link}\"\n"
    )
}

/// A job of the only model: two steps of a small picture.
pub fn request() -> JobRequest {
    JobRequest {
        model: ModelName::Name("small".to_owned()),
        prompts: Prompts { prompt: Some("a red circle".to_owned()), ..Prompts::default() },
        shape: ShapeRequest {
            width: Some(64),
            height: Some(64),
            steps: Some(2),
            batch: Some(1),
            max_sequence_length: Some(32),
        },
        seed: Some(Seed::Given(7)),
        ..JobRequest::default()
    }
}

impl Bench {
    pub fn new(profile: &str) -> Bench {
        Bench::with_model(profile, &fixture("flux_schnell"))
    }

    /// With another model than the usual one.
    pub fn with_model(profile: &str, model: &Path) -> Bench {
        let home = Home::new();
        let profile = Profile::parse(profile, "the test").expect("a profile");
        let store = Some(Store::under(&home.path("state")));
        let machine = Machine::this().expect("this machine");
        let host = Host {
            profile: Layered { profile, files: Vec::new(), host: None, names_devices: true },
            calibration: Calibration::read(machine, store).0,
            ignored: None,
            self_tests: SelfTests::under(None),
            conditioning_cache: CONDITIONING_CACHE,
        };
        let program = ExecutorProgram { path: Some(executor(&home)), ..ExecutorProgram::default() };
        let shared = Arc::new(ServedHost::new(host, PolicyText::default(), program));
        let model = ModelSource::of(model.display().to_string());
        shared.set_models(BTreeMap::from([("small".to_owned(), model)]), BTreeMap::new());
        let (sender, events) = channel();
        let runners = Runners::new(Arc::clone(&shared), sender.clone());
        let surveyor = Surveyor::start(shared, sender.clone()).expect("a thread");
        Bench { home, runners, surveyor, events, _sender: sender, epoch: 1, queries: 0 }
    }

    /// Orders a job.
    pub fn order(&mut self, request: JobRequest) {
        self.order_joined(request, Vec::new());
    }

    /// Orders a job with others in one run.
    pub fn order_joined(&mut self, request: JobRequest, company: Vec<JobRequest>) {
        let job = Some(JobId("01J".to_owned()));
        let order = RunOrder { job, request, company, model: "small".to_owned(), anew: false };
        self.runners.run(SLOT, self.epoch, Box::new(order));
    }

    /// Orders a load; `anew` by a better plan than the loaded one.
    pub fn order_load(&mut self, request: JobRequest, anew: bool) {
        let (company, model) = (Vec::new(), "small".to_owned());
        let order = RunOrder { job: None, request, company, model, anew };
        self.runners.run(SLOT, self.epoch, Box::new(order));
    }

    /// The next thing that the slot says.
    pub fn said(&self) -> Said {
        match self.events.recv_timeout(PATIENCE).expect("it says something") {
            DeskEvent::Runner { slot, epoch, said } => {
                assert_eq!((slot, epoch), (SLOT, self.epoch));
                said
            }
            other => panic!("{other:?}"),
        }
    }

    /// All that the slot says of an order, its end last.
    pub fn heard(&self) -> Vec<Said> {
        let mut heard = Vec::new();
        loop {
            let said = self.said();
            let is_end =
                matches!(said, Said::Done(_) | Said::Cancelled | Said::Failed { .. } | Said::Gone);
            heard.push(said);
            if is_end {
                return heard;
            }
        }
    }

    /// Waits until the slot says what this is about.
    pub fn until(&self, is_it: impl Fn(&Said) -> bool) {
        while !is_it(&self.said()) {}
    }

    /// Does a job, which must succeed.
    pub fn done(&mut self, request: JobRequest) -> (Vec<Said>, FinishedWork) {
        self.order(request);
        let mut heard = self.heard();
        match heard.pop() {
            Some(Said::Done(work)) => (heard, *work),
            other => panic!("{other:?}"),
        }
    }

    /// Does a job, which must fail.
    pub fn failed(&mut self, request: JobRequest) -> JobError {
        self.order(request);
        match self.heard().pop() {
            Some(Said::Failed { error, .. }) => *error,
            Some(Said::Done(work)) => panic!("{:?}", work.usage),
            other => panic!("{other:?}"),
        }
    }

    /// Ends the slot's executor.
    pub fn end(&mut self) {
        self.runners.end(SLOT);
        assert!(matches!(self.heard()[..], [Said::Gone]));
    }

    /// What a job would take.
    pub fn quote(&mut self, request: JobRequest) -> Result<Quoted, JobError> {
        let (explain, slot, busy) = (false, Some(SLOT), false);
        let order = QuoteOrder { request, explain, slot, unloaded: Vec::new(), busy };
        let query = self.query();
        self.surveyor.quote(query, Box::new(order));
        self.answer(query, |event| match event {
            DeskEvent::Quoted { query, result } => (query, result.map(|quoted| *quoted)),
            other => panic!("{other:?}"),
        })
    }

    /// What the slot's next jobs would gain by a plan for what is free now.
    pub fn regained(&mut self, request: JobRequest) -> Result<Option<GainTimes>, JobError> {
        let query = self.query();
        self.surveyor.regain(query, Box::new(GainOrder { request, slot: SLOT }));
        self.answer(query, |event| match event {
            DeskEvent::Regained { query, result } => (query, result),
            other => panic!("{other:?}"),
        })
    }

    /// Which jobs gain by running together.
    pub fn joined(&mut self, requests: Vec<JobRequest>) -> Result<Option<JoinTimes>, JobError> {
        let order = JoinOrder { requests, slot: Some(SLOT), unloaded: Vec::new(), busy: false };
        let query = self.query();
        self.surveyor.join(query, Box::new(order));
        self.answer(query, |event| match event {
            DeskEvent::Joined { query, result } => (query, result),
            other => panic!("{other:?}"),
        })
    }

    fn query(&mut self) -> QueryId {
        self.queries += 1;
        QueryId(self.queries)
    }

    /// The surveyor's answer to a question, which is the next that it says.
    fn answer<T>(&self, asked: QueryId, of: impl FnOnce(DeskEvent) -> (QueryId, T)) -> T {
        let (query, result) = of(self.events.recv_timeout(PATIENCE).expect("an answer"));
        assert_eq!(query, asked);
        result
    }

    /// The executors that were started, in order.
    pub fn executors(&self) -> Vec<u32> {
        let pids = std::fs::read_to_string(self.home.path("pids")).unwrap_or_default();
        pids.lines().map(|line| line.parse().expect("an id")).collect()
    }
}

/// The process that the slot has started last.
pub fn started(heard: &[Said]) -> Option<Process> {
    heard.iter().rev().find_map(|said| match said {
        Said::Started { pid } => Some(Process::open(*pid)),
        _ => None,
    })
}

/// Whether weights were loaded, for each plan that was told.
pub fn loads(heard: &[Said]) -> Vec<bool> {
    let loads = heard.iter().filter_map(|said| match said {
        Said::Planned { loads, .. } => Some(*loads),
        _ => None,
    });
    loads.collect()
}

/// A program that notes its process and becomes the executor.
fn executor(home: &Home) -> PathBuf {
    let (path, pids) = (home.path("executor"), home.path("pids"));
    let program = env!("CARGO_BIN_EXE_berth");
    let script =
        format!("#!/bin/sh\necho $$ >> '{}'\nexec '{program}' executor \"$@\"\n", pids.display());
    std::fs::write(&path, script).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("it may run");
    path
}
