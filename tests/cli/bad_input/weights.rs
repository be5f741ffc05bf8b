//! Damaged weight files and shards.

use std::fs;

use serde_json::json;

use crate::bad_input::case::{
    Case, ERROR, Line, assert_refused, copy, edit_header, edit_json, join, set_length_field, split,
};
use crate::support::{Home, fixture};

const DIT: &str = "transformer/diffusion_pytorch_model.safetensors";

#[test]
fn a_damaged_weight_file_is_named_with_its_fault() {
    let cases: &[Line] = &[
        (
            "truncated data",
            |model| {
                let bytes = fs::read(model.join(DIT)).unwrap();
                fs::write(model.join(DIT), &bytes[..bytes.len() - 100]).unwrap();
            },
            &[DIT, "its header promises", "hint: its download did not finish"],
        ),
        (
            "truncated header",
            |model| {
                let bytes = fs::read(model.join(DIT)).unwrap();
                fs::write(model.join(DIT), &bytes[..100]).unwrap();
            },
            &[DIT, "the file has only 100 bytes", "hint: its download did not finish"],
        ),
        ("empty", |model| fs::write(model.join(DIT), "").unwrap(), &[DIT, "is empty", "hint: "]),
        (
            "too short for a length",
            |model| fs::write(model.join(DIT), "short").unwrap(),
            &[DIT, "it has 5 bytes", "hint: "],
        ),
        (
            "a web page",
            |model| fs::write(model.join(DIT), "<!DOCTYPE html><html></html>").unwrap(),
            &[DIT, "promises a header of", "perhaps a web page"],
        ),
        (
            "the largest length",
            |model| set_length_field(&model.join(DIT), u64::MAX),
            &[DIT, "promises a header of 18446744073709551615 bytes", "the limit is 100000000"],
        ),
        (
            "a length beyond the file",
            |model| set_length_field(&model.join(DIT), 90_000_000),
            &[DIT, "its header ends at byte 90000008"],
        ),
        (
            "no JSON",
            |model| {
                let (header, data) = split(&model.join(DIT));
                join(&model.join(DIT), &header.replacen('{', "[", 1), &data);
            },
            &[DIT, "it is no JSON object"],
        ),
        (
            "overlapping tensors",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    let offsets = &mut header["context_embedder.weight"]["data_offsets"];
                    let [begin, end] = [&offsets[0], &offsets[1]].map(|o| o.as_u64().unwrap());
                    *offsets = json!([begin - 4, end - 4]);
                });
            },
            &[DIT, "\"context_embedder.weight\" overlap at byte 252"],
        ),
        (
            "offsets outside of the data",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    header["x_embedder.weight"]["data_offsets"] =
                        json!([1_u64 << 40, (1_u64 << 40) + 16384]);
                });
            },
            &[DIT, "\"x_embedder.weight\" lies at bytes 1099511627776..1099511644160"],
        ),
        (
            "offsets that run backwards",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    header["x_embedder.weight"]["data_offsets"] = json!([400, 300]);
                });
            },
            &[DIT, "begins at byte 400 of the data, after its end at 300"],
        ),
        (
            "offsets too short for the shape",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    header["x_embedder.weight"]["shape"] = json!([64, 65]);
                });
            },
            &[DIT, "[64, 65] needs 16640 bytes, its offsets give it 16384"],
        ),
        (
            "a name that stands twice",
            |model| {
                let (header, data) = split(&model.join(DIT));
                let entry =
                    r#"{"x_embedder.bias":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"#;
                join(&model.join(DIT), &header.replacen('{', entry, 1), &data);
            },
            &[DIT, "the name \"x_embedder.bias\" stands twice"],
        ),
        (
            "a shape whose product overflows",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    header["x_embedder.weight"]["shape"] = json!([1_u64 << 40, 1_u64 << 40]);
                });
            },
            &[DIT, "\"x_embedder.weight\"", "its size overflows"],
        ),
        (
            "an unknown type",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    header["x_embedder.weight"]["dtype"] = json!("Q9");
                });
            },
            &[DIT, "\"x_embedder.weight\" has the unknown type \"Q9\""],
        ),
        (
            "a type that is not computed with",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    header["x_embedder.weight"]["dtype"] = json!("I64");
                    header["x_embedder.weight"]["shape"] = json!([64, 32]);
                });
            },
            &[DIT, "\"x_embedder.weight\"", "has type I64, supported are F32", "hint: "],
        ),
        (
            "another shape",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    header["context_embedder.weight"]["shape"] = json!([48, 64]);
                });
            },
            &[DIT, "has shape [48, 64], the model needs [64, 48]", "hint: "],
        ),
        (
            "a tensor under another name",
            |model| {
                edit_header(&model.join(DIT), |header| {
                    let entry = header["x_embedder.weight"].take();
                    header.as_object_mut().unwrap().remove("x_embedder.weight");
                    header["model.x_embedder.weight"] = entry;
                });
            },
            &[
                DIT,
                "has no tensor \"x_embedder.weight\"",
                "similar name there is \"model.x_embedder.weight\"",
            ],
        ),
        (
            "a directory in its place",
            |model| {
                fs::remove_file(model.join(DIT)).unwrap();
                fs::create_dir(model.join(DIT)).unwrap();
            },
            &[DIT, "is no regular file"],
        ),
        (
            "absent",
            |model| fs::remove_file(model.join(DIT)).unwrap(),
            &["holds no weights", "diffusion_pytorch_model.safetensors.index.json", "hint: "],
        ),
    ];
    assert_refused(cases.iter().map(|&(name, damage, says)| Case::damaged(name, damage, says)));
}

