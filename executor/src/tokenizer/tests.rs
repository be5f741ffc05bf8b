//! Ids of the reference tokenizers, and directories that must be refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::*;

mod qwen;

macro_rules! repository {
    ($path:expr) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../", $path)
    };
}

const FIXTURES: &str = repository!("tests/fixtures");
const DEMO_MODEL: &str = repository!("planner/demo/model");

/// The tokenizers of a FLUX directory, in the order of their names.
const PARTS: [(&str, TokenizerKind); 2] =
    [("tokenizer", TokenizerKind::CLIP), ("tokenizer_2", TokenizerKind::T5)];

/// Those of a model with three text encoders.
const THREE_PARTS: [(&str, TokenizerKind); 3] = [
    ("tokenizer", TokenizerKind::CLIP),
    ("tokenizer_2", TokenizerKind::CLIP),
    ("tokenizer_3", TokenizerKind::T5),
];

fn open(model: &str, part: &str, kind: TokenizerKind) -> Tokenizer {
    Tokenizer::open(&Path::new(model).join(part), kind).unwrap()
}

fn fixture(model: &str, part: &str) -> PathBuf {
    Path::new(FIXTURES).join(model).join(part)
}

fn golden_json<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&fs::read(format!("{FIXTURES}/golden/{name}")).unwrap()).unwrap()
}

fn golden_tensors(model: &str) -> Vec<u8> {
    fs::read(format!("{FIXTURES}/golden/{model}.safetensors")).unwrap()
}

fn golden_ids(file: &SafeTensors, name: &str) -> Vec<u32> {
    let view = file.tensor(name).unwrap();
    match view.dtype() {
        Dtype::I64 => view
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|bytes| i64::from_le_bytes(*bytes) as u32)
            .collect(),
        Dtype::I32 => view
            .data()
            .as_chunks()
            .0
            .iter()
            .map(|bytes| i32::from_le_bytes(*bytes) as u32)
            .collect(),
        other => panic!("{name} is {other:?}"),
    }
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
    ids: Vec<u32>,
    ids_no_special: Vec<u32>,
}

#[test]
fn every_reference_text_has_its_ids() {
    for (model, parts) in [
        ("flux_schnell", &PARTS[..]),
        ("flux_dev", &PARTS),
        ("sd3_medium", &THREE_PARTS),
        ("sd35_medium", &THREE_PARTS),
    ] {
        let golden: BTreeMap<String, Vec<GoldenText>> =
            golden_json(&format!("{model}.tokens.json"));
        for &(part, kind) in parts {
            let tokenizer = open(&format!("{FIXTURES}/{model}"), part, kind);
            assert_eq!(golden[part].len(), 36);
            for GoldenText { text, ids, ids_no_special } in &golden[part] {
                assert_eq!(&tokenizer.ids(text).unwrap(), ids, "{model} {part} {text:?}");
                let without = tokenizer.ids_without_specials(text).unwrap();
                assert_eq!(&without, ids_no_special, "{model} {part} {text:?}");
            }
        }
    }
}

#[test]
fn the_second_built_in_tokenizer_pads_with_the_exclamation_mark() {
    let (first, second) = (Tokenizer::clip(), Tokenizer::clip_g());
    assert_eq!((first.pad_id(), second.pad_id()), (49_407, 0));
    assert_eq!((second.eos_id(), second.vocabulary_size()), (49_407, Tokenizer::CLIP_TOKENS));
    let [one, other] = [&first, &second].map(|t| t.encode("a red cat", 77).unwrap());
    let length = one.length_before_padding;
    assert_eq!(one.ids[..length], other.ids[..length]);
    assert!(other.ids[length..].iter().all(|&id| id == 0));
    // As it is a special token there, a literal one is found whole and splits what it stands in.
    assert_eq!(first.ids_without_specials("stop !").unwrap().last(), Some(&256));
    assert_eq!(second.ids_without_specials("stop !").unwrap().last(), Some(&0));
    assert_eq!(first.ids_without_specials("?!").unwrap().len(), 1);
    assert_eq!(second.ids_without_specials("?!").unwrap().len(), 2);
}

