//! Everything that can be wrong with a LoRA file, one kind after the other.

use protocol::StorageType;

use super::*;
use crate::weights::support::gguf;

/// A module of the right shapes, with something added.
fn with(mut more: Vec<Written>) -> Vec<Written> {
    more.extend(factors("out", Theirs::F32, 2, [20, 7]));
    more
}

#[test]
fn files_that_are_none() {
    let component = Component::new();
    let open = |path: PathBuf| component.open(&[LoraSource { path, weight: 1.0 }]).unwrap_err();
    let found = open(component.path("absent"));
    assert!(matches!(found, LoraError::Weights(WeightsError::Open { .. })), "{found}");
    let found = open(component.dir.path().to_owned());
    assert!(matches!(found, LoraError::Weights(WeightsError::NotRegularFile { .. })), "{found}");

    let path = component.path("damaged");
    for content in [&b"pickled"[..], &[0xff; 100]] {
        fs::write(&path, content).unwrap();
        let found = open(path.clone());
        assert!(matches!(found, LoraError::Weights(WeightsError::Header { .. })), "{found}");
    }
    let whole = component.lora("damaged", &with(vec![]), None);
    let content = fs::read(&whole.path).unwrap();
    fs::write(&path, &content[..content.len() - 1]).unwrap();
    assert!(matches!(open(path), LoraError::Weights(WeightsError::Header { .. })));
}

#[test]
fn files_of_which_nothing_fits() {
    let component = Component::new();
    let found = component.refused(&[], None);
    assert!(matches!(found, LoraError::NothingMatches { tensors: 0, example: None, .. }));

    let found = component.refused(&factors("unet.conv_in", Theirs::F32, 2, [20, 7]), None);
    assert!(found.to_string().contains("made for another model"), "{found}");
    assert!(found.to_string().contains("unet.conv_in.lora_A.weight"), "{found}");

    // A layer that is there, by a kind of adapter that cannot be applied.
    let other = [
        tensor("part.out.hada_w1_a", Theirs::F32, &[20, 2]),
        tensor("part.out.lokr_w1", Theirs::F32, &[4, 4]),
        scalar("part.out.alpha", 1.0),
    ];
    let found = component.refused(&other, None);
    assert!(found.to_string().contains("LoHa and LoKr"), "{found}");
}

#[test]
fn adapters_that_are_more_than_lora() {
    let component = Component::new();
    for (key, kind) in [
        ("out.dora_scale", Kind::Dora),
        ("part.out.lora_magnitude_vector.weight", Kind::Dora),
        ("out.lora_mid.weight", Kind::Convolution),
        ("out.lora_B.bias", Kind::Bias),
    ] {
        let module = key.split(".lora").next().unwrap().trim_end_matches(".dora_scale");
        let mut tensors: Vec<Written> = factors(module, Theirs::F32, 2, [20, 7]).into();
        tensors.push(tensor(key, Theirs::F32, &[20]));
        let found = component.refused(&tensors, None);
        assert!(found.to_string().contains(kind.name()), "{found}");
        assert!(
            matches!(&found, LoraError::Unsupported { tensor, kind: k, .. } if tensor == key && *k == kind),
            "{found}"
        );
    }
    let convolution = [
        tensor("out.lora_down.weight", Theirs::F32, &[2, 7, 1, 1]),
        tensor("out.lora_up.weight", Theirs::F32, &[20, 2, 1, 1]),
    ];
    let found = component.refused(&convolution, None);
    assert!(matches!(found, LoraError::Unsupported { kind: Kind::Convolution, .. }), "{found}");
}

#[test]
fn adapters_that_lack_something_or_have_it_twice() {
    let component = Component::new();
    let [a, b] = factors("out", Theirs::F32, 2, [20, 7]);
    let found = component.refused(&[a], None);
    assert!(matches!(found, LoraError::MissingHalf { missing: "B (or `up`)", .. }), "{found}");
    let found = component.refused(&[b], None);
    assert!(matches!(found, LoraError::MissingHalf { missing: "A (or `down`)", .. }), "{found}");
    let found = component.refused(&[scalar("out.alpha", 1.0)], None);
    assert!(matches!(found, LoraError::MissingHalf { missing: "both factors", .. }), "{found}");

    let again = tensor("out.lora_down.weight", Theirs::F32, &[2, 7]);
    let found = component.refused(&with(vec![again]), None);
    assert!(matches!(found, LoraError::Twice { .. }), "{found}");

    for other in ["part.out", "lora_part_out", "last"] {
        let found = component.refused(&with(factors(other, Theirs::F32, 2, [20, 7]).into()), None);
        assert!(
            matches!(&found, LoraError::TwoModules { weight, .. } if weight == "out.weight"),
            "{found}"
        );
    }
}

