//! Load time and page cache under each mapping policy, over a file of 1 GiB that it makes in a
//! directory and removes again. The table in docs/mapping.md is its output.
//!
//! `cargo run --release -p executor --example mapping [DIRECTORY]`: on the disk to be measured;
//! without it, the system's directory for temporary files.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use executor::weights::{TensorRef, WeightFiles};
use protocol::{Bytes, MappingPolicy};

/// As many as the DiT of FLUX.1 has blocks, about.
const TENSORS: usize = 64;

/// Of each tensor, in bf16: 16 MiB.
const SHAPE: [usize; 2] = [2048, 4096];

const TENSOR_BYTES: usize = 2 * SHAPE[0] * SHAPE[1];

/// Loads of each kind; the median counts.
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let parent = std::env::args().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(parent)?;
    let path = dir.path().join("weights.safetensors");
    write_weights(&path)?;
    // The device: written once, so that no load pays for its pages.
    let mut device = vec![1; TENSORS * TENSOR_BYTES];
    println!(
        "| policy | cold load | load after it | warm load | most in page cache | left after load |"
    );
    println!("|---|---|---|---|---|---|");
    for policy in MappingPolicy::ALL {
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            leave_page_cache(&path)?;
            let cold = load(&path, policy, &mut device)?;
            let next = load(&path, policy, &mut device)?;
            enter_page_cache(&path)?;
            let warm = load(&path, policy, &mut device)?;
            runs.push((cold, next, warm));
        }
        let seconds = |of: fn(&(Load, Load, Load)) -> Duration| {
            let mut times: Vec<f64> = runs.iter().map(|run| of(run).as_secs_f64()).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let (cold, next) = (seconds(|run| run.0.time), seconds(|run| run.1.time));
        let warm = seconds(|run| run.2.time);
        let most = runs.iter().map(|run| run.0.cached_bytes_max).max().unwrap_or_default();
        let left = runs.iter().map(|run| run.0.left_bytes).max().unwrap_or_default();
        println!("| {policy} | {cold:.2} s | {next:.2} s | {warm:.2} s | {most} | {left} |");
    }
    Ok(())
}

/// What one load did.
struct Load {
    /// Opening, copying and giving back.
    time: Duration,
    /// The most of the file that was in the page cache after a tensor was copied.
    cached_bytes_max: Bytes,
    /// What of it was there at the end.
    left_bytes: Bytes,
}

/// Copies all weights to the `device`, in the order of the file.
fn load(path: &Path, policy: MappingPolicy, device: &mut [u8]) -> Result<Load, Box<dyn Error>> {
    let mut start = Instant::now();
    let files = WeightFiles::open_file(path)?;
    files.advise(policy)?;
    let (mut time, mut cached_bytes_max) = (start.elapsed(), Bytes::ZERO);
    for (index, target) in device.chunks_exact_mut(TENSOR_BYTES).enumerate() {
        start = Instant::now();
        let weight: TensorRef = files.require(&name(index), &SHAPE)?;
        target.copy_from_slice(weight.view(&files).bytes);
        files.release([&weight]);
        time += start.elapsed();
        cached_bytes_max = cached_bytes_max.max(files.cached_bytes()?);
    }
    start = Instant::now();
    files.release_all();
    time += start.elapsed();
    Ok(Load { time, cached_bytes_max, left_bytes: files.cached_bytes()? })
}

fn name(index: usize) -> String {
    format!("blocks.{index:02}.weight")
}

/// Writes the file, of noise, and waits until the disk has it: only then can it leave the page
/// cache.
fn write_weights(path: &Path) -> Result<(), Box<dyn Error>> {
    let entries = (0..TENSORS).map(|index| {
        let (name, [rows, columns]) = (name(index), SHAPE);
        let (begin, end) = (index * TENSOR_BYTES, (index + 1) * TENSOR_BYTES);
        let offsets = format!("\"data_offsets\":[{begin},{end}]");
        format!("\"{name}\":{{\"dtype\":\"BF16\",\"shape\":[{rows},{columns}],{offsets}}}")
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..TENSORS * TENSOR_BYTES / 8 {
        // Xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes())?;
    }
    file.into_inner()?.sync_all()?;
    Ok(())
}

/// Empties the page cache of the file.
fn leave_page_cache(path: &Path) -> Result<(), Box<dyn Error>> {
    let files = WeightFiles::open_file(path)?;
    files.advise(MappingPolicy::Drop)?;
    files.release_all();
    let left = files.cached_bytes()?;
    if left > Bytes::mib(1) {
        let path = path.display();
        return Err(
            format!("{left} of {path} stay in memory; hint: name a directory on a disk").into()
        );
    }
    Ok(())
}

/// Fills the page cache with the file.
fn enter_page_cache(path: &Path) -> Result<(), Box<dyn Error>> {
    let mut file = File::open(path)?;
    let mut part = vec![0; 1 << 20];
    while file.read(&mut part)? > 0 {}
    Ok(())
}
