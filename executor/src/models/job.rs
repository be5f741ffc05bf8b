//! Whether a job's shape is one that a model can have.

use protocol::JobShape;

use super::ModelError;
use crate::sampling::named::kept;

/// Checks a job against the protocol's limits, and against what a model asks: sides that are
/// multiples of so many pixels, at most so many text tokens, a sampler of flow matching.
pub fn check(job: &JobShape, side_multiple: u32, tokens_max: u32) -> Result<(), ModelError> {
    protocol::check::check_job(job).map_err(|found| ModelError::Job(found.sentences()))?;
    kept(job).map_err(|error| ModelError::Job(error.to_string()))?;
    for (name, side) in [("width", job.width), ("height", job.height)] {
        if side % side_multiple != 0 {
            let lower = side / side_multiple * side_multiple;
            let nearest = match lower {
                0 => side_multiple.to_string(),
                lower => format!("{lower} or {}", lower + side_multiple),
            };
            return Err(ModelError::Job(format!(
                "{name} {side} is no multiple of {side_multiple}; hint: use {nearest}"
            )));
        }
    }
    if job.max_sequence_length > tokens_max {
        return Err(ModelError::Job(format!(
            "max_sequence_length {} is above this family's {tokens_max}",
            job.max_sequence_length
        )));
    }
    Ok(())
}
