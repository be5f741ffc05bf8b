//! The keys of a file and their values. Arrays and long texts are passed over, and read when they
//! are wanted.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use super::reader::{GgufReader, GgufStop};
use super::{GgufError, KEY_BYTES_MAX, NESTING_MAX, TEXT_BYTES_MAX};
use crate::weights::excerpt::excerpt;

/// The longest array of integers that is kept: shapes are such.
const SHORT_ELEMENTS_MAX: u64 = 16;

/// The type of a value (`enum gguf_type` of `gguf.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// An unsigned integer of so many bytes.
    Unsigned(u8),
    /// A signed integer of so many bytes.
    Signed(u8),
    /// An IEEE 754 number of so many bytes.
    Float(u8),
    /// A byte that is 0 or 1.
    Bool,
    /// A length as `u64`, and so many bytes of UTF-8.
    Text,
    /// A type, a count as `u64`, and so many values.
    Array,
}

/// What a key of the metadata stands for.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// Of 8 to 64 bits, never below zero.
    Unsigned(u64),
    /// Of 8 to 64 bits.
    Signed(i64),
    /// A number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Some UTF-8.
    Text(String),
    /// A text that was passed over for its length in bytes.
    LongText(u64),
    /// Values of one type.
    Array(Array),
}

/// An array, and where it is in its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The type of its elements.
    pub element: ValueType,
    /// How many there are.
    pub count: u64,
    /// The first byte of the first element, from the start of the file.
    pub offset_bytes: u64,
    /// Bytes of all elements.
    pub size_bytes: u64,
    /// The elements themselves, if they are few and integers.
    pub integers: Vec<i64>,
}

/// All keys with their values, ordered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Keys(BTreeMap<String, GgufValue>);

impl Keys {
    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&GgufValue> {
        self.0.get(key)
    }

    /// The text of a key; `None` also if it is no text, or too long to be kept.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.value(key)? {
            GgufValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The integer of a key; `None` also if it is negative or none.
    pub fn integer(&self, key: &str) -> Option<u64> {
        match *self.value(key)? {
            GgufValue::Unsigned(value) => Some(value),
            GgufValue::Signed(value) => value.try_into().ok(),
            _ => None,
        }
    }

    /// The array of a key.
    pub fn array(&self, key: &str) -> Option<&Array> {
        match self.value(key)? {
            GgufValue::Array(array) => Some(array),
            _ => None,
        }
    }

    /// All keys, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Reads so many keys.
    pub(super) fn parse(reader: &mut GgufReader<impl Read>, count: u64) -> Result<Keys, GgufStop> {
        let mut keys = BTreeMap::new();
        for _ in 0..count {
            let length = reader.u64("the length of a key")?;
            if length > KEY_BYTES_MAX {
                return Err(GgufError::KeyTooLong { bytes: length }.into());
            }
            let key = reader.text(length, "a key")?;
            if keys.contains_key(&key) {
                return Err(GgufError::DuplicateKey { key }.into());
            }
            let value = Parser { reader, key: &key }.value()?;
            keys.insert(key, value);
        }
        Ok(Keys(keys))
    }
}

impl fmt::Display for GgufValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GgufValue::Unsigned(value) => value.fmt(f),
            GgufValue::Signed(value) => value.fmt(f),
            GgufValue::Float(value) => value.fmt(f),
            GgufValue::Bool(value) => value.fmt(f),
            GgufValue::Text(text) => write!(f, "{:?}", excerpt(text)),
            GgufValue::LongText(bytes) => write!(f, "a text of {bytes} bytes"),
            GgufValue::Array(array) => write!(f, "an array of {}", array.count),
        }
    }
}

impl ValueType {
    /// The type that files number so.
    pub(super) fn from_number(number: u32) -> Option<ValueType> {
        Some(match number {
            0 => ValueType::Unsigned(1),
            1 => ValueType::Signed(1),
            2 => ValueType::Unsigned(2),
            3 => ValueType::Signed(2),
            4 => ValueType::Unsigned(4),
            5 => ValueType::Signed(4),
            6 => ValueType::Float(4),
            7 => ValueType::Bool,
            8 => ValueType::Text,
            9 => ValueType::Array,
            10 => ValueType::Unsigned(8),
            11 => ValueType::Signed(8),
            12 => ValueType::Float(8),
            _ => return None,
        })
    }

