//! Names of pictures, made from a template: `{seed}`, `{index}`, `{date}`, `{model}`, `{n}`; `{{`
//! is a brace.
//!
//! `{n}` is the smallest number, from 1, whose file is not there yet, for each picture by itself. A
//! value never holds a separator of paths. A batch whose template tells its pictures in no way
//! apart is numbered before the ending.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The largest `{n}`. Finding a free one looks at each before it.
pub const NUMBER_MAX: u32 = 1_000_000;

/// Endings of model files that `{model}` leaves out.
const MODEL_ENDINGS: [&str; 2] = [".safetensors", ".gguf"];

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// No field of this name.
    #[error(
        "--output has {{{name}}}, which is not known; hint: {{seed}}, {{index}}, {{date}}, {{model}} and {{n}} are, and {{{{ is a brace"
    )]
    Unknown {
        /// What stands between the braces.
        name: String,
    },
    /// A brace that is not closed.
    #[error("--output has a {{ that is not closed; hint: {{{{ is a brace")]
    Open,
}

/// What a field stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Seed,
    Index,
    Date,
    Model,
    Number,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(Field),
}

/// What fields stand for in one job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldValues {
    /// The seed of the first picture; those of the others count up.
    pub seed: u64,
    /// Today, as YYYY-MM-DD.
    pub date: String,
    /// What `{model}` becomes.
    pub model: String,
}

/// A name with fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

/// The name of one picture, in which at most `{n}` is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureName {
    /// The texts around each `{n}`.
    texts: Vec<Vec<u8>>,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// All of [`TemplateError`].
    pub fn parse(text: &OsStr) -> Result<Template, TemplateError> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut rest = text.as_bytes();
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            match (first, after.first()) {
                // `}}` is the other brace; one alone is itself.
                (b'{', Some(b'{')) | (b'}', Some(b'}')) => {
                    literal.push(first);
                    rest = &after[1..];
                }
                (b'{', _) => {
                    let end = after.iter().position(|byte| *byte == b'}');
                    let (name, after) = after.split_at(end.ok_or(TemplateError::Open)?);
                    pieces.push(Piece::Text(std::mem::take(&mut literal)));
                    pieces.push(Piece::Field(field(name)?));
                    rest = &after[1..];
                }
                _ => literal.push(first),
            }
        }
        pieces.push(Piece::Text(literal));
        Ok(Template { pieces })
    }

    /// The names of a job's pictures.
    pub fn names(&self, batch: u32, values: &FieldValues) -> Vec<PictureName> {
        let apart = [Field::Seed, Field::Index, Field::Number].iter().any(|f| self.has(*f));
        let name = |index: u32| self.name(index, values);
        match batch > 1 && !apart {
            true => (0..batch).map(|index| name(index).numbered(index + 1)).collect(),
            false => (0..batch).map(name).collect(),
        }
    }

    fn has(&self, field: Field) -> bool {
        self.pieces.contains(&Piece::Field(field))
    }

    fn name(&self, index: u32, values: &FieldValues) -> PictureName {
        let mut texts = vec![Vec::new()];
        for piece in &self.pieces {
            let text = match piece {
                Piece::Text(text) => text.clone(),
                Piece::Field(Field::Number) => {
                    texts.push(Vec::new());
                    continue;
                }
                // As the executor counts them.
                Piece::Field(Field::Seed) => {
                    values.seed.wrapping_add(u64::from(index)).to_string().into()
                }
                Piece::Field(Field::Index) => (index + 1).to_string().into(),
                Piece::Field(Field::Date) => plain(&values.date).into(),
                Piece::Field(Field::Model) => plain(model(&values.model)).into(),
            };
            texts.last_mut().expect("there is one from the start").extend(text);
        }
        PictureName { texts }
    }
}

impl PictureName {
    /// The path, with this number for `{n}`.
    pub fn path(&self, number: u32) -> PathBuf {
        OsString::from_vec(self.texts.join(number.to_string().as_bytes())).into()
    }

    /// Whether it has `{n}`.
    pub fn counts(&self) -> bool {
        self.texts.len() > 1
    }

    /// The name with a number before its ending.
    fn numbered(self, number: u32) -> PictureName {
        let path = self.path(0);
        let stem = path.file_stem().unwrap_or_default().as_bytes();
        let ending = path.extension().map(|e| [b".", e.as_bytes()].concat()).unwrap_or_default();
        let number = format!("-{number}");
        let name = OsString::from_vec([stem, number.as_bytes(), &ending].concat());
        PictureName { texts: vec![path.with_file_name(name).into_os_string().into_vec()] }
    }
}

fn field(name: &[u8]) -> Result<Field, TemplateError> {
    match name {
        b"seed" => Ok(Field::Seed),
        b"index" => Ok(Field::Index),
        b"date" => Ok(Field::Date),
        b"model" => Ok(Field::Model),
        b"n" => Ok(Field::Number),
        _ => Err(TemplateError::Unknown { name: String::from_utf8_lossy(name).into_owned() }),
    }
}

/// A model's name without the ending of its file.
fn model(name: &str) -> &str {
    MODEL_ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name)
}

/// A value as part of a name: without separators of paths and control characters, and not hidden by
/// a dot.
fn plain(value: &str) -> String {
    let is_plain = |c: char| !matches!(c, '/' | '\\') && !c.is_control();
    let text: String = value.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    text.trim_start_matches('.').to_owned()
}

/// Today where this machine is, as YYYY-MM-DD; in UTC where it does not say where it is.
pub fn today() -> String {
    jiff::Zoned::now().date().to_string()
}

/// The smallest number from `first` on whose path is free.
pub fn free_number(name: &PictureName, first: u32, is_free: impl Fn(&Path) -> bool) -> Option<u32> {
    (first..=NUMBER_MAX).find(|number| is_free(&name.path(*number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(template: &str, batch: u32) -> Vec<String> {
        let values =
            FieldValues { seed: u64::MAX, date: "2026-11-22".into(), model: "../a.gguf".into() };
        let template = Template::parse(OsStr::new(template)).unwrap();
        let names = template.names(batch, &values);
        names.iter().map(|name| name.path(7).display().to_string()).collect()
    }

    #[test]
    fn fields_become_values() {
        assert_eq!(names("{date}/{model}.png", 1), ["2026-11-22/_a.png"]);
        assert_eq!(names("{seed}.png", 2), ["18446744073709551615.png", "0.png"]);
        assert_eq!(names("{index}-{n}-{n}.jpg", 2), ["1-7-7.jpg", "2-7-7.jpg"]);
        assert_eq!(names("{{seed}} }.png", 1), ["{seed} }.png"]);
    }

    #[test]
    fn a_batch_is_numbered_where_nothing_tells_its_pictures_apart() {
        assert_eq!(names("a/b.png", 1), ["a/b.png"]);
        assert_eq!(names("a/b.png", 2), ["a/b-1.png", "a/b-2.png"]);
        assert_eq!(names("{date}.png", 2), ["2026-11-22-1.png", "2026-11-22-2.png"]);
        assert_eq!(names("b", 2), ["b-1", "b-2"]);
    }

    #[test]
    fn what_is_no_template_is_an_error() {
        let error = |text| Template::parse(OsStr::new(text)).unwrap_err().to_string();
        assert!(error("{prompt}.png").starts_with("--output has {prompt}, which is not known"));
        assert!(error("{}.png").contains("{}"));
        assert!(error("{seed").contains("a { that is not closed"));
    }
}
