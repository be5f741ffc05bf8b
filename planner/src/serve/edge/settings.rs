//! What handlers know of the host's configuration and models; replaced whole when either changes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use protocol::ModelDescription;

use super::errors::EdgeError;
use crate::serve::desk::job::{Class, ErrorCode, JobError};

/// Names that an error offers where there is none of the name that was asked for.
const NEAREST_NAMES: usize = 3;

/// Characters of a name that are compared, which bounds the time of a comparison.
const COMPARED_CHARACTERS: usize = 64;

/// What requests are read by.
#[derive(Debug, Clone, Default)]
pub struct EdgeSettings {
    /// The model where a request names none.
    pub default_model: String,
    /// Other names of models.
    pub aliases: BTreeMap<String, String>,
    /// What the models are, by name.
    pub models: BTreeMap<String, EdgeModel>,
    /// Files of LoRA by name.
    pub loras: BTreeMap<String, PathBuf>,
    /// How clients reach this server, as `https://pictures.example`; from the request's `Host`
    /// where it is `None`.
    pub public_url: Option<String>,
    /// Whether OpenAI's routes answer with addresses where a request has no `response_format`.
    pub openai_as_url: bool,
    /// Steps by OpenAI's `quality`, as a factor of the model's own; over serve.md's where present.
    pub quality: BTreeMap<String, f64>,
}

/// A model as requests are read for it.
#[derive(Debug, Clone, Default)]
pub struct EdgeModel {
    /// Defaults, family and multiples; `None` while its files have not been read.
    pub description: Option<Arc<ModelDescription>>,
    /// The class of its jobs where a request says none.
    pub class: Option<Class>,
    /// Whether `cfg_scale` of A1111's routes is true CFG also where guidance is distilled.
    pub sdapi_cfg: bool,
}

impl EdgeSettings {
    /// The name of the model that a request means: by itself, by an alias, or the default one.
    ///
    /// # Errors
    /// [`ErrorCode::NoModel`] with the names that are nearest.
    pub fn model_name(&self, asked: Option<&str>) -> Result<String, EdgeError> {
        let asked = asked.filter(|name| !name.is_empty()).unwrap_or(&self.default_model);
        let name = self.aliases.get(asked).map(String::as_str).unwrap_or(asked);
        if self.models.contains_key(name) {
            return Ok(name.to_owned());
        }
        let shown: String = asked.chars().take(COMPARED_CHARACTERS).collect();
        let nearest = self.nearest_names(&shown);
        let hint = match nearest.is_empty() {
            true => "no model is configured".to_owned(),
            false => format!("name one of {}", nearest.join(", ")),
        };
        let message = format!("there is no model {shown:?}; hint: {hint}");
        let mut error = JobError::new(ErrorCode::NoModel, message);
        error.param = Some("model".to_owned());
        Err(error.into())
    }

    /// The model of a name that [`EdgeSettings::model_name`] gave.
    pub fn model(&self, name: &str) -> Option<&EdgeModel> {
        self.models.get(name)
    }

    fn nearest_names(&self, asked: &str) -> Vec<String> {
        let names = self.models.keys().chain(self.aliases.keys());
        let mut by_distance: Vec<(usize, &String)> =
            names.map(|name| (distance(asked, name), name)).collect();
        by_distance.sort();
        by_distance.into_iter().take(NEAREST_NAMES).map(|(_, name)| name.clone()).collect()
    }
}

/// Levenshtein's distance of two names, of which only [`COMPARED_CHARACTERS`] count.
fn distance(a: &str, b: &str) -> usize {
    let letters = |text: &str| -> Vec<char> {
        text.chars().take(COMPARED_CHARACTERS).flat_map(char::to_lowercase).collect()
    };
    let (a, b) = (letters(a), letters(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> EdgeSettings {
        let mut settings = EdgeSettings { default_model: "demo".to_owned(), ..Default::default() };
        for name in ["demo", "large", "large-fast"] {
            settings.models.insert(name.to_owned(), EdgeModel::default());
        }
        settings.aliases.insert("dall-e-3".to_owned(), "large".to_owned());
        settings
    }

    #[test]
    fn a_model_is_named_by_itself_by_an_alias_or_not_at_all() {
        let settings = settings();
        let name = |asked| settings.model_name(asked).map_err(|error| error.code);
        assert_eq!(name(None), Ok("demo".to_owned()));
        assert_eq!(name(Some("")), Ok("demo".to_owned()));
        assert_eq!(name(Some("large-fast")), Ok("large-fast".to_owned()));
        assert_eq!(name(Some("dall-e-3")), Ok("large".to_owned()));
        assert_eq!(name(Some("other")), Err("no_model"));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_first() {
        let error = settings().model_name(Some("Large_fast")).unwrap_err();
        assert!(error.message.contains("name one of large-fast, large"), "{}", error.message);
        assert_eq!(error.param.as_deref(), Some("model"));
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
