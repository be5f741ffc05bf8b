//! Changes to layers of the reference models: written in every form that LoRA files have, and
//! computed by the formula.
//!
//! The tables of names here are from the published checkpoints, and share nothing with the code
//! under test.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use executor::models::Model;
use executor::weights::WeightFiles;
use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// Folder and stem of the weights of `clip`, `t5` and `dit`.
pub const PARTS: [(&str, &str); 3] = [
    ("text_encoder", "model"),
    ("text_encoder_2", "model"),
    ("transformer", "diffusion_pytorch_model"),
];

/// A tensor to write: name, type, shape, content.
pub type Written = (String, Dtype, Vec<usize>, Vec<u8>);

/// A low-rank change of one layer of the original model, or of a text encoder.
pub struct Change {
    pub component: &'static str,
    /// Its name in the original's checkpoint.
    original: String,
    /// Its rows in diffusers' checkpoint, in the original's order: module, first row, count.
    rows: Vec<(String, usize, usize)>,
    alpha: f64,
    a: Matrix,
    b: Matrix,
}

struct Matrix {
    shape: [usize; 2],
    values: Vec<f32>,
}

/// How a file names things.
pub struct Form {
    pub name: &'static str,
    /// What stands before the modules of `clip`, `t5` and `dit`.
    prefixes: [&'static str; 3],
    /// Whether the DiT's layers have the original's names.
    original: bool,
    /// Whether dots in modules are underscores.
    flat: bool,
    /// The ends of the keys of A and B.
    ends: [&'static str; 2],
    alpha: Alpha,
}

enum Alpha {
    /// A tensor for each module.
    Tensors,
    /// In the notes, by diffusers' names of parts.
    Note,
    /// In the notes, without.
    BareNote,
}

const PEFT: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];
const KOHYA: [&str; 2] = [".lora_down.weight", ".lora_up.weight"];

pub const FORMS: [Form; 10] = [
    Form {
        name: "diffusers",
        prefixes: ["text_encoder.", "text_encoder_2.", "transformer."],
        original: false,
        flat: false,
        ends: PEFT,
        alpha: Alpha::Note,
    },
    Form {
        name: "PEFT's own",
        prefixes: ["base_model.model."; 3],
        original: false,
        flat: false,
        ends: [".lora_A.default.weight", ".lora_B.default.weight"],
        alpha: Alpha::BareNote,
    },
    Form {
        name: "one model's",
        prefixes: ["text_encoder.", "text_encoder_2.", ""],
        original: false,
        flat: false,
        ends: [".lora.down.weight", ".lora.up.weight"],
        alpha: Alpha::Tensors,
    },
    Form {
        name: "older diffusers",
        prefixes: ["text_encoder.", "text_encoder_2.", "transformer."],
        original: false,
        flat: false,
        ends: [".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"],
        alpha: Alpha::Tensors,
    },
    Form {
        name: "kohya with diffusers' names",
        prefixes: ["lora_te1_", "lora_te2_", "lora_unet_"],
        original: false,
        flat: true,
        ends: KOHYA,
        alpha: Alpha::Tensors,
    },
    Form {
        name: "OneTrainer",
        prefixes: ["lora_te1_", "lora_te2_", "lora_transformer_"],
        original: false,
        flat: true,
        ends: KOHYA,
        alpha: Alpha::Tensors,
    },
    Form {
        name: "kohya",
        prefixes: ["lora_te1_", "lora_te3_", "lora_unet_"],
        original: true,
        flat: true,
        ends: KOHYA,
        alpha: Alpha::Tensors,
    },
    Form {
        name: "kohya with one text encoder",
        prefixes: ["lora_te_", "lora_te3_", "lora_unet_"],
        original: true,
        flat: true,
        ends: KOHYA,
        alpha: Alpha::Tensors,
    },
    Form {
        name: "ComfyUI",
        prefixes: [
            "text_encoders.clip_l.transformer.",
            "text_encoders.t5xxl.transformer.",
            "diffusion_model.",
        ],
        original: true,
        flat: false,
        ends: PEFT,
        alpha: Alpha::Tensors,
    },
    Form {
        name: "PEFT on the original",
        prefixes: ["base_model.model."; 3],
        original: true,
        flat: false,
        ends: KOHYA,
        alpha: Alpha::BareNote,
    },
];

/// Layers of the original and of diffusers, in blocks of each kind.
const DOUBLE: [(&str, &[&str]); 10] = [
    ("img_attn.qkv", &["attn.to_q", "attn.to_k", "attn.to_v"]),
    ("txt_attn.qkv", &["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"]),
    ("img_attn.proj", &["attn.to_out.0"]),
    ("txt_attn.proj", &["attn.to_add_out"]),
    ("img_mlp.0", &["ff.net.0.proj"]),
    ("img_mlp.2", &["ff.net.2"]),
    ("txt_mlp.0", &["ff_context.net.0.proj"]),
    ("txt_mlp.2", &["ff_context.net.2"]),
    ("img_mod.lin", &["norm1.linear"]),
    ("txt_mod.lin", &["norm1_context.linear"]),
];
const SINGLE: [(&str, &[&str]); 3] = [
    ("linear1", &["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"]),
    ("linear2", &["proj_out"]),
    ("modulation.lin", &["norm.linear"]),
];
const OUTER: [(&str, &str); 9] = [
    ("img_in", "x_embedder"),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"),
    ("time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"),
    ("vector_in.in_layer", "time_text_embed.text_embedder.linear_1"),
    ("vector_in.out_layer", "time_text_embed.text_embedder.linear_2"),
    ("guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"),
    ("guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"),
    ("final_layer.linear", "proj_out"),
];

/// Numbers between -1 and 1 that look random and are the same on every run.
pub fn random(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

/// A change of every linear layer of a model, of ranks 1 to 5.
pub fn all_changes(model: &Arc<dyn Model>, seed: u64, alpha: f64) -> Vec<Change> {
    let dit = model.files("dit");
    let shape = |component: &str, module: &str| {
        let info = model.files(component).tensor(&format!("{module}.weight"))?;
        <[usize; 2]>::try_from(info.shape).ok()
    };
    let mut layers: Vec<(&'static str, String, Vec<String>)> = Vec::new();
    for (original, module) in OUTER {
        layers.push(("dit", original.to_owned(), vec![module.to_owned()]));
    }
    let count = |block: &str| {
        let present =
            |n: &usize| dit.names().any(|name| name.starts_with(&format!("{block}.{n}.")));
        (0..).take_while(present).count()
    };
    for (original, block, inside) in [
        ("double_blocks", "transformer_blocks", &DOUBLE[..]),
        ("single_blocks", "single_transformer_blocks", &SINGLE[..]),
    ] {
        for n in 0..count(block) {
            for (name, modules) in inside {
                let modules = modules.iter().map(|module| format!("{block}.{n}.{module}"));
                layers.push(("dit", format!("{original}.{n}.{name}"), modules.collect()));
            }
        }
    }
    for (component, marks) in [
        ("clip", &[".self_attn.", ".mlp."][..]),
        ("t5", &["SelfAttention.q", "SelfAttention.k", "Attention.v", "Attention.o", "Dense."]),
    ] {
        for name in model.files(component).names() {
            let Some(module) = name.strip_suffix(".weight") else { continue };
            if marks.iter().any(|mark| module.contains(mark)) {
                layers.push((component, module.to_owned(), vec![module.to_owned()]));
            }
        }
    }
    let mut changes = Vec::new();
    for (component, original, modules) in layers {
        // schnell has no guidance.
        let shapes: Option<Vec<_>> =
            modules.iter().map(|module| shape(component, module)).collect();
        let Some(shapes) = shapes else { continue };
        let rows = modules.into_iter().zip(&shapes).map(|(module, shape)| (module, 0, shape[0]));
        let columns = shapes[0][1];
        changes.push(change(component, original, rows.collect(), columns, seed, alpha));
    }
    let module = "norm_out.linear";
    let [rows, columns] = shape("dit", module).unwrap();
    // Shift stands before scale in the original, after it in diffusers.
    let halves = vec![(module.to_owned(), rows / 2, rows / 2), (module.to_owned(), 0, rows / 2)];
    let original = "final_layer.adaLN_modulation.1".to_owned();
    changes.push(change("dit", original, halves, columns, seed, alpha));
    changes
}

fn change(
    component: &'static str,
    original: String,
    rows: Vec<(String, usize, usize)>,
    columns: usize,
    seed: u64,
    alpha: f64,
) -> Change {
    let seed = original.bytes().fold(seed, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    let rank = 1 + seed as usize % 5;
    let out = rows.iter().map(|(_, _, count)| count).sum();
    // Multiples of 1/64 up to 1/4: the same numbers in every type.
    let matrix = |seed, shape: [usize; 2]| Matrix {
        shape,
        values: random(seed).take(shape[0] * shape[1]).map(|v| (v * 16.0).round() / 64.0).collect(),
    };
    let (a, b) = (matrix(seed, [rank, columns]), matrix(seed + 1, [out, rank]));
    Change { component, original, rows, alpha, a, b }
}

/// Writes changes in a form, and says how many modules that makes.
pub fn write_form(path: &Path, form: &Form, changes: &[Change], dtype: Dtype) -> usize {
    let mut modules: BTreeMap<String, (&Matrix, Vec<f32>, f64)> = BTreeMap::new();
    for change in changes {
        let prefix = form.prefixes[["clip", "t5", "dit"]
            .iter()
            .position(|component| *component == change.component)
            .unwrap()];
        let name = |module: &str| {
            format!(
                "{prefix}{}",
                if form.flat { module.replace('.', "_") } else { module.to_owned() }
            )
        };
        if form.original {
            let b = change.b.values.clone();
            modules.insert(name(&change.original), (&change.a, b, change.alpha));
            continue;
        }
        let rank = change.b.shape[1];
        let mut row = 0;
        for (module, first_row, count) in &change.rows {
            let values = &change.b.values[row * rank..(row + count) * rank];
            row += count;
            let (_, b, _) = modules
                .entry(name(module))
                .or_insert_with(|| (&change.a, Vec::new(), change.alpha));
            b.resize(b.len().max((first_row + count) * rank), 0.0);
            b[first_row * rank..(first_row + count) * rank].copy_from_slice(values);
        }
    }
    let count = modules.len();
    let mut tensors: Vec<Written> = Vec::new();
    for (module, (a, b, alpha)) in modules {
        let rank = a.shape[0];
        let b_shape = vec![b.len() / rank, rank];
        tensors.push((
            format!("{module}{}", form.ends[0]),
            dtype,
            a.shape.to_vec(),
            stored(dtype, &a.values),
        ));
        tensors.push((format!("{module}{}", form.ends[1]), dtype, b_shape, stored(dtype, &b)));
        if matches!(form.alpha, Alpha::Tensors) {
            tensors.push((
                format!("{module}.alpha"),
                dtype,
                vec![],
                stored(dtype, &[alpha as f32]),
            ));
        }
    }
    let alpha = changes[0].alpha;
    let note = match form.alpha {
        Alpha::Tensors => None,
        Alpha::Note => Some(format!(
            r#"{{"transformer.lora_alpha":{alpha},"text_encoder.lora_alpha":{alpha},
                "text_encoder_2.lora_alpha":{alpha},"transformer.r":4}}"#
        )),
        Alpha::BareNote => Some(format!(r#"{{"lora_alpha":{alpha},"peft_type":"LORA"}}"#)),
    };
    write_tensors(path, tensors, note);
    count
}

/// Writes a safetensors file, with a note of the name that diffusers uses.
pub fn write_tensors(path: &Path, tensors: Vec<Written>, note: Option<String>) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let notes = note.map(|note| [("lora_adapter_metadata".to_owned(), note)].into());
    safetensors::serialize_to_file(views, notes, path).unwrap();
}

fn stored(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect(),
        other => panic!("no type of a LoRA: {other}"),
    }
}

/// A tensor of a checkpoint with changes, each list of them with its weight: `W + Σ w · α/r · B ·
/// A`.
pub fn merged(
    files: &WeightFiles,
    component: &str,
    name: &str,
    changes: &[(&[Change], f64)],
) -> Vec<f64> {
    let shape = files.tensor(name).unwrap().shape.to_vec();
    let base = files.require(name, &shape).unwrap().view(files).to_f32();
    let mut values: Vec<f64> = base.into_iter().map(f64::from).collect();
    let every =
        changes.iter().flat_map(|(changes, weight)| changes.iter().map(move |c| (c, weight)));
    for (change, weight) in every.filter(|(change, _)| change.component == component) {
        let [rank, columns] = change.a.shape;
        let mut row = 0; // of B
        for (module, first_row, count) in &change.rows {
            if name.strip_suffix(".weight") == Some(module) {
                for index in 0..*count {
                    for column in 0..columns {
                        let product: f64 = (0..rank)
                            .map(|k| {
                                f64::from(change.b.values[(row + index) * rank + k])
                                    * f64::from(change.a.values[k * columns + column])
                            })
                            .sum();
                        let change = weight * change.alpha / rank as f64 * product;
                        values[(first_row + index) * columns + column] += change;
                    }
                }
            }
            row += count;
        }
    }
    values
}
