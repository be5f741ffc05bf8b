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
    /// x + scale × y, y added to as many of x's features as it has.
    ScaledAdd {
        /// The factor.
        scale: f32,
        /// The first of x's features that is added to.
        first_feature: usize,
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
    /// Convolution of the last input, NHWC, with weights `[out, in, kernel, kernel]` and bias `[out]`; with a norm before it,
    /// also that one's scale and shift `[in]`. Where it accumulates, the first of two inputs is added to the result.
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

/// Parameters of a convolution, the same in both directions.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvOp {
    /// Height and width of the kernel: 1 or 3.
    pub kernel: usize,
    /// 2 where the input is enlarged by nearest neighbour before the convolution, else 1.
    pub upsample: usize,
    /// From one output pixel to the next.
    pub stride: usize,
    /// Zeros above and to the left.
    pub pad_before: usize,
    /// Zeros below and to the right.
    pub pad_after: usize,
    /// The normalisation of the input, which is done without a result of its own.
    pub norm: Option<ConvNorm>,
    /// Whether the result is added to another value, in whose place it may stand.
    pub accumulate: bool,
    /// Whether it takes at most half of a pixel's features of that pixel alone: then the result may stand in the input's
    /// place.
    pub narrow: bool,
}

/// A group normalisation before a convolution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConvNorm {
    /// Number of groups.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether SiLU follows.
    pub silu: bool,
}

impl ConvOp {
    /// A convolution whose padding keeps the size.
    pub const fn same(kernel: usize) -> ConvOp {
        let pad = (kernel - 1) / 2;
        ConvOp {
            kernel,
            upsample: 1,
            stride: 1,
            pad_before: pad,
            pad_after: pad,
            norm: None,
            accumulate: false,
            narrow: false,
        }
    }

    /// Whether output pixels are functions of the input pixels in the same places.
    pub fn is_of_pixels(&self) -> bool {
        [self.kernel, self.upsample, self.stride] == [1; 3] && self.pad_before + self.pad_after == 0
    }

    /// Length of a side of the output.
    pub fn output_side(&self, side: usize) -> usize {
        let padded = side * self.upsample + self.pad_before + self.pad_after;
        (padded - self.kernel) / self.stride + 1
    }
}

/// The names of all operations, as [`Op::name`] gives them.
pub const OP_NAMES: [&str; 17] = [
    "Embedding",
    "AddPositions",
    "Linear",
    "Activate",
    "Norm",
    "AdaLayerNorm",
    "Add",
    "Mul",
    "GatedAdd",
    "Rope",
    "Attention",
    "RelativePositionBias",
    "ConcatTokens",
    "SliceTokens",
    "Sinusoid",
    "Conv2d",
    "ScaledAdd",
];

impl Op {
    /// Its name, by which a device is said not to do it.
    pub const fn name(&self) -> &'static str {
        match self {
            Op::Embedding => "Embedding",
            Op::AddPositions => "AddPositions",
            Op::Linear(_) => "Linear",
            Op::Activate(_) => "Activate",
            Op::Norm(_) => "Norm",
            Op::AdaLayerNorm { .. } => "AdaLayerNorm",
            Op::Add => "Add",
            Op::Mul => "Mul",
            Op::GatedAdd { .. } => "GatedAdd",
            Op::Rope { .. } => "Rope",
            Op::Attention(_) => "Attention",
            Op::RelativePositionBias { .. } => "RelativePositionBias",
            Op::ConcatTokens => "ConcatTokens",
            Op::SliceTokens { .. } => "SliceTokens",
            Op::Sinusoid => "Sinusoid",
            Op::Conv2d(_) => "Conv2d",
            Op::ScaledAdd { .. } => "ScaledAdd",
        }
    }

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
            | Op::ScaledAdd { .. }
            | Op::Rope { .. } => true,
            Op::Conv2d(conv) => conv.accumulate || conv.narrow,
            Op::Embedding
            | Op::Linear(_)
            | Op::Attention(_)
            | Op::RelativePositionBias { .. }
            | Op::ConcatTokens
            | Op::SliceTokens { .. }
            | Op::Sinusoid => false,
        }
    }
}
