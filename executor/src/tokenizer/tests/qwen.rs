//! Qwen's tokenizers, from each kind of file that they come in.

use super::*;

#[test]
fn qwens_ids_are_golden_from_its_directory_and_from_a_gguf_file() {
    let golden: BTreeMap<String, Vec<GoldenText>> = golden_json("zimage_turbo.tokens.json");
    let directory = open(&format!("{FIXTURES}/zimage_turbo"), "tokenizer", TokenizerKind::QWEN);
    let path = format!("{FIXTURES}/gguf/zimage_turbo_qwen3-Q8_0.gguf");
    let files = crate::weights::WeightFiles::open_file(Path::new(&path)).unwrap();
    let of_gguf = |kind| Tokenizer::of_gguf(files.gguf_keys().unwrap(), Path::new(&path), kind);
    let gguf = of_gguf(TokenizerKind::QWEN).unwrap().expect("it has one");
    assert!(of_gguf(TokenizerKind::T5).unwrap().is_none(), "it is no unigram model");
    assert_eq!(golden["tokenizer"].len(), 36);
    for tokenizer in [&directory, &gguf] {
        assert_eq!((tokenizer.eos_id(), tokenizer.pad_id()), (1202, 1200));
        for GoldenText { text, ids, ids_no_special } in &golden["tokenizer"] {
            assert_eq!(&tokenizer.ids(text).unwrap(), ids, "{text:?}");
            assert_eq!(&tokenizer.ids_without_specials(text).unwrap(), ids_no_special, "{text:?}");
        }
    }
}

#[test]
fn words_of_a_chat_template_are_tokens_of_their_own() {
    let golden: BTreeMap<String, Vec<GoldenText>> = golden_json("flux2_klein.tokens.json");
    let tokenizer = open(&format!("{FIXTURES}/flux2_klein"), "tokenizer", TokenizerKind::QWEN);
    for GoldenText { text, ids, ids_no_special } in &golden["tokenizer"] {
        assert_eq!(&tokenizer.ids(text).unwrap(), ids, "{text:?}");
        assert_eq!(&tokenizer.ids_without_specials(text).unwrap(), ids_no_special, "{text:?}");
    }
    // Those of a GGUF file of another model, which has the same words at the same places.
    let path = format!("{FIXTURES}/gguf/zimage_turbo_qwen3-Q8_0.gguf");
    let files = crate::weights::WeightFiles::open_file(Path::new(&path)).unwrap();
    let keys = files.gguf_keys().unwrap();
    let gguf = Tokenizer::of_gguf(keys, Path::new(&path), TokenizerKind::QWEN).unwrap().unwrap();
    let template = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    for (tokenizer, called) in [(&tokenizer, "a directory"), (&gguf, "a GGUF file")] {
        let ids = tokenizer.ids(template).unwrap();
        let own = |id: u32| ids.iter().filter(|&&other| other == id).count();
        assert_eq!([1201, 1202, 1224, 1225].map(own), [1; 4], "{called}: {ids:?}");
    }
}

#[test]
fn qwens_ids_are_golden_from_pairs_and_added_tokens() {
    let golden: BTreeMap<String, Vec<GoldenText>> = golden_json("qwen_image.tokens.json");
    let listed = open(&format!("{FIXTURES}/qwen_image"), "tokenizer", TokenizerKind::QWEN);
    // As published long ago: the added tokens are listed in a file of their own.
    let older = tempfile::tempdir().unwrap();
    for name in ["vocab.json", "merges.txt", "added_tokens.json"] {
        let from = fixture("qwen_image", "tokenizer").join(name);
        fs::copy(from, older.path().join(name)).unwrap();
    }
    let older_tokenizer = Tokenizer::open(older.path(), TokenizerKind::QWEN).unwrap();
    let path = format!("{FIXTURES}/gguf/qwen_image_qwen2vl-Q8_0.gguf");
    let files = crate::weights::WeightFiles::open_file(Path::new(&path)).unwrap();
    let keys = files.gguf_keys().unwrap();
    let gguf = Tokenizer::of_gguf(keys, Path::new(&path), TokenizerKind::QWEN).unwrap().unwrap();
    assert_eq!(golden["tokenizer"].len(), 36);
    for tokenizer in [&listed, &older_tokenizer, &gguf] {
        assert_eq!((tokenizer.eos_id(), tokenizer.pad_id()), (1202, 1200));
        for GoldenText { text, ids, ids_no_special } in &golden["tokenizer"] {
            assert_eq!(&tokenizer.ids(text).unwrap(), ids, "{text:?}");
            assert_eq!(&tokenizer.ids_without_specials(text).unwrap(), ids_no_special, "{text:?}");
        }
    }
    fs::remove_file(older.path().join("added_tokens.json")).unwrap();
    let error = Tokenizer::open(older.path(), TokenizerKind::QWEN).err().unwrap().to_string();
    assert!(error.contains("eos_token") && error.contains("<|im_end|>"), "{error}");
    fs::remove_file(older.path().join("merges.txt")).unwrap();
    let error = Tokenizer::open(older.path(), TokenizerKind::QWEN).err().unwrap().to_string();
    assert!(error.contains("vocab.json and merges.txt"), "{error}");
}
