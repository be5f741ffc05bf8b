//! How fast weights come from files, by way of the file mapping and the copy engine's staging: from
//! the storage, and from the page cache. What GPUs get of it comes as they get it.

use std::sync::Arc;
use std::time::Instant;

use protocol::plan::{MappingPolicy, STAGING_BYTES};
use protocol::{Bytes, DeviceId, Failure, Faults};

use super::file::{BULK_SHAPE, BULK_TENSORS, WeightFile, bulk_name};
use super::{CalibrationTarget, seconds_since};
use crate::backend::kernels::Workers;
use crate::backend::virtual_device::VirtualProperties;
use crate::backend::{
    Backend, CancelFlag, Memory, Queue, Region, VirtualDevice, WeightLoad, WeightMove,
};
use crate::weights::WeightFiles;

/// A tensor that is only read.
const TENSOR_BYTES: Bytes = Bytes(2 * (BULK_SHAPE[0] * BULK_SHAPE[1]) as u64);

/// Of a file that left the page cache, at most so much may still be there.
const CACHED_BYTES_MAX: Bytes = Bytes::mib(1);

/// The storage and the page cache are read so many times, and the median taken: what else is read
/// at the time is a part of how fast they are.
const REPETITIONS: usize = 3;

/// A slow storage is read for so long, and not once more.
const SECONDS_MAX: f64 = 1.5;

/// What was measured of a storage.
pub struct StorageSpeed {
    /// Bytes per second of what is not in the page cache; `None` where all stays there.
    pub cold_bytes_per_s: Option<f64>,
    /// Bytes per second of what is.
    pub warm_bytes_per_s: f64,
}

/// Reads the file, from where it is and then from the page cache, in which it is left.
pub fn measure(
    written: &WeightFile,
    host: &Arc<Memory>,
    workers: &Arc<Workers>,
    cancel: &CancelFlag,
) -> Result<StorageSpeed, Failure> {
    let reader = RangeReader::new(host, workers)?;
    let (mut cold, mut seconds) = (Vec::new(), 0.0);
    while cold.len() < REPETITIONS && seconds < SECONDS_MAX {
        let files = written.open()?;
        if !leave_page_cache(&files)? {
            break;
        }
        let read = reader.read(files, SECONDS_MAX, cancel)?;
        seconds += read.seconds;
        cold.push(read.bytes_per_s());
    }
    // What a slow storage did not give in its time comes to the page cache now.
    reader.read(written.open()?, f64::INFINITY, cancel)?;
    let mut warm = Vec::new();
    for _ in 0..REPETITIONS {
        let read = reader.read(written.open()?, SECONDS_MAX, cancel)?;
        warm.push(read.bytes_per_s());
    }
    Ok(StorageSpeed {
        cold_bytes_per_s: (!cold.is_empty()).then(|| median(cold)),
        warm_bytes_per_s: median(warm),
    })
}

/// Bytes per second of what is in the page cache on its way to a GPU; `None` where it has no room.
pub fn warm_to_gpu(
    written: &WeightFile,
    target: &CalibrationTarget<'_>,
) -> Result<Option<f64>, Failure> {
    let CalibrationTarget { backend, cancel, room_bytes, .. } = *target;
    if room_bytes < TENSOR_BYTES {
        return Ok(None);
    }
    let region = backend.allocate("weights of the page cache", TENSOR_BYTES)?;
    let read = |_| {
        let files = Arc::new(written.open()?);
        let start = Instant::now();
        for index in 0..BULK_TENSORS {
            load(backend, &files, index, (&region, Bytes::ZERO), cancel)?;
        }
        Ok((TENSOR_BYTES.0 * BULK_TENSORS as u64) as f64 / seconds_since(start))
    };
    Ok(Some(median((0..REPETITIONS).map(read).collect::<Result<_, Failure>>()?)))
}

/// Loads a tensor of the file to a place.
fn load(
    backend: &dyn Backend,
    files: &Arc<WeightFiles>,
    index: usize,
    (region, at): (&Arc<Region>, Bytes),
    cancel: &CancelFlag,
) -> Result<(), Failure> {
    let tensor = files.require(&bulk_name(index), &BULK_SHAPE)?;
    let load = WeightLoad {
        files: Arc::clone(files),
        moves: [WeightMove { tensor, bytes: 0..TENSOR_BYTES.as_usize(), offset: Bytes::ZERO }]
            .into(),
        region: Arc::clone(region),
        base: at,
        stop: cancel.clone(),
        once: false,
        locked: None,
    };
    Ok(backend.load(load, Queue::Loads).wait_unless(cancel)?)
}

/// Drops the file's pages; whether they went.
fn leave_page_cache(files: &WeightFiles) -> Result<bool, Failure> {
    files.advise(MappingPolicy::Drop)?;
    files.release_all();
    let left = files.cached_bytes()?;
    files.advise(MappingPolicy::Keep)?;
    Ok(left <= CACHED_BYTES_MAX)
}

/// A copy engine whose link never makes it wait.
struct RangeReader {
    device: VirtualDevice,
}

struct Read {
    bytes: Bytes,
    seconds: f64,
}

impl Read {
    fn bytes_per_s(&self) -> f64 {
        self.bytes.0 as f64 / self.seconds
    }
}

impl RangeReader {
    fn new(host: &Arc<Memory>, workers: &Arc<Workers>) -> Result<RangeReader, Failure> {
        let staging = Arc::new(Region::allocate(host, "staging of the storage", STAGING_BYTES)?);
        let properties = VirtualProperties {
            overhead_bytes: Bytes::ZERO,
            link_bytes_per_s: f64::INFINITY,
            faults: Faults::default(),
            speed: 1.0,
            threads: None,
        };
        // The weights go to the host's own memory.
        let memory = Memory::new(DeviceId::host(), host.free(), None);
        let device = VirtualDevice::open(memory, properties, &staging, Arc::clone(workers))?;
        Ok(RangeReader { device })
    }

    /// Reads the file's tensors into memory that is new, as a run's is, for at most about so many
    /// seconds.
    fn read(
        &self,
        files: WeightFiles,
        seconds_max: f64,
        cancel: &CancelFlag,
    ) -> Result<Read, Failure> {
        let files = Arc::new(files);
        let bytes = Bytes(TENSOR_BYTES.0 * BULK_TENSORS as u64);
        let region = Region::allocate(self.device.memory(), "weights of the storage", bytes)?;
        let region = Arc::new(region);
        let (start, mut read) = (Instant::now(), Read { bytes: Bytes::ZERO, seconds: 0.0 });
        for index in 0..BULK_TENSORS {
            load(&self.device, &files, index, (&region, read.bytes), cancel)?;
            read = Read { bytes: read.bytes + TENSOR_BYTES, seconds: seconds_since(start) };
            if read.seconds > seconds_max {
                break;
            }
        }
        Ok(read)
    }
}

/// The median, the lower one of two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}
