//! Models of single files and parts: every file of the reference, in the combinations that people
//! have them in.

use protocol::{ModelSource, PartFlag};

use crate::parity::compare::{TEXT, assert_close};
use crate::parity::golden::{Golden, Tensor, tensors};
use crate::parity::stages::Opened;
use crate::parity::{
    HOST_ONLY, Noise, compare_all, generate, matches_by_heads, matches_everywhere,
};
use crate::support::bfl::{self, Tensors as Stored};
use crate::support::{Home, fixture};

/// A file under `tests/fixtures`.
fn file(name: &str) -> String {
    fixture(name).display().to_string()
}

/// The model `flux_single`, whose parts are files.
fn parts(dit: &str, t5: &str) -> ModelSource {
    ModelSource::default()
        .with(PartFlag::DiffusionModel, file(dit))
        .with(PartFlag::Vae, file("single/flux_single_ae.safetensors"))
        .with(PartFlag::ClipL, file("single/flux_single_clip_l.safetensors"))
        .with(PartFlag::T5xxl, file(t5))
        .with(PartFlag::TokenizerDir, file("flux_single"))
}

const FP8: &str = "single/flux_single_fp8_e4m3fn.safetensors";
const T5: &str = "single/flux_single_t5xxl.safetensors";
const T5_GGUF: &str = "gguf/flux_single_t5-Q8_0.gguf";

/// The directory `flux_dev` with its DiT from a file.
fn dev(dit: &str) -> ModelSource {
    ModelSource::of(file("flux_dev")).with(PartFlag::DiffusionModel, file(dit))
}

/// A golden file of a model with other parts.
fn variant(base: &'static str, name: &'static str, source: ModelSource) -> Golden {
    let stored = tensors(&fixture(&format!("golden/{name}.safetensors")));
    let golden = Golden::fixture(base).with_parts(name, &stored, source);
    assert!(golden.cases.len() >= 2, "{name} has cases of {base}");
    golden
}

#[test]
fn every_case_of_dev_matches_with_the_dit_from_black_forest_labs_file() {
    let source = dev("single/flux_dev_bfl.safetensors");
    matches_everywhere(&Golden { source, ..Golden::fixture("flux_dev") });
}

#[test]
fn clip_t5_and_vae_of_their_own_files_match() {
    let golden = Golden::fixture("flux_single");
    let opened = Opened::new(Golden { source: parts(FP8, T5), ..golden });
    opened.text_encoders();
    opened.decoder();
    let others = &opened.golden.others;
    let picture = opened.decoded("vae/decode", others["z"].floats(), 11, 14);
    assert_close(
        "vae/decode",
        &picture,
        others["decode"].floats(),
        crate::parity::compare::DECODER,
    );
}

#[test]
fn stored_types_match_when_devices_share_the_heads() {
    for (base, name, source) in [
        ("flux_dev", "flux_dev.gguf-Q8_0", dev("gguf/flux_dev-Q8_0.gguf")),
        ("flux_single", "flux_single.fp8", parts(FP8, T5)),
    ] {
        matches_by_heads(&variant(base, name, source));
    }
}

#[test]
fn every_quantised_dit_matches_in_every_tensor() {
    for (base, name, source) in [
        ("flux_dev", "flux_dev.gguf-F16", dev("gguf/flux_dev-F16.gguf")),
        ("flux_dev", "flux_dev.gguf-Q8_0", dev("gguf/flux_dev-Q8_0.gguf")),
        ("flux_single", "flux_single.fp8", parts(FP8, T5)),
        ("flux_single", "flux_single.gguf-Q4_K", parts("gguf/flux_single-Q4_K.gguf", T5)),
        ("flux_single", "flux_single.gguf-MIXED", parts("gguf/flux_single-MIXED.gguf", T5)),
    ] {
        let golden = variant(base, name, source);
        matches_everywhere(&golden);
        Opened::new(golden).denoiser();
    }
}

