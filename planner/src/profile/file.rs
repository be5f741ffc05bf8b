//! The profile's file as serde reads it, and the rules that span several keys.

use std::ops::{Deref, Range};

use protocol::limits::{SPEED_MIN, THREADS_MAX, UNSUPPORTED_MAX};
use protocol::{Bytes, Faults, Phase};
use serde::Deserialize;
use toml::Spanned;

use super::layer::Layer;
use super::values::{ByteRate, FlopRate, PositiveSize, Size};
use super::{DEVICES_MAX, DeviceProfile, HostProfile, Profile, ProfileDevices, ProfileError};
use crate::budget::{Cap, Margins, VramCaps, parse_limit, parse_margin};
use crate::inventory::{DeviceKind, Source};
use crate::policy::lora::parse_loras;
use crate::policy::pins::{PinError, Pins};
use crate::policy::tile::parse_tile;
use crate::policy::{PolicyText, parse_mapping_policy, parse_objective};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProfileFile {
    name: Option<Spanned<String>>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    devices: Option<Spanned<DevicesKey>>,
    #[serde(default)]
    host: HostSection,
    #[serde(default)]
    device: Vec<Spanned<DeviceSection>>,
    #[serde(default)]
    policy: PolicySection,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum DevicesKey {
    Detect,
    Listed,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct HostSection {
    memory: Option<PositiveSize>,
    available: Option<Spanned<PositiveSize>>,
    cores: Option<Spanned<usize>>,
    cpu: Option<String>,
    compute: Option<bool>,
    flops: Option<FlopRate>,
    memory_bandwidth: Option<ByteRate>,
    storage_bandwidth: Option<ByteRate>,
    page_cache_bandwidth: Option<ByteRate>,
    rates: Option<HostRatesKey>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum HostRatesKey {
    Declared,
    Assumed,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum RatesKey {
    Declared,
    Datasheet,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceSection {
    kind: KindKey,
    name: Option<String>,
    total: PositiveSize,
    used_by_others: Option<Spanned<Size>>,
    link: Option<ByteRate>,
    flops: Option<FlopRate>,
    half_flops: Option<FlopRate>,
    integer_flops: Option<FlopRate>,
    memory_bandwidth: Option<ByteRate>,
    rates: Option<Spanned<RatesKey>>,
    margin: Option<Spanned<String>>,
    #[serde(default)]
    integrated: bool,
    overhead: Option<Spanned<Size>>,
    pinned: Option<Spanned<PositiveSize>>,
    uuid: Option<Spanned<String>>,
    ordinal: Option<Spanned<usize>>,
    fail_allocation: Option<Spanned<u32>>,
    fail_copy: Option<Spanned<u32>>,
    taken: Option<Spanned<Size>>,
    taken_in: Option<Spanned<Phase>>,
    speed: Option<Spanned<f64>>,
    threads: Option<Spanned<usize>>,
    unsupported: Option<Spanned<Vec<String>>>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum KindKey {
    Cuda,
    Virtual,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct PolicySection {
    max_vram: Option<Spanned<String>>,
    max_ram: Option<Spanned<String>>,
    max_pinned: Option<Spanned<String>>,
    optimize: Option<Spanned<String>>,
    margin: Option<Spanned<String>>,
    backend: Option<Spanned<String>>,
    params_backend: Option<Spanned<String>>,
    split_mode: Option<Spanned<String>>,
    lookahead: Option<Spanned<String>>,
    allow: Option<Spanned<String>>,
    forbid: Option<Spanned<String>>,
    vae_tile: Option<Spanned<String>>,
    mmap_policy: Option<Spanned<String>>,
    lora: Option<Spanned<Vec<String>>>,
    no_prefetch: Option<bool>,
    exact_matmul: Option<bool>,
}

/// The most logical CPUs of a profile: each has a thread.
const CORES_MAX: usize = THREADS_MAX as usize;

/// The least page-locked memory of a device: four parts of 16 KiB, one of the larger pages of a
/// kernel.
const PINNED_BYTES_MIN: Bytes = Bytes::kib(64);

/// The most: its quarters are on the fastest link, PCI Express 7.0 x16, for a millisecond and more
/// each.
const PINNED_BYTES_MAX: Bytes = Bytes::gib(1);

/// As much of a line's key as an error repeats; the longest real one has 17 characters.
const KEY_CHARS_MAX: usize = 80;

/// As much of a message as an error shows: the TOML reader repeats wrong values whole.
const MESSAGE_CHARS_MAX: usize = 500;

/// What is wrong, and where in the text.
pub(super) struct TextError {
    span: Range<usize>,
    message: String,
}

/// A profile that stands by itself: it has a name, and devices that it does not list are none.
pub(super) fn parse(text: &str) -> Result<Profile, TextError> {
    let Layer { name, description, host, devices, policy } = parse_layer(text)?;
    let Some(name) = name else { return fail(0..0, "missing field `name`") };
    let devices = devices.unwrap_or(ProfileDevices::Listed(Vec::new()));
    Ok(Profile { name, description, host, devices, policy })
}

/// A profile of which everything may be left out.
pub(super) fn parse_layer(text: &str) -> Result<Layer, TextError> {
    let file: ProfileFile = toml::from_str(text).map_err(|error| TextError {
        span: error.span().unwrap_or(0..0),
        message: error.message().to_owned(),
    })?;
    if let Some(name) = file.name.as_ref().filter(|name| name.get_ref().trim().is_empty()) {
        return fail(name.span(), "an empty name");
    }
    let key = file.devices.as_ref().map(|key| *key.get_ref());
    let devices = match (key, file.device.first()) {
        (Some(DevicesKey::Detect), Some(first)) => {
            let message =
                "a device beside `devices = \"detect\"`; hint: detect devices, or list them";
            return fail(first.span(), message);
        }
        (Some(DevicesKey::Detect), None) => Some(ProfileDevices::Detect),
        (None, None) => None,
        (Some(DevicesKey::Listed) | None, _) => {
            if let Some(extra) = file.device.get(DEVICES_MAX) {
                return fail(extra.span(), format!("more than {DEVICES_MAX} devices"));
            }
            let devices: Result<_, _> = file.device.into_iter().map(device).collect();
            Some(ProfileDevices::Listed(devices?))
        }
    };
    Ok(Layer {
        name: file.name.map(Spanned::into_inner),
        description: file.description,
        host: host(file.host)?,
        devices,
        policy: policy(file.policy)?,
    })
}

fn host(section: HostSection) -> Result<HostProfile, TextError> {
    let memory_bytes = section.memory.map(|size| size.0);
    if let (Some(memory), Some(available)) = (memory_bytes, &section.available)
        && available.get_ref().0 > memory
    {
        return fail(available.span(), format!("more than the memory, {memory}"));
    }
    if let Some(cores) = &section.cores
        && !(1..=CORES_MAX).contains(cores.get_ref())
    {
        let cores_given = cores.get_ref();
        return fail(cores.span(), format!("{cores_given} is not within 1 to {CORES_MAX}"));
    }
    Ok(HostProfile {
        memory_bytes,
        available_bytes: section.available.map(|size| size.into_inner().0),
        cores: section.cores.map(Spanned::into_inner),
        cpu: section.cpu,
        compute: section.compute,
        f32_flops_per_s: section.flops.map(|rate| rate.0),
        memory_bytes_per_s: section.memory_bandwidth.map(|rate| rate.0),
        storage_bytes_per_s: section.storage_bandwidth.map(|rate| rate.0),
        page_cache_bytes_per_s: section.page_cache_bandwidth.map(|rate| rate.0),
        rates: section.rates.map(|rates| match rates {
            HostRatesKey::Declared => Source::Declared,
            HostRatesKey::Assumed => Source::Assumed,
        }),
    })
}

fn device(section: Spanned<DeviceSection>) -> Result<DeviceProfile, TextError> {
    let section_span = section.span();
    let section = section.into_inner();
    let total_bytes = section.total.0;
    if let Some(used) = &section.used_by_others
        && used.get_ref().0 > total_bytes
    {
        return fail(used.span(), format!("more than the device's total, {total_bytes}"));
    }
    if let Some(overhead) = &section.overhead
        && overhead.get_ref().0 >= total_bytes
    {
        return fail(overhead.span(), format!("not below the device's total, {total_bytes}"));
    }
    let kind = match section.kind {
        KindKey::Cuda => DeviceKind::Cuda,
        KindKey::Virtual => DeviceKind::Virtual,
    };
    check_failures(&section, kind)?;
    if let Some(speed) = &section.speed {
        check_speed(speed, kind)?;
    }
    if let Some(threads) = &section.threads {
        check_threads(threads, kind)?;
    }
    if let Some(rates) = section.rates.as_ref().filter(|_| kind == DeviceKind::Virtual)
        && *rates.get_ref() == RatesKey::Datasheet
    {
        return fail(rates.span(), "no virtual device has a datasheet");
    }
    check_gpu(&section, kind)?;
    let of_machine = section.uuid.is_some() || section.ordinal.is_some();
    if section.link.is_none() && (kind == DeviceKind::Virtual || !of_machine) {
        return fail(section_span, "missing field `link`");
    }
    if kind == DeviceKind::Cuda && !of_machine {
        for (missing, key) in [
            (section.flops.is_none(), "flops"),
            (section.memory_bandwidth.is_none(), "memory_bandwidth"),
        ] {
            if missing {
                return fail(
                    section_span,
                    format!("a cuda device needs `{key}`; hint: its datasheet has it"),
                );
            }
        }
    }
    Ok(DeviceProfile {
        kind,
        name: section.name,
        total_bytes,
        used_by_others_bytes: section
            .used_by_others
            .map_or(Bytes::ZERO, |size| size.into_inner().0),
        margin_bytes: match section.margin {
            None => None,
            Some(margin) => match parse_margin(margin.get_ref()) {
                Ok(bytes) => Some(bytes),
                Err(error) => return fail(margin.span(), error.to_string()),
            },
        },
        integrated: section.integrated,
        link_bytes_per_s: section.link.map(|rate| rate.0),
        f32_flops_per_s: section.flops.map(|rate| rate.0),
        half_flops_per_s: section.half_flops.map(|rate| rate.0),
        integer_flops_per_s: section.integer_flops.map(|rate| rate.0),
        memory_bytes_per_s: section.memory_bandwidth.map(|rate| rate.0),
        rates: match section.rates.map(Spanned::into_inner) {
            Some(RatesKey::Datasheet) => Source::Datasheet,
            Some(RatesKey::Declared) | None => Source::Declared,
        },
        overhead_bytes: section.overhead.map(|size| size.into_inner().0),
        pinned_bytes: section.pinned.map(|size| size.into_inner().0),
        uuid: section.uuid.map(Spanned::into_inner),
        ordinal: section.ordinal.map(Spanned::into_inner),
        faults: Faults {
            fail_allocation: section.fail_allocation.map(Spanned::into_inner),
            fail_copy: section.fail_copy.map(Spanned::into_inner),
            taken_bytes: section.taken.map_or(Bytes::ZERO, |size| size.into_inner().0),
            taken_in: section.taken_in.map(Spanned::into_inner),
        },
        speed: section.speed.map_or(1.0, Spanned::into_inner),
        threads: section.threads.map(Spanned::into_inner),
        unsupported: section.unsupported.map(Spanned::into_inner).unwrap_or_default(),
    })
}

/// The keys that mean a GPU of the machine, and its page-locked memory.
fn check_gpu(section: &DeviceSection, kind: DeviceKind) -> Result<(), TextError> {
    if let Some(ordinal) = &section.ordinal {
        if kind == DeviceKind::Virtual {
            return fail(ordinal.span(), "only a cuda device has an ordinal");
        }
        if section.uuid.is_some() {
            return fail(ordinal.span(), "an ordinal beside a uuid; hint: either names the GPU");
        }
    }
    let range = PINNED_BYTES_MIN..=PINNED_BYTES_MAX;
    match &section.pinned {
        Some(pinned) if !range.contains(&pinned.get_ref().0) => {
            let message = format!("not between {PINNED_BYTES_MIN} and {PINNED_BYTES_MAX}");
            fail(pinned.span(), message)
        }
        _ => Ok(()),
    }
}

/// The keys by which tests make a virtual device fail.
fn check_failures(section: &DeviceSection, kind: DeviceKind) -> Result<(), TextError> {
    let DeviceSection { fail_allocation, fail_copy, taken, taken_in, unsupported, .. } = section;
    let spans = [
        fail_allocation.as_ref().map(Spanned::span),
        fail_copy.as_ref().map(Spanned::span),
        taken.as_ref().map(Spanned::span),
        taken_in.as_ref().map(Spanned::span),
        unsupported.as_ref().map(Spanned::span),
    ];
    if let (DeviceKind::Cuda, Some(span)) = (kind, spans.into_iter().flatten().next()) {
        return fail(span, "only a virtual device can fail on demand");
    }
    for (nth, what) in [(fail_allocation, "allocations"), (fail_copy, "copies")] {
        if let Some(nth) = nth.as_ref().filter(|nth| *nth.get_ref() == 0) {
            return fail(nth.span(), format!("{what} are counted from 1"));
        }
    }
    if let Some(taken) = taken.as_ref().filter(|taken| taken.get_ref().0 > section.total.0) {
        return fail(taken.span(), format!("more than the device's total, {}", section.total.0));
    }
    if let Some(phase) = taken_in {
        if *phase.get_ref() == Phase::Load {
            return fail(
                phase.span(),
                "no phase of a job; hint: without it, memory is taken before the load",
            );
        }
        if taken.is_none() {
            return fail(phase.span(), "nothing is taken then; hint: `taken` says how much");
        }
    }
    let Some(names) = unsupported else { return Ok(()) };
    if names.get_ref().len() > UNSUPPORTED_MAX {
        return fail(names.span(), format!("more than {UNSUPPORTED_MAX} operations"));
    }
    match names.get_ref().iter().any(|name| name.len() > KEY_CHARS_MAX) {
        true => {
            fail(names.span(), format!("an operation's name of more than {KEY_CHARS_MAX} bytes"))
        }
        false => Ok(()),
    }
}

/// How much slower than the host's kernels a device is.
fn check_speed(speed: &Spanned<f64>, kind: DeviceKind) -> Result<(), TextError> {
    if kind == DeviceKind::Cuda {
        return fail(speed.span(), "only a virtual device computes at a declared speed");
    }
    match (SPEED_MIN..=1.0).contains(speed.get_ref()) {
        true => Ok(()),
        false => fail(speed.span(), format!("not between {SPEED_MIN} and 1")),
    }
}

/// How many threads of its own a device has.
fn check_threads(threads: &Spanned<usize>, kind: DeviceKind) -> Result<(), TextError> {
    if kind == DeviceKind::Cuda {
        return fail(threads.span(), "only a virtual device computes with threads");
    }
    match (1..=THREADS_MAX as usize).contains(threads.get_ref()) {
        true => Ok(()),
        false => fail(threads.span(), format!("not between 1 and {THREADS_MAX}")),
    }
}

fn policy(section: PolicySection) -> Result<PolicyText, TextError> {
    let pins = |problem: Result<Pins, PinError>| problem.err().map(|e| e.to_string());
    Ok(PolicyText {
        max_vram: checked(section.max_vram, |text| {
            VramCaps::parse(text).err().map(|e| e.to_string())
        })?,
        max_ram: checked(section.max_ram, |text| Cap::parse(text).err().map(|e| e.to_string()))?,
        optimize: checked(section.optimize, |text| {
            parse_objective(text).err().map(|e| e.to_string())
        })?,
        max_pinned: checked(section.max_pinned, |text| {
            parse_limit(text).err().map(|e| e.to_string())
        })?,
        margin: checked(section.margin, |text| Margins::parse(text).err().map(|e| e.to_string()))?,
        backend: checked(section.backend, |text| pins(Pins::parse(Some(text), None, None, None)))?,
        params_backend: checked(section.params_backend, |text| {
            pins(Pins::parse(None, Some(text), None, None))
        })?,
        split_mode: checked(section.split_mode, |text| {
            pins(Pins::parse(None, None, Some(text), None))
        })?,
        lookahead: checked(section.lookahead, |text| {
            pins(Pins::parse(None, None, None, Some(text)))
        })?,
        allow: checked(section.allow, |text| pins(Pins::default().within(Some(text), None)))?,
        forbid: checked(section.forbid, |text| pins(Pins::default().within(None, Some(text))))?,
        vae_tile: checked(section.vae_tile, |text| parse_tile(text).err().map(|e| e.to_string()))?,
        mmap_policy: checked(section.mmap_policy, |text| {
            parse_mapping_policy(text).err().map(|e| e.to_string())
        })?,
        lora: checked(section.lora, |texts| parse_loras(texts).err().map(|e| e.to_string()))?,
        no_prefetch: section.no_prefetch,
        exact_matmul: section.exact_matmul,
    })
}

/// The value, unless `problem` finds one in it.
fn checked<T: Deref>(
    value: Option<Spanned<T>>,
    problem: impl Fn(&T::Target) -> Option<String>,
) -> Result<Option<T>, TextError> {
    let Some(value) = value else { return Ok(None) };
    match problem(value.get_ref()) {
        Some(message) => fail(value.span(), message),
        None => Ok(Some(value.into_inner())),
    }
}

fn fail<T>(span: Range<usize>, message: impl Into<String>) -> Result<T, TextError> {
    Err(TextError { span, message: message.into() })
}

impl TextError {
    /// The error with the line of its place in `text`, and the key on that line.
    pub(super) fn at(self, text: &str, origin: &str) -> ProfileError {
        let before = text.get(..self.span.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let key = text.lines().nth(line - 1).and_then(|line| {
            let (key, _) = line.split_once('=')?;
            let key: String = key.trim().chars().take(KEY_CHARS_MAX).collect();
            Some(key).filter(|key| !key.is_empty() && !key.starts_with('#'))
        });
        let message = self.message.chars().take(MESSAGE_CHARS_MAX).collect();
        ProfileError::Invalid { origin: origin.to_owned(), line, key, message }
    }
}
