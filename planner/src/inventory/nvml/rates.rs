//! How fast a GPU should be, by the facts that NVML tells: cores, clocks, bus width, link.
//!
//! These are what a datasheet states, for plans made before anything was measured; each becomes a
//! `datasheet` rate. A fact that NVML does not tell is replaced by that of a modest GPU.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::Clock;

use crate::inventory::speeds::CUDA_STARTS_PER_S;
use crate::inventory::{Rate, Speeds};

/// f32 operations per second where NVML tells too little: an entry-level GPU of recent years.
pub const MODEST_F32_FLOPS_PER_S: f64 = 5e12;

/// Memory bytes per second where NVML tells too little: a 128-bit bus of GDDR6 at 14 Gbit/s.
pub const MODEST_MEMORY_BYTES_PER_S: f64 = 224e9;

/// The link where NVML tells none: eight lanes, as small cards and laptops have, of the slowest
/// generation in use.
pub const MODEST_LINK: (u32, u32) = (3, 8);

/// The processors of a GPU of which nothing is told.
pub fn modest_speeds() -> Speeds {
    let flops = Rate::assumed(MODEST_F32_FLOPS_PER_S);
    Speeds::new(flops, flops, Rate::assumed(MODEST_MEMORY_BYTES_PER_S), CUDA_STARTS_PER_S)
}

/// The rates of a whole GPU, and its link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GpuRates {
    pub f32_flops_per_s: f64,
    pub half_flops_per_s: f64,
    /// Where products of bytes pay.
    pub integer_flops_per_s: Option<f64>,
    pub memory_bytes_per_s: f64,
    pub link: Link,
}

pub(super) fn read(gpu: &Device<'_>) -> GpuRates {
    let f32_flops_per_s = match (gpu.num_cores(), gpu.max_clock_info(Clock::SM)) {
        // One multiply-add per core and cycle; the clock is in MHz.
        (Ok(cores), Ok(mhz)) if cores > 0 && mhz > 0 => {
            f64::from(cores) * f64::from(mhz) * 1e6 * 2.0
        }
        _ => MODEST_F32_FLOPS_PER_S,
    };
    let memory_bytes_per_s = match (gpu.memory_bus_width(), gpu.max_clock_info(Clock::Memory)) {
        // NVML's memory clock times two is the data rate per pin, for GDDR and HBM alike: 10501 MHz
        // × 2 on 384 bits is the 1008 GB/s that the RTX 4090 is sold with.
        (Ok(bits), Ok(mhz)) if bits > 0 && mhz > 0 => {
            f64::from(bits) / 8.0 * f64::from(mhz) * 1e6 * 2.0
        }
        _ => MODEST_MEMORY_BYTES_PER_S,
    };
    let capability = gpu.cuda_compute_capability().ok();
    let ratio = capability.as_ref().map_or(1.0, |of| half_ratio(of.major, of.minor));
    let integers = capability.and_then(|of| integer_ratio(of.major, of.minor));
    // The maximum: the present link is slower while the GPU idles.
    let link = match (gpu.max_pcie_link_gen(), gpu.max_pcie_link_width()) {
        (Ok(generation), Ok(lanes)) => Link::told(generation, lanes),
        _ => Link::default(),
    };
    GpuRates {
        f32_flops_per_s,
        half_flops_per_s: f32_flops_per_s * ratio,
        integer_flops_per_s: integers.map(|ratio| f32_flops_per_s * ratio),
        memory_bytes_per_s,
        link,
    }
}

/// Dense f16 matrix operations, accumulated in f32, per f32 operation, by compute capability: the
/// quotient of the two rows in NVIDIA's architecture whitepapers (V100 125 : 15.7, RTX 2080 Ti 53.8
/// : 13.4, A100 312 : 19.5, RTX 3080 59.5 : 29.8, RTX 4090 165 : 82.6, H100 989 : 67, B200 2250 :
/// 80, RTX 5090 209 : 105). Professional cards of a generation may reach twice the GeForce figure
/// used here.
pub(super) fn half_ratio(major: i32, minor: i32) -> f64 {
    match (major, minor) {
        (7, 0..=4) => 8.0,
        (7, _) => 4.0,
        (8, 0) => 16.0,
        (8, _) => 2.0,
        (9, _) => 14.0,
        (10..=11, _) => 28.0,
        (12.., _) => 2.0,
        _ => 1.0,
    }
}

/// Dense operations of signed bytes, per f32 operation, on GPUs that multiply quantised weights so
/// and whose kernels were counted (docs/decisions/0023-products-of-bytes.md): the same rows of the
/// whitepapers (RTX 3080 238 : 29.8, RTX 4090 661 : 82.6, RTX 5090 838 : 105). Those of data
/// centres decode such weights.
pub(super) fn integer_ratio(major: i32, minor: i32) -> Option<f64> {
    matches!((major, minor), (8, 6 | 9) | (12.., _)).then_some(8.0)
}

/// A PCI Express link as NVML told it, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link {
    told: Option<(u32, u32)>,
}

impl Link {
    /// A link of `lanes` lanes of a `generation`; figures that no link has count as not told.
    pub fn told(generation: u32, lanes: u32) -> Link {
        let known = lane_bytes_per_s(generation).is_some() && (1..=32).contains(&lanes);
        Link { told: known.then_some((generation, lanes)) }
    }

    /// Bytes per second in one direction that arrive as data.
    ///
    /// A packet of 128 bytes, the usual largest payload, carries 24 more: framing 4 and sequence
    /// number within it, header 16, checksum 4. That leaves 84 %, about what copies from pinned
    /// memory reach.
    pub fn bytes_per_s(self) -> f64 {
        const PAYLOAD_SHARE: f64 = 128.0 / (128.0 + 24.0);
        let (generation, lanes) = self.told.unwrap_or(MODEST_LINK);
        let lane = lane_bytes_per_s(generation).expect("the generation was checked when told");
        lane * f64::from(lanes) * PAYLOAD_SHARE
    }

    /// `gen 4 x16`, where it was told.
    pub fn name(self) -> Option<String> {
        self.told.map(|(generation, lanes)| format!("gen {generation} x{lanes}"))
    }
}

/// Bytes per second of one lane: transfers per second of the PCI Express base specifications 1.0 to
/// 7.0, times the share of data bits: 8 of 10 up to generation 2, 128 of 130 up to 5, 236 of the
/// 256 bytes of a flit from 6 on.
fn lane_bytes_per_s(generation: u32) -> Option<f64> {
    let (transfers_per_s, data_share) = match generation {
        1 => (2.5e9, 8.0 / 10.0),
        2 => (5e9, 8.0 / 10.0),
        3 => (8e9, 128.0 / 130.0),
        4 => (16e9, 128.0 / 130.0),
        5 => (32e9, 128.0 / 130.0),
        6 => (64e9, 236.0 / 256.0),
        7 => (128e9, 236.0 / 256.0),
        _ => return None,
    };
    Some(transfers_per_s * data_share / 8.0)
}