/// Models whose DiTs are in blocks, or in floats of eight bits.
pub fn quantised() -> Vec<Golden> {
    let of = |(base, name, source)| variant(base, name, source);
    [
        ("flux_dev", "flux_dev.gguf-Q8_0", dev("gguf/flux_dev-Q8_0.gguf")),
        ("flux_single", "flux_single.gguf-Q4_K", parts("gguf/flux_single-Q4_K.gguf", T5)),
        ("flux_single", "flux_single.gguf-MIXED", parts("gguf/flux_single-MIXED.gguf", T5)),
        ("flux_single", "flux_single.fp8", parts(FP8, T5)),
    ]
    .map(of)
    .into()
}

#[test]
fn products_of_integers_are_near() {
    let t5 = variant("flux_single", "flux_single.gguf-t5", parts(FP8, T5_GGUF));
    Opened::new(Golden { exact: false, ..t5 }).text_encoders();
    for golden in quantised() {
        Opened::new(Golden { exact: false, ..golden }).denoiser();
    }
}

#[test]
fn t5_from_gguf_matches_with_its_own_tokenizer() {
    let golden = variant("flux_single", "flux_single.gguf-t5", parts(FP8, T5_GGUF));
    let opened = Opened::new(golden);
    opened.text_encoders();
    // Without the directory the ids are those of the tokenizer within.
    let home = Home::new();
    let mut golden = opened.golden;
    let clip_alone = home.path("tokenizers");
    std::fs::create_dir(&clip_alone).expect("the home can be written");
    let link =
        std::os::unix::fs::symlink(fixture("flux_single/tokenizer"), clip_alone.join("tokenizer"));
    link.expect("the home can be written");
    let tokenizers = clip_alone.display().to_string();
    golden.source.parts.insert(PartFlag::TokenizerDir, tokenizers);
    for case in &golden.cases {
        let dumped = generate(&home, &golden, case, None, Noise::Golden, &[]);
        let name = "text_encoder_2.c.input_ids";
        assert_eq!(dumped[name].ids(), case.tensors[name].ids(), "{}", case.name);
        let name = "text_encoder_2.c.last_hidden_state";
        assert_close(name, dumped[name].floats(), case.floats(name), TEXT);
    }
}

#[test]
fn one_file_of_all_parts_gives_what_its_parts_give() {
    let home = Home::new();
    std::fs::write(home.path("host-only.toml"), HOST_ONLY).expect("the home can be written");
    let read = |name: &str| bfl::read(&fixture(name));
    let mut all = Stored::new();
    for (prefix, tensors) in [
        ("", read(FP8)),
        ("text_encoders.clip_l.transformer.", read("single/flux_single_clip_l.safetensors")),
        ("text_encoders.t5xxl.transformer.", read(T5)),
        ("first_stage_model.", read("single/flux_single_ae.safetensors")),
    ] {
        all.extend(bfl::behind(prefix, tensors));
    }
    let path = home.path("all.safetensors");
    bfl::write(&path, &all);
    let whole = ModelSource::of(path.display().to_string())
        .with(PartFlag::TokenizerDir, file("flux_single"));
    let golden = variant("flux_single", "flux_single.fp8", whole.clone());
    let profile = Some(("./host-only.toml", "host"));
    for case in &golden.cases {
        let dumped = generate(&home, &golden, case, profile, Noise::Golden, &[]);
        compare_all(&format!("all in one/{}", case.name), case, &dumped, Noise::Golden, 1.0);
    }
    // A part in a file of its own replaces the one within.
    let other = whole.with(PartFlag::DiffusionModel, file("gguf/flux_single-Q4_K.gguf"));
    let golden = variant("flux_single", "flux_single.gguf-Q4_K", other);
    let case = &golden.cases[0];
    let dumped = generate(&home, &golden, case, profile, Noise::Golden, &[]);
    compare_all("all in one with another DiT", case, &dumped, Noise::Golden, 1.0);
    assert!(matches!(dumped["image_u8"], Tensor::Levels(_)));
}
