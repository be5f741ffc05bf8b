//! Attention: which kernel for a head's size, its grid, and the workspace of the tensor-core ones.
//!
//! Those multiply f16. Where a head has just as many features as one of them, it takes queries,
//! keys and values in f16 as they lie ([`reads`]), and what is f32 is written so to the workspace
//! first. For other heads all are f32, and are written there as f16 rows of one head after the
//! other; rows of 64 fill a tile, so that no copy asks for the end. Kernels: `attention_*.cu`.
//!
//! Of f16 as it lies, blocks of more queries give the same bits in less time where there is room
//! for them and enough for them to do ([`takes_tall_blocks`]).

use std::f32::consts::LOG2_E;

use bytemuck::{Pod, Zeroable};
use protocol::Bytes;

use super::pieces::Pieces;
use super::{Products, ValueAt, element_kind};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher};
use crate::backend::kernels::AttentionShape;
use crate::graph::ElementType;

/// The most features of a head: what `attention_exact_512` and `attention_wide_512` take.
pub const HEAD_DIM_MAX: usize = 512;

/// Queries of a block, and rows of a tile of keys, of each of the kernels but [`TALL`].
const TILE_ROWS: usize = 64;

/// Threads of a block of `attention_pack`, each of which writes [`PACKED_ELEMENTS`].
const PACK_THREADS: u64 = 256;

/// Elements that a thread of `attention_pack` writes.
const PACKED_ELEMENTS: u64 = 8;

/// A kernel for heads of up to so many features.
struct Kernel {
    features: usize,
    name: &'static str,
    threads: u32,
}

/// In f32.
const EXACT: [Kernel; 4] = [
    Kernel { features: 64, name: "attention_exact_64", threads: 256 },
    Kernel { features: 128, name: "attention_exact_128", threads: 256 },
    Kernel { features: 256, name: "attention_exact_256", threads: 256 },
    Kernel { features: HEAD_DIM_MAX, name: "attention_exact_512", threads: 256 },
];

/// On tensor cores, with the queries in registers.
const HALF: [Kernel; 4] = [
    Kernel { features: 16, name: "attention_half_16", threads: 128 },
    Kernel { features: 32, name: "attention_half_32", threads: 128 },
    Kernel { features: 64, name: "attention_half_64", threads: 128 },
    Kernel { features: 128, name: "attention_half_128", threads: 128 },
];

/// On tensor cores, of queries, keys and values in f16 as they lie: for heads of exactly so many
/// features.
const DIRECT: [Kernel; 4] = [
    Kernel { features: 16, name: "attention_half_direct_16", threads: 128 },
    Kernel { features: 32, name: "attention_half_direct_32", threads: 128 },
    Kernel { features: 64, name: "attention_half_direct_64", threads: 128 },
    Kernel { features: 128, name: "attention_half_direct_128", threads: 128 },
];

/// As the one of [`DIRECT`] for as many features, bit for bit, in blocks of [`TALL_QUERIES`].
const TALL: Kernel = Kernel { features: 128, name: "attention_tall_128", threads: 128 };

/// Queries of a block of [`TALL`].
const TALL_QUERIES: usize = 128;

/// Shared memory of a block of [`TALL`]: its queries, a tile of keys and one of values. It is
/// `SHARED_BYTES` of the kernel's source.
const TALL_SHARED_BYTES: u32 = 64 << 10;

/// Blocks of [`TALL`] that a multiprocessor must run together. One alone has half of the warps of
/// the two blocks of [`DIRECT`] in whose place it would run.
const TALL_BLOCKS: u32 = 2;

/// Shared memory that each block takes for the system from capability 8.0 on (CUDA occupancy
/// calculator).
const SYSTEM_SHARED_BYTES: u32 = 1 << 10;

/// On tensor cores, with packed queries.
const WIDE: [Kernel; 2] = [
    Kernel { features: 256, name: "attention_wide_256", threads: 256 },
    Kernel { features: HEAD_DIM_MAX, name: "attention_wide_512", threads: 256 },
];

