//! What a job would take, as the surveyor says it, beside what a slot does.

use planner::job::JobRequest;
use planner::policy::PolicyText;
use planner::serve::desk::job::{Confidence, ErrorCode};
use rustix::process::Signal;

use crate::bench::{Bench, loads, one_device, request};
use crate::support::watched::Process;

fn of_size(width: u32, height: u32, batch: u32) -> JobRequest {
    let mut request = request();
    request.shape.width = Some(width);
    request.shape.height = Some(height);
    request.shape.batch = Some(batch);
    request
}

#[test]
fn a_quote_is_cold_then_warm_and_is_what_the_slot_does() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let cold = bench.quote(request()).expect("it fits");
    assert!(!cold.offer.warm && cold.offer.load_ms > 0.0 && cold.offer.run_ms > 0.0);
    assert_eq!((cold.offer.batch, cold.offer.confidence), (1, Confidence::Predicted));
    assert_eq!(cold.plan["feasible"], true);
    // Asked again, nothing is measured again.
    let again = bench.quote(request()).expect("it fits");
    assert_eq!(again.offer, cold.offer);
    let (_, work) = bench.done(request());
    let predicted_ms = cold.offer.load_ms + cold.offer.run_ms;
    assert!((predicted_ms - work.predicted_ms).abs() <= 1e-6 * predicted_ms, "{predicted_ms}");
    let device = |peaks: &[(String, protocol::Bytes)]| {
        peaks.iter().find(|(id, _)| id == "virtual0").map(|(_, bytes)| *bytes)
    };
    let peak = device(&cold.offer.peak_bytes).expect("the device is used");
    let used = work.usage.devices.iter().find(|device| device.id.0 == "virtual0");
    assert_eq!(used.expect("it was used").peaks(), (peak, peak));
    let warm = bench.quote(request()).expect("it fits");
    assert!(warm.offer.warm && warm.offer.load_ms == 0.0, "{:?}", warm.offer);
    let (heard, work) = bench.done(request());
    assert_eq!((loads(&heard), work.predicted_ms), (vec![false], warm.offer.run_ms));
    // Another size keeps the weights.
    let other = bench.quote(of_size(96, 64, 1)).expect("it fits");
    assert!(other.offer.warm && other.offer.load_ms < cold.offer.load_ms, "{:?}", other.offer);
    let (heard, work) = bench.done(of_size(96, 64, 1));
    assert_eq!(loads(&heard), [false]);
    assert_eq!(work.pictures[0].width, 96);
    // Runs have corrected what is predicted.
    assert_eq!(other.offer.confidence, Confidence::Measured);
    bench.end();
    let cold = bench.quote(request()).expect("it fits");
    assert!(!cold.offer.warm && cold.offer.load_ms > 0.0);
}

#[test]
fn what_does_not_fit_together_is_made_in_several_runs() {
    let large = |batch| of_size(256, 256, batch);
    // In small tiles the VAE takes less than the DiT, which computes all pictures at once.
    let capped = |max_vram: u64, batch| {
        let (max_vram, vae_tile) = (Some(format!("{max_vram}B")), Some("64".to_owned()));
        let policy = PolicyText { max_vram, vae_tile, ..PolicyText::default() };
        JobRequest { policy, ..large(batch) }
    };
    let mut bench = Bench::new(&one_device(512, "1GiB/s"));
    let error = bench.quote(capped(1 << 20, 2)).expect_err("it cannot fit");
    assert_eq!(error.code, ErrorCode::DoesNotFit);
    let enough = error.nearest.expect("what would fit")["max_vram_bytes"].as_u64();
    // Enough for one picture, which is the least that a job can be divided into.
    let enough = enough.expect("a budget");
    let offer = bench.quote(capped(enough, 8)).expect("one fits").offer;
    let one = bench.quote(capped(enough, 1)).expect("one fits").offer;
    assert!(offer.batch < 8, "{offer:?}");
    let runs = 8_u32.div_ceil(offer.batch);
    assert!(runs > 1 && offer.run_ms > one.run_ms, "{offer:?}");
    let whole = bench.quote(large(8)).expect("it fits without a cap").offer;
    assert_eq!(whole.batch, 8);
}

#[test]
fn a_question_that_is_wrong_says_what_is() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let error = bench.quote(of_size(65, 64, 1)).expect_err("no multiple");
    assert_eq!(error.code, ErrorCode::BadValue, "{error:?}");
    let mut negative = request();
    negative.prompts.negative_prompt = Some("blue".to_owned());
    let error = bench.quote(negative).expect_err("it has no effect");
    let found = (error.code, error.param.as_deref());
    assert_eq!(found, (ErrorCode::BadValue, Some("negative_prompt")));
    assert!(bench.quote(request()).is_ok());
}

#[test]
fn the_surveyor_outlives_its_executor() {
    let mut bench = Bench::new(&one_device(64, "1GiB/s"));
    let before = bench.quote(request()).expect("it fits").offer;
    let [first] = bench.executors()[..] else { panic!("{:?}", bench.executors()) };
    let process = Process::open(first);
    process.send(Signal::KILL);
    assert!(process.ends_within(crate::support::watched::PATIENCE));
    let after = bench.quote(request()).expect("another executor is asked").offer;
    assert_eq!(after, before);
    assert_eq!(bench.executors().len(), 2);
}
