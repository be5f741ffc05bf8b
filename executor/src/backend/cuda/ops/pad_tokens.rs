//! Sequences that are filled up with one token: `pad_tokens.cu`.

use super::elementwise::{TokenShape, row_launch};
use super::{VectorArgument, count};
use crate::backend::cuda::driver::DriverError;
use crate::backend::cuda::launch::{Address, Launcher, StoredWeight};

/// What [`pad_tokens`] reads.
#[derive(Debug, Clone, Copy)]
pub struct PaddedAt {
    /// `[batch, tokens, features]`.
    pub x: Address,
    /// Tokens of each of its sequences.
    pub tokens: usize,
    /// How many of them are known, an i32; [`Address::NONE`] for all.
    pub known: Address,
    /// The token behind them, `[features]`.
    pub padding: StoredWeight,
}

#[derive(Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
struct PadTokensArguments {
    out: Address,
    x: Address,
    known: Address,
    padding: VectorArgument,
    rows: u32,
    out_tokens: u32,
    tokens: u32,
    features: u32,
}

/// The known tokens of each sequence, then the padding: `out` of `shape`.
pub fn pad_tokens(
    on: &Launcher<'_>,
    out: Address,
    operands: PaddedAt,
    shape: TokenShape,
) -> Result<(), DriverError> {
    let PaddedAt { x, tokens, known, padding } = operands;
    let arguments = PadTokensArguments {
        out,
        x,
        known,
        padding: VectorArgument::of(padding),
        rows: shape.rows(),
        out_tokens: count(shape.tokens),
        tokens: count(tokens),
        features: count(shape.features),
    };
    let (grid, block) = row_launch(arguments.rows, arguments.features, 4);
    on.launch("pad_tokens", grid, block, 0, &arguments)
}
