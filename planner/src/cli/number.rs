//! Numbers on the command line, and what is said of texts that are none.

use std::error::Error;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::process;
use std::str::FromStr;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue};

use super::EXIT_ERROR;
use crate::job::seed::Seed;

/// A text that is not the number that its flag takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be {expected}")]
struct NumberError {
    /// What it takes: `a number ≥ 1`.
    expected: String,
}

fn expected<T>(number: Option<T>, what: &str) -> Result<T, NumberError> {
    number.ok_or_else(|| NumberError { expected: what.to_owned() })
}

/// Reads a whole number of at least 1.
pub fn count() -> ValueParser {
    let parse = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number: Option<u32> = text.parse().ok();
        match digits && number.is_none() {
            true => expected(number, &format!("a number ≤ {}", u32::MAX)),
            false => expected(number.filter(|number| *number >= 1), "a number ≥ 1"),
        }
    };
    parse.into()
}

/// Reads a whole number within a range.
pub fn within<T>(range: RangeInclusive<T>) -> ValueParser
where
    T: FromStr + Display + PartialOrd + Clone + Send + Sync + 'static,
{
    let parse = move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        expected(number, &format!("a number from {} to {}", range.start(), range.end()))
    };
    parse.into()
}

/// Reads a noise level: above 0, up to 1.
pub fn level() -> ValueParser {
    let parse = |text: &str| {
        let number: Option<f32> = text.trim().parse().ok();
        expected(number.filter(|n| *n > 0.0 && *n <= 1.0), "numbers above 0 and up to 1")
    };
    parse.into()
}

/// Reads a scale: a finite number of at least 0.
pub fn scale() -> ValueParser {
    let parse = |text: &str| {
        let number: Option<f32> = text.parse().ok();
        expected(number.filter(|n| n.is_finite() && *n >= 0.0), "a number ≥ 0")
    };
    parse.into()
}

/// Reads a part of a whole: a number from 0 to 1.
pub fn part() -> ValueParser {
    let parse = |text: &str| {
        let number: Option<f64> = text.parse().ok();
        expected(number.filter(|n| (0.0..=1.0).contains(n)), "a number from 0 to 1")
    };
    parse.into()
}

/// Reads a seed: a number, `random`, or `-1` for that.
pub fn seed() -> ValueParser {
    let parse = |text: &str| expected(Seed::parse(text), "a number ≥ 0, or random");
    parse.into()
}

/// Tells what is wrong with the command line, and ends the program. Help and version are no errors,
/// and told too.
pub fn refuse(error: &clap::Error) -> ! {
    let Some(message) = message(error) else { error.exit() };
    eprintln!("berth: {message}");
    process::exit(i32::from(EXIT_ERROR))
}

/// What is said of a number; `None` for every other error.
fn message(error: &clap::Error) -> Option<String> {
    let number = error.source()?.downcast_ref::<NumberError>()?;
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    // `--steps <STEPS>`
    let flag = text(ContextKind::InvalidArg)?.split_whitespace().next()?;
    let got: String = text(ContextKind::InvalidValue)?.chars().take(SHOWN_CHARACTERS).collect();
    Some(format!("{flag} {number}, got {got}; hint: leave it out for the default"))
}

/// What is shown of a text that is no number.
const SHOWN_CHARACTERS: usize = 80;
