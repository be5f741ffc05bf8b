//! A first profile of a host, as text: what was found, with how each figure is known, for people to
//! change.
//!
//! It describes the very devices that are here, by their lasting names; of the host it states what
//! was measured or declared only, and what is assumed stands beside it in comments, so that a
//! better figure replaces it. What it says of policy are comments too. Read again here, it gives
//! the same inventory, but for what others use meanwhile.

use std::fmt::Write;

use protocol::Bytes;

use super::DEVICES_MAX;
use super::values::{ByteRate, FlopRate};
use crate::budget::{default_host_margin, default_margin};
use crate::inventory::{Device, DeviceKind, Inventory, Rate, Source};

/// The profile of an inventory; `None` where it has more devices than a profile can list.
pub fn text(inventory: &Inventory) -> Option<String> {
    if inventory.devices.len() > DEVICES_MAX {
        return None;
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = head(&mut text, inventory);
    for device in &inventory.devices {
        let _ = of_device(&mut text, device);
    }
    let _ = policy(&mut text, inventory);
    Some(text)
}

fn head(text: &mut String, inventory: &Inventory) -> std::fmt::Result {
    let host = &inventory.host;
    writeln!(
        text,
        "# Written by `berth devices --profile`; what the keys mean stands in profiles/README.md."
    )?;
    writeln!(
        text,
        "# A line that begins with `# ` and a key has the value that holds without it."
    )?;
    writeln!(text, "name = {}", quoted(&host.name))?;
    writeln!(text, "description = {}", quoted(&format!("{}, as Berth found it.", host.name)))?;
    if let Some(why) = &inventory.why_no_devices {
        writeln!(text, "# No device was found: {}", one_line(why))?;
        writeln!(text, "devices = \"detect\"")?;
    }
    writeln!(text, "\n[host]")?;
    writeln!(text, "# memory = {}  # read at each start", size(host.total_bytes))?;
    writeln!(text, "# cores = {}", host.cores)?;
    writeln!(text, "# cpu = {}", quoted(&host.cpu))?;
    if !host.compute {
        writeln!(text, "compute = false")?;
    }
    let speeds = &host.speeds;
    of_host(text, "flops", speeds.f32_flops_per_s, flops)?;
    of_host(text, "memory_bandwidth", speeds.memory_bytes_per_s, bytes_per_s)?;
    of_host(text, "storage_bandwidth", host.storage_bytes_per_s, bytes_per_s)?;
    of_host(text, "page_cache_bandwidth", host.page_cache_bytes_per_s, bytes_per_s)
}

/// A rate of the host: a key of its own unless it is assumed.
fn of_host(text: &mut String, key: &str, rate: Rate, shown: fn(f64) -> String) -> std::fmt::Result {
    let mark = if rate.source == Source::Assumed { "# " } else { "" };
    writeln!(text, "{mark}{key} = {}  # {}", shown(rate.value), rate.source)
}

fn of_device(text: &mut String, device: &Device) -> std::fmt::Result {
    let speeds = &device.speeds;
    writeln!(text, "\n[[device]]  # {}", device.id)?;
    let kind = match device.kind {
        DeviceKind::Cuda => "cuda",
        DeviceKind::Virtual => "virtual",
    };
    writeln!(text, "kind = \"{kind}\"")?;
    writeln!(text, "name = {}", quoted(&device.name))?;
    if let Some(uuid) = &device.uuid {
        writeln!(text, "uuid = {}", quoted(uuid))?;
    }
    writeln!(text, "total = {}", size(device.total_bytes))?;
    let used = device.total_bytes.saturating_sub(device.free_bytes);
    match device.uuid {
        Some(_) => writeln!(
            text,
            "used_by_others = {}  # now; read at each start, by the uuid",
            size(used)
        )?,
        None => writeln!(text, "used_by_others = {}", size(used))?,
    }
    if device.integrated {
        writeln!(text, "integrated = true  # shares the host's memory; used only when named")?;
    }
    let link = device.pcie.as_deref().map(|pcie| format!(", {pcie}")).unwrap_or_default();
    let from_device = device.link_bytes_per_s;
    if speeds.half_flops_per_s.source == Source::Datasheet {
        writeln!(text, "rates = \"datasheet\"  # programs reach a part of them")?;
    }
    writeln!(text, "link = {}  # {}{link}", bytes_per_s(from_device.value), from_device.source)?;
    let integers = speeds.integer_flops_per_s.map(|rate| ("integer_flops", rate));
    let rates = [("flops", speeds.f32_flops_per_s), ("half_flops", speeds.half_flops_per_s)];
    for (key, rate) in rates.into_iter().chain(integers) {
        writeln!(text, "{key} = {}  # {}", flops(rate.value), rate.source)?;
    }
    let memory = speeds.memory_bytes_per_s;
    writeln!(text, "memory_bandwidth = {}  # {}", bytes_per_s(memory.value), memory.source)?;
    let mark = if device.overhead_source == Source::Assumed { "# " } else { "" };
    let overhead = size(device.overhead_bytes);
    writeln!(text, "{mark}overhead = {overhead}  # {}", device.overhead_source)?;
    let (mark, margin) = match device.margin_bytes {
        Some(margin) => ("", margin),
        None => ("# ", default_margin(device)),
    };
    writeln!(text, "{mark}margin = {}", size(margin))
}

fn policy(text: &mut String, inventory: &Inventory) -> std::fmt::Result {
    let ids = inventory.devices.iter().map(|device| device.id.as_str());
    let places = ids.chain(["host"]).collect::<Vec<_>>().join("&");
    let margin = default_host_margin(&inventory.host);
    writeln!(text, "\n[policy]")?;
    writeln!(text, "# margin = \"host={}B\"", margin.0)?;
    for line in [
        "max_vram = \"100%\"  # or \"8\" (GiB, each device), \"-1\" (free less 1 GiB), \"8,cuda0=6\"",
        "max_ram = \"100%\"",
        "max_pinned = \"100%\"",
        "optimize = \"latency\"",
        "mmap_policy = \"keep\"",
    ] {
        writeln!(text, "# {line}")?;
    }
    writeln!(text, "# allow = \"all={places}\"  # the places that components may have")?;
    writeln!(text, "# For example, that the DiT is not computed on the host: forbid = \"dit=host\"")
}

/// In the largest unit that states it exactly.
fn size(bytes: Bytes) -> String {
    for (unit, shift) in [("GiB", 30), ("MiB", 20), ("KiB", 10)] {
        if bytes.0 > 0 && bytes.0.is_multiple_of(1 << shift) {
            return format!("\"{}{unit}\"", bytes.0 >> shift);
        }
    }
    format!("\"{}B\"", bytes.0)
}

/// With the largest prefix that leaves at least one, where it reads as the same rate.
fn flops(rate: f64) -> String {
    let written = [("T", 1e12), ("G", 1e9), ("M", 1e6)].into_iter();
    let written = written.filter(|(_, scale)| rate >= *scale);
    let mut written = written.map(|(prefix, scale)| format!("{}{prefix}FLOP/s", rate / scale));
    let exact = written.find(|text| FlopRate::try_from(text.clone()) == Ok(FlopRate(rate)));
    format!("\"{}\"", exact.unwrap_or_else(|| format!("{rate}FLOP/s")))
}

/// As [`flops`], in whole bytes per second.
fn bytes_per_s(rate: f64) -> String {
    let rate = rate.round().max(1.0);
    let written = [("GB", 1e9), ("MB", 1e6)].into_iter().filter(|(_, scale)| rate >= *scale);
    let mut written = written.map(|(unit, scale)| format!("{}{unit}/s", rate / scale));
    let exact = written.find(|text| ByteRate::try_from(text.clone()) == Ok(ByteRate(rate)));
    format!("\"{}\"", exact.unwrap_or_else(|| format!("{rate}B/s")))
}

/// As a string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(one_line(text)).to_string()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::Speeds;
    use crate::inventory::tests::{device_of, host_of};
    use crate::profile::Profile;

    fn machine() -> Inventory {
        let mut large = device_of("cuda0", Bytes(25_757_220_864), Bytes(25_757_220_864 - 1234));
        large.name = "A \"card\"\\ of\nmany words".to_owned();
        large.uuid = Some("GPU-1".to_owned());
        large.speeds = Speeds::new(
            Rate::assumed(82_575_360e6),
            Rate::measured(165.2e12 / 3.0),
            Rate::measured(1e12 / 7.0),
            crate::inventory::speeds::CUDA_STARTS_PER_S,
        );
        large.link_bytes_per_s = Rate::assumed(26.526_315_789e9);
        large.overhead_source = Source::Measured;
        large.overhead_bytes = Bytes::mib(300);
        let mut shared = device_of("cuda1", Bytes::gib(8), Bytes::gib(6));
        shared.integrated = true;
        shared.margin_bytes = Some(Bytes::ZERO);
        let mut simulated = device_of("virtual0", Bytes(1), Bytes(1));
        simulated.speeds = host_of(Bytes(1), Bytes(1)).speeds;
        Inventory {
            source: Inventory::THIS_MACHINE.to_owned(),
            host: host_of(Bytes::gib(64), Bytes::gib(40)),
            devices: vec![large, shared, simulated],
            why_no_devices: None,
        }
    }

    fn close(a: Rate, b: Rate) -> bool {
        (a.value / b.value - 1.0).abs() < 1e-9
    }

    #[test]
    fn it_is_read_again_as_it_was() {
        let machine = machine();
        let text = text(&machine).expect("few devices");
        let profile = Profile::parse(&text, "t").unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(profile.policy, crate::policy::PolicyText::default());
        let again = profile.inventory_on(&machine.host);
        assert_eq!(again.source, "test");
        assert_eq!(again.host.total_bytes, machine.host.total_bytes);
        assert_eq!(again.host.available_bytes, machine.host.available_bytes);
        assert!(close(again.host.speeds.f32_flops_per_s, machine.host.speeds.f32_flops_per_s));
        for (read, written) in again.devices.iter().zip(&machine.devices) {
            let sizes =
                |device: &Device| [device.total_bytes, device.free_bytes, device.overhead_bytes];
            assert_eq!(sizes(read), sizes(written), "{text}");
            assert_eq!(
                (&read.id, &read.uuid, read.kind),
                (&written.id, &written.uuid, written.kind)
            );
            assert_eq!(
                (read.integrated, read.margin_bytes),
                (written.integrated, written.margin_bytes)
            );
            assert!(close(read.link_bytes_per_s, written.link_bytes_per_s), "{text}");
            let (read, written) = (&read.speeds, &written.speeds);
            assert!(close(read.f32_flops_per_s, written.f32_flops_per_s), "{text}");
            assert!(close(read.half_flops_per_s, written.half_flops_per_s), "{text}");
            let integers = [read, written].map(|speeds| speeds.integer_flops_per_s);
            assert_eq!(integers[0].map(|rate| rate.value), integers[1].map(|rate| rate.value));
            assert!(close(read.memory_bytes_per_s, written.memory_bytes_per_s), "{text}");
        }
        assert_eq!(again.devices[0].name, "A \"card\"\\ of many words");
    }

    #[test]
    fn its_comments_are_keys_that_could_be_used() {
        let text = text(&machine()).expect("few devices");
        let keys = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' ')) => rest,
            _ => line,
        });
        let text = keys.collect::<Vec<_>>().join("\n");
        let profile = Profile::parse(&text, "t").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let policy = profile.policy;
        assert_eq!(policy.allow.as_deref(), Some("all=cuda0&cuda1&virtual0&host"));
        assert!(policy.margin.is_some_and(|margin| margin.starts_with("host=")));
        assert_eq!(profile.host.cores, Some(8));
    }

    #[test]
    fn without_devices_they_are_detected() {
        let mut machine = machine();
        machine.devices.clear();
        machine.why_no_devices = Some("no NVIDIA driver\nat all".to_owned());
        let text = text(&machine).expect("no devices");
        let profile = Profile::parse(&text, "t").expect("a good profile");
        assert_eq!(profile.devices, crate::profile::ProfileDevices::Detect);
        assert!(text.contains("# No device was found: no NVIDIA driver at all\n"), "{text}");
        machine.devices = vec![device_of("cuda0", Bytes(1), Bytes(1)); DEVICES_MAX + 1];
        assert_eq!(super::text(&machine), None);
    }
}
