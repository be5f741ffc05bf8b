//! FLUX.1's VAE as a part of a model, for its own and for the families that took it over.

use std::sync::Arc;

use protocol::PartFlag;

use super::kl::{self, VaeConfig};
use super::{job, published};
use crate::models::ModelError;
use crate::models::source::{PartKind, PartSpec};
use crate::weights::WeightFiles;

/// How it is known in files, and read from them.
pub const PART: PartKind<VaeConfig> = PartKind {
    spec: PartSpec {
        component: job::DECODER,
        called: "the VAE",
        flag: PartFlag::Vae,
        looked_for: kl::single::LOOKED_FOR,
        is_in: kl::single::is_in,
    },
    folder: "vae",
    classes: &["AutoencoderKL"],
    stem: "diffusion_pytorch_model",
    check: VaeConfig::check,
    single,
};

/// Takes it from a file, if it is there.
fn single(
    files: &Arc<WeightFiles>,
    known: Option<&VaeConfig>,
) -> Result<Option<(VaeConfig, WeightFiles)>, ModelError> {
    kl::single::single(files, known, &published::FLUX1)
}
