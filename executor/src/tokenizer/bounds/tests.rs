//! Limits at their borders; what is beyond them is refused by the real program in
//! `tests/bad_input/expanding.rs`.

use serde_json::{Value, json};

use super::vocabulary::{Tokens, check_json};
use super::*;

/// A document with these sections, and a small model.
fn document(sections: Value) -> Vec<u8> {
    let mut document =
        json!({ "model": { "type": "BPE", "vocab": { "a": 0 }, "merges": ["a b", ["a", "b"]] } });
    let sections = sections.as_object().expect("an object").clone();
    document.as_object_mut().expect("an object").extend(sections);
    document.to_string().into_bytes()
}

fn growth(normalizer: &Value) -> f64 {
    let json = RawValue::from_string(normalizer.to_string()).expect("JSON");
    Rules::default().growth_of(Section::Normalizer, Some(&json)).expect("within the limits")
}

#[test]
fn rules_grow_by_their_worst_byte() {
    let replace = |pattern: Value, content: &str| {
        growth(&json!({ "type": "Replace", "pattern": pattern, "content": content }))
    };
    assert_eq!(replace(json!({ "String": " " }), "▁"), 3.0);
    assert_eq!(replace(json!({ "String": "ab" }), "a"), 1.0);
    assert_eq!(replace(json!({ "String": "" }), "a"), 3.0);
    assert_eq!(replace(json!({ "Regex": " {2,}" }), "▁"), 1.5);
    assert_eq!(replace(json!({ "Regex": "x*" }), "▁"), 7.0);
    assert_eq!(replace(json!({ "Regex": "a(?!b)" }), "▁"), 7.0, "a pattern that is not parsed");
    let rules = json!([{ "type": "NFC" }, { "prepend": "a" }, { "type": "Lowercase" }]);
    assert_eq!(growth(&json!({ "type": "Sequence", "normalizers": rules })), 3.0 * 22.0 * 1.5);
}

/// What the crate does is never more than what is counted here.
#[test]
fn no_rule_grows_by_more_than_is_counted() {
    let texts = ["İȺﷺ", "a", "  ", "ΐ\u{1d160}", "中文", "é\u{301}ﬃ", "ab ab"];
    let rules = [
        json!({ "type": "NFC" }),
        json!({ "type": "NFD" }),
        json!({ "type": "NFKC" }),
        json!({ "type": "NFKD" }),
        json!({ "type": "Lowercase" }),
        json!({ "type": "ByteLevel" }),
        json!({ "type": "Nmt" }),
        json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true }),
        json!({ "type": "Prepend", "prepend": "▁" }),
        json!({ "type": "Replace", "pattern": { "Regex": "" }, "content": "xy" }),
    ];
    for rule in rules {
        let json = json!({ "normalizer": rule, "version": "1.0" });
        let mut model: tokenizers::Tokenizer = guarded_document(json);
        model.with_padding(None);
        for text in texts {
            let normalizer = model.get_normalizer().expect("one was given");
            let mut normalized = tokenizers::NormalizedString::from(text);
            tokenizers::Normalizer::normalize(normalizer, &mut normalized)
                .expect("it can be applied");
            let (before, after) = (text.len() as f64, normalized.get().len() as f64);
            assert!(after <= before * growth(&rule), "{rule} makes {after} bytes of {text:?}");
        }
    }
}

/// The crate's tokenizer of a document without words.
fn guarded_document(mut document: Value) -> tokenizers::Tokenizer {
    document["model"] = json!({ "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "a" });
    tokenizers::Tokenizer::from_bytes(document.to_string()).expect("the crate reads it")
}

#[test]
fn a_document_is_checked_as_a_whole() {
    assert_eq!(check_document(&document(json!({}))), Ok(()));
    let nfkc = |count: usize| json!({ "type": "Sequence", "normalizers": vec![json!({ "type": "NFKC" }); count] });
    assert_eq!(check_document(&document(json!({ "normalizer": nfkc(2) }))), Ok(()));
    let both = json!({ "normalizer": nfkc(2), "pre_tokenizer": { "type": "ByteLevel" } });
    assert!(matches!(check_document(&document(both)), Err(BoundError::Beyond(_))));
    let long = json!({ "version": "1".repeat(65) });
    assert!(matches!(check_document(&document(long)), Err(BoundError::Beyond(_))));
    assert!(matches!(check_document(b"[1]"), Err(BoundError::Malformed(_))));
    let model =
        json!({ "model": { "vocab": {}, "merges": [], "end_of_word_suffix": "w".repeat(200) } });
    assert!(matches!(check_document(&document(model)), Err(BoundError::Beyond(_))));
    let model = json!({ "model": { "vocab": [], "merges": [["a".repeat(1100), "b"]] } });
    assert!(matches!(check_document(&document(model)), Err(BoundError::Beyond(_))));
}

#[test]
fn vocabularies_have_limits() {
    let many = |count: usize| Tokens::of((0..count).map(|_| "abcd"));
    assert_eq!(many(1 << 20).check_unigram(), Ok(()));
    assert!(many((1 << 20) + 1).check().is_err() && many(1 << 17).check_added().is_err());
    let long = "a".repeat(512);
    let longs = |count: usize| Tokens::of((0..count).map(|_| long.as_str()));
    assert_eq!(longs(8192).check_unigram(), Ok(()));
    assert!(longs(8193).check_unigram().is_err() && longs(8193).check().is_ok());
    assert!(longs(1025).check_added().is_err() && longs(1024).check_added().is_ok());
    assert!(check_json(br#"{"a": 1, "b": 2}"#).is_ok());
    assert!(matches!(check_json(br#"{"a": []}"#), Err(BoundError::Malformed(_))));
}
