//! Denoising rules by the names that people write, and how strongly a negative prompt counts.

use protocol::ModelDescription;
use protocol::profile::GuidanceScale;

use crate::job::record::SAMPLER;
use crate::job::request::{GuidanceRequest, Sampler};

/// What other programs call the rules that there are.
const ALIASES: [(&str, Sampler); 2] = [("euler", Sampler::Euler), ("k_euler", Sampler::Euler)];

/// A rule by one of its names, in letters of either case.
pub fn own(name: &str) -> Option<Sampler> {
    ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name)).map(|(_, sampler)| *sampler)
}

/// A rule's name as pictures have it.
pub fn name(sampler: Sampler) -> &'static str {
    match sampler {
        Sampler::Euler => SAMPLER,
    }
}

/// The names of all rules.
pub fn own_names() -> Vec<&'static str> {
    Sampler::ALL.into_iter().map(name).collect()
}

/// What else a rule is called.
pub fn aliases(sampler: Sampler) -> Vec<&'static str> {
    let of_it = ALIASES.iter().filter(|(_, of)| *of == sampler).map(|(alias, _)| *alias);
    of_it.filter(|alias| !alias.eq_ignore_ascii_case(name(sampler))).collect()
}

/// Whether a model guides without a classifier by itself, with a second run for each step.
pub fn guides_by_itself(description: &ModelDescription) -> bool {
    description.defaults.true_cfg_scale > 1.0
}

/// Whether a negative prompt counts in a job with this guidance.
pub fn follows_negative(guidance: &GuidanceRequest, description: &ModelDescription) -> bool {
    match (guidance.true_cfg_scale, guidance.guidance_scale, description.guidance) {
        (Some(scale), _, _) => scale > 1.0,
        (None, Some(scale), GuidanceScale::BeyondPrompt) => scale > 0.0,
        (None, Some(scale), GuidanceScale::ClassifierFree) => scale > 1.0,
        _ => guides_by_itself(description),
    }
}
