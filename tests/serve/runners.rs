//! Slots with real executors: what they say of each order, and that every order has an end.

use std::time::{Duration, Instant};

use planner::job::JobRequest;
use planner::job::request::Prompts;
use planner::policy::PolicyText;
use planner::serve::desk::event::{FreeChange, Said};
use planner::serve::desk::job::ErrorCode;
use protocol::Phase;
use rustix::process::Signal;

use crate::bench::{Bench, SLOT, loads, one_device, request, started};

/// How long the end of a slow job may take once it is asked for: a step, and a loaded machine.
const SOON: Duration = Duration::from_secs(8);

/// A job of so many steps that it does not end by itself.
fn endless() -> JobRequest {
    let mut request = request();
    request.shape.steps = Some(1000);
    request.shape.width = Some(256);
    request.shape.height = Some(256);
    request
}

fn is_denoising(said: &Said) -> bool {
    matches!(said, Said::Progress(progress) if progress.phase == Phase::Denoise && progress.step > 0)
}

#[test]
fn the_next_job_of_a_slot_loads_nothing_and_makes_the_same() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let (heard, first) = bench.done(request());
    assert!(started(&heard).is_some() && loads(&heard) == [true], "{heard:?}");
    let (heard, next) = bench.done(request());
    assert!(started(&heard).is_none() && loads(&heard) == [false], "{heard:?}");
    let [one, other] = [&first, &next].map(|work| &work.pictures[0]);
    assert_eq!((one.seed, one.width, one.height), (7, 64, 64));
    assert!(one.pixels == other.pixels && one.settings == other.settings);
    assert!(one.settings.fingerprint.is_some() && one.settings.paths.model.is_some());
    assert!(first.predicted_ms > next.predicted_ms && next.predicted_ms > 0.0);
    assert!(first.idle_bytes.iter().any(|(id, bytes)| id == "virtual0" && bytes.0 > 0));
    let [first, next] = [first, next].map(|work| work.usage.components);
    let sent = |components: &[protocol::usage::ComponentUsage]| -> u64 {
        components.iter().map(|component| component.sent_bytes.0).sum()
    };
    assert!(sent(&first) > 0 && sent(&next) == 0);
}

#[test]
fn a_model_is_loaded_ahead_of_its_first_job() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    bench.order_load(request(), false);
    let heard = bench.heard();
    assert_eq!(loads(&heard), [true]);
    let Some(Said::Done(work)) = heard.last() else { panic!("{heard:?}") };
    assert!(work.pictures.is_empty() && !work.idle_bytes.is_empty());
    let (heard, work) = bench.done(request());
    assert_eq!((loads(&heard), work.pictures.len()), (vec![false], 1));
}

/// Why plans that were told of were made anew.
fn because(heard: &[Said]) -> Vec<Option<FreeChange>> {
    let planned = heard.iter().filter_map(|said| match said {
        Said::Planned { because, .. } => Some(*because),
        _ => None,
    });
    planned.collect()
}

#[test]
fn a_plan_is_made_anew_for_less_memory_and_by_order_for_more() {
    let mut bench = Bench::new(&one_device(64, "64MiB/s"));
    let quoted = bench.quote(request()).expect("it fits");
    let peak =
        quoted.offer.peak_bytes.iter().find(|(id, _)| id == "virtual0").expect("it computes").1;
    let less = format!("{}B", peak.0 - peak.0 / 3);
    let within = |max_vram: &str, prompt: &str| JobRequest {
        policy: PolicyText { max_vram: Some(max_vram.to_owned()), ..PolicyText::default() },
        prompts: Prompts { prompt: Some(prompt.to_owned()), ..Prompts::default() },
        ..request()
    };
    let (_, whole) = bench.done(within("32MiB", "a"));
    let (heard, _) = bench.done(within(&less, "b"));
    assert_eq!((because(&heard), loads(&heard)), (vec![Some(FreeChange::Less)], vec![true]));
    // More memory alone changes nothing.
    let (heard, _) = bench.done(within("32MiB", "c"));
    assert_eq!((because(&heard), loads(&heard)), (vec![None], vec![false]));
    let gain = bench.regained(within("32MiB", "c")).expect("an answer").expect("another plan");
    assert!(gain.saved_ms > 0.0 && gain.load_ms > 0.0, "{gain:?}");
    bench.order_load(within("32MiB", "c"), true);
    let heard = bench.heard();
    assert_eq!((because(&heard), loads(&heard)), (vec![Some(FreeChange::More)], vec![true]));
    let (heard, again) = bench.done(within("32MiB", "a"));
    assert_eq!(loads(&heard), [false]);
    assert!(again.pictures[0].pixels == whole.pictures[0].pixels);
}

