//! What is in a FLUX.1 model's files, and all that is wrong with them at once.

use protocol::profile::{ComponentDescription, StorageBytes};
use protocol::{Bytes, ModelDescription, StorageType};

use super::parts::Parts;
use super::{FAMILY, Flux, PATCH, SEQUENCE_TOKENS_MAX, check_widths, family_defaults, parts};
use crate::graph::Graph;
use crate::models::ModelError;
use crate::models::describe;
use crate::models::source::{Opened, Part};
use crate::models::vae::VaeConfig;
use crate::weights::WeightsError;

/// Describes an opened source. Parts that cannot be opened stand among the problems; so does what a graph misses in a
/// part's files.
pub fn describe(opened: &Opened) -> ModelDescription {
    let parts = Parts::read(opened);
    let mut faults = Faults::default();
    if let (Ok(clip), Ok(t5), Ok(dit), Ok(vae)) =
        (&parts.clip, &parts.t5, &parts.transformer, &parts.vae)
        && let Err(error) = check_widths(clip, t5, dit, vae)
    {
        faults.add(Fault::from(&error));
    }
    let described = [
        // The smallest graphs: which weights a component uses does not depend on the job.
        component("clip", &parts.clip, |part| part.config.graph(&part.files)),
        component("t5", &parts.t5, |part| part.config.graph(&part.files, 1)),
        component("dit", &parts.transformer, |part| part.config.graph(&part.files, 1, 1, 1)),
        component("vae", &parts.vae, |part| part.config.decoder(&part.files, PATCH, PATCH)),
    ];
    let mut components = Vec::new();
    // A VAE may come without its encoder: that is nothing wrong.
    components.extend(encoder(&parts.vae));
    for result in described {
        match result {
            Ok(component) => components.push(component),
            Err(fault) => faults.add(fault),
        }
    }
    let others = parts.tokenizers.iter().map(|tokenizer| tokenizer.as_ref().err());
    let others = others.chain([parts.sampler.as_ref().err()]);
    let unused = parts::check_used(opened).err();
    others.flatten().chain(&unused).for_each(|error| faults.add(Fault::from(error)));
    let multiple = parts.vae.as_ref().map_or(16, |vae| PATCH * vae.config.scale());
    let guidance_embeds = parts.transformer.as_ref().is_ok_and(|dit| dit.config.guidance_embeds);

    let mut defaults = family_defaults(guidance_embeds);
    match Flux::from_parts(opened, parts) {
        Ok(model) => defaults = model.defaults,
        // Each part is right by itself, yet the model is not.
        Err(error) if faults.is_empty() => faults.add(Fault::from(&error)),
        Err(_) => {}
    }
    let Faults { lacks, problems } = faults;
    ModelDescription {
        model: opened.source.clone(),
        family: FAMILY.to_owned(),
        files: describe::files(opened, &parts::HELD),
        components,
        defaults,
        side_multiple_pixels: multiple as u32,
        sequence_tokens_max: SEQUENCE_TOKENS_MAX,
        guidance_embeds,
        lacks,
        problems,
    }
}

/// What no file gives, and what is wrong with what they give.
#[derive(Default)]
struct Faults {
    lacks: Vec<String>,
    problems: Vec<String>,
}

impl Faults {
    fn is_empty(&self) -> bool {
        self.lacks.is_empty() && self.problems.is_empty()
    }

    fn add(&mut self, fault: Fault) {
        match fault {
            Fault::Lacks(message) => self.lacks.push(message),
            Fault::Problem(message) => self.problems.push(message),
        }
    }
}

/// That a part is in no file, or what is wrong with it.
enum Fault {
    Lacks(String),
    Problem(String),
}

impl From<&ModelError> for Fault {
    fn from(error: &ModelError) -> Fault {
        match error {
            ModelError::NoPart { .. } | ModelError::NoTokenizer => Fault::Lacks(error.to_string()),
            _ => Fault::Problem(error.with_causes()),
        }
    }
}

/// The VAE's encoder, where all of it is in the VAE's files.
fn encoder(vae: &Result<Part<VaeConfig>, ModelError>) -> Option<ComponentDescription> {
    component("vae_encoder", vae, |part| part.config.encoder(&part.files, PATCH, PATCH)).ok()
}

fn component<C>(
    name: &str,
    part: &Result<Part<C>, ModelError>,
    graph: impl Fn(&Part<C>) -> Result<Graph, WeightsError>,
) -> Result<ComponentDescription, Fault> {
    let part = part.as_ref().map_err(|error| match Fault::from(error) {
        Fault::Problem(problem) => Fault::Problem(format!("{name}: {problem}")),
        lacks => lacks,
    })?;
    let graph = graph(part).map_err(|error| Fault::Problem(format!("{name}: {error}")))?;
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
        files: part.files.paths().map(|path| path.to_string_lossy().into_owned()).collect(),
        tensors: graph.weights.len() as u32,
        parameters: tensors().map(|t| t.shape().iter().product::<usize>() as u64).sum(),
        storage,
        tensor_bytes,
        unused_bytes: part.files.total_tensor_bytes().saturating_sub(tensor_bytes),
    })
}
