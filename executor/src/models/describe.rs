//! What files hold, of a known family or not, and all that is wrong with them at once.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use protocol::profile::{
    ComponentDescription, FileDescription, GuidanceScale, JobDefaults, StorageBytes, TypeBytes,
};
use protocol::{Bytes, ModelDescription, PartFlag, Phase, StorageType};

use super::ModelError;
use super::source::{ModelPart, OpenedSource, PartSpec};
use crate::graph::Graph;
use crate::weights::{WeightFiles, WeightsError};

/// What a description calls the family of files that are of none.
pub const UNKNOWN: &str = "unknown";

/// What each file gives that was named for itself.
pub fn files(opened: &OpenedSource, parts: &[PartSpec]) -> Vec<FileDescription> {
    let description = |(flag, files): (Option<PartFlag>, &Arc<WeightFiles>)| {
        let gives = |part: &&PartSpec| match flag {
            Some(flag) => part.flag == flag,
            None => {
                let own = opened.parts.iter().any(|(other, _)| *other == part.flag);
                !own && !opened.source.leaves_out(part.flag)
            }
        };
        let held = parts.iter().filter(|part| (part.is_in)(files));
        let (gives, holds): (Vec<&PartSpec>, Vec<&PartSpec>) = held.partition(gives);
        let names =
            |parts: Vec<&PartSpec>| parts.iter().map(|part| part.component.to_owned()).collect();
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
pub fn unknown(opened: &OpenedSource, problem: &ModelError) -> ModelDescription {
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
        own_prompts: false,
        guidance: GuidanceScale::None,
        samplers: Vec::new(),
        schedulers: Vec::new(),
        few_steps: None,
        lacks: Vec::new(),
        problems: vec![problem.to_string()],
    }
}

/// What no file gives, and what is wrong with what they give.
#[derive(Default)]
pub struct Defects {
    /// Parts that no file gives, a sentence each.
    pub lacks: Vec<String>,
    /// All else, likewise.
    pub problems: Vec<String>,
}

impl Defects {
    /// Whether nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.lacks.is_empty() && self.problems.is_empty()
    }

    /// Notes one more.
    pub fn add(&mut self, fault: Defect) {
        match fault {
            Defect::Lacks(message) => self.lacks.push(message),
            Defect::Problem(message) => self.problems.push(message),
        }
    }
}

/// That a part is in no file, or what is wrong with it.
pub enum Defect {
    /// No file gives it.
    Lacks(String),
    /// What is wrong with it.
    Problem(String),
}

impl From<&ModelError> for Defect {
    fn from(error: &ModelError) -> Defect {
        match error {
            ModelError::NoPart { .. }
            | ModelError::NoOptionalPart { .. }
            | ModelError::NoTokenizer { .. } => Defect::Lacks(error.to_string()),
            _ => Defect::Problem(error.with_causes()),
        }
    }
}

/// What a component takes of a part; `graph` gives any of its graphs, as the job decides nothing
/// about weights.
///
/// # Errors
/// The part could not be read, or lacks what its graph asks for.
pub fn component<C>(
    name: &str,
    phase: Phase,
    part: &Result<ModelPart<C>, ModelError>,
    graph: impl Fn(&ModelPart<C>) -> Result<Graph, WeightsError>,
) -> Result<ComponentDescription, Defect> {
    let part = part.as_ref().map_err(|error| match Defect::from(error) {
        Defect::Problem(problem) => Defect::Problem(format!("{name}: {problem}")),
        lacks => lacks,
    })?;
    let graph = graph(part).map_err(|error| Defect::Problem(format!("{name}: {error}")))?;
    let tensors = || graph.weights.iter().map(|weight| &weight.tensor);
    let tensor_bytes: Bytes = tensors().map(|tensor| tensor.size()).sum();
    let storage = StorageType::ALL
        .into_iter()
        .map(|storage| StorageBytes {
            storage,
            bytes: tensors().filter(|t| t.storage() == storage).map(|t| t.size()).sum(),
        })
        .filter(|entry| entry.bytes > Bytes::ZERO)
        .collect();
    Ok(ComponentDescription {
        name: name.to_owned(),
        class: part.class.clone(),
        phase,
        files: part.files.paths().map(|path| path.to_string_lossy().into_owned()).collect(),
        tensors: graph.weights.len() as u32,
        parameters: tensors().map(|t| t.shape().iter().product::<usize>() as u64).sum(),
        storage,
        tensor_bytes,
        unused_bytes: part.files.total_tensor_bytes().saturating_sub(tensor_bytes),
    })
}

/// Paths for a message.
pub fn shown<'a>(paths: impl IntoIterator<Item = &'a Path>) -> String {
    paths.into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}
