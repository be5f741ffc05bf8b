//! Families that are known by their marks and not run yet, so that their files are named for what
//! they are.
//!
//! One table: to know another family takes a row. A family that comes to be run loses its row.

use std::fmt;

use crate::models::config::ModelIndex;
use crate::models::source::first_prefix;
use crate::weights::WeightFiles;

/// What stands before the names of a denoiser's tensors: nothing, ComfyUI's and Stability's
/// all-in-one files, ComfyUI's exports, diffusers' parts in one file.
const PREFIXES: [&str; 5] =
    ["", "model.diffusion_model.", "diffusion_model.", "transformer.", "unet."];

/// The key of a GGUF file that says what it holds.
const ARCHITECTURE: &str = "general.architecture";

/// Parts of a model index that may denoise.
const DENOISERS: [&str; 2] = ["transformer", "unet"];

/// A family that is known and not run.
#[derive(Debug)]
pub struct OtherFamily {
    /// What people call it.
    name: &'static str,
    /// Its pipelines' classes in a model index.
    pipelines: &'static [&'static str],
    /// Classes of its denoiser that no other family has.
    denoisers: &'static [&'static str],
    /// Its files by each naming: a file that has all tensors of one of these is of the family,
    /// unless it is of an earlier row.
    marks: &'static [&'static [Mark]],
    /// What its GGUF files call it, where no other family is called so.
    architectures: &'static [&'static str],
}

/// A tensor of a file.
#[derive(Debug)]
struct Mark {
    name: &'static str,
    /// Its last dimension, where only that tells families apart.
    columns: Option<usize>,
}

const fn has(name: &'static str) -> Mark {
    Mark { name, columns: None }
}

const fn wide(name: &'static str, columns: usize) -> Mark {
    Mark { name, columns: Some(columns) }
}

/// A matrix that takes the text encoder's states, by the original and by diffusers' names: 768
/// columns in Stable Diffusion 1, 1024 in 2.
const UNET_TEXT: &str = "input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight";
const UNET_TEXT_DIFFUSERS: &str =
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight";

/// The table. Names of classes are diffusers'; original names are those that its conversion scripts
/// read, and architectures those of city96's `ComfyUI-GGUF` (`loader.py`). Z-Image's GGUF files say
/// `lumina2` there, as Lumina 2's do.
static OTHERS: [OtherFamily; 12] = [
    OtherFamily {
        name: "FLUX.2-dev",
        pipelines: &["Flux2Pipeline"],
        // The klein models have the same one.
        denoisers: &[],
        marks: &[
            &[has("double_stream_modulation_img.lin.weight")],
            &[has("double_stream_modulation_img.linear.weight")],
        ],
        architectures: &["flux2"],
    },
    OtherFamily {
        name: "Chroma",
        pipelines: &["ChromaPipeline", "ChromaImg2ImgPipeline"],
        denoisers: &["ChromaTransformer2DModel"],
        marks: &[&[has("distilled_guidance_layer.in_proj.weight")]],
        architectures: &["chroma"],
    },
    OtherFamily {
        name: "Lumina 2",
        pipelines: &["Lumina2Pipeline", "Lumina2Text2ImgPipeline"],
        denoisers: &["Lumina2Transformer2DModel"],
        marks: &[&[has("cap_embedder.1.weight"), has("noise_refiner.0.attention.qkv.weight")]],
        architectures: &["lumina2"],
    },
    // The files of the first hold what Qwen-Image's do.
    OtherFamily {
        name: "Qwen-Image-Edit or Qwen-Image-Layered",
        pipelines: &[
            "QwenImageEditPipeline",
            "QwenImageEditPlusPipeline",
            "QwenImageLayeredPipeline",
        ],
        denoisers: &[],
        marks: &[&[has("txt_norm.weight"), has("time_text_embed.addition_t_embedding.weight")]],
        architectures: &[],
    },
    OtherFamily {
        name: "LTX-2",
        pipelines: &["LTX2Pipeline", "LTX2ImageToVideoPipeline"],
        denoisers: &["LTX2VideoTransformer3DModel"],
        marks: &[
            &[has("patchify_proj.weight"), has("audio_patchify_proj.weight")],
            &[has("proj_in.weight"), has("audio_proj_in.weight")],
        ],
        architectures: &[],
    },
    OtherFamily {
        name: "LTX-Video",
        pipelines: &["LTXPipeline", "LTXImageToVideoPipeline", "LTXConditionPipeline"],
        denoisers: &["LTXVideoTransformer3DModel"],
        marks: &[
            &[has("patchify_proj.weight"), has("adaln_single.linear.weight")],
            &[has("proj_in.weight"), has("time_embed.linear.weight"), has("scale_shift_table")],
        ],
        architectures: &["ltxv"],
    },
    OtherFamily {
        name: "Wan",
        pipelines: &["WanPipeline", "WanImageToVideoPipeline"],
        denoisers: &["WanTransformer3DModel"],
        marks: &[
            &[has("blocks.0.self_attn.q.weight"), has("patch_embedding.weight")],
            &[has("blocks.0.attn1.to_q.weight"), has("patch_embedding.weight")],
        ],
        architectures: &["wan"],
    },
    OtherFamily {
        name: "HunyuanVideo",
        pipelines: &["HunyuanVideoPipeline", "HunyuanVideoImageToVideoPipeline"],
        denoisers: &["HunyuanVideoTransformer3DModel"],
        marks: &[
            &[has("txt_in.individual_token_refiner.blocks.0.self_attn_qkv.weight")],
            &[has("txt_in.individual_token_refiner.blocks.0.self_attn.qkv.weight")],
            &[has("context_embedder.token_refiner.refiner_blocks.0.attn.to_q.weight")],
        ],
        architectures: &["hyvid"],
    },
    OtherFamily {
        name: "SDXL",
        pipelines: &["StableDiffusionXLPipeline", "StableDiffusionXLImg2ImgPipeline"],
        denoisers: &[],
        marks: &[
            &[has("input_blocks.0.0.weight"), has("label_emb.0.0.weight")],
            &[has("conv_in.weight"), has("add_embedding.linear_1.weight")],
        ],
        architectures: &["sdxl"],
    },
    OtherFamily {
        name: "Stable Diffusion 2",
        pipelines: &[],
        denoisers: &[],
        marks: &[&[wide(UNET_TEXT, 1024)], &[wide(UNET_TEXT_DIFFUSERS, 1024)]],
        architectures: &[],
    },
    OtherFamily {
        name: "Stable Diffusion 1.5",
        pipelines: &[],
        denoisers: &[],
        marks: &[&[wide(UNET_TEXT, 768)], &[wide(UNET_TEXT_DIFFUSERS, 768)]],
        architectures: &["sd1"],
    },
    // Both have this pipeline, and a UNet of any other width may be of either.
    OtherFamily {
        name: "Stable Diffusion 1.5 or 2",
        pipelines: &["StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline"],
        denoisers: &[],
        marks: &[&[has("input_blocks.0.0.weight"), has(UNET_TEXT)], &[has(UNET_TEXT_DIFFUSERS)]],
        architectures: &[],
    },
];

