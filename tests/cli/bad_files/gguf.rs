//! GGUF files with one thing wrong.

use std::fs;
use std::path::Path;

use crate::bad_input::case::{Case, assert_refused, split};
use crate::support::gguf::{ARRAY, BOOL, F32, File, I32, TEXT, U32, array, key, tensor, text};

const SAFETENSORS: &str = "transformer/diffusion_pytorch_model.safetensors";
const DIT: &str = "transformer/diffusion_pytorch_model.gguf";

/// The type numbers of f32, of Q8_0 and of IQ1_M, which is not computed with.
const PLAIN: u32 = 0;
const Q8_0: u32 = 8;
const IQ1_M: u32 = 29;

/// The DiT of a model as GGUF, all in f32, with one thing changed.
fn stored(model: &Path, change: impl FnOnce(&mut File)) {
    let mut file = sound(model);
    change(&mut file);
    fs::write(model.join(DIT), file.bytes()).unwrap();
}

/// The DiT of a model as GGUF; its safetensors file goes.
fn sound(model: &Path) -> File {
    let path = model.join(SAFETENSORS);
    let (header, data) = split(&path);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&header).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
    };
    let mut file = File::new().with_key("general.name", TEXT, &text("a model"));
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let offsets = numbers(&entry["data_offsets"]);
        let mut dimensions = numbers(&entry["shape"]);
        dimensions.reverse();
        let bytes = &data[offsets[0] as usize..offsets[1] as usize];
        file = file.with(name, &dimensions, PLAIN, bytes);
    }
    fs::remove_file(path).unwrap();
    file
}

/// Puts an entry in the place of that of the first tensor, the bias of `context_embedder`.
fn first(file: &mut File, entry: Vec<u8>) {
    file.tensors[0] = entry;
}

/// The bias's own name.
const BIAS: &str = "context_embedder.bias";

