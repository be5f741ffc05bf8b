//! What the self-test found of GPUs, kept between runs, and what follows from it for plans.
//!
//! ```text
//! plan ──► its GPUs are tested, by this program? ──no──► SelfTest ──keep──► self-test.toml
//!  ▲                  │yes                                  │
//!  └── apply: what differs is not computed there ◄──────────┘
//! ```
//! A record is of a GPU, by its UUID, with its driver and the program; another driver or program is
//! tested anew. The executor computes; here is only what came of it.
//!
//! What a GPU computes otherwise than the host, by whatever kernels, is unsupported there, by
//! operations: the host does these, or all, as is sooner done. Two GPUs between which copies arrive
//! changed are not used together: the later one is left out.
//! ([Decision](../../docs/decisions/0020-self-test.md).)

mod record;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::calibration::CalibrationDevice;
use protocol::plan::{DeviceBackend, DevicePlan};
use protocol::self_test::SelfTest;
use protocol::{DeviceId, Plan};

pub use record::{CopyRecord, GpuKey, GpuRecord, Records};

use crate::inventory::{Device, DeviceKind, Inventory};
use crate::planning::Request;

/// The environment variable by which `0` says that no GPU is tested before it is used.
pub const SELF_TEST: &str = "BERTH_SELF_TEST";

/// Whether GPUs are tested before they are used.
pub fn is_wanted() -> bool {
    std::env::var_os(SELF_TEST).is_none_or(|value| value != "0")
}

/// The records, in a directory or, where there is none, for as long as this process runs.
#[derive(Debug, Clone)]
pub struct SelfTests {
    directory: Option<PathBuf>,
    /// What this process has found.
    found: Arc<Mutex<Records>>,
}

/// GPUs of a plan that are to be tested before it is loaded.
#[derive(Debug)]
pub struct ToTest {
    /// What the executor is asked.
    pub devices: Vec<CalibrationDevice>,
    keys: Vec<GpuKey>,
}

impl SelfTests {
    /// Those in a directory.
    pub fn under(directory: Option<&Path>) -> SelfTests {
        SelfTests { directory: directory.map(Path::to_owned), found: Arc::default() }
    }

    /// The file, where there is a place for one.
    pub fn path(&self) -> Option<PathBuf> {
        self.directory.as_deref().map(record::path)
    }

    /// All records: a file that cannot be used is as good as none, since what it said is found
    /// anew.
    fn records(&self) -> Records {
        let mut records = self.directory.as_deref().map(Records::read).unwrap_or_default();
        records.add(&self.found());
        records
    }

    fn found(&self) -> MutexGuard<'_, Records> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what is known of an inventory's GPUs into a request, whichever program found it.
    pub fn apply(&self, request: &mut Request) {
        let gpus = request.inventory.devices.iter();
        if gpus.filter(|device| device.kind == DeviceKind::Cuda).count() == 0 {
            return;
        }
        let records = self.records();
        for device in &mut request.inventory.devices {
            if let Some(record) = records.of_device(device) {
                device.unsupported = record.operations();
            }
        }
        let apart = apart(&records, &request.inventory);
        let is_new = |id: &DeviceId| !request.left_out.contains(id);
        let apart: Vec<DeviceId> =
            apart.into_iter().map(|(_, later)| later).filter(is_new).collect();
        request.left_out.extend(apart);
    }

    /// The GPUs of a plan, each once, where one of them or a copy between two is not known of this
    /// program; `None` where all is known.
    pub fn to_test(&self, plan: &Plan, inventory: &Inventory, program: &str) -> Option<ToTest> {
        let mut keys: Vec<GpuKey> = Vec::new();
        let mut devices = Vec::new();
        for device in plan.devices.iter().filter(|device| plan.uses(&device.id)) {
            let Some(key) = key(device, inventory, program) else { continue };
            if keys.iter().all(|known| known.uuid != key.uuid) {
                keys.push(key);
                devices.push(to_measure(device));
            }
        }
        let records = self.records();
        (!records.know_all(&keys)).then_some(ToTest { devices, keys })
    }

    /// GPUs of an inventory that are to be tested whatever is known.
    pub fn all(
        &self,
        devices: Vec<CalibrationDevice>,
        inventory: &Inventory,
        program: &str,
    ) -> ToTest {
        let mut to_test = ToTest { devices: Vec::new(), keys: Vec::new() };
        for device in devices {
            let of_inventory = inventory.device(&device.id.0);
            let Some(key) = of_inventory.and_then(|of| GpuKey::of(of, program)) else { continue };
            if to_test.keys.iter().all(|known| known.uuid != key.uuid) {
                to_test.keys.push(key);
                to_test.devices.push(device);
            }
        }
        to_test
    }

