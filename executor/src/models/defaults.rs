//! `berth.toml`: what a job on this model takes where its user names nothing, and how its latents
//! look. Any model directory may have one beside its model index.

use std::path::Path;

use protocol::profile::JobDefaults;
use serde::Deserialize;

use super::ModelError;
use super::config::{Limits, read_text};
use super::rgb_map::RgbMap;
use super::source::OpenedSource;

/// The file's name.
pub const FILE: &str = "berth.toml";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Defaults,
    preview: Option<RgbMap>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Defaults {
    width: Option<u32>,
    height: Option<u32>,
    steps: Option<u32>,
    max_sequence_length: Option<u32>,
    guidance_scale: Option<f32>,
    true_cfg_scale: Option<f32>,
}

/// What a family's model has of its own: the defaults and the map for previews of its directory,
/// where it has one, else the family's.
///
/// # Errors
/// The directory's file is not sound.
pub fn own_or(
    source: &OpenedSource,
    defaults: JobDefaults,
    rgb_map: RgbMap,
) -> Result<(JobDefaults, RgbMap), ModelError> {
    let Some(directory) = &source.directory else { return Ok((defaults, rgb_map)) };
    let (defaults, own) = read(&directory.path, defaults)?;
    Ok((defaults, own.unwrap_or(rgb_map)))
}

/// The family's defaults, with those of the model directory in their place where it has any; and
/// its own map for previews, if it has one.
fn read(dir: &Path, family: JobDefaults) -> Result<(JobDefaults, Option<RgbMap>), ModelError> {
    let path = dir.join(FILE);
    if !path.exists() {
        return Ok((family, None));
    }
    let file: File = toml::from_str(&read_text(&path)?)
        .map_err(|error| ModelError::Config { path: path.clone(), message: error.to_string() })?;
    let own = file.defaults;
    let scales = [("guidance_scale", own.guidance_scale), ("true_cfg_scale", own.true_cfg_scale)];
    for (name, scale) in scales {
        let sound = scale.is_none_or(|scale| scale.is_finite() && scale >= 0.0);
        Limits::of(&path).holds(sound, || format!("{name} is no number of at least 0"))?;
    }
    if let Some(map) = &file.preview {
        map.check(&path)?;
    }
    let defaults = JobDefaults {
        width: own.width.unwrap_or(family.width),
        height: own.height.unwrap_or(family.height),
        steps: own.steps.unwrap_or(family.steps),
        max_sequence_length: own.max_sequence_length.unwrap_or(family.max_sequence_length),
        guidance_scale: own.guidance_scale.unwrap_or(family.guidance_scale),
        true_cfg_scale: own.true_cfg_scale.unwrap_or(family.true_cfg_scale),
    };
    Ok((defaults, file.preview))
}
