//! What Berth's processes on this host have planned: memory that is spoken for, though nobody has
//! allocated it yet.
//!
//! A process that is about to load a plan holds a locked file in the runtime directory until its
//! executor has ended, with the plan's peaks. Others take them off what there is: free is the less
//! of what the system reports and of the total without them, which covers a plan whose allocations
//! the system does not show yet, and counts nothing twice.
//!
//! A lock ends with its process, however that ends, so a file whose lock can be taken is left over:
//! whoever sees it removes it. Not here: processes of other users, whose runtime directories are
//! their own, and other programs; what those have allocated the system reports. A registry that
//! cannot be used is no reason not to run: without it, free memory is what the system says.
//!
//! Invariants: a file under its final name is whole and locked; an executor does not count its own,
//! and does count that of another executor of its process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use etcetera::BaseStrategy;
use protocol::plan::{DeviceBackend, DevicePlan};
use protocol::{Bytes, Plan};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::inventory::parts::share;
use crate::inventory::{DeviceKind, Inventory};
use crate::read;
use crate::temporary;

/// The largest file that is read: 16 devices take about 1 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The most files that are read.
const FILES_MAX: usize = 1024;

/// How files end whose content is complete.
const ENDING: &str = "toml";

/// What begins the names of this process's files: its number, and what tells it from a later
/// process of that number, or one of another container.
static OWN: LazyLock<String> = LazyLock::new(|| {
    format!("{}-{:016x}-", std::process::id(), RandomState::new().build_hasher().finish())
});

/// Tells the files of one process apart.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// What a plan takes, as the file has it.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Peaks {
    /// The process that holds them.
    pid: u32,
    #[serde(flatten)]
    peak: SpokenFor,
    /// What it holds between two jobs, where executors of its process take turns: only one of them
    /// takes more than that at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle: Option<SpokenFor>,
}

/// Bytes of the host and of GPUs.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SpokenFor {
    /// In the host's memory.
    host: Bytes,
    /// By the lasting name of each GPU that is used.
    #[serde(default)]
    devices: BTreeMap<String, Bytes>,
}

/// The memory of a plan, spoken for while this lives.
#[derive(Debug)]
pub struct Reservation {
    /// The locked file and where it is; `None` where the registry cannot be used.
    held: Option<(File, PathBuf)>,
}

