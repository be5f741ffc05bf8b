//! Settings and their text stand for one another, and texts of other programs are read as far as
//! they go.

use proptest::option;
use proptest::prelude::*;

use super::*;

/// Texts that look like what stands around them.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("Negative prompt: "),
        Just("Negative prompt:"),
        Just("\nSteps: 1, Seed: 2, Size: 3x4"),
        Just("\n"),
        Just("\r\n"),
        Just(" "),
        Just("\t"),
        Just(","),
        Just(": "),
        Just("\""),
        Just("\\"),
        Just("Exact prompt: \""),
        Just("\u{0}"),
        Just("\u{85}"),
        Just("\u{a0}"),
        Just("赤い丸"),
        Just("a"),
    ];
    prop_oneof![prop::collection::vec(piece, 0..8).prop_map(|all| all.concat()), any::<String>()]
}

fn file() -> impl Strategy<Value = FileRecord> {
    let sha256 = option::of("[0-9a-f]{64}");
    (hostile(), sha256).prop_map(|(path, sha256)| FileRecord { path, sha256 })
}

fn lora() -> impl Strategy<Value = LoraRecord> {
    let weight = any::<f32>().prop_filter("finite", |weight| weight.is_finite());
    (file(), weight).prop_map(|(file, weight)| LoraRecord { file, weight })
}

fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("[a-z0-9_]{1,8}", 0..4)
}

fn paths() -> impl Strategy<Value = ModelSource> {
    let parts = prop::collection::vec(option::of(hostile()), PartFlag::ALL.len());
    (option::of(hostile()), parts).prop_map(|(model, paths)| {
        let named = PartFlag::ALL.iter().copied().zip(paths);
        let parts = named.filter_map(|(flag, path)| Some((flag, path?))).collect();
        ModelSource { model, parts }
    })
}

/// A number that a scale may be.
fn scale() -> impl Strategy<Value = Option<f32>> {
    option::of((0.0..f32::MAX).prop_map(|scale| scale))
}

prop_compose! {
    /// Any settings that Berth writes: all of them have steps, a seed and a size.
    fn settings()(
        texts in (hostile(), option::of(hostile()), option::of(hostile())),
        numbers in (any::<u32>(), any::<u64>(), any::<[u32; 2]>(), option::of(any::<u32>())),
        scales in (scale(), scale(), option::of(0.0..=1.0f64)),
        files in (option::of(file()), option::of(file()), prop::collection::vec(lora(), 0..4)),
        model in (option::of(hostile()), paths(), option::of(hostile()), option::of(hostile())),
        more in (option::of(hostile()), any::<bool>(), names(), names(), option::of(hostile())),
        sampler in (option::of(hostile()), option::of(hostile()), scale()),
        sigmas in option::of(prop::collection::vec(0.0..f32::MAX, 1..5)),
    ) -> Settings {
        Settings {
            prompt: texts.0,
            prompt_2: texts.1,
            negative_prompt: texts.2,
            steps: Some(numbers.0),
            sampler: sampler.0,
            scheduler: sampler.1,
            eta: sampler.2,
            sigmas,
            cfg_scale: scales.0,
            cfg_normalization: more.1,
            guidance_scale: scales.1,
            seed: Some(numbers.1),
            rng: Some("CPU".to_owned()),
            size: Some(numbers.2),
            batch_size: numbers.3,
            batch_position: numbers.3,
            max_sequence_length: numbers.3,
            init_image: files.0,
            strength: scales.2,
            init_latents: files.1,
            loras: files.2,
            lora_at_run_time: more.2,
            model: model.0,
            paths: model.1,
            fingerprint: model.2,
            weights: model.3,
            vae_tile: more.0,
            exact_matmul: more.1,
            on_gpu: more.3,
            quality: numbers.3.map(|number| number as u8),
            version: more.4,
        }
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read(settings in settings()) {
        let text = write(&settings);
        let reading = read(&text).expect("it was written");
        prop_assert_eq!(&reading.settings, &settings, "{}", text);
        prop_assert_eq!(reading.unknown, vec![]);
        // What an encoder trims or another program adds at the ends changes nothing.
        prop_assert_eq!(read(&format!("{text}\n ")).expect("it was written").settings, settings);
    }

    #[test]
    fn any_text_is_read_or_refused(text in hostile()) {
        let _ = read(&text);
    }
}

#[test]
fn a_plain_prompt_reads_as_elsewhere() {
    let settings = Settings {
        prompt: "a red circle\non white".to_owned(),
        negative_prompt: Some("blue, round".to_owned()),
        steps: Some(4),
        sampler: Some("Euler".to_owned()),
        cfg_scale: Some(3.5),
        seed: Some(7),
        size: Some([64, 48]),
        model: Some("flux: dev".to_owned()),
        version: Some(Settings::this_version()),
        ..Settings::default()
    };
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        write(&settings),
        format!(
            "a red circle\non white\nNegative prompt: blue, round\nSteps: 4, Sampler: Euler, CFG scale: 3.5, Seed: 7, Size: 64x48, Model: \"flux: dev\", Version: berth {version}"
        )
    );
    assert!(settings.are_ours());
}

#[test]
fn settings_of_the_web_ui_are_read() {
    let text = "a cat, <lora:fur:0.8>\nsitting\nNegative prompt: a dog\n blurry\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7, Seed: 123456, Size: 512x768, Model hash: 6ce0161689, Model: v1-5-pruned, Lora hashes: \"fur: 12ab\", Version: v1.9.0";
    let Reading { settings, unknown } = read(text).expect("settings");
    assert_eq!(settings.prompt, "a cat, <lora:fur:0.8>\nsitting");
    assert_eq!(settings.negative_prompt.as_deref(), Some("a dog\nblurry"));
    assert_eq!((settings.steps, settings.seed), (Some(20), Some(123_456)));
    assert_eq!((settings.cfg_scale, settings.size), (Some(7.0), Some([512, 768])));
    assert_eq!(settings.sampler.as_deref(), Some("DPM++ 2M"));
    assert_eq!(settings.scheduler.as_deref(), Some("Karras"));
    assert!(!settings.are_ours());
    let unknown: Vec<&str> = unknown.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(unknown, ["Model hash", "Lora hashes"]);
}

#[test]
fn what_is_no_settings_is_refused_and_what_is_no_value_is_told() {
    for text in ["", "a photo", "a: b", "Steps: 1, Seed: 2", "Steps: 1, Seed: 2, Size: 1x1\nmore"] {
        assert_eq!(read(text), Err(InfotextError::NoLine), "{text}");
    }
    let long = "a".repeat((4 << 20) + 1);
    assert_eq!(read(&long), Err(InfotextError::TooLong(long.len())));
    let line = "Steps: -1, Seed: 99999999999999999999, Size: 64, CFG scale: NaN, Denoising strength: 2, LoRA 2: a:1, LoRA 1: a:inf, LoRA 1 SHA-256: ab";
    let Reading { settings, unknown } = read(line).expect("pairs");
    assert_eq!(settings, Settings::default());
    assert_eq!(unknown.len(), 8, "{unknown:?}");
}
