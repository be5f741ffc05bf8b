//! Jobs that run together: which may, and what is sent for them.
//!
//! Each picture is the one that its job makes alone, to the bit, where host and virtual devices
//! compute. So jobs join only where everything but prompts and seeds is the same, where the
//! family's pictures of a batch may have prompts of their own or these are the same too, and where
//! no product is of so few rows alone that it is summed in another order than together.

use std::ops::Range;

use protocol::limits::{BATCH_MAX, FEW_ROWS};
use protocol::message::JobTexts;
use protocol::{JobItem, JobShape, ModelDescription};

use super::request::{Prompts, ShapeRequest};
use super::{JobRequest, PreparedJob, RequestError, ResolvedJob};

/// A job that may run with others.
pub struct JoiningJob<'a> {
    /// The request, as it is known without an executor.
    pub asked: &'a PreparedJob,
    /// The same on its model.
    pub resolved: ResolvedJob,
}

/// Jobs that run as one.
#[derive(Debug)]
pub struct JoinedJob {
    /// Sizes and counts of all of them together.
    pub shape: JobShape,
    /// What is asked of each picture: the rest of what is sent is the same for all of them.
    pub items: Vec<JobItem>,
    /// For each of them, the places of its pictures in the batch.
    pub pictures: Vec<Range<u32>>,
}

impl JobRequest {
    /// Whether it may run with another one: all but texts, seeds and counts is the same, and
    /// neither wants what is of a run as a whole.
    pub fn runs_with(&self, other: &JobRequest) -> bool {
        let JobRequest {
            model,
            prompts: Prompts { negative_may_be_unused, .. },
            shape: ShapeRequest { width, height, steps, batch: _, max_sequence_length },
            guidance,
            start,
            seed: _,
            rng,
            sampler,
            scheduler,
            sigmas,
            eta,
            sampler_may_be_unused,
            policy,
            lora_at_run_time,
            preview_every,
            dump_tensors,
            weights_as,
        } = self;
        let is_of_a_run = *dump_tensors || preview_every.is_some() || start.latents.is_some();
        let shape = ShapeRequest {
            width: *width,
            height: *height,
            steps: *steps,
            batch: other.shape.batch,
            max_sequence_length: *max_sequence_length,
        };
        !is_of_a_run
            && (*dump_tensors, *preview_every) == (other.dump_tensors, other.preview_every)
            && shape == other.shape
            && (model, guidance, start) == (&other.model, &other.guidance, &other.start)
            && (rng, sampler, weights_as) == (&other.rng, &other.sampler, &other.weights_as)
            && (scheduler, sigmas, eta) == (&other.scheduler, &other.sigmas, &other.eta)
            && *sampler_may_be_unused == other.sampler_may_be_unused
            && (policy, lora_at_run_time) == (&other.policy, &other.lora_at_run_time)
            && *negative_may_be_unused == other.prompts.negative_may_be_unused
    }
}

impl<'a> JoiningJob<'a> {
    /// A job that was asked, on its model.
    ///
    /// # Errors
    /// What is asked makes no sense for the model.
    pub fn new(
        asked: &'a PreparedJob,
        description: &ModelDescription,
    ) -> Result<JoiningJob<'a>, RequestError> {
        Ok(JoiningJob { asked, resolved: asked.resolve(description)? })
    }
}