#[test]
fn the_built_in_tokenizer_has_the_ids_of_every_published_clip() {
    let golden: BTreeMap<String, Vec<GoldenText>> = golden_json("clip_full.tokens.json");
    let tokenizer = Tokenizer::clip();
    let sizes = (tokenizer.vocabulary_size(), tokenizer.max_length());
    assert_eq!(sizes, (Tokenizer::CLIP_TOKENS, Some(77)));
    for GoldenText { text, ids, ids_no_special } in golden.values().flatten() {
        assert_eq!(&tokenizer.ids(text).unwrap(), ids, "{text:?}");
        assert_eq!(&tokenizer.ids_without_specials(text).unwrap(), ids_no_special, "{text:?}");
    }
    assert_eq!(golden.values().flatten().count(), 36);
}

/// A copy of the reference T5 in GGUF, some of its bytes in other places.
fn unigram(change: impl FnOnce(&mut Vec<u8>)) -> Result<Option<Tokenizer>, TokenizerError> {
    let mut bytes = fs::read(format!("{FIXTURES}/gguf/flux_single_t5-Q8_0.gguf")).unwrap();
    change(&mut bytes);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    let files = crate::weights::WeightFiles::open_file(file.path()).unwrap();
    Tokenizer::of_gguf(files.gguf_keys().unwrap(), file.path(), TokenizerKind::T5)
}

/// Where the value of a key begins, behind the type and, of arrays, their elements' type and
/// number.
fn value_at(bytes: &[u8], key: &str, before: usize) -> usize {
    let found = bytes.windows(key.len()).position(|window| window == key.as_bytes());
    found.expect("the key is there") + key.len() + before
}

#[test]
fn a_gguf_file_gives_the_ids_of_its_models_tokenizer() {
    let golden: BTreeMap<String, Vec<GoldenText>> = golden_json("flux_single.tokens.json");
    let tokenizer = unigram(|_| {}).unwrap().expect("it has one");
    assert_eq!((tokenizer.eos_id(), tokenizer.pad_id(), tokenizer.vocabulary_size()), (1, 0, 1000));
    assert_eq!(golden["tokenizer_2"].len(), 36);
    for GoldenText { text, ids, ids_no_special } in &golden["tokenizer_2"] {
        assert_eq!(&tokenizer.ids(text).unwrap(), ids, "{text:?}");
        assert_eq!(&tokenizer.ids_without_specials(text).unwrap(), ids_no_special, "{text:?}");
    }
}

#[test]
fn tables_of_a_gguf_file_that_contradict_each_other_are_refused() {
    type Change = fn(&mut Vec<u8>);
    let faults: [(Change, &str); 5] = [
        (
            |bytes| {
                let at = value_at(bytes, "tokenizer.ggml.scores", 16);
                bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
            },
            "a token's score is NaN",
        ),
        (
            |bytes| {
                let at = value_at(bytes, "tokenizer.ggml.eos_token_id", 4);
                bytes[at..at + 4].copy_from_slice(&1008_u32.to_le_bytes());
            },
            "its eos_token_id is beyond its 1008 tokens",
        ),
        (
            |bytes| {
                let at = value_at(bytes, "tokenizer.ggml.unknown_token_i", 0);
                bytes[at] = b'x';
            },
            "it has no tokenizer.ggml.unknown_token_id",
        ),
        (
            // The trie's length, beyond the map.
            |bytes| {
                let at = value_at(bytes, "tokenizer.ggml.precompiled_charsmap", 16);
                bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
            },
            "charsmap",
        ),
        (
            |bytes| {
                let at = value_at(bytes, "tokenizer.ggml.unknown_token_id", 4);
                bytes[at..at + 4].copy_from_slice(&1007_u32.to_le_bytes());
            },
            "",
        ),
    ];
    for (change, says) in faults {
        let Err(error) = unigram(change) else { panic!("{says}: it is taken") };
        let TokenizerError::Malformed { message, .. } = &error else { panic!("{error}") };
        assert!(message.contains(says), "{message}");
    }
    let other = unigram(|bytes| {
        let at = value_at(bytes, "tokenizer.ggml.model", 12);
        bytes[at] = b'x';
    });
    assert!(matches!(other, Ok(None)), "a tokenizer of another kind is none of T5's");
}

#[derive(Deserialize)]
struct FluxCases {
    cases: Vec<FluxCase>,
}

