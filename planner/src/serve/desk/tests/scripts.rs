//! The desk by hand: what happens, and word for word what it has others do.

use super::super::config::DeskConfig;
use super::super::event::{Ask, DeskEvent, OperatorSignal, QueryId, Said, ServedModel, Ticket};
use super::super::job::{
    Class, ErrorCode, IdempotencyKey, JobError, JobOrder, JobRecord, KeepAlive,
};
use super::script::{Script, empty_record};
use super::{config, job_id, order, served};

#[test]
fn a_job_on_a_cold_model_from_its_request_to_its_picture() {
    let mut script = Script::new(config());
    script.submit(1, order("one", "ann", 1), true);
    script.later(20);
    script.quoted(1, 500.0, 2000.0, 1);
    script.stored(1);
    script.stored(2);
    script.said(1, 1, "started", Said::Started { pid: 77 });
    script.later(2000);
    script.done(1, 1, &[7]);
    script.filed(1, &[7], None);
    script.stored(3);
    script.did(
        "0 asked 1
           survey 1 busy false
           wake in 5000
         20 quoted
           store 1: 1 Queued
         20 stored
           tell 1 Queued
           tell one Kept
           store 2: 1 Running
         20 stored
           tell one Loading
           run 1 of 1 on 1, epoch 1
           tell 1 Loading
         20 started
         2020 done
           file 1 from 0
           tell one Warm
           tell 1 Filing
           wake in 600000
         2020 filed
           store 3: 1 Done
         2020 stored
           answer 1 Done with 1 files
           tell 1 Done",
    );
    // Ten minutes later nobody has asked for the model.
    script.later(600_000);
    script.event("rang", DeskEvent::Rang);
    script.said(1, 1, "gone", Said::Gone);
    script.did(
        "602020 rang
           tell one Evicting
           end 1
         602020 gone
           tell one Cold",
    );
}

#[test]
fn a_question_that_the_surveyor_does_not_answer_is_refused_in_time() {
    let mut script = Script::new(config());
    script.submit(1, order("one", "ann", 1), true);
    script.later(3000);
    script.submit(2, order("one", "ann", 1), false);
    script.later(2000);
    script.event("rang", DeskEvent::Rang);
    // The answer comes too late, and makes no job.
    script.later(1000);
    script.quoted(1, 500.0, 2000.0, 1);
    script.quoted(2, 500.0, 2000.0, 1);
    script.did(
        "0 asked 1
           survey 1 busy false
           wake in 5000
         3000 asked 2
           survey 2 busy false
         5000 rang
           answer 1 QueueFull: what the job would take is not known in time; hint: ask again soon again in 5 s
           wake in 3000
         6000 quoted
         6000 quoted
           store 1: 2 Queued",
    );
}

#[test]
fn jobs_of_a_damaged_model_are_refused_until_its_files_are_others() {
    let failed = || Said::Failed {
        error: Box::new(JobError::new(ErrorCode::BadModel, "it is cut")),
        failures: Vec::new(),
    };
    let mut script = Script::new(config());
    // Files that were changed while a job ran say nothing of those that are there now.
    script.running(1, order("one", "ann", 1), 1);
    script.said(1, 1, "failed", failed());
    script.stored(3);
    script.text.clear();
    script.submit(2, order("one", "ann", 1), false);
    script.did("0 asked 2\n  survey 2 busy false");
    script.quoted(2, 0.0, 1000.0, 1);
    script.stored(4);
    script.stored(5);
    let because = "it is cut".to_owned();
    script.said(1, 2, "damaged", Said::Damaged { because });
    script.said(1, 2, "failed", failed());
    script.stored(6);
    script.text.clear();
    script.submit(3, order("one", "ann", 1), false);
    script.did("0 asked 3\n  answer 3 BadModel: it is cut");
    let mended = ServedModel { modified_ms: 2, ..served("one") };
    script.event("models", DeskEvent::Models(vec![mended, served("two")]));
    script.submit(4, order("one", "ann", 1), false);
    script.did("0 asked 4\n  survey 3 busy false");
}

#[test]
fn an_idle_executor_that_ends_leaves_a_cold_slot_and_no_failed_job() {
    let mut script = Script::new(config());
    script.running(1, order("one", "ann", 1), 1);
    script.done(1, 1, &[7]);
    script.filed(1, &[7], None);
    script.stored(3);
    script.text.clear();
    script.said(1, 1, "lost", Said::Lost);
    script.did("0 lost\n  tell one Cold");
    // The next executor ends while the job is about to be begun on it.
    script.running(2, order("one", "ann", 1), 4);
    script.text.clear();
    script.said(1, 2, "started", Said::Started { pid: 78 });
    script.done(1, 2, &[7]);
    script.filed(2, &[7], None);
    script.stored(6);
    script.submit(3, order("one", "ann", 1), false);
    script.quoted(3, 500.0, 2000.0, 4);
    script.stored(7);
    script.text.clear();
    script.said(1, 2, "lost", Said::Lost);
    script.stored(8);
    script.did(
        "0 lost
         0 stored
           tell one Loading
           run 3 of 1 on 1, epoch 3
           tell 3 Loading",
    );
}

