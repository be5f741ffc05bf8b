//! Operations as launches of kernels: one function for each, with the shapes that it takes.
//!
//! Values begin at multiples of 16 bytes, weights at multiples of 16 too: arenas and regions give
//! both 256. Where a result may take an input's place, the two addresses may be equal. What a
//! count's type cannot hold is a bug of the caller: no plan places it.

pub mod attention;
pub mod conv;
pub mod convert;
pub mod elementwise;
pub mod linear;
pub mod modulated_norm;
pub mod norm;
pub mod pad_tokens;
pub mod rope_halves;
pub mod tokens;

mod pieces;

use protocol::StorageType;

use super::launch::{Address, StoredWeight};
use crate::graph::{ElementType, NodeView};
use crate::schedule::Assignment;

/// The kernel of a family for a storage type, by the names that `EACH_STORAGE` of `decode.cuh`
/// makes.
macro_rules! kernel_of {
    ($family:literal, $storage:expr) => {
        match $storage {
            StorageType::F32 => concat!($family, "_f32"),
            StorageType::F16 => concat!($family, "_f16"),
            StorageType::BF16 => concat!($family, "_bf16"),
            StorageType::F8E4M3 => concat!($family, "_f8_e4m3"),
            StorageType::F8E5M2 => concat!($family, "_f8_e5m2"),
            StorageType::Q8_0 => concat!($family, "_q8_0"),
            StorageType::Q4_0 => concat!($family, "_q4_0"),
            StorageType::Q4_1 => concat!($family, "_q4_1"),
            StorageType::Q5_0 => concat!($family, "_q5_0"),
            StorageType::Q5_1 => concat!($family, "_q5_1"),
            StorageType::Q2K => concat!($family, "_q2_k"),
            StorageType::Q3K => concat!($family, "_q3_k"),
            StorageType::Q4K => concat!($family, "_q4_k"),
            StorageType::Q5K => concat!($family, "_q5_k"),
            StorageType::Q6K => concat!($family, "_q6_k"),
            StorageType::IQ1S => concat!($family, "_iq1_s"),
            StorageType::IQ2XXS => concat!($family, "_iq2_xxs"),
            StorageType::IQ2XS => concat!($family, "_iq2_xs"),
            StorageType::IQ2S => concat!($family, "_iq2_s"),
            StorageType::IQ3XXS => concat!($family, "_iq3_xxs"),
            StorageType::IQ3S => concat!($family, "_iq3_s"),
            StorageType::IQ4NL => concat!($family, "_iq4_nl"),
            StorageType::IQ4XS => concat!($family, "_iq4_xs"),
        }
    };
}
pub(super) use kernel_of;

/// How products are formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// In f32, by the ordinary cores.
    Exact,
    /// Of operands of 16 bits by tensor cores, with sums in f32.
    Half,
}

/// How the products of a node are formed: in f32 where that is asked for, or where its first weight
/// is stored so.
pub fn products(node: NodeView<'_>, assignment: &Assignment) -> Products {
    if assignment.exact_matmul || node.storage(0) == Some(StorageType::F32) {
        Products::Exact
    } else {
        Products::Half
    }
}

/// A value in a GPU's memory.
#[derive(Debug, Clone, Copy)]
pub struct ValueAt {
    /// Where it begins.
    pub address: Address,
    /// What its elements are: f32 unless an operation says that it takes others.
    pub element: ElementType,
}

/// `ElementKind` of `element.cuh`.
///
/// # Panics
/// If these are no activations.
pub(super) fn element_kind(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => 0,
        ElementType::F16 => 1,
        ElementType::BF16 => 2,
        ElementType::I32 => panic!("ids are no activations"),
    }
}

/// Threads of a block where a kernel takes any number.
pub(super) const THREADS: u32 = 256;

/// Threads of a warp.
pub(super) const WARP: u32 = 32;

/// Blocks that keep every multiprocessor busy; kernels that go over more elements have each thread
/// take several.
const BLOCKS_MAX: u64 = 4096;

/// A grid of one dimension for `items`, of which a thread takes one after the other.
pub(super) fn blocks_for(items: u64) -> [u32; 3] {
    [items.div_ceil(u64::from(THREADS)).clamp(1, BLOCKS_MAX) as u32, 1, 1]
}

/// A count as kernels take it.
///
/// # Panics
/// If it is no u32.
#[track_caller]
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).expect("a kernel's counts have 32 bits")
}

/// A bias, or a norm's scale or shift, as kernels take it: `StoredVector` of `vector.cuh`.
#[derive(Debug, Clone, Copy, bytemuck::NoUninit)]
#[repr(C)]
pub(super) struct VectorArgument {
    bytes: Address,
    scale: f32,
    kind: u32,
}

/// Whether kernels read biases and the weights of norms that are stored so.
pub fn reads_vectors_of(storage: StorageType) -> bool {
    !storage.is_blocks()
}

impl VectorArgument {
    /// Where there is no vector.
    pub(super) const NONE: VectorArgument =
        VectorArgument { bytes: Address::NONE, scale: 1.0, kind: 0 };

    /// # Panics
    /// If [`reads_vectors_of`] says no.
    pub(super) fn of(vector: StoredWeight) -> VectorArgument {
        let kind = match vector.storage {
            StorageType::F32 => 0,
            StorageType::F16 => 1,
            StorageType::BF16 => 2,
            StorageType::F8E4M3 => 3,
            StorageType::F8E5M2 => 4,
            blocks => panic!("a vector of {blocks}"),
        };
        VectorArgument { bytes: vector.address, scale: vector.scale, kind }
    }
}
