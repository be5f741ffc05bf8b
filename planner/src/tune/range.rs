//! A range of budgets as written on the command line.

use std::str::FromStr;

use protocol::Bytes;

/// Budgets of each device, from the least to the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The least.
    pub low: Bytes,
    /// The largest.
    pub high: Bytes,
}

/// A range that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a range of budgets: {why}; hint: write the least and the largest, as 4GiB..24GiB"
)]
pub struct RangeError {
    text: String,
    why: String,
}

/// Reads `4GiB..24GiB`. A number without a unit is in GiB, as for `--max-vram`.
impl FromStr for Range {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Range, RangeError> {
        let fail =
            |why: &str| RangeError { text: text.chars().take(80).collect(), why: why.to_owned() };
        let (low, high) = text.split_once("..").ok_or_else(|| fail("there is no `..`"))?;
        let read = |part: &str| {
            let part = part.trim();
            let bare = !part.is_empty() && !part.ends_with(|c: char| c.is_ascii_alphabetic());
            let size = if bare { format!("{part}GiB") } else { part.to_owned() };
            size.parse::<Bytes>().map_err(|_| fail(&format!("`{part}` is not a size")))
        };
        let range = Range { low: read(low)?, high: read(high)? };
        if range.low == Bytes::ZERO {
            return Err(fail("a budget of nothing fits nothing"));
        }
        if range.low >= range.high {
            return Err(fail("the first is not below the second"));
        }
        Ok(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_caps_are() {
        let range = |low, high| Ok(Range { low: Bytes(low), high: Bytes(high) });
        assert_eq!("4GiB..24GiB".parse(), range(4 << 30, 24 << 30));
        assert_eq!("4..24".parse(), range(4 << 30, 24 << 30));
        assert_eq!(" 512MiB .. 1.5 ".parse(), range(512 << 20, 3 << 29));
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, why) in [
            ("", "there is no `..`"),
            ("4GiB", "there is no `..`"),
            ("..", "`` is not a size"),
            ("4GiB..", "`` is not a size"),
            ("a..b", "`a` is not a size"),
            ("-4..4", "`-4` is not a size"),
            ("1..2..3", "`2..3` is not a size"),
            ("0..4", "a budget of nothing"),
            ("8..4", "not below"),
            ("4..4", "not below"),
            ("1..1e30", "`1e30` is not a size"),
        ] {
            let error = text.parse::<Range>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("hint: "), "{text}: {error}");
        }
    }
}
