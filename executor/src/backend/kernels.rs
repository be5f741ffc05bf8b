//! The CPU kernels: what a `host` backend, and a virtual device, computes with.
//!
//! Activations are `f32`, row-major: `[batch, tokens, features]`, images `[batch, height, width,
//! channels]`. Weights are [`WeightView`](crate::weights::view::WeightView)s in their storage type,
//! wherever they lie, and are never widened whole: a panel at a time goes through a worker's
//! scratch.
//!
//! Not here: which kernel a graph node needs, where its buffers lie, what a job costs.
//!
//! Invariants:
//! - A kernel allocates nothing. What it needs beside its operands is `scratch`, whose length its
//!   companion `*_scratch_len` tells from shapes alone.
//! - Each element of a result is computed by one task, in an order of its own: the number of
//!   workers never changes a bit of it.
//! - Shapes are the caller's promise. A wrong one is a bug, and is asserted.

mod cores;
mod pool;
mod workers;

mod attention;
mod bf16;
mod conv;
mod elementwise;
mod group_norm;
mod integer;
mod matmul;
mod modulated_norm;
mod narrow;
mod norm;
mod pad_tokens;
mod rope_halves;
mod tokens;

mod byte_lanes;
mod bytes;
#[cfg(target_arch = "x86_64")]
mod bytes_x86;
mod dot;
mod exp2;
mod grid;
mod lanes;
mod lines_ahead;
mod math;
mod outer;
mod pack;
mod panel;
mod quantise;
mod simd;
mod simd_portable;
#[cfg(target_arch = "x86_64")]
mod simd_x86;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod transpose;
mod unpack;
mod widen;

#[cfg(test)]
mod testing;

pub use attention::{AttentionShape, attention, attention_scratch_len, masked_attention};
pub use bf16::bf16_linear;
pub use conv::{ConvShape, Filters, InputNorm, bf16_conv2d, conv2d, conv2d_scratch_len};
pub use elementwise::{activate, add, add_rows, gated_add, mul, rope, scaled_add};
pub use group_norm::{GroupNormShape, group_norm, group_norm_scratch_len};
pub use integer::{has_integer_products, integer_linear, integer_linear_scratch_len};
pub use matmul::{Columns, LinearKernel, LinearShape, linear, linear_scratch_len};
pub use modulated_norm::{gated_norm_add, modulated_scratch_len, scaled_norm};
pub use narrow::{narrow, narrow_scratch_len};
pub use norm::{Modulation, ada_layer_norm, layer_norm, rms_norm};
pub use pad_tokens::pad_tokens;
pub use rope_halves::rope_halves;
pub use simd::{ISA_VARIABLE, Isa};
pub use tokens::{concat_tokens, embedding, relative_position_bias, sinusoid, slice_tokens};
pub use workers::{Workers, WorkersError};
