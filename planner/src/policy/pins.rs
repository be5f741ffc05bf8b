//! Pins: what a user says of places by hand, as text.
//!
//! ```text
//! --backend         dit=virtual0:3&virtual1:1,vae=virtual1,cond=cpu
//! --params-backend  dit=cpu,vae=disk
//! --split-mode      dit=row
//! --lookahead       dit=4
//! ```
//! Each is a list of `component=value`; a bare value is for `all`. What can be wrong with the text
//! alone is refused here; whether it makes sense for a model on a machine is said by
//! [`Pins::resolve`].

mod changed;
mod items;
mod limits;
mod resolve;
mod subject;

use std::fmt;

use protocol::limits::{LOOKAHEAD_MAX, ROW_SHARE_MAX};

pub use items::{group_counts, item_counts, item_counts_of};
pub use resolve::Pin;

use crate::inventory::names;
use limits::{ALLOW, DeviceNames, FORBID};

/// As much of a wrong text as an error repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// What a flag says, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag} `{text}`: {problem}; hint: {hint}")]
pub struct PinError {
    /// The flag, as `--backend`.
    pub flag: &'static str,
    /// The entry, shortened.
    pub text: String,
    /// What is wrong.
    pub problem: String,
    /// What would do.
    pub hint: String,
}

/// Where a component's weights are while it does not compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Params {
    /// In RAM: streamed to where it computes.
    Cpu,
    /// The same from page-locked copies, all that is streamed.
    Locked,
    /// On disk: loaded for its phase only.
    Disk,
    /// On the devices where it computes, in all phases.
    Device,
}

impl Params {
    /// Whether weights pass through a ring of slots.
    pub const fn is_streamed(self) -> bool {
        matches!(self, Params::Cpu | Params::Locked)
    }
}

/// How a component is split over several devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Split {
    /// Contiguous segments, one device after the other.
    Layer,
    /// The rows of each large matrix.
    Row,
    /// The heads and features of each block.
    Tensor,
    /// The items of a step: pictures, and the passes of guidance.
    Items,
    /// Contiguous segments, through which groups of the items follow one another.
    Pipeline,
}

/// Devices as written, each with its share where one was given.
type NamedDevices = Vec<(String, Option<u32>)>;

/// One `component=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry<T> {
    /// The component or its alias, in lower case; `all` for a bare value.
    subject: String,
    value: T,
    /// The entry as written.
    text: String,
}

/// What is pinned, as written: readable, not yet compared with a model or a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pins {
    backend: Vec<Entry<NamedDevices>>,
    params: Vec<Entry<Params>>,
    split: Vec<Entry<Split>>,
    lookahead: Vec<Entry<u32>>,
    allow: Vec<Entry<DeviceNames>>,
    forbid: Vec<Entry<DeviceNames>>,
}

impl Pins {
    /// Reads the four flags.
    ///
    /// # Errors
    /// One of them is no list of `component=value`, or a value is none of the flag's.
    pub fn parse(
        backend: Option<&str>,
        params: Option<&str>,
        split: Option<&str>,
        lookahead: Option<&str>,
    ) -> Result<Pins, PinError> {
        Ok(Pins {
            backend: entries(BACKEND, backend, devices)?,
            params: entries(PARAMS, params, params_of)?,
            split: entries(SPLIT, split, split_of)?,
            lookahead: entries(LOOKAHEAD, lookahead, lookahead_of)?,
            ..Pins::default()
        })
    }

    /// These pins, within the limits of a host profile: where components may be, and where they
    /// must not.
    ///
    /// # Errors
    /// One of them is no list of `component=devices`.
    pub fn within(self, allow: Option<&str>, forbid: Option<&str>) -> Result<Pins, PinError> {
        Ok(Pins {
            allow: entries(ALLOW, allow, limits::places)?,
            forbid: entries(FORBID, forbid, limits::places)?,
            ..self
        })
    }
}

/// A flag, or a profile's key, with an example for its hints.
#[derive(Clone, Copy)]
struct Flag {
    name: &'static str,
    example: &'static str,
}

const BACKEND: Flag =
    Flag { name: "--backend", example: "write devices, as dit=cuda0&cuda1,vae=cuda1,cond=cpu" };
