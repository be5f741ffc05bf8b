//! What a run allocates: what its plan states, and nothing in a denoising step.

use std::path::Path;

use executor::backend::{CancelFlag, Turn};
use executor::families;
use executor::pipeline::{Observer, Picture};
use executor::runtime::Runtime;
use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::{Progress, Rng};
use protocol::{Failure, Job, JobItem, Phase, Plan};

use crate::support::alone;
use crate::{Bench, heap};

/// What a denoising step may allocate at once: messages and queues, nothing that grows with a job.
const IN_STEP_BYTES_MAX: usize = 64 << 10;

/// What a run may allocate beside its plan: headers, graphs, tokenizers, threads.
const BESIDE_BYTES_MAX: usize = 4 << 20;

/// What may be left after unloading: threads that are about to end, tables that are made once.
const LEFT_BYTES_MAX: usize = 1 << 20;

/// Has the allocator watch whole steps, from the first one's end on, and counts them and the
/// previews.
#[derive(Default)]
struct Steps {
    watched: u32,
    previews: u32,
}

impl Observer for Steps {
    fn progress(&mut self, progress: Progress) {
        let Progress { phase, step, of } = progress;
        let in_step = phase == Phase::Denoise && (1..of).contains(&step);
        self.watched += u32::from(in_step);
        heap::watch(in_step);
    }

    fn previews(&mut self, _: Turn) {}
    fn preview(&mut self, _: [u32; 2], _: IpcSharedMemory) {
        self.previews += 1;
    }

    fn picture(&mut self, _: Picture<'_>) -> Result<(), Failure> {
        Ok(())
    }

    fn notice(&mut self, _: protocol::notice::Notice) {}

    fn conditioned(&mut self, _: protocol::Embeddings) {}

    fn tensors(&mut self, _: &[u8]) -> Result<(), Failure> {
        Ok(())
    }
}

#[test]
fn the_heap_holds_what_is_planned_and_steps_allocate_nothing() {
    if !alone("steps::the_heap_holds_what_is_planned_and_steps_allocate_nothing") {
        return;
    }
    let bench = Bench { steps: "4", ..Bench::guided() };
    for host in ["virtual-1x64m", "./unequal.toml", "./host.toml"] {
        let more = ["--host", host, "--output", "plan.toml", "--dry-run", "--preview", "2"];
        bench.json("plan", [160, 160], 3, &more[..]);
        assert_heap_as_planned(&bench.home.path("plan.toml"));
    }
    let split = ["--backend", "all=virtual0,dit=virtual0&virtual1", "--split-mode", "dit=tensor"];
    let more = ["--host", "virtual-2x2g", "--output", "plan.toml", "--dry-run", "--preview", "2"];
    bench.json("plan", [160, 160], 3, &[&more[..], &split].concat());
    assert_heap_as_planned(&bench.home.path("plan.toml"));
}

fn assert_heap_as_planned(path: &Path) {
    let plan: Plan = toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut planned = [0; 3];
    for device in &plan.devices {
        for (sum, entry) in planned.iter_mut().zip(&device.phases) {
            *sum += (entry.peak_bytes.0 - device.overhead_bytes.0) as usize;
        }
    }
    for (sum, entry) in planned.iter_mut().zip(&plan.host.phases) {
        *sum += entry.peak_bytes.0 as usize;
    }
    let planned = planned.into_iter().max().unwrap();
    // Finished pictures of a batch wait in shared memory, which this observer does not make.
    let shared = (3 * plan.job.width * plan.job.height * plan.job.batch) as usize;
    let item = |seed| JobItem {
        prompt: "a red circle on a white background".to_owned(),
        prompt_2: None,
        negative_prompt: "a blue square".to_owned(),
        seed,
    };
    let job = Job {
        items: (1..=u64::from(plan.job.batch)).map(item).collect(),
        guidance_scale: 2.0,
        true_cfg_scale: 3.0,
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
    };
    let steps = plan.job.steps;
    let before = heap::live_bytes();
    heap::restart();
    let cancel = CancelFlag::default();
    let model = families::open_source(&plan.model).expect("the model opens");
    let mut runtime = Runtime::load(plan, model, &cancel).expect("the plan loads");
    let mut observer = Steps::default();
    families::generate(&mut runtime, &job, &cancel, &mut observer).expect("the job runs");
    let grown = heap::peak_bytes() - before;
    drop(runtime);
    // The planner takes no preview here, so that there is one, within a step that is watched.
    assert_eq!((observer.watched, observer.previews), (steps - 1, 1), "steps were watched");
    let in_step = heap::largest_watched_bytes();
    assert!(in_step <= IN_STEP_BYTES_MAX, "{in_step} B allocated at once in a denoising step");
    let (least, most) = (planned - shared, planned + BESIDE_BYTES_MAX);
    assert!((least..=most).contains(&grown), "the heap grew by {grown} B, planned {planned} B");
    let left = heap::live_bytes().saturating_sub(before);
    assert!(left <= LEFT_BYTES_MAX, "{left} B are left of {planned} B after unloading");
}