#[test]
fn factors_of_a_wrong_type_or_shape() {
    let component = Component::new();
    let pair = |a_type, a: &[usize], b_type, b: &[usize]| {
        let tensors =
            [tensor("out.lora_A.weight", a_type, a), tensor("out.lora_B.weight", b_type, b)];
        component.refused(&tensors, None)
    };
    let f32 = Theirs::F32;
    for dtype in [Theirs::I64, Theirs::F8_E4M3FNUZ, Theirs::F64, Theirs::U8] {
        let found = pair(dtype, &[2, 7], f32, &[20, 2]);
        assert!(matches!(found, LoraError::WrongType { .. }), "{found}");
        let found = pair(f32, &[2, 7], dtype, &[20, 2]);
        assert!(matches!(found, LoraError::WrongType { .. }), "{found}");
    }
    for shape in [&[][..], &[14], &[1, 2, 7]] {
        let found = pair(f32, shape, f32, &[20, 2]);
        assert!(matches!(found, LoraError::NoMatrix { .. }), "{found}");
    }
    let found = pair(f32, &[2, 7], f32, &[20, 3]);
    assert!(matches!(found, LoraError::RankMismatch { a_rank: 2, b_rank: 3, .. }), "{found}");
    for rank in [0, RANK_MAX + 1] {
        let found = pair(f32, &[rank, 7], f32, &[20, rank]);
        assert!(matches!(found, LoraError::Rank { got, .. } if got == rank), "{found}");
    }
    for (a, b) in [([2, 8], [20, 2]), ([2, 7], [19, 2]), ([2, 7], [40, 2]), ([2, 20], [7, 2])] {
        let found = pair(f32, &a, f32, &b);
        assert!(matches!(found, LoraError::WrongShape { .. }), "{found}");
    }
    // All rows of a fused projection together.
    let found = component.refused(&factors("block.qkv", f32, 2, [33 * 3, 300]), None);
    assert!(
        matches!(&found, LoraError::WrongShape { expected, .. } if *expected == [116, 2]),
        "{found}"
    );
}

