//! The GPUs of this machine, asked of NVML, which creates no CUDA context and takes no device
//! memory.
//!
//! The library is loaded when asked; that it, the driver or a GPU is absent is an ordinary answer
//! with a reason. Not here: anything that only a CUDA context could tell (overhead, real rates),
//! which the executor measures.
//!
//! Invariants: ids follow the PCI bus order (what CUDA does under `CUDA_DEVICE_ORDER=PCI_BUS_ID`;
//! NVML's own order is another); a device that does not answer is left out with a reason, and never
//! stops the others.

pub mod rates;
pub mod visible;

use std::collections::BTreeMap;
use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use protocol::{Bytes, Faults};

use super::speeds::CUDA_STARTS_PER_S;
use super::{
    ASSUMED_CONTEXT_BYTES, Device, DeviceKind, HostFacts, Rate, Source, Speeds, device_id,
};
use visible::{GpuNames, VisibleGpu};

/// NVML's library, as the driver installs it.
#[cfg(not(windows))]
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// NVML's library, as the driver installs it.
#[cfg(windows)]
pub const LIBRARY: &str = "nvml.dll";

/// Words that only the names of NVIDIA's systems on a chip hold: Jetson boards report `Orin
/// (nvgpu)`, `NVIDIA Thor` and the like, DGX Spark `NVIDIA GB10`.
const INTEGRATED_WORDS: [&str; 6] = ["tegra", "nvgpu", "orin", "xavier", "thor", "gb10"];

/// What NVML said.
#[derive(Debug, Clone, PartialEq)]
pub struct Detected {
    /// The usable GPUs, by ascending id.
    pub devices: Vec<Device>,
    /// Why there is none, as a sentence.
    pub why_none: Option<String>,
}

/// Asks the NVML at `library` (a name for the loader, or a path) for the GPUs, keeps those that
/// `visible` (the value of `CUDA_VISIBLE_DEVICES`, see [`visible::choose`]) shows, and numbers them
/// from `cuda0` in PCI bus order.
///
/// A GPU without memory of its own shares `host`'s: NVML has no such fact, so a GPU counts as
/// integrated where its name is that of a system on a chip, or where NVML answers "not supported"
/// when asked for its memory, as it does on those. Its memory is then the host's.
pub fn detect(library: &Path, visible: Option<&str>, host: &HostFacts) -> Detected {
    match devices(library, visible, host) {
        Ok(devices) => Detected { devices, why_none: None },
        Err(why) => Detected { devices: Vec::new(), why_none: Some(why) },
    }
}

/// The devices, at least one, or the reason why there is none.
fn devices(library: &Path, visible: Option<&str>, host: &HostFacts) -> Result<Vec<Device>, String> {
    let nvml = open(library)?;
    let mut left_out = Vec::new();
    let gpus = gpus_by_bus(&nvml, &mut left_out)?;
    let names: Vec<GpuNames> = gpus.iter().map(|gpu| gpu.names.clone()).collect();
    let choices = visible::choose(visible, &names);
    let order = visible::order(visible, &names);
    if let (true, false, Some(visible)) = (choices.is_empty(), gpus.is_empty(), visible) {
        return Err(format!(
            "CUDA_VISIBLE_DEVICES=\"{visible}\" hides every GPU ({} here)",
            gpus.len()
        ));
    }
    let driver = nvml.sys_driver_version().ok();
    let mut devices = Vec::new();
    for choice in choices {
        let id = device_id(DeviceKind::Cuda, devices.len());
        match gpus[choice.gpu].device(choice, id, driver.clone(), host) {
            Ok(device) => {
                let ordinal = order.iter().position(|known| *known == choice);
                devices.push(Device { ordinal, ..device });
            }
            Err(why) => left_out.push(why),
        }
    }
    for why in &left_out {
        tracing::warn!("GPU left out: {why}");
    }
    match (devices.is_empty(), left_out.is_empty()) {
        (false, _) => Ok(devices),
        (true, true) if gpus.is_empty() => Err("the NVIDIA driver shows no GPU".to_owned()),
        (true, true) => Err("every GPU is in MIG mode, without an instance".to_owned()),
        (true, false) => Err(format!("no GPU is usable: {}", left_out.join("; "))),
    }
}

