//! Jobs of different models at once, by hand.

use super::super::config::{DeskConfig, PASSED_MAX, PASSED_MS_MAX};
use super::super::event::{Ask, DeskEvent, Said};
use super::super::job::JobOrder;
use super::script::Script;
use super::{config, job_id, order, served};

/// A desk that knows of two devices, on whose first one a job of the first model runs for so long.
fn one_runs(run_ms: f64) -> Script {
    one_runs_by(run_ms, config())
}

fn one_runs_by(run_ms: f64, config: DeskConfig) -> Script {
    let mut script = Script::new(config);
    script.event("models", DeskEvent::Models(["one", "two", "three"].map(served).to_vec()));
    script.lanes(&["a", "b"]);
    script.submit(1, order("one", "ann", 1), false);
    script.quoted_on(1, &["a"], run_ms);
    script.stored(1);
    script.stored(2);
    script.said(1, 1, "started", Said::Started { pid: 77 });
    script.planned_on(1, 1, &["a"]);
    script.text.clear();
    script
}

/// A job that waits, with its write.
fn waits(script: &mut Script, number: u64, order: JobOrder, lanes: &[&str], write: u64) {
    script.submit(number, order, false);
    let query = script.query;
    script.quoted_on(query, lanes, 1000.0);
    script.stored(write);
}

#[test]
fn two_models_on_two_devices_run_at_once_and_a_third_that_needs_both_follows() {
    let mut script = one_runs(2000.0);
    waits(&mut script, 2, order("two", "bob", 1), &["b"], 3);
    script.weighed_on(3, Some((&["b"], 1500.0)));
    script.stored(4);
    script.did(
        "0 asked 2
           survey 2 busy true
         0 quoted
           store 3: 2 Queued
         0 stored
           answer 2 job Queued
           tell 2 Queued
           weigh 3 without [[]] beside [1]
           wake in 10000
         0 weighed
           tell two Kept
           store 4: 2 Running
         0 stored
           tell two Loading
           run 2 of 1 on 2, epoch 2
           tell 2 Loading",
    );
    script.said(2, 2, "started", Said::Started { pid: 78 });
    script.planned_on(2, 2, &["b"]);
    script.text.clear();
    // Every lane is taken: nobody is asked.
    waits(&mut script, 3, order("three", "cid", 1), &["a", "b"], 5);
    script.did(
        "0 asked 3
           survey 4 busy true
           wake in 5000
         0 quoted
           store 5: 3 Queued
         0 stored
           answer 3 job Queued
           tell 3 Queued",
    );
    // The first one ends: the third is not done sooner on its device alone.
    script.later(1000);
    script.done(1, 1, &[7]);
    let query = script.query;
    script.weighed_on(query, Some((&["a"], 9000.0)));
    script.did(
        "1000 done
           file 1 from 0
           tell one Warm
           tell 1 Filing
           weigh 5 without [[1], []] beside [2]
           wake in 10000
         1000 weighed
           wake in 600000",
    );
    script.later(500);
    script.done(2, 2, &[7]);
    script.weighed(6, &[Some((1500.0, 1000.0)); 4]);
    script.stored(6);
    script.did(
        "1500 done
           file 2 from 0
           tell two Warm
           tell 2 Filing
           weigh 6 without [[1, 2], [], [1], [2]]
           wake in 10000
         1500 weighed
           tell three Kept
           store 6: 3 Running
           wake in 599500
         1500 stored
           tell three Loading
           run 3 of 1 on 3, epoch 3
           tell 3 Loading",
    );
}

/// The same with a job of the second model that runs on the second device.
fn both_run() -> Script {
    let mut script = one_runs(2000.0);
    waits(&mut script, 2, order("two", "ann", 1), &["b"], 3);
    script.weighed_on(3, Some((&["b"], 1500.0)));
    script.stored(4);
    script.said(2, 2, "started", Said::Started { pid: 78 });
    script.planned_on(2, 2, &["b"]);
    script.text.clear();
    script
}

