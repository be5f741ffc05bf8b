//! The closed set of operations.
//!
//! Shapes are written with the outermost dimension first. An operation that can overwrite its first
//! input says so by [`Op::in_place`]; whether it does is the schedule's decision.

/// What a node computes. `x`, `y` are its inputs in order, `w` its weights in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Rows of a table by id: x `[batch, tokens]` of ids, w `[vocabulary, features]`.
    Embedding,
    /// Adds the table's first rows to each batch item: x `[batch, tokens, features]`, w `[tokens_max, features]`.
    AddPositions,
    /// Matrix product with weights `[out, in]`, bias `[out]` if there is a second weight, then the
    /// activation. Several inputs are read as if concatenated along features.
    Linear(Activation),
    /// An activation alone.
    Activate(Activation),
    /// Normalisation of each row.
    Norm(Normalization),
    /// Layer normalisation without weights, then × (1 + scale) + shift by chunks of y
    /// `[batch, chunks × features]`.
    AdaLayerNorm {
        /// Added to the variance.
        eps: f32,
        /// Index of the chunk that is added.
        shift_chunk: usize,
        /// Index of the chunk that scales.
        scale_chunk: usize,
    },
    /// x + y.
    Add,
    /// x × y.
    Mul,
    /// x + gate × y, the gate a chunk of the third input `[batch, chunks × features]`.
    GatedAdd {
        /// Index of the chunk.
        gate_chunk: usize,
    },
    /// Rotates pairs of neighbours in each head by y `[tokens, head_dim / 2, 2]` (cosine, sine).
    Rope {
        /// Number of heads in x's features.
        heads: usize,
    },
    /// Scaled dot-product attention over q, k, v `[batch, tokens, heads × head_dim]`; a fourth input
    /// `[heads, 2 × tokens - 1]` is added to the scores by distance.
    Attention(AttentionOp),
    /// T5's table of biases by distance: no inputs, w `[buckets, heads]`, result `[heads, 2 × tokens - 1]`.
    RelativePositionBias {
        /// Distances beyond this share a bucket.
        max_distance: usize,
    },
    /// `[batch, a, features]` and `[batch, b, features]` become `[batch, a + b, features]`.
    ConcatTokens,
    /// Some tokens of each batch item.
    SliceTokens {
        /// The first token taken.
        from: usize,
    },
    /// Sines and cosines of x `[batch]`, as `[batch, features]`.
    Sinusoid,
    /// Convolution of NHWC values with weights `[out, in, kernel, kernel]` and bias `[out]`.
    Conv2d(ConvOp),
}

/// A function of each element, applied after a linear layer's bias or in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x
    None,
    /// x · sigmoid(x)
    Silu,
    /// x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), T5's and Flux's GELU.
    GeluTanh,
    /// x/2 · (1 + erf(x/√2)), the exact GELU.
    GeluErf,
    /// x · sigmoid(1.702 x), CLIP-L's GELU.
    QuickGelu,
}

/// Which normalisation.
#[derive(Debug, Clone, PartialEq)]
pub enum Normalization {
    /// Mean and variance of each row; w scale and shift `[features]`.
    Layer {
        /// Added to the variance.
        eps: f32,
    },
    /// Root mean square over w's length, which divides the features: whole rows, or each head.
    Rms {
        /// Added to the mean square.
        eps: f32,
    },
    /// Mean and variance of each group of channels over the whole picture; w scale and shift `[channels]`.
    Group {
        /// Number of groups.
        groups: usize,
        /// Added to the variance.
        eps: f32,
        /// Whether SiLU follows.
        silu: bool,
    },
}

/// Parameters of attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionOp {
    /// Number of heads.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Whether a token sees only itself and earlier ones.
    pub causal: bool,
}

/// Parameters of a convolution. Padding keeps the size: `(kernel - 1) / 2` on each side.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvOp {
    /// Height and width of the kernel: 1 or 3.
    pub kernel: usize,
    /// 2 where the input is enlarged by nearest neighbour before the convolution, else 1.
    pub upsample: usize,
}

impl Op {
    /// Whether the result may take the first input's place.
    pub fn in_place(&self) -> bool {
        match self {
            Op::AddPositions
            | Op::Activate(_)
            | Op::Norm(_)
            | Op::AdaLayerNorm { .. }
            | Op::Add
            | Op::Mul
            | Op::GatedAdd { .. }
            | Op::Rope { .. } => true,
            Op::Embedding
            | Op::Linear(_)
            | Op::Attention(_)
            | Op::RelativePositionBias { .. }
            | Op::ConcatTokens
            | Op::SliceTokens { .. }
            | Op::Sinusoid
            | Op::Conv2d(_) => false,
        }
    }
}