#[derive(Deserialize)]
struct FluxCase {
    name: String,
    text_from: Option<String>,
    call: FluxCall,
}

#[derive(Deserialize)]
struct FluxCall {
    prompt: String,
    prompt_2: Option<String>,
    negative_prompt: Option<String>,
    max_sequence_length: usize,
}

#[test]
fn padded_and_cut_sequences_equal_what_the_reference_encoders_got() {
    for model in ["flux_schnell", "flux_dev"] {
        let [clip, t5] = PARTS.map(|(part, kind)| open(&format!("{FIXTURES}/{model}"), part, kind));
        assert_eq!((clip.max_length(), t5.max_length()), (Some(77), Some(512)));
        let bytes = golden_tensors(model);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let cases = golden_json::<FluxCases>(&format!("{model}.json")).cases;
        let mut compared = 0;
        for FluxCase { name, call, .. } in cases.iter().filter(|case| case.text_from.is_none()) {
            let second = call.prompt_2.as_ref().unwrap_or(&call.prompt);
            let mut passes = vec![("c", &call.prompt, second)];
            passes.extend(call.negative_prompt.as_ref().map(|prompt| ("u", prompt, prompt)));
            for (pass, prompt, prompt_2) in passes {
                let ids = clip.encode(prompt, 77).unwrap().ids;
                assert_eq!(
                    ids,
                    golden_ids(&file, &format!("{name}/text_encoder.{pass}.input_ids"))
                );
                let ids = t5.encode(prompt_2, call.max_sequence_length).unwrap().ids;
                assert_eq!(
                    ids,
                    golden_ids(&file, &format!("{name}/text_encoder_2.{pass}.input_ids"))
                );
                compared += 1;
            }
        }
        assert!(compared >= 3, "{model}: {compared} prompts");
    }
}

#[derive(Deserialize)]
struct DemoCases {
    cases: Vec<DemoCase>,
}

#[derive(Deserialize)]
struct DemoCase {
    key: String,
    prompt: String,
    max_sequence_length: usize,
}

#[test]
fn the_demo_model_has_the_references_ids_from_either_form_of_its_files() {
    let [clip, t5] = PARTS.map(|(part, kind)| open(DEMO_MODEL, part, kind));
    assert_eq!((clip.eos_id(), clip.pad_id(), clip.vocabulary_size()), (351, 351, 352));
    assert_eq!((t5.eos_id(), t5.pad_id()), (1, 0));

    let built = tempfile::tempdir().unwrap();
    for file in ["vocab.json", "merges.txt", "tokenizer_config.json"] {
        fs::copy(format!("{DEMO_MODEL}/tokenizer/{file}"), built.path().join(file)).unwrap();
    }
    let built = Tokenizer::open(built.path(), TokenizerKind::CLIP).unwrap();
    assert_eq!((built.eos_id(), built.vocabulary_size()), (351, 352));

    let bytes = golden_tensors("demo");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for DemoCase { key, prompt, max_sequence_length } in golden_json::<DemoCases>("demo.json").cases
    {
        let length = clip.max_length().unwrap();
        let ids = clip.encode(&prompt, length).unwrap();
        assert_eq!(ids.ids, golden_ids(&file, &format!("{key}.clip_input_ids")));
        assert_eq!(built.encode(&prompt, length).unwrap(), ids);
        let ids = t5.encode(&prompt, max_sequence_length).unwrap().ids;
        assert_eq!(ids, golden_ids(&file, &format!("{key}.t5_input_ids")));
    }
    for text in ["It's  CAFÉ\u{301}\n12 <|endoftext|>", "ß İ 😀 <|STARTOFTEXT|>x", "midd le centre"]
    {
        assert_eq!(built.ids(text).unwrap(), clip.ids(text).unwrap(), "{text:?}");
    }
}

