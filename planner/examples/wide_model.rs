//! Writes a model of random weights whose matrices are large enough to be split and streamed:
//! `cargo run --release --example wide_model DIR [HEADS DOUBLE_BLOCKS SINGLE_BLOCKS]`.

use std::path::PathBuf;
use std::process::ExitCode;

#[path = "../../tests/support/wide.rs"]
mod wide;

use wide::Wide;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(dir) = arguments.next().map(PathBuf::from) else {
        eprintln!("usage: wide_model DIR [HEADS DOUBLE_BLOCKS SINGLE_BLOCKS]");
        return ExitCode::from(2);
    };
    let sizes: Result<Vec<usize>, _> = arguments.map(|text| text.parse()).collect();
    let sizes = match sizes.as_deref() {
        Ok([]) => Wide::bf16(),
        Ok(&[heads, double_blocks, single_blocks]) if heads * double_blocks * single_blocks > 0 => {
            Wide { heads, double_blocks, single_blocks, ..Wide::bf16() }
        }
        _ => {
            eprintln!("HEADS DOUBLE_BLOCKS SINGLE_BLOCKS are three numbers of at least 1");
            return ExitCode::from(2);
        }
    };
    match sizes.write(&dir) {
        Ok(written) => {
            println!(
                "{}: {} B in the DiT, {} B in T5",
                dir.display(),
                written.dit_bytes,
                written.t5_bytes
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cannot write {}: {error}", dir.display());
            ExitCode::from(2)
        }
    }
}
