//! The seed of a picture's noise: given, or drawn anew for each run.

use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::RequestError;

/// How a seed that is drawn is written.
const RANDOM: &str = "random";

/// A seed as it is asked for: a number, or `random`, for which `-1` stands too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seed {
    /// Another one in each run.
    #[default]
    Random,
    /// This one.
    Given(u64),
}

impl Seed {
    /// Reads a seed as people write it; `None` for what is none.
    pub fn parse(text: &str) -> Option<Seed> {
        match text {
            RANDOM | "-1" => Some(Seed::Random),
            number => number.parse().ok().map(Seed::Given),
        }
    }

    /// The seed itself. One that is drawn has 32 bits: the noise depends on no more of them, and
    /// every program that reads it from a picture or a document can hold it.
    ///
    /// # Errors
    /// [`RequestError::NoSeed`].
    pub fn draw(self) -> Result<u64, RequestError> {
        match self {
            Seed::Given(seed) => Ok(seed),
            Seed::Random => getrandom::u32().map(u64::from).map_err(RequestError::NoSeed),
        }
    }
}

/// The seed of the picture at `index` of a job: each has noise of its own, so that it is the same
/// picture as the one made alone with that seed.
pub fn picture_seed(seed: u64, index: u32) -> u64 {
    seed.wrapping_add(u64::from(index))
}

impl Serialize for Seed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Seed::Random => serializer.serialize_str(RANDOM),
            Seed::Given(seed) => serializer.serialize_u64(*seed),
        }
    }
}

/// A seed in a document.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Number(u64),
    Negative(i64),
    Text(String),
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Seed, D::Error> {
        let expected = "a number ≥ 0, or random";
        match Written::deserialize(deserializer)? {
            Written::Number(seed) => Ok(Seed::Given(seed)),
            Written::Negative(-1) => Ok(Seed::Random),
            Written::Negative(number) => {
                Err(D::Error::invalid_value(Unexpected::Signed(number), &expected))
            }
            Written::Text(text) => Seed::parse(&text)
                .ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &expected)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_of_a_job_count_up_and_wrap() {
        assert_eq!(picture_seed(10, 3), 13);
        assert_eq!(picture_seed(u64::MAX, 2), 1);
    }

    #[test]
    fn a_seed_is_a_number_or_random_in_documents_too() {
        for (text, seed) in [
            ("7", Seed::Given(7)),
            ("18446744073709551615", Seed::Given(u64::MAX)),
            ("\"random\"", Seed::Random),
            ("-1", Seed::Random),
            ("\"12\"", Seed::Given(12)),
        ] {
            assert_eq!(serde_json::from_str::<Seed>(text).unwrap(), seed, "{text}");
            let written = serde_json::to_string(&seed).unwrap();
            assert_eq!(serde_json::from_str::<Seed>(&written).unwrap(), seed, "{written}");
        }
        for text in ["-2", "1.5", "\"seven\"", "null", "[1]"] {
            assert!(serde_json::from_str::<Seed>(text).is_err(), "{text}");
        }
    }
}
