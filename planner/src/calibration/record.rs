//! What `berth calibrate` measured, into the file's form.

use protocol::StorageType;
use protocol::calibration::{Calibration, MeasuredDevice, MeasuredSpeeds};
use protocol::profile::WorkKind;

use super::content::{Content, SpeedSection};
use super::key::{DeviceKey, Machine};
use super::limits::OVERHEAD;
use crate::inventory::{DeviceKind, Inventory};

impl Content {
    /// Puts measured figures of the host and of an inventory's devices in the place of what is
    /// known of them. Corrections go, as they are relative to the rates before.
    pub fn record(&mut self, machine: &Machine, inventory: &Inventory, measured: &Calibration) {
        if let Some(rate) = measured.storage_bytes_per_s {
            self.host.storage_bytes_per_s = Some(rate.round());
        }
        self.host.page_cache_bytes_per_s = Some(measured.page_cache_bytes_per_s.round());
        let speeds = Some(SpeedSection::of(&measured.host));
        match machine.part(&inventory.host) {
            None => {
                self.host.speeds = speeds;
                self.host.correction.clear();
            }
            Some(part) => {
                let section = self.section(part);
                section.speeds = speeds;
                section.correction.clear();
            }
        }
        for device in &measured.devices {
            self.record_device(inventory, device);
        }
    }

    fn record_device(&mut self, inventory: &Inventory, measured: &MeasuredDevice) {
        let Some(device) = inventory.device(&measured.id.0) else { return };
        let Some(key) = DeviceKey::of(inventory, device) else { return };
        let section = self.section(key.clone());
        section.link_bytes_per_s = Some(measured.link_bytes_per_s.round());
        section.link_back_bytes_per_s = Some(measured.link_back_bytes_per_s.round());
        section.speeds = Some(SpeedSection::of(&measured.speeds));
        section.correction.clear();
        // A virtual device has what its profile declares.
        if let (Some(bytes), DeviceKind::Cuda) = (measured.overhead_bytes, device.kind) {
            self.learn_overhead(&key, bytes.max(*OVERHEAD.start()));
        }
    }
}

impl SpeedSection {
    /// Rates as the executor tells them. Of the half precisions the slower one stands for all that
    /// are not measured: none is then promised too much.
    pub fn of(measured: &MeasuredSpeeds) -> SpeedSection {
        let rate = |kinds: &[WorkKind]| {
            let work = measured.work.iter().filter(|work| kinds.contains(&work.kind));
            work.map(|work| work.flops_per_s.round()).reduce(f64::min)
        };
        let half = [WorkKind::Matmul(StorageType::F16), WorkKind::Matmul(StorageType::BF16)];
        SpeedSection {
            f32_flops_per_s: rate(&[WorkKind::Matmul(StorageType::F32)]),
            half_flops_per_s: rate(&half),
            bf16_flops_per_s: rate(&[WorkKind::Matmul(StorageType::BF16)]),
            integer_flops_per_s: rate(&[WorkKind::Matmul(StorageType::Q8_0)]),
            attention_flops_per_s: rate(&[WorkKind::Attention]),
            convolution_flops_per_s: rate(&[WorkKind::Convolution]),
            memory_bytes_per_s: Some(measured.memory_bytes_per_s.round()),
            starts_per_s: Some(measured.starts_per_s.round()),
        }
    }
}
