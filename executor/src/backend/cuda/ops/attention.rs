//! Attention: which kernel for a head's size, its grid, and the workspace of the tensor-core ones.
//!
//! Those read queries, keys or values as f16 rows of one head after the other, which a kernel of their own writes to the
//! workspace first; rows of 64 fill a tile, so that no copy asks for the end. Kernels: `attention_*.cu`.

use std::f32::consts::LOG2_E;

use bytemuck::{Pod, Zeroable};
use protocol::Bytes;

use super::Products;
use super::pieces::Pieces;
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher};
use crate::backend::kernels::AttentionShape;

/// The most features of a head: what `attention_exact_512` and `attention_wide_512` take.
pub const HEAD_DIM_MAX: usize = 512;

/// Queries of a block, and rows of a tile of keys, of each of the kernels.
const TILE_ROWS: usize = 64;

/// Threads of a block of `attention_pack`, each of which writes [`PACKED_ELEMENTS`].
const PACK_THREADS: u64 = 256;

/// Elements that a thread of `attention_pack` writes.
const PACKED_ELEMENTS: usize = 8;

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

/// Packed queries, keys and values in a workspace, in bytes from its beginning.
struct Packed {
    queries: Option<u64>,
    keys: u64,
    values: u64,
    bytes: u64,
}

impl Packed {
    fn of(shape: &AttentionShape) -> Packed {
        let (kernel, packs_queries) = half_kernel(shape.head_dim);
        let bytes = |tokens: usize| {
            let rows = shape.batch * shape.heads * tokens.next_multiple_of(TILE_ROWS);
            2 * (rows * kernel.features) as u64
        };
        let mut pieces = Pieces::default();
        let queries = packs_queries.then(|| pieces.take(bytes(shape.query_tokens)));
        let keys = pieces.take(bytes(shape.key_tokens));
        let values = pieces.take(bytes(shape.key_tokens));
        Packed { queries, keys, values, bytes: pieces.bytes() }
    }
}

