//! OpenAI's words for a picture's quality, as factors of the steps that a model takes by itself.

use std::collections::BTreeMap;

use protocol::limits::STEPS_MAX;

use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::Fields;

/// How good a picture is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PictureQuality {
    /// Half of the steps.
    Low,
    /// The model's own steps; also where nobody says.
    #[default]
    Medium,
    /// Half as many more.
    High,
    /// Twice as many.
    XHigh,
    /// Three times as many.
    Max,
}

/// The words of the API, and what each means: those of models that it had before are kept.
const WORDS: [(&str, PictureQuality); 8] = [
    ("auto", PictureQuality::Medium),
    ("low", PictureQuality::Low),
    ("medium", PictureQuality::Medium),
    ("standard", PictureQuality::Medium),
    ("high", PictureQuality::High),
    ("hd", PictureQuality::High),
    ("xhigh", PictureQuality::XHigh),
    ("max", PictureQuality::Max),
];

/// Reads `quality`.
///
/// # Errors
/// It is no word of the API.
pub fn read(fields: &mut Fields) -> Result<PictureQuality, EdgeError> {
    let asked = fields.word("quality", &WORDS.map(|(word, _)| word))?;
    let found = asked.and_then(|asked| WORDS.iter().find(|(word, _)| *word == asked));
    Ok(found.map(|(_, quality)| *quality).unwrap_or_default())
}

impl PictureQuality {
    /// The word that answers use.
    pub fn name(self) -> &'static str {
        match self {
            PictureQuality::Low => "low",
            PictureQuality::Medium => "medium",
            PictureQuality::High => "high",
            PictureQuality::XHigh => "xhigh",
            PictureQuality::Max => "max",
        }
    }

    /// Times the model's own steps: as the host says, else as serve.md §9 has it.
    pub fn factor(self, configured: &BTreeMap<String, f64>) -> f64 {
        configured.get(self.name()).copied().unwrap_or(match self {
            PictureQuality::Low => 0.5,
            PictureQuality::Medium => 1.0,
            PictureQuality::High => 1.5,
            PictureQuality::XHigh => 2.0,
            PictureQuality::Max => 3.0,
        })
    }
}

/// Steps times a factor, at least one.
pub fn scaled(steps: u32, factor: f64) -> u32 {
    let scaled = (f64::from(steps) * factor).round();
    // What a configuration says may be anything: no number becomes 1 here, an endless one the most.
    scaled.clamp(1.0, f64::from(STEPS_MAX)) as u32
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn of(word: &str) -> Result<PictureQuality, EdgeError> {
        read(&mut Fields::of(Map::from_iter([("quality".to_owned(), word.into())])))
    }

    #[test]
    fn each_word_is_a_quality_and_each_quality_a_word() {
        for (word, name) in
            [("auto", "medium"), ("standard", "medium"), ("hd", "high"), ("max", "max")]
        {
            assert_eq!(of(word).unwrap().name(), name);
        }
        let error = of("best").unwrap_err();
        assert!(error.message.contains("one of auto, low"), "{}", error.message);
    }

    #[test]
    fn steps_follow_the_quality_and_never_end_at_none() {
        let none = BTreeMap::new();
        let steps = |quality: PictureQuality, own| scaled(own, quality.factor(&none));
        assert_eq!(steps(PictureQuality::Low, 28), 14);
        assert_eq!(steps(PictureQuality::Low, 1), 1);
        assert_eq!(steps(PictureQuality::High, 4), 6);
        assert_eq!(steps(PictureQuality::XHigh, 900), STEPS_MAX);
        let configured = BTreeMap::from([("low".to_owned(), 0.25)]);
        assert_eq!(scaled(28, PictureQuality::Low.factor(&configured)), 7);
        assert_eq!(scaled(4, f64::INFINITY), STEPS_MAX);
    }
}