#[test]
fn a_run_is_cancelled_at_any_moment_and_the_next_one_is_not() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    // Before there is an executor.
    bench.order(endless());
    bench.runners.cancel(SLOT);
    assert!(matches!(bench.heard().last(), Some(Said::Cancelled)));
    // While it starts, while it plans, while it loads: whenever that is.
    for wait_ms in [1, 10, 30, 60, 100, 150, 250, 400] {
        bench.order(endless());
        std::thread::sleep(Duration::from_millis(wait_ms));
        let asked = Instant::now();
        bench.runners.cancel(SLOT);
        assert!(matches!(bench.heard().last(), Some(Said::Cancelled)), "{wait_ms}");
        assert!(asked.elapsed() < SOON, "{wait_ms}: {:?}", asked.elapsed());
    }
    bench.order(endless());
    bench.until(is_denoising);
    bench.runners.cancel(SLOT);
    assert!(matches!(bench.heard().last(), Some(Said::Cancelled)));
    let (_, work) = bench.done(request());
    assert!(work.failures.is_empty(), "{:?}", work.failures);
    // Too late for anything.
    bench.runners.cancel(SLOT);
    let (heard, work) = bench.done(request());
    assert!(work.failures.is_empty() && loads(&heard) == [false], "{heard:?}");
}

#[test]
fn an_executor_that_is_killed_is_followed_by_another_one() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let mut many = request();
    many.shape.steps = Some(200);
    bench.order(many);
    let mut heard = Vec::new();
    while !heard.last().is_some_and(is_denoising) {
        heard.push(bench.said());
    }
    started(&heard).expect("it was started").send(Signal::KILL);
    let mut heard = bench.heard();
    let Some(Said::Done(work)) = heard.pop() else { panic!("{heard:?}") };
    assert!(heard.iter().any(|said| matches!(said, Said::Retrying { .. })), "{heard:?}");
    assert_eq!((work.pictures.len(), work.failures.len()), (1, 1), "{:?}", work.failures);
    // One that dies while nothing runs is no failure of the next job.
    let idle = started(&heard).expect("another one was started");
    idle.send(Signal::KILL);
    assert!(idle.ends_within(Duration::from_secs(5)));
    std::thread::sleep(Duration::from_millis(200));
    let (heard, work) = bench.done(request());
    assert!(started(&heard).is_some() && loads(&heard) == [true], "{heard:?}");
    assert!(work.failures.is_empty(), "{:?}", work.failures);
}

#[test]
fn what_cannot_be_done_fails_with_its_reason_and_the_slot_goes_on() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let with = |change: fn(&mut JobRequest)| {
        let mut request = request();
        change(&mut request);
        request
    };
    let policy = |max_vram: &str| PolicyText {
        max_vram: Some(max_vram.to_owned()),
        ..PolicyText::default()
    };
    let unknown = with(|request| {
        request.model = planner::job::model::ModelName::Name("other".to_owned());
    });
    let error = bench.failed(unknown);
    assert_eq!((error.code, error.param.as_deref()), (ErrorCode::NoModel, Some("model")));
    let error = bench.failed(with(|request| request.shape.width = Some(65)));
    assert_eq!(error.code, ErrorCode::BadValue, "{error:?}");
    let strength = with(|request| request.start.strength = Some(2.0));
    let error = bench.failed(strength);
    assert_eq!((error.code, error.param.as_deref()), (ErrorCode::BadValue, Some("strength")));
    let error = bench.failed(JobRequest { policy: policy("cuda7=1"), ..request() });
    assert_eq!(error.code, ErrorCode::BadValue, "{error:?}");
    let error = bench.failed(JobRequest { policy: policy("1MiB"), ..request() });
    assert_eq!(error.code, ErrorCode::DoesNotFit, "{error:?}");
    let nearest = error.nearest.expect("what would fit");
    assert!(nearest["max_vram_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{nearest}");
    let (_, work) = bench.done(request());
    assert!(work.pictures.len() == 1 && work.failures.is_empty());
}

#[test]
fn an_end_is_answered_whatever_is_there() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let (heard, _) = bench.done(request());
    let executor = started(&heard).expect("it was started");
    bench.end();
    assert!(executor.ends_within(Duration::from_millis(1)));
    bench.end();
    let (heard, _) = bench.done(request());
    assert!(started(&heard).is_some());
    let executors = bench.executors();
    bench.runners.finish(Duration::from_secs(10));
    let gone = executors.iter().all(|pid| {
        let process = crate::support::watched::Process::open_running(*pid);
        process.is_none_or(|process| process.ends_within(Duration::from_millis(1)))
    });
    assert!(gone, "{executors:?}");
}