impl OtherFamily {
    /// The family of a file that holds its denoiser, in whole or in part.
    pub fn of_file(files: &WeightFiles) -> Option<&'static OtherFamily> {
        let marked = OTHERS.iter().find(|other| other.marks.iter().any(|all| has_all(files, all)));
        marked.or_else(|| {
            let keys = files.gguf_keys()?;
            let says = keys.keys().text(ARCHITECTURE)?;
            OTHERS.iter().find(|other| other.architectures.contains(&says))
        })
    }

    /// The family of a directory: that of its pipeline, or else of what denoises in it.
    pub fn of_index(index: &ModelIndex) -> Option<&'static OtherFamily> {
        let pipeline = OTHERS.iter().find(|other| other.pipelines.contains(&&*index.class));
        let classes = || DENOISERS.iter().filter_map(|part| index.class_of(part));
        pipeline.or_else(|| {
            OTHERS.iter().find(|other| classes().any(|class| other.denoisers.contains(&class)))
        })
    }
}

impl fmt::Display for OtherFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Whether a file holds a denoiser behind a prefix that says so, of whichever family.
pub fn is_denoiser(files: &WeightFiles) -> bool {
    let mut prefixes = PREFIXES.iter().filter(|prefix| prefix.contains("diffusion_model"));
    let has = |prefix: &&str| files.names().any(|name| name.starts_with(prefix));
    prefixes.any(has)
}

/// Whether a file has all these tensors behind one prefix.
fn has_all(files: &WeightFiles, marks: &[Mark]) -> bool {
    let [first, ..] = marks else { return false };
    let Some(prefix) = first_prefix(files, &PREFIXES, first.name) else { return false };
    marks.iter().all(|Mark { name, columns }| {
        let tensor = files.tensor(&format!("{prefix}{name}"));
        tensor.is_some_and(|tensor| columns.is_none_or(|c| tensor.shape.last() == Some(&c)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mark_stands_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for other in &OTHERS {
            assert!(!other.marks.is_empty(), "{other} has marks");
            for text in [other.pipelines, other.denoisers, other.architectures].concat() {
                assert!(seen.insert(text), "{text} of {other}");
            }
        }
    }
}