#[test]
fn another_model_waits_until_the_first_ones_memory_is_free() {
    let mut script = Script::new(DeskConfig { several_loaded: false, ..config() });
    script.running(1, order("one", "ann", 1), 1);
    script.text.clear();
    script.submit(2, order("two", "ann", 1), false);
    script.quoted(2, 500.0, 2000.0, 1);
    script.stored(3);
    script.done(1, 1, &[7]);
    script.said(1, 1, "gone", Said::Gone);
    script.stored(4);
    script.did(
        "0 asked 2
           survey 2 busy true
         0 quoted
           store 3: 2 Queued
         0 stored
           answer 2 job Queued
           tell 2 Queued
         0 done
           file 1 from 0
           tell one Warm
           tell 1 Filing
           tell one Evicting
           end 1
         0 gone
           tell one Cold
           tell two Kept
           store 4: 2 Running
         0 stored
           tell two Loading
           run 2 of 1 on 2, epoch 2
           tell 2 Loading",
    );
    // What the first executor says late is not heard.
    script.said(1, 0, "late", Said::Gone);
    script.did("0 late");
}

#[test]
fn pictures_that_do_not_fit_together_are_several_runs() {
    let mut script = Script::new(config());
    script.submit(1, order("one", "ann", 5), true);
    script.quoted(1, 500.0, 2000.0, 3);
    script.stored(1);
    script.stored(2);
    script.said(1, 1, "started", Said::Started { pid: 77 });
    script.text.clear();
    script.done(1, 1, &[7, 8, 9]);
    script.filed(1, &[7, 8, 9], None);
    script.done(1, 1, &[10, 11]);
    script.filed(1, &[10, 11], None);
    script.stored(3);
    script.did(
        "0 done
           file 1 from 0
           run 1 of 2 on 1, epoch 1
         0 filed
         0 done
           file 1 from 3
           tell one Warm
           tell 1 Filing
           wake in 600000
         0 filed
           store 3: 1 Done
         0 stored
           answer 1 Done with 5 files
           tell 1 Done",
    );
}

#[test]
fn what_is_refused_says_why() {
    let config = DeskConfig { queue_max: 1, client_queued_max: 9, ..config() };
    let mut script = Script::new(config);
    script.submit(1, order("three", "ann", 1), false);
    script.submit(2, order("one", "ann", 1), false);
    script.submit(3, order("one", "ann", 1), false);
    let error = JobError::new(ErrorCode::DoesNotFit, "too large\nhint: smaller");
    let result = Err(error);
    script.event("quoted", DeskEvent::Quoted { query: QueryId(1), result });
    let late = JobOrder { deadline_ms: Some(2400), ..order("one", "ann", 1) };
    script.submit(4, late, false);
    script.quoted(2, 500.0, 2000.0, 1);
    script.event("stop", DeskEvent::Signal(OperatorSignal::Stop));
    script.did(
        "0 asked 1
           answer 1 NoModel: no model `three`; hint: there are one, two
         0 asked 2
           survey 1 busy false
           wake in 5000
         0 asked 3
           answer 3 QueueFull: 0 jobs wait, and no more may again in 1 s
         0 quoted
           answer 2 DoesNotFit: too large
         0 asked 4
           survey 2 busy false
         0 quoted
           answer 4 Deadline: it would be done in 2.5 s; hint: a later deadline, fewer steps, or a smaller size
         0 stop
           exit 0",
    );
}

#[test]
fn a_clients_quota_is_its_own() {
    let config = DeskConfig { client_queued_max: 1, ..config() };
    let mut script = Script::new(config);
    script.running(1, order("one", "ann", 1), 1);
    script.submit(2, order("one", "ann", 1), false);
    script.quoted(2, 0.0, 2000.0, 1);
    script.stored(3);
    script.text.clear();
    script.submit(3, order("one", "ann", 1), false);
    script.submit(4, order("one", "bob", 1), false);
    script.did(
        "0 asked 3
           answer 3 Quota: ann has 1 jobs in the queue, and no more may be again in 3 s
         0 asked 4
           survey 3 busy true",
    );
}

#[test]
fn a_key_makes_one_job_and_its_body_counts() {
    let keyed = |body: &str| {
        let key = IdempotencyKey { key: "k".to_owned(), body_sha256: body.to_owned() };
        JobOrder { idempotency: Some(key), ..order("one", "ann", 1) }
    };
    let mut script = Script::new(config());
    script.submit(1, keyed("a"), true);
    script.submit(2, keyed("a"), true);
    script.quoted(1, 500.0, 2000.0, 1);
    script.submit(3, keyed("a"), true);
    script.submit(4, keyed("b"), true);
    script.stored(1);
    script.stored(2);
    script.text.clear();
    script.done(1, 1, &[7]);
    script.filed(1, &[7], None);
    script.stored(3);
    script.submit(5, keyed("a"), true);
    script.submit(6, keyed("b"), false);
    script.did(
        "0 done
           file 1 from 0
           tell one Warm
           tell 1 Filing
           wake in 600000
         0 filed
           store 3: 1 Done
         0 stored
           answer 1 Done with 1 files
           answer 3 Done with 1 files
           tell 1 Done
         0 asked 5
           answer 5 Done with 0 files
         0 asked 6
           answer 6 IdempotencyMismatch: this Idempotency-Key was used with another body, for job 00000000000000000000000001; hint: use a new key for a new request",
    );
}

