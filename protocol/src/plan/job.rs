//! What of a job decides sizes.

use serde::{Deserialize, Serialize};

use crate::phase::Phase;

/// What of a job decides sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobShape {
    /// Width of the picture in pixels.
    pub width: u32,
    /// Height of the picture in pixels.
    pub height: u32,
    /// Denoising steps.
    pub steps: u32,
    /// Pictures made together.
    pub batch: u32,
    /// Tokens of the long text encoder, padding included.
    pub max_sequence_length: u32,
    /// Whether the DiT runs a second time in each step, on the negative prompt
    /// (`--true-cfg-scale`).
    pub true_cfg: bool,
    /// Whether the job starts from a picture.
    pub init_image: bool,
    /// Steps of the sampler's table that are left out at its start: above 0 for a job that starts
    /// from a picture at less than full strength.
    pub first_step: u32,
    /// Whether the job brings what the text encoders give for its prompts: none of them runs, and
    /// there is no phase for them.
    #[serde(default)]
    pub conditioned: bool,
    /// How many texts more than those of one picture the text encoders take, as pictures of the
    /// batch have prompts of their own: each text counts once.
    #[serde(default)]
    pub more_prompts: u32,
}

impl JobShape {
    /// The smallest of jobs, to be changed where one asks for more.
    pub const fn small() -> JobShape {
        JobShape {
            width: 64,
            height: 64,
            steps: 1,
            batch: 1,
            max_sequence_length: 32,
            true_cfg: false,
            init_image: false,
            first_step: 0,
            conditioned: false,
            more_prompts: 0,
        }
    }

    /// How often the DiT runs in each step: with true classifier-free guidance on the negative
    /// prompt too.
    pub const fn passes(&self) -> u32 {
        if self.true_cfg { 2 } else { 1 }
    }

    /// The texts that the text encoders take, each of which is encoded once: the prompts, and with
    /// true classifier-free guidance the negative ones.
    pub const fn prompts(&self) -> u32 {
        self.passes().saturating_add(self.more_prompts)
    }

    /// The phases that a plan for this job states bytes for, in order. `Load` holds a subset of the
    /// first one's.
    pub const fn timeline(&self) -> &'static [Phase] {
        const WHOLE: [Phase; 4] = [Phase::Encode, Phase::Condition, Phase::Denoise, Phase::Decode];
        const CONDITIONED: [Phase; 3] = [Phase::Encode, Phase::Denoise, Phase::Decode];
        match (self.init_image, self.conditioned) {
            (true, false) => &WHOLE,
            (false, false) => WHOLE.split_at(1).1,
            (true, true) => &CONDITIONED,
            (false, true) => CONDITIONED.split_at(1).1,
        }
    }

    /// The phase of this job that follows one of its phases; `None` after the last.
    pub fn phase_after(&self, phase: Phase) -> Option<Phase> {
        let timeline = self.timeline();
        let at = timeline.iter().position(|known| *known == phase)?;
        timeline.get(at + 1).copied()
    }

    /// Steps that run.
    pub const fn steps_run(&self) -> u32 {
        self.steps.saturating_sub(self.first_step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_has_the_phases_that_it_needs_one_after_the_other() {
        use Phase::{Condition, Decode, Denoise, Encode};
        for (init_image, conditioned, phases) in [
            (false, false, &[Condition, Denoise, Decode][..]),
            (true, false, &[Encode, Condition, Denoise, Decode]),
            (false, true, &[Denoise, Decode]),
            (true, true, &[Encode, Denoise, Decode]),
        ] {
            let job = JobShape { init_image, conditioned, ..JobShape::small() };
            assert_eq!(job.timeline(), phases);
            for (index, phase) in phases.iter().enumerate() {
                assert_eq!(job.phase_after(*phase), phases.get(index + 1).copied());
            }
            assert_eq!(job.phase_after(Phase::Load), None);
        }
    }
}