type Row = (&'static str, fn(&mut File), &'static [&'static str]);

/// Header and keys.
const HEADERS: &[Row] = &[
    ("another version", |f| f.version = 1, &["it has version 1 of the format", "hint: "]),
    ("a later version", |f| f.version = 9, &["it has version 9 of the format", "hint: "]),
    ("big-endian", |f| f.version = 3u32.swap_bytes(), &["it is big-endian", "hint: "]),
    (
        "more tensors than any model",
        |f| f.tensor_count = Some(u64::MAX),
        &["it says that it has 18446744073709551615 tensors, the limit is 100000"],
    ),
    (
        "fewer tensors than are there",
        |f| f.tensor_count = Some(1),
        &["has no tensor \"time_text_embed."],
    ),
    (
        "more tensors than are there",
        |f| f.tensor_count = Some(90_000),
        &["the name of a tensor has"],
    ),
    (
        "more keys than any model",
        |f| f.key_count = Some(1 << 40),
        &["it says that it has 1099511627776 keys, the limit is 100000"],
    ),
    ("more keys than are there", |f| f.key_count = Some(50), &["is no usable GGUF file"]),
    ("fewer keys than are there", |f| f.key_count = Some(1), &["is no usable GGUF file"]),
    (
        "a key of impossible length",
        |f| f.keys[0] = u64::MAX.to_le_bytes().to_vec(),
        &["a key has 18446744073709551615 bytes, the limit is 1024"],
    ),
    ("a key that is no text", |f| f.keys[0] = key([0xff], BOOL, &[0]), &["\"a key\" is no UTF-8"]),
    (
        "a key that stands twice",
        |f| f.keys[0] = key("general.name", TEXT, &text("another")),
        &["the key \"general.name\" stands twice"],
    ),
    (
        "a value of an unknown type",
        |f| f.keys[0] = key("k", 13, &[0; 8]),
        &["the key \"k\" has a value of the unknown type 13"],
    ),
    (
        "a truth value that is none",
        |f| f.keys[0] = key("k", BOOL, &[2]),
        &["the key \"k\" has the truth value 2"],
    ),
    ("a text that is none", |f| f.keys[0] = key("k", TEXT, &text([0xc3])), &["\"k\" is no UTF-8"]),
    (
        "a text longer than the file",
        |f| f.keys[0] = key("k", TEXT, &(u64::MAX - 3).to_le_bytes()),
        &["\"k\" needs 18446744073709551612 bytes", "hint: "],
    ),
    (
        "an array of unknown elements",
        |f| f.keys[0] = key("k", ARRAY, &array(99, 1, &[0; 8])),
        &["the key \"k\" has a value of the unknown type 99"],
    ),
    (
        "an array longer than the file",
        |f| f.keys[0] = key("k", ARRAY, &array(F32, 1 << 50, &[])),
        &["\"k\" needs 4503599627370496 bytes", "hint: "],
    ),
    (
        "an array whose length overflows",
        |f| f.keys[0] = key("k", ARRAY, &array(F32, u64::MAX, &[])),
        &["\"k\" needs 18446744073709551615 bytes"],
    ),
    (
        "an array of more texts than the file has bytes",
        |f| f.keys[0] = key("k", ARRAY, &array(TEXT, 1 << 32, &[])),
        &["\"k\" needs 34359738368 bytes"],
    ),
    (
        "an array whose last text is longer than the file",
        |f| {
            let texts = [text("a"), (1_u64 << 40).to_le_bytes().to_vec()].concat();
            f.keys[0] = key("k", ARRAY, &array(TEXT, 2, &texts));
        },
        &["\"k\" needs 1099511627776 bytes"],
    ),
    (
        "arrays in arrays without end",
        |f| {
            let deep = (0..40).fold(array(TEXT, 0, &[]), |inner, _| array(ARRAY, 1, &inner));
            f.keys[0] = key("k", ARRAY, &array(ARRAY, 20, &deep.repeat(20)));
        },
        &["the key \"k\" has arrays within arrays, more than 4 deep"],
    ),
    (
        "an alignment of zero",
        |f| f.keys.push(key("general.alignment", U32, &[0; 4])),
        &["its alignment is 0,"],
    ),
    (
        "an alignment that is no power of two",
        |f| f.keys.push(key("general.alignment", U32, &33u32.to_le_bytes())),
        &["its alignment is 33,"],
    ),
    (
        "an alignment beyond any page",
        |f| f.keys.push(key("general.alignment", U32, &(1u32 << 31).to_le_bytes())),
        &["its alignment is 2147483648,"],
    ),
    (
        "an alignment that is no number",
        |f| f.keys.push(key("general.alignment", TEXT, &text("32"))),
        &["its alignment is \"32\""],
    ),
    (
        "a larger alignment than the tensors have",
        |f| f.keys.push(key("general.alignment", U32, &4096u32.to_le_bytes())),
        &["of the data, which is no multiple of 4096"],
    ),
];

/// The table of tensors, and the data.
const TENSORS: &[Row] = &[
    (
        "a name of impossible length",
        |f| first(f, u64::MAX.to_le_bytes().to_vec()),
        &["the name of a tensor has 18446744073709551615 bytes, the limit is 512"],
    ),
    (
        "a name beyond the limit",
        |f| first(f, tensor("n".repeat(513), &[1], PLAIN, 0)),
        &["the name of a tensor has 513 bytes"],
    ),
    (
        "a name that is no text",
        |f| first(f, tensor([0x80], &[1], PLAIN, 0)),
        &["\"the name of a tensor\" is no UTF-8"],
    ),
    (
        "a name that stands twice",
        |f| first(f, tensor("x_embedder.weight", &[64], PLAIN, 0)),
        &["the name \"x_embedder.weight\" stands twice"],
    ),
    (
        "too many dimensions",
        |f| first(f, tensor(BIAS, &[1; 9], PLAIN, 0)),
        &["\"context_embedder.bias\" has 9 dimensions, the limit is 8"],
    ),
    (
        "impossibly many dimensions",
        |f| {
            let mut entry = text(BIAS);
            entry.extend(u32::MAX.to_le_bytes());
            first(f, entry);
        },
        &["\"context_embedder.bias\" has 4294967295 dimensions"],
    ),
    (
        "dimensions whose product overflows",
        |f| first(f, tensor(BIAS, &[1 << 40, 1 << 40], PLAIN, 0)),
        &["\"context_embedder.bias\" of type F32", "its size overflows"],
    ),
    (
        "elements whose bytes overflow",
        |f| first(f, tensor(BIAS, &[1 << 63], PLAIN, 0)),
        &["\"context_embedder.bias\" of type F32", "its size overflows"],
    ),
    (
        "rows that end inside a block",
        |f| first(f, tensor(BIAS, &[33], Q8_0, 0)),
        &["of type Q8_0 has rows of 33 elements, which are no whole blocks of 32"],
    ),
    (
        "a scalar in blocks",
        |f| first(f, tensor(BIAS, &[], Q8_0, 0)),
        &["of type Q8_0 has rows of 1 elements"],
    ),
    (
        "an offset that is not aligned",
        |f| first(f, tensor(BIAS, &[1], PLAIN, 4)),
        &["begins at byte 4 of the data, which is no multiple of 32"],
    ),
    (
        "an offset outside of the file",
        |f| first(f, tensor(BIAS, &[64], PLAIN, 1 << 40)),
        &["\"context_embedder.bias\" ends at byte 1099511", "hint: its download did not finish"],
    ),
    (
        "an offset whose end overflows",
        |f| first(f, tensor(BIAS, &[64], PLAIN, u64::MAX - 31)),
        &["\"context_embedder.bias\" ends at byte 18446744073709551615"],
    ),
    (
        "overlapping tensors",
        |f| first(f, tensor(BIAS, &[64], PLAIN, 256)),
        &["the tensors \"context_embedder.", "overlap at byte"],
    ),
    (
        "tensors that lie in each other",
        |f| first(f, tensor(BIAS, &[4096], PLAIN, 0)),
        &["the tensors \"context_embedder.bias\" and \"context_embedder.weight\" overlap"],
    ),
    (
        "data that is cut off",
        |f| f.data.truncate(f.data.len() - 1),
        &["\"x_embedder.weight\" ends at byte", "hint: its download did not finish"],
    ),
    ("no data", |f| f.data.clear(), &["ends at byte", "hint: its download did not finish"]),
    (
        "a type that is not computed with",
        |f| first(f, tensor(BIAS, &[256], IQ1_M, 0)),
        &["has type IQ1_M (ggml type 29), supported are F32", "hint: "],
    ),
    (
        "a type that nobody knows",
        |f| first(f, tensor(BIAS, &[64], 4711, 0)),
        &["has type ggml type 4711, which is not known, supported are F32", "hint: "],
    ),
    (
        "another shape",
        |f| first(f, tensor(BIAS, &[32], PLAIN, 0)),
        &["has shape [32], the model needs [64]", "hint: "],
    ),
    (
        "a shape of its own that is of another size",
        |f| {
            let name = format!("comfy.gguf.orig_shape.{BIAS}");
            f.keys.push(key(name, ARRAY, &array(I32, 1, &65i32.to_le_bytes())));
        },
        &["\"comfy.gguf.orig_shape.context_embedder.bias\"", "which is no shape for a tensor"],
    ),
    (
        "a shape of its own that is none",
        |f| f.keys.push(key(format!("comfy.gguf.orig_shape.{BIAS}"), TEXT, &text("64"))),
        &["is \"64\", which is no shape for a tensor"],
    ),
    (
        "dimensions in the other order",
        |f| {
            let wide = "context_embedder.weight";
            let at = f.tensors.iter().position(|entry| entry[8..].starts_with(wide.as_bytes()));
            f.tensors[at.unwrap()] = tensor(wide, &[64, 48], PLAIN, 256);
        },
        &["has shape [48, 64], the model needs [64, 48]"],
    ),
];

type ByteRow = (&'static str, fn(Vec<u8>) -> Vec<u8>, &'static [&'static str]);

/// Bytes as they are.
const BYTES: &[ByteRow] = &[
    (
        "only its magic",
        |bytes| bytes[..4].to_vec(),
        &["\"its version\" needs 4 bytes from byte 4 on, but the file has only 4 bytes", "hint: "],
    ),
    ("cut in a count", |bytes| bytes[..20].to_vec(), &["\"the number of its keys\" needs 8 bytes"]),
    ("cut in a key", |bytes| bytes[..40].to_vec(), &["\"a key\" needs", "hint: "]),
    (
        "cut in the table of tensors",
        |bytes| bytes[..300].to_vec(),
        &["but the file has only 300 bytes", "hint: "],
    ),
    (
        "another magic",
        |mut bytes| {
            bytes[..4].copy_from_slice(b"GGML");
            bytes
        },
        &["is no usable safetensors file"],
    ),
    ("zeros", |bytes| vec![0; bytes.len()], &["is no usable safetensors file"]),
];

/// A generation on a model to which this was done; the answer names the file too.
fn damaged(
    name: &'static str,
    damage: impl Fn(&Path) + 'static,
    says: &'static [&'static str],
) -> Case {
    let mut case = Case::damaged(name, damage, says);
    case.says.push(DIT);
    case
}

#[test]
fn a_sound_one_is_taken() {
    let home = crate::support::Home::new();
    let model = home.path("model");
    crate::bad_input::case::copy(&crate::support::fixture("flux_schnell"), &model);
    stored(&model, |_| {});
    let ended = home.run(&["inspect", "model", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_header_that_claims_what_is_not_so() {
    assert_all(HEADERS);
}

#[test]
fn a_table_that_claims_what_is_not_so() {
    assert_all(TENSORS);
}

fn assert_all(rows: &'static [Row]) {
    let cases = rows
        .iter()
        .map(|&(name, change, says)| damaged(name, move |model| stored(model, change), says));
    assert_refused(cases);
}

#[test]
fn bytes_that_are_no_such_file() {
    let cases = BYTES.iter().map(|&(name, change, says)| {
        let damage = move |model: &Path| {
            let bytes = change(sound(model).bytes());
            fs::write(model.join(DIT), bytes).unwrap();
        };
        damaged(name, damage, says)
    });
    assert_refused(cases);
}