#[test]
fn a_cut_sequence_keeps_its_special_tokens_and_a_short_one_is_filled_up() {
    let clip = open(&format!("{FIXTURES}/flux_schnell"), "tokenizer", TokenizerKind::CLIP);
    let whole = clip.ids("a cat").unwrap();
    assert_eq!(whole, [2000, 320, 66, 536, 2001]);
    let cases: [(usize, &[u32], usize, bool); 5] = [
        (2, &[2000, 2001], 2, true),
        (3, &[2000, 320, 2001], 3, true),
        (4, &[2000, 320, 66, 2001], 4, true),
        (5, &whole, 5, false),
        (7, &[2000, 320, 66, 536, 2001, 2001, 2001], 5, false),
    ];
    for (length, ids, length_before_padding, truncated) in cases {
        let expected = Encoding { ids: ids.to_vec(), length_before_padding, truncated };
        assert_eq!(clip.encode("a cat", length).unwrap(), expected);
    }
    let t5 = open(&format!("{FIXTURES}/flux_schnell"), "tokenizer_2", TokenizerKind::T5);
    let encoding = t5.encode("a cat", 5).unwrap();
    assert_eq!((encoding.ids, encoding.length_before_padding), (vec![4, 274, 1, 0, 0], 3));
    assert_eq!(t5.encode("a cat", 2).unwrap().ids, [4, 1]);
}

#[test]
fn lengths_and_texts_have_limits() {
    let clip = open(&format!("{FIXTURES}/flux_schnell"), "tokenizer", TokenizerKind::CLIP);
    for got in [0, 1, SEQUENCE_LENGTH_MAX + 1, usize::MAX] {
        let error = clip.encode("a cat", got).unwrap_err();
        assert!(
            matches!(error, TokenizerError::SequenceLength { got: g, least: 2, .. } if g == got)
        );
    }
    let longest = "a ".repeat(TEXT_BYTES_MAX.as_usize() / 2);
    assert_eq!(clip.ids(&longest).unwrap().len(), longest.len() / 2 + 2);
    let error = clip.encode(&(longest + "a"), 77).unwrap_err();
    assert!(matches!(error, TokenizerError::TextTooLong { .. }));
}

/// SDXL's second CLIP tokenizer pads with `!`, which thereby becomes a special token: it no longer
/// ends a word, nor joins other punctuation.
#[test]
fn a_pad_token_is_recognised_within_the_text() {
    let directory = clip_copy();
    let config = directory.path().join("tokenizer_config.json");
    fs::write(config, r#"{"pad_token": "!", "model_max_length": 1e30}"#).unwrap();
    let clip = Tokenizer::open(directory.path(), TokenizerKind::CLIP).unwrap();
    assert_eq!((clip.pad_id(), clip.eos_id(), clip.max_length()), (0, 2001, None));
    assert_eq!(clip.ids_without_specials("!").unwrap(), [0]);
    let question = clip.ids_without_specials("?").unwrap();
    assert_eq!(clip.ids_without_specials("?!").unwrap(), [question, vec![0]].concat());
    assert_eq!(clip.encode("", 4).unwrap().ids, [2000, 2001, 0, 0]);
}

#[test]
fn special_tokens_may_be_objects_and_lengths_may_be_huge_integers() {
    let directory = clip_copy();
    let config = r#"{"model_max_length": 1000000000000000019884624838656,
        "eos_token": {"content": "<|endoftext|>", "lstrip": false}, "pad_token": null}"#;
    fs::write(directory.path().join("tokenizer_config.json"), config).unwrap();
    let clip = Tokenizer::open(directory.path(), TokenizerKind::CLIP).unwrap();
    assert_eq!((clip.max_length(), clip.eos_id(), clip.pad_id()), (None, 2001, 2001));
}

/// A writable directory with the files of the reference's CLIP tokenizer, but no configuration.
fn clip_copy() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for file in ["vocab.json", "merges.txt"] {
        fs::copy(fixture("flux_schnell", "tokenizer").join(file), directory.path().join(file))
            .unwrap();
    }
    directory
}

#[track_caller]
fn refusal(directory: &Path, kind: TokenizerKind) -> TokenizerError {
    Tokenizer::open(directory, kind).err().expect("a faulty directory is refused")
}

