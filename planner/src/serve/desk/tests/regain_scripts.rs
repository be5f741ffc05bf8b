//! More free memory by hand: when a loaded model is planned anew for it, and when not.

use super::super::event::{DeskEvent, Said};
use super::script::Script;
use super::{config, order};

/// A model that made one job, which has ended; memory is free that was not when it was loaded.
fn loaded() -> Script {
    let mut script = Script::new(config());
    script.running(1, order("one", "ann", 1), 1);
    script.done(1, 1, &[7]);
    script.filed(1, &[7], None);
    script.stored(3);
    script.later(1_000);
    script.free(1, 4096, 8192);
    script.text.clear();
    script
}

/// The same after half a minute, when the surveyor is asked.
fn asked() -> Script {
    let mut script = loaded();
    script.later(29_999);
    script.free(1, 4096, 8192);
    script.did("30999 free");
    script.later(1);
    script.event("rang", DeskEvent::Rang);
    script.did(
        "31000 rang
           regain 2 on 1
           wake in 10000",
    );
    script
}

#[test]
fn what_the_next_jobs_gain_must_be_more_than_the_load() {
    // One job a half-life ago is not quite seven tenths of a job in the next ten minutes.
    let mut script = asked();
    script.regained(2, Some((1000.0, 1400.0)));
    script.did(
        "31000 regained
           wake in 300000",
    );
    let mut script = asked();
    script.regained(2, Some((1000.0, 1600.0)));
    script.did(
        "31000 regained
           tell one Loading
           run none of 1 on 1, epoch 1, anew",
    );
    // It stays as long as it was to stay: ten minutes from the job's end.
    script.done(1, 1, &[]);
    script.did(
        "31000 done
           tell one Warm
           wake in 569000",
    );
}

#[test]
fn what_is_not_worth_it_is_asked_again_in_five_minutes() {
    let mut script = asked();
    script.regained(2, None);
    script.text.clear();
    script.later(299_999);
    script.free(1, 4096, 8192);
    script.did("330999 free");
    script.later(1);
    script.free(1, 4096, 8192);
    script.did(
        "331000 free
           regain 3 on 1
           wake in 10000",
    );
}

#[test]
fn memory_that_goes_again_within_half_a_minute_is_nothing() {
    let mut script = loaded();
    script.later(20_000);
    // One MiB less than half a GiB more.
    script.free(1, 4096, 4607);
    script.later(5_000);
    script.free(1, 4096, 8192);
    script.later(20_000);
    script.free(1, 4096, 8192);
    script.did(
        "21000 free
           wake in 579000
         26000 free
           wake in 30000
         46000 free",
    );
}

#[test]
fn more_is_a_twentieth_of_what_was_free() {
    let mut script = loaded();
    // Of 20 GiB a GiB.
    script.free(1, 20_480, 21_503);
    script.later(40_000);
    script.free(1, 20_480, 21_503);
    script.did(
        "1000 free
           wake in 599000
         41000 free",
    );
    script.free(1, 20_480, 21_504);
    script.did(
        "41000 free
           wake in 30000",
    );
}

#[test]
fn who_asks_comes_before_a_better_plan() {
    let mut script = asked();
    script.submit(2, order("one", "ann", 1), false);
    script.text.clear();
    // A job is about to come: the load would be before it.
    script.regained(2, Some((10.0, 10_000.0)));
    script.did("31000 regained");
    script.quoted(3, 0.0, 2000.0, 1);
    script.stored(4);
    script.stored(5);
    script.text.clear();
    // Nor is it asked while a job runs.
    script.later(400_000);
    script.free(1, 4096, 8192);
    script.did("431000 free");
}

#[test]
fn a_surveyor_that_does_not_answer_is_not_waited_for() {
    let mut script = asked();
    script.later(10_000);
    script.event("rang", DeskEvent::Rang);
    // Too late.
    script.regained(2, Some((10.0, 10_000.0)));
    script.did(
        "41000 rang
           wake in 290000
         41000 regained",
    );
}

#[test]
fn a_load_that_fails_leaves_the_model_cold() {
    let mut script = asked();
    script.regained(2, Some((10.0, 10_000.0)));
    script.text.clear();
    script.said(1, 1, "gone", Said::Gone);
    script.did(
        "31000 gone
           tell one Cold",
    );
}