#[test]
fn who_leaves_is_not_worked_for() {
    let mut script = Script::new(config());
    script.submit(1, order("one", "ann", 1), true);
    script.quoted(1, 500.0, 2000.0, 1);
    script.stored(1);
    script.stored(2);
    script.said(1, 1, "started", Said::Started { pid: 77 });
    script.text.clear();
    script.event("left", DeskEvent::Left { ticket: Ticket(1) });
    script.later(50);
    script.said(1, 1, "cancelled", Said::Cancelled);
    script.stored(3);
    script.did(
        "0 left
           cancel 1
         50 cancelled
           tell one Warm
           store 3: 1 Cancelled
           wake in 600000
         50 stored
           tell 1 Cancelled",
    );
}

#[test]
fn memory_that_others_took_is_waited_for_and_not_for_ever() {
    let config = DeskConfig { room_wait_ms: 3000, ..config() };
    let mut script = Script::new(config);
    script.running(1, order("one", "ann", 1), 1);
    script.text.clear();
    let short = || {
        let error = JobError::new(ErrorCode::DoesNotFit, "cuda0 is 2.1 GiB short\nhint: less");
        Said::Failed { error: Box::new(error), failures: Vec::new() }
    };
    script.said(1, 1, "short", short());
    script.stored(3);
    script.later(2000);
    script.event("rang", DeskEvent::Rang);
    script.stored(4);
    script.said(1, 2, "started", Said::Started { pid: 78 });
    script.later(1000);
    script.said(1, 2, "short", short());
    script.stored(5);
    script.did(
        "0 short
           tell one Cold
           store 3: 1 Queued
           wake in 2000
         0 stored
           tell 1 Waiting
         2000 rang
           tell one Kept
           store 4: 1 Running
         2000 stored
           tell one Loading
           run 1 of 1 on 1, epoch 2
           tell 1 Loading
         2000 started
         3000 short
           tell one Cold
           store 5: 1 Failed
         3000 stored
           tell 1 Failed",
    );
}

#[test]
fn the_daemon_ends_when_what_runs_is_done_or_is_told_twice() {
    let mut script = Script::new(config());
    script.running(1, order("one", "ann", 1), 1);
    script.text.clear();
    script.event("stop", DeskEvent::Signal(OperatorSignal::Stop));
    script.later(1000);
    script.event("stop", DeskEvent::Signal(OperatorSignal::Stop));
    script.said(1, 1, "cancelled", Said::Cancelled);
    script.stored(3);
    script.said(1, 1, "gone", Said::Gone);
    script.did(
        "0 stop
           wake in 120000
         1000 stop
           cancel 1
         1000 cancelled
           tell one Warm
           store 3: 1 Queued
           tell one Evicting
           end 1
         1000 stored
           tell 1 Queued
         1000 gone
           tell one Cold
           exit 0",
    );
    // It goes on where it was.
    let record = script.last.clone();
    let mut script = Script::restored(config(), vec![record]);
    script.did(
        "0 models
           tell one Kept
           store 1: 1 Running",
    );
    assert_eq!((script.last.attempts, script.last.daemon_deaths), (2, 0));
}

#[test]
fn a_job_that_ended_the_daemon_twice_is_not_begun_again() {
    let mut script = Script::new(config());
    script.running(1, order("one", "ann", 1), 1);
    // Killed while it runs: it begins again, before all others.
    let other = JobRecord { id: job_id(0), ..empty_record() };
    let mut script = Script::restored(config(), vec![other, script.last.clone()]);
    script.stored(1);
    script.stored(2);
    script.did(
        "0 start
           store 1: 1 Queued
         0 models
           tell one Kept
           store 2: 1 Running
         0 stored
         0 stored
           tell one Loading
           run 1 of 1 on 1, epoch 1
           tell 1 Loading",
    );
    let mut script = Script::restored(config(), vec![script.last.clone()]);
    script.stored(1);
    script.did(
        "0 start
           store 1: 1 Failed
         0 stored
           tell 1 Failed",
    );
    assert_eq!(script.last.error.map(|error| error.code), Some(ErrorCode::Internal));
}

#[test]
fn models_are_loaded_ahead_where_nobody_waits() {
    let mut script = Script::new(config());
    let keep_alive = Some(KeepAlive::Always);
    script.ask(1, Ask::LoadModel { model: "two".to_owned(), keep_alive });
    script.said(1, 1, "started", Said::Started { pid: 78 });
    script.done(1, 1, &[]);
    script.submit(2, JobOrder { class: Class::Interactive, ..order("two", "ann", 1) }, false);
    script.did(
        "0 asked 1
           answer 1 Accepted
           tell two Loading
           run none of 0 on 1, epoch 1
         0 started
         0 done
           tell two Warm
         0 asked 2
           survey 1 busy false
           wake in 5000",
    );
}
