//! How fast a processor is, by kind of work.

use std::collections::BTreeMap;

use protocol::StorageType;
use protocol::profile::{Work, WorkKind};
use serde::Serialize;

use super::efficiency::{HALF_PRODUCTS, INTEGER_PRODUCTS, MEMORY, reached};
use super::{Rate, Source};

/// Operations per second that a host thread is assumed to start: it wakes its workers for each,
/// which takes some microseconds (`executor/src/backend/kernels/workers.rs`).
pub const HOST_STARTS_PER_S: f64 = 1e5;

/// Operations per second that a GPU is assumed to start: a kernel's launch takes about 5 µs
/// (NVIDIA's CUDA C++ Best Practices Guide gives 4 to 10).
pub const CUDA_STARTS_PER_S: f64 = 2e5;

/// The speeds of one processor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speeds {
    /// Products with weights in f32, in operations per second (a multiply-add counts as two).
    pub f32_flops_per_s: Rate,
    /// Products with weights in half precision or shorter, accumulated in f32, without sparsity.
    pub half_flops_per_s: Rate,
    /// Products with weights in bf16, where they are known not to run as others of half precision
    /// do: some CPUs multiply in bf16 and not in f16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_flops_per_s: Option<Rate>,
    /// Products with weights that [have integer products](StorageType::has_integer_products), where
    /// a processor is known to form these; else it decodes them, and then computes as with half
    /// precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integer_flops_per_s: Option<Rate>,
    /// Operations per second of scaled dot products.
    pub attention_flops_per_s: Rate,
    /// Operations per second of 2-D convolutions.
    pub convolution_flops_per_s: Rate,
    /// Bytes per second between the processor and its memory.
    pub memory_bytes_per_s: Rate,
    /// Operations per second that can be started.
    pub starts_per_s: Rate,
    /// By component: how many times longer its calls took than these speeds say, smoothed over past
    /// runs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub corrections: BTreeMap<String, f64>,
}

impl Speeds {
    /// Speeds of a processor of which these are known; attention and convolutions are taken to run
    /// at `half`: of a datasheet too, of which they reach parts of their own.
    pub fn new(f32_flops: Rate, half_flops: Rate, memory_bytes: Rate, starts_per_s: f64) -> Speeds {
        let assumed = match half_flops.source {
            Source::Datasheet => half_flops,
            _ => Rate::assumed(half_flops.value),
        };
        Speeds {
            f32_flops_per_s: f32_flops,
            half_flops_per_s: half_flops,
            bf16_flops_per_s: None,
            integer_flops_per_s: None,
            attention_flops_per_s: assumed,
            convolution_flops_per_s: assumed,
            memory_bytes_per_s: memory_bytes,
            starts_per_s: Rate::assumed(starts_per_s),
            corrections: BTreeMap::new(),
        }
    }

    /// The same with what is known of products of integers.
    pub fn with_integers(self, integer_flops: Option<Rate>) -> Speeds {
        Speeds { integer_flops_per_s: integer_flops, ..self }
    }

    /// Seconds that work takes: to start its operations, then the longer of computing and moving
    /// bytes.
    pub fn seconds(&self, work: &Work) -> f64 {
        let of_kind = |rate: Rate| rate.reaches(reached(work.kind));
        let flops_per_s = match work.kind {
            WorkKind::Matmul(StorageType::F32) | WorkKind::Elementwise => {
                of_kind(self.f32_flops_per_s)
            }
            WorkKind::Matmul(StorageType::BF16) => {
                of_kind(self.bf16_flops_per_s.unwrap_or(self.half_flops_per_s))
            }
            WorkKind::Matmul(storage) if storage.has_integer_products() => {
                match self.integer_flops_per_s {
                    Some(rate) => rate.reaches(INTEGER_PRODUCTS),
                    None => of_kind(self.half_flops_per_s),
                }
            }
            WorkKind::Matmul(_) => of_kind(self.half_flops_per_s),
            WorkKind::Attention => of_kind(self.attention_flops_per_s),
            WorkKind::Convolution => of_kind(self.convolution_flops_per_s),
        };
        let moving = work.moved_bytes.0 as f64 / self.memory_bytes_per_s.reaches(MEMORY);
        self.starting_s(work) + (work.flops / flops_per_s).max(moving)
    }

    /// Seconds of these that it takes to start its operations.
    pub fn starting_s(&self, work: &Work) -> f64 {
        f64::from(work.operations) / self.starts_per_s.value
    }

    /// Operations per second of products with 16-bit weights, as far as they are reached.
    pub fn half_products_per_s(&self) -> f64 {
        self.half_flops_per_s.reaches(HALF_PRODUCTS)
    }

    /// How many times longer a component's calls take here than these speeds say.
    pub fn correction(&self, component: &str) -> f64 {
        self.corrections.get(component).copied().unwrap_or(1.0)
    }

    /// With a part of its cores, and of its memory's rate. Operations start as fast as with all.
    pub fn with_threads(&self, cores: f64, memory: f64) -> Speeds {
        let of_cores = self.scaled(cores);
        let memory_bytes_per_s = self.scaled(memory).memory_bytes_per_s;
        Speeds { memory_bytes_per_s, starts_per_s: self.starts_per_s, ..of_cores }
    }

    /// A share of a whole processor, as a paced virtual device or a part of a GPU has it.
    pub fn scaled(&self, part: f64) -> Speeds {
        let scaled = |rate: Rate| match rate.source {
            Source::Datasheet => Rate::datasheet(rate.value * part),
            _ => Rate::assumed(rate.value * part),
        };
        Speeds {
            f32_flops_per_s: scaled(self.f32_flops_per_s),
            half_flops_per_s: scaled(self.half_flops_per_s),
            bf16_flops_per_s: self.bf16_flops_per_s.map(scaled),
            integer_flops_per_s: self.integer_flops_per_s.map(scaled),
            attention_flops_per_s: scaled(self.attention_flops_per_s),
            convolution_flops_per_s: scaled(self.convolution_flops_per_s),
            memory_bytes_per_s: scaled(self.memory_bytes_per_s),
            starts_per_s: scaled(self.starts_per_s),
            corrections: BTreeMap::new(),
        }
    }
}
