//! What the self-test computes: a small graph for each family of kernels.
//!
//! [`CASES`] is the only list of families: a new one is a line there. A test on simulated GPUs
//! (`tests/gpu/self_test.rs`) has every file of kernels in some case, and `tests.rs` every
//! operation.

use std::cmp::Reverse;

use protocol::StorageType;
use protocol::self_test::SelfTestShare;

use crate::graph::{Activation, ElementType, GraphBuilder, ValueId};
use crate::ops::attention::AttentionOp;
use crate::ops::conv2d::{ConvNorm, ConvOp};
use crate::weights::WeightsError;

/// The root mean square of differences as a part of that of what is expected, where all is f32:
/// sums in another order, of some hundred products.
const F32: f64 = 5e-6;

/// The same where operands are rounded to 16 bits: what a stage of a model is allowed
/// (docs/cuda.md, "How near"). A sum of bf16 is off by some 2^-9 of its size.
const HALF: f64 = 1.2e-2;

/// Features in and out of products: a block of the K-quants, and no multiple of a tile.
pub const PRODUCT: [usize; 2] = [256, 72];

/// Features in of a product whose rows of weights do not begin where 16 bytes can be copied.
pub const ODD_FEATURES: usize = 250;

/// Rows of products on tensor cores: no multiple of a tile.
const ROWS: usize = 20;

/// Rows of products for which weights are decoded first, on GPUs that do so.
const MANY_ROWS: usize = 512;

/// Tokens of values that no product takes.
const TOKENS: usize = 7;

/// Features of such values.
pub const FEATURES: usize = 64;

/// Channels of images.
pub const CHANNELS: usize = 32;

/// Rows of tables.
pub const TABLE_ROWS: usize = 16;

/// Heads of biases by distance.
pub const HEADS: usize = 4;

/// Buckets of biases by distance.
pub const BUCKETS: usize = 8;

/// Added to what norms divide by.
const EPS: f32 = 1e-5;

/// Its result.
type BuiltCase = Result<ValueId, WeightsError>;

/// A graph that a family of kernels computes. Its result is the output `y`.
pub struct Case {
    /// The family: the name of its file, where a file is for one thing.
    pub family: &'static str,
    /// Milliseconds that it took an H100 whose driver had compiled nothing, behind those of the
    /// family before it (docs/gpu-runs.md): by these, families are shared out.
    pub cold_ms: u32,
    /// Whether products are formed in f32.
    pub exact: bool,
    /// The root mean square of differences may be so large a part of that of what is expected.
    pub allowed: f64,
    /// Adds the nodes.
    pub build: fn(&mut GraphBuilder<'_>) -> BuiltCase,
}

/// The cases of a share: whole families, so that each of their kernels is compiled once; the next
/// one to whom has least, those first that take longest.
pub fn of(share: SelfTestShare) -> Vec<&'static Case> {
    let mut families: Vec<(&str, u32)> = Vec::new();
    for case in CASES {
        match families.iter_mut().find(|(family, _)| *family == case.family) {
            Some((_, ms)) => *ms += case.cold_ms,
            None => families.push((case.family, case.cold_ms)),
        }
    }
    families.sort_by_key(|(_, ms)| Reverse(*ms));
    let mut shares = vec![(Vec::new(), 0); share.count as usize];
    for (family, ms) in families {
        let least = shares.iter_mut().min_by_key(|(_, all_ms)| *all_ms).expect("there is a share");
        least.0.push(family);
        least.1 += ms;
    }
    let (own, _) = shares.swap_remove(share.index as usize);
    CASES.iter().filter(|case| own.contains(&case.family)).collect()
}