/// What [`attention`] needs beside its operands. It does not grow with the product of queries and keys.
///
/// # Panics
/// If heads have more than [`HEAD_DIM_MAX`] features.
pub fn attention_workspace_bytes(shape: &AttentionShape, products: Products) -> Bytes {
    match products {
        Products::Exact => Bytes::ZERO,
        Products::Half => Bytes(Packed::of(shape).bytes),
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PackArgs {
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
struct Args {
    operands: Operands,
    query_tokens: u32,
    key_tokens: u32,
    query_rows: u32,
    key_rows: u32,
    heads: u32,
    head_dim: u32,
    causal: u32,
    scale: f32,
}

/// What an attention reads and writes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct Operands {
    /// Queries, f32 `[batch, query_tokens, heads × head_dim]`.
    pub q: Address,
    /// Keys, f32 `[batch, key_tokens, heads × head_dim]`.
    pub k: Address,
    /// Values, as the keys.
    pub v: Address,
    /// Biases by distance, f32 `[heads, query_tokens + key_tokens - 1]`: that of a query and a key at `key - query +
    /// query_tokens - 1`; or [`Operands::NO_BIAS`].
    pub bias: Address,
    /// The result, as the queries. Overlaps none of the others.
    pub out: Address,
}

impl Operands {
    /// In the place of biases.
    pub const NO_BIAS: Address = Address::NONE;
}

/// `out = softmax(scale · q · kᵀ + bias) · v`, head by head. All begin at multiples of 16 bytes. The shape's `query_chunk` has no
/// meaning here. `workspace`: [`attention_workspace_bytes`], at a multiple of 256.
///
/// A query's result depends on neither the other queries nor their number.
///
/// # Panics
/// If heads have more than [`HEAD_DIM_MAX`] features, or the scale is not above 0.
pub fn attention(
    on: &Launcher<'_>,
    shape: &AttentionShape,
    products: Products,
    operands: Operands,
    workspace: Address,
) -> Result<(), DriverError> {
    assert!(shape.scale > 0.0, "the largest product is the largest score");
    assert!(!shape.causal || shape.query_tokens == shape.key_tokens, "causal needs equal tokens");
    let (kernel, operands) = match products {
        Products::Exact => (exact_kernel(shape.head_dim), operands),
        Products::Half => {
            let kernel = half_kernel(shape.head_dim).0;
            (kernel, pack_all(on, shape, kernel, operands, workspace)?)
        }
    };
    let args = Args {
        operands,
        query_tokens: shape.query_tokens as u32,
        key_tokens: shape.key_tokens as u32,
        query_rows: shape.query_tokens.next_multiple_of(TILE_ROWS) as u32,
        key_rows: shape.key_tokens.next_multiple_of(TILE_ROWS) as u32,
        heads: shape.heads as u32,
        head_dim: shape.head_dim as u32,
        causal: u32::from(shape.causal),
        scale: shape.scale * LOG2_E,
    };
    let blocks = shape.query_tokens.div_ceil(TILE_ROWS) as u32;
    let grid = [blocks, shape.heads as u32, shape.batch as u32];
    on.launch(kernel.name, grid, [kernel.threads, 1, 1], 0, &args)
}

/// Packs what the kernel takes packed, and puts it in the operands' place.
fn pack_all(
    on: &Launcher<'_>,
    shape: &AttentionShape,
    kernel: &Kernel,
    operands: Operands,
    workspace: Address,
) -> Result<Operands, DriverError> {
    let packed = Packed::of(shape);
    let mut result = operands;
    result.k = workspace.offset(packed.keys);
    pack(on, shape, kernel, [operands.k, result.k], shape.key_tokens)?;
    result.v = workspace.offset(packed.values);
    pack(on, shape, kernel, [operands.v, result.v], shape.key_tokens)?;
    if let Some(queries) = packed.queries {
        result.q = workspace.offset(queries);
        pack(on, shape, kernel, [operands.q, result.q], shape.query_tokens)?;
    }
    Ok(result)
}

/// Brings queries, keys or values to f16 rows of the kernel's width.
fn pack(
    on: &Launcher<'_>,
    shape: &AttentionShape,
    kernel: &Kernel,
    [source, target]: [Address; 2],
    tokens: usize,
) -> Result<(), DriverError> {
    let rows = tokens.next_multiple_of(TILE_ROWS);
    let pieces = (shape.batch * shape.heads * rows * (kernel.features / PACKED_ELEMENTS)) as u64;
    let args = PackArgs {
        source,
        target,
        pieces,
        tokens: tokens as u32,
        rows: rows as u32,
        heads: shape.heads as u32,
        head_dim: shape.head_dim as u32,
        row_len: kernel.features as u32,
        unused: 0,
    };
    let blocks = pieces.div_ceil(PACK_THREADS) as u32;
    on.launch("attention_pack", [blocks, 1, 1], [PACK_THREADS as u32, 1, 1], 0, &args)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FLUX at 1024 x 1024: 4096 tokens of the picture and 512 of the prompt.
    const DIT: AttentionShape = AttentionShape {
        batch: 1,
        query_tokens: 4608,
        key_tokens: 4608,
        heads: 24,
        head_dim: 128,
        scale: 0.088,
        causal: false,
        query_chunk: 1,
    };

    #[test]
    fn workspaces_hold_keys_and_values_in_16_bits() {
        assert_eq!(attention_workspace_bytes(&DIT, Products::Exact), Bytes::ZERO);
        let half = |shape: AttentionShape| attention_workspace_bytes(&shape, Products::Half).0;
        assert_eq!(half(DIT), 2 * 4608 * 3072 * 2);
        // Rows fill tiles, and heads the next kernel's width.
        let odd = AttentionShape { heads: 2, key_tokens: 77, head_dim: 20, ..DIT };
        assert_eq!(half(odd), 2 * 2 * 128 * 32 * 2);
        // The VAE's one head, with its queries.
        let vae = AttentionShape { heads: 1, head_dim: 512, ..DIT };
        assert_eq!(half(vae), 3 * 4608 * 512 * 2);
    }
}
