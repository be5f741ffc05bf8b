//! Jobs that bring their embeddings among jobs that do not: no text encoder runs for them, and no
//! weights go to and fro.

use protocol::plan::ComponentPlan;
use protocol::{Embeddings, Phase};

use super::*;

/// Where a prompt is known: what text encoders gave for it.
struct Known {
    prompt: &'static str,
    conditioning: Vec<Embeddings>,
}

impl Bench {
    /// Runs a job with a new prompt, and keeps what its text encoders gave.
    fn run_new(&self, warm: &mut Warm, shape: &JobShape, prompt: &'static str) -> (Outcome, Known) {
        let job = Job { keep_conditioning: true, ..job(prompt, shape) };
        let outcome = self.run_job(warm, shape, job).expect("it fits");
        assert_exact(&outcome);
        assert_eq!(outcome.usage.devices[0].phases[0].phase, Phase::Condition);
        let conditioning = outcome.conditioning.clone();
        assert_eq!(conditioning.len(), 1);
        (outcome, Known { prompt, conditioning })
    }

    /// Runs a job that brings what is known of its prompt.
    fn run_known(&self, warm: &mut Warm, shape: &JobShape, known: &Known) -> Outcome {
        let job = Job { conditioning: known.conditioning.clone(), ..job(known.prompt, shape) };
        let shape = JobShape { conditioned: true, ..shape.clone() };
        let outcome = self.run_job(warm, &shape, job).expect("it fits");
        assert_exact(&outcome);
        for device in &outcome.usage.devices {
            assert!(device.phases.iter().all(|phase| phase.phase != Phase::Condition));
        }
        let ran = outcome.usage.components.iter().filter(|component| component.calls > 0);
        assert_eq!(ran.map(|component| &*component.name).collect::<Vec<_>>(), ["dit", "vae"]);
        assert!(outcome.conditioning.is_empty());
        outcome
    }
}

fn component<'a>(outcome: &'a Outcome, name: &str) -> Option<&'a ComponentPlan> {
    outcome.plan.components.iter().find(|component| component.name == name)
}

fn residency(outcome: &Outcome, name: &str) -> Option<Residency> {
    component(outcome, name).map(|component| component.residency)
}

/// Bytes of a component's weights that a job sent.
fn sent_of(outcome: &Outcome, name: &str) -> u64 {
    let used = outcome.usage.components.iter().filter(|component| component.name == name);
    used.map(|component| component.sent_bytes.0).sum()
}

#[test]
fn a_known_prompt_runs_by_the_loaded_plan_and_a_new_one_after_it_too() {
    let bench = Bench::new(one_device(64));
    let (mut warm, shape) = (bench.executor(), shape([64, 64], 1));
    let (first, known) = bench.run_new(&mut warm, &shape, "a red circle");
    for _ in 0..3 {
        let again = bench.run_known(&mut warm, &shape, &known);
        assert_eq!((again.plan.generation, sent(&again)), (first.plan.generation, 0));
        assert_eq!(pictures(&again), pictures(&first));
        assert!(again.next_ms < again.plan.predicted_ms.next_total);
    }
    let (other, known) = bench.run_new(&mut warm, &shape, "a blue square");
    assert_eq!((other.plan.generation, sent(&other)), (first.plan.generation, 0));
    // Of another size nothing is moved either, nor for the new prompt that follows.
    let larger = super::shape([96, 64], 2);
    let resized = bench.run_known(&mut warm, &larger, &known);
    assert_eq!((resized.plan.keeps_weights_of, sent(&resized)), (Some(1), 0));
    assert_eq!(pictures(&resized), bench.alone(&larger, "a blue square"));
    let (new, _) = bench.run_new(&mut warm, &larger, "a red circle");
    assert_eq!((new.plan.generation, sent(&new)), (resized.plan.generation, 0));
    warm.end();
}

