//! Several loaded models by hand: who gives way to whom, and what quotes say of it.

use super::super::event::{Ask, DeskEvent, Said};
use super::super::job::{ErrorCode, JobError};
use super::script::Script;
use super::{config, order};

#[test]
fn a_quote_counts_what_will_pass_and_what_will_be_loaded() {
    let mut script = Script::new(config());
    // The first model runs for 2 s; one of the second waits, and one more of the first.
    script.running(1, order("one", "ann", 1), 1);
    script.submit(2, order("two", "ann", 1), false);
    script.quoted(2, 5000.0, 2000.0, 1);
    script.stored(3);
    script.submit(3, order("one", "ann", 1), false);
    script.quoted(3, 0.0, 1000.0, 1);
    script.stored(4);
    script.text.clear();
    let request = order("one", "ann", 1).request;
    let ask = Ask::Plan { request: Box::new(request), model: "one".to_owned(), explain: false };
    script.ask(4, ask);
    script.quoted(4, 0.0, 1000.0, 1);
    // The run with its load of half a second; the third passes, the second loads for 5 s.
    script.did(
        "0 asked 4
           survey 4 busy true
         0 quoted
           answer 4 quote, wait 10500, ends []",
    );
}

/// A job of the first model is done, one of the second waits and is weighed.
fn weighing() -> Script {
    let mut script = Script::new(config());
    script.running(1, order("one", "ann", 1), 1);
    script.submit(2, order("two", "ann", 1), false);
    script.quoted(2, 500.0, 2000.0, 1);
    script.stored(3);
    script.text.clear();
    script.done(1, 1, &[7]);
    script.did(
        "0 done
           file 1 from 0
           tell one Warm
           tell 1 Filing
           weigh 3 without [[1], []]
           wake in 10000",
    );
    script
}

#[test]
fn a_model_stays_loaded_where_that_costs_less() {
    let mut script = weighing();
    // Alone 2.5 s; beside the first, whose load takes half a second, a tenth of a second more.
    script.weighed(3, &[Some((2500.0, 2000.0)), Some((2600.0, 2100.0))]);
    script.stored(4);
    script.said(2, 2, "started", Said::Started { pid: 78 });
    script.text.clear();
    script.done(2, 2, &[7]);
    script.did(
        "0 done
           file 2 from 0
           tell two Warm
           tell 2 Filing",
    );
    // The first one's next job loads nothing, and nobody gives way to it: it begins at once, by
    // what was weighed for its quote.
    script.submit(3, order("one", "ann", 1), false);
    script.weighed(4, &[Some((2000.0, 2000.0)), Some((2000.0, 2000.0))]);
    script.quoted(4, 0.0, 2000.0, 1);
    script.stored(5);
    script.stored(6);
    script.did(
        "0 asked 3
           weigh 4 without [[2], []]
           wake in 5000
         0 weighed
           survey 4 busy false
         0 quoted
           store 5: 3 Queued
           wake in 600000
         0 stored
           answer 3 job Queued
           tell 3 Queued
           tell one Kept
           store 6: 3 Running
         0 stored
           tell one Loading
           run 3 of 1 on 1, epoch 1
           tell 3 Loading",
    );
}

#[test]
fn a_model_gives_way_where_that_costs_less() {
    let mut script = weighing();
    // Beside the first one it would take far longer, now and the next time.
    script.weighed(3, &[Some((2500.0, 2000.0)), Some((9000.0, 8500.0))]);
    script.said(1, 1, "gone", Said::Gone);
    script.did(
        "0 weighed
           tell one Evicting
           end 1
         0 gone
           tell one Cold
           tell two Kept
           store 4: 2 Running",
    );
}

#[test]
fn what_nobody_weighs_in_time_is_unloaded() {
    let mut script = weighing();
    script.later(10_000);
    script.event("rang", DeskEvent::Rang);
    // Too late.
    script.weighed(3, &[Some((2500.0, 2000.0)), Some((2500.0, 2000.0))]);
    script.did(
        "10000 rang
           tell one Evicting
           end 1
         10000 weighed",
    );
}

#[test]
fn a_job_that_did_not_fit_beside_others_has_all_of_it() {
    let mut script = weighing();
    script.weighed(3, &[Some((2500.0, 2000.0)), Some((2500.0, 2000.0))]);
    script.stored(4);
    script.said(2, 2, "started", Said::Started { pid: 78 });
    script.text.clear();
    let error = Box::new(JobError::new(ErrorCode::DoesNotFit, "others took more"));
    script.said(2, 2, "failed", Said::Failed { error, failures: Vec::new() });
    script.stored(5);
    script.did(
        "0 failed
           tell two Cold
           store 5: 2 Queued
           tell one Evicting
           end 1
         0 stored
           tell 2 Waiting",
    );
}