#[test]
fn damaged_shards_are_named_with_their_fault() {
    const INDEX: &str = "text_encoder_2/model.safetensors.index.json";
    const SECOND: &str = "text_encoder_2/model-00002-of-00002.safetensors";
    let cases: &[Line] = &[
        (
            "a shard is absent",
            |model| fs::remove_file(model.join(SECOND)).unwrap(),
            &[INDEX, "needs the shard model-00002-of-00002.safetensors", "hint: download"],
        ),
        (
            "a shard without its tensor",
            |model| {
                edit_json(&model.join(INDEX), |index| {
                    index["weight_map"]["nothing.weight"] =
                        json!("model-00002-of-00002.safetensors");
                });
            },
            &[SECOND, "lacks the tensor \"nothing.weight\""],
        ),
        (
            "a shard elsewhere",
            |model| {
                edit_json(&model.join(INDEX), |index| {
                    index["weight_map"]["shared.weight"] = json!("../vae/model.safetensors");
                });
            },
            &[INDEX, "which is no plain file name"],
        ),
        (
            "an index that is no JSON",
            |model| fs::write(model.join(INDEX), "{").unwrap(),
            &[INDEX, "is no usable index of shards"],
        ),
    ];
    let damaged = cases.iter().map(|&(name, damage, says)| Case::damaged(name, damage, says));
    assert_refused(damaged.map(|case| case.on("flux_dev")));
}

#[test]
fn inspect_shows_what_is_there_and_fails_on_what_is_missing() {
    let home = Home::new();
    let model = home.path("model");
    copy(&fixture("flux_schnell"), &model);
    edit_header(&model.join(DIT), |header| {
        header["context_embedder.weight"]["shape"] = json!([48, 64]);
    });
    let ended = home.run(&["inspect", "model", "--json"]);
    assert_eq!(ended.code, Some(ERROR), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("dit: the tensor \"context_embedder.weight\""),
        "{}",
        ended.stderr
    );
    let description = ended.json();
    let names: Vec<&str> = description["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["vae_encoder", "clip", "t5", "vae"]);
    assert_eq!(description["problems"].as_array().unwrap().len(), 1);
}
