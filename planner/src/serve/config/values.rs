//! The values of the configuration: read from text, wherever that was written, and from TOML.
//!
//! Each error is a clause with a hint. The functions for serde fail within the value that is wrong,
//! so that the TOML reader knows its line.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use protocol::limits::SIDE_PIXELS_MAX;
use protocol::{Bytes, ModelSource};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::{ModelConfig, QUALITIES};
use crate::policy::{Policy, PolicyText};
use crate::profile::values::{PositiveSize, Size};
use crate::serve::desk::job::KeepAlive;

/// The longest time that is meant: beyond it lies an overflow or a slip of the pen.
const MS_MAX: u64 = 366 * 24 * 3_600_000;

/// The most of anything that is counted.
const COUNT_MAX: u32 = 1_000_000;

/// The most bytes of a model's name, an alias or a host's name (RFC 1035, section 2.3.4).
pub const NAME_BYTES_MAX: usize = 255;

/// What times are written in, with their milliseconds; longer units before those that end them.
const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 24 * 3_600_000)];

/// Reads a time: `500ms`, `60s`, `10m`, `2h`, `7d` or `0`, in milliseconds.
///
/// # Errors
/// It is none, or longer than a year.
pub fn read_ms(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    if trimmed == "0" {
        return Ok(0);
    }
    let wrong = || {
        format!(
            "`{}` is not a time; hint: write a number with a unit, such as 90s, 10m or 2h",
            start(text)
        )
    };
    let unit = trimmed.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = &trimmed[..trimmed.len() - unit.len()];
    let (_, scale) = UNITS.into_iter().find(|(name, _)| *name == unit.trim()).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let ms = number.checked_mul(scale).filter(|ms| *ms <= MS_MAX);
    ms.ok_or_else(|| format!("`{}` is longer than a year; hint: write a shorter time", start(text)))
}

/// Reads how long a model stays loaded: a time, `0` for not at all, `-1` until its memory is
/// wanted.
///
/// # Errors
/// It is none of these.
pub fn read_keep_alive(text: &str) -> Result<KeepAlive, String> {
    match text.trim() {
        "-1" => Ok(KeepAlive::Always),
        text => read_ms(text).map(KeepAlive::Ms).map_err(|error| {
            format!("{error}, 0 to unload at once, or -1 to keep it until its memory is wanted")
        }),
    }
}

/// Reads how clients reach the daemon: `http` or `https`, a host, perhaps a port and a path. A
/// slash at the end is left out.
///
/// # Errors
/// It is none.
pub fn read_public_url(text: &str) -> Result<String, String> {
    let wrong = || {
        format!("`{}` is not a URL; hint: write it as https://pictures.example.org", start(text))
    };
    let url = text.trim().trim_end_matches('/');
    let (_, rest) = scheme(url).ok_or_else(wrong)?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let is_plain = |c: char| c.is_ascii_graphic() && !"?#\"<>\\".contains(c);
    match is_authority(host) && path.chars().all(is_plain) {
        true => Ok(url.to_owned()),
        false => Err(wrong()),
    }
}

/// Reads a name by which the daemon may be called, without a port; in small letters.
///
/// # Errors
/// It is none.
pub fn read_host(text: &str) -> Result<String, String> {
    let host = text.trim().to_ascii_lowercase();
    match is_host(&host) {
        true => Ok(host),
        false => Err(format!(
            "`{}` is not a host's name; hint: write it alone, as berth.example.org",
            start(text)
        )),
    }
}

/// Reads the origin of a page: scheme, host, perhaps a port; or `*` for every page.
///
/// # Errors
/// It is none.
pub fn read_origin(text: &str) -> Result<String, String> {
    let origin = text.trim().to_ascii_lowercase();
    let is_one = origin == "*" || scheme(&origin).is_some_and(|(_, host)| is_authority(host));
    match is_one {
        true => Ok(origin),
        false => Err(format!(
            "`{}` is not an origin; hint: write scheme and host, as https://app.example.org, or * for every page",
            start(text)
        )),
    }
}

/// Reads a picture's size, as `1024x768`, in pixels.
///
/// # Errors
/// It is none.
pub fn read_size(text: &str) -> Result<[u32; 2], String> {
    let sides = text.split_once('x').and_then(|(width, height)| {
        let side = |text: &str| text.trim().parse::<u32>().ok();
        Some([side(width)?, side(height)?])
    });
    let in_range = |sides: &[u32; 2]| sides.iter().all(|side| (1..=SIDE_PIXELS_MAX).contains(side));
    sides.filter(in_range).ok_or_else(|| {
        format!(
            "`{}` is not a picture's size; hint: write it as 1024x768, sides up to {SIDE_PIXELS_MAX}",
            start(text)
        )
    })
}