impl Reservation {
    /// Speaks for a plan's peaks, before it is loaded; of plans whose executors take `turns`, for
    /// what all hold between jobs and for the largest rest of one. A registry that cannot be
    /// written is told in the log.
    pub fn hold(plan: &Plan, turns: Turns) -> Reservation {
        let peaks = Peaks::of(plan, turns);
        let held = directory().map(|directory| write(&directory, OWN.as_str(), &peaks));
        let held = held.and_then(|written| {
            let told =
                |error| tracing::warn!(%error, "other processes do not see this plan's memory");
            written.map_err(told).ok()
        });
        Reservation { held }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Whoever reads meanwhile finds it locked, or not at all.
        if let Some((_, path)) = &self.held {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether executors of one process run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// Each runs whenever it likes.
    None,
    /// One at a time.
    Taken,
}

impl Peaks {
    fn of(plan: &Plan, turns: Turns) -> Peaks {
        let peak = SpokenFor::by(plan.host.peak_bytes, plan, |device| device.peak_bytes);
        let idle = || SpokenFor::by(plan.host.idle_bytes, plan, |device| device.idle_bytes);
        Peaks { pid: std::process::id(), peak, idle: (turns == Turns::Taken).then(idle) }
    }
}

impl SpokenFor {
    /// What is used of GPUs by their lasting names; and of the host's memory, which is also that of
    /// virtual and integrated devices.
    fn by(host: Bytes, plan: &Plan, bytes_of: impl Fn(&DevicePlan) -> Bytes) -> SpokenFor {
        let mut spoken = SpokenFor { host, ..SpokenFor::default() };
        for device in &plan.devices {
            // One that is not used may have the context of another part of its GPU.
            let unused = !plan.uses(&device.id);
            let bytes = if unused { device.overhead_bytes } else { bytes_of(device) };
            match &device.backend {
                _ if bytes == Bytes::ZERO => {}
                DeviceBackend::Cuda { uuid: Some(uuid), .. } if !device.integrated => {
                    *spoken.devices.entry(uuid.clone()).or_default() += bytes;
                }
                DeviceBackend::Cuda { .. } if !device.integrated => {}
                DeviceBackend::Cuda { .. } | DeviceBackend::Virtual { .. } => {
                    spoken.host += bytes;
                }
            }
        }
        spoken
    }

    /// Adds others to it.
    fn add(&mut self, other: &SpokenFor) {
        self.join(other, |one, other| Bytes(one.0.saturating_add(other.0)));
    }

    fn join(&mut self, other: &SpokenFor, joined: impl Fn(Bytes, Bytes) -> Bytes) {
        self.host = joined(self.host, other.host);
        for (uuid, bytes) in &other.devices {
            let known = self.devices.entry(uuid.clone()).or_default();
            *known = joined(*known, *bytes);
        }
    }

    /// What it has beyond another one.
    fn beyond(&self, other: &SpokenFor) -> SpokenFor {
        let rest = |(uuid, bytes): (&String, &Bytes)| {
            let less = other.devices.get(uuid).copied().unwrap_or_default();
            (uuid.clone(), bytes.saturating_sub(less))
        };
        let devices = self.devices.iter().map(rest).collect();
        SpokenFor { host: self.host.saturating_sub(other.host), devices }
    }
}

/// What other executors of Berth, of this process too, have planned together.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct OtherReservations(SpokenFor);

impl OtherReservations {
    /// Reads the registry of this host, without `own`. What cannot be read counts for nothing.
    pub fn of_this_host(own: Option<&Reservation>) -> OtherReservations {
        let own = own.and_then(|own| own.held.as_ref()).map(|(_, path)| path.as_path());
        let is_own = |path: &Path| own == Some(path);
        OtherReservations::here(&is_own)
    }

    /// What other processes have planned: without all that executors of this one have.
    pub fn of_other_processes() -> OtherReservations {
        OtherReservations::here(&is_of_this_process)
    }

    fn here(is_own: &dyn Fn(&Path) -> bool) -> OtherReservations {
        directory().map(|directory| OtherReservations::read(&directory, is_own)).unwrap_or_default()
    }

    /// Reads a registry, without one's own files, and removes what is left over in it.
    fn read(directory: &Path, is_own: &dyn Fn(&Path) -> bool) -> OtherReservations {
        let mut others = SpokenFor::default();
        // The largest of what executors of one process take beside what they hold, by process.
        let mut active = BTreeMap::<String, SpokenFor>::new();
        let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(FILES_MAX);
        for path in entries.map(|entry| entry.path()) {
            if is_own(&path) || path.extension().is_none_or(|ending| ending != ENDING) {
                continue;
            }
            match read(&path) {
                Ok(Some(Peaks { peak, idle: None, .. })) => others.add(&peak),
                Ok(Some(Peaks { peak, idle: Some(idle), .. })) => {
                    others.add(&idle);
                    active
                        .entry(process_of(&path))
                        .or_default()
                        .join(&peak.beyond(&idle), Bytes::max);
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(path = %path.display(), %error, "no reservation"),
            }
        }
        active.values().for_each(|active| others.add(active));
        OtherReservations(others)
    }

    /// Others that have planned so much of GPUs.
    #[cfg(test)]
    pub(crate) fn made_up(devices: &[(&str, Bytes)]) -> OtherReservations {
        let devices = devices.iter().map(|(uuid, bytes)| ((*uuid).to_owned(), *bytes));
        OtherReservations(SpokenFor { host: Bytes::ZERO, devices: devices.collect() })
    }

    /// Takes them off what is free: of GPUs that they name; and of the host's memory with what
    /// shares it, where that is this machine's (`host_is_here`). Virtual devices are each process's
    /// own.
    pub fn take_from(&self, inventory: &mut Inventory, host_is_here: bool) {
        let host = &mut inventory.host;
        if host_is_here {
            host.available_bytes =
                host.available_bytes.min(host.total_bytes.saturating_sub(self.0.host));
        }
        for device in &mut inventory.devices {
            let named = device.uuid.as_ref().and_then(|uuid| self.0.devices.get(uuid)).copied();
            // What others plan of a GPU is taken off before its parts share the rest.
            let (total, free) = match &mut device.part {
                Some(part) => (part.gpu_total_bytes, &mut part.gpu_free_bytes),
                None => (device.total_bytes, &mut device.free_bytes),
            };
            let room = total.saturating_sub(named.unwrap_or_default());
            *free = match (device.kind, device.integrated) {
                (DeviceKind::Virtual, _) => continue,
                (DeviceKind::Cuda, true) => (*free).min(inventory.host.available_bytes),
                (DeviceKind::Cuda, false) => (*free).min(room),
            };
        }
        share(&mut inventory.devices);
    }
}

/// Whether a file of the registry is one of this process's.
fn is_of_this_process(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.starts_with(OWN.as_str()))
}

/// The process whose file this is: what its name begins with, as [`OWN`] has it.
fn process_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or("", |(process, _)| process).to_owned()
}

/// Where processes of one user tell each other: in the runtime directory, which a restart empties,
/// or else the state's.
fn directory() -> Option<PathBuf> {
    let directories = etcetera::choose_base_strategy().ok()?;
    let runtime = directories.runtime_dir().filter(|directory| directory.is_dir());
    runtime
        .or_else(|| directories.state_dir())
        .map(|directory| directory.join("berth").join("plans"))
}

/// Writes a file and locks it, then gives it its name.
fn write(directory: &Path, own: &str, peaks: &Peaks) -> io::Result<(File, PathBuf)> {
    fs::create_dir_all(directory)?;
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("{own}{number}.{ENDING}"));
    temporary::sweep(directory);
    let mut file = temporary::file_in(directory, temporary::PRIVATE_MODE)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let text = toml::to_string(peaks).map_err(io::Error::other)?;
    file.write_all(text.as_bytes())?;
    tracing::debug!(path = %path.display(), host = %peaks.peak.host, "speaks for the plan's memory");
    Ok((file.persist(&path)?, path))
}

/// The peaks of a file that is held; `None` for one that is left over, which is removed.
fn read(path: &Path) -> io::Result<Option<Peaks>> {
    let (file, _) = match read::open(path) {
        Err(error) if error.is_missing() => return Ok(None),
        opened => opened.map_err(io::Error::other)?,
    };
    // Shared, so that two who look at the same time both find it left over.
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = fs::remove_file(path);
            return Ok(None);
        }
        Err(rustix::io::Errno::WOULDBLOCK) => {}
        Err(error) => return Err(error.into()),
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    toml::from_str(&text).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
