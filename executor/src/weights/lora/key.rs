//! What the end of a key says: which part of an adapter a tensor is. The start, a module's name, is
//! not understood here.
//!
//! Forms: PEFT's `lora_A` and `lora_B`, with an adapter's name after them in files written without
//! renaming; kohya's `lora_down`, `lora_up` and `alpha`; diffusers' older `lora.down` and
//! `lora_linear_layer.down`. Other kinds of adapters are known by name only, so that they can be
//! reported as what they are (LyCORIS, PEFT, ComfyUI's `comfy/lora.py`).

use std::fmt;

/// What PEFT puts before the names of a wrapped model's modules (`PeftModel`).
const PEFT_WRAPPER: &str = "base_model.model.";

/// Which part of an adapter a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// `[rank, in]`
    A,
    /// `[out, rank]`
    B,
    /// The scalar whose quotient by the rank scales the product.
    Alpha,
    /// Of something that is not computed here.
    Other(Kind),
}

/// A kind of adapter that cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Weight decomposition: rows of the sum scaled to learned lengths.
    Dora,
    /// Products of two low-rank products, element by element.
    Loha,
    /// Kronecker products.
    Lokr,
    /// Generalised LoRA.
    Glora,
    /// Orthogonal fine-tuning.
    Oft,
    /// A convolution cut into three factors.
    Convolution,
    /// A table of embeddings.
    Embedding,
    /// A bias in the second factor.
    Bias,
    /// A difference or replacement of a whole weight, bias or norm.
    Whole,
}

