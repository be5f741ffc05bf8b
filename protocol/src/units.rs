//! Units: sizes in bytes.
//!
//! Every size that crosses a process or a crate border is a [`Bytes`]; bare integers are for
//! counts.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A size in bytes. Addition panics on overflow, as any overflow here is a bug: sizes that come
/// from files are checked with `checked_*` before they become a `Bytes`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// `count` × 2^10 bytes.
    pub const fn kib(count: u64) -> Bytes {
        Bytes(count << 10)
    }

    /// `count` × 2^20 bytes.
    pub const fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    /// `count` × 2^30 bytes.
    pub const fn gib(count: u64) -> Bytes {
        Bytes(count << 30)
    }

    /// The difference, or zero where `other` is larger.
    #[inline]
    pub fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The least multiple of `alignment` that is not below this size. `alignment` must be a power
    /// of two.
    pub fn align_up(self, alignment: u64) -> Bytes {
        assert!(alignment.is_power_of_two(), "alignment {alignment} is no power of two");
        Bytes(self.0.checked_add(alignment - 1).expect("size overflows") & !(alignment - 1))
    }

    /// The size as an index type.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).expect("a size beyond the address space")
    }
}

impl Add for Bytes {
    type Output = Bytes;
    #[inline]
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.checked_add(other.0).expect("size overflows"))
    }
}

impl AddAssign for Bytes {
    #[inline]
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    #[inline]
    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.checked_sub(other.0).expect("size below zero"))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes::ZERO, Add::add)
    }
}

/// For people: three significant digits in the largest binary unit that keeps the number at 1 or
/// more. Exact figures belong in `--json`, or are written with [`Bytes::0`] and the unit `B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1023.95 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = match (unit, value) {
            (0, _) => format!("{} B", self.0),
            (_, v) if v >= 99.95 => format!("{v:.0} {}", UNITS[unit]),
            (_, v) if v >= 9.995 => format!("{v:.1} {}", UNITS[unit]),
            (_, v) => format!("{v:.2} {}", UNITS[unit]),
        };
        f.pad(&text)
    }
}

/// A size that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no size; hint: write a number with a unit, such as 8GiB, 512MiB, 12GB or 4096B"
)]
pub struct ParseBytesError {
    text: String,
}

/// Reads `12GiB`, `1.5 MiB`, `800MB` (10^6), `4096B`. A unit is required: what a bare number means
/// (bytes in one place, GiB in another) is for the caller to say.
impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let fail = || ParseBytesError { text: text.chars().take(80).collect() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(fail)?;
        let (number, unit) = trimmed.split_at(split);
        let number = number.trim();
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(fail()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Bytes).ok_or_else(fail);
        }
        let plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let value: f64 = number.parse().ok().filter(|_| plain).ok_or_else(fail)?;
        let bytes = value * scale as f64;
        // 2^63: beyond any memory, and well inside the range that f64 converts without surprise.
        if bytes.is_finite() && bytes < 9.2e18 { Ok(Bytes(bytes as u64)) } else { Err(fail()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("1.5 MiB", 3 << 19),
            ("12GB", 12_000_000_000),
            ("4096B", 4096),
            ("0B", 0),
        ] {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        for text in
            ["", "8", "GiB", "-1GiB", "1e3MiB", "8XiB", "99999999999TiB", "infGiB", "1.2.3MiB"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 << 20, "10.0 MiB"),
            (1_048_575, "1.00 MiB"),
            (24 << 30, "24.0 GiB"),
            (300 << 30, "300 GiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