#[test]
fn a_first_job_with_a_known_prompt_loads_no_text_encoder_and_a_new_one_moves_nothing() {
    let bench = Bench::new(one_device(64));
    let (mut warm, shape) = (bench.executor(), shape([64, 64], 1));
    let (whole, known) = bench.run_new(&mut warm, &shape, "a red circle");
    warm.end();
    let mut warm = bench.executor();
    let alone = bench.run_known(&mut warm, &shape, &known);
    assert!(component(&alone, "t5").is_none() && alone.plan.job.conditioned);
    assert_eq!(pictures(&alone), pictures(&whole));
    assert!(sent(&alone) < sent(&whole));
    let (new, _) = bench.run_new(&mut warm, &shape, "a blue square");
    assert_eq!(new.plan.keeps_weights_of, Some(alone.plan.generation));
    assert!(sent_of(&new, "t5") > 0, "they are loaded now");
    assert_eq!((sent_of(&new, "dit"), sent_of(&new, "vae")), (0, 0));
    assert_eq!(pictures(&new), bench.alone(&shape, "a blue square"));
    let again = bench.run_known(&mut warm, &shape, &known);
    assert_eq!((again.plan.generation, sent(&again)), (new.plan.generation, 0));
    warm.end();
}

/// A device of so many KiB behind a slow link.
fn narrow(kib: u64) -> String {
    one_device(64).replace("64MiB", &format!("{kib}KiB")).replace("8GiB/s", "64MiB/s")
}

#[test]
fn a_dit_that_fits_only_without_text_encoders_is_made_resident() {
    let bench = Bench::new(narrow(3350));
    let (mut warm, shape) = (bench.executor(), shape([16, 16], 1));
    let (whole, known) = bench.run_new(&mut warm, &shape, "a red circle");
    assert_ne!(residency(&whole, "dit"), Some(Residency::Resident));
    warm.end();
    let mut warm = bench.executor();
    let alone = bench.run_known(&mut warm, &shape, &known);
    assert_eq!(residency(&alone, "dit"), Some(Residency::Resident));
    assert_eq!(pictures(&alone), pictures(&whole));
    let again = bench.run_known(&mut warm, &shape, &known);
    assert_eq!((again.plan.generation, sent_of(&again, "dit")), (alone.plan.generation, 0));
    assert!(alone.plan.predicted_ms.next_total < whole.plan.predicted_ms.next_total);
    warm.end();
}

/// Runs so many jobs, each third with a new prompt: how often weights were moved, and the last.
fn alternate(bench: &Bench, warm: &mut Warm, shape: &JobShape, jobs: usize) -> (u32, Outcome) {
    let (mut outcome, known) = bench.run_new(warm, shape, "a red circle");
    let mut moved = 0;
    for job in 0..jobs {
        let before = outcome.plan.generation;
        outcome = match job % 3 {
            2 => bench.run_new(warm, shape, "a blue square").0,
            _ => bench.run_known(warm, shape, &known),
        };
        let is_new = outcome.plan.generation != before;
        moved += u32::from(is_new && outcome.plan.keeps_weights_of.is_none());
        assert_eq!(outcome.attempts, 1, "{job}");
    }
    (moved, outcome)
}

#[test]
fn weights_move_once_it_pays_and_stay_where_new_prompts_find_them() {
    let bench = Bench::new(narrow(4100));
    let mut warm = bench.executor();
    let (moved, last) = alternate(&bench, &mut warm, &shape([16, 16], 1), 48);
    assert_eq!(moved, 1, "to where the text encoders were");
    assert_eq!(residency(&last, "vae"), Some(Residency::Resident));
    assert!(component(&last, "t5").is_some(), "they have room beside it");
    assert_eq!((sent_of(&last, "dit"), sent_of(&last, "vae")), (0, 0));
    warm.end();
}

#[test]
fn where_there_is_no_room_for_both_weights_do_not_move_for_each_prompt() {
    let bench = Bench::new(narrow(3350));
    let mut warm = bench.executor();
    let (moved, _) = alternate(&bench, &mut warm, &shape([16, 16], 1), 24);
    // Two prompts of three are known: by the faster plan at once they would move 16 times.
    assert!((1..=8).contains(&moved), "{moved}");
    warm.end();
}