/// Loads the library; why not, as a sentence.
fn open(library: &Path) -> Result<Nvml, String> {
    let nvml = Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .map_err(|error| why_not_started(library, &error))?;
    if nvml.lib().nvmlShutdown.is_err() {
        // The wrapper's destructor would panic on the missing function: such a library stays
        // loaded.
        std::mem::forget(nvml);
        return Err(format!(
            "{} is not a complete NVML: it has no nvmlShutdown",
            library.display()
        ));
    }
    Ok(nvml)
}

/// Whether any GPU has memory of a process, which may have ended; `None` where NVML does not say
/// who is on one. In a container NVML knows processes by other numbers, and lists none of ours.
pub fn lists(library: &Path, pid: u32) -> Option<bool> {
    let nvml = open(library).ok()?;
    let gpus = gpus_by_bus(&nvml, &mut Vec::new()).ok()?;
    let mut found = Some(false);
    for handle in gpus.iter().flat_map(Gpu::places) {
        match handle.running_compute_processes() {
            Ok(listed) if listed.iter().any(|process| process.pid == pid) => return Some(true),
            Ok(_) => {}
            Err(_) => found = None,
        }
    }
    found
}

/// What some processes hold of each GPU and instance, by UUID; without those of which NVML does not
/// say who is on them.
pub fn held_by(library: &Path, is_one: impl Fn(u32) -> bool) -> BTreeMap<String, Bytes> {
    let Ok(nvml) = open(library) else { return BTreeMap::new() };
    let gpus = gpus_by_bus(&nvml, &mut Vec::new()).unwrap_or_default();
    let held = |handle: &nvml_wrapper::Device<'_>| {
        let listed = handle.running_compute_processes().ok()?;
        let bytes =
            listed.iter().filter(|process| is_one(process.pid)).map(|process| {
                match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                    UsedGpuMemory::Unavailable => None,
                }
            });
        Some((handle.uuid().ok()?, bytes.sum::<Option<Bytes>>()?))
    };
    gpus.iter().flat_map(Gpu::places).filter_map(held).collect()
}

/// One GPU that NVML could open.
struct Gpu<'nvml> {
    handle: nvml_wrapper::Device<'nvml>,
    /// Its MIG instances, in the order of `names.instances`.
    instances: Vec<nvml_wrapper::Device<'nvml>>,
    /// Where it is on PCI: domain, bus, slot.
    bus_address: (u32, u32, u32),
    names: GpuNames,
}

fn gpus_by_bus<'nvml>(
    nvml: &'nvml Nvml,
    left_out: &mut Vec<String>,
) -> Result<Vec<Gpu<'nvml>>, String> {
    let count =
        nvml.device_count().map_err(|error| format!("NVML does not count the GPUs: {error}"))?;
    let mut gpus = Vec::new();
    for index in 0..count {
        match nvml.device_by_index(index).and_then(Gpu::open) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => left_out.push(format!("NVML's GPU {index}: {error}")),
        }
    }
    gpus.sort_by(|a, b| {
        a.bus_address.cmp(&b.bus_address).then_with(|| a.names.uuid.cmp(&b.names.uuid))
    });
    Ok(gpus)
}

impl<'nvml> Gpu<'nvml> {
    fn open(handle: nvml_wrapper::Device<'nvml>) -> Result<Gpu<'nvml>, NvmlError> {
        let pci = handle.pci_info()?;
        // GPUs without MIG answer "not supported", old drivers lack the function: both mean "off".
        let mig = handle.mig_mode().is_ok_and(|mode| mode.current != 0);
        let mut instances = Vec::new();
        let mut instance_uuids = Vec::new();
        // The count is the most that the GPU could have: places without an instance answer "not
        // found".
        for index in 0..if mig { handle.mig_device_count().unwrap_or(0) } else { 0 } {
            let Ok(instance) = handle.mig_device_by_index(index) else { continue };
            let Ok(uuid) = instance.uuid() else { continue };
            instances.push(instance);
            instance_uuids.push(uuid);
        }
        Ok(Gpu {
            bus_address: (pci.domain, pci.bus, pci.device),
            names: GpuNames { uuid: handle.uuid()?, mig, instances: instance_uuids },
            handle,
            instances,
        })
    }

    /// What processes run on: the GPU, or its instances.
    fn places(&self) -> impl Iterator<Item = &nvml_wrapper::Device<'nvml>> {
        let whole = (!self.names.mig).then_some(&self.handle);
        whole.into_iter().chain(&self.instances)
    }