impl JoinedJob {
    /// One of these jobs, or all of them as one; `None` where they do not run together.
    ///
    /// # Errors
    /// One of them cannot be sent, whether alone or not.
    pub fn of(
        members: &[&JoiningJob<'_>],
        description: &ModelDescription,
    ) -> Result<Option<JoinedJob>, RequestError> {
        let [first, others @ ..] = members else { return Ok(None) };
        if !others.iter().all(|other| runs_with(first, other)) {
            return Ok(None);
        }
        let (mut items, mut pictures) = (Vec::new(), Vec::new());
        for member in members {
            let start = items.len() as u32;
            items.extend(member.asked.items(&member.resolved)?);
            pictures.push(start..items.len() as u32);
        }
        let batch = items.len() as u32;
        let more_prompts = JobTexts::of(&items, first.resolved.shape.true_cfg).more();
        let shape = JobShape { batch, more_prompts, ..first.resolved.shape.clone() };
        let has_same_bits = || {
            let mut counts = members.iter().map(|member| member.resolved.shape.batch);
            counts.all(|alone| same_bits(&shape, alone, description))
        };
        let joins =
            batch <= BATCH_MAX && (more_prompts == 0 || description.own_prompts) && has_same_bits();
        Ok((others.is_empty() || joins).then_some(JoinedJob { shape, items, pictures }))
    }
}

/// Whether everything that must be the same for one run is.
fn runs_with(first: &JoiningJob<'_>, other: &JoiningJob<'_>) -> bool {
    let (ours, theirs) = (&first.resolved, &other.resolved);
    let shape = JobShape { batch: ours.shape.batch, ..theirs.shape.clone() };
    first.asked.request.runs_with(&other.asked.request)
        && shape == ours.shape
        && (ours.guidance, &ours.options) == (theirs.guidance, &theirs.options)
}

/// Whether a picture is the same bits in a batch as among `alone` pictures: every product has few
/// rows in both, or in none. Rows are of pictures (times and pooled texts), of text tokens and of
/// image tokens.
fn same_bits(shape: &JobShape, alone: u32, description: &ModelDescription) -> bool {
    let multiple = description.side_multiple_pixels.max(1);
    let image_tokens = (shape.width / multiple) * (shape.height / multiple);
    [1, shape.max_sequence_length, image_tokens].into_iter().all(|rows| {
        let [alone, together] = [alone, shape.batch].map(|count| rows.saturating_mul(count));
        (alone <= FEW_ROWS) == (together <= FEW_ROWS)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use protocol::ModelSource;
    use protocol::profile::{GuidanceScale, JobDefaults};

    use super::*;
    use crate::job::seed::Seed;
    use crate::policy::PolicyText;

    /// A model whose pictures have 16 tokens of 16 pixels.
    fn description() -> ModelDescription {
        ModelDescription {
            model: ModelSource::default(),
            family: "test".to_owned(),
            files: Vec::new(),
            components: Vec::new(),
            defaults: JobDefaults {
                width: 64,
                height: 64,
                steps: 4,
                max_sequence_length: 32,
                guidance_scale: 3.5,
                true_cfg_scale: 1.0,
            },
            side_multiple_pixels: 16,
            sequence_tokens_max: 64,
            own_prompts: true,
            guidance: GuidanceScale::Embedded,
            samplers: vec![
                protocol::Sampler::Euler,
                protocol::Sampler::EulerAncestral,
                protocol::Sampler::Dpmpp2m,
            ],
            schedulers: vec![protocol::Scheduler::Automatic, protocol::Scheduler::Karras],
            few_steps: None,
            lacks: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn request(prompt: &str, count: u32) -> JobRequest {
        let mut request = JobRequest { seed: Some(Seed::Given(9)), ..JobRequest::default() };
        request.prompts.prompt = Some(prompt.to_owned());
        request.shape.batch = Some(count);
        request
    }

    /// As `change` has the second of two jobs and their model.
    fn joined(change: impl Fn(&mut JobRequest, &mut ModelDescription)) -> Option<JoinedJob> {
        let mut description = description();
        let mut second = request("b", 2);
        change(&mut second, &mut description);
        let prepare = |request: JobRequest| {
            request.prepare(&BTreeMap::new(), &PolicyText::default()).expect("a request")
        };
        let asked = [prepare(request("a", 1)), prepare(second)];
        let joining = |asked| JoiningJob::new(asked, &description).expect("a job");
        let members = asked.each_ref().map(joining);
        JoinedJob::of(&members.each_ref(), &description).expect("both can be sent")
    }

    #[test]
    fn jobs_that_differ_in_prompts_seeds_and_counts_run_together() {
        let joined = joined(|_, _| {}).expect("they join");
        assert_eq!((joined.shape.batch, joined.shape.more_prompts), (3, 1));
        assert_eq!(joined.pictures, [0..1, 1..3]);
        let items = joined.items.iter().map(|item| (item.prompt.as_str(), item.seed));
        assert_eq!(items.collect::<Vec<_>>(), [("a", 9), ("b", 9), ("b", 10)]);
    }

    #[test]
    fn jobs_that_differ_in_anything_else_do_not() {
        type Change = fn(&mut JobRequest, &mut ModelDescription);
        let changes: [Change; 10] = [
            |request, _| request.shape.width = Some(96),
            |request, _| request.shape.steps = Some(9),
            |request, _| request.guidance.guidance_scale = Some(1.0),
            |request, _| request.policy.exact_matmul = Some(true),
            |request, _| request.preview_every = Some(1),
            |request, _| request.dump_tensors = true,
            // One prompt for all.
            |_, description| description.own_prompts = false,
            // More than few rows of times.
            |request, _| request.shape.batch = Some(8),
            // Few rows of image tokens alone: 4 and 12.
            |_, description| description.side_multiple_pixels = 32,
            // And of text tokens.
            |_, description| description.defaults.max_sequence_length = 4,
        ];
        for (at, change) in changes.into_iter().enumerate() {
            assert!(joined(change).is_none(), "change {at}");
        }
        let same_prompt = joined(|request, description| {
            request.prompts.prompt = Some("a".to_owned());
            description.own_prompts = false;
        });
        assert_eq!(same_prompt.expect("one prompt").shape.more_prompts, 0);
    }
}
