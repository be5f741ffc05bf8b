//! How fast a link is, both ways: weights to the device as its ring gets them from page-locked
//! copies, values back as its outputs go.

use std::sync::Arc;
use std::time::Instant;

use protocol::{Bytes, Failure};

use super::file::{BULK_SHAPE, bulk_name};
use super::{CalibrationTarget, REPETITIONS, least, seconds_since};
use crate::backend::{LockedCopy, Memory, Queue, Region, WeightLoad, WeightMove};

/// What the first attempt carries: slow links have carried it soon.
const BYTES_MIN: usize = 256;

/// What the last attempt carries: 64 GB/s, PCIe 5.0 with 16 lanes, take 34 ms.
const BYTES_MAX: usize = 2 << 30;

/// Each attempt carries so many times more than the one before.
const GROWTH: usize = 4;

/// A measurement that takes so long is long enough: starting a copy and hearing of its end took
/// 0.9 ms beside an H100.
const SECONDS_ENOUGH: f64 = 0.02;

/// The most of a device that is written to or read from, and of the copy that is sent: no part of
/// it is so small that its start takes long.
const REGION_BYTES_MAX: Bytes = Bytes::mib(4);

impl CalibrationTarget<'_> {
    /// Bytes per second to the device, and back. The copy that is sent is of the `host`'s memory.
    pub fn link(&self, host: &Arc<Memory>) -> Result<[f64; 2], Failure> {
        let bytes = REGION_BYTES_MAX.min(self.room_bytes);
        if bytes < Bytes(BYTES_MIN as u64) {
            return Err(self.too_small(Bytes(BYTES_MIN as u64)));
        }
        let region = self.backend.allocate("calibration of the link", bytes)?;
        let mut values = vec![0u8; bytes.as_usize()];
        let name = "page-locked copy for the calibration of the link";
        let copy = self.backend.allocate_locked(host, name, bytes)?;
        let copy = LockedCopy { region: copy, start: Bytes::ZERO, filled: Arc::default() };
        // The first time fills the copy.
        self.load(&region, &copy, bytes.as_usize())?;
        let to = rate(|bytes| self.load(&region, &copy, bytes))?;
        let back = rate(|bytes| {
            let start = Instant::now();
            for part in parts(bytes, values.len()) {
                self.cancel.check()?;
                self.backend.read(&region, Bytes::ZERO, &mut values[..part])?;
            }
            Ok(seconds_since(start))
        })?;
        Ok([to, back])
    }

    /// Loads `bytes` of weights from a copy: in parts, one after the other, all to the same place.
    fn load(&self, region: &Arc<Region>, copy: &LockedCopy, bytes: usize) -> Result<f64, Failure> {
        let tensor = self.files.require(&bulk_name(0), &BULK_SHAPE)?;
        let moves = parts(bytes, region.len().as_usize());
        let moves = moves.map(|part| WeightMove { tensor, bytes: 0..part, offset: Bytes::ZERO });
        let load = WeightLoad {
            files: Arc::clone(self.files),
            moves: moves.collect(),
            region: Arc::clone(region),
            base: Bytes::ZERO,
            stop: self.cancel.clone(),
            once: false,
            locked: Some(copy.clone()),
        };
        let start = Instant::now();
        self.backend.load(load, Queue::Slots).wait_unless(self.cancel)?;
        Ok(seconds_since(start))
    }
}

/// `bytes` in parts of at most `most`.
fn parts(bytes: usize, most: usize) -> impl Iterator<Item = usize> {
    (0..bytes).step_by(most).map(move |from| most.min(bytes - from))
}

/// Bytes per second of `carry`, which carries as many as it is told and says in how many seconds.
fn rate(mut carry: impl FnMut(usize) -> Result<f64, Failure>) -> Result<f64, Failure> {
    let mut bytes = BYTES_MIN;
    while carry(bytes)? < SECONDS_ENOUGH && bytes < BYTES_MAX {
        bytes = (bytes * GROWTH).min(BYTES_MAX);
    }
    let seconds = (0..REPETITIONS).map(|_| carry(bytes)).collect::<Result<Vec<_>, _>>()?;
    Ok(bytes as f64 / least(seconds))
}
