//! Which model a job is for: by its files as somebody typed them, or by a name that the host gave
//! it.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::limits::{STRING_BYTES_MAX, TooLong};
use protocol::model::LEFT_OUT;
use protocol::{ModelSource, PartFlag};
use serde::{Deserialize, Serialize};

use super::RequestError;
use crate::demo;

/// What a request says of its model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    /// The paths of its files as they were typed; none for the built-in demo model.
    Files(ModelSource),
    /// The name that the host gave it.
    Name(String),
}

impl Default for ModelName {
    fn default() -> ModelName {
        ModelName::Files(ModelSource::default())
    }
}

impl ModelName {
    pub(super) fn check(&self) -> Result<(), TooLong> {
        match self {
            ModelName::Name(name) if name.len() > STRING_BYTES_MAX => {
                let (what, got, limit) = ("model's name", name.len(), STRING_BYTES_MAX);
                Err(TooLong { what, got, limit })
            }
            _ => Ok(()),
        }
    }

    /// The paths as they were typed: none where it is known by a name.
    pub fn typed(&self) -> ModelSource {
        match self {
            ModelName::Files(source) => source.clone(),
            ModelName::Name(_) => ModelSource::default(),
        }
    }

    /// Where the model is, in absolute paths of what is there: the executor may have another
    /// working directory. `named` are the models that the host gave names to.
    ///
    /// # Errors
    /// Nothing is there, nothing has that name, or a path cannot be sent.
    pub fn source(
        &self,
        named: &BTreeMap<String, ModelSource>,
    ) -> Result<ModelSource, RequestError> {
        let typed = match self {
            ModelName::Files(source) => source,
            ModelName::Name(name) => named.get(name).ok_or_else(|| {
                let known = named.keys().cloned().collect();
                RequestError::UnknownModel { name: name.clone(), known }
            })?,
        };
        let model = typed.model.as_deref().map(model).transpose()?;
        let mut source = ModelSource { model, ..ModelSource::default() };
        for (&flag, path) in &typed.parts {
            let path = match flag.is_directory() {
                true => directory(path)?,
                false if path == LEFT_OUT => LEFT_OUT.to_owned(),
                false => part(flag, path)?,
            };
            source.parts.insert(flag, path);
        }
        if source.is_empty() {
            return Ok(ModelSource::of(absolute("model's path", &demo::directory()?)?));
        }
        source.check()?;
        Ok(source)
    }
}

fn model(path: &str) -> Result<String, RequestError> {
    let path = Path::new(path);
    if !path.exists() {
        return Err(RequestError::NoModel(path.to_owned()));
    }
    absolute("model's path", path)
}

fn part(flag: PartFlag, path: &str) -> Result<String, RequestError> {
    let path = Path::new(path);
    if !path.exists() {
        return Err(RequestError::NoPart { flag, path: path.to_owned() });
    }
    if path.is_dir() {
        return Err(RequestError::PartIsDirectory { flag, path: path.to_owned() });
    }
    absolute("model's path", path)
}

fn directory(path: &str) -> Result<String, RequestError> {
    let path = Path::new(path);
    if !path.is_dir() {
        return Err(RequestError::NoTokenizers(path.to_owned()));
    }
    absolute("model's path", path)
}

/// The path from the root; `what` it is, for errors. A socket or a device is refused where it would
/// be read.
pub fn absolute(what: &'static str, path: &Path) -> Result<String, RequestError> {
    let absolute = std::path::absolute(path)
        .map_err(|cause| RequestError::NoAbsolutePath { path: path.to_owned(), cause })?;
    let not_utf8 = |_| RequestError::NotUtf8 { what, path: path.to_owned() };
    absolute.into_os_string().into_string().map_err(not_utf8)
}
