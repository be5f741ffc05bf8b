//! The seed of a picture's noise: given, or drawn anew for each run.

use anyhow::{Result, anyhow};

/// A seed as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seed {
    /// Another one in each run.
    Random,
    /// This one.
    Given(u64),
}

impl Seed {
    /// The seed itself. One that is drawn has 32 bits: the noise depends on no more of them, and
    /// every program that reads it from a picture or a document can hold it.
    ///
    /// # Errors
    /// The operating system gives no random numbers.
    pub fn draw(self) -> Result<u64> {
        match self {
            Seed::Given(seed) => Ok(seed),
            Seed::Random => match getrandom::u32() {
                Ok(seed) => Ok(u64::from(seed)),
                Err(error) => Err(anyhow!(
                    "the operating system gives no random seed: {error}; hint: name one, as --seed 7"
                )),
            },
        }
    }
}