/// Reads the name of a model or an alias.
///
/// # Errors
/// It is empty, too long, or has what no name on a line has.
pub fn read_name(text: &str) -> Result<String, String> {
    let is_plain = !text.trim().is_empty() && !text.chars().any(char::is_control);
    match is_plain && text.len() <= NAME_BYTES_MAX && text.trim() == text {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{}` is not a name; hint: write 1 to {NAME_BYTES_MAX} bytes on one line, with no blank around them",
            start(text).escape_debug()
        )),
    }
}

/// What stands before and behind `://`.
fn scheme(url: &str) -> Option<(&str, &str)> {
    url.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))
}

/// A host, perhaps with a port.
fn is_authority(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        // The last part of an address in brackets.
        Some((_, port)) if port.ends_with(']') => (text, "1"),
        Some(parts) => parts,
        None => (text, "1"),
    };
    is_host(host) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// A name, an address of IPv4, or one of IPv6 in brackets.
fn is_host(text: &str) -> bool {
    if let Some(address) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.chars().all(is_letter)
}

/// As much of a wrong value as an error repeats.
fn start(text: &str) -> String {
    text.chars().take(80).collect()
}

fn from_text<'de, D: Deserializer<'de>, T, E: Display>(
    deserializer: D,
    read: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    read(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// As [`from_text`]; an empty text says nothing.
fn unless_empty<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, D::Error> {
    from_text(deserializer, |text| (!text.is_empty()).then(|| read(text)).transpose())
}

fn list<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<Vec<T>>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let values: Result<Vec<T>, String> = texts.iter().map(|text| read(text)).collect();
    values.map(Some).map_err(D::Error::custom)
}

fn rooted(text: &str) -> Result<PathBuf, String> {
    match Path::new(text).is_absolute() {
        true => Ok(PathBuf::from(text)),
        false => {
            Err(format!("`{}` does not begin at the root; hint: write the whole path", start(text)))
        }
    }
}

pub(super) fn sizes<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<[u32; 2]>, D::Error> {
    list(d, read_size).map(Option::unwrap_or_default)
}

pub(super) fn paths<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<PathBuf>>, D::Error> {
    list(d, rooted)
}

pub(super) fn some_path<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PathBuf>, D::Error> {
    unless_empty(d, rooted)
}

pub(super) fn some_text<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    unless_empty(d, read_name)
}

pub(super) fn public_url<'de, D: Deserializer<'de>>(d: D) -> Result<Option<String>, D::Error> {
    unless_empty(d, read_public_url)
}

pub(super) fn hosts<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<String>>, D::Error> {
    list(d, read_host)
}

pub(super) fn origins<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<String>>, D::Error> {
    list(d, read_origin)
}

pub(super) fn some_ms<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    from_text(d, read_ms).map(Some)
}

pub(super) fn some_bytes<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Bytes>, D::Error> {
    PositiveSize::deserialize(d).map(|size| Some(size.0))
}

pub(super) fn some_bytes_or_none<'de, D>(deserializer: D) -> Result<Option<Bytes>, D::Error>
where
    D: Deserializer<'de>,
{
    Size::deserialize(deserializer).map(|size| Some(size.0))
}

pub(super) fn some_keep_alive<'de, D>(deserializer: D) -> Result<Option<KeepAlive>, D::Error>
where
    D: Deserializer<'de>,
{
    from_text(deserializer, read_keep_alive).map(Some)
}

pub(super) fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = i64::deserialize(deserializer)?;
    let within = u32::try_from(number).ok().filter(|number| (1..=COUNT_MAX).contains(number));
    within.ok_or_else(|| D::Error::custom(format!("{number} is not within 1 to {COUNT_MAX}")))
}

/// Factors of steps, above 0 and at most 100: more steps than a job may have are cut.
pub(super) fn quality<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let factors = BTreeMap::<String, f64>::deserialize(d)?;
    for (name, factor) in &factors {
        if !QUALITIES.contains(&name.as_str()) {
            let known = QUALITIES.join(", ");
            return Err(D::Error::custom(format!("no quality `{name}`; hint: there are {known}")));
        }
        if !(*factor > 0.0 && *factor <= 100.0) {
            return Err(D::Error::custom(format!("{name} = {factor} is not above 0, up to 100")));
        }
    }
    Ok(factors)
}

pub(super) fn some_count<'de, D: Deserializer<'de>>(d: D) -> Result<Option<usize>, D::Error> {
    count(d).map(|number| Some(number as usize))
}

