//! The fields of another program's request: those that mean something here are taken and checked,
//! those that mean nothing are passed over in silence, the rest is told.

use serde_json::{Map, Value};

use super::errors::EdgeError;
use super::json::Members;
use super::native::policy::{self, JobPolicy};

/// Longest part of a value that an error shows, in characters.
const SHOWN_CHARACTERS: usize = 80;

/// A request's fields on their way to a job.
pub struct Fields {
    members: Members,
    notices: Vec<String>,
}

impl Fields {
    /// Those of an object.
    pub fn of(object: Map<String, Value>) -> Fields {
        Fields { members: Members(object), notices: Vec::new() }
    }

    /// A field as it came; `None` where it is absent or `null`.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        self.members.take(name)
    }

    /// A text.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, EdgeError> {
        self.members.text(name)
    }

    /// A text, where an empty one is the same as none.
    ///
    /// # Errors
    /// It is no text.
    pub fn filled_text(&mut self, name: &str) -> Result<Option<String>, EdgeError> {
        Ok(self.text(name)?.filter(|text| !text.is_empty()))
    }

    /// Whether something is wanted; not where it is not said.
    ///
    /// # Errors
    /// It is neither true nor false.
    pub fn is_on(&mut self, name: &str) -> Result<bool, EdgeError> {
        Ok(self.members.flag(name)?.unwrap_or(false))
    }

    /// A whole number from `min` to `max`.
    ///
    /// # Errors
    /// It is another one, or none.
    pub fn count(&mut self, name: &str, min: u32, max: u32) -> Result<Option<u32>, EdgeError> {
        self.members.whole(name, min, max)
    }

    /// A number from `min` to `max`.
    ///
    /// # Errors
    /// It is another one, or none.
    pub fn number(&mut self, name: &str, min: f64, max: f64) -> Result<Option<f64>, EdgeError> {
        self.members.number(name, min, max)
    }

    /// A scale of guidance: a number that is not negative.
    ///
    /// # Errors
    /// It is another one, or none.
    pub fn scale(&mut self, name: &str) -> Result<Option<f32>, EdgeError> {
        /// Above what any model can make sense of.
        const SCALE_MAX: f64 = 1000.0;
        Ok(self.number(name, 0.0, SCALE_MAX)?.map(|scale| scale as f32))
    }

    /// A seed; `None` for one that is to be drawn, which -1 asks for too.
    ///
    /// # Errors
    /// It is no whole number from -1 to 2⁶⁴ − 1.
    pub fn seed(&mut self, name: &str) -> Result<Option<u64>, EdgeError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let is_drawn = value.as_f64() == Some(-1.0) || value.as_str() == Some("-1");
        if is_drawn {
            return Ok(None);
        }
        let mut alone = Members(Map::from_iter([(name.to_owned(), value.clone())]));
        let expected = "a whole number ≥ 0, or -1 for one that is drawn";
        alone.whole(name, 0, u64::MAX).map_err(|_| bad(name, expected, &value))
    }

    /// How the job is to be treated; what of that has no effect is told.
    ///
    /// # Errors
    /// One of its fields is wrong.
    pub fn policy(&mut self) -> Result<JobPolicy, EdgeError> {
        let mut policy = policy::read(&mut self.members)?;
        self.notices.append(&mut policy.notices);
        Ok(policy)
    }

    /// One of some words.
    ///
    /// # Errors
    /// It is none of them.
    pub fn word(
        &mut self,
        name: &str,
        words: &[&'static str],
    ) -> Result<Option<&'static str>, EdgeError> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match words.iter().find(|word| **word == text) {
            Some(word) => Ok(Some(word)),
            None => Err(bad(name, &format!("one of {}", words.join(", ")), &text.into())),
        }
    }

    /// Fields that are known and change nothing here, of which nobody needs to be told.
    pub fn accept(&mut self, names: &[&str]) {
        for name in names {
            self.value(name);
        }
    }

    /// Fields that are known and have no effect here: told where they are there.
    pub fn without_effect(&mut self, names: &[&str]) {
        for name in names {
            if self.value(name).is_some() {
                self.notices.push(format!("{name} has no effect here"));
            }
        }
    }

    /// Tells something.
    pub fn notice(&mut self, sentence: impl Into<String>) {
        self.notices.push(sentence.into());
    }

    /// All that is to be told: also of fields that nobody took.
    pub fn notices(mut self) -> Vec<String> {
        self.members.0.retain(|_, value| !value.is_null());
        let unknown = self.members.notices();
        self.notices.into_iter().chain(unknown).collect()
    }
}

/// The error of a field whose value is none that it takes.
pub fn bad(name: &str, expected: &str, got: &Value) -> EdgeError {
    let got = match got {
        Value::String(text) => format!("{:?}", shortened(text)),
        Value::Number(number) => number.to_string(),
        Value::Bool(switch) => switch.to_string(),
        Value::Null => "null".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    EdgeError::bad_value(name, format!("{name} must be {expected}, got {got}"))
}

/// A text as it may be shown: its beginning, without control characters.
pub fn shortened(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
    shown = shown.replace(char::is_control, "\u{fffd}");
    if text.chars().nth(SHOWN_CHARACTERS).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(body: Value) -> Fields {
        let Value::Object(object) = body else { panic!("an object") };
        Fields::of(object)
    }

    #[test]
    fn seeds_have_64_bits_and_minus_one_is_drawn() {
        for (value, seed) in [
            (json!(7), Some(7)),
            (json!("7"), Some(7)),
            (json!(u64::MAX), Some(u64::MAX)),
            (json!(-1), None),
            (json!(-1.0), None),
            (json!("-1"), None),
            (json!(null), None),
        ] {
            assert_eq!(fields(json!({"seed": value})).seed("seed").unwrap(), seed, "{value}");
        }
        for value in [json!(-2), json!(1.5), json!(1e300), json!("x"), json!([1])] {
            let error = fields(json!({"seed": value})).seed("seed").unwrap_err();
            assert!(error.message.contains("or -1"), "{}", error.message);
        }
    }

    #[test]
    fn a_word_is_one_of_those_that_there_are() {
        let mut fields = fields(json!({"a": "x", "b": "z", "c": 1}));
        assert_eq!(fields.word("a", &["x", "y"]).unwrap(), Some("x"));
        assert_eq!(fields.word("missing", &["x", "y"]).unwrap(), None);
        let error = fields.word("b", &["x", "y"]).unwrap_err();
        assert_eq!(error.message, "b must be one of x, y, got \"z\"");
        assert!(fields.word("c", &["x"]).is_err());
    }

    #[test]
    fn what_changes_nothing_is_silent_and_the_rest_is_told() {
        let mut fields = fields(json!({"eta": 1, "style": "vivid", "new": 1, "none": null}));
        fields.accept(&["eta"]);
        fields.without_effect(&["style", "moderation"]);
        let notices = fields.notices();
        assert_eq!(notices[0], "style has no effect here");
        assert!(notices[1].contains("\"new\"") && notices.len() == 2, "{notices:?}");
    }
}
