//! Safetensors files with one thing wrong, beyond those of `bad_input/weights.rs`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::bad_input::case::{Case, assert_refused, edit_header, split};

const DIT: &str = "transformer/diffusion_pytorch_model.safetensors";

/// The first tensor of the data, 256 bytes.
const BIAS: &str = "context_embedder.bias";

type Row<D> = (&'static str, D, &'static [&'static str]);

/// The header as a document.
const DOCUMENTS: &[Row<fn(&mut Value)>] = &[
    ("notes that are none", |h| h["__metadata__"] = json!([1]), &["its `__metadata__` is no map"]),
    (
        "a note that is no text",
        |h| h["__metadata__"] = json!({ "format": 1 }),
        &["its `__metadata__` is no map from strings to strings"],
    ),
    (
        "an entry that is none",
        |h| h[BIAS] = json!("F32"),
        &["\"context_embedder.bias\" is malformed"],
    ),
    (
        "an entry without a type",
        |h| drop(h[BIAS].as_object_mut().unwrap().remove("dtype")),
        &["\"context_embedder.bias\" is malformed", "missing field `dtype`"],
    ),
    (
        "an entry without a shape",
        |h| drop(h[BIAS].as_object_mut().unwrap().remove("shape")),
        &["missing field `shape`"],
    ),
    (
        "an entry without its place",
        |h| drop(h[BIAS].as_object_mut().unwrap().remove("data_offsets")),
        &["missing field `data_offsets`"],
    ),
    (
        "an entry that says more",
        |h| h[BIAS]["strides"] = json!([1]),
        &["\"context_embedder.bias\" is malformed", "unknown field `strides`"],
    ),
    (
        "three offsets",
        |h| h[BIAS]["data_offsets"] = json!([0, 256, 256]),
        &["\"context_embedder.bias\" is malformed"],
    ),
    (
        "a negative offset",
        |h| h[BIAS]["data_offsets"] = json!([-256, 0]),
        &["\"context_embedder.bias\" is malformed"],
    ),
    (
        "a negative dimension",
        |h| h[BIAS]["shape"] = json!([-64]),
        &["\"context_embedder.bias\" is malformed"],
    ),
    (
        "a dimension that is no whole number",
        |h| h[BIAS]["shape"] = json!([64.5]),
        &["\"context_embedder.bias\" is malformed"],
    ),
    (
        "too many dimensions",
        |h| h[BIAS]["shape"] = json!([64, 1, 1, 1, 1, 1, 1, 1, 1]),
        &["\"context_embedder.bias\" has 9 dimensions, the limit is 8"],
    ),
    (
        "elements that end inside a byte",
        |h| {
            h[BIAS]["dtype"] = json!("F4");
            h[BIAS]["shape"] = json!([511]);
        },
        &["\"context_embedder.bias\" of type F4 and shape [511] does not fill whole bytes"],
    ),
    (
        "a name beyond the limit",
        |h| h["n".repeat(513)] = json!({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
        &["has 513 bytes, the limit is 512"],
    ),
    (
        "bytes of no tensor",
        |h| drop(h.as_object_mut().unwrap().remove(BIAS)),
        &["bytes 0..256 of the data", "belong to no tensor"],
    ),
    (
        "a type in small letters",
        |h| h[BIAS]["dtype"] = json!("f32"),
        &["\"context_embedder.bias\" has the unknown type \"f32\""],
    ),
    (
        "a type of GGUF",
        |h| h[BIAS]["dtype"] = json!("Q8_0"),
        &["\"context_embedder.bias\" has the unknown type \"Q8_0\""],
    ),
    (
        "a scale for each row",
        |h| rename(h, BIAS, "context_embedder.weight_scale"),
        &["the scale \"context_embedder.weight_scale\"", "is no single number", "hint: "],
    ),
    (
        "a scale beside numbers that need none",
        |h| {
            let mut entry = h["proj_out.bias"].take();
            let begin = entry["data_offsets"][0].as_u64().unwrap();
            h.as_object_mut().unwrap().remove("proj_out.bias");
            entry["shape"] = json!([]);
            entry["data_offsets"] = json!([begin, begin + 4]);
            h["proj_out.scale_weight"] = entry;
            let rest =
                json!({"dtype": "F32", "shape": [63], "data_offsets": [begin + 4, begin + 256]});
            h["rest"] = rest;
        },
        &["the scale \"proj_out.scale_weight\"", "beside a weight of type F32", "hint: "],
    ),
];

/// Makes other bytes of header and data.
type Change = fn(&str, &[u8]) -> (Vec<u8>, Vec<u8>);

/// The header as text, with the data.
const TEXTS: &[Row<Change>] = &[
    (
        "no text at all",
        |header, data| {
            let mut bytes = header.as_bytes().to_vec();
            bytes[5] = 0xff;
            (bytes, data.to_vec())
        },
        &["its header is not UTF-8 at byte 5"],
    ),
    ("an empty header", |_, data| (Vec::new(), data.to_vec()), &["it is no JSON object"]),
    (
        "a header of no tensors",
        |_, data| (b"{}".to_vec(), data.to_vec()),
        &["bytes longer than its header says"],
    ),
    (
        "a header in a list",
        |header, data| (format!("[{header}]").into_bytes(), data.to_vec()),
        &["it is no JSON object"],
    ),
    (
        "blanks before the header",
        |header, data| (format!(" {header}").into_bytes(), data.to_vec()),
        &["it is no JSON object"],
    ),
    (
        "two headers",
        |header, data| (header.repeat(2).into_bytes(), data.to_vec()),
        &["its header is not valid JSON"],
    ),
    (
        "an open brace",
        |header, data| (header.trim_end().trim_end_matches('}').into(), data.to_vec()),
        &["is no usable safetensors file"],
    ),
    (
        "braces without end",
        |_, data| (b"{\"a\":".repeat(10_000), data.to_vec()),
        &["is no usable safetensors file"],
    ),
    (
        "notes that stand twice",
        |header, data| {
            (
                header.replacen('{', r#"{"__metadata__":{},"__metadata__":{},"#, 1).into(),
                data.to_vec(),
            )
        },
        &["the name \"__metadata__\" stands twice"],
    ),
    (
        "a note that stands twice",
        |header, data| {
            (header.replacen('{', r#"{"__metadata__":{"a":"","a":""},"#, 1).into(), data.to_vec())
        },
        &["stands twice"],
    ),
    (
        "more data than the header says",
        |header, data| (header.into(), [data, &[0; 7]].concat()),
        &["it is 7 bytes longer than its header says"],
    ),
    ("no data", |header, _| (header.into(), Vec::new()), &["its header promises", "hint: "]),
];

/// Moves an entry to another name.
fn rename(header: &mut Value, from: &str, to: &str) {
    let entry = header.as_object_mut().unwrap().remove(from).unwrap();
    header[to] = entry;
}

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
fn a_document_that_is_no_header() {
    let cases = DOCUMENTS.iter().map(|&(name, change, says)| {
        damaged(name, move |model| edit_header(&model.join(DIT), change), says)
    });
    assert_refused(cases);
}

#[test]
fn a_text_that_is_no_header() {
    let cases = TEXTS.iter().map(|&(name, change, says)| {
        let damage = move |model: &Path| {
            let path = model.join(DIT);
            let (header, data) = split(&path);
            let (header, data) = change(&header, &data);
            let length = (header.len() as u64).to_le_bytes();
            fs::write(path, [&length, &header[..], &data[..]].concat()).unwrap();
        };
        damaged(name, damage, says)
    });
    assert_refused(cases);
}