    /// The facts of the whole GPU or of one of its instances; the error is a reason to leave it
    /// out.
    fn device(
        &self,
        choice: VisibleGpu,
        id: String,
        driver: Option<String>,
        host: &HostFacts,
    ) -> Result<Device, String> {
        let (handle, uuid) = match choice.instance {
            Some(index) => (&self.instances[index], &self.names.instances[index]),
            None => (&self.handle, &self.names.uuid),
        };
        let name = handle.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned());
        let memory = match handle.memory_info() {
            Ok(info) => Some(info),
            Err(NvmlError::NotSupported) => None,
            Err(error) => return Err(format!("{name} ({uuid}): its memory is not told: {error}")),
        };
        let integrated = memory.is_none() || is_system_on_chip(&name);
        let (total, free, used) = match &memory {
            Some(info) => (Bytes(info.total), Bytes(info.free), Bytes(info.used)),
            None => {
                let used = host.total_bytes.saturating_sub(host.available_bytes);
                (host.total_bytes, host.available_bytes, used)
            }
        };
        if total == Bytes::ZERO {
            return Err(format!("{name} ({uuid}): it reports no memory"));
        }
        let whole = rates::read(&self.handle);
        // An instance has its share of the processors and of the memory channels; NVML tells the
        // memory only.
        let share = match (choice.instance, self.handle.memory_info()) {
            (Some(_), Ok(whole)) if whole.total > total.0 => total.0 as f64 / whole.total as f64,
            _ => 1.0,
        };
        let memory_bytes_per_s = Rate::datasheet(whole.memory_bytes_per_s * share);
        // An integrated GPU reads the host's memory itself.
        let link = match integrated {
            true => memory_bytes_per_s,
            false => Rate::datasheet(whole.link.bytes_per_s()),
        };
        Ok(Device {
            id,
            kind: DeviceKind::Cuda,
            name,
            uuid: Some(uuid.clone()),
            ordinal: None,
            part: None,
            missing: None,
            total_bytes: total,
            free_bytes: if integrated { free.min(host.available_bytes) } else { free }.min(total),
            used_by_others_bytes: used,
            margin_bytes: None,
            integrated,
            link_bytes_per_s: link,
            link_back_bytes_per_s: link,
            speeds: Speeds::new(
                Rate::datasheet(whole.f32_flops_per_s * share),
                Rate::datasheet(whole.half_flops_per_s * share),
                memory_bytes_per_s,
                CUDA_STARTS_PER_S,
            )
            .with_integers(whole.integer_flops_per_s.map(|rate| Rate::datasheet(rate * share))),
            overhead_bytes: ASSUMED_CONTEXT_BYTES,
            overhead_source: Source::Assumed,
            pinned_bytes: DeviceKind::Cuda.staging_bytes(),
            driver,
            pcie: whole.link.name(),
            faults: Faults::default(),
            speed: 1.0,
            threads: None,
            unsupported: Vec::new(),
        })
    }
}

fn is_system_on_chip(name: &str) -> bool {
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| INTEGRATED_WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

fn why_not_started(library: &Path, error: &NvmlError) -> String {
    let library = library.display();
    match error {
        // The loader's message is its only account of the cause.
        NvmlError::LibloadingError(error) if error.to_string().contains("No such file") => {
            format!("no NVIDIA driver: {library} was not found")
        }
        NvmlError::LibloadingError(error) => {
            format!("no NVIDIA driver: {library} could not be loaded: {error}")
        }
        NvmlError::FailedToLoadSymbol(symbol) => {
            format!("{library} is not a complete NVML: {symbol}")
        }
        NvmlError::DriverNotLoaded => {
            format!("the NVIDIA driver is not loaded: {library} is there, its kernel module is not")
        }
        NvmlError::LibRmVersionMismatch => format!(
            "{library} and the NVIDIA kernel module are of different versions; hint: a restart loads the new module"
        ),
        error => format!("NVML does not start: {error}"),
    }
}

#[cfg(test)]
mod tests;
