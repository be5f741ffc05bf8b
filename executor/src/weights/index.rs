//! The index of a checkpoint that is cut into shards: a JSON file that says which tensor is in
//! which file.
//!
//! Invariant of a [`ShardIndex`]: its shards are plain file names, so that joined to a directory
//! they stay inside it. Whether the files exist and agree is not checked here.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Component, Path};

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::excerpt::excerpt;
use super::header::{NAME_BYTES_MAX, TENSORS_MAX};

/// The largest index. Those of the largest language models have a few MB.
pub const INDEX_BYTES_MAX: u64 = 64 << 20;
/// The most shards of a component. The largest open models have below 200.
pub const SHARDS_MAX: usize = 1000;
/// The longest file name that Linux filesystems take.
pub const SHARD_NAME_BYTES_MAX: usize = 255;

/// Which tensor is in which file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    /// File names of the shards, sorted.
    pub shards: Vec<String>,
    /// Position in `shards` by tensor name.
    pub tensors: BTreeMap<String, usize>,
}

/// Why an index is refused.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// Beyond any sensible index.
    #[error("it has more than {INDEX_BYTES_MAX} bytes")]
    TooLarge,

    /// Not JSON, or without a `weight_map` from strings to strings.
    #[error("it is no JSON object with a `weight_map` from tensor names to file names: {0}")]
    Malformed(serde_json::Error),

    /// A tensor is placed twice.
    #[error("the name {tensor:?} stands twice in it")]
    DuplicateTensor {
        /// Which one, by its name in the file.
        tensor: String,
    },

    /// More tensors than any model has.
    #[error("it names more than {TENSORS_MAX} tensors")]
    TooManyTensors,

    /// A tensor name beyond any sensible length.
    #[error(
        "the tensor name that starts {start:?} has {bytes} bytes, the limit is {NAME_BYTES_MAX}"
    )]
    NameTooLong {
        /// Its first characters.
        start: String,
        /// Its whole length.
        bytes: usize,
    },

    /// A shard that might lie elsewhere than beside the index.
    #[error("it places {tensor:?} in {shard:?}, which is no plain file name")]
    ShardName {
        /// Which one, by its name in the file.
        tensor: String,
        /// The first characters of the file name.
        shard: String,
    },

    /// More files than any model has.
    #[error("it names more than {SHARDS_MAX} shards")]
    TooManyShards,
}

impl ShardIndex {
    /// Reads and parses an open index.
    ///
    /// # Errors
    /// The outer one if the file cannot be read, the inner one if it is refused.
    pub fn read(file: &File) -> io::Result<Result<ShardIndex, IndexError>> {
        let mut json = Vec::new();
        file.take(INDEX_BYTES_MAX + 1).read_to_end(&mut json)?;
        if json.len() as u64 > INDEX_BYTES_MAX {
            return Ok(Err(IndexError::TooLarge));
        }
        Ok(ShardIndex::parse(&json))
    }

    /// Parses an index.
    ///
    /// # Errors
    /// Everything in [`IndexError`] but [`IndexError::TooLarge`].
    pub fn parse(json: &[u8]) -> Result<ShardIndex, IndexError> {
        let document: IndexDocument<'_> =
            serde_json::from_slice(json).map_err(IndexError::Malformed)?;
        let pairs = document.weight_map.0;
        if pairs.len() > TENSORS_MAX {
            return Err(IndexError::TooManyTensors);
        }
        for (tensor, shard) in &pairs {
            if tensor.len() > NAME_BYTES_MAX {
                return Err(IndexError::NameTooLong {
                    start: excerpt(tensor),
                    bytes: tensor.len(),
                });
            }
            if !is_plain_file_name(shard) {
                let tensor = tensor.clone().into_owned();
                return Err(IndexError::ShardName { tensor, shard: excerpt(shard) });
            }
        }

        let names: BTreeSet<&str> = pairs.iter().map(|(_, shard)| &shard[..]).collect();
        if names.len() > SHARDS_MAX {
            return Err(IndexError::TooManyShards);
        }
        let shards: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let mut tensors = BTreeMap::new();
        for (tensor, shard) in pairs {
            let position = shards
                .binary_search_by(|name| name[..].cmp(&shard))
                .expect("each pair's shard was collected");
            let tensor = tensor.into_owned();
            if tensors.contains_key(&tensor) {
                return Err(IndexError::DuplicateTensor { tensor });
            }
            tensors.insert(tensor, position);
        }
        Ok(ShardIndex { shards, tensors })
    }
}

/// Whether `name`, joined to a directory, names a file right inside it and nothing else, on any
/// system.
fn is_plain_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let single = matches!(
        (components.next(), components.next()),
        (Some(Component::Normal(only)), None) if only == name
    );
    let suspect = |c: char| c == '/' || c == '\\' || c == ':' || c.is_control();
    single && name.len() <= SHARD_NAME_BYTES_MAX && !name.contains(suspect)
}

