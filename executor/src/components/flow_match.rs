//! The flow-matching sampler that a diffusers directory configures.

use crate::models::ModelError;
use crate::models::config::read_text;
use crate::models::source::Directory;
use crate::sampling::FlowMatchConfig;

/// Where the configuration is.
const FILE: &str = "scheduler/scheduler_config.json";

/// Reads the directory's sampler.
///
/// # Errors
/// The directory has another sampler, or none; its configuration is at fault.
pub fn read(directory: &Directory) -> Result<FlowMatchConfig, ModelError> {
    directory.index.part("scheduler", &["FlowMatchEulerDiscreteScheduler"])?;
    let path = directory.path.join(FILE);
    if !path.exists() {
        let (dir, file) = (directory.path.clone(), FILE.to_owned());
        return Err(ModelError::MissingFile { dir, file });
    }
    FlowMatchConfig::parse(&read_text(&path)?)
        .map_err(|error| ModelError::Config { path, message: error.to_string() })
}