/// The first kernel that is wide enough.
fn kernel_of(kernels: &'static [Kernel], head_dim: usize) -> Option<&'static Kernel> {
    kernels.iter().find(|kernel| kernel.features >= head_dim)
}

/// The kernel of a head's size in f32.
fn exact_kernel(head_dim: usize) -> &'static Kernel {
    kernel_of(&EXACT, head_dim).expect("a head has at most HEAD_DIM_MAX features")
}

/// The kernel of a head's size on tensor cores, and whether it takes packed queries.
fn half_kernel(head_dim: usize) -> (&'static Kernel, bool) {
    let wide = || Some((kernel_of(&WIDE, head_dim)?, true));
    let narrow = kernel_of(&HALF, head_dim).map(|kernel| (kernel, false));
    narrow.or_else(wide).expect("a head has at most HEAD_DIM_MAX features")
}

/// The kernel that takes f16 as it lies, where a head's size has one.
fn direct_kernel(head_dim: usize) -> Option<&'static Kernel> {
    DIRECT.iter().find(|kernel| kernel.features == head_dim)
}

/// Whether [`attention`] of f16 as it lies takes blocks of 128 queries: where the GPU's
/// multiprocessors have room for two of them, and there are enough for all. It changes no bit.
pub fn takes_tall_blocks(on: &Launcher<'_>, shape: &AttentionShape) -> bool {
    let has_room =
        on.multiprocessor_shared_bytes() >= TALL_BLOCKS * (TALL_SHARED_BYTES + SYSTEM_SHARED_BYTES);
    let blocks = shape.query_tokens.div_ceil(TALL_QUERIES) * shape.heads * shape.batch;
    let fills = blocks as u64 >= u64::from(TALL_BLOCKS * on.multiprocessors());
    shape.head_dim == TALL.features && has_room && (fills || on.prefers_tall_attention())
}

/// What [`attention`] rounds queries, keys and values to, and best gets them as: f16 where it can
/// read that as it lies.
pub fn reads(shape: &AttentionShape, products: Products) -> ElementType {
    match products {
        Products::Half if direct_kernel(shape.head_dim).is_some() => ElementType::F16,
        Products::Half | Products::Exact => ElementType::F32,
    }
}

/// How values of f32 become rows of f16 in a workspace.
struct PackedForm {
    tokens: usize,
    heads: usize,
    head_dim: usize,
    rows: usize,
    row_len: usize,
}

impl PackedForm {
    fn bytes(&self, batch: usize) -> u64 {
        2 * (batch * self.heads * self.rows * self.row_len) as u64
    }
}

/// Queries, keys and values that are packed into a workspace: how, and where, in bytes from its
/// beginning.
struct PackedInputs {
    operands: [Option<(PackedForm, u64)>; 3],
    bytes: u64,
}

impl PackedInputs {
    fn of(shape: &AttentionShape, elements: [ElementType; 3]) -> PackedInputs {
        let tokens = [shape.query_tokens, shape.key_tokens, shape.key_tokens];
        let heads = [shape.heads, shape.kv_heads, shape.kv_heads];
        let mut pieces = Pieces::default();
        let operands = std::array::from_fn(|index| {
            let (tokens, heads) = (tokens[index], heads[index]);
            let features = heads * shape.head_dim;
            let form = match (direct_kernel(shape.head_dim), elements[index]) {
                (Some(_), ElementType::F16) => return None,
                (Some(_), ElementType::F32) => PackedForm {
                    tokens,
                    heads: 1,
                    head_dim: features,
                    rows: tokens,
                    row_len: features,
                },
                (None, ElementType::F32) => {
                    let (kernel, packs_queries) = half_kernel(shape.head_dim);
                    if index == 0 && !packs_queries {
                        return None;
                    }
                    PackedForm {
                        tokens,
                        heads,
                        head_dim: shape.head_dim,
                        rows: tokens.next_multiple_of(TILE_ROWS),
                        row_len: kernel.features,
                    }
                }
                (_, element) => panic!("operand {index} is of {element:?}"),
            };
            let place = pieces.take(form.bytes(shape.batch));
            Some((form, place))
        });
        PackedInputs { operands, bytes: pieces.bytes() }
    }
}

