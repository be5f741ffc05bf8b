//! What a calibration file says: its text, and the rules that it keeps.

use protocol::Bytes;
use serde::{Deserialize, Serialize};

use super::key::{DeviceKey, Machine};
use super::limits::{
    BYTES_PER_S, CORRECTIONS_MAX, DEVICES_MAX, FLOPS_PER_S, OVERHEAD, RATIO, STARTS_PER_S,
};
use super::smooth::{Correction, Overhead};

/// Version of the file. One of another version is as good as none.
pub const FORMAT: u32 = 1;

/// The Berth that wrote it: another one's kernels may be of other speeds.
pub const BERTH: &str = env!("CARGO_PKG_VERSION");

const HEAD: &str = "\
# What Berth measured on this machine: rates by `berth calibrate`, corrections by each `berth generate`.
# Berth writes this file anew after a run. It may be deleted at any time: the next plans then go by
# assumptions until something is measured again. docs/calibration.md tells what the figures mean.
";

/// A calibration file, as it was read or will be written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    format: u32,
    berth: String,
    /// The CPU that the host's figures and those of virtual devices were measured with.
    cpu: String,
    cores: usize,
    #[serde(default)]
    pub host: CalibratedHost,
    /// By their last update, the latest at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<CalibratedDevice>,
}

/// What was measured of the host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedHost {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_cache_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speeds: Option<SpeedSection>,
    /// By their last update, the latest at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub correction: Vec<Correction>,
}

/// What was measured of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibratedDevice {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_back_bytes_per_s: Option<f64>,
    /// The device.
    pub of: DeviceKey,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Overhead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speeds: Option<SpeedSection>,
    /// By their last update, the latest at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub correction: Vec<Correction>,
}

/// The rates of a processor, per second; those that were measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpeedSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f32_flops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_flops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_flops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integer_flops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_flops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub convolution_flops_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub starts_per_s: Option<f64>,
}

impl Content {
    /// Nothing measured yet.
    pub fn new(machine: &Machine) -> Content {
        Content {
            format: FORMAT,
            berth: BERTH.to_owned(),
            cpu: machine.cpu.clone(),
            cores: machine.cores,
            host: CalibratedHost::default(),
            device: Vec::new(),
        }
    }

    /// Reads a file's text. `None` for a file that another version of Berth wrote.
    ///
    /// # Errors
    /// It is no calibration, or one that makes no sense; as a clause for people.
    pub fn parse(text: &str) -> Result<Option<Content>, String> {
        /// What every version has.
        #[derive(Deserialize)]
        struct VersionHeader {
            format: u32,
            berth: String,
        }
        let wrong = |error: toml::de::Error| {
            let line = error.span().map(|span| 1 + text[..span.start].matches('\n').count());
            let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            // The TOML reader repeats wrong values whole.
            line + &error.message().chars().take(200).collect::<String>()
        };
        let header: VersionHeader = toml::from_str(text).map_err(wrong)?;
        if (header.format, header.berth.as_str()) != (FORMAT, BERTH) {
            return Ok(None);
        }
        let content: Content = toml::from_str(text).map_err(wrong)?;
        content.check()?;
        Ok(Some(content))
    }

    /// The file's text.
    ///
    /// # Errors
    /// A figure makes no sense; as a clause for people.
    pub fn text(&self) -> Result<String, String> {
        self.check()?;
        let body = toml::to_string_pretty(self).map_err(|error| error.to_string())?;
        Ok(format!("{HEAD}\n{body}"))
    }

    /// What of it holds on a machine: with another CPU only what was measured of GPUs.
    pub fn on(mut self, machine: &Machine) -> Content {
        if (self.cpu.as_str(), self.cores) != (machine.cpu.as_str(), machine.cores) {
            self.device.retain(|section| !section.of.is_virtual());
            return Content { device: self.device, ..Content::new(machine) };
        }
        self
    }

