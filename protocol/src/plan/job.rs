//! What of a job decides sizes.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

use crate::phase::Phase;
use crate::sampler::Sampler;

/// What of a job decides sizes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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
    /// The denoising rule, which decides how often the DiT runs and what is kept between its runs.
    #[serde(default)]
    pub sampler: Sampler,
}

/// Documents name a sampler that is not the usual one; the wire, which has no names, always has all
/// fields.
impl Serialize for JobShape {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let JobShape {
            width,
            height,
            steps,
            batch,
            max_sequence_length,
            true_cfg,
            init_image,
            first_step,
            conditioned,
            more_prompts,
            sampler,
        } = self;
        let is_named = *sampler != Sampler::default() || !serializer.is_human_readable();
        let mut fields = serializer.serialize_struct("JobShape", 10 + usize::from(is_named))?;
        fields.serialize_field("width", width)?;
        fields.serialize_field("height", height)?;
        fields.serialize_field("steps", steps)?;
        fields.serialize_field("batch", batch)?;
        fields.serialize_field("max_sequence_length", max_sequence_length)?;
        fields.serialize_field("true_cfg", true_cfg)?;
        fields.serialize_field("init_image", init_image)?;
        fields.serialize_field("first_step", first_step)?;
        fields.serialize_field("conditioned", conditioned)?;
        fields.serialize_field("more_prompts", more_prompts)?;
        if is_named {
            fields.serialize_field("sampler", sampler)?;
        }
        fields.end()
    }
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
            sampler: Sampler::Euler,
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

    /// Model calls of the steps that run, for which each pass of the DiT runs once.
    pub const fn calls_run(&self) -> u32 {
        self.sampler.calls(self.steps_run())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_name_a_sampler_where_it_is_not_the_usual_one() {
        let usual = JobShape::small();
        let text = serde_json::to_string(&usual).unwrap();
        assert!(!text.contains("sampler"), "{text}");
        assert_eq!(serde_json::from_str::<JobShape>(&text).unwrap(), usual);
        let heun = JobShape { sampler: Sampler::Heun, steps: 4, ..usual };
        let text = serde_json::to_string(&heun).unwrap();
        assert!(text.contains(r#""sampler":"heun""#), "{text}");
        assert_eq!(serde_json::from_str::<JobShape>(&text).unwrap(), heun);
        assert_eq!((heun.steps_run(), heun.calls_run()), (4, 7));
    }

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
