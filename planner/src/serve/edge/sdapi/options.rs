//! A1111's options: those that mean something here. Clients take the object, change a key and send
//! all of it back.

use serde_json::{Map, Value, json};

use super::names;
use super::overrides::{self, CHECKPOINT, OWN_VAE};
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::Fields;
use crate::serve::edge::settings::EdgeSettings;

/// The options as they are.
pub fn document(checkpoint: &str) -> Value {
    let mut options = json!({ "samples_format": "png", "sd_vae": OWN_VAE[0] });
    options[CHECKPOINT] = json!(checkpoint);
    options[names::SKIPPED_LAYERS_OPTION] = json!(1);
    options
}

/// The model that changed options name; `None` where they name none. Other options stay as they
/// are.
///
/// # Errors
/// There is no such model, or its name is no text.
pub fn read(
    options: Map<String, Value>,
    settings: &EdgeSettings,
) -> Result<Option<String>, EdgeError> {
    let checkpoint = Fields::of(options).filled_text(CHECKPOINT)?;
    checkpoint.map(|name| overrides::model(Some(&name), settings)).transpose()
}
