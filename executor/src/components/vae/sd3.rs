//! Stable Diffusion 3's VAE as a part of a model.

use std::sync::Arc;

use super::flux1;
use super::kl::{self, VaeConfig};
use super::published;
use crate::models::ModelError;
use crate::models::source::PartKind;
use crate::weights::WeightFiles;

/// How it is known in files, and read from them: as FLUX.1's, but for the range of its latents.
pub const PART: PartKind<VaeConfig> = PartKind { single, ..flux1::PART };

/// Takes it from a file, if it is there.
fn single(
    files: &Arc<WeightFiles>,
    known: Option<&VaeConfig>,
) -> Result<Option<(VaeConfig, WeightFiles)>, ModelError> {
    kl::single::single(files, known, &published::SD3)
}