    /// What was measured of a device.
    pub fn of(&self, key: &DeviceKey) -> Option<&CalibratedDevice> {
        self.device.iter().find(|section| section.of == *key)
    }

    /// The section of a device as the latest, new where there was none for just this key. What was
    /// measured of the device under another driver goes.
    pub fn section(&mut self, key: DeviceKey) -> &mut CalibratedDevice {
        let known = self.device.iter().position(|section| section.of == key);
        let section = match known {
            Some(index) => self.device.remove(index),
            None => CalibratedDevice::new(key),
        };
        self.device.retain(|other| !other.of.is_same_device(&section.of));
        if self.device.len() >= DEVICES_MAX {
            self.device.remove(0);
        }
        self.device.push(section);
        self.device.last_mut().expect("it was just put there")
    }

    /// Whether all figures make sense.
    fn check(&self) -> Result<(), String> {
        self.host.check()?;
        if self.device.len() > DEVICES_MAX {
            return Err(format!("{} devices, more than {DEVICES_MAX}", self.device.len()));
        }
        self.device.iter().try_for_each(CalibratedDevice::check)
    }
}

impl CalibratedHost {
    fn check(&self) -> Result<(), String> {
        let rates = [
            ("storage_bytes_per_s", self.storage_bytes_per_s),
            ("page_cache_bytes_per_s", self.page_cache_bytes_per_s),
        ];
        rates.into_iter().try_for_each(|(name, rate)| check(name, rate, &BYTES_PER_S))?;
        self.speeds.unwrap_or_default().check()?;
        check_corrections(&self.correction)
    }
}

impl CalibratedDevice {
    fn new(of: DeviceKey) -> CalibratedDevice {
        CalibratedDevice {
            link_bytes_per_s: None,
            link_back_bytes_per_s: None,
            of,
            overhead: None,
            speeds: None,
            correction: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let rates = [
            ("link_bytes_per_s", self.link_bytes_per_s),
            ("link_back_bytes_per_s", self.link_back_bytes_per_s),
        ];
        rates.into_iter().try_for_each(|(name, rate)| check(name, rate, &BYTES_PER_S))?;
        let Overhead { predicted_bytes, measured_bytes } =
            self.overhead.unwrap_or(Overhead::first(*OVERHEAD.start()));
        for Bytes(bytes) in [predicted_bytes, measured_bytes] {
            if !OVERHEAD.contains(&Bytes(bytes)) {
                return Err(format!("an overhead of {bytes} B makes no sense"));
            }
        }
        self.speeds.unwrap_or_default().check()?;
        check_corrections(&self.correction)
    }
}

impl SpeedSection {
    fn check(&self) -> Result<(), String> {
        for (name, rate) in [
            ("f32_flops_per_s", self.f32_flops_per_s),
            ("half_flops_per_s", self.half_flops_per_s),
            ("bf16_flops_per_s", self.bf16_flops_per_s),
            ("integer_flops_per_s", self.integer_flops_per_s),
            ("attention_flops_per_s", self.attention_flops_per_s),
            ("convolution_flops_per_s", self.convolution_flops_per_s),
        ] {
            check(name, rate, &FLOPS_PER_S)?;
        }
        check("memory_bytes_per_s", self.memory_bytes_per_s, &BYTES_PER_S)?;
        check("starts_per_s", self.starts_per_s, &STARTS_PER_S)
    }
}

fn check_corrections(corrections: &[Correction]) -> Result<(), String> {
    if corrections.len() > CORRECTIONS_MAX {
        return Err(format!("{} corrections, more than {CORRECTIONS_MAX}", corrections.len()));
    }
    corrections.iter().try_for_each(|correction| check("ratio", Some(correction.ratio), &RATIO))
}

/// Not a number is within no range.
fn check(
    name: &str,
    value: Option<f64>,
    range: &std::ops::RangeInclusive<f64>,
) -> Result<(), String> {
    match value {
        Some(value) if !range.contains(&value) => {
            Err(format!("a {name} of {value} makes no sense"))
        }
        _ => Ok(()),
    }
}