impl Kind {
    /// What it is called where such files are made.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Dora => "DoRA",
            Kind::Loha => "LoHa",
            Kind::Lokr => "LoKr",
            Kind::Glora => "GLoRA",
            Kind::Oft => "OFT",
            Kind::Convolution => "LoRA of convolutions",
            Kind::Embedding => "LoRA of embeddings",
            Kind::Bias => "LoRA with a bias",
            Kind::Whole => "difference of whole weights",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Ends of keys, each after a dot.
const ENDS: [(&str, Part); 33] = [
    ("lora_down.weight", Part::A),
    ("lora_up.weight", Part::B),
    ("lora.down.weight", Part::A),
    ("lora.up.weight", Part::B),
    ("lora_linear_layer.down.weight", Part::A),
    ("lora_linear_layer.up.weight", Part::B),
    ("alpha", Part::Alpha),
    ("dora_scale", Part::Other(Kind::Dora)),
    ("lora_magnitude_vector", Part::Other(Kind::Dora)),
    ("lora_magnitude_vector.weight", Part::Other(Kind::Dora)),
    ("hada_w1_a", Part::Other(Kind::Loha)),
    ("hada_w1_b", Part::Other(Kind::Loha)),
    ("hada_w2_a", Part::Other(Kind::Loha)),
    ("hada_w2_b", Part::Other(Kind::Loha)),
    ("hada_t1", Part::Other(Kind::Loha)),
    ("hada_t2", Part::Other(Kind::Loha)),
    ("lokr_w1", Part::Other(Kind::Lokr)),
    ("lokr_w2", Part::Other(Kind::Lokr)),
    ("lokr_w1_a", Part::Other(Kind::Lokr)),
    ("lokr_w1_b", Part::Other(Kind::Lokr)),
    ("lokr_w2_a", Part::Other(Kind::Lokr)),
    ("lokr_w2_b", Part::Other(Kind::Lokr)),
    ("lokr_t2", Part::Other(Kind::Lokr)),
    ("a1.weight", Part::Other(Kind::Glora)),
    ("a2.weight", Part::Other(Kind::Glora)),
    ("b1.weight", Part::Other(Kind::Glora)),
    ("b2.weight", Part::Other(Kind::Glora)),
    ("oft_blocks", Part::Other(Kind::Oft)),
    ("oft_diag", Part::Other(Kind::Oft)),
    ("lora_mid.weight", Part::Other(Kind::Convolution)),
    ("diff", Part::Other(Kind::Whole)),
    ("diff_b", Part::Other(Kind::Whole)),
    ("set_weight", Part::Other(Kind::Whole)),
];

/// The module that a key belongs to, and which part of its adapter it is. `None` for keys of no
/// known form.
pub(super) fn parse(key: &str) -> Option<(&str, Part)> {
    let key = key.strip_prefix(PEFT_WRAPPER).unwrap_or(key);
    let known =
        |(end, part): &(&str, Part)| Some((key.strip_suffix(end)?.strip_suffix('.')?, *part));
    let found = ENDS.iter().find_map(known).or_else(|| peft(key))?;
    (!found.0.is_empty()).then_some(found)
}

/// PEFT's forms, `<module>.<part>.weight` or `<module>.<part>.<adapter's name>.weight`.
fn peft(key: &str) -> Option<(&str, Part)> {
    for (middle, part) in [
        (".lora_A.", Part::A),
        (".lora_B.", Part::B),
        (".lora_magnitude_vector.", Part::Other(Kind::Dora)),
        (".lora_embedding_A", Part::Other(Kind::Embedding)),
        (".lora_embedding_B", Part::Other(Kind::Embedding)),
    ] {
        let Some((module, end)) = key.split_once(middle) else { continue };
        let leaf = end.rsplit('.').next().unwrap_or(end);
        let depth = end.split('.').count();
        return match (part, leaf) {
            (Part::Other(_), _) => Some((module, part)),
            (_, "weight") if depth <= 2 => Some((module, part)),
            (_, "bias") if depth <= 2 => Some((module, Part::Other(Kind::Bias))),
            _ => None,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_key_gives_module_and_part() {
        for (key, module, part) in [
            ("transformer.x.to_q.lora_A.weight", "transformer.x.to_q", Part::A),
            ("x.to_q.lora_B.weight", "x.to_q", Part::B),
            ("base_model.model.x.to_q.lora_A.default.weight", "x.to_q", Part::A),
            ("x.lora_B.default_0.weight", "x", Part::B),
            ("x.to_out.0.lora.down.weight", "x.to_out.0", Part::A),
            ("x.lora.up.weight", "x", Part::B),
            ("x.q_proj.lora_linear_layer.up.weight", "x.q_proj", Part::B),
            ("lora_unet_x_0.lora_down.weight", "lora_unet_x_0", Part::A),
            ("diffusion_model.x.0.lora_up.weight", "diffusion_model.x.0", Part::B),
            ("lora_te1_x.alpha", "lora_te1_x", Part::Alpha),
            ("x.dora_scale", "x", Part::Other(Kind::Dora)),
            ("x.lora_magnitude_vector.default.weight", "x", Part::Other(Kind::Dora)),
            ("x.lora_magnitude_vector", "x", Part::Other(Kind::Dora)),
            ("x.hada_w2_b", "x", Part::Other(Kind::Loha)),
            ("x.lokr_w1", "x", Part::Other(Kind::Lokr)),
            ("x.lora_mid.weight", "x", Part::Other(Kind::Convolution)),
            ("x.lora_embedding_A.default", "x", Part::Other(Kind::Embedding)),
            ("x.lora_B.bias", "x", Part::Other(Kind::Bias)),
            ("x.diff_b", "x", Part::Other(Kind::Whole)),
        ] {
            assert_eq!(parse(key), Some((module, part)), "{key}");
        }
    }

    #[test]
    fn other_keys_have_no_form() {
        for key in [
            "",
            "alpha",
            ".alpha",
            "lora_A.weight",
            "x.weight",
            "x.lora_A",
            "x.lora_A.weights",
            "x.lora_A.a.b.weight",
            "xlora_down.weight",
            "x.lora_down.bias",
        ] {
            assert_eq!(parse(key), None, "{key}");
        }
    }
}