    /// The fewest bytes that a value has.
    fn bytes_min(self) -> u64 {
        match self {
            ValueType::Unsigned(bytes) | ValueType::Signed(bytes) | ValueType::Float(bytes) => {
                bytes.into()
            }
            ValueType::Bool => 1,
            ValueType::Text => 8,
            ValueType::Array => 12,
        }
    }

    /// Whether that is how many each has.
    fn is_fixed(self) -> bool {
        !matches!(self, ValueType::Text | ValueType::Array)
    }
}

/// Reads the value of one key.
struct Parser<'a, R> {
    reader: &'a mut GgufReader<R>,
    key: &'a str,
}

impl<R: Read> Parser<'_, R> {
    fn value(&mut self) -> Result<GgufValue, GgufStop> {
        let value_type = self.value_type()?;
        Ok(match value_type {
            ValueType::Text => {
                let bytes = self.text_bytes()?;
                if bytes > TEXT_BYTES_MAX {
                    self.reader.skip(bytes, self.key)?;
                    GgufValue::LongText(bytes)
                } else {
                    GgufValue::Text(self.reader.text(bytes, self.key)?)
                }
            }
            ValueType::Array => GgufValue::Array(self.array()?),
            fixed => self.fixed(fixed)?,
        })
    }

    fn value_type(&mut self) -> Result<ValueType, GgufStop> {
        let number = self.reader.u32(self.key)?;
        ValueType::from_number(number)
            .ok_or_else(|| GgufError::ValueType { key: self.key.to_owned(), number }.into())
    }

    fn text_bytes(&mut self) -> Result<u64, GgufStop> {
        self.reader.u64(self.key)
    }

    /// A value of fixed size.
    fn fixed(&mut self, value_type: ValueType) -> Result<GgufValue, GgufStop> {
        let (key, bytes) = (self.key, value_type.bytes_min() as usize);
        let mut wide = [0; 8];
        for byte in &mut wide[..bytes] {
            [*byte] = self.reader.bytes(key)?;
        }
        Ok(match value_type {
            ValueType::Unsigned(_) => GgufValue::Unsigned(u64::from_le_bytes(wide)),
            ValueType::Signed(_) => {
                let unused = 64 - 8 * bytes;
                GgufValue::Signed(i64::from_le_bytes(wide) << unused >> unused)
            }
            ValueType::Float(4) => {
                GgufValue::Float(f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]).into())
            }
            ValueType::Float(_) => GgufValue::Float(f64::from_le_bytes(wide)),
            ValueType::Bool => match wide[0] {
                0 => GgufValue::Bool(false),
                1 => GgufValue::Bool(true),
                got => return Err(GgufError::Bool { key: key.to_owned(), got }.into()),
            },
            ValueType::Text | ValueType::Array => unreachable!("their sizes vary"),
        })
    }

    fn array(&mut self) -> Result<Array, GgufStop> {
        let (element, count) = self.array_start()?;
        let offset_bytes = self.reader.at();
        let mut integers = Vec::new();
        if count <= SHORT_ELEMENTS_MAX && element.is_fixed() {
            for _ in 0..count {
                match self.fixed(element)? {
                    GgufValue::Unsigned(value) => integers.extend(i64::try_from(value).ok()),
                    GgufValue::Signed(value) => integers.push(value),
                    _ => {}
                }
            }
        } else {
            self.pass_elements(element, count, 1)?;
        }
        let size_bytes = self.reader.at() - offset_bytes;
        Ok(Array { element, count, offset_bytes, size_bytes, integers })
    }

    /// Type and count of an array, of which at least so much must be there.
    fn array_start(&mut self) -> Result<(ValueType, u64), GgufStop> {
        let element = self.value_type()?;
        let count = self.reader.u64(self.key)?;
        let least = count.checked_mul(element.bytes_min());
        self.reader.require(least.unwrap_or(u64::MAX), self.key)?;
        Ok((element, count))
    }

    fn pass_elements(
        &mut self,
        element: ValueType,
        count: u64,
        depth: u32,
    ) -> Result<(), GgufStop> {
        if depth > NESTING_MAX {
            return Err(GgufError::Nesting { key: self.key.to_owned() }.into());
        }
        if element.is_fixed() {
            return self.reader.skip(count * element.bytes_min(), self.key);
        }
        for _ in 0..count {
            if element == ValueType::Text {
                let bytes = self.text_bytes()?;
                self.reader.skip(bytes, self.key)?;
            } else {
                let (element, count) = self.array_start()?;
                self.pass_elements(element, count, depth + 1)?;
            }
        }
        Ok(())
    }
}
