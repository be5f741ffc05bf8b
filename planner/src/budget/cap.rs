//! One cap, as people write it.

use protocol::Bytes;

/// How much of one memory Berth may use at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cap {
    /// So many bytes; above zero.
    Bytes(Bytes),
    /// So much of the total: above 0, at most 100.
    Percent(f64),
    /// All that is free but this; it takes the margin's place.
    FreeLess(Bytes),
}

/// A cap that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CapError {
    /// It is no cap.
    #[error(
        "`{text}` is not an amount of memory; hint: write 8 or 8GiB, 6144MiB, 80%, or -1 for all that is free but 1 GiB"
    )]
    Unreadable {
        /// What was written.
        text: String,
    },
    /// It leaves nothing.
    #[error(
        "a budget of 0 (`{text}`) fits nothing; hint: leave it out to use what is free, or give at least 1MiB"
    )]
    Zero {
        /// What was written.
        text: String,
    },
    /// A percentage above 100.
    #[error("`{text}` is more than all of it; hint: write at most 100%")]
    AboveAll {
        /// What was written.
        text: String,
    },
    /// An entry of a list names no device.
    #[error(
        "`{entry}` names no device; hint: write one amount for each device, or a list such as cuda0=12,cuda1=6.5, in which an amount for all others stands first, as 8,cuda1=6"
    )]
    Unnamed {
        /// What was written, from comma to comma.
        entry: String,
    },
    /// A device has two values.
    #[error("{device} has two amounts; hint: name each device once")]
    Twice {
        /// What both of them name.
        device: String,
    },
    /// A cap for a device that is not there.
    #[error("no device `{device}`; {}", if known.is_empty() {
        "there is none".to_owned()
    } else {
        format!("hint: there is {}", known.join(", "))
    })]
    UnknownDevice {
        /// The name that was given.
        device: String,
        /// The devices there are.
        known: Vec<String>,
    },
    /// A name that several devices begin with.
    #[error("`{device}` may be any of {}; hint: write more of the name", several.join(", "))]
    Ambiguous {
        /// The name that was given.
        device: String,
        /// The devices that it may mean.
        several: Vec<String>,
    },
    /// The host among the devices.
    #[error(
        "`{name}` is not a device with memory of its own; hint: --max-ram limits the host's memory"
    )]
    Host {
        /// The name that was given.
        name: String,
    },
    /// A limit that is what something else leaves.
    #[error(
        "`{text}` is not a fixed limit; hint: write an amount as 2GiB, or a part of all memory as 10%"
    )]
    Relative {
        /// What was written.
        text: String,
    },
}

impl Cap {
    /// Reads `8` (GiB), `8GiB`, `6144MiB`, `1048576B`, `80%` of the total, or `-1`: what is free
    /// less 1 GiB (and so for any negative number or size).
    ///
    /// # Errors
    /// It is none of these, it is zero, or a percentage is above 100.
    pub fn parse(text: &str) -> Result<Cap, CapError> {
        let text = text.trim();
        let unreadable = || CapError::Unreadable { text: start(text) };
        let zero = || CapError::Zero { text: start(text) };
        if let Some(kept) = text.strip_prefix('-') {
            return match parse_size(kept).ok_or_else(unreadable)? {
                Bytes::ZERO => Err(zero()),
                kept => Ok(Cap::FreeLess(kept)),
            };
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent = plain_number(percent.trim_end()).ok_or_else(unreadable)?;
            return match percent {
                0.0 => Err(zero()),
                0.0..=100.0 => Ok(Cap::Percent(percent)),
                _ => Err(CapError::AboveAll { text: start(text) }),
            };
        }
        match parse_size(text).ok_or_else(unreadable)? {
            Bytes::ZERO => Err(zero()),
            bytes => Ok(Cap::Bytes(bytes)),
        }
    }
}

/// Reads what stays free of one memory: `1` (GiB), `512MiB`, `0`.
///
/// # Errors
/// It is no size.
pub fn parse_margin(text: &str) -> Result<Bytes, CapError> {
    parse_size(text.trim()).ok_or_else(|| CapError::Unreadable { text: start(text) })
}

/// Reads a limit that does not depend on what is free: as [`Cap::parse`], without its negative
/// form.
///
/// # Errors
/// It is no cap, or a negative one.
pub fn parse_limit(text: &str) -> Result<Cap, CapError> {
    match Cap::parse(text)? {
        Cap::FreeLess(_) => Err(CapError::Relative { text: start(text) }),
        cap => Ok(cap),
    }
}

impl CapError {
    pub(super) fn unnamed(entry: &str) -> CapError {
        CapError::Unnamed { entry: start(entry) }
    }

    pub(super) fn twice(device: &str) -> CapError {
        CapError::Twice { device: start(device) }
    }

    pub(super) fn unknown(device: &str, known: Vec<String>) -> CapError {
        CapError::UnknownDevice { device: start(device), known }
    }

    pub(super) fn several(device: &str, several: Vec<String>) -> CapError {
        CapError::Ambiguous { device: start(device), several }
    }
}

/// As much of a wrong text as an error repeats.
fn start(text: &str) -> String {
    text.trim().chars().take(80).collect()
}

/// A size with a unit, or a bare number of GiB.
fn parse_size(text: &str) -> Option<Bytes> {
    text.parse().ok().or_else(|| gib(text))
}

/// A bare number of GiB.
fn gib(number: &str) -> Option<Bytes> {
    plain_number(number)?;
    format!("{number}GiB").parse().ok()
}

/// Digits with at most one point: no sign, exponent, `inf` or `NaN`.
fn plain_number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.parse().ok().filter(|value: &f64| plain && value.is_finite())
}