#[test]
fn scales_that_are_no_numbers() {
    let component = Component::new();
    let alpha = |alpha: Written| component.refused(&with(vec![alpha]), None);
    for value in [f32::NAN, f32::INFINITY] {
        let found = alpha(scalar("out.alpha", value));
        assert!(matches!(found, LoraError::Scale { .. }), "{found}");
    }
    let found = alpha(tensor("out.alpha", Theirs::F32, &[2]));
    assert!(matches!(found, LoraError::Scale { .. }), "{found}");
    let found = alpha(tensor("out.alpha", Theirs::F32, &[0]));
    assert!(matches!(found, LoraError::Scale { .. }), "{found}");
    let found = alpha(tensor("out.alpha", Theirs::I64, &[]));
    assert!(matches!(found, LoraError::WrongType { .. }), "{found}");

    for note in ["{", "[]", r#"{"lora_alpha":"8"}"#, r#"{"use_dora":true}"#] {
        let found = component.refused(&with(vec![]), Some(note));
        assert!(matches!(found, LoraError::Metadata { .. }), "{found}");
    }
    let note = r#"{"lora_alpha":1e200,"alpha_pattern":{".*":1}}"#;
    let found = component.refused(&with(vec![]), Some(note));
    assert!(matches!(found, LoraError::Scale { .. }), "{found}");
    let found = component.refused(&with(vec![]), Some(r#"{"lora_alpha":1e200}"#));
    assert!(matches!(found, LoraError::Scale { .. }), "{found}");

    let mut source = component.lora("good", &with(vec![]), None);
    for weight in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        source.weight = weight;
        let found = component.open(std::slice::from_ref(&source)).unwrap_err();
        assert!(matches!(found, LoraError::Weight { .. }), "{found}");
    }
}

#[test]
fn more_than_the_limits() {
    let component = Component::new();
    let many = |count: usize| -> Vec<Written> {
        with((2..count).map(|index| tensor(&format!("x{index}"), Theirs::U8, &[0])).collect())
    };
    let found = component.refused(&many(TENSORS_MAX + 1), None);
    assert!(matches!(found, LoraError::TooManyTensors { got, .. } if got == TENSORS_MAX + 1));
    let source = component.lora("large", &many(TENSORS_MAX), None);
    assert!(component.open(std::slice::from_ref(&source)).is_ok());

    let source = component.lora("small", &with(vec![]), None);
    assert!(component.open(&vec![source.clone(); LORAS_MAX]).is_ok());
    let found = component.open(&vec![source; LORAS_MAX + 1]).unwrap_err();
    assert!(matches!(found, LoraError::TooManyFiles { got } if got == LORAS_MAX + 1), "{found}");
}

#[test]
fn factors_whose_name_the_component_has_already() {
    let component = Component::new();
    let path = component.path("odd");
    let out = tensor("out.weight", Theirs::BF16, &[20, 7]);
    write(&path, &[out, tensor("lora.0.out.lora_A", Theirs::F32, &[2, 7])], None);
    let odd = Arc::new(WeightFiles::open_file(&path).unwrap());
    let loras = component.open(&[component.lora("lora", &with(vec![]), None)]).unwrap();
    let found = loras.apply("part", &odd, LoraMode::Runtime, &|| false).unwrap_err();
    assert!(matches!(found, LoraError::Weights(WeightsError::TensorInTwoShards { .. })), "{found}");
}

#[test]
fn weights_whose_type_takes_no_changes() {
    let component = Component::new();
    let stored = gguf::File::new().with("out.weight", &[32, 20], 8, &[0; 680]);
    let path = component.path("blocks.gguf");
    fs::write(&path, stored.bytes()).unwrap();
    let weights = Arc::new(WeightFiles::open_file(&path).unwrap());
    let layer = weights.require("out.weight", &[20, 32]).unwrap();
    let mut names = LoraNames::default();
    names.add(ComponentNames::new("part", &[""], [("out.weight", layer)]));
    let source = component.lora("lora", &factors("out", Theirs::F32, 2, [20, 32]), None);
    let loras = Loras::open(&[source], &names).unwrap();
    let apply = |mode| loras.apply("part", &weights, mode, &|| false);
    let found = apply(LoraMode::Immediately).unwrap_err();
    let stored = StorageType::Q8_0;
    assert!(
        matches!(&found, LoraError::Unchangeable { weight, storage }
            if weight == "out.weight" && *storage == stored),
        "{found}"
    );
    assert_eq!(apply(LoraMode::Runtime).unwrap().adapters("out.weight").len(), 1);
}

#[test]
fn results_that_are_not_finite() {
    let component = Component::new();
    let merge = |source: LoraSource| {
        let loras = component.open(&[source]).unwrap();
        component.apply(&loras, LoraMode::Immediately).map(|_| ())
    };
    let [a, mut b] = factors("out", Theirs::F32, 2, [20, 7]);
    let last = b.3.len() - 4;
    b.3[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let found = merge(component.lora("damaged", &[a, b], None)).unwrap_err();
    assert!(matches!(&found, LoraError::NotFinite { weight } if weight == "out.weight"), "{found}");

    // More than f16 holds, as the key weights are stored, and not too much for the others.
    let fused = factors("block.qkv", Theirs::F32, 2, [116, 300]);
    let mut source = component.lora("large", &fused, None);
    source.weight = 1e6;
    let found = merge(source).unwrap_err();
    assert!(matches!(&found, LoraError::NotFinite { weight } if weight == "block.k.weight"));
}

#[test]
fn files_that_shrink_and_users_who_change_their_minds() {
    let component = Component::new();
    let source = component.lora("lora", &with(vec![]), None);
    let loras = component.open(std::slice::from_ref(&source)).unwrap();
    let mode = LoraMode::Immediately;
    let found = loras.apply("part", &component.weights, mode, &|| true).unwrap_err();
    assert!(matches!(found, LoraError::Stopped), "{found}");

    let shrink = |path: &Path| {
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    };
    let extended = component.apply(&loras, LoraMode::Runtime).unwrap();
    let merged = component.apply(&loras, mode).unwrap();
    shrink(&source.path);
    let found = component.apply(&loras, mode).unwrap_err();
    assert!(matches!(found, LoraError::Weights(WeightsError::FileShrank { .. })), "{found}");
    // The factors are needed beside the layers, not once they are merged.
    assert!(extended.check_unchanged().is_err());
    assert!(merged.check_unchanged().is_ok());
    shrink(&component.path("model.safetensors"));
    assert!(merged.check_unchanged().is_err());
}
