//! The values that stand as strings in a profile: sizes and rates with their units.
//!
//! Each type is read by serde from a string, so that the TOML reader can say on which line a value
//! is wrong.

use protocol::Bytes;
use serde::Deserialize;

/// The highest rate, of bytes or operations per second, that is taken seriously: a thousand times
/// the fastest device of today.
pub const RATE_MAX: f64 = 1e19;

/// A size that may be zero: `"512MiB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Size(pub Bytes);

/// A size above zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PositiveSize(pub Bytes);

/// Bytes per second, above zero: `"25GiB/s"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct ByteRate(pub f64);

/// Floating point operations per second, above zero: `"82.6TFLOP/s"`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct FlopRate(pub f64);

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Size, String> {
        text.parse().map(Size).map_err(|error: protocol::units::ParseBytesError| error.to_string())
    }
}

impl TryFrom<String> for PositiveSize {
    type Error = String;

    fn try_from(text: String) -> Result<PositiveSize, String> {
        match Size::try_from(text)?.0 {
            Bytes::ZERO => Err("a size of zero; hint: write one above it".to_owned()),
            bytes => Ok(PositiveSize(bytes)),
        }
    }
}

impl TryFrom<String> for ByteRate {
    type Error = String;

    fn try_from(text: String) -> Result<ByteRate, String> {
        let size: Option<Bytes> =
            text.trim().strip_suffix("/s").and_then(|size| size.trim_end().parse().ok());
        match size {
            None => Err(format!(
                "`{}` is not a rate; hint: write a size per second, such as 25GiB/s or 448GB/s",
                start_of(&text)
            )),
            Some(Bytes::ZERO) => Err("a rate of zero; hint: write one above it".to_owned()),
            Some(bytes) => Ok(ByteRate(bytes.0 as f64)),
        }
    }
}

impl TryFrom<String> for FlopRate {
    type Error = String;

    fn try_from(text: String) -> Result<FlopRate, String> {
        let no_rate = || {
            format!(
                "`{}` is not a rate; hint: write operations per second, such as 82.6TFLOP/s or 400GFLOP/s",
                start_of(&text)
            )
        };
        let prefixed = text.trim().strip_suffix("FLOP/s").ok_or_else(no_rate)?;
        let (number, scale) = match prefixed.as_bytes().last().ok_or_else(no_rate)? {
            b'M' => (&prefixed[..prefixed.len() - 1], 1e6),
            b'G' => (&prefixed[..prefixed.len() - 1], 1e9),
            b'T' => (&prefixed[..prefixed.len() - 1], 1e12),
            b'P' => (&prefixed[..prefixed.len() - 1], 1e15),
            _ => (prefixed, 1.0),
        };
        let number = number.trim_end();
        let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let value: f64 = number.parse().ok().filter(|_| plain).ok_or_else(no_rate)?;
        match value * scale {
            rate if rate < 1.0 => {
                Err("a rate below one per second; hint: write a higher one".to_owned())
            }
            rate if rate > RATE_MAX => Err(format!("a rate above {RATE_MAX:e} per second")),
            rate => Ok(FlopRate(rate)),
        }
    }
}

/// As much of a wrong value as an error should repeat.
fn start_of(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_units() {
        for (text, expected) in [
            ("25GiB/s", 25.0 * (1u64 << 30) as f64),
            ("448GB/s", 448e9),
            ("1.5 MB/s", 1.5e6),
            ("1B/s", 1.0),
        ] {
            assert_eq!(ByteRate::try_from(text.to_owned()), Ok(ByteRate(expected)), "{text}");
        }
        for (text, expected) in [("82.6TFLOP/s", 82.6e12), ("400 GFLOP/s", 4e11), ("7FLOP/s", 7.0)]
        {
            assert_eq!(FlopRate::try_from(text.to_owned()), Ok(FlopRate(expected)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "/s", "25", "25GiB", "0GiB/s", "-1GiB/s", "NaNGiB/s", "infB/s", "25GFLOP/s", "é/s"]
        {
            assert!(ByteRate::try_from(text.to_owned()).is_err(), "{text}");
        }
        for text in [
            "",
            "FLOP/s",
            "TFLOP/s",
            "0TFLOP/s",
            "-1TFLOP/s",
            "1e400TFLOP/s",
            "NaNFLOP/s",
            "9TB/s",
            "éFLOP/s",
        ] {
            assert!(FlopRate::try_from(text.to_owned()).is_err(), "{text}");
        }
        let digits = format!("{}PFLOP/s", "9".repeat(400));
        assert!(FlopRate::try_from(digits).is_err());
        for text in ["", "0", "5", "0GiB", "x"] {
            assert!(PositiveSize::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(Size::try_from("0B".to_owned()), Ok(Size(Bytes::ZERO)));
    }
}
