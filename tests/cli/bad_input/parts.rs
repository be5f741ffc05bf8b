//! Directories that are no model, damaged tokenizers, absurd configurations.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::bad_input::case::{Case, Line, assert_refused, copy, edit_json};
use crate::support::{Ended, Home, fixture};

#[test]
fn a_directory_that_is_no_known_model_is_named() {
    let cases: &[Line] = &[
        (
            "no model index",
            |model| fs::remove_file(model.join("model_index.json")).unwrap(),
            &["model has no model_index.json", "hint: a model is a directory in diffusers format"],
        ),
        (
            "an index that is no JSON",
            |model| fs::write(model.join("model_index.json"), "flux").unwrap(),
            &["model_index.json: expected", "line 1 column"],
        ),
        (
            "an index of unending depth",
            |model| fs::write(model.join("model_index.json"), "[".repeat(100_000)).unwrap(),
            &["model_index.json: "],
        ),
        (
            "an index larger than any",
            |model| fs::write(model.join("model_index.json"), " ".repeat(2 << 20)).unwrap(),
            &["model_index.json has 2097152 bytes, more than the 1048576"],
        ),
        (
            "an unknown family",
            |model| {
                edit_json(&model.join("model_index.json"), |i| {
                    i["_class_name"] = json!("OtherPipeline")
                })
            },
            &[
                "model_index.json: the family of `OtherPipeline` is unknown",
                "hint: known is FluxPipeline",
            ],
        ),
        (
            "a part of another class",
            |model| {
                edit_json(&model.join("model_index.json"), |index| {
                    index["vae"] = json!(["diffusers", "AutoencoderTiny"]);
                });
            },
            &["part `vae` is of class AutoencoderTiny, expected AutoencoderKL"],
        ),
        (
            "a part that is not there",
            |model| fs::remove_dir_all(model.join("vae")).unwrap(),
            &["model has no vae/config.json", "hint: "],
        ),
    ];
    assert_refused(cases.iter().map(|&(name, damage, says)| Case::damaged(name, damage, says)));
    assert_refused([
        Case::of(
            "no such directory",
            "inspect nothing",
            &["there is no model at nothing", "hint: "],
        ),
        Case::of(
            "a file",
            "inspect model/model_index.json",
            &["model_index.json is no usable safetensors file", "hint: "],
        ),
        Case::of("an empty path", "inspect", &["a value is required for '[MODEL]'"]).and(""),
    ]);
}

#[test]
fn a_damaged_tokenizer_is_named() {
    let cases: &[Line] = &[
        (
            "CLIP's vocabulary is absent",
            |model| fs::remove_file(model.join("tokenizer/vocab.json")).unwrap(),
            &["no tokenizer in", "tokenizer.json, or vocab.json and merges.txt", "hint: copy them"],
        ),
        (
            "T5's tokenizer is absent",
            |model| fs::remove_file(model.join("tokenizer_2/tokenizer.json")).unwrap(),
            &[
                "no tokenizer in",
                "model/tokenizer_2",
                "hint: spiece.model is there but is not read",
            ],
        ),
        (
            "a tokenizer that is no JSON",
            |model| fs::write(model.join("tokenizer_2/tokenizer.json"), "{\"model\":").unwrap(),
            &["tokenizer_2/tokenizer.json is malformed"],
        ),
        (
            "a vocabulary that is no map of ids",
            |model| fs::write(model.join("tokenizer/vocab.json"), "[1, 2]").unwrap(),
            &["tokenizer/vocab.json is malformed"],
        ),
        (
            "ids beyond the text encoder's table",
            |model| {
                edit_json(&model.join("tokenizer/vocab.json"), |vocabulary| {
                    vocabulary["a</w>"] = json!(5_000_000);
                });
            },
            &["5000000"],
        ),
        (
            "a vocabulary that cannot be read",
            |model| {
                fs::remove_file(model.join("tokenizer_2/tokenizer.json")).unwrap();
                fs::create_dir(model.join("tokenizer_2/tokenizer.json")).unwrap();
            },
            &["cannot read", "tokenizer_2/tokenizer.json: it is not a regular file"],
        ),
        (
            "merges of tokens that are not there",
            |model| {
                fs::write(model.join("tokenizer/merges.txt"), "#version: 0.2\nqqqq zzzz\n").unwrap()
            },
            &["tokenizer/merges.txt, line 2"],
        ),
    ];
    assert_refused(cases.iter().map(|&(name, damage, says)| Case::damaged(name, damage, says)));
    let inspected =
        |&(name, damage, says): &Line| Case::of(name, "inspect model", says).after(damage);
    // Whether ids are within the text encoder's table is a prompt's to show.
    let files = cases.iter().filter(|(name, ..)| !name.starts_with("ids beyond"));
    assert_refused(files.map(inspected));
}

