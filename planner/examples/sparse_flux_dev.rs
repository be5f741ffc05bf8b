//! Writes FLUX.1-dev as sparse files, to try `berth inspect` and `berth plan` at full scale:
//!
//! `cargo run --release --example sparse_flux_dev -- /tmp/flux-dev`
//!
//! The directory shows 33.8 GB of files and takes less than 5 MB of disk. The weights are all zero.

use std::path::Path;
use std::process::ExitCode;

#[path = "../../tests/support/sparse.rs"]
mod sparse;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [dir] = arguments.as_slice() else {
        eprintln!("usage: sparse_flux_dev DIR");
        return ExitCode::from(2);
    };
    match sparse::write_flux_dev(Path::new(dir)) {
        Ok(model) => {
            print!("{model}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: cannot write the model to {}: {error}", Path::new(dir).display());
            ExitCode::from(2)
        }
    }
}