pub(super) fn policy<'de, D: Deserializer<'de>>(d: D) -> Result<PolicyText, D::Error> {
    let text = PolicyText::deserialize(d)?;
    Policy::of(&text).map_err(D::Error::custom)?;
    Ok(text)
}

/// Where a model is, as the command line has it: `/m/a-directory --vae /m/ae.safetensors`.
pub(super) fn source<'de, D: Deserializer<'de>>(d: D) -> Result<Option<ModelSource>, D::Error> {
    let read =
        |text: &str| {
            let source: ModelSource = text.parse().map_err(|error| format!("{error}"))?;
            source.check().map_err(|error| error.to_string())?;
            let parts = source.part_paths().map(|(_, path)| path);
            source
                .model
                .as_deref()
                .into_iter()
                .chain(parts)
                .try_for_each(|path| rooted(path).map(drop))?;
            match source.is_empty() {
                true => Err("it names nothing; hint: leave it out for a model of the directories"
                    .to_owned()),
                false => Ok(Some(source)),
            }
        };
    from_text(d, read)
}

pub(super) fn aliases<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let aliases = BTreeMap::<String, String>::deserialize(deserializer)?;
    for name in aliases.iter().flat_map(|(alias, name)| [alias, name]) {
        read_name(name).map_err(D::Error::custom)?;
    }
    Ok(aliases)
}

pub(super) fn models<'de, D>(deserializer: D) -> Result<BTreeMap<String, ModelConfig>, D::Error>
where
    D: Deserializer<'de>,
{
    let models = BTreeMap::<String, ModelConfig>::deserialize(deserializer)?;
    for name in models.keys() {
        read_name(name).map_err(D::Error::custom)?;
    }
    Ok(models)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_are_read_with_their_units() {
        for (text, ms) in [("0", 0), ("500ms", 500), ("60s", 60_000), ("10m", 600_000)] {
            assert_eq!((read_ms(text), read_keep_alive(text)), (Ok(ms), Ok(KeepAlive::Ms(ms))));
        }
        assert_eq!(read_ms(" 2 h "), Ok(7_200_000));
        assert_eq!(read_ms("366d"), Ok(MS_MAX));
        assert_eq!(read_keep_alive("-1"), Ok(KeepAlive::Always));
        for text in
            ["", "10", "m", "-1", "-5s", "1.5h", "367d", "99999999999999999999s", "1µs", "é"]
        {
            assert!(read_ms(text).is_err_and(|error| error.contains("; hint: ")), "{text}");
        }
        assert!(read_keep_alive("-2").is_err());
    }

    #[test]
    fn urls_hosts_and_origins_are_told_from_what_looks_like_them() {
        assert_eq!(read_public_url("https://a.example/b/"), Ok("https://a.example/b".to_owned()));
        assert_eq!(read_public_url("http://[::1]:80"), Ok("http://[::1]:80".to_owned()));
        for text in
            ["", "a.example", "ftp://a", "https://", "https://a b", "https://a:0", "https://a?b"]
        {
            assert!(read_public_url(text).is_err(), "{text}");
        }
        assert_eq!(read_host("Berth.Example"), Ok("berth.example".to_owned()));
        assert_eq!(read_host("[::1]"), Ok("[::1]".to_owned()));
        for text in ["", "a:80", "http://a", "a/b", "*", "[::z]", "é"] {
            assert!(read_host(text).is_err(), "{text}");
        }
        for text in ["*", "http://localhost:3000", "https://[::1]:8", "https://a.example"] {
            assert_eq!(read_origin(text), Ok(text.to_owned()));
        }
        for text in ["", "a", "https://a/", "https://a/b", "null", "https://a:b", "file:///x"] {
            assert!(read_origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_two_sides_of_a_picture() {
        assert_eq!(read_size("1024x768"), Ok([1024, 768]));
        for text in ["", "1024", "1024x", "0x64", "64x-1", "99999999x64", "64x64x64"] {
            assert!(read_size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,20}") {
            for error in [
                read_ms(&text).err(),
                read_keep_alive(&text).err(),
                read_public_url(&text).err(),
                read_host(&text).err(),
                read_origin(&text).err(),
                read_size(&text).err(),
            ].into_iter().flatten() {
                prop_assert!(error.contains("; hint: "), "{}", error);
            }
        }

        #[test]
        fn a_time_is_its_number_of_units(number in 0_u64..8_000, unit in 0_usize..4) {
            let (name, scale) = UNITS[unit];
            prop_assert_eq!(read_ms(&format!("{number}{name}")), Ok(number * scale));
        }
    }
}
