//! What is in a FLUX.1 model's files, and all that is wrong with them at once.

use protocol::profile::{FewSteps, GuidanceScale};
use protocol::{ModelDescription, Phase};

use super::dit::DitConfig;
use super::parts::{PARTS, Parts};
use super::{FAMILY, Flux1, PATCH, SEQUENCE_TOKENS_MAX, check_widths, family_defaults};
use crate::models::describe::{self, Defect, Defects, component};
use crate::models::source::OpenedSource;
use crate::models::tokenizers;
use crate::sampling::{FLOW_SAMPLERS, FLOW_SCHEDULERS};

/// Steps of the LoRAs that are distilled for FLUX.1-dev: Hyper-SD's and Turbo-Alpha's, by their
/// model cards.
const DISTILLED_STEPS: u32 = 8;

/// Blocks of FLUX.1-dev's DiT, double and single ones: those LoRAs change these, and fit no smaller
/// model.
const DEV_BLOCKS: usize = 19 + 38;

/// Describes an opened source. Parts that cannot be opened stand among the problems; so does what a
/// graph misses in a part's files.
pub fn describe(opened: &OpenedSource, makes_tokenizers: bool) -> ModelDescription {
    let parts = Parts::read(opened);
    let mut defects = Defects::default();
    if let (Ok(clip), Ok(t5), Ok(dit), Ok(vae)) = (&parts.clip, &parts.t5, &parts.dit, &parts.vae)
        && let Err(error) = check_widths(clip, t5, dit, vae)
    {
        defects.add(Defect::from(&error));
    }
    let described = [
        // The smallest graphs: which weights a component uses does not depend on the job.
        component("clip", Phase::Condition, &parts.clip, |part| part.config.graph(&part.files)),
        component("t5", Phase::Condition, &parts.t5, |part| part.config.graph(&part.files, 1)),
        component("dit", Phase::Denoise, &parts.dit, |part| {
            part.config.graph(&part.files, 1, 1, 1)
        }),
        component("vae", Phase::Decode, &parts.vae, |part| {
            part.config.decoder(&part.files, PATCH, PATCH)
        }),
    ];
    let encoder = component("vae_encoder", Phase::Encode, &parts.vae, |part| {
        part.config.encoder(&part.files, PATCH, PATCH)
    });
    // A VAE may come without its encoder: that is nothing wrong.
    let mut components: Vec<_> = encoder.ok().into_iter().collect();
    for result in described {
        match result {
            Ok(component) => components.push(component),
            Err(defect) => defects.add(defect),
        }
    }
    let tokenizers = parts.tokenizers.iter();
    let of_tokenizers = tokenizers.filter_map(|found| tokenizers::defect(found, makes_tokenizers));
    of_tokenizers.for_each(|defect| defects.add(defect));
    let unused = opened.check_used(&PARTS).err();
    let others = parts.sampler.as_ref().err().into_iter().chain(&unused);
    others.for_each(|error| defects.add(Defect::from(error)));
    let multiple = parts.vae.as_ref().map_or(16, |vae| PATCH * vae.config.scale());
    let guidance_embeds = parts.dit.as_ref().is_ok_and(|dit| dit.config.guidance_embeds);
    let few_steps = parts.dit.as_ref().ok().and_then(|dit| distilled(&dit.config));
    let mut defaults = family_defaults(guidance_embeds);
    match Flux1::from_parts(opened, parts) {
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
        guidance: match guidance_embeds {
            true => GuidanceScale::Embedded,
            false => GuidanceScale::None,
        },
        samplers: FLOW_SAMPLERS.to_vec(),
        schedulers: FLOW_SCHEDULERS.to_vec(),
        few_steps,
        lacks,
        problems,
    }
}

/// FLUX.1-dev by a LoRA that is distilled for few steps.
fn distilled(dit: &DitConfig) -> Option<FewSteps> {
    let is_whole = dit.num_layers + dit.num_single_layers >= DEV_BLOCKS;
    (dit.guidance_embeds && is_whole).then(|| FewSteps {
        steps: DISTILLED_STEPS,
        by: format!(
            "with a LoRA that is made for {DISTILLED_STEPS} steps, as FLUX.1-Turbo-Alpha is,"
        ),
    })
}
