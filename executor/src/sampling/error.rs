//! What samplers there are for flow matching, the limits of noise levels, and why none can be made.

use std::ops::RangeInclusive;

use protocol::{Sampler, Scheduler};

/// The rules that make sense for flow matching; the first is what its models were published with.
/// The others are of noise over training's times, or draw from a Brownian path.
pub const FLOW_SAMPLERS: [Sampler; 9] = [
    Sampler::Euler,
    Sampler::EulerAncestral,
    Sampler::Heun,
    Sampler::Dpmpp2s,
    Sampler::Dpmpp2m,
    Sampler::Dpmpp2mSde,
    Sampler::Dpmpp2mSdeHeun,
    Sampler::UniPc,
    Sampler::Lcm,
];

/// The tables that do. [`Scheduler::DdimUniform`] has other than as many levels as there are steps.
pub const FLOW_SCHEDULERS: [Scheduler; 8] = [
    Scheduler::Automatic,
    Scheduler::Normal,
    Scheduler::SgmUniform,
    Scheduler::Simple,
    Scheduler::Karras,
    Scheduler::Exponential,
    Scheduler::Beta,
    Scheduler::KlOptimal,
];

/// Denoising steps of a run. diffusers trains flow models on 1000 levels; more steps repeat them.
pub const STEPS: RangeInclusive<usize> = 1..=1000;

/// Largest magnitude of the logarithmic shift `mu`: its exponential and the levels made with it are
/// ordinary `f32` numbers. Published models stay between 0.5 and 1.15, extrapolated ones below 5.
pub const MU_MAX: f64 = 16.0;

/// Why no table of noise levels can be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SamplerError {
    /// `scheduler_config.json` is no JSON or has a value of another type.
    #[error("scheduler_config.json is malformed: {message}")]
    Malformed {
        /// Where and what.
        message: String,
    },

    /// The model was made for another sampler.
    #[error("the model asks for the sampler {class}, Berth has FlowMatchEulerDiscreteScheduler")]
    OtherClass {
        /// `_class_name` of `scheduler_config.json`.
        class: String,
    },

    /// The configuration switches on a rule that is not implemented.
    #[error(
        "scheduler_config.json sets {key}, which is not supported\n\
         hint: Berth computes the plain levels only, with {key} false"
    )]
    Unsupported {
        /// The key that is `true`.
        key: &'static str,
    },

    /// A number of the configuration is outside what can be computed with.
    #[error("scheduler_config.json: {key} is {got}, expected {expected}")]
    OutOfRange {
        /// What of the configuration it is.
        key: &'static str,
        /// Its value.
        got: f64,
        /// The accepted range, in words.
        expected: &'static str,
    },

    /// The run asks for no step, or for too many.
    #[error("{got} steps asked for, {} to {} can be done", STEPS.start(), STEPS.end())]
    Steps {
        /// Steps asked for.
        got: usize,
    },

    /// The shift that follows from the image's size is beyond [`MU_MAX`], or not positive for a
    /// linear one.
    #[error(
        "an image of {image_tokens} tokens shifts the noise levels by {mu}, which is out of range"
    )]
    Mu {
        /// Packed latent pixels of the image.
        image_tokens: usize,
        /// The shift.
        mu: f64,
    },

    /// A sampler or a table that flow matching does not have.
    #[error(
        "the {kind} {name} makes no sense for this family; hint: name one of {}",
        flow_names(kind)
    )]
    NotForFlow {
        /// `sampler` or `scheduler`.
        kind: &'static str,
        /// What requests call it.
        name: &'static str,
    },

    /// Given levels that are none.
    #[error(
        "sigmas must fall from at most 1 to above 0, and be as many as there are steps; hint: \
         --sigmas 1,0.75,0.5,0.25"
    )]
    Given,

    /// One level cannot end at `shift_terminal` and start at 1.
    #[error("the model's shift_terminal needs 2 steps or more\nhint: --steps 2")]
    SingleStepTerminal,
}

/// The names of what there is in place of something else.
fn flow_names(kind: &str) -> String {
    let samplers = FLOW_SAMPLERS.map(|sampler| sampler.names().name);
    let schedulers = FLOW_SCHEDULERS.map(|scheduler| scheduler.names().name);
    if kind == "sampler" { samplers.join(", ") } else { schedulers.join(", ") }
}
