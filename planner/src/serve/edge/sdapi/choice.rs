//! Which denoising rule and schedule a request means. A name that a model does not have, and that
//! other programs offer, is taken for its own, which is told.

use axum::http::StatusCode;
use protocol::{ModelDescription, Sampler, Scheduler};

use super::names;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::{Fields, shortened};

/// What a request's names come to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SamplerChoice {
    /// The rule; the model's own where it is `None`.
    pub sampler: Option<Sampler>,
    /// The table, likewise.
    pub scheduler: Option<Scheduler>,
    /// How much fresh noise the rule takes, where it takes some.
    pub eta: Option<f32>,
    /// What stands for something else, as `sampler: DDIM -> Euler`.
    pub substituted: Vec<String>,
}

/// Reads `sampler_name`, else `sampler_index`; `scheduler`; and `eta`. Older clients add a
/// schedule's label to the sampler's name.
///
/// # Errors
/// 404 for a name that no program offers.
pub fn read(
    fields: &mut Fields,
    description: Option<&ModelDescription>,
) -> Result<SamplerChoice, EdgeError> {
    let index = fields.filled_text("sampler_index")?;
    let name = fields.filled_text("sampler_name")?.or(index);
    let scheduler = fields.filled_text("scheduler")?;
    let mut choice = SamplerChoice::default();
    let mut of_name = None;
    if let Some(name) = name {
        let named = Sampler::named_with_table(&name);
        if named.is_none() && !names::is_sampler(&name) {
            return Err(not_found("Sampler", "sampler_name", &name, description));
        }
        of_name = named.and_then(|(_, table)| table);
        choice.sampler = named.map(|(sampler, _)| sampler).filter(|sampler| {
            description.is_some_and(|description| description.samplers.contains(sampler))
        });
        if choice.sampler.is_none() {
            let own = description.and_then(|description| description.samplers.first());
            let own = own.copied().unwrap_or_default().names().label;
            if !own.eq_ignore_ascii_case(&name) {
                choice.substituted.push(format!("sampler: {name} -> {own}"));
            }
        }
    }
    if let Some(name) = scheduler {
        let named = Scheduler::named(&name);
        if named.is_none() && !names::is_scheduler(&name) {
            return Err(not_found("Scheduler", "scheduler", &name, description));
        }
        choice.scheduler = named.filter(|table| has_table(description, table));
        let is_own = choice.scheduler.is_some() || named == Some(Scheduler::Automatic);
        if !is_own && of_name.is_none() {
            choice.substituted.push(format!("scheduler: {name} -> {}", names::AUTOMATIC.1));
        }
    }
    // What stands behind a sampler's name counts more, as in the web UI.
    if let Some(table) = of_name {
        choice.scheduler = of_name.filter(|table| has_table(description, table));
        if choice.scheduler.is_none() {
            let (name, own) = (table.names().label, names::AUTOMATIC.1);
            choice.substituted.push(format!("scheduler: {name} -> {own}"));
        }
    }
    // Clients send it with all rules.
    if choice.sampler.is_some_and(Sampler::has_eta) {
        choice.eta = fields.number("eta", 0.0, 1.0)?.map(|eta| eta as f32);
    }
    Ok(choice)
}

fn has_table(description: Option<&ModelDescription>, table: &Scheduler) -> bool {
    description.is_some_and(|description| description.schedulers.contains(table))
}

fn not_found(
    what: &str,
    param: &str,
    name: &str,
    description: Option<&ModelDescription>,
) -> EdgeError {
    let samplers = description.map_or(&[][..], |description| &description.samplers);
    let tables = description.map_or(&[][..], |description| &description.schedulers);
    let known: Vec<&str> = match what {
        "Sampler" => samplers.iter().map(|sampler| sampler.names().label).collect(),
        _ => tables.iter().map(|table| table.names().label).collect(),
    };
    let hint = match known.is_empty() {
        true => "leave it out".to_owned(),
        false => format!("name one of {}", known.join(", ")),
    };
    let message = format!("{what} not found: {:?}; hint: {hint}", shortened(name));
    EdgeError { status: StatusCode::NOT_FOUND, ..EdgeError::unsupported(param, message) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::serve::edge::openai::testing;
    use protocol::profile::GuidanceScale;

    fn of(body: Value) -> Result<SamplerChoice, EdgeError> {
        let Value::Object(object) = body else { panic!("an object") };
        let description = testing::description(GuidanceScale::Embedded, 1.0);
        read(&mut Fields::of(object), Some(&description))
    }

    #[test]
    fn names_are_the_models_or_stand_for_its_own() {
        use Sampler::{Dpmpp2m, Euler, EulerAncestral};
        use Scheduler::{Automatic, Karras};
        for (body, sampler, scheduler, substituted) in [
            (json!({}), None, None, &[][..]),
            (
                json!({"sampler_name": "Euler", "scheduler": "Automatic"}),
                Some(Euler),
                Some(Automatic),
                &[],
            ),
            (
                json!({"sampler_name": "k_euler", "scheduler": "automatic"}),
                Some(Euler),
                Some(Automatic),
                &[],
            ),
            (json!({"sampler_name": "", "sampler_index": "Euler"}), Some(Euler), None, &[]),
            (json!({"sampler_name": "Euler a"}), Some(EulerAncestral), None, &[]),
            (json!({"sampler_name": "DPM++ 2M Karras"}), Some(Dpmpp2m), Some(Karras), &[]),
            (
                json!({"sampler_name": "DDIM", "scheduler": "turbo"}),
                None,
                None,
                &["sampler: DDIM -> Euler", "scheduler: turbo -> Automatic"],
            ),
            (json!({"sampler_name": "Restart"}), None, None, &["sampler: Restart -> Euler"]),
        ] {
            let choice = of(body.clone()).unwrap();
            assert_eq!((choice.sampler, choice.scheduler), (sampler, scheduler), "{body}");
            assert_eq!(choice.substituted, substituted, "{body}");
        }
        assert_eq!(of(json!({"sampler_name": "Euler a", "eta": 0.5})).unwrap().eta, Some(0.5));
        assert_eq!(of(json!({"sampler_name": "Euler", "eta": 7})).unwrap().eta, None);
    }

    #[test]
    fn a_model_that_is_not_known_yet_has_its_own() {
        let body = json!({"sampler_name": "Euler a", "scheduler": "Karras"});
        let Value::Object(object) = body else { panic!("an object") };
        let choice = read(&mut Fields::of(object), None).unwrap();
        assert_eq!((choice.sampler, choice.scheduler), (None, None));
        assert_eq!(choice.substituted.len(), 2, "{:?}", choice.substituted);
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
