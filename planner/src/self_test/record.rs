//! The records of self-tests: a TOML file that people can read, updated under a lock, written
//! whole.

use std::fs;
use std::path::{Path, PathBuf};

use protocol::Bytes;
use protocol::self_test::{ChangedByte, Difference, SelfTest};
use serde::{Deserialize, Serialize};

use crate::calibration::lock_file;
use crate::inventory::Device;
use crate::{read, temporary};

/// The file within its directory.
const FILE: &str = "self-test.toml";

/// The lock beside it, as the file is replaced by each update.
const LOCK: &str = "self-test.lock";

/// Version of the file. One of another version is as good as none.
const FORMAT: u32 = 1;

/// The largest file that is read or written.
const FILE_BYTES_MAX: Bytes = Bytes::mib(1);

/// Most GPUs that are kept, and most pairs of them; the one that was tested longest ago goes first.
const GPUS_MAX: usize = 32;
const PAIRS_MAX: usize = GPUS_MAX * 8;

/// Most differences that are kept of a GPU: all cases of the self-test differ where it is broken.
const DIFFERENCES_MAX: usize = 64;

const HEAD: &str = "\
# What the self-test found of GPUs, by UUID, driver and program. It may be deleted at any time: GPUs
# are tested again before they are next used, as they are by `berth calibrate --self-test`.
";

/// What a record is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuKey {
    /// As NVML prints it: `GPU-…`, `MIG-…`.
    pub uuid: String,
    /// The driver's version, where it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The program, as the executor says it.
    pub program: String,
}

/// What was found of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRecord {
    /// Of which, with what.
    pub gpu: GpuKey,
    /// Families of kernels that were tested.
    pub families: Vec<String>,
    /// What differs from the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<DifferenceRecord>,
}

/// A result that is not the host's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DifferenceRecord {
    /// The operations that were computed.
    pub operations: Vec<String>,
    /// Family, kernels, element, and both values, as a clause.
    pub told: String,
}

/// What was found of copies from one GPU to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRecord {
    /// Where the pattern was written.
    pub from: GpuKey,
    /// Where it was read.
    pub to: GpuKey,
    /// What arrived changed, as a clause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<String>,
}

/// What was found of all GPUs and of the copies between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Records {
    #[serde(default)]
    format: u32,
    /// The latest at the end; of a GPU there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tested: Vec<GpuRecord>,
    /// The latest at the end; from a GPU to another there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    copied: Vec<CopyRecord>,
}

/// Where the file of a directory is.
pub fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

impl GpuKey {
    /// Of a device, if it is a GPU that is here.
    pub fn of(device: &Device, program: &str) -> Option<GpuKey> {
        let (uuid, driver) = (device.uuid.clone()?, device.driver.clone());
        device.missing.is_none().then(|| GpuKey { uuid, driver, program: program.to_owned() })
    }

    fn is_of(&self, device: &Device) -> bool {
        device.uuid.as_ref() == Some(&self.uuid) && device.driver == self.driver
    }
}

impl GpuRecord {
    /// Whether something differs.
    pub fn fails(&self) -> bool {
        !self.differs.is_empty()
    }

    /// The operations that it computes otherwise than the host, sorted.
    pub fn operations(&self) -> Vec<String> {
        let operations = self.differs.iter().flat_map(|differs| differs.operations.iter().cloned());
        let mut operations: Vec<String> = operations.collect();
        operations.sort();
        operations.dedup();
        operations
    }

    /// What differs, as the end of a sentence that begins with the device.
    pub fn told(&self) -> String {
        let all: Vec<&str> = self.differs.iter().map(|differs| differs.told.as_str()).collect();
        let (shown, more) = all.split_at(all.len().min(3));
        let more =
            if more.is_empty() { String::new() } else { format!(", and {} more", more.len()) };
        format!("does not compute as the host does: {}{more}", shown.join("; "))
    }
}

