//! Jobs that run together, by hand.

use super::super::config::{COMPANY_MS_MAX, DeskConfig};
use super::super::event::{Ask, DeskEvent, Said};
use super::super::job::{Class, ErrorCode, JobError, JobOrder};
use super::script::Script;
use super::{config, job_id, order};

fn joining() -> DeskConfig {
    DeskConfig { join_jobs: true, ..config() }
}

/// Jobs that wait behind a paused queue, whose state and records are written: as many and one more.
fn paused(orders: Vec<JobOrder>) -> Script {
    let mut script = Script::new(joining());
    script.ask(100, Ask::Pause { unload: false });
    script.stored(1);
    for (number, order) in (1..).zip(orders) {
        script.submit(number, order, false);
        script.quoted(script.query, 500.0, 2000.0, 4);
        script.stored(number + 1);
    }
    script
}

fn failed() -> Said {
    let error = Box::new(JobError::new(ErrorCode::ExecutorDied, "it died"));
    Said::Failed { error, failures: Vec::new() }
}

#[test]
fn batch() {
    let mut script = paused(vec![order("one", "ann", 1), order("one", "ann", 2)]);
    script.did(
        "0 asked 100
           store 1: paused true
           answer 100 Accepted
         0 stored
         0 asked 1
           survey 1 busy false
           wake in 5000
         0 quoted
           store 2: 1 Queued
         0 stored
           answer 1 job Queued
           tell 1 Queued
         0 asked 2
           survey 2 busy false
         0 quoted
           store 3: 2 Queued
         0 stored
           answer 2 job Queued
           tell 2 Queued
           join 3: 2 busy false",
    );
    script.joined(3, &[0, 1], 3000.0);
    script.ask(101, Ask::Resume);
    script.stored(4);
    script.stored(5);
    script.stored(6);
    script.said(1, 1, "started", Said::Started { pid: 77 });
    script.later(3000);
    script.done(1, 1, &[7, 7, 8]);
    script.filed(2, &[7, 8], None);
    script.filed(1, &[7], None);
    script.stored(7);
    script.stored(8);
    script.did(
        "0 joined
         0 asked 101
           store 4: paused false
           answer 101 Accepted
           tell one Kept
           store 5: 1 Running
           store 6: 2 Running
         0 stored
         0 stored
         0 stored
           tell one Loading
           run 1 of 1 and 1 more on 1, epoch 1
           tell 1 Loading
           tell 2 Loading
         0 started
         3000 done
           file 1 from 0
           file 2 from 0
           tell one Warm
           tell 1 Filing
           tell 2 Filing
           wake in 600000
         3000 filed
           store 7: 2 Done
         3000 filed
           store 8: 1 Done
         3000 stored
           tell 2 Done
         3000 stored
           tell 1 Done",
    );
}

/// Three jobs that run together on slot 1.
fn three() -> Script {
    let mut script = paused(vec![order("one", "ann", 1); 3]);
    script.joined(script.query, &[0, 1, 2], 3000.0);
    script.ask(101, Ask::Resume);
    (5..=8).for_each(|write| script.stored(write));
    script.said(1, 1, "started", Said::Started { pid: 77 });
    script.text.clear();
    script
}

#[test]
fn who_is_cancelled_leaves_and_the_others_go_on() {
    let mut script = three();
    script.ask(102, Ask::Cancel(job_id(2)));
    script.stored(9);
    script.done(1, 1, &[7, 7, 7]);
    script.did(
        "0 asked 102
           store 9: 2 Cancelled
           answer 102 job Loading
         0 stored
           tell 2 Cancelled
         0 done
           file 1 from 0
           file 3 from 0
           tell one Warm
           tell 1 Filing
           tell 3 Filing
           wake in 600000",
    );
}

#[test]
fn a_run_ends_when_none_of_its_jobs_is_wanted() {
    let mut script = three();
    for number in 1..=3 {
        script.ask(102 + number, Ask::Cancel(job_id(number)));
    }
    script.said(1, 1, "cancelled", Said::Cancelled);
    script.did(
        "0 asked 103
           store 9: 1 Cancelled
           answer 103 job Loading
         0 asked 104
           store 10: 2 Cancelled
           answer 104 job Loading
         0 asked 105
           cancel 1
           answer 105 job Loading
         0 cancelled
           tell one Warm
           store 11: 3 Cancelled
           wake in 600000",
    );
}

#[test]
fn after_a_failure_each_runs_alone() {
    let mut script = three();
    script.said(1, 1, "failed", failed());
    (9..=12).for_each(|write| script.stored(write));
    script.did(
        "0 failed
           tell one Cold
           store 9: 1 Queued
           store 10: 2 Queued
           store 11: 3 Queued
           tell one Kept
           store 12: 1 Running
         0 stored
           tell 1 Loading
         0 stored
           tell 2 Queued
         0 stored
           tell 3 Queued
         0 stored
           tell one Loading
           run 1 of 1 on 1, epoch 2
           tell 1 Loading",
    );
    script.said(1, 2, "failed", failed());
    script.did(
        "0 failed
           tell one Cold
           store 13: 1 Failed
           wake in 1000",
    );
}

#[test]
fn a_job_waits_for_company_no_longer_than_it_may() {
    let mut script = Script::new(joining());
    script.running(1, order("one", "ann", 1), 1);
    for number in [2, 3] {
        script.submit(number, order("one", "ann", 1), false);
        script.quoted(number, 0.0, 2000.0, 4);
        script.stored(number + 1);
    }
    script.text.clear();
    // Nobody has said yet what the two take together.
    script.done(1, 1, &[7]);
    script.later(COMPANY_MS_MAX);
    script.event("rang", DeskEvent::Rang);
    script.did(
        "0 done
           file 1 from 0
           tell one Warm
           tell 1 Filing
           wake in 20
         20 rang
           tell one Kept
           store 5: 2 Running",
    );
}

#[test]
fn nobody_misses_a_deadline_for_company() {
    let soon = JobOrder { deadline_ms: Some(2900), ..order("one", "ann", 1) };
    let mut script = paused(vec![soon, order("one", "ann", 1)]);
    script.joined(3, &[0, 1], 3000.0);
    script.text.clear();
    script.ask(101, Ask::Resume);
    script.did(
        "0 asked 101
           store 4: paused false
           answer 101 Accepted
           tell one Kept
           store 5: 1 Running",
    );
}

#[test]
fn company_passes_none_of_another_class_nor_one_that_is_in_a_hurry() {
    let other = order("two", "ann", 1);
    let cases = [
        (other.clone(), "join 4: 2 busy false"),
        (JobOrder { class: Class::Interactive, ..other.clone() }, "tell 3 Queued"),
        (JobOrder { deadline_ms: Some(90_000), ..other }, "tell 3 Queued"),
    ];
    for (other, last) in cases {
        let script = paused(vec![order("one", "ann", 1), other, order("one", "ann", 1)]);
        assert_eq!(script.text.lines().last().map(str::trim), Some(last), "{}", script.text);
    }
}
