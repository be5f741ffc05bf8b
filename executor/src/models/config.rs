//! Reading configuration files: a size cap, JSON by serde, and limits on every dimension, so that
//! no later arithmetic on shapes can overflow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::Bytes;
use serde::de::DeserializeOwned;

use super::ModelError;
use crate::read::{self, ReadError};

/// The file that makes a directory a model.
pub const MODEL_INDEX: &str = "model_index.json";

/// Largest configuration file. Published ones have some kilobytes.
pub const CONFIG_BYTES_MAX: Bytes = Bytes::mib(1);

/// Largest width of any layer. The widest published one (a text encoder's feed-forward) has 10,240.
pub const WIDTH_MAX: usize = 1 << 17;

/// Largest vocabulary. The largest published one has 262,208 entries.
pub const VOCABULARY_MAX: usize = 1 << 20;

/// Most layers of one kind. The deepest published DiT has 60.
pub const LAYERS_MAX: usize = 256;

/// `model_index.json`: the pipeline's class and the class of each part.
pub struct ModelIndex {
    /// What diffusers calls the pipeline.
    pub class: String,
    parts: BTreeMap<String, serde_json::Value>,
    path: PathBuf,
}

impl ModelIndex {
    /// Reads it from a model directory.
    pub fn read(dir: &Path) -> Result<ModelIndex, ModelError> {
        let path = dir.join(MODEL_INDEX);
        if !path.exists() {
            return Err(ModelError::MissingFile {
                dir: dir.to_owned(),
                file: MODEL_INDEX.to_owned(),
            });
        }
        let parts: BTreeMap<String, serde_json::Value> = read_json(&path)?;
        let class =
            parts.get("_class_name").and_then(|class| class.as_str()).unwrap_or("").to_owned();
        Ok(ModelIndex { class, parts, path })
    }

    /// The class of a part, as `["transformers", "SomeTextModel"]` says it.
    pub fn class_of(&self, part: &str) -> Option<&str> {
        self.parts.get(part)?.get(1)?.as_str()
    }

    /// What it says of the pipeline by a key that is true or false; `None` where it says nothing.
    pub fn says(&self, key: &str) -> Option<bool> {
        self.parts.get(key)?.as_bool()
    }

    /// The class of a part; an error unless it is one of the expected ones.
    pub fn part(&self, name: &str, expected: &[&str]) -> Result<String, ModelError> {
        match self.class_of(name) {
            Some(class) if expected.contains(&class) => Ok(class.to_owned()),
            other => Err(ModelError::Config {
                path: self.path.clone(),
                message: format!(
                    "part `{name}` is of class {}, expected {}",
                    other.unwrap_or("none"),
                    expected.join(" or ")
                ),
            }),
        }
    }
}

/// Reads a text file under the size cap.
pub fn read_text(path: &Path) -> Result<String, ModelError> {
    read::text(path, CONFIG_BYTES_MAX).map_err(|error| match error {
        ReadError::TooLarge { got, limit } => {
            ModelError::ConfigTooLarge { path: path.to_owned(), got, limit }
        }
        cause => ModelError::Read { path: path.to_owned(), cause },
    })
}

/// Reads a JSON file under the size cap.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    serde_json::from_str(&read_text(path)?)
        .map_err(|error| ModelError::Config { path: path.to_owned(), message: error.to_string() })
}

/// Reads `config.json` of a part, with its path for later messages.
pub fn read_part<T: DeserializeOwned>(dir: &Path, part: &str) -> Result<(PathBuf, T), ModelError> {
    let path = dir.join(part).join("config.json");
    if !path.exists() {
        return Err(ModelError::MissingFile {
            dir: dir.to_owned(),
            file: format!("{part}/config.json"),
        });
    }
    let config = read_json(&path)?;
    Ok((path, config))
}

/// Collects what is wrong with a configuration's numbers.
pub struct Limits<'a> {
    path: &'a Path,
}

impl<'a> Limits<'a> {
    /// Checks for this file.
    pub fn of(path: &'a Path) -> Limits<'a> {
        Limits { path }
    }

    /// A count within 1 and `max`.
    pub fn count(&self, name: &str, value: usize, max: usize) -> Result<(), ModelError> {
        self.holds((1..=max).contains(&value), || format!("{name} is {value}, expected 1 to {max}"))
    }

    /// The widths that this part takes of others, each with what they give.
    pub fn fit(&self, widths: &[(&str, usize, usize)]) -> Result<(), ModelError> {
        for (name, takes, gives) in widths {
            let message = || format!("{name} is {takes}, the other parts give {gives}");
            self.holds(takes == gives, message)?;
        }
        Ok(())
    }

    /// Any other rule.
    pub fn holds(&self, holds: bool, message: impl FnOnce() -> String) -> Result<(), ModelError> {
        if holds {
            return Ok(());
        }
        Err(ModelError::Config { path: self.path.to_owned(), message: message() })
    }
}
