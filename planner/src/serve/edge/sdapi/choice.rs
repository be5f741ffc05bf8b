//! Which denoising rule and schedule a request means. Models have their own: the names that other
//! programs offer are taken for it, which is told.

use axum::http::StatusCode;

use super::names;
use crate::job::request::Sampler;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::{Fields, shortened};
use crate::serve::edge::sampler;

/// What a request's names come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerChoice {
    /// The rule.
    pub sampler: Sampler,
    /// What stands for something else, as `sampler: Euler a -> Euler`.
    pub substituted: Vec<String>,
}

/// Reads `sampler_name`, else `sampler_index`, and `scheduler`.
///
/// # Errors
/// 404 for a name that no program offers.
pub fn read(fields: &mut Fields) -> Result<SamplerChoice, EdgeError> {
    let index = fields.filled_text("sampler_index")?;
    let name = fields.filled_text("sampler_name")?.or(index);
    let scheduler = fields.filled_text("scheduler")?;
    // All models that there are have this rule.
    let mut choice = SamplerChoice { sampler: Sampler::Euler, substituted: Vec::new() };
    if let Some(name) = name {
        match sampler::own(&name) {
            Some(sampler) => choice.sampler = sampler,
            None if names::is_sampler(&name) => {
                let used = sampler::name(choice.sampler);
                choice.substituted.push(format!("sampler: {name} -> {used}"));
            }
            None => return Err(not_found("Sampler", "sampler_name", &name)),
        }
    }
    if let Some(name) = scheduler {
        let (own, label) = names::AUTOMATIC;
        if !names::is_scheduler(&name) {
            return Err(not_found("Scheduler", "scheduler", &name));
        }
        if ![own, label].iter().any(|own| own.eq_ignore_ascii_case(&name)) {
            choice.substituted.push(format!("scheduler: {name} -> {label}"));
        }
    }
    Ok(choice)
}

fn not_found(what: &str, param: &str, name: &str) -> EdgeError {
    let known = sampler::own_names().join(", ");
    let hint = if what == "Sampler" { &known } else { names::AUTOMATIC.1 };
    let message = format!("{what} not found: {:?}; hint: name one of {hint}", shortened(name));
    EdgeError { status: StatusCode::NOT_FOUND, ..EdgeError::unsupported(param, message) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(body: Value) -> Result<SamplerChoice, EdgeError> {
        let Value::Object(object) = body else { panic!("an object") };
        read(&mut Fields::of(object))
    }

    #[test]
    fn known_names_stand_for_the_models_own() {
        for (body, substituted) in [
            (json!({}), &[][..]),
            (json!({"sampler_name": "Euler", "scheduler": "Automatic"}), &[]),
            (json!({"sampler_name": "k_euler", "scheduler": "automatic"}), &[]),
            (json!({"sampler_name": "", "sampler_index": "Euler"}), &[]),
            (json!({"sampler_name": "Euler a"}), &["sampler: Euler a -> Euler"]),
            (
                json!({"sampler_name": "DPM++ 2M Karras", "scheduler": "karras"}),
                &["sampler: DPM++ 2M Karras -> Euler", "scheduler: karras -> Automatic"],
            ),
        ] {
            assert_eq!(of(body.clone()).unwrap().substituted, substituted, "{body}");
        }
    }

    #[test]
    fn unknown_names_are_not_found() {
        for (body, message) in [
            (json!({"sampler_name": "Better"}), "Sampler not found"),
            (json!({"scheduler": "Better"}), "Scheduler not found"),
        ] {
            let error = of(body).unwrap_err();
            assert_eq!(error.status, StatusCode::NOT_FOUND);
            assert!(error.message.starts_with(message), "{}", error.message);
        }
    }
}
