//! The checker of options, and of what a plan says of LoRA.

use std::collections::BTreeSet;

use super::Violations;
use crate::limits::{
    ATTENTION_CHUNK_MAX, COMPONENTS_MAX, LORA_WEIGHT_MAX, LORAS_MAX, PIECE_SIZES_MAX,
    SIDE_PIXELS_MAX, STRING_BYTES_MAX,
};
use crate::plan::{GraphOptions, Lora, PieceSizes, Plan, VaeTile};
use crate::units::Bytes;

rules! {
    /// What holds of options.
    pub enum OptionsRule {
        Chunk { chunk: u32 } =
            "an attention chunk of {chunk} queries is not within 1 to {ATTENTION_CHUNK_MAX}",
        Pieces { count: usize } = "{count} sizes of pieces",
        TileSide { side: u32 } = "a tile's side of {side} pixels",
        Overlap { overlap: f64 } = "an overlap of {overlap} is not within 0 to 0.5",
        Loras { count: usize } = "{count} LoRA files",
        LoraPath { length: usize } = "a LoRA path of {length} bytes",
        LoraWeight { weight: f32 } = "a LoRA weight of {weight}",
        LoraComponents = "too many LoRA components",
        LoraName = "a component's name that is too long",
        LoraUnknown { component: String } =
            "LoRA is to be added to {component}, which is no component",
        LoraTwice { component: String } = "LoRA is to be added to {component} twice",
        Changed { changed: u64 } = "{changed} B of weights are changed without a LoRA file",
    }
}

/// Checks options against the limits of the protocol. What a model can do is narrower.
///
/// # Errors
/// The rules that they break.
pub fn check_options(options: &GraphOptions) -> Result<(), Violations> {
    let mut found = Violations::default();
    find(options, &mut found);
    found.result()
}

/// Checks what a model is to be measured with: options, in pieces of these sizes.
///
/// # Errors
/// The rules that they break.
pub fn check_measured(options: &GraphOptions, pieces: &[PieceSizes]) -> Result<(), Violations> {
    let mut found = Violations::default();
    let count = pieces.len();
    found.ensure(count <= PIECE_SIZES_MAX, || OptionsRule::Pieces { count });
    find(options, &mut found);
    for sizes in pieces.iter().take(PIECE_SIZES_MAX) {
        find_pieces(*sizes, &mut found);
    }
    found.result()
}

pub(super) fn find(options: &GraphOptions, found: &mut Violations) {
    find_pieces(options.pieces(), found);
    let count = options.loras.len();
    found.ensure(count <= LORAS_MAX, || OptionsRule::Loras { count });
    for Lora { path, weight } in &options.loras {
        let (length, weight) = (path.len(), *weight);
        found.ensure(length <= STRING_BYTES_MAX, || OptionsRule::LoraPath { length });
        let sound = weight.is_finite() && weight.abs() <= LORA_WEIGHT_MAX;
        found.ensure(sound, || OptionsRule::LoraWeight { weight });
    }
    let few = options.lora_runtime.len() <= COMPONENTS_MAX;
    found.ensure(few, || OptionsRule::LoraComponents);
    let short = options.lora_runtime.iter().all(|name| name.len() <= STRING_BYTES_MAX);
    found.ensure(short, || OptionsRule::LoraName);
}

fn find_pieces(sizes: PieceSizes, found: &mut Violations) {
    let chunk = sizes.attention_chunk;
    let within = (1..=ATTENTION_CHUNK_MAX).contains(&chunk);
    found.ensure(within, || OptionsRule::Chunk { chunk });
    if let Some(VaeTile { width, height, overlap }) = sizes.vae_tile {
        for side in [width, height] {
            let within = (1..=SIDE_PIXELS_MAX).contains(&side);
            found.ensure(within, || OptionsRule::TileSide { side });
        }
        let within = (0.0..=0.5).contains(&overlap);
        found.ensure(within, || OptionsRule::Overlap { overlap });
    }
}

/// What a plan says of LoRA against its components.
pub(super) fn check_lora(plan: &Plan, found: &mut Violations) {
    let mut names = BTreeSet::new();
    for name in &plan.options.lora_runtime {
        // Of a job that brings its embeddings, text encoders may be meant.
        let known =
            plan.job.conditioned || plan.components.iter().any(|component| component.name == *name);
        found.ensure(known, || OptionsRule::LoraUnknown { component: name.clone() });
        let first = names.insert(name);
        found.ensure(first, || OptionsRule::LoraTwice { component: name.clone() });
    }
    let changed = plan.host.changed_bytes;
    let sound = changed == Bytes::ZERO || !plan.options.loras.is_empty();
    found.ensure(sound, || OptionsRule::Changed { changed: changed.0 });
}
