//! Rates and times of the host's kernels, with the machine's peaks and `gemm` beside them.
//!
//! `cargo bench -p executor --bench kernels -- [--threads N] [--seconds S] [--shape ROWSxINxOUT]
//! [--exact-names] [NAME]...` runs the cases whose name contains a NAME (with `--exact-names`: is
//! one), all without one, and prints a line of JSON for each. `--shape` gives products other sizes.
//! `scripts/bench_kernels.py` and `scripts/bench_attention.py` run this in turns with torch and
//! print the ratios. `BERTH_ISA` chooses the instruction set.

use std::error::Error;
use std::time::{Duration, Instant};

use executor::backend::kernels::{Isa, Workers};

#[path = "kernels/layers.rs"]
mod layers;
#[path = "kernels/peaks.rs"]
mod peaks;
#[path = "kernels/products.rs"]
mod products;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse()?;
    let workers = Workers::new(options.threads)?;
    for (name, operations, run) in peaks::all(Isa::best()) {
        if options.wants(name) {
            options.measure(name, operations, run);
        }
    }
    products::measure(&options, &workers);
    layers::measure(&options, &workers);
    Ok(())
}

/// Numbers without a pattern between -0.5 and 0.5.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 2_654_435_761) % 1999) as f32 / 1999.0 - 0.5).collect()
}

/// What the command line says.
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
        Ok(options)
    }

    fn wants(&self, name: &str) -> bool {
        let is = |wanted: &String| {
            if self.exact_names { name == wanted } else { name.contains(wanted.as_str()) }
        };
        self.names.is_empty() || self.names.iter().any(is)
    }

    /// Runs a case for a while, at least once after a first time, and prints its best time, and
    /// rate where operations are counted: whatever else the machine does makes it slower only.
    fn measure(&self, name: &str, operations: f64, mut run: impl FnMut()) {
        run();
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        loop {
            let start = Instant::now();
            run();
            best = best.min(start.elapsed().as_secs_f64());
            if begin.elapsed() >= self.least {
                break;
            }
        }
        let (isa, ms) = (Isa::best(), best * 1e3);
        let rate = match operations {
            0.0 => String::new(),
            _ => format!(r#""gflops": {:.2}, "#, operations / best / 1e9),
        };
        println!(r#"{{"case": "{name}", "isa": "{isa}", {rate}"ms": {ms:.4}}}"#);
    }
}
