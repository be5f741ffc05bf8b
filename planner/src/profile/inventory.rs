//! From a profile to an inventory: what a profile does not say is this machine's, and a device that
//! names a GPU which is here is that one.

use super::{DeviceProfile, HostProfile, Profile, ProfileDevices, parts};
use crate::inventory::nvml::{Detected, rates};
use crate::inventory::speeds::{CUDA_STARTS_PER_S, HOST_STARTS_PER_S};
use crate::inventory::{
    ASSUMED_CONTEXT_BYTES, Device, DeviceKind, HostError, HostFacts, Inventory, Rate, Source,
    Speeds, detected, device_id, host,
};
use protocol::Bytes;

impl Profile {
    /// The machine that it describes; what it leaves out of the host is taken from this machine. A
    /// listed device that names a GPU which is here is that one, or a part of it: see `parts`.
    ///
    /// # Errors
    /// The host's memory cannot be read.
    pub fn inventory(&self) -> Result<Inventory, HostError> {
        let this_host = HostFacts::of_this_machine()?;
        Ok(self.inventory_with(&this_host, &detected))
    }

    /// [`Profile::inventory`] with `this_host` given, and what `detect` finds on a host, which is
    /// asked only where the profile means GPUs of this machine.
    pub(super) fn inventory_with(
        &self,
        this_host: &HostFacts,
        detect: &dyn Fn(&HostFacts) -> Detected,
    ) -> Inventory {
        let mut inventory = self.inventory_on(this_host);
        match &self.devices {
            ProfileDevices::Detect => {
                let Detected { devices, why_none } = detect(&inventory.host);
                (inventory.devices, inventory.why_no_devices) = (devices, why_none);
            }
            ProfileDevices::Listed(listed) if listed.iter().any(|d| d.named_gpu().is_some()) => {
                let here = detect(&inventory.host);
                for (device, listed) in inventory.devices.iter_mut().zip(listed) {
                    match (listed.gpu(&here.devices), listed.named_gpu()) {
                        (Some(gpu), _) => listed.place_on(gpu, device),
                        (None, Some(named)) => {
                            device.missing = Some(why_missing(&named, &here));
                        }
                        (None, None) => {}
                    }
                }
                parts::divide(listed, &mut inventory.devices, &here.devices);
            }
            ProfileDevices::Listed(_) => {}
        }
        inventory
    }

    /// [`Profile::inventory`] with `this_host` given, and nothing read: a profile that asks
    /// for detection has no devices here, and GPUs that it names are as it describes them.
    pub fn inventory_on(&self, this_host: &HostFacts) -> Inventory {
        let name = match self.name.as_str() {
            Inventory::THIS_MACHINE => &this_host.name,
            name => name,
        };
        let mut host = self.host.over(name, this_host);
        if self.devices == ProfileDevices::Detect {
            // It is this machine, which has no more than it has, whatever is said of it.
            host.total_bytes = host.total_bytes.min(this_host.total_bytes);
            host.available_bytes = host.available_bytes.min(this_host.available_bytes);
            host.cgroup_limit_bytes = this_host.cgroup_limit_bytes;
        }
        let listed: &[DeviceProfile] = match &self.devices {
            ProfileDevices::Detect => &[],
            ProfileDevices::Listed(devices) => devices,
        };
        let (mut cuda_count, mut virtual_count) = (0, 0);
        let mut devices: Vec<Device> = listed
            .iter()
            .map(|device| {
                let index = match device.kind {
                    DeviceKind::Cuda => &mut cuda_count,
                    DeviceKind::Virtual => &mut virtual_count,
                };
                let id = device_id(device.kind, *index);
                *index += 1;
                device.to_device(id, &host)
            })
            .collect();
        parts::divide(listed, &mut devices, &[]);
        tell_missing_threads(&mut devices, host.cores.min(this_host.cores));
        let why_no_devices = match &self.devices {
            ProfileDevices::Detect => Some("the devices were not looked for".to_owned()),
            ProfileDevices::Listed(devices) if devices.is_empty() => {
                Some(format!("the profile `{}` lists no device", self.name))
            }
            ProfileDevices::Listed(_) => None,
        };
        Inventory { source: self.name.clone(), host, devices, why_no_devices }
    }
}