#[test]
fn a_plan_makes_no_tokenizer() {
    let home = Home::new();
    copy(&fixture("flux_schnell"), &home.path("model"));
    fs::write(home.path("model/tokenizer_2/tokenizer.json"), "{\"model\":").unwrap();
    let plan = ["plan", "model", "--dry-run", "--host", "virtual-2x2g"];
    let ended = Ended::of(home.berth(&plan).output().expect("berth starts"));
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_configuration_with_absurd_numbers_is_refused_by_key() {
    fn clip(model: &Path, key: &str, value: Value) {
        edit_json(&model.join("text_encoder/config.json"), |config| config[key] = value);
    }
    fn dit(model: &Path, key: &str, value: Value) {
        edit_json(&model.join("transformer/config.json"), |config| config[key] = value);
    }
    fn scheduler(model: &Path, key: &str, value: Value) {
        edit_json(&model.join("scheduler/scheduler_config.json"), |config| config[key] = value);
    }
    const CLIP: &str = "text_encoder/config.json";
    let cases: &[Line] = &[
        (
            "a missing key",
            |model| {
                edit_json(&model.join(CLIP), |config| {
                    config.as_object_mut().unwrap().remove("hidden_size");
                });
            },
            &[CLIP, "missing field `hidden_size`"],
        ),
        (
            "width 0",
            |model| clip(model, "hidden_size", json!(0)),
            &[CLIP, "hidden_size is 0, expected 1 to"],
        ),
        (
            "width 10^18",
            |model| clip(model, "hidden_size", json!(1_000_000_000_000_000_000_u64)),
            &[CLIP, "hidden_size is 1000000000000000000, expected 1 to"],
        ),
        (
            "a negative width",
            |model| clip(model, "hidden_size", json!(-32)),
            &[CLIP, "invalid value: integer `-32`"],
        ),
        (
            "heads that do not divide",
            |model| clip(model, "num_attention_heads", json!(5)),
            &[CLIP, "5 heads do not divide hidden_size 32"],
        ),
        (
            "layers without end",
            |model| clip(model, "num_hidden_layers", json!(100_000)),
            &[CLIP, "num_hidden_layers is 100000"],
        ),
        (
            "a width that the other parts do not give",
            |model| dit(model, "joint_attention_dim", json!(56)),
            &[
                "transformer/config.json",
                "joint_attention_dim is 56, the other parts give 48",
                "berth inspect",
            ],
        ),
        (
            "heads whose product overflows",
            |model| dit(model, "num_attention_heads", json!(u64::MAX)),
            &["transformer/config.json", "num_attention_heads is 18446744073709551615"],
        ),
        (
            "a scaling factor of 0",
            |model| {
                edit_json(&model.join("vae/config.json"), |config| {
                    config["scaling_factor"] = json!(0.0)
                })
            },
            &["vae/config.json", "scaling_factor is 0"],
        ),
        (
            "a shift factor that is not finite",
            |model| {
                edit_json(&model.join("vae/config.json"), |config| {
                    config["shift_factor"] = json!(1e300)
                })
            },
            &["vae/config.json", "shift_factor"],
        ),
        (
            "an epsilon that is not finite",
            |model| clip(model, "layer_norm_eps", json!(1e300)),
            &[CLIP, "layer_norm_eps"],
        ),
        (
            "a rule of noise levels that is not there",
            |model| scheduler(model, "use_karras_sigmas", json!(true)),
            &["scheduler_config.json", "use_karras_sigmas, which is not supported", "hint: "],
        ),
        (
            "another sampler",
            |model| scheduler(model, "_class_name", json!("DDIMScheduler")),
            &["scheduler_config.json", "DDIMScheduler"],
        ),
        (
            "a shift of 0",
            |model| scheduler(model, "shift", json!(0.0)),
            &["scheduler_config.json", "shift is 0, expected"],
        ),
        (
            "an unknown key among the defaults",
            |model| fs::write(model.join("berth.toml"), "[defaults]\nwidht = 64\n").unwrap(),
            &["berth.toml: ", "line 2", "unknown field `widht`"],
        ),
        (
            "default guidance that is no number",
            |model| {
                fs::write(model.join("berth.toml"), "[defaults]\nguidance_scale = nan\n").unwrap()
            },
            &["berth.toml: ", "guidance_scale"],
        ),
    ];
    assert_refused(cases.iter().map(|&(name, damage, says)| Case::damaged(name, damage, says)));
    assert_refused([Case::of(
        "a default width that the model cannot paint",
        "generate model --prompt a --height 64 --steps 1",
        &["width 100 is no multiple of 16"],
    )
    .after(|model| fs::write(model.join("berth.toml"), "[defaults]\nwidth = 100\n").unwrap())]);
}
