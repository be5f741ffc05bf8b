//! Denoising rules by the names that people write, and how strongly a negative prompt counts.

use protocol::limits::STEPS_MAX;
use protocol::profile::GuidanceScale;
use protocol::{ModelDescription, Sampler, Scheduler};
use serde_json::Value;

use crate::job::request::GuidanceRequest;
use crate::serve::edge::errors::EdgeError;

/// Reads a denoising rule by one of its names, in letters of either case.
///
/// # Errors
/// There is none of that name, in a sentence: the model's are listed where it is known, else all.
pub fn sampler(
    name: Option<String>,
    description: Option<&ModelDescription>,
) -> Result<Option<Sampler>, String> {
    let Some(name) = name else { return Ok(None) };
    let all = description.map_or(&Sampler::ALL[..], |description| &description.samplers);
    let known = || all.iter().map(|sampler| sampler.names().name).collect::<Vec<_>>();
    let sampler = Sampler::named(&name).filter(|sampler| all.contains(sampler));
    sampler.map(Some).ok_or_else(|| unknown("sampler", &name, &known()))
}

/// The same of a table of noise levels.
///
/// # Errors
/// As [`sampler`].
pub fn scheduler(
    name: Option<String>,
    description: Option<&ModelDescription>,
) -> Result<Option<Scheduler>, String> {
    let Some(name) = name else { return Ok(None) };
    let all = description.map_or(&Scheduler::ALL[..], |description| &description.schedulers);
    let known = || all.iter().map(|table| table.names().name).collect::<Vec<_>>();
    let table = Scheduler::named(&name).filter(|table| all.contains(table));
    table.map(Some).ok_or_else(|| unknown("scheduler", &name, &known()))
}

fn unknown(kind: &str, name: &str, known: &[&str]) -> String {
    let shown: String = name.chars().take(64).collect();
    format!("there is no {kind} {shown:?}; hint: name one of {}", known.join(", "))
}

/// Reads levels in place of a table's: a list of numbers.
///
/// # Errors
/// It is something else. Whether they fall is seen with the whole request.
pub fn sigmas(value: Option<Value>) -> Result<Option<Vec<f32>>, EdgeError> {
    let Some(value) = value else { return Ok(None) };
    let numbers = value.as_array().filter(|numbers| numbers.len() <= STEPS_MAX as usize);
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    match numbers.and_then(|numbers| numbers.iter().map(number).collect()) {
        Some(numbers) => Ok(Some(numbers)),
        None => {
            let message = format!("sigmas must be a list of at most {STEPS_MAX} numbers");
            Err(EdgeError::bad_value("sigmas", message))
        }
    }
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
