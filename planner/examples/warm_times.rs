//! How long the second picture on one executor takes beside the first one from the start:
//!
//! `cargo run --release -p planner --example warm_times`
//!
//! The demo model, 64x64 in 12 steps, on this machine without its GPUs. The first picture counts
//! from the start of the executor; the second has another prompt, the third another size. Prints
//! one JSON object a line: the picture, milliseconds, their part of the first, and bytes of weights
//! that were sent. The executor is this program itself, run again.

use std::process::ExitCode;
use std::time::Instant;

use planner::demo;
use planner::engine::session::{EXECUTOR_SUBCOMMAND, ExecutorProgram, Session, SessionError};
use planner::engine::supervise::{Listener, Work, supervise};
use planner::engine::warm::{Holding, Warm};
use planner::planning::Request;
use planner::policy::{Objective, Policy, PolicyText};
use planner::profile::Profile;
use planner::solve::Solution;
use protocol::message::{Preview, Progress, Rng};
use protocol::notice::Notice;
use protocol::{Job, JobItem, JobShape, ModelSource};

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

fn request(model: &str, side: u32, holding: Holding<'_>) -> Request {
    let profile = Profile::parse("name = \"host\"\n[host]\n", "this example").expect("a profile");
    let mut inventory = profile.inventory().expect("this machine's memory");
    holding.give_back(&mut inventory, true);
    let policy = Policy::of(&PolicyText::default()).expect("no wishes");
    let job = JobShape {
        width: side,
        height: side,
        steps: 12,
        max_sequence_length: 32,
        ..JobShape::small()
    };
    let budgets = policy.budgets(&inventory).expect("no caps");
    let request = Request::new(ModelSource::of(model), 16, job, inventory, budgets, &policy);
    Request { objective: Objective::Throughput, ..request }
}

fn job(prompt: &str) -> Job {
    Job {
        items: vec![JobItem {
            prompt: prompt.to_owned(),
            prompt_2: None,
            negative_prompt: String::new(),
            seed: 7,
        }],
        guidance_scale: 3.5,
        true_cfg_scale: 1.0,
        cfg_normalization: false,
        scheduler: protocol::Scheduler::Automatic,
        sigmas: Vec::new(),
        eta: None,
        rng: Rng::Cpu,
        init_image: None,
        init_latents: None,
        dump_tensors: false,
        conditioning: Vec::new(),
        keep_conditioning: false,
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some(EXECUTOR_SUBCOMMAND) {
        return executor::main(arguments);
    }
    let model = demo::directory().expect("a place for the demo model").display().to_string();
    let begun = Instant::now();
    let program = ExecutorProgram::default();
    let mut warm = Warm::new(Session::start(&program, ()).expect("the executor starts"));
    let (mut start, mut first_ms) = (begun, 0.0);
    for (name, side, prompt) in [
        ("first", 64, "a red circle on a blue background"),
        ("another prompt", 64, "a green square on a white background"),
        ("another size", 96, "a green square on a white background"),
        ("the same again", 96, "a green square on a white background"),
    ] {
        let inventorize = |holding: Holding<'_>| Ok(request(&model, side, holding));
        let work = Work::Generate(Box::new(job(prompt)));
        let outcome = supervise(&mut warm, &inventorize, &work, None, &mut Nobody);
        let outcome = outcome.expect("the demo model fits");
        let ms = start.elapsed().as_secs_f64() * 1e3;
        if name == "first" {
            first_ms = ms;
        }
        let sent: u64 = outcome.usage.components.iter().map(|used| used.sent_bytes.0).sum();
        println!(
            "{{\"picture\": \"{name}\", \"side\": {side}, \"ms\": {ms:.1}, \"part\": {:.3}, \"sent_bytes\": {sent}}}",
            ms / first_ms
        );
        start = Instant::now();
    }
    warm.end();
    ExitCode::SUCCESS
}
