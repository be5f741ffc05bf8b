//! Executors that take one job after the other: what stays loaded, what is sent again, and that
//! every job uses exactly what its plan states. The planner's library with the real executor, on
//! virtual devices.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use planner::engine::reservations::OtherReservations;
use planner::engine::session::{ExecutorProgram, Session, SessionError};
use planner::engine::supervise::{Listener, Outcome, Work, supervise};
use planner::engine::warm::{Holding, Warm};
use planner::inventory::Inventory;
use planner::planning::{PlanError, Request};
use planner::policy::{Objective, Policy, PolicyText};
use planner::profile::Profile;
use planner::self_test::SelfTests;
use planner::solve::Solution;
use protocol::message::{Preview, Progress};
use protocol::notice::Notice;
use protocol::usage::IdleUsage;
use protocol::{Bytes, Job, JobItem, JobShape, ModelSource, Residency};

use crate::support::{Home, fixture, plans};

mod conditioned;
mod series;
mod together;

/// What the executors of this process have spoken for is one list: who counts what stands in it
/// must be alone.
static SPOKEN_FOR: RwLock<()> = RwLock::new(());

/// Nobody looks.
struct Nobody;

impl Listener for Nobody {
    fn planned(&mut self, _: &Solution) -> Result<(), SessionError> {
        Ok(())
    }
    fn reused(&mut self) -> Result<(), SessionError> {
        Ok(())
    }
    fn progress(&mut self, _: Progress) {}
    fn notice(&mut self, _: &Notice) {}
    fn preview(&mut self, _: &Preview) {}
    fn retrying(&mut self, _: &SessionError) {}
}

/// A bench of one executor after the other, for one model on one host.
struct Bench {
    /// What the executors' program and files are in.
    home: Home,
    model: PathBuf,
    profile: String,
    _others_may: Option<RwLockReadGuard<'static, ()>>,
}

/// One virtual device behind a fast link, of so many MiB, and a host that only feeds it. The disk
/// is declared, so that plans do not follow what the page cache happens to hold.
fn one_device(mib: u64) -> String {
    format!(
        "name = \"one\"\n[host]\ncompute = false\nstorage_bandwidth = \"9GB/s\"\n[[device]]\n\
         kind = \"virtual\"\ntotal = \"{mib}MiB\"\noverhead = \"1MiB\"\nlink = \"8GiB/s\"\n"
    )
}

/// A job of this size and batch.
fn shape([width, height]: [u32; 2], batch: u32) -> JobShape {
    JobShape { width, height, steps: 2, batch, max_sequence_length: 32, ..JobShape::small() }
}

/// Pictures of one prompt.
fn job(prompt: &str, shape: &JobShape) -> Job {
    let item = |index| JobItem {
        prompt: prompt.to_owned(),
        prompt_2: None,
        negative_prompt: String::new(),
        seed: 7 + u64::from(index),
    };
    Job { items: (0..shape.batch).map(item).collect(), ..plans::job(shape) }
}

impl Bench {
    fn new(profile: String) -> Bench {
        let others_may = SPOKEN_FOR.read().unwrap_or_else(PoisonError::into_inner);
        Bench { _others_may: Some(others_may), ..Bench::alone_in_process(profile) }
    }

    /// The same for a test that holds [`SPOKEN_FOR`] alone.
    fn alone_in_process(profile: String) -> Bench {
        let model = fixture("flux_schnell");
        Bench { home: Home::new(), model, profile, _others_may: None }
    }

    /// A fresh executor.
    fn executor(&self) -> Warm {
        let path = self.home.path("executor");
        let body = format!("#!/bin/sh\nexec {} executor \"$@\"\n", env!("CARGO_BIN_EXE_berth"));
        std::fs::write(&path, body).expect("a script");
        std::process::Command::new("chmod").arg("+x").arg(&path).status().expect("chmod");
        let program = ExecutorProgram { path: Some(path), ..ExecutorProgram::default() };
        Warm::new(Session::start(&program, ()).expect("the executor starts"))
    }

    fn inventory(&self) -> Inventory {
        let profile = Profile::parse(&self.profile, "the test").expect("a profile");
        profile.inventory().expect("this machine's memory")
    }

    fn request(&self, shape: &JobShape, holding: Holding<'_>) -> Request {
        let mut inventory = self.inventory();
        holding.give_back(&mut inventory, true);
        let policy = Policy::of(&PolicyText::default()).expect("no wishes");
        let model = ModelSource::of(self.model.display().to_string());
        let budgets = policy.budgets(&inventory).expect("no caps");
        let request = Request::new(model, 16, shape.clone(), inventory, budgets, &policy);
        Request { objective: Objective::Throughput, ..request }
    }

    /// Runs a job.
    fn run(&self, warm: &mut Warm, shape: &JobShape, prompt: &str) -> Result<Outcome, PlanError> {
        self.run_job(warm, shape, job(prompt, shape))
    }

    fn run_job(&self, warm: &mut Warm, shape: &JobShape, job: Job) -> Result<Outcome, PlanError> {
        let inventorize = |holding: Holding<'_>| Ok(self.request(shape, holding));
        let work = Work::Generate(Box::new(job));
        supervise(warm, &SelfTests::under(None), &inventorize, &work, None, &mut Nobody)
    }

    /// The picture of a job on an executor of its own.
    fn alone(&self, shape: &JobShape, prompt: &str) -> Vec<u8> {
        let mut warm = self.executor();
        let outcome = self.run(&mut warm, shape, prompt).expect("it fits");
        warm.end();
        pictures(&outcome)
    }
}

/// All pixels of a job's pictures.
fn pictures(outcome: &Outcome) -> Vec<u8> {
    outcome.images.iter().flat_map(|image| image.pixels.to_vec()).collect()
}

/// Bytes of weights that a job sent to devices.
fn sent(outcome: &Outcome) -> u64 {
    outcome.usage.components.iter().map(|component| component.sent_bytes.0).sum()
}

/// Every phase of every device used what the plan states, and what stays is what it states.
fn assert_exact(outcome: &Outcome) {
    assert!(outcome.usage.devices.len() >= 2, "a device and the host");
    for device in &outcome.usage.devices {
        for phase in &device.phases {
            let [planned, used] = [phase.predicted_peak_bytes, phase.measured_peak_bytes];
            assert_eq!(planned, used, "{} in {}", device.id, phase.phase);
        }
        let Some(IdleUsage { predicted_bytes, measured_bytes }) = device.idle else {
            panic!("nobody looked at {} after the job", device.id);
        };
        assert_eq!(predicted_bytes, measured_bytes, "{} after the job", device.id);
    }
}