impl Records {
    /// Of what an executor found, by the keys of its devices.
    pub fn of(keys: &[GpuKey], found: &SelfTest) -> Records {
        let kept = |difference: &Difference| DifferenceRecord {
            operations: difference.operations.clone(),
            told: difference.told(),
        };
        let tested = found.devices.iter().zip(keys).map(|(device, key)| GpuRecord {
            gpu: key.clone(),
            families: device.families.clone(),
            differs: device.differences.iter().take(DIFFERENCES_MAX).map(kept).collect(),
        });
        let key = |id| {
            let at = found.devices.iter().position(|device| device.id == id);
            at.and_then(|at| keys.get(at)).cloned()
        };
        let copied = found.copies.iter().filter_map(|copy| {
            let told = |ChangedByte { at, expected, got }| {
                format!("byte {at} is {got:#04x}, {expected:#04x} was written")
            };
            let changed = copy.changed.map(told);
            Some(CopyRecord { from: key(copy.from.clone())?, to: key(copy.to.clone())?, changed })
        });
        Records { format: FORMAT, tested: tested.collect(), copied: copied.collect() }
    }

    /// What a directory's file says; nothing where it cannot be used.
    pub fn read(directory: &Path) -> Records {
        let path = path(directory);
        let text = match read::text(&path, FILE_BYTES_MAX) {
            Ok(text) => text,
            Err(error) if error.is_missing() => return Records::default(),
            Err(error) => {
                tracing::warn!("{} is ignored, GPUs are tested again: {error}", path.display());
                return Records::default();
            }
        };
        match toml::from_str::<Records>(&text) {
            Ok(records) if records.format == FORMAT => records,
            Ok(_) => Records::default(),
            Err(error) => {
                let why = error.message();
                tracing::warn!("{} is ignored, GPUs are tested again: {why}", path.display());
                Records::default()
            }
        }
    }

    /// Puts records into a directory's file.
    ///
    /// # Errors
    /// It cannot be written; as a sentence.
    pub fn update(directory: &Path, new: &Records) -> Result<(), String> {
        let write = || -> std::io::Result<()> {
            fs::create_dir_all(directory)?;
            let _lock = lock_file(&directory.join(LOCK))?;
            let mut records = Records::read(directory);
            records.add(new);
            let body = toml::to_string_pretty(&records).map_err(std::io::Error::other)?;
            let text = format!("{HEAD}\n{body}");
            temporary::write(&path(directory), temporary::PRIVATE_MODE, text.as_bytes())
        };
        write().map_err(|error| {
            format!(
                "cannot write {}: {error}, so GPUs are tested again by the next run",
                path(directory).display()
            )
        })
    }

    /// Takes over others, which are later.
    pub fn add(&mut self, new: &Records) {
        self.format = FORMAT;
        for record in &new.tested {
            self.tested.retain(|known| known.gpu.uuid != record.gpu.uuid);
            self.tested.push(record.clone());
        }
        for record in &new.copied {
            let ends = |copy: &CopyRecord| [copy.from.uuid.clone(), copy.to.uuid.clone()];
            self.copied.retain(|known| ends(known) != ends(record));
            self.copied.push(record.clone());
        }
        self.tested.drain(..self.tested.len().saturating_sub(GPUS_MAX));
        self.copied.drain(..self.copied.len().saturating_sub(PAIRS_MAX));
    }

    /// The GPU that was tested longest ago.
    #[cfg(test)]
    pub fn first(&self) -> Option<&GpuRecord> {
        self.tested.first()
    }

    /// What is known of a device with its present driver, by whichever program.
    pub fn of_device(&self, device: &Device) -> Option<&GpuRecord> {
        self.tested.iter().find(|record| record.gpu.is_of(device))
    }

    /// What is known of copies from a device to another, by whichever program.
    pub fn of_copy(&self, from: &Device, to: &Device) -> Option<&CopyRecord> {
        self.copied.iter().find(|record| record.from.is_of(from) && record.to.is_of(to))
    }

    /// Whether each of some GPUs, and copies from each to each other one, are known.
    pub fn know_all(&self, keys: &[GpuKey]) -> bool {
        let knows_copy = |from: &GpuKey, to: &GpuKey| {
            from == to || self.copied.iter().any(|copy| copy.from == *from && copy.to == *to)
        };
        keys.iter().all(|key| {
            self.tested.iter().any(|record| record.gpu == *key)
                && keys.iter().all(|other| knows_copy(key, other))
        })
    }
}