impl HostProfile {
    /// This profile's values over those of `this_host`.
    pub fn over(&self, name: &str, this_host: &HostFacts) -> HostFacts {
        let total_bytes = self.memory_bytes.unwrap_or(this_host.total_bytes);
        let available_bytes = self.available_bytes.unwrap_or(match self.memory_bytes {
            Some(memory) => memory,
            None => this_host.available_bytes,
        });
        // A declared size is another machine's: the limits of this one's control groups are not its
        // own.
        let imagined = self.memory_bytes.is_some() || self.available_bytes.is_some();
        let cores = self.cores.unwrap_or(this_host.cores);
        let source = self.rates.unwrap_or(Source::Declared);
        let rate = |stated: Option<f64>, otherwise: Rate| {
            stated.map_or(otherwise, |value| Rate::new(value, source))
        };
        let (flops, memory) = match self.cores {
            Some(cores) => (host::assumed_flops(cores), host::assumed_memory_rate(cores)),
            None => (this_host.speeds.f32_flops_per_s, this_host.speeds.memory_bytes_per_s),
        };
        let declared = [self.f32_flops_per_s, self.memory_bytes_per_s];
        let as_here = self.cores.is_none() && declared == [None, None];
        let memory = rate(self.memory_bytes_per_s, memory);
        let page_cache = match as_here {
            true => this_host.page_cache_bytes_per_s,
            false => host::assumed_page_cache_rate(memory),
        };
        HostFacts {
            name: name.to_owned(),
            total_bytes,
            available_bytes: available_bytes.min(total_bytes),
            cgroup_limit_bytes: this_host.cgroup_limit_bytes.filter(|_| !imagined),
            cores,
            cpu: self.cpu.clone().unwrap_or_else(|| this_host.cpu.clone()),
            compute: self.compute.unwrap_or(true),
            speeds: match as_here {
                true => this_host.speeds.clone(),
                false => host::host_speeds(rate(self.f32_flops_per_s, flops), memory),
            },
            storage_bytes_per_s: rate(self.storage_bytes_per_s, this_host.storage_bytes_per_s),
            page_cache_bytes_per_s: rate(self.page_cache_bytes_per_s, page_cache),
            page_cache: self.storage_bytes_per_s.is_none() && this_host.page_cache,
        }
    }
}

impl DeviceProfile {
    /// The device as the inventory has it, beside its `host`.
    pub fn to_device(&self, id: String, host: &HostFacts) -> Device {
        let free = self.total_bytes.saturating_sub(self.used_by_others_bytes);
        let default_name = match self.kind {
            DeviceKind::Cuda => "GPU of the profile",
            DeviceKind::Virtual => "virtual device",
        };
        let link = self.link_bytes_per_s.map(|value| self.stated(value));
        let link = link.unwrap_or(Rate::assumed(rates::Link::default().bytes_per_s()));
        let (overhead_bytes, overhead_source) = match (self.overhead_bytes, self.kind) {
            (Some(bytes), _) => (bytes, Source::Declared),
            (None, DeviceKind::Virtual) => (Bytes::ZERO, Source::Declared),
            (None, DeviceKind::Cuda) => (ASSUMED_CONTEXT_BYTES, Source::Assumed),
        };
        Device {
            id,
            kind: self.kind,
            name: self.name.clone().unwrap_or_else(|| default_name.to_owned()),
            uuid: self.uuid.clone(),
            ordinal: None,
            part: None,
            missing: None,
            total_bytes: self.total_bytes,
            free_bytes: if self.integrated { free.min(host.available_bytes) } else { free },
            used_by_others_bytes: self.used_by_others_bytes,
            margin_bytes: self.margin_bytes,
            integrated: self.integrated,
            link_bytes_per_s: link,
            link_back_bytes_per_s: link,
            speeds: self.speeds(host),
            overhead_bytes,
            overhead_source,
            pinned_bytes: self.pinned_bytes.unwrap_or(self.kind.staging_bytes()),
            driver: None,
            pcie: None,
            faults: self.faults,
            speed: self.speed,
            threads: self.threads,
            unsupported: self.unsupported.clone(),
        }
    }

