//! Calibration: how fast the host, its storage and virtual devices are, as runs find them.
//!
//! Everything is measured through what a run uses: graphs of a few nodes are scheduled, their
//! weights loaded from a file mapping, their nodes computed by the backend; the link and the
//! storage carry weights by the copy engine. Nothing here decides what becomes of the figures.
//!
//! Invariants: what is allocated on a device stays within its budget, and on the host within
//! `HOST_BYTES_MAX` beside a device's page-locked memory; the file that is written has no name once
//! it has its first byte, so that it is gone however this process ends.

pub(crate) mod file;
pub(crate) mod probe;
mod storage;
mod transfer;
mod work;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use protocol::calibration::{Calibration, CalibrationDevice, MeasuredDevice};
use protocol::{Bytes, DeviceId, Failure};

use crate::backend::kernels::Workers;
use crate::backend::{Backend, CancelFlag, CudaDevice, HostBackend, Memory};
use crate::failure::{bad_request, internal};
use crate::runtime::open_device;
use crate::weights::WeightFiles;
use file::WeightFile;

/// The most that is allocated of the host's memory: the weights that are read from storage, or the
/// values of the largest graph, each below half of it.
const HOST_BYTES_MAX: Bytes = Bytes::mib(256);

/// A thing is measured so many times, and the best taken: whatever else the machine does makes it
/// slower only.
const REPETITIONS: usize = 4;

/// What is measured: where it computes, and the weights that it computes with.
pub(crate) struct CalibrationTarget<'a> {
    pub backend: &'a dyn Backend,
    /// What it has free before anything is measured.
    pub room_bytes: Bytes,
    /// Operations that it cannot do, by name.
    pub unsupported: &'a [String],
    pub threads: usize,
    pub files: &'a Arc<WeightFiles>,
    pub cancel: &'a CancelFlag,
}

/// Measures the host, the storage under a directory, and devices, with nothing loaded.
///
/// # Errors
/// `BadRequest` for a directory that cannot be written to, a device that this executor does not
/// compute on or that is too small; `OutOfMemory`, `DeviceFailed`, `Cancelled`.
pub fn calibrate(
    devices: &[CalibrationDevice],
    threads: usize,
    directory: &Path,
    cancel: &CancelFlag,
) -> Result<Calibration, Failure> {
    // One device is open at a time.
    let pinned = devices.iter().map(|device| device.pinned_bytes).max().unwrap_or_default();
    let host_memory = Memory::new(DeviceId::host(), HOST_BYTES_MAX + pinned, None);
    let workers = Arc::new(Workers::new(threads).map_err(internal)?);
    let written = WeightFile::write(directory, cancel)?;
    let storage = storage::measure(&written, &host_memory, &workers, cancel)?;
    let files = Arc::new(written.open()?);
    let host = HostBackend::new(Arc::clone(&host_memory), Arc::clone(&workers));
    let of_host = CalibrationTarget {
        room_bytes: host.memory().free(),
        backend: &host,
        unsupported: &[],
        threads,
        files: &files,
        cancel,
    };
    let host = of_host.speeds()?;
    let (mut measured, mut to_gpus) = (Vec::new(), Vec::new());
    for device in devices {
        let CalibrationDevice { id, backend, budget_bytes, overhead_bytes, pinned_bytes } = device;
        let sizes = [*budget_bytes, *overhead_bytes, *pinned_bytes];
        let opened = open_device(id, backend, sizes, &host_memory, &workers, None)?;
        let charged = opened.memory().used();
        let unsupported = backend.unsupported();
        let backend = opened.as_ref();
        let room_bytes = backend.memory().free();
        let target =
            CalibrationTarget { backend, room_bytes, unsupported, threads, files: &files, cancel };
        let [link_bytes_per_s, link_back_bytes_per_s] = target.link(&host_memory)?;
        if opened.as_cuda().is_some() {
            to_gpus.extend(storage::warm_to_gpu(&written, &target)?);
        }
        let speeds = target.speeds()?;
        // After all kernels have run: the driver may load one when it is first used.
        let overhead_bytes = match opened.as_cuda() {
            Some(device) => overhead(device),
            None => Some(charged),
        };
        measured.push(MeasuredDevice {
            id: id.clone(),
            speeds,
            link_bytes_per_s,
            link_back_bytes_per_s,
            overhead_bytes,
        });
    }
    Ok(Calibration {
        host,
        storage_bytes_per_s: storage.cold_bytes_per_s,
        // Where there are GPUs, as the one gets it whose link is the least in the way.
        page_cache_bytes_per_s: to_gpus
            .into_iter()
            .reduce(f64::max)
            .unwrap_or(storage.warm_bytes_per_s),
        devices: measured,
    })
}

/// What this process takes of a GPU beside what it has allocated, where NVML tells it.
fn overhead(device: &CudaDevice) -> Option<Bytes> {
    Some(device.gpu().taken()?.bytes.saturating_sub(device.allocated_bytes()))
}

impl CalibrationTarget<'_> {
    fn too_small(&self, needed: Bytes) -> Failure {
        bad_request(format!(
            "{} has {} B to measure it with, the smallest measurement takes {} B; hint: raise its budget",
            self.backend.memory().device(),
            self.room_bytes.0,
            needed.0
        ))
    }
}

/// Seconds since an instant, above zero.
fn seconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64().max(1e-9)
}

/// The least of several measurements.
fn least(seconds: Vec<f64>) -> f64 {
    seconds.into_iter().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests;
