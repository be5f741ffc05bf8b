//! Copies between GPUs: a pattern, from each of them to each other one.

use std::sync::Arc;

use protocol::self_test::{ChangedByte, TestedCopy};
use protocol::{Bytes, Failure};

use crate::backend::{Backend, CudaDevice, RegionCopy, Stopped};
use crate::schedule::Transfer;

/// Bytes of a row of the pattern: of no power of two, so that rows begin anywhere in a page.
const ROW_BYTES: usize = 4096 + 16;

/// Its rows.
const ROWS: usize = 16;

/// Copies the pattern from each to each other one, as runs copy activations: directly where the
/// machine can, in rows and as one, which the driver does by functions of their own.
pub fn between(gpus: &[&CudaDevice]) -> Result<Vec<TestedCopy>, Failure> {
    let mut copies = Vec::new();
    for to in gpus {
        for from in gpus {
            if !Arc::ptr_eq(to.gpu(), from.gpu()) {
                let salt = copies.len() as u8;
                let in_rows = copy(from, to, salt, ROWS)?;
                let as_one = copy(from, to, !salt, 1)?;
                copies.push(if in_rows.changed.is_some() { in_rows } else { as_one });
            }
        }
    }
    Ok(copies)
}

fn copy(from: &CudaDevice, to: &CudaDevice, salt: u8, rows: usize) -> Result<TestedCopy, Failure> {
    let reached = to.gpu().reach(from.gpu());
    let direct = reached.map_err(|error| Stopped::driver(to.memory().device(), &error))?;
    let bytes = ROWS * ROW_BYTES;
    // Every byte differs from those that are a page, a row or a word further.
    let byte = |at: usize| (at ^ at >> 8 ^ at >> 12).to_le_bytes()[0].wrapping_mul(37) ^ salt;
    let pattern: Vec<u8> = (0..bytes).map(byte).collect();
    let source = from.allocate("self-test pattern", Bytes(bytes as u64))?;
    let target = to.allocate("self-test pattern", Bytes(bytes as u64))?;
    from.write(&source, Bytes::ZERO, &pattern)?;
    // Also what lies there already: none of it may be taken for what arrives.
    to.write(&target, Bytes::ZERO, &pattern.iter().map(|byte| !byte).collect::<Vec<_>>())?;
    let row_bytes = Bytes((bytes / rows) as u64);
    let transfer = Transfer {
        from_lane: 0,
        from: Bytes::ZERO,
        from_stride: row_bytes,
        to_lane: 1,
        to: Bytes::ZERO,
        to_stride: row_bytes,
        rows,
        row_bytes,
    };
    let after = vec![from.departure()?, to.departure()?];
    let (regions, computed) = ([Arc::clone(&source), Arc::clone(&target)], Vec::new());
    let [from_region, to_region] = regions;
    let copy = RegionCopy {
        from: from_region,
        to: to_region,
        transfer,
        other_link: None,
        after,
        computed,
    };
    to.copy(copy).wait()?;
    let mut arrived = vec![0; bytes];
    to.read(&target, Bytes::ZERO, &mut arrived)?;
    let changed = pattern.iter().zip(&arrived).position(|(written, read)| written != read);
    let changed =
        changed.map(|at| ChangedByte { at: at as u64, expected: pattern[at], got: arrived[at] });
    let [from, to] = [from, to].map(|device| device.memory().device().clone());
    Ok(TestedCopy { from, to, direct, changed })
}
