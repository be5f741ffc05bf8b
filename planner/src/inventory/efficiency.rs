//! What programs reach of a GPU's datasheet, by kind of work: data, each figure with its source.
//!
//! A datasheet states what the arithmetic units and the memory could do at best. Until a device is
//! measured, its figures are multiplied by these.
//!
//! They are fitted to published times of the steps and decodes in docs/planning.md, where models
//! and programs are named. A step of the DiT of 12 billion parameters there is 59.5 TFLOP of
//! products, 14.9 TFLOP of attention and some 64 GB of memory traffic. A whole step does not tell
//! its parts apart: how it is divided among them is assumed where nothing else is said.

use protocol::StorageType;
use protocol::profile::WorkKind;

/// A part of a datasheet's figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reached {
    /// The part, above 0 and at most 1.
    pub part: f64,
    /// Where it comes from.
    pub from: &'static str,
}

/// Products with 16-bit weights.
pub const HALF_PRODUCTS: Reached = Reached {
    part: 0.78,
    from: "fitted to a step in bf16: a GeForce RTX 4090 0.65 to 0.75 s (ComfyUI), an H100 0.128 to \
           0.154 s (SGLang), an A40 0.9 s (ComfyUI)",
};

/// Products with 8-bit floats, which are widened first.
pub const BYTE_PRODUCTS: Reached = Reached {
    part: 0.70,
    from: "4.21 steps a second in FP8 beside 4.53 in BF16 on a GeForce RTX 5090 in ComfyUI, at a \
           size that is not told (dev.to, jovan_chan: ComfyUI NVFP4 in 2026)",
};

/// Products with quantised blocks, which are decoded first.
pub const BLOCK_PRODUCTS: Reached = Reached {
    part: 0.70,
    from: "680 to 690 TFLOP/s in Q8_0, Q4_K and Q6_K beside 738 to 814 in BF16 with cuBLASLt on an \
           H100, and 283 to 359 beside 293 to 373 without it (docs/gpu-runs.md)",
};

/// Products of bytes, of a rate for bytes.
pub const INTEGER_PRODUCTS: Reached = Reached {
    part: 0.63,
    from: "counted: 16 cycles of the tensor cores over 13.6 issue slots on a GeForce of 12.0, if \
           schedulers issue in 0.57 of all cycles as they do on an H100, and weights and \
           activations become bytes in 6 % of the time (docs/decisions/0023-products-of-bytes.md); \
           no GeForce has shown it",
};

/// Products with f32 weights.
pub const F32_PRODUCTS: Reached = Reached { part: 0.78, from: "assumed: as with 16-bit weights" };

/// Attention.
pub const ATTENTION: Reached = Reached {
    part: 0.65,
    from: "FlashAttention-2 (Dao 2023) reaches up to 0.72 of an A100 forward; assumed below it, as \
           heads are few and the last wave of blocks is not full",
};

/// Convolutions.
pub const CONVOLUTION: Reached = Reached {
    part: 0.21,
    from: "fitted to a decode at 1024x1024 on a GeForce RTX 4090, 250 to 300 ms (ComfyUI, \
           diffusers); one on an H200 takes 98 ms (SGLang), twice what is predicted with this",
};

/// The bandwidth of device memory.
pub const MEMORY: Reached =
    Reached { part: 0.80, from: "assumed: long copies reach 0.9, short operations less" };

/// Published times of a step over those that are predicted with these, the least and the most: an
/// L20 in 0.715 s (diffusers, compiled) and an RTX 6000 Ada in 0.575 s (eager PyTorch).
pub const TIMES_SPREAD: [f64; 2] = [0.78, 1.62];

/// What a GPU reaches in work of a kind, where products of bytes have no rate of their own.
pub fn reached(kind: WorkKind) -> Reached {
    match kind {
        WorkKind::Matmul(StorageType::F32) | WorkKind::Elementwise => F32_PRODUCTS,
        WorkKind::Matmul(StorageType::F16 | StorageType::BF16) => HALF_PRODUCTS,
        WorkKind::Matmul(StorageType::F8E4M3 | StorageType::F8E5M2) => BYTE_PRODUCTS,
        WorkKind::Matmul(_) => BLOCK_PRODUCTS,
        WorkKind::Attention => ATTENTION,
        WorkKind::Convolution => CONVOLUTION,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_parts_with_a_source() {
        let storage = [StorageType::F32, StorageType::BF16, StorageType::F8E4M3, StorageType::Q8_0];
        let kinds = storage.map(WorkKind::Matmul).into_iter().chain([
            WorkKind::Attention,
            WorkKind::Convolution,
            WorkKind::Elementwise,
        ]);
        for Reached { part, from } in kinds.map(reached).chain([MEMORY, INTEGER_PRODUCTS]) {
            assert!(part > 0.0 && part <= 1.0 && !from.is_empty(), "{part}: {from}");
        }
        // What is decoded first is never faster than what is not.
        let parts = [BLOCK_PRODUCTS, BYTE_PRODUCTS, HALF_PRODUCTS].map(|reached| reached.part);
        assert!(parts.is_sorted(), "{parts:?}");
        let [fast, slow] = TIMES_SPREAD;
        assert!(fast < 1.0 && slow > 1.0);
    }
}
