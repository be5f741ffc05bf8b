//! Free memory that is less when it is looked at again, just before the plan's load: that plan is
//! not tried. The planner's library with the real executor, and inventories that the test makes.

use std::cell::Cell;

use planner::engine::session::{ExecutorProgram, Session, SessionError};
use planner::engine::supervise::{Listener, Outcome, Work, supervise};
use planner::engine::warm::{Holding, Warm};
use planner::job::FailedAttempt;
use planner::planning::{PlanError, Request};
use planner::policy::{Policy, PolicyText};
use planner::profile::Profile;
use planner::self_test::SelfTests;
use planner::solve::Solution;
use protocol::message::{Preview, Progress};
use protocol::notice::Notice;
use protocol::{Bytes, DeviceId, JobShape, ModelSource, Plan};

use super::script;
use crate::support::{Home, fixture};

/// What a listener heard.
#[derive(Default)]
struct Heard {
    /// Generations of the plans that were about to be loaded.
    planned: Vec<u64>,
    retries: u32,
}

impl Listener for Heard {
    fn planned(&mut self, solution: &Solution) -> Result<(), SessionError> {
        self.planned.push(solution.plan.generation);
        Ok(())
    }
    fn reused(&mut self) -> Result<(), SessionError> {
        Ok(())
    }

    fn progress(&mut self, _: Progress) {}
    fn notice(&mut self, _: &Notice) {}
    fn preview(&mut self, _: &Preview) {}
    fn retrying(&mut self, _: &SessionError) {
        self.retries += 1;
    }
}

/// The fixture's job on one virtual device of 64 MiB of which this much is free, and a host that
/// only feeds it. The disk is declared, so that plans do not follow what the page cache happens to
/// hold.
fn request(free: Bytes) -> Request {
    let used = Bytes::mib(64) - free;
    let profile = format!(
        "name = \"one\"\n[host]\ncompute = false\nstorage_bandwidth = \"9GB/s\"\n[[device]]\n\
         kind = \"virtual\"\ntotal = \"64MiB\"\nused_by_others = \"{}B\"\nlink = \"1GiB/s\"\n",
        used.0
    );
    let profile = Profile::parse(&profile, "the test").expect("a profile");
    let inventory = profile.inventory().expect("this machine's memory");
    let policy = Policy::of(&PolicyText::default()).expect("no wishes");
    let job =
        JobShape { width: 64, height: 64, steps: 2, max_sequence_length: 32, ..JobShape::small() };
    let model = ModelSource::of(fixture("flux_schnell").display().to_string());
    let budgets = policy.budgets(&inventory).expect("no caps");
    Request::new(model, 16, job, inventory, budgets, &policy)
}

/// Rehearses the job where this much is free when it is looked at for the first time, and then the
/// rest.
fn rehearse(
    first: Bytes,
    then: Bytes,
    given: Option<&Plan>,
) -> (Result<Outcome, PlanError>, Heard) {
    let home = Home::new();
    script(&home, &format!("exec {} executor \"$@\"", env!("CARGO_BIN_EXE_berth")));
    let program =
        ExecutorProgram { path: Some(home.path("executor")), ..ExecutorProgram::default() };
    let session = Session::start(&program, ()).expect("the executor starts");
    let looked = Cell::new(0);
    let inventorize = |_: Holding<'_>| {
        Ok(request(if looked.replace(looked.get() + 1) == 0 { first } else { then }))
    };
    let (mut warm, mut heard) = (Warm::new(session), Heard::default());
    let self_tests = SelfTests::under(None);
    let result =
        supervise(&mut warm, &self_tests, &inventorize, &Work::Rehearse, given, &mut heard);
    (result, heard)
}

#[test]
fn a_plan_that_no_longer_fits_is_not_tried() {
    let ample = Bytes::mib(64);
    let (whole, heard) = rehearse(ample, ample, None);
    let whole = whole.expect("there is room");
    assert_eq!((whole.attempts, heard.planned, heard.retries), (1, vec![1], 0));
    let needed = whole.plan.devices[0].peak_bytes;

    // Exactly enough is enough.
    let (same, heard) = rehearse(ample, needed, None);
    assert_eq!((same.expect("there is room").attempts, heard.planned), (1, vec![1]));

    let less = needed - Bytes(1);
    let (smaller, heard) = rehearse(ample, less, None);
    let smaller = smaller.expect("a smaller plan fits");
    assert_eq!((heard.planned, heard.retries), (vec![2], 1));
    assert_eq!((smaller.attempts, smaller.plan.generation), (2, 2));
    assert!(smaller.plan.devices[0].peak_bytes <= less);
    let [FailedAttempt { generation, phase, device, reason, requested_bytes, free_bytes }] =
        smaller.failures.as_slice()
    else {
        panic!("{:?}", smaller.failures);
    };
    assert_eq!((*generation, *phase), (1, None));
    assert_eq!(*device, Some(DeviceId("virtual0".to_owned())));
    assert_eq!((*requested_bytes, *free_bytes), (Some(needed), Some(less)));
    assert!(reason.contains("just before loading"), "{reason}");
}

#[test]
fn a_given_plan_that_no_longer_fits_is_refused_with_the_reason() {
    let ample = Bytes::mib(64);
    let plan = rehearse(ample, ample, None).0.expect("there is room").plan;
    let less = plan.devices[0].peak_bytes - Bytes(1);
    let (refused, heard) = rehearse(ample, less, Some(&plan));
    let error = refused.expect_err("it does not fit").to_string();
    assert!(error.contains("virtual0 has") && error.contains("just before loading"), "{error}");
    assert!(heard.planned.is_empty(), "it was not loaded");
    let (run, _) = rehearse(ample, ample, Some(&plan));
    assert_eq!(run.expect("there is room").attempts, 1);
}