/// The part of the file that is used; `metadata` beside it only repeats sizes.
#[derive(Deserialize)]
struct IndexDocument<'a> {
    #[serde(borrow)]
    weight_map: Pairs<'a>,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct IndexText<'a>(#[serde(borrow)] Cow<'a, str>);

/// The pairs of a map in their order with repetitions, up to one more than the limit.
struct Pairs<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs<'a>, D::Error> {
        struct WeightMap;

        impl<'de> Visitor<'de> for WeightMap {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while pairs.len() <= TENSORS_MAX {
                    let Some((IndexText(tensor), IndexText(shard))) = map.next_entry()? else {
                        break;
                    };
                    pairs.push((tensor, shard));
                }
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(WeightMap)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(json: &str) -> IndexError {
        ShardIndex::parse(json.as_bytes()).expect_err(&excerpt(json))
    }

    #[test]
    fn an_index_is_read_in_a_fixed_order() {
        let json = r#"{"metadata": {"total_size": 9}, "weight_map":
            {"z": "b.safetensors", "a": "a.safetensors", "m": "b.safetensors"}}"#;
        let index = ShardIndex::parse(json.as_bytes()).unwrap();
        assert_eq!(index.shards, ["a.safetensors", "b.safetensors"]);
        let tensors: Vec<_> = index.tensors.iter().map(|(name, &at)| (&name[..], at)).collect();
        assert_eq!(tensors, [("a", 0), ("m", 1), ("z", 1)]);
    }

    #[test]
    fn what_is_no_index_is_refused() {
        for json in [
            "",
            "nothing",
            "[]",
            "{}",
            r#"{"weight_map": []}"#,
            r#"{"weight_map": {"a": 1}}"#,
            r#"{"weight_map": {"a": "f"}} more"#,
            r#"{"weight_map": {}, "weight_map": {}}"#,
        ] {
            assert!(matches!(refused(json), IndexError::Malformed(_)), "{json}");
        }
        let found = ShardIndex::parse(b"{\"weight_map\": {\"\xff\": \"f\"}}");
        assert!(matches!(found, Err(IndexError::Malformed(_))));
    }

    #[test]
    fn a_shard_outside_the_directory_is_refused() {
        for name in [
            "../f",
            "..",
            ".",
            "",
            "/etc/passwd",
            "a/b",
            "./f",
            "f/",
            r"..\\f",
            r"c:f",
            r"a\u0000b",
            &"x".repeat(256),
        ] {
            let found = refused(&format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#));
            assert!(matches!(found, IndexError::ShardName { .. }), "{name}: {found}");
        }
    }

    #[test]
    fn limits_hold() {
        let found = refused(r#"{"weight_map": {"a": "f", "b": "f", "a": "g"}}"#);
        assert!(matches!(found, IndexError::DuplicateTensor { tensor } if tensor == "a"));

        let found = refused(&format!(r#"{{"weight_map": {{"{}": "f"}}}}"#, "n".repeat(513)));
        assert!(matches!(found, IndexError::NameTooLong { bytes: 513, .. }));

        let map = |count: usize, shard: fn(usize) -> usize| {
            let pairs: Vec<_> = (0..count).map(|i| format!(r#""{i}":"{}""#, shard(i))).collect();
            format!(r#"{{"weight_map":{{{}}}}}"#, pairs.join(","))
        };
        assert!(ShardIndex::parse(map(SHARDS_MAX, |i| i).as_bytes()).is_ok());
        assert!(matches!(refused(&map(SHARDS_MAX + 1, |i| i)), IndexError::TooManyShards));
        assert!(ShardIndex::parse(map(TENSORS_MAX, |_| 0).as_bytes()).is_ok());
        assert!(matches!(refused(&map(TENSORS_MAX + 2, |_| 0)), IndexError::TooManyTensors));

        let file = tempfile::tempfile().unwrap();
        file.set_len(INDEX_BYTES_MAX + 1).unwrap();
        assert!(matches!(ShardIndex::read(&file), Ok(Err(IndexError::TooLarge))));
    }

    proptest! {
        #[test]
        fn every_shard_of_an_accepted_index_stays_in_its_directory(name in "[a./\\\\:]{0,6}") {
            let document = serde_json::json!({ "weight_map": { "t": name } });
            if let Ok(index) = ShardIndex::parse(document.to_string().as_bytes()) {
                let joined = Path::new("/dir").join(&index.shards[0]);
                prop_assert_eq!(joined.parent(), Some(Path::new("/dir")));
                prop_assert_eq!(joined.file_name().and_then(|last| last.to_str()), Some(&name[..]));
            }
        }

        #[test]
        fn no_bytes_make_the_parser_panic(
            at in 0usize..60,
            bytes in proptest::collection::vec(any::<u8>(), 0..8),
        ) {
            let good = br#"{"metadata": {"n": 1}, "weight_map": {"a": "f", "b\u0041": "g"}}"#;
            let mut json = good.to_vec();
            json.splice(at..(at + bytes.len()).min(json.len()), bytes);
            if let Ok(index) = ShardIndex::parse(&json) {
                prop_assert!(index.tensors.values().all(|&shard| shard < index.shards.len()));
            }
        }
    }
}
