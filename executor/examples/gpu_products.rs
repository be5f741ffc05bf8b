//! The rate of our products on the first GPU, at the shapes of FLUX.1's DiT at 1024x1024, in bf16
//! and two types in blocks:
//!
//! `cargo run --release -p executor --example gpu_products [--bytes] [ROWSxINxOUT:TYPE ...]`
//!
//! With `--bytes` quantised weights are multiplied as bytes, also where that does not pay.
//!
//! Prints a JSON object for each shape: the least milliseconds of some turns by events of the
//! stream, several products in each. Activations are in bf16 where the layer reads them so, results
//! in f32. On a simulated GPU the times mean nothing.

use std::error::Error;
use std::sync::Arc;

use executor::backend::cuda::buffer::Buffer;
use executor::backend::cuda::driver::Driver;
use executor::backend::cuda::gpu::{self, Gpu};
use executor::backend::cuda::launch::{Launcher, StoredWeight};
use executor::backend::cuda::ops::ValueAt;
use executor::backend::cuda::ops::linear::{
    Linear, PART_BYTES_MAX, linear, linear_workspace_bytes, reads,
};
use executor::backend::cuda::stream::{Event, Stream};
use executor::backend::kernels::{Columns, LinearShape};
use executor::graph::{Activation, ElementType};
use protocol::StorageType;

/// 4096 tokens of the picture and 512 of text: width 3072, MLP 12288, what single blocks join and
/// split, and a modulation.
const SHAPES: [&str; 8] = [
    "4608x3072x3072:bf16",
    "4608x3072x12288:bf16",
    "4608x12288x3072:bf16",
    "4608x3072x21504:bf16",
    "4608x15360x3072:bf16",
    "1x3072x18432:bf16",
    "4608x3072x12288:q8_0",
    "4608x3072x12288:q4_k",
];

/// Products within a turn, so that starting them costs little beside them.
const PRODUCTS: usize = 10;

/// Turns that are measured, after one that is not.
const TURNS: usize = 5;

/// A product `[rows, inner] · [outer, inner]ᵀ`.
struct Shape {
    rows: usize,
    inner: usize,
    outer: usize,
    storage: StorageType,
}

impl Shape {
    fn parse(text: &str) -> Option<Shape> {
        let (sides, storage) = text.split_once(':')?;
        let storage = StorageType::ALL.into_iter().find(|known| known.name() == storage)?;
        let sides: Vec<usize> = sides.split('x').map(str::parse).collect::<Result<_, _>>().ok()?;
        let &[rows, inner, outer] = sides.as_slice() else { return None };
        (sides.iter().all(|&side| side > 0)).then_some(Shape { rows, inner, outer, storage })
    }
}

/// Bytes without a pattern, each 16-bit word of them a bf16 or f16 of magnitude below 1.
fn random_bytes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Of each high byte the sign, and an exponent of a few times 2^-7.
        (state & 0x83ff_83ff_83ff_83ff) | 0x3c00_3c00_3c00_3c00
    };
    let mut bytes: Vec<u8> = (0..count.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    bytes.truncate(count);
    bytes
}

fn least_ms(
    gpu: &Arc<Gpu>,
    stream: &Stream,
    shape: &Shape,
    bytes: bool,
) -> Result<f32, Box<dyn Error>> {
    let Shape { rows, inner, outer, storage } = *shape;
    let kernels = Arc::clone(gpu.kernels());
    let weight_bytes = storage.bytes((outer * inner) as u64).as_usize();
    let weight = Buffer::of(stream, &random_bytes(weight_bytes))?;
    let sides = LinearShape { rows, in_features: &[inner], out_features: outer };
    let input_element = reads(&sides, storage, false);
    // An f32 is of two such halves.
    let input_bytes = input_element.bytes() as usize * rows * inner;
    let input = Buffer::of(stream, &random_bytes(input_bytes))?;
    let out = Buffer::of(stream, &vec![0; 4 * rows * outer])?;
    let workspace_bytes = linear_workspace_bytes(&sides, storage, false, input_element).as_usize();
    let workspace = Buffer::of(stream, &vec![0; workspace_bytes.max(1)])?;
    let layer = Linear {
        inputs: &[(input.address(), inner)],
        input_element,
        rows,
        weight: StoredWeight { address: weight.address(), storage, scale: 1.0 },
        out_features: outer,
        bias: None,
        activation: Activation::None,
        out: ValueAt { address: out.address(), element: ElementType::F32 },
        columns: Columns { stride: outer, from: 0 },
        exact: false,
        part_bytes_max: PART_BYTES_MAX,
        workspace: workspace.address(),
    };
    let mut times_ms = Vec::new();
    for _ in 0..=TURNS {
        let (start, end) = (Event::new(gpu, true)?, Event::new(gpu, true)?);
        let launcher = Launcher::new(stream, &kernels);
        let launcher = if bytes { launcher.with_bytes() } else { launcher };
        stream.record(&start)?;
        for _ in 0..PRODUCTS {
            linear(&launcher, &layer)?;
        }
        stream.record(&end)?;
        end.synchronize()?;
        times_ms.push(end.ms_since(&start)? / PRODUCTS as f32);
    }
    Ok(times_ms[1..].iter().copied().fold(f32::INFINITY, f32::min))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut asked: Vec<String> = std::env::args().skip(1).collect();
    let bytes = asked.first().is_some_and(|first| first == "--bytes");
    asked.drain(..usize::from(bytes));
    if asked.is_empty() {
        asked = SHAPES.map(str::to_owned).to_vec();
    }
    let driver = Driver::get()?;
    let gpus = gpu::list(driver)?;
    let first = gpus.first().ok_or("the driver shows no GPU")?;
    let gpu = Gpu::open(driver, first)?;
    let stream = Stream::new(&gpu, "compute", None)?;
    for text in &asked {
        let shape = Shape::parse(text).ok_or_else(|| format!("{text}: not ROWSxINxOUT:TYPE"))?;
        let ms = f64::from(least_ms(&gpu, &stream, &shape, bytes)?);
        let flops = 2.0 * shape.rows as f64 * shape.inner as f64 * shape.outer as f64;
        let line = serde_json::json!({
            "shape": text, "ms": ms, "tflops": flops / ms / 1e9,
        });
        println!("{line}");
    }
    Ok(())
}
