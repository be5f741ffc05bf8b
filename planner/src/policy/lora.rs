//! A LoRA as people write it: a file, and how strongly it is applied.

use protocol::limits::{LORA_WEIGHT_MAX, LORAS_MAX};

/// A LoRA file that was asked for. Whether there is such a file is not known here.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraRequest {
    /// The file, as written.
    pub path: String,
    /// Multiplies its scale.
    pub weight: f32,
}

/// A LoRA that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoraError {
    /// There is no file's name.
    #[error(
        "`{text}` names no LoRA file; hint: write FILE or FILE:WEIGHT, as style.safetensors:0.8"
    )]
    Unnamed {
        /// What was written.
        text: String,
    },
    /// Its weight is no number that can be meant.
    #[error(
        "the weight of the LoRA {path} is {weight}, and must be a number from -{LORA_WEIGHT_MAX} to {LORA_WEIGHT_MAX}; \
         hint: most LoRA are made for weights from 0 to 1"
    )]
    Weight {
        /// The file, as written.
        path: String,
        /// The weight, as written.
        weight: String,
    },
    /// More than a job can have.
    #[error("{count} LoRA files are more than {LORAS_MAX}; hint: name fewer")]
    TooMany {
        /// How many.
        count: usize,
    },
}

/// Reads `FILE` or `FILE:WEIGHT` each. A file's name may have colons: only a number after the last
/// one is a weight.
///
/// # Errors
/// There is no file's name, or there are more files than [`LORAS_MAX`].
pub fn parse_loras(texts: &[String]) -> Result<Vec<LoraRequest>, LoraError> {
    if texts.len() > LORAS_MAX {
        return Err(LoraError::TooMany { count: texts.len() });
    }
    let lora = |text: &String| {
        let weighted = text.rsplit_once(':').and_then(|(path, weight)| {
            let number: f32 = weight.trim().parse().ok()?;
            Some((path, weight, number))
        });
        let (path, weight) = match weighted {
            // What is not a number is not in the range either.
            Some((path, weight, number)) if number.is_nan() || number.abs() > LORA_WEIGHT_MAX => {
                let short = |text: &str| text.chars().take(80).collect();
                return Err(LoraError::Weight { path: short(path), weight: short(weight) });
            }
            Some((path, _, number)) => (path, number),
            None => (text.as_str(), 1.0),
        };
        match path.trim().is_empty() {
            true => Err(LoraError::Unnamed { text: text.chars().take(80).collect() }),
            false => Ok(LoraRequest { path: path.to_owned(), weight }),
        }
    };
    texts.iter().map(lora).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_after_the_last_colon_is_a_weight() {
        for (text, path, weight) in [
            ("style.safetensors", "style.safetensors", 1.0),
            ("style.safetensors:0.8", "style.safetensors", 0.8),
            ("style.safetensors:-1", "style.safetensors", -1.0),
            ("a:b.safetensors", "a:b.safetensors", 1.0),
            ("a:b.safetensors:2", "a:b.safetensors", 2.0),
            ("a:1:2", "a:1", 2.0),
            ("style:-1000", "style", -1000.0),
            ("style:", "style:", 1.0),
        ] {
            let loras = parse_loras(&[text.to_owned()]).expect(text);
            assert_eq!(loras, [LoraRequest { path: path.to_owned(), weight }], "{text}");
        }
    }

    #[test]
    fn a_weight_is_one_that_can_be_meant() {
        for text in ["a:inf", "a:-inf", "a:nan", "a:1e30", "a:1001", "a:-1000.1"] {
            let error = parse_loras(&[text.to_owned()]).expect_err(text);
            assert!(matches!(&error, LoraError::Weight { path, .. } if path == "a"), "{error}");
        }
    }

    #[test]
    fn a_file_has_a_name_and_there_are_not_too_many() {
        for text in ["", " ", ":0.5", " :1"] {
            let error = parse_loras(&[text.to_owned()]).expect_err(text);
            assert!(matches!(error, LoraError::Unnamed { .. }), "{text}: {error}");
        }
        let many = vec!["a".to_owned(); LORAS_MAX + 1];
        assert_eq!(parse_loras(&many), Err(LoraError::TooMany { count: LORAS_MAX + 1 }));
        assert_eq!(parse_loras(&many[1..]).map(|loras| loras.len()), Ok(LORAS_MAX));
    }
}