    /// Keeps what was found.
    ///
    /// # Errors
    /// It cannot be written; as a sentence. This process knows it nevertheless.
    pub fn keep(&self, tested: &ToTest, found: &SelfTest) -> Result<(), String> {
        let records = Records::of(&tested.keys, found);
        self.found().add(&records);
        match &self.directory {
            Some(directory) => Records::update(directory, &records),
            None => Ok(()),
        }
    }

    /// Whether a plan does without all that is wrong on its GPUs, and, unless it was `given`, has
    /// them compute all else; if not, why.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check(&self, plan: &Plan, inventory: &Inventory, given: bool) -> Result<(), String> {
        let records = self.records();
        let used = |device: &&DevicePlan| plan.uses(&device.id);
        for planned in plan.devices.iter().filter(used) {
            let DeviceBackend::Cuda { uuid, unsupported } = &planned.backend else { continue };
            let devices = inventory.devices.iter();
            let of = |device: &&Device| device.uuid.is_some() && device.uuid == *uuid;
            let record = devices.filter(of).find_map(|device| records.of_device(device));
            let known = record.map(GpuRecord::operations).unwrap_or_default();
            let is_without = known.iter().all(|name| unsupported.contains(name));
            if !is_without || !given && known.len() < unsupported.len() {
                let what = record.filter(|record| record.fails()).map(GpuRecord::told);
                let what = what.unwrap_or_else(|| "computes all as the host does".to_owned());
                return Err(format!("{} {what}", planned.id));
            }
        }
        let uses = |id: &DeviceId| plan.uses(id);
        let apart = apart(&records, inventory);
        match apart.into_iter().find(|(told, later)| uses(&told.0) && uses(later)) {
            Some((told, later)) => Err(told_apart(&told, &later)),
            None => Ok(()),
        }
    }

    /// What is wrong with GPUs of an inventory and what follows, as sentences.
    pub fn told(&self, inventory: &Inventory) -> Vec<String> {
        if inventory.devices.iter().all(|device| device.kind != DeviceKind::Cuda) {
            return Vec::new();
        }
        let records = self.records();
        let failing = inventory.devices.iter().filter_map(|device| {
            let record = records.of_device(device).filter(|record| record.fails())?;
            let operations = record.operations().join(", ");
            Some(format!(
                "{} ({}) {}; it computes no {operations}; hint: `berth calibrate --self-test` tests it again",
                device.id,
                device.name,
                record.told()
            ))
        });
        let apart = apart(&records, inventory);
        failing.chain(apart.iter().map(|(told, later)| told_apart(told, later))).collect()
    }
}

/// The first of two devices, and what was found between them.
type Apart = (DeviceId, String);

fn told_apart((first, what): &Apart, later: &DeviceId) -> String {
    format!(
        "{what}: {later} is not used beside {first}; hint: `berth calibrate --self-test` tests it again"
    )
}

/// Pairs of devices between which copies arrive changed, the later one of the inventory last.
fn apart(records: &Records, inventory: &Inventory) -> Vec<(Apart, DeviceId)> {
    let mut pairs = Vec::new();
    for (index, later) in inventory.devices.iter().enumerate() {
        for first in &inventory.devices[..index] {
            let both = [(first, later), (later, first)];
            let bad = both.into_iter().find_map(|(from, to)| {
                let record = records.of_copy(from, to)?;
                Some(format!(
                    "copies from {} to {} arrive changed: {}",
                    from.id,
                    to.id,
                    record.changed.as_ref()?
                ))
            });
            if let Some(what) = bad {
                pairs.push(((DeviceId(first.id.clone()), what), DeviceId(later.id.clone())));
            }
        }
    }
    pairs
}

/// The key of a plan's GPU, if it is one that is here.
fn key(planned: &DevicePlan, inventory: &Inventory, program: &str) -> Option<GpuKey> {
    let DeviceBackend::Cuda { uuid: Some(uuid), .. } = &planned.backend else { return None };
    let mut devices = inventory.devices.iter();
    let device = devices.find(|device| device.uuid.as_ref() == Some(uuid))?;
    GpuKey::of(device, program)
}

/// A device of a plan, with what the plan has of it.
fn to_measure(device: &DevicePlan) -> CalibrationDevice {
    CalibrationDevice {
        id: device.id.clone(),
        backend: device.backend.clone(),
        budget_bytes: device.budget_bytes,
        overhead_bytes: device.overhead_bytes,
        pinned_bytes: device.pinned_bytes,
    }
}

#[cfg(test)]
mod tests;