/// In f32, or of operands of 16 bits.
const fn case(
    family: &'static str,
    cold_ms: u32,
    allowed: f64,
    build: fn(&mut GraphBuilder<'_>) -> BuiltCase,
) -> Case {
    Case { family, cold_ms, exact: false, allowed, build }
}

/// With products in f32.
const fn exact(
    family: &'static str,
    cold_ms: u32,
    build: fn(&mut GraphBuilder<'_>) -> BuiltCase,
) -> Case {
    Case { family, cold_ms, exact: true, allowed: F32, build }
}

/// All families.
pub static CASES: &[Case] = &[
    case("linear_few", 170, F32, |graph| linear(graph, 1, StorageType::Q4K)),
    case("linear_few", 110, F32, |graph| linear(graph, 5, StorageType::BF16)),
    exact("linear_exact", 440, |graph| linear(graph, ROWS, StorageType::F32)),
    case("linear_half", 730, HALF, |graph| linear(graph, ROWS, StorageType::F16)),
    case("linear_half", 50, HALF, |graph| linear(graph, ROWS, StorageType::BF16)),
    case("linear_half", 120, HALF, linear_chain),
    case("linear_decoded", 370, HALF, odd_linear),
    // On wide GPUs these are decode_half, and linear_decoded.
    case("linear_bytes", 690, HALF, |graph| linear(graph, MANY_ROWS, StorageType::Q8_0)),
    case("linear_bytes", 190, HALF, |graph| linear(graph, ROWS, StorageType::Q4K)),
    case("linear_bytes", 180, HALF, |graph| linear(graph, ROWS, StorageType::Q6K)),
    exact("conv_exact", 240, |graph| convolution(graph, "conv", ConvOp::same(3))),
    case("conv_half", 300, HALF, |graph| convolution(graph, "conv", ConvOp::same(3))),
    case("conv_half", 290, HALF, |graph| convolution(graph, "pixels", ConvOp::same(1))),
    case("conv_half", 290, HALF, norm_convolution),
    exact("attention_exact", 320, |graph| attention(graph, FEATURES)),
    case("attention_half", 210, HALF, |graph| attention(graph, FEATURES)),
    case("attention_pack", 320, HALF, |graph| attention(graph, 48)),
    case("attention_wide", 450, HALF, |graph| attention(graph, 160)),
    // On GPUs without room for its blocks this is attention_half too.
    case("attention_tall", 750, HALF, |graph| attention(graph, 128)),
    case("attention_half", 0, HALF, masked_attention),
    case("attention_half", 440, HALF, attention_of_normalised),
    case("group_norm", 460, F32, |graph| {
        let x = image(graph);
        graph.group_norm(x, "image", 4, EPS, true)
    }),
    case("norm", 150, F32, |graph| {
        let x = tokens(graph, "x");
        graph.layer_norm(x, "norm", EPS)
    }),
    case("norm", 520, F32, |graph| {
        let x = tokens(graph, "x");
        graph.rms_norm(x, "head", FEATURES / 2, EPS)
    }),
    case("norm", 200, F32, |graph| {
        let (x, by) = (tokens(graph, "x"), modulation(graph));
        Ok(graph.ada_layer_norm(x, by, 0, 1, EPS))
    }),
    case("modulated_norm", 120, F32, |graph| {
        let (x, by) = (tokens(graph, "x"), modulation(graph));
        graph.scaled_rms_norm(x, "norm", by, 1, EPS)
    }),
    case("modulated_norm", 170, F32, |graph| {
        let (x, by) = (tokens(graph, "x"), modulation(graph));
        Ok(graph.scaled_layer_norm(x, by, 1, EPS))
    }),
    case("modulated_norm", 130, F32, |graph| {
        let (x, y, by) = (tokens(graph, "x"), tokens(graph, "z"), modulation(graph));
        graph.gated_norm_add(x, y, "norm", Some((by, 2)), EPS)
    }),
    case("elementwise", 40, F32, |graph| {
        let (x, y) = (tokens(graph, "x"), tokens(graph, "z"));
        Ok(graph.add(x, y))
    }),
    case("elementwise", 30, F32, |graph| {
        let (x, y) = (tokens(graph, "x"), tokens(graph, "z"));
        Ok(graph.mul(x, y))
    }),
    case("elementwise", 80, F32, |graph| activated(graph, Activation::Silu)),
    case("elementwise", 50, F32, |graph| activated(graph, Activation::GeluTanh)),
    case("elementwise", 50, F32, |graph| activated(graph, Activation::GeluErf)),
    case("elementwise", 90, F32, |graph| activated(graph, Activation::QuickGelu)),
    case("token_rows", 30, F32, |graph| {
        let (x, y, by) = (tokens(graph, "x"), tokens(graph, "z"), modulation(graph));
        Ok(graph.gated_add(x, y, by, 2))
    }),
    case("token_rows", 30, F32, |graph| {
        let (x, y) = (tokens(graph, "x"), tokens(graph, "z"));
        Ok(graph.scaled_add(x, y, 0.75, 0))
    }),
    case("token_rows", 30, F32, |graph| {
        let (x, table) = (tokens(graph, "x"), angles(graph));
        Ok(graph.rope(x, table, HEADS))
    }),
    case("rope_halves", 40, F32, |graph| {
        let (x, table) = (tokens(graph, "x"), angles(graph));
        Ok(graph.rope_halves(x, table, HEADS))
    }),
    case("pad_tokens", 40, F32, |graph| {
        let (x, known) = (tokens(graph, "x"), graph.input("known", &[1], ElementType::I32));
        graph.pad_tokens(x, Some(known), "padding", TOKENS + 3)
    }),
    case("tokens", 60, F32, |graph| {
        let (x, y) = (tokens(graph, "x"), tokens(graph, "z"));
        Ok(graph.concat_tokens(x, y))
    }),
    case("tokens", 0, F32, |graph| {
        let x = tokens(graph, "x");
        Ok(graph.slice_tokens(x, 2, 3))
    }),
    case("tokens", 60, F32, |graph| {
        let x = graph.input("x", &[3], ElementType::F32);
        Ok(graph.sinusoid(x, FEATURES))
    }),
    case("tables", 30, F32, |graph| {
        let ids = graph.input("ids", &[1, TOKENS], ElementType::I32);
        graph.embedding(ids, "table", TABLE_ROWS, FEATURES)
    }),
    case("tables", 30, F32, |graph| {
        let x = tokens(graph, "x");
        graph.add_positions(x, "table", TABLE_ROWS)
    }),
    case("tables", 40, F32, |graph| {
        graph.relative_position_bias("buckets", BUCKETS, HEADS, TOKENS, 16)
    }),
];

/// A layer with a bias, its weight stored so.
fn linear(graph: &mut GraphBuilder<'_>, rows: usize, storage: StorageType) -> BuiltCase {
    let [inner, out] = PRODUCT;
    let x = graph.input("x", &[1, rows, inner], ElementType::F32); // [1, rows, inner]
    graph.linear(&[x], storage.name(), out, Activation::GeluTanh) // [1, rows, out]
}

/// A layer whose weights are copied element by element.
fn odd_linear(graph: &mut GraphBuilder<'_>) -> BuiltCase {
    let x = graph.input("x", &[1, ROWS, ODD_FEATURES], ElementType::F32); // [1, rows, inner]
    graph.linear(&[x], "odd", PRODUCT[1], Activation::None) // [1, rows, out]
}

/// Two layers, the value between which is written and read in bf16.
fn linear_chain(graph: &mut GraphBuilder<'_>) -> BuiltCase {
    let [_, out] = PRODUCT;
    let between = linear(graph, ROWS, StorageType::BF16)?; // [1, rows, out]
    graph.linear(&[between], "second", out, Activation::None) // [1, rows, out]
}

fn image(graph: &mut GraphBuilder<'_>) -> ValueId {
    graph.input("x", &[1, 9, 10, CHANNELS], ElementType::F32) // [1, height, width, channels]
}

fn convolution(graph: &mut GraphBuilder<'_>, prefix: &str, op: ConvOp) -> BuiltCase {
    let x = image(graph); // [1, height, width, channels]
    graph.conv2d(x, prefix, CHANNELS, op)
}

/// A residual sum of a convolution of normalised values.
fn norm_convolution(graph: &mut GraphBuilder<'_>) -> BuiltCase {
    let sum = graph.input("z", &[1, 9, 10, CHANNELS], ElementType::F32);
    let x = image(graph); // [1, height, width, channels]
    let norm = ConvNorm { groups: 4, eps: EPS, silu: true };
    graph.norm_conv2d(Some(sum), x, ("image", norm), ("conv", CHANNELS), ConvOp::same(3))
}

/// Two heads of so many features.
fn attended(graph: &mut GraphBuilder<'_>, head: usize) -> ([ValueId; 3], AttentionOp) {
    let shape = [1, ROWS, 2 * head];
    let qkv = ["q", "k", "v"].map(|name| graph.input(name, &shape, ElementType::F32));
    let scale = (head as f32).sqrt().recip();
    (qkv, AttentionOp { heads: 2, kv_heads: 2, scale, causal: false })
}

fn attention(graph: &mut GraphBuilder<'_>, head: usize) -> BuiltCase {
    let (qkv, op) = attended(graph, head);
    Ok(graph.attention(qkv, None, op))
}

fn masked_attention(graph: &mut GraphBuilder<'_>) -> BuiltCase {
    let (qkv, op) = attended(graph, FEATURES);
    let known = graph.input("known", &[1], ElementType::I32);
    Ok(graph.masked_attention(qkv, known, op))
}

/// Attention of values that norms write in f16, as it takes them where they lie.
fn attention_of_normalised(graph: &mut GraphBuilder<'_>) -> BuiltCase {
    let (mut qkv, op) = attended(graph, FEATURES);
    for value in &mut qkv {
        *value = graph.rms_norm(*value, "norm", FEATURES, EPS)?;
    }
    Ok(graph.attention(qkv, None, op))
}

fn tokens(graph: &mut GraphBuilder<'_>, name: &'static str) -> ValueId {
    graph.input(name, &[1, TOKENS, FEATURES], ElementType::F32) // [1, tokens, features]
}

fn modulation(graph: &mut GraphBuilder<'_>) -> ValueId {
    graph.input("modulation", &[1, 3 * FEATURES], ElementType::F32) // [1, chunks × features]
}

fn angles(graph: &mut GraphBuilder<'_>) -> ValueId {
    // [tokens, head_dim / 2, 2]
    graph.input("angles", &[TOKENS, FEATURES / HEADS / 2, 2], ElementType::F32)
}

fn activated(graph: &mut GraphBuilder<'_>, activation: Activation) -> BuiltCase {
    let x = tokens(graph, "x");
    Ok(graph.activate(x, activation))
}