#[test]
fn missing_files_are_named_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    for (kind, named) in
        [(TokenizerKind::CLIP, "vocab.json"), (TokenizerKind::T5, "tokenizer.json")]
    {
        let message = refusal(directory.path(), kind).to_string();
        assert!(message.contains(&*directory.path().to_string_lossy()), "{message}");
        assert!(message.contains(named) && message.contains("hint:"), "{message}");
    }
    fs::write(directory.path().join("spiece.model"), "model").unwrap();
    let message = refusal(directory.path(), TokenizerKind::T5).to_string();
    assert!(message.contains("save_pretrained"), "{message}");
    fs::write(directory.path().join("vocab.json"), "{}").unwrap();
    let error = refusal(directory.path(), TokenizerKind::CLIP);
    assert!(matches!(error, TokenizerError::Missing { .. }));
}

#[test]
fn faulty_clip_files_are_refused_with_their_place() {
    type Expected = fn(&TokenizerError) -> bool;
    let cases: [(&str, &str, Expected); 8] = [
        ("vocab.json", "[1]", |e| matches!(e, TokenizerError::Malformed { .. })),
        ("vocab.json", r#"{"a": -1}"#, |e| matches!(e, TokenizerError::Malformed { .. })),
        ("merges.txt", "#version: 0.2\ni n\nabc\n", |e| {
            matches!(e, TokenizerError::Merge { line: 3, .. })
        }),
        ("merges.txt", "i n x\n", |e| matches!(e, TokenizerError::Merge { line: 1, .. })),
        ("merges.txt", "using</w> using</w>\n", |e| {
            matches!(e, TokenizerError::Merge { line: 1, .. })
        }),
        ("tokenizer_config.json", r#"{"bos_token": "<none>"}"#, |e| {
            matches!(e, TokenizerError::UnknownSpecialToken { role: "bos_token", .. })
        }),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"7": {"content": "<|endoftext|>"}}}"#,
            |e| matches!(e, TokenizerError::SpecialTokenId { expected: 7, got: Some(2001), .. }),
        ),
        ("tokenizer_config.json", "{", |e| matches!(e, TokenizerError::Malformed { .. })),
    ];
    for (file, content, expected) in cases {
        let directory = clip_copy();
        fs::write(directory.path().join(file), content).unwrap();
        let error = refusal(directory.path(), TokenizerKind::CLIP);
        assert!(expected(&error), "{file} {content:?}: {error}");
    }
}

#[test]
fn oversized_files_are_refused_unread() {
    let directory = clip_copy();
    let path = directory.path().join("tokenizer_config.json");
    fs::File::create(&path).unwrap().set_len(CONFIG_FILE_BYTES_MAX.0 + 1).unwrap();
    let error = refusal(directory.path(), TokenizerKind::CLIP);
    assert!(matches!(error, TokenizerError::TooLarge { limit: CONFIG_FILE_BYTES_MAX, .. }));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = refusal(directory.path(), TokenizerKind::CLIP);
    assert!(matches!(error, TokenizerError::Read { .. }));
}

/// A document may ask for its own truncation and padding, and may contradict itself.
#[test]
fn documents_are_used_without_their_settings_and_without_trust() {
    let text = fs::read_to_string(format!("{DEMO_MODEL}/tokenizer/tokenizer.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let write = |document: &serde_json::Value| {
        fs::write(directory.path().join("tokenizer.json"), document.to_string()).unwrap();
    };

    let mut with_settings = document.clone();
    with_settings["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    with_settings["padding"] = serde_json::json!({
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
        "pad_id": 5, "pad_type_id": 0, "pad_token": "&"});
    write(&with_settings);
    let clip = Tokenizer::open(directory.path(), TokenizerKind::CLIP).unwrap();
    let plain = open(DEMO_MODEL, "tokenizer", TokenizerKind::CLIP);
    for text in ["a", "a small blue star"] {
        assert_eq!(clip.ids(text).unwrap(), plain.ids(text).unwrap());
    }

    // This merge is longer than every token, which the crate does not expect.
    let longest = "<|startoftext|>";
    let mut contradiction = document.clone();
    contradiction["model"]["merges"] = serde_json::json!([[longest, longest]]);
    write(&contradiction);
    let error = refusal(directory.path(), TokenizerKind::CLIP);
    assert!(matches!(error, TokenizerError::Malformed { .. }), "{error}");

    let mut unfinished = document;
    unfinished["post_processor"] = serde_json::Value::Null;
    write(&unfinished);
    let error = refusal(directory.path(), TokenizerKind::CLIP);
    assert!(matches!(error, TokenizerError::NoEnd { .. }), "{error}");
}