/// What [`attention`] needs beside its operands, where queries, keys and values are of `elements`.
/// It does not grow with the product of queries and keys.
///
/// # Panics
/// If heads have more than [`HEAD_DIM_MAX`] features, or an element is none of those of
/// [`AttentionOperands`].
pub fn attention_workspace_bytes(
    shape: &AttentionShape,
    products: Products,
    elements: [ElementType; 3],
) -> Bytes {
    match products {
        Products::Exact => Bytes::ZERO,
        Products::Half => Bytes(PackedInputs::of(shape, elements).bytes),
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PackRowsArguments {
    source: Address,
    target: Address,
    pieces: u64,
    tokens: u32,
    rows: u32,
    heads: u32,
    head_dim: u32,
    row_len: u32,
    unused: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AttentionArguments {
    q: Address,
    k: Address,
    v: Address,
    bias: Address,
    out: Address,
    known: Address,
    query_tokens: u32,
    key_tokens: u32,
    query_rows: u32,
    key_rows: u32,
    heads: u32,
    head_dim: u32,
    causal: u32,
    scale: f32,
    element: u32,
    kv_heads: u32,
}

/// What an attention reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct AttentionOperands {
    /// Queries `[batch, query_tokens, heads × head_dim]`, keys `[batch, key_tokens, kv_heads ×
    /// head_dim]`, and values as the keys: each of f32, or of what [`reads`] says.
    pub qkv: [ValueAt; 3],
    /// Biases by distance, f32 `[heads, query_tokens + key_tokens - 1]`: that of a query and a key
    /// at `key - query + query_tokens - 1`; or [`AttentionOperands::NO_BIAS`].
    pub bias: Address,
    /// How many of each sequence's keys are seen, from the first one on, an i32 of at least 1;
    /// [`Address::NONE`] for all.
    pub known: Address,
    /// The result, as the queries, of f32, or, of products in 16 bits, bf16. Overlaps none of the
    /// others.
    pub out: ValueAt,
}

impl AttentionOperands {
    /// In the place of biases.
    pub const NO_BIAS: Address = Address::NONE;
}

/// `out = softmax(scale · q · kᵀ + bias) · v`, head by head. All begin at multiples of 16 bytes.
/// The shape's `query_chunk` and `rounds` have no meaning here. `workspace`:
/// [`attention_workspace_bytes`], at a multiple of 256.
///
/// A query's result depends on neither the other queries nor their number; and not on the elements
/// either, if what f32 holds is rounded to f16, the largest number in place of a larger one.
///
/// # Panics
/// If heads have more than [`HEAD_DIM_MAX`] features, the scale is not above 0, or an element is
/// none of those of [`AttentionOperands`].
pub fn attention(
    on: &Launcher<'_>,
    shape: &AttentionShape,
    products: Products,
    operands: AttentionOperands,
    workspace: Address,
) -> Result<(), DriverError> {
    assert!(shape.scale > 0.0, "the largest product is the largest score");
    assert!(shape.heads.is_multiple_of(shape.kv_heads), "heads share keys in equal groups");
    assert!(!shape.causal || shape.query_tokens == shape.key_tokens, "causal needs equal tokens");
    match (products, operands.out.element) {
        (_, ElementType::F32) | (Products::Half, ElementType::BF16) => {}
        (_, element) => panic!("a result of {element:?}"),
    }
    let small = |kernel| (kernel, TILE_ROWS, 0);
    let (kernel, queries, shared_bytes) = match (products, direct_kernel(shape.head_dim)) {
        (Products::Exact, _) => small(exact_kernel(shape.head_dim)),
        (Products::Half, Some(_)) if takes_tall_blocks(on, shape) => {
            (&TALL, TALL_QUERIES, TALL_SHARED_BYTES)
        }
        (Products::Half, Some(kernel)) => small(kernel),
        (Products::Half, None) => small(half_kernel(shape.head_dim).0),
    };
    let elements = operands.qkv.map(|operand| operand.element);
    let mut qkv = operands.qkv.map(|operand| operand.address);
    match products {
        Products::Exact => assert_eq!(elements, [ElementType::F32; 3], "in f32"),
        Products::Half => {
            let packed = PackedInputs::of(shape, elements).operands;
            for (operand, packed) in qkv.iter_mut().zip(packed) {
                let Some((form, place)) = packed else { continue };
                pack(on, shape, &form, [*operand, workspace.offset(place)])?;
                *operand = workspace.offset(place);
            }
        }
    }
    let [q, k, v] = qkv;
    let args = AttentionArguments {
        q,
        k,
        v,
        bias: operands.bias,
        out: operands.out.address,
        known: operands.known,
        query_tokens: shape.query_tokens as u32,
        key_tokens: shape.key_tokens as u32,
        query_rows: shape.query_tokens.next_multiple_of(TILE_ROWS) as u32,
        key_rows: shape.key_tokens.next_multiple_of(TILE_ROWS) as u32,
        heads: shape.heads as u32,
        head_dim: shape.head_dim as u32,
        causal: u32::from(shape.causal),
        scale: shape.scale * LOG2_E,
        element: element_kind(operands.out.element),
        kv_heads: shape.kv_heads as u32,
    };
    let blocks = shape.query_tokens.div_ceil(queries) as u32;
    let grid = [blocks, shape.heads as u32, shape.batch as u32];
    on.launch(kernel.name, grid, [kernel.threads, 1, 1], shared_bytes, &args)
}

/// Brings queries, keys or values to rows of f16.
fn pack(
    on: &Launcher<'_>,
    shape: &AttentionShape,
    form: &PackedForm,
    [source, target]: [Address; 2],
) -> Result<(), DriverError> {
    let pieces = form.bytes(shape.batch) / (2 * PACKED_ELEMENTS);
    let args = PackRowsArguments {
        source,
        target,
        pieces,
        tokens: form.tokens as u32,
        rows: form.rows as u32,
        heads: form.heads as u32,
        head_dim: form.head_dim as u32,
        row_len: form.row_len as u32,
        unused: 0,
    };
    let blocks = pieces.div_ceil(PACK_THREADS) as u32;
    on.launch("attention_pack", [blocks, 1, 1], [PACK_THREADS as u32, 1, 1], 0, &args)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A DiT at 1024 x 1024: 4096 tokens of the picture and 512 of the prompt.
    const DIT: AttentionShape = AttentionShape {
        batch: 1,
        query_tokens: 4608,
        key_tokens: 4608,
        heads: 24,
        kv_heads: 24,
        head_dim: 128,
        scale: 0.088,
        causal: false,
        query_chunk: 1,
        rounds: false,
    };

    #[test]
    fn workspaces_hold_keys_and_values_in_16_bits() {
        let (f32s, f16s) = ([ElementType::F32; 3], [ElementType::F16; 3]);
        let bytes =
            |shape, products, elements| attention_workspace_bytes(&shape, products, elements).0;
        assert_eq!(bytes(DIT, Products::Exact, f32s), 0);
        assert_eq!(bytes(DIT, Products::Half, f16s), 0);
        let value = 4608 * 3072 * 2;
        assert_eq!(bytes(DIT, Products::Half, f32s), 3 * value);
        let values_in_f32 = [ElementType::F16, ElementType::F16, ElementType::F32];
        assert_eq!(bytes(DIT, Products::Half, values_in_f32), value);
        // Rows fill tiles, and heads the next kernel's width.
        let odd = AttentionShape { heads: 2, kv_heads: 2, key_tokens: 77, head_dim: 20, ..DIT };
        assert_eq!(bytes(odd, Products::Half, f32s), 2 * 2 * 128 * 32 * 2);
        // Keys and values of fewer heads.
        let grouped = AttentionShape { kv_heads: 8, ..DIT };
        assert_eq!(bytes(grouped, Products::Half, f32s), value + 2 * value / 3);
        // The VAE's one head, with its queries.
        let vae = AttentionShape { heads: 1, kv_heads: 1, head_dim: 512, ..DIT };
        assert_eq!(bytes(vae, Products::Half, f32s), 3 * 4608 * 512 * 2);
    }

    #[test]
    fn heads_of_a_kernels_width_are_read_in_16_bits() {
        let of = |head_dim, products| reads(&AttentionShape { head_dim, ..DIT }, products);
        for head_dim in [16, 32, 64, 128] {
            assert_eq!(of(head_dim, Products::Half), ElementType::F16);
            assert_eq!(of(head_dim, Products::Exact), ElementType::F32);
        }
        for head_dim in [1, 8, 40, 96, 256, 512] {
            assert_eq!(of(head_dim, Products::Half), ElementType::F32);
        }
    }
}