    /// Makes its device one on a GPU that is here: what it does not declare is that GPU's. Memory
    /// is divided later.
    pub fn place_on(&self, gpu: &Device, device: &mut Device) {
        device.uuid = gpu.uuid.clone();
        device.ordinal = gpu.ordinal;
        device.driver = gpu.driver.clone();
        device.pcie = gpu.pcie.clone();
        device.integrated |= gpu.integrated;
        if self.name.is_none() {
            device.name = gpu.name.clone();
        }
        if self.link_bytes_per_s.is_none() {
            device.link_bytes_per_s = gpu.link_bytes_per_s;
            device.link_back_bytes_per_s = gpu.link_back_bytes_per_s;
        }
        let rate = |stated: Option<f64>, otherwise: Rate| {
            stated.map_or(otherwise, |value| self.stated(value))
        };
        let half = self.half_flops_per_s.or(self.f32_flops_per_s);
        // What is stated of half precision stands for integers, unless these are stated too.
        let integer_flops = match self.integer_flops_per_s {
            Some(value) => Some(self.stated(value)),
            None => gpu.speeds.integer_flops_per_s.filter(|_| half.is_none()),
        };
        device.speeds = Speeds::new(
            rate(self.f32_flops_per_s, gpu.speeds.f32_flops_per_s),
            rate(half, gpu.speeds.half_flops_per_s),
            rate(self.memory_bytes_per_s, gpu.speeds.memory_bytes_per_s),
            CUDA_STARTS_PER_S,
        )
        .with_integers(integer_flops);
    }

    /// A rate that the profile states.
    fn stated(&self, value: f64) -> Rate {
        Rate::new(value, self.rates)
    }

    /// What is declared over what the host's kernels do at this speed, or a modest GPU.
    fn speeds(&self, host: &HostFacts) -> Speeds {
        let own = match self.kind {
            DeviceKind::Virtual => host.virtual_speeds(self.speed, self.threads),
            DeviceKind::Cuda => rates::modest_speeds(),
        };
        let half = self.half_flops_per_s;
        let declared =
            [self.f32_flops_per_s, half, self.integer_flops_per_s, self.memory_bytes_per_s];
        if self.kind == DeviceKind::Virtual && declared == [None; 4] {
            return own;
        }
        let rate = |declared: Option<f64>, otherwise: Rate| {
            declared.map_or(Rate::assumed(otherwise.value), |value| self.stated(value))
        };
        let f32_flops = rate(self.f32_flops_per_s, own.f32_flops_per_s);
        let half_flops = half.map_or(f32_flops, |value| self.stated(value));
        let integer_flops = self.integer_flops_per_s.map(|value| self.stated(value));
        let memory_bytes = rate(self.memory_bytes_per_s, own.memory_bytes_per_s);
        let starts_per_s = match self.kind {
            DeviceKind::Virtual => HOST_STARTS_PER_S * self.speed,
            DeviceKind::Cuda => CUDA_STARTS_PER_S,
        };
        Speeds::new(f32_flops, half_flops, memory_bytes, starts_per_s).with_integers(integer_flops)
    }
}

/// Says of each device whose own threads the machine's cores are too few for, after those of the
/// devices before it: they would take turns, and no time would be as predicted.
fn tell_missing_threads(devices: &mut [Device], cores: usize) {
    let mut taken = 0;
    for device in devices {
        let Some(threads) = device.threads else { continue };
        let left = cores.saturating_sub(taken);
        if threads > left {
            let s = if threads == 1 { "" } else { "s" };
            device.missing = Some(format!(
                "it has {threads} thread{s} of its own, and the devices before it leave {left} of {cores} cores"
            ));
        }
        taken += threads;
    }
}

/// Why a GPU is not here, as a clause.
fn why_missing(named: &str, here: &Detected) -> String {
    let shown = |gpu: &Device| match (gpu.ordinal, &gpu.uuid) {
        (Some(ordinal), Some(uuid)) => format!("ordinal {ordinal} ({uuid})"),
        _ => gpu.lasting_name(),
    };
    let shown: Vec<String> = here.devices.iter().map(shown).collect();
    match &here.why_none {
        Some(why) => format!("GPU {named} is not here: {why}"),
        None => format!("GPU {named} is not here, but {}", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests;
