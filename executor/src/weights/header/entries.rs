//! The JSON of a header, streamed: each entry is checked as it passes, so a name that stands twice
//! is seen and the limits hold before anything is kept. What lies where relative to what is not
//! checked here.
//!
//! serde's errors are text. A typed one is therefore set aside in the collector, and serde is
//! stopped with an error that nobody sees.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::{HeaderError, NAME_BYTES_MAX, TENSORS_MAX, TensorEntry};
use crate::weights::Dtype;
use crate::weights::dimensions::{DIMENSIONS_MAX, Dimensions};
use crate::weights::excerpt::excerpt;

/// The one name that is no tensor's.
const METADATA: &str = "__metadata__";

/// What a header says: its tensors and its notes, by name.
type HeaderEntries = (BTreeMap<String, TensorEntry>, BTreeMap<String, String>);

/// Parses the header's text. Offsets in the answer count from the start of the data.
pub(super) fn parse(text: &str) -> Result<HeaderEntries, HeaderError> {
    if !text.starts_with('{') {
        return Err(HeaderError::NotObject);
    }
    let mut collector = Collector::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let parsed = collector.deserialize(&mut json).and_then(|()| json.end());
    match (parsed, collector.stopped) {
        (Ok(()), _) => Ok((collector.tensors, collector.notes.unwrap_or_default())),
        (Err(_), Some(CollectorStop::Fault(fault))) => Err(fault),
        (Err(cause), Some(CollectorStop::Inside(name))) => Err(if name == METADATA {
            HeaderError::MalformedMetadata(cause)
        } else {
            HeaderError::MalformedEntry { tensor: name, cause }
        }),
        (Err(cause), None) => Err(HeaderError::NotJson(cause)),
    }
}

#[derive(Default)]
struct Collector {
    tensors: BTreeMap<String, TensorEntry>,
    /// There once the one name that is no tensor's was seen.
    notes: Option<BTreeMap<String, String>>,
    stopped: Option<CollectorStop>,
}

/// Why the collector gave up.
enum CollectorStop {
    /// A fault of our own finding.
    Fault(HeaderError),
    /// serde's error, met inside the value of this name.
    Inside(String),
}

impl Collector {
    /// Reads one name and its value. `false` at the end of the map.
    fn next<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<bool, A::Error> {
        let Some(HeaderText(name)) = map.next_key()? else { return Ok(false) };
        if let Err(fault) = self.check_name(&name) {
            return Err(self.stop(CollectorStop::Fault(fault)));
        }
        if name == METADATA {
            let notes: Result<Notes, A::Error> = map.next_value();
            if notes.is_err() {
                self.stopped = Some(CollectorStop::Inside(name.into_owned()));
            }
            self.notes = Some(notes?.0);
            return Ok(true);
        }
        let raw: RawEntry<'_> = match map.next_value() {
            Ok(raw) => raw,
            Err(cause) => {
                self.stopped = Some(CollectorStop::Inside(name.into_owned()));
                return Err(cause);
            }
        };
        match check_entry(&name, &raw) {
            Ok(entry) => {
                self.tensors.insert(name.into_owned(), entry);
                Ok(true)
            }
            Err(fault) => Err(self.stop(CollectorStop::Fault(fault))),
        }
    }

    fn check_name(&self, name: &str) -> Result<(), HeaderError> {
        if name.len() > NAME_BYTES_MAX {
            return Err(HeaderError::NameTooLong { start: excerpt(name), bytes: name.len() });
        }
        if self.tensors.contains_key(name) || (name == METADATA && self.notes.is_some()) {
            return Err(HeaderError::DuplicateTensor { tensor: name.to_owned() });
        }
        if name != METADATA && self.tensors.len() == TENSORS_MAX {
            return Err(HeaderError::TooManyTensors);
        }
        Ok(())
    }

    fn stop<E: Error>(&mut self, stop: CollectorStop) -> E {
        self.stopped = Some(stop);
        E::custom("stopped")
    }
}

