//! The DiT of a diffusers directory as Black Forest Labs would write it: one file, projections
//! fused, the halves of the last modulation the other way round. Written by a table of its own, for
//! tests that compare the two.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};

/// A tensor: its type, shape and bytes.
pub type Tensor = (Dtype, Vec<usize>, Vec<u8>);

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// All tensors of a file.
pub fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensor = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    file.tensors().into_iter().map(tensor).collect()
}

/// Writes a file of these tensors.
pub fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("a whole tensor");
        (name.as_str(), view)
    });
    safetensors::serialize_to_file(views, None, path).expect("a file system with room");
}

/// Tensors with something before their names.
pub fn behind(prefix: &str, tensors: Tensors) -> Tensors {
    tensors.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect()
}

/// The fused projections: where they are, their name, and the layers that they hold.
const FUSED: [(&str, &str, &[&str]); 3] = [
    ("transformer_blocks", "img_attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    (
        "transformer_blocks",
        "txt_attn.qkv",
        &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    ),
    ("single_transformer_blocks", "linear1", &["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"]),
];

/// Parts of names, those within blocks behind the block they are in.
const RENAMED: [(&str, &str, &str); 25] = [
    ("transformer_blocks", "norm1.linear.", "img_mod.lin."),
    ("transformer_blocks", "norm1_context.linear.", "txt_mod.lin."),
    ("transformer_blocks", "attn.to_out.0.", "img_attn.proj."),
    ("transformer_blocks", "attn.to_add_out.", "txt_attn.proj."),
    ("transformer_blocks", "attn.norm_q.weight", "img_attn.norm.query_norm.scale"),
    ("transformer_blocks", "attn.norm_k.weight", "img_attn.norm.key_norm.scale"),
    ("transformer_blocks", "attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"),
    ("transformer_blocks", "attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"),
    ("transformer_blocks", "ff.net.0.proj.", "img_mlp.0."),
    ("transformer_blocks", "ff.net.2.", "img_mlp.2."),
    ("transformer_blocks", "ff_context.net.0.proj.", "txt_mlp.0."),
    ("transformer_blocks", "ff_context.net.2.", "txt_mlp.2."),
    ("single_transformer_blocks", "norm.linear.", "modulation.lin."),
    ("single_transformer_blocks", "proj_out.", "linear2."),
    ("single_transformer_blocks", "attn.norm_q.weight", "norm.query_norm.scale"),
    ("single_transformer_blocks", "attn.norm_k.weight", "norm.key_norm.scale"),
    ("", "x_embedder.", "img_in."),
    ("", "context_embedder.", "txt_in."),
    ("", "time_text_embed.timestep_embedder.linear_1.", "time_in.in_layer."),
    ("", "time_text_embed.timestep_embedder.linear_2.", "time_in.out_layer."),
    ("", "time_text_embed.guidance_embedder.linear_1.", "guidance_in.in_layer."),
    ("", "time_text_embed.guidance_embedder.linear_2.", "guidance_in.out_layer."),
    ("", "time_text_embed.text_embedder.linear_1.", "vector_in.in_layer."),
    ("", "time_text_embed.text_embedder.linear_2.", "vector_in.out_layer."),
    ("", "proj_out.", "final_layer.linear."),
];

/// The DiT's tensors by Black Forest Labs' names.
pub fn converted(diffusers: Tensors) -> Tensors {
    let mut left = diffusers;
    let mut tensors = Tensors::new();
    for (kind, own_kind) in
        [("transformer_blocks", "double_blocks"), ("single_transformer_blocks", "single_blocks")]
    {
        for index in 0.. {
            let block = format!("{kind}.{index}.");
            if !left.keys().any(|name| name.starts_with(&block)) {
                break;
            }
            let own_block = format!("{own_kind}.{index}.");
            for (_, own, layers) in FUSED.iter().filter(|(of, ..)| *of == kind) {
                for end in ["weight", "bias"] {
                    let parts = layers.iter().map(|layer| {
                        left.remove(&format!("{block}{layer}.{end}")).expect("a whole model")
                    });
                    tensors.insert(format!("{own_block}{own}.{end}"), joined(parts.collect()));
                }
            }
        }
    }
    for end in ["weight", "bias"] {
        let (dtype, shape, bytes) = left.remove(&format!("norm_out.linear.{end}")).expect("whole");
        let (scale, shift) = bytes.split_at(bytes.len() / 2);
        let swapped = (dtype, shape, [shift, scale].concat());
        tensors.insert(format!("final_layer.adaLN_modulation.1.{end}"), swapped);
    }
    for (name, tensor) in left {
        tensors.insert(renamed(&name), tensor);
    }
    tensors
}

fn joined(parts: Vec<Tensor>) -> Tensor {
    let rows = parts.iter().map(|(_, shape, _)| shape[0]).sum();
    let shape = [&[rows], &parts[0].1[1..]].concat();
    (parts[0].0, shape, parts.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect())
}

fn renamed(name: &str) -> String {
    let mut parts = name.splitn(3, '.');
    let (kind, index, rest) = match (parts.next(), parts.next(), parts.next()) {
        (Some(kind), Some(index), Some(rest)) if kind.ends_with("transformer_blocks") => {
            (kind, index, rest)
        }
        _ => ("", "", name),
    };
    let known = RENAMED.iter().find(|(of, from, _)| *of == kind && rest.starts_with(from));
    let (_, from, to) = known.unwrap_or_else(|| panic!("{name} has no other name"));
    let rest = rest.replacen(from, to, 1);
    match kind {
        "" => rest,
        "transformer_blocks" => format!("double_blocks.{index}.{rest}"),
        _ => format!("single_blocks.{index}.{rest}"),
    }
}
