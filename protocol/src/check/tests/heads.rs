//! The document, the job, the options, the names.

use super::good::{picture, text};
use super::*;
use crate::model::ModelSource;

const DOCUMENT: [Change; 24] = [
    (|p| p.schema = SCHEMA + 1, "schema 2 where 1 is understood"),
    (|p| p.schema = 0, "schema 0"),
    (|p| p.generation = 0, "generation 0"),
    (|p| p.keeps_weights_of = Some(3), "it keeps the weights of generation 3, a later one"),
    (|p| p.keeps_weights_of = Some(u64::MAX), "a later one"),
    (|p| p.model = ModelSource::of(long()), "a name of 16385 bytes"),
    (|p| p.family = long(), "a name of 16385 bytes"),
    (|p| p.job.width = 0, "width 0 is not within 1 to 16384"),
    (|p| p.job.width = SIDE_PIXELS_MAX + 1, "width 16385"),
    (|p| p.job.height = 0, "height 0"),
    (|p| p.job.height = u32::MAX, "height 4294967295"),
    (|p| p.job.steps = 0, "steps 0"),
    (|p| p.job.steps = STEPS_MAX + 1, "steps 1001"),
    (|p| p.job.batch = 0, "batch 0"),
    (|p| p.job.batch = BATCH_MAX + 1, "batch 65"),
    (|p| p.job.max_sequence_length = 0, "max_sequence_length 0"),
    (|p| p.job.max_sequence_length = SEQUENCE_TOKENS_MAX + 1, "max_sequence_length 4097"),
    (|p| p.job.first_step = 1, "steps are left out without a picture"),
    (|p| p.job.first_step = 4, "first_step 4 leaves no step"),
    (|p| p.job.first_step = u32::MAX, "first_step 4294967295 leaves no step"),
    // The timeline of another job.
    (|p| p.job.init_image = true, "virtual0: 0 entries for encode"),
    (|p| p.components.clear(), "0 components"),
    (|p| p.components = vec![p.components[0].clone(); COMPONENTS_MAX + 1], "17 components"),
    (|p| p.devices = vec![p.devices[0].clone(); DEVICES_MAX + 1], "17 devices"),
];

/// Of the job from a picture.
const PICTURE: [Change; 3] = [
    (|p| p.job.steps = 5, "first_step 5 leaves no step"),
    (|p| p.job.init_image = false, "steps are left out without a picture"),
    (
        |p| (p.job.init_image, p.job.first_step) = (false, 0),
        "vae_encoder: the job has no encode phase to compute in",
    ),
];

fn tile(plan: &mut Plan) -> &mut VaeTile {
    plan.options.vae_tile.as_mut().expect("the plan has tiles")
}

const OPTIONS: [Change; 18] = [
    (|p| p.options.attention_chunk = 0, "an attention chunk of 0 queries"),
    (
        |p| p.options.attention_chunk = ATTENTION_CHUNK_MAX + 1,
        "4097 queries is not within 1 to 4096",
    ),
    (|p| tile(p).width = 0, "a tile's side of 0 pixels"),
    (|p| tile(p).width = SIDE_PIXELS_MAX + 1, "a tile's side of 16385 pixels"),
    (|p| tile(p).height = 0, "a tile's side of 0 pixels"),
    (|p| tile(p).height = SIDE_PIXELS_MAX + 1, "a tile's side of 16385 pixels"),
    (|p| tile(p).overlap = -f64::MIN_POSITIVE, "is not within 0 to 0.5"),
    (|p| tile(p).overlap = 0.500_000_1, "an overlap of 0.5000001 is not within 0 to 0.5"),
    (|p| tile(p).overlap = f64::NAN, "an overlap of NaN"),
    (|p| p.options.loras.resize(LORAS_MAX + 1, p.options.loras[0].clone()), "17 LoRA files"),
    (|p| p.options.loras[1].path = long(), "a LoRA path of 16385 bytes"),
    (|p| p.options.loras[1].weight = f32::NAN, "a LoRA weight of NaN"),
    (|p| p.options.loras[0].weight = f32::NEG_INFINITY, "a LoRA weight of -inf"),
    (
        |p| p.options.lora_runtime = vec!["dit".to_owned(); COMPONENTS_MAX + 1],
        "too many LoRA components",
    ),
    (|p| p.options.lora_runtime = vec![long()], "a component's name that is too long"),
    (
        |p| p.options.lora_runtime.push("unet".to_owned()),
        "LoRA is to be added to unet, which is no component",
    ),
    (|p| p.options.lora_runtime.push("dit".to_owned()), "LoRA is to be added to dit twice"),
    (|p| p.options.loras.clear(), "8192 B of weights are changed without a LoRA file"),
];

#[test]
fn a_wrong_head_is_refused() {
    refuses(text, &DOCUMENT);
    refuses(picture, &PICTURE);
}

#[test]
fn wrong_options_are_refused() {
    refuses(text, &OPTIONS);
}
