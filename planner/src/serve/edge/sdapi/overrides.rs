//! `override_settings`: options for one request. The checkpoint is one that counts.

use serde_json::Value;

use super::names;
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::{Fields, bad};
use crate::serve::edge::settings::EdgeSettings;

/// The name of the options, and the beginning of what is told of them.
const NAME: &str = "override_settings";

/// The option that names the model.
pub const CHECKPOINT: &str = "sd_model_checkpoint";

/// What clients write for a VAE that is the model's own.
pub const OWN_VAE: [&str; 3] = ["Automatic", "None", ""];

/// Reads the options of a request; returns the checkpoint that they name.
///
/// # Errors
/// They are no object, or the checkpoint is no text.
pub fn read(fields: &mut Fields) -> Result<Option<String>, EdgeError> {
    let Some(value) = fields.value(NAME) else { return Ok(None) };
    let Value::Object(options) = value else { return Err(bad(NAME, "an object", &value)) };
    let mut options = Fields::of(options);
    let checkpoint = options.filled_text(CHECKPOINT)?;
    if options.value("sd_vae").is_some_and(|vae| !vae.as_str().is_some_and(is_own_vae)) {
        options.notice("sd_vae has no effect: a model's VAE is its own here");
    }
    let skipped = options.value(names::SKIPPED_LAYERS_OPTION);
    if skipped.is_some_and(|layers| layers.as_f64().is_some_and(|layers| layers > 1.0)) {
        let option = names::SKIPPED_LAYERS_OPTION;
        options.notice(format!("{option} has no effect: all layers are used"));
    }
    if options.value("samples_format").is_some_and(|format| format != "png") {
        options.notice("samples_format has no effect: pictures are sent as png");
    }
    options.accept(&[
        "save_images_add_number",
        "forge_additional_modules",
        "forge_inference_memory",
    ]);
    for notice in options.notices() {
        fields.notice(format!("{NAME}: {notice}"));
    }
    Ok(checkpoint)
}

/// The model of a checkpoint as clients write it: a model's name, perhaps with the ending of a file
/// and a hash behind it; the default one where none is named.
///
/// # Errors
/// There is no such model; the error names those that are nearest.
pub fn model(checkpoint: Option<&str>, settings: &EdgeSettings) -> Result<String, EdgeError> {
    let plain = settings.model_name(checkpoint);
    let Some(text) = checkpoint.filter(|_| plain.is_err()) else { return plain };
    let without_hash = match text.rsplit_once(" [") {
        Some((name, hash)) if hash.ends_with(']') => name,
        _ => text,
    };
    let endings = [".safetensors", ".gguf"];
    let without_ending = endings.iter().find_map(|ending| without_hash.strip_suffix(ending));
    [Some(without_hash), without_ending]
        .into_iter()
        .flatten()
        .find_map(|name| settings.model_name(Some(name)).ok())
        .map_or(plain, Ok)
        .map_err(|error| EdgeError { param: Some(CHECKPOINT.to_owned()), ..error })
}

/// Whether a VAE's name is that of the model's own.
pub fn is_own_vae(name: &str) -> bool {
    OWN_VAE.contains(&name)
}
