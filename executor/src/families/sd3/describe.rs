//! What is in a Stable Diffusion 3 model's files, and all that is wrong with them at once.

use protocol::profile::GuidanceScale;
use protocol::{ModelDescription, Phase};

use super::parts::{PARTS, Sd3Parts};
use super::{FAMILY, SEQUENCE_TOKENS_MAX, Sd3, check_widths, family_defaults};
use crate::components::text::clip::ClipConfig;
use crate::models::ModelError;
use crate::models::describe::{self, Defect, Defects, component};
use crate::models::source::{ModelPart, OpenedSource};
use crate::models::tokenizers;
use crate::sampling::{FLOW_SAMPLERS, FLOW_SCHEDULERS};

/// Cells along a patch of every published model.
const PATCH: usize = 2;

/// Describes an opened source. Parts that cannot be opened stand among the problems; so does what a
/// graph misses in a part's files.
pub fn describe(opened: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
    let parts = Sd3Parts::read(opened);
    let mut defects = Defects::default();
    let t5 = parts.t5.as_ref().and_then(|part| part.as_ref().ok());
    if let (Ok(clip_l), Ok(clip_g), Ok(dit), Ok(vae)) =
        (&parts.clip_l, &parts.clip_g, &parts.dit, &parts.vae)
        && let Err(error) = check_widths([clip_l, clip_g], t5, dit, vae)
    {
        defects.add(Defect::from(&error));
    }
    let patch = parts.dit.as_ref().map_or(PATCH, |dit| dit.config.patch_size);
    let clip = |name, part: &Result<ModelPart<ClipConfig>, ModelError>| {
        component(name, Phase::Condition, part, |part| {
            part.config.graph_with_embedding(&part.files)
        })
    };
    // The smallest graphs: which weights a component uses does not depend on the job.
    let mut described = vec![clip("clip_l", &parts.clip_l), clip("clip_g", &parts.clip_g)];
    described.extend(parts.t5.as_ref().map(|part| {
        component("t5", Phase::Condition, part, |part| part.config.graph(&part.files, 1))
    }));
    described.push(component("dit", Phase::Denoise, &parts.dit, |part| {
        part.config.graph(&part.files, 1, 1, 1)
    }));
    described.push(component("vae", Phase::Decode, &parts.vae, |part| {
        part.config.decoder(&part.files, patch, patch)
    }));
    let encoder = component("vae_encoder", Phase::Encode, &parts.vae, |part| {
        part.config.encoder(&part.files, patch, patch)
    });
    // A VAE may come without its encoder: that is nothing wrong.
    let mut components: Vec<_> = encoder.ok().into_iter().collect();
    for result in described {
        match result {
            Ok(component) => components.push(component),
            Err(defect) => defects.add(defect),
        }
    }
    let tokenizers = parts.clip_tokenizers.iter().chain(&parts.t5_tokenizer);
    let of_tokenizers = tokenizers.filter_map(|found| tokenizers::defect(found, makes_tokenizers));
    of_tokenizers.for_each(|defect| defects.add(defect));
    let unused = opened.check_used(&PARTS).err();
    let others = parts.sampler.as_ref().err().into_iter().chain(&unused);
    others.for_each(|error| defects.add(Defect::from(error)));
    let multiple = parts.vae.as_ref().map_or(8 * patch, |vae| patch * vae.config.scale());
    let mut defaults = family_defaults(parts.dit.as_ref().ok().map(|dit| &dit.config));
    match Sd3::from_parts(opened, parts) {
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
        guidance: GuidanceScale::ClassifierFree,
        samplers: FLOW_SAMPLERS.to_vec(),
        schedulers: FLOW_SCHEDULERS.to_vec(),
        few_steps: None,
        lacks,
        problems,
    }
}
