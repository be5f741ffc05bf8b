//! Limits on what crosses the process border, checked by the sender and again by the receiver.

/// Longest prompt, in bytes of UTF-8. Text encoders read at most some hundred tokens of it.
pub const PROMPT_BYTES_MAX: usize = 64 << 10;

/// Longest path, name or message, in bytes of UTF-8.
pub const STRING_BYTES_MAX: usize = 16 << 10;

/// Most devices in a plan, the host not counted.
pub const DEVICES_MAX: usize = 16;

/// Most components in a model.
pub const COMPONENTS_MAX: usize = 16;

/// Most segments in a component. The largest published DiT has 60 blocks.
pub const SEGMENTS_MAX: usize = 1024;

/// Largest width or height of a picture, in pixels.
pub const SIDE_PIXELS_MAX: u32 = 16_384;

/// Most denoising steps of a job.
pub const STEPS_MAX: u32 = 1000;

/// Most pictures of a job.
pub const BATCH_MAX: u32 = 64;

/// Most items of a denoising step: each picture of a batch in both passes of guidance.
pub const STEP_ITEMS_MAX: u32 = 2 * BATCH_MAX;

/// Up to so many rows the host's kernels multiply in an order of their own: what is computed of a
/// row is the same bits for any number of rows up to this, and the same for any number above.
pub const FEW_ROWS: u32 = 8;

/// Most text tokens of a job.
pub const SEQUENCE_TOKENS_MAX: u32 = 4096;

/// Most worker threads of the host's kernels.
pub const THREADS_MAX: u32 = 1024;

/// Most stream slots on a device.
pub const LOOKAHEAD_MAX: u32 = 64;

/// Most queries that one worker attends with at a time.
pub const ATTENTION_CHUNK_MAX: u32 = 4096;

/// Least speed of a virtual device, as a part of the host kernels': an operation that takes them
/// half a second takes it minutes, in which it cannot be cancelled.
pub const SPEED_MIN: f64 = 1e-3;

/// Most LoRA files of a job.
pub const LORAS_MAX: usize = 16;

/// Most sizes of pieces that a model is measured in at once.
pub const PIECE_SIZES_MAX: usize = 32;

/// Largest weight of a LoRA, of either sign. Useful ones are below 20; a larger one is a mistake.
pub const LORA_WEIGHT_MAX: f32 = 1000.0;

/// Most notices of a job; more are not told.
pub const NOTICES_MAX: usize = 64;

/// Most files that a plan reads.
pub const FILES_MAX: usize = 1 << 14;

/// Largest share of a device in a row split; shares are in proportion.
pub const ROW_SHARE_MAX: u32 = 1 << 20;

/// Most layouts whose sizes are asked at once.
pub const LAYOUTS_MAX: usize = 1024;

/// Most operations that a device is said not to do.
pub const UNSUPPORTED_MAX: usize = 64;

/// Largest memory of a device or of the host, and largest component, in bytes: 1 PiB, above what
/// any machine has, and low enough for every sum of sizes of one plan.
pub const MEMORY_BYTES_MAX: u64 = 1 << 50;

/// Milliseconds between two heartbeats of an executor: several in the shortest time after which its
/// silence is told.
pub const HEARTBEAT_MS: u64 = 500;

/// A message that is too large to be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the {what} is {got} bytes long, more than {limit}; hint: shorten it")]
pub struct TooLong {
    /// Which string.
    pub what: &'static str,
    /// Its length in bytes.
    pub got: usize,
    /// The limit in bytes.
    pub limit: usize,
}