const PARAMS: Flag = Flag {
    name: "--params-backend",
    example: "write cpu (streamed), locked (streamed from page-locked copies), disk (loaded for its phase only) or device (resident), as dit=cpu,vae=disk",
};
const SPLIT: Flag = Flag {
    name: "--split-mode",
    example: "write layer, row, tensor, items or pipeline, as dit=row",
};
const LOOKAHEAD: Flag = Flag {
    name: "--lookahead",
    example: "write a number of stream slots from 1 to 64, as 2 or dit=4",
};

impl Flag {
    fn error(self, text: &str, problem: impl fmt::Display) -> PinError {
        self.hinted(text, problem, self.example)
    }

    fn hinted(self, text: &str, problem: impl fmt::Display, hint: impl fmt::Display) -> PinError {
        PinError {
            flag: self.name,
            text: text.trim().chars().take(SHOWN_CHARS_MAX).collect(),
            problem: problem.to_string(),
            hint: hint.to_string(),
        }
    }
}

/// The entries of a flag; its absence has none.
fn entries<T>(
    flag: Flag,
    text: Option<&str>,
    value: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<Entry<T>>, PinError> {
    let mut entries: Vec<Entry<T>> = Vec::new();
    for text in text.into_iter().flat_map(|text| text.split(',')) {
        let (subject, written) = text.split_once('=').unwrap_or((ALL, text));
        let subject = subject.trim().to_lowercase();
        if subject.is_empty() {
            return Err(flag.error(text, "it names no component"));
        }
        if entries.iter().any(|entry| entry.subject == subject) {
            return Err(flag.hinted(
                text,
                format_args!("`{subject}` stands twice"),
                "name each component once",
            ));
        }
        let value = value(written.trim()).map_err(|problem| flag.error(text, problem))?;
        entries.push(Entry { subject, value, text: text.trim().to_owned() });
    }
    Ok(entries)
}

/// The subject that means every component.
const ALL: &str = "all";

fn devices(text: &str) -> Result<NamedDevices, String> {
    let device = |text: &str| {
        let (name, share) = match text.split_once(':') {
            None => (text, None),
            Some((name, share)) => {
                let number = share.trim().parse().ok();
                let number = number.filter(|share| (1..=ROW_SHARE_MAX).contains(share));
                let number = number.ok_or_else(|| {
                    format!(
                        "`{}` is not a share, a whole number from 1 to {ROW_SHARE_MAX}",
                        shown(share)
                    )
                })?;
                (name, Some(number))
            }
        };
        match name.trim().to_lowercase().as_str() {
            "" => Err("a device has no name".to_owned()),
            name if names::is_host(name) => Ok((names::HOST_NAMES[0].to_owned(), share)),
            name => Ok((name.to_owned(), share)),
        }
    };
    let devices = text.split('&').map(device).collect::<Result<NamedDevices, String>>()?;
    let shares = devices.iter().filter(|(_, share)| share.is_some()).count();
    match (devices.len(), shares) {
        (1, 1..) => Err("a share for the only device".to_owned()),
        (count, shares) if shares != 0 && shares != count => {
            Err("some of the devices have a share, some have none".to_owned())
        }
        _ => Ok(devices),
    }
}

fn params_of(text: &str) -> Result<Params, String> {
    match text.to_lowercase().as_str() {
        "cpu" | "host" => Ok(Params::Cpu),
        "locked" => Ok(Params::Locked),
        "disk" => Ok(Params::Disk),
        "device" => Ok(Params::Device),
        _ => Err(format!("`{}` is not a place for weights", shown(text))),
    }
}

fn split_of(text: &str) -> Result<Split, String> {
    match text.to_lowercase().as_str() {
        "layer" => Ok(Split::Layer),
        "row" => Ok(Split::Row),
        "tensor" => Ok(Split::Tensor),
        "items" => Ok(Split::Items),
        "pipeline" => Ok(Split::Pipeline),
        _ => Err(format!("`{}` is not a way to split", shown(text))),
    }
}

fn lookahead_of(text: &str) -> Result<u32, String> {
    let slots = text.parse().ok().filter(|slots| (1..=LOOKAHEAD_MAX).contains(slots));
    slots.ok_or_else(|| format!("`{}` is not within 1 to {LOOKAHEAD_MAX}", shown(text)))
}

fn shown(text: &str) -> String {
    text.trim().chars().take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