impl<'de> DeserializeSeed<'de> for &mut Collector {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Collector {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tensor names to entries")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while self.next(&mut map)? {}
        Ok(())
    }
}

/// Checks what an entry says by itself: type, shape, and that its range is as long as they need.
fn check_entry(name: &str, raw: &RawEntry<'_>) -> Result<TensorEntry, HeaderError> {
    let tensor = || name.to_owned();
    let dtype = Dtype::from_name(&raw.dtype).ok_or_else(|| HeaderError::UnknownDtype {
        tensor: tensor(),
        dtype: excerpt(&raw.dtype),
    })?;
    let sizes = raw.shape.sizes.get(..raw.shape.dimensions).ok_or_else(|| {
        HeaderError::TooManyDimensions { tensor: tensor(), dimensions: raw.shape.dimensions }
    })?;
    let shape = || sizes.to_vec();
    let overflow = || HeaderError::ShapeOverflow { tensor: tensor(), dtype, shape: shape() };

    let mut inline = [0usize; DIMENSIONS_MAX];
    for (to, &from) in inline.iter_mut().zip(sizes) {
        *to = usize::try_from(from).map_err(|_| overflow())?;
    }
    let dimensions = Dimensions::new(&inline[..sizes.len()]).expect("no more than were counted");
    let bits = sizes
        .iter()
        .try_fold(dtype.element_bits(), |product, &size| product.checked_mul(size))
        .ok_or_else(overflow)?;
    if bits % 8 != 0 {
        return Err(HeaderError::PartialByte { tensor: tensor(), dtype, shape: shape() });
    }

    let [begin, end] = raw.data_offsets;
    let got_bytes = end.checked_sub(begin).ok_or_else(|| HeaderError::ReversedOffsets {
        tensor: tensor(),
        begin,
        end,
    })?;
    if got_bytes != bits / 8 {
        return Err(HeaderError::WrongLength {
            tensor: tensor(),
            dtype,
            shape: shape(),
            expected_bytes: bits / 8,
            got_bytes,
        });
    }
    Ok(TensorEntry { dtype, shape: dimensions, offset_bytes: begin, size_bytes: got_bytes })
}

/// A string that is borrowed from the header unless it has escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct HeaderText<'a>(#[serde(borrow)] Cow<'a, str>);

/// An entry as the JSON has it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: RawShape,
    data_offsets: [u64; 2],
}

/// A shape of any rank: the first sizes are kept, the others only counted.
struct RawShape {
    sizes: [u64; DIMENSIONS_MAX],
    dimensions: usize,
}

impl<'de> Deserialize<'de> for RawShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawShape, D::Error> {
        struct Sizes;

        impl<'de> Visitor<'de> for Sizes {
            type Value = RawShape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawShape, A::Error> {
                let mut shape = RawShape { sizes: [0; DIMENSIONS_MAX], dimensions: 0 };
                while let Some(size) = list.next_element()? {
                    if let Some(place) = shape.sizes.get_mut(shape.dimensions) {
                        *place = size;
                    }
                    shape.dimensions += 1;
                }
                Ok(shape)
            }
        }

        deserializer.deserialize_seq(Sizes)
    }
}

/// The file's notes about itself: strings by name, no name twice.
struct Notes(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Notes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Notes, D::Error> {
        struct Strings;

        impl<'de> Visitor<'de> for Strings {
            type Value = Notes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from strings to strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Notes, A::Error> {
                let mut notes = BTreeMap::new();
                while let Some((name, note)) = map.next_entry()? {
                    let name: String = name;
                    if notes.contains_key(&name) {
                        let name = excerpt(&name);
                        return Err(Error::custom(format!("the note {name:?} stands twice")));
                    }
                    notes.insert(name, note);
                }
                Ok(Notes(notes))
            }
        }

        deserializer.deserialize_map(Strings)
    }
}
