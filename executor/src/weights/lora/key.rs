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
pub(super) enum AdapterPart {
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
const ENDS: [(&str, AdapterPart); 33] = [
    ("lora_down.weight", AdapterPart::A),
    ("lora_up.weight", AdapterPart::B),
    ("lora.down.weight", AdapterPart::A),
    ("lora.up.weight", AdapterPart::B),
    ("lora_linear_layer.down.weight", AdapterPart::A),
    ("lora_linear_layer.up.weight", AdapterPart::B),
    ("alpha", AdapterPart::Alpha),
    ("dora_scale", AdapterPart::Other(Kind::Dora)),
    ("lora_magnitude_vector", AdapterPart::Other(Kind::Dora)),
    ("lora_magnitude_vector.weight", AdapterPart::Other(Kind::Dora)),
    ("hada_w1_a", AdapterPart::Other(Kind::Loha)),
    ("hada_w1_b", AdapterPart::Other(Kind::Loha)),
    ("hada_w2_a", AdapterPart::Other(Kind::Loha)),
    ("hada_w2_b", AdapterPart::Other(Kind::Loha)),
    ("hada_t1", AdapterPart::Other(Kind::Loha)),
    ("hada_t2", AdapterPart::Other(Kind::Loha)),
    ("lokr_w1", AdapterPart::Other(Kind::Lokr)),
    ("lokr_w2", AdapterPart::Other(Kind::Lokr)),
    ("lokr_w1_a", AdapterPart::Other(Kind::Lokr)),
    ("lokr_w1_b", AdapterPart::Other(Kind::Lokr)),
    ("lokr_w2_a", AdapterPart::Other(Kind::Lokr)),
    ("lokr_w2_b", AdapterPart::Other(Kind::Lokr)),
    ("lokr_t2", AdapterPart::Other(Kind::Lokr)),
    ("a1.weight", AdapterPart::Other(Kind::Glora)),
    ("a2.weight", AdapterPart::Other(Kind::Glora)),
    ("b1.weight", AdapterPart::Other(Kind::Glora)),
    ("b2.weight", AdapterPart::Other(Kind::Glora)),
    ("oft_blocks", AdapterPart::Other(Kind::Oft)),
    ("oft_diag", AdapterPart::Other(Kind::Oft)),
    ("lora_mid.weight", AdapterPart::Other(Kind::Convolution)),
    ("diff", AdapterPart::Other(Kind::Whole)),
    ("diff_b", AdapterPart::Other(Kind::Whole)),
    ("set_weight", AdapterPart::Other(Kind::Whole)),
];

/// The module that a key belongs to, and which part of its adapter it is. `None` for keys of no
/// known form.
pub(super) fn parse(key: &str) -> Option<(&str, AdapterPart)> {
    let key = key.strip_prefix(PEFT_WRAPPER).unwrap_or(key);
    let known = |(end, part): &(&str, AdapterPart)| {
        Some((key.strip_suffix(end)?.strip_suffix('.')?, *part))
    };
    let found = ENDS.iter().find_map(known).or_else(|| peft(key))?;
    (!found.0.is_empty()).then_some(found)
}

/// PEFT's forms, `<module>.<part>.weight` or `<module>.<part>.<adapter's name>.weight`.
fn peft(key: &str) -> Option<(&str, AdapterPart)> {
    for (middle, part) in [
        (".lora_A.", AdapterPart::A),
        (".lora_B.", AdapterPart::B),
        (".lora_magnitude_vector.", AdapterPart::Other(Kind::Dora)),
        (".lora_embedding_A", AdapterPart::Other(Kind::Embedding)),
        (".lora_embedding_B", AdapterPart::Other(Kind::Embedding)),
    ] {
        let Some((module, end)) = key.split_once(middle) else { continue };
        let leaf = end.rsplit('.').next().unwrap_or(end);
        let depth = end.split('.').count();
        return match (part, leaf) {
            (AdapterPart::Other(_), _) => Some((module, part)),
            (_, "weight") if depth <= 2 => Some((module, part)),
            (_, "bias") if depth <= 2 => Some((module, AdapterPart::Other(Kind::Bias))),
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
            ("transformer.x.to_q.lora_A.weight", "transformer.x.to_q", AdapterPart::A),
            ("x.to_q.lora_B.weight", "x.to_q", AdapterPart::B),
            ("base_model.model.x.to_q.lora_A.default.weight", "x.to_q", AdapterPart::A),
            ("x.lora_B.default_0.weight", "x", AdapterPart::B),
            ("x.to_out.0.lora.down.weight", "x.to_out.0", AdapterPart::A),
            ("x.lora.up.weight", "x", AdapterPart::B),
            ("x.q_proj.lora_linear_layer.up.weight", "x.q_proj", AdapterPart::B),
            ("lora_unet_x_0.lora_down.weight", "lora_unet_x_0", AdapterPart::A),
            ("diffusion_model.x.0.lora_up.weight", "diffusion_model.x.0", AdapterPart::B),
            ("lora_te1_x.alpha", "lora_te1_x", AdapterPart::Alpha),
            ("x.dora_scale", "x", AdapterPart::Other(Kind::Dora)),
            ("x.lora_magnitude_vector.default.weight", "x", AdapterPart::Other(Kind::Dora)),
            ("x.lora_magnitude_vector", "x", AdapterPart::Other(Kind::Dora)),
            ("x.hada_w2_b", "x", AdapterPart::Other(Kind::Loha)),
            ("x.lokr_w1", "x", AdapterPart::Other(Kind::Lokr)),
            ("x.lora_mid.weight", "x", AdapterPart::Other(Kind::Convolution)),
            ("x.lora_embedding_A.default", "x", AdapterPart::Other(Kind::Embedding)),
            ("x.lora_B.bias", "x", AdapterPart::Other(Kind::Bias)),
            ("x.diff_b", "x", AdapterPart::Other(Kind::Whole)),
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
