//! A running job: what its family's work in each phase needs beside its own buffers.

use std::time::Instant;

use protocol::message::{JobTexts, Progress};
use protocol::notice::Notice;
use protocol::{Failure, Job, JobShape, Phase};

use super::image::Picture;
use super::{Dump, JobPhases, Observer, finite};
use crate::backend::{CancelFlag, SharedBytes};
use crate::models::buffers::PREVIEW;
use crate::runtime::{JobBuffers, Runtime};

/// A job on a loaded plan.
pub struct RunningJob<'a> {
    /// Its plan, with weights and arenas in place.
    pub runtime: &'a mut Runtime,
    /// What is asked.
    pub job: &'a Job,
    /// What its text encoders take, and which of that each picture has.
    pub texts: JobTexts<'a>,
    /// Its buffers, for the family to take when it starts.
    pub buffers: JobBuffers,
    /// Intermediate tensors, where they are wanted.
    pub dump: Dump,
    /// Asked by everything that takes long.
    pub cancel: &'a CancelFlag,
    pub(super) preview: Option<SharedBytes>,
    pub(super) observer: &'a mut dyn Observer,
}

impl<'a> RunningJob<'a> {
    /// A job whose buffers are allocated.
    pub(super) fn new(
        runtime: &'a mut Runtime,
        job: &'a Job,
        cancel: &'a CancelFlag,
        observer: &'a mut dyn Observer,
    ) -> Result<RunningJob<'a>, Failure> {
        let plan = runtime.model.buffers(&runtime.plan.job, &runtime.plan.options)?;
        let mut buffers = JobBuffers::allocate(&plan, runtime.host_memory())?;
        let preview = buffers.take_lent(PREVIEW);
        if let Some(preview) = &preview {
            observer.previews(preview.turn());
        }
        let dump = Dump::new(job.dump_tensors);
        let texts = job.texts(runtime.plan.job.true_cfg);
        Ok(RunningJob { runtime, job, texts, buffers, dump, cancel, preview, observer })
    }

    /// Enters a phase, runs it, leaves it, and records how long it computed. `next` is the phase
    /// whose weights may be on their way meanwhile.
    pub(super) fn timed(
        &mut self,
        phase: Phase,
        next: Option<Phase>,
        phases: &mut dyn JobPhases,
    ) -> Result<(), Failure> {
        self.progress(phase, 0, 1);
        self.runtime.enter(phase, next, self.cancel)?;
        let start = Instant::now();
        phases.run(phase, self)?;
        self.runtime.record_ms(phase, start.elapsed().as_secs_f64() * 1e3);
        self.runtime.leave(phase);
        Ok(())
    }

    /// Hands over what was collected.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        match self.dump.serialize() {
            Some(tensors) => self.observer.tensors(&tensors),
            None => Ok(()),
        }
    }

    /// What of the job decides sizes.
    pub fn shape(&self) -> &JobShape {
        &self.runtime.plan.job
    }

    /// Tells that so many steps of a phase are done.
    pub fn progress(&mut self, phase: Phase, step: u32, of: u32) {
        self.observer.progress(Progress { phase, step, of });
    }

    /// Tells the user something.
    pub fn notice(&mut self, notice: Notice) {
        self.observer.notice(notice);
    }

    /// Hands over a finished picture.
    pub fn picture(&mut self, picture: Picture<'_>) -> Result<(), Failure> {
        self.observer.picture(picture)
    }

    /// What a text is called in dumped tensors: as diffusers' two prompts, conditional and
    /// unconditional, and those after the first of each by a number.
    pub fn dumped_text(&self, place: usize) -> String {
        let prompts = self.texts.all.iter().filter(|text| !text.is_negative()).count();
        let (called, number) = match place.checked_sub(prompts) {
            Some(number) => ("u", number),
            None => ("c", place),
        };
        if number == 0 { called.to_owned() } else { format!("{called}{number}") }
    }

    /// Runs a text encoder on a prompt's token ids, reads its last hidden state `[tokens,
    /// features]`, and dumps both under `name`.
    pub fn encode_text(
        &mut self,
        component: &str,
        name: &str,
        ids: &[i32],
        shape: [usize; 2],
        hidden: &mut [f32],
    ) -> Result<(), Failure> {
        let encoder = self.runtime.component(component);
        encoder.write_ids("input_ids", ids)?;
        encoder.run(self.cancel)?;
        encoder.read("last_hidden_state", hidden)?;
        self.check_finite(component, hidden, None)?;
        let [tokens, features] = shape;
        self.dump.ids(&format!("{name}.input_ids"), ids);
        self.dump.floats(&format!("{name}.last_hidden_state"), &[1, tokens, features], hidden);
        Ok(())
    }

    /// Checks a component's result; `step` counts the steps that are run, from 0.
    pub fn check_finite(
        &self,
        component: &str,
        values: &[f32],
        step: Option<usize>,
    ) -> Result<(), Failure> {
        let plan = &self.runtime.plan;
        let step = step.map(|step| [step as u32 + 1, plan.job.steps_run()]);
        finite::check(values, component, step, !plan.options.loras.is_empty())
    }
}