#[test]
fn an_executor_that_dies_leaves_the_other_run_alone() {
    let mut script = both_run();
    script.said(1, 1, "gone", Said::Gone);
    script.stored(5);
    script.did(
        "0 gone
           tell one Cold
           store 5: 1 Failed
         0 stored
           tell 1 Failed",
    );
    // The other one is shown as it was, and ends.
    script.ask(9, Ask::Cancel(job_id(2)));
    script.said(2, 2, "cancelled", Said::Cancelled);
    script.stored(6);
    script.did(
        "0 asked 9
           cancel 2
           answer 9 job Loading
         0 cancelled
           tell two Warm
           store 6: 2 Cancelled
           wake in 600000
         0 stored
           tell 2 Cancelled",
    );
}

#[test]
fn a_run_in_anothers_way_begins_again_and_then_alone() {
    let mut script = both_run();
    script.said(2, 2, "in the way", Said::InTheWay);
    script.stored(5);
    let query = script.query;
    script.weighed_on(query, Some((&["b"], 1500.0)));
    script.stored(6);
    script.did(
        "0 in the way
           tell two Warm
           store 5: 2 Queued
           weigh 4 without [[]] beside [1]
         0 stored
           tell 2 Queued
         0 weighed
           tell two Kept
           store 6: 2 Running
         0 stored
           tell two Loading
           run 2 of 1 on 2, epoch 2
           tell 2 Loading",
    );
    // Once more, and it waits for the other one; nobody begins beside it then.
    script.said(2, 2, "in the way", Said::InTheWay);
    script.stored(7);
    script.text.clear();
    script.done(1, 1, &[7]);
    script.weighed(5, &[Some((1500.0, 1000.0)); 2]);
    script.stored(8);
    script.planned_on(2, 2, &["b"]);
    script.text.clear();
    waits(&mut script, 3, order("one", "cid", 1), &["a"], 9);
    script.did(
        "0 asked 3
           survey 6 busy true
           wake in 5000
         0 quoted
           store 9: 3 Queued
           wake in 600000
         0 stored
           answer 3 job Queued
           tell 3 Queued",
    );
}

#[test]
fn a_client_has_no_more_runs_than_it_may() {
    let mut script = one_runs_by(2000.0, DeskConfig { client_running_max: 1, ..config() });
    // Hers waits, and keeps nobody else.
    waits(&mut script, 2, order("two", "ann", 1), &["b"], 3);
    script.text.clear();
    waits(&mut script, 3, order("three", "bob", 1), &["b"], 4);
    script.did(
        "0 asked 3
           survey 3 busy true
         0 quoted
           store 4: 3 Queued
         0 stored
           answer 3 job Queued
           tell 3 Queued
           weigh 4 without [[]] beside [1]
           wake in 10000",
    );
}

/// How many short jobs for the second device begin before one that waits for both. A new one comes
/// every `every_ms` milliseconds, and each takes `run_ms`.
fn passes(every_ms: u64, run_ms: f64) -> u32 {
    let mut script = one_runs(60_000.0);
    waits(&mut script, 2, order("three", "bob", 1), &["a", "b"], 3);
    short_fits(&mut script, run_ms);
    let mut write = 4;
    for begun in 0..60 {
        let number = 3 + u64::from(begun);
        script.submit(number, order("two", "cid", 1), false);
        let query = script.query;
        script.quoted_on(query, &["b"], run_ms);
        script.text.clear();
        script.stored(write);
        short_fits(&mut script, run_ms);
        if !script.text.contains("two Kept") {
            return begun;
        }
        script.stored(write + 1);
        script.said(3, 2, "started", Said::Started { pid: 78 });
        script.planned_on(3, 2, &["b"]);
        script.done(3, 2, &[7]);
        script.filed(number, &[7], None);
        script.stored(write + 2);
        short_fits(&mut script, run_ms);
        write += 3;
        script.later(every_ms);
        script.event("rang", DeskEvent::Rang);
    }
    panic!("whoever waits for both devices waits for ever");
}

/// The surveyor says that only the second model fits beside what runs.
fn short_fits(script: &mut Script, run_ms: f64) {
    while let Some((query, model)) = script.beside.take() {
        let fits = model == "two";
        script.weighed_on(query, fits.then_some((&["b"], run_ms)));
    }
}

#[test]
fn who_waits_for_two_devices_is_passed_within_limits() {
    assert_eq!(passes(100, 100.0), PASSED_MAX);
    // From the first passing on, for as long as that may be.
    assert_eq!(u64::from(passes(15_000, 100.0)), PASSED_MS_MAX / 15_000);
    // One that is not done when the first run is, as predicted, does not begin.
    assert_eq!(passes(100, 70_000.0), 0);
}
