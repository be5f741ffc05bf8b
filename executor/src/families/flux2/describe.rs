//! What is in a FLUX.2 klein model's files, and all that is wrong with them at once.

use protocol::profile::GuidanceScale;
use protocol::{ModelDescription, Phase};

use super::parts::{Flux2Parts, PARTS};
use super::{
    FAMILY, Flux2, PATCH, SEQUENCE_TOKENS_MAX, check_parts, family_defaults, is_distilled,
    llm_graph,
};
use crate::models::describe::{self, Defect, Defects, component};
use crate::models::source::OpenedSource;
use crate::models::tokenizers;
use crate::sampling::{FLOW_SAMPLERS, FLOW_SCHEDULERS};

/// Describes an opened source. Parts that cannot be opened stand among the problems; so does what a
/// graph misses in a part's files.
pub fn describe(opened: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
    let parts = Flux2Parts::read(opened);
    let mut defects = Defects::default();
    let whole = (&parts.llm, &parts.dit, &parts.vae);
    if let (Ok(llm), Ok(dit), Ok(vae)) = whole
        && let Err(error) = check_parts(llm, dit, vae)
    {
        defects.add(Defect::from(&error));
    }
    let described = [
        // The smallest graphs: which weights a component uses does not depend on the job.
        component("llm", Phase::Condition, &parts.llm, |part| {
            llm_graph(&part.config, &part.files, 1)
        }),
        component("dit", Phase::Denoise, &parts.dit, |part| {
            part.config.graph(&part.files, 1, 1, 1)
        }),
        component("vae", Phase::Decode, &parts.vae, |part| {
            part.config.kl.decoder(&part.files, PATCH, PATCH)
        }),
    ];
    let encoder = component("vae_encoder", Phase::Encode, &parts.vae, |part| {
        part.config.kl.encoder(&part.files, PATCH, PATCH)
    });
    // A VAE may come without its encoder: that is nothing wrong.
    let mut components: Vec<_> = encoder.ok().into_iter().collect();
    for result in described {
        match result {
            Ok(component) => components.push(component),
            Err(defect) => defects.add(defect),
        }
    }
    let of_tokenizer = tokenizers::defect(&parts.tokenizer, makes_tokenizers);
    of_tokenizer.into_iter().for_each(|defect| defects.add(defect));
    let unused = opened.check_used(&PARTS).err();
    let others = parts.sampler.as_ref().err().into_iter().chain(&unused);
    others.for_each(|error| defects.add(Defect::from(error)));
    let multiple = parts.vae.as_ref().map_or(16, |vae| PATCH * vae.config.kl.scale());
    let distilled = is_distilled(opened);
    let mut defaults = family_defaults(distilled);
    match Flux2::from_parts(opened, parts) {
        Ok(model) => defaults = model.defaults,
        // Each part is right by itself, yet the model is not.
        Err(error) if defects.is_empty() => defects.add(Defect::from(&error)),
        Err(_) => {}
    }
    let Defects { lacks, problems } = defects;
    ModelDescription {
        model: opened.source.clone(),
        family: FAMILY.to_owned(),
        files: describe::files(opened, &PARTS),
        components,
        defaults,
        side_multiple_pixels: multiple as u32,
        sequence_tokens_max: SEQUENCE_TOKENS_MAX,
        own_prompts: true,
        guidance: match distilled {
            true => GuidanceScale::None,
            false => GuidanceScale::ClassifierFree,
        },
        samplers: FLOW_SAMPLERS.to_vec(),
        schedulers: FLOW_SCHEDULERS.to_vec(),
        few_steps: None,
        lacks,
        problems,
    }
}
