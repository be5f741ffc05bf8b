//! Where the chunks of a block's modulation stand: one projection of the time gives them all, side
//! by side, as `AdaLayerNormZero` of diffusers has them.

/// Places of the chunks that shift and scale a norm's result, and of the gate of what follows.
#[derive(Debug, Clone, Copy)]
pub struct ModulationChunks {
    /// Added after scaling.
    pub shift: usize,
    /// One less than the factor.
    pub scale: usize,
    /// Multiplies what is added to the stream.
    pub gate: usize,
}

/// Chunks of a block with these two.
pub const CHUNKS: usize = 6;

/// Those of attention.
pub const ATTENTION: ModulationChunks = ModulationChunks { shift: 0, scale: 1, gate: 2 };

/// Those of the feed-forward layer.
pub const FEED_FORWARD: ModulationChunks = ModulationChunks { shift: 3, scale: 4, gate: 5 };
