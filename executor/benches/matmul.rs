//! Rates of matrix products in GFLOP/s, with the machine's peaks and `gemm` beside them.
//!
//! `cargo bench -p executor --bench matmul -- [--threads N] [--seconds S] [--shape ROWSxINxOUT] [NAME]...` runs the
//! cases whose name contains a NAME, all without one, and prints a line of JSON for each. `scripts/bench_kernels.py` runs this in turns with
//! torch and prints the ratios. `BERTH_ISA` chooses the instruction set.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use executor::backend::kernels::{
    Columns, Isa, LinearShape, Workers, integer_linear, integer_linear_scratch_len, linear,
    linear_scratch_len,
};
use executor::graph::Activation;
use executor::weights::view::WeightView;
use half::{bf16, f16};
use protocol::StorageType;

#[path = "matmul/peaks.rs"]
mod peaks;

/// Rows, features in, features out: linear layers of FLUX.1 at 256 and 512 pixels, both ways through its MLP, and a
/// modulation.
const SHAPES: [[usize; 3]; 4] =
    [[512, 3072, 3072], [1024, 3072, 12288], [1024, 12288, 3072], [1, 3072, 18432]];

/// Types that are measured; those without integer products are decoded.
const STORAGES: [StorageType; 11] = [
    StorageType::F32,
    StorageType::F16,
    StorageType::BF16,
    StorageType::Q8_0,
    StorageType::Q4_0,
    StorageType::Q4_1,
    StorageType::Q5_0,
    StorageType::Q5_1,
    StorageType::Q4K,
    StorageType::Q5K,
    StorageType::Q6K,
];

struct Options {
    threads: usize,
    least: Duration,
    shapes: Vec<[usize; 3]>,
    exact_names: bool,
    names: Vec<String>,
}

impl Options {
    fn parse() -> Result<Options, Box<dyn Error>> {
        let least = Duration::from_secs(1);
        let mut options = Options {
            threads: 1,
            least,
            shapes: Vec::new(),
            exact_names: false,
            names: Vec::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--bench" => {}
                "--exact-names" => options.exact_names = true,
                "--threads" => options.threads = arguments.next().ok_or("a count")?.parse()?,
                "--seconds" => {
                    let seconds = arguments.next().ok_or("seconds")?.parse()?;
                    options.least = Duration::from_secs_f64(seconds);
                }
                "--shape" => {
                    let sizes = arguments.next().ok_or("sizes")?;
                    let sizes = sizes.split('x').map(str::parse).collect::<Result<Vec<_>, _>>()?;
                    let shape = sizes.try_into().map_err(|_| "a shape is ROWSxINxOUT")?;
                    options.shapes.push(shape);
                }
                _ => options.names.push(argument),
            }
        }
        if options.shapes.is_empty() {
            options.shapes = SHAPES.to_vec();
        }
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        let is = |wanted: &String| {
            if self.exact_names { name == wanted } else { name.contains(wanted.as_str()) }
        };
        self.names.is_empty() || self.names.iter().any(is)
    }

    /// Runs a case for a while and prints its best rate: whatever else the machine does makes it slower only.
    fn measure(&self, name: &str, operations: f64, mut run: impl FnMut()) {
        run();
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        while begin.elapsed() < self.least {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
        }
        let rate = operations / best / 1e9;
        let isa = Isa::best();
        println!(
            r#"{{"case": "{name}", "isa": "{isa}", "gflops": {rate:.2}, "ms": {:.4}}}"#,
            best * 1e3
        );
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse()?;
    for (name, operations, run) in peaks::all(Isa::best()) {
        if options.wants(name) {
            options.measure(name, operations, run);
        }
    }
    let workers = Workers::new(options.threads)?;
    for shape @ [rows, k, n] in options.shapes.clone() {
        let name = |what: &str| format!("{what} {rows}x{k}x{n}");
        if options.wants(&name("gemm")) {
            measure_gemm(&options, &name("gemm"), shape);
        }
        for storage in STORAGES {
            if options.wants(&name(storage.name())) {
                measure_linear(&options, &workers, &name(storage.name()), storage, false, shape);
            }
            let exact = name(&format!("{storage}-exact"));
            if storage.has_integer_products() && options.wants(&exact) {
                measure_linear(&options, &workers, &exact, storage, true, shape);
            }
        }
    }
    Ok(())
}

fn operations([rows, k, n]: [usize; 3]) -> f64 {
    2.0 * (rows * k * n) as f64
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 1999) as f32 / 1999.0 - 0.5).collect()
}

/// Stored weights. Blocks hold arbitrary numbers, with scales that keep values small.
fn bytes(storage: StorageType, elements: usize) -> Vec<u8> {
    match storage {
        StorageType::F32 => values(elements).iter().flat_map(|v| v.to_le_bytes()).collect(),
        StorageType::F16 => {
            values(elements).iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
        }
        StorageType::BF16 => {
            values(elements).iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
        }
        _ => {
            let len = storage.bytes(elements as u64).as_usize();
            let mut bytes: Vec<u8> = (0..len).map(|i| ((i * 2_654_435_761) >> 7) as u8).collect();
            let block = storage.block_bytes() as usize;
            let scales: &[usize] = match storage {
                StorageType::Q4_1 | StorageType::Q5_1 | StorageType::Q4K | StorageType::Q5K => {
                    &[0, 2]
                }
                StorageType::Q6K => &[208],
                _ => &[0],
            };
            for block in bytes.chunks_exact_mut(block) {
                for &at in scales {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
                }
            }
            bytes
        }
    }
}

fn measure_linear(
    options: &Options,
    workers: &Workers,
    name: &str,
    storage: StorageType,
    exact: bool,
    shape @ [rows, k, n]: [usize; 3],
) {
    let weight = bytes(storage, n * k);
    let weight = WeightView { storage, shape: &[n, k], bytes: &weight, scale: 1.0 };
    let (x, mut out) = (values(rows * k), vec![0.0; rows * n]);
    let sizes = LinearShape { rows, in_features: &[k], out_features: n };
    let integer = storage.has_integer_products() && !exact;
    let len = if integer {
        integer_linear_scratch_len(&sizes, storage, workers.count())
    } else {
        linear_scratch_len(&sizes, workers.count())
    };
    let mut scratch = vec![0.0; len];
    let kernel = if integer { integer_linear } else { linear };
    options.measure(name, operations(shape), || {
        let (all, none) = (Columns::all(n), Activation::None);
        kernel(workers, &[&x], weight, None, none, &mut out, all, &mut scratch);
        black_box(&mut out);
    });
}

fn measure_gemm(options: &Options, name: &str, shape @ [rows, k, n]: [usize; 3]) {
    let (x, weight, mut out) = (values(rows * k), values(n * k), vec![0.0f32; rows * n]);
    let parallelism = if options.threads > 1 {
        gemm::Parallelism::Rayon(options.threads)
    } else {
        gemm::Parallelism::None
    };
    options.measure(name, operations(shape), || {
        // SAFETY: the operands are as long as their sizes and strides say, and `out` overlaps neither.
        unsafe {
            gemm::gemm(
                rows,
                n,
                k,
                out.as_mut_ptr(),
                1,
                n as isize,
                false,
                x.as_ptr(),
                1,
                k as isize,
                weight.as_ptr(),
                k as isize,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
        black_box(&mut out);
    });
}
