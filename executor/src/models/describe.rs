//! What files hold, of a known family or not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use protocol::profile::{FileDescription, JobDefaults, TypeBytes};
use protocol::{Bytes, ModelDescription};

use super::ModelError;
use super::source::Opened;
use crate::weights::WeightFiles;

/// What a description calls the family of files that are of none.
pub const UNKNOWN: &str = "unknown";

/// A part of a family, and how a file that holds it is known.
pub struct Held {
    /// Its component.
    pub component: &'static str,
    /// What people call it.
    pub called: &'static str,
    /// The flag that names a file with it.
    pub flag: &'static str,
    /// Names of tensors of which each such file has one, for people.
    pub looked_for: &'static str,
    /// Whether a file holds it.
    pub is_in: fn(&Arc<WeightFiles>) -> bool,
}

/// What people call the parts that a file holds.
pub fn called(held: &[Held], files: &Arc<WeightFiles>) -> Vec<&'static str> {
    held.iter().filter(|part| (part.is_in)(files)).map(|part| part.called).collect()
}

/// What each file gives that was named for itself.
pub fn files(opened: &Opened, held: &[Held]) -> Vec<FileDescription> {
    let description = |(flag, files): (Option<&str>, &Arc<WeightFiles>)| {
        let gives = |part: &&Held| match flag {
            Some(flag) => part.flag == flag,
            None => opened.parts.iter().all(|(other, _)| *other != part.flag),
        };
        let parts = held.iter().filter(|part| (part.is_in)(files));
        let (gives, holds): (Vec<&Held>, Vec<&Held>) = parts.partition(gives);
        let names =
            |parts: Vec<&Held>| parts.iter().map(|part| part.component.to_owned()).collect();
        FileDescription {
            path: files.origin().to_string_lossy().into_owned(),
            gives: names(gives),
            holds: names(holds),
            types: types(files),
        }
    };
    opened.named_files().map(description).collect()
}

fn types(files: &WeightFiles) -> Vec<TypeBytes> {
    let mut types: BTreeMap<&str, (u32, Bytes)> = BTreeMap::new();
    for tensor in files.tensors() {
        let (tensors, bytes) = types.entry(tensor.dtype.name()).or_default();
        *tensors += 1;
        *bytes += tensor.size;
    }
    let entry =
        |(name, (tensors, bytes)): (&str, _)| TypeBytes { name: name.to_owned(), tensors, bytes };
    let mut types: Vec<TypeBytes> = types.into_iter().map(entry).collect();
    types.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    types
}

/// The description of files that are of no family that is run.
pub fn unknown(opened: &Opened, problem: &ModelError) -> ModelDescription {
    let family = match problem {
        ModelError::OtherFamily { family, .. } => family,
        _ => UNKNOWN,
    };
    ModelDescription {
        model: opened.source.clone(),
        family: family.to_owned(),
        files: files(opened, &[]),
        components: Vec::new(),
        defaults: JobDefaults {
            width: 0,
            height: 0,
            steps: 0,
            max_sequence_length: 0,
            guidance_scale: 0.0,
            true_cfg_scale: 0.0,
        },
        side_multiple_pixels: 0,
        sequence_tokens_max: 0,
        guidance_embeds: false,
        lacks: Vec::new(),
        problems: vec![problem.to_string()],
    }
}

/// Paths for a message.
pub fn shown<'a>(paths: impl IntoIterator<Item = &'a Path>) -> String {
    paths.into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
