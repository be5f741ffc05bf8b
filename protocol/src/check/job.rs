//! The checker of a job's shape.

use super::Violations;
use crate::limits::{BATCH_MAX, SEQUENCE_TOKENS_MAX, SIDE_PIXELS_MAX, STEPS_MAX};
use crate::plan::JobShape;

rules! {
    /// What holds of a job's shape.
    pub enum JobRule {
        OutOfRange { what: &'static str, value: u32, max: u32 } =
            "{what} {value} is not within 1 to {max}",
        NoStep { first_step: u32 } = "first_step {first_step} leaves no step",
        StepsWithoutPicture = "steps are left out without a picture",
        TooManyPrompts { prompts: u32, batch: u32 } =
            "{prompts} prompts are more than {batch} pictures can have",
    }
}

/// Checks a job's shape against the limits of the protocol. What a model can do is narrower.
///
/// # Errors
/// The rules that it breaks.
pub fn check_job(job: &JobShape) -> Result<(), Violations> {
    let mut found = Violations::default();
    find(job, &mut found);
    found.result()
}

pub(super) fn find(job: &JobShape, found: &mut Violations) {
    for (what, value, max) in [
        ("width", job.width, SIDE_PIXELS_MAX),
        ("height", job.height, SIDE_PIXELS_MAX),
        ("steps", job.steps, STEPS_MAX),
        ("batch", job.batch, BATCH_MAX),
        ("max_sequence_length", job.max_sequence_length, SEQUENCE_TOKENS_MAX),
    ] {
        let within = (1..=max).contains(&value);
        found.ensure(within, || JobRule::OutOfRange { what, value, max });
    }
    let first_step = job.first_step;
    found.ensure(first_step < job.steps, || JobRule::NoStep { first_step });
    found.ensure(job.init_image || first_step == 0, || JobRule::StepsWithoutPicture);
    let (prompts, batch) = (job.prompts(), job.batch);
    let most = batch.saturating_mul(job.passes());
    let within = job.more_prompts == 0 || prompts <= most;
    found.ensure(within, || JobRule::TooManyPrompts { prompts, batch });
}
