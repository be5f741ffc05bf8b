//! What this daemon's processes hold of GPUs, as the driver tells it.

use std::collections::BTreeMap;
use std::path::Path;

use protocol::Bytes;

use crate::inventory::{Device, DeviceKind, nvml};

/// What was last told. Nothing of it changes while nothing runs, and to ask takes tens of
/// milliseconds.
#[derive(Debug, Default)]
pub struct OurMemory {
    by_uuid: BTreeMap<String, Bytes>,
    ran: bool,
}

impl OurMemory {
    /// Asks again, where something runs or has just run.
    pub fn renew(&mut self, devices: &[Device], runs: bool) {
        let has_gpus = devices.iter().any(|device| device.kind == DeviceKind::Cuda);
        if has_gpus && (runs || self.ran) {
            self.by_uuid = nvml::held_by(Path::new(nvml::LIBRARY), is_ours);
        }
        self.ran = runs;
    }

    /// What is held of a device. `None` where nobody tells: a part of a GPU, one that was not asked
    /// yet, and processes that NVML knows by other numbers, as in containers.
    pub fn of(&self, device: &Device, idle: Bytes) -> Option<Bytes> {
        if device.kind == DeviceKind::Virtual {
            // It is memory of our own executors alone.
            return Some(idle);
        }
        let uuid = device.uuid.as_ref().filter(|_| device.part.is_none())?;
        self.by_uuid.get(uuid).copied().filter(|held| *held >= idle)
    }
}

/// Whether a process is this one, or an executor that it started.
fn is_ours(pid: u32) -> bool {
    let own = std::process::id();
    pid == own || parent(pid) == Some(own)
}

/// Who started a process: the fourth field of `/proc/PID/stat`, the second behind the name.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    #[test]
    fn a_child_is_ours_and_the_parent_is_not() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("cat runs");
        let own = std::process::id();
        assert!(is_ours(own) && is_ours(child.id()));
        assert!(!is_ours(parent(own).expect("it was started")));
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }

    #[test]
    fn what_the_driver_does_not_tell_is_not_known() {
        let inventory = Profile::load("virtual-2x2g").expect("shipped").inventory().expect("here");
        let virtual_device = &inventory.devices[0];
        let gpu = Device {
            kind: DeviceKind::Cuda,
            uuid: Some("GPU-1".to_owned()),
            ..virtual_device.clone()
        };
        let mut ours = OurMemory::default();
        assert_eq!(ours.of(virtual_device, Bytes(5)), Some(Bytes(5)));
        assert_eq!(ours.of(&gpu, Bytes(0)), None);
        ours.by_uuid.insert("GPU-1".to_owned(), Bytes(7));
        assert_eq!(ours.of(&gpu, Bytes(5)), Some(Bytes(7)));
        // Less than what is loaded there: those are others' numbers.
        assert_eq!(ours.of(&gpu, Bytes(9)), None);
    }
}
