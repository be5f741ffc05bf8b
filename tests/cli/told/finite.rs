//! Weights and LoRA files of which no picture can come: the job fails with the component and the
//! step.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};

use crate::support::damaged::{copy, poison};
use crate::support::{Home, fixture, golden};

/// The smallest job with more than one step.
const GENERATE: &str = "generate model --prompt a --width 64 --height 64 --steps 2";

/// Where the test model's parts are.
const CLIP: &str = "model/text_encoder/model.safetensors";
const T5: &str = "model/text_encoder_2/model.safetensors";
const DIT: &str = "model/transformer/diffusion_pytorch_model.safetensors";
const VAE: &str = "model/vae/diffusion_pytorch_model.safetensors";

fn home() -> Home {
    let home = Home::new();
    copy(&fixture("flux_schnell"), &home.path("model"));
    home
}

/// A LoRA for one layer of the test model's DiT, whose change is finite and larger than any sum can
/// hold.
fn write_lora(path: &Path) {
    let values: Vec<u8> = [5.7e17f32; 64].iter().flat_map(|value| value.to_le_bytes()).collect();
    let name = "transformer.proj_out";
    let factor = |shape: [usize; 2]| TensorView::new(Dtype::F32, shape.to_vec(), &values).unwrap();
    let tensors = HashMap::from([
        (format!("{name}.lora_A.weight"), factor([1, 64])),
        (format!("{name}.lora_B.weight"), factor([64, 1])),
    ]);
    safetensors::serialize_to_file(tensors, None, path).unwrap();
}

fn arguments(more: &[&'static str]) -> Vec<&'static str> {
    GENERATE.split(' ').chain(more.iter().copied()).collect()
}

#[test]
fn a_lora_that_is_too_strong_is_an_error_with_the_component_and_the_step() {
    let home = home();
    write_lora(&home.path("x.safetensors"));
    golden::run("lora_too_strong", &home, &arguments(&["--lora", "x.safetensors:900"]));
    assert!(!home.path("berth.png").exists());
    let document = home.run(&arguments(&["--lora", "x.safetensors:900", "--json"]));
    assert_eq!((document.code, document.stdout.as_str()), (Some(2), ""), "{}", document.stderr);
}

#[test]
fn a_lora_weight_that_cannot_be_meant_is_refused_before_anything_starts() {
    let home = home();
    write_lora(&home.path("x.safetensors"));
    golden::run("lora_weight", &home, &arguments(&["--lora", "x.safetensors:1e30"]));
    for weight in ["inf", "-inf", "nan", "-1001"] {
        let lora = format!("x.safetensors:{weight}");
        let arguments = arguments(&[]);
        let ended = home.run(&[arguments.as_slice(), &["--lora", &lora]].concat());
        assert_eq!(ended.code, Some(2), "{lora}: {}", ended.stderr);
        let says = format!("the weight of the LoRA x.safetensors is {weight}, and must be");
        assert!(ended.stderr.contains(&says), "{}", ended.stderr);
    }
}

#[test]
fn weights_that_are_no_numbers_are_told_by_their_component() {
    let cases = [
        ("clip", CLIP, "text_model.final_layer_norm.weight", f32::NAN),
        ("t5", T5, "encoder.final_layer_norm.weight", f32::INFINITY),
        ("dit", DIT, "proj_out.bias", f32::NEG_INFINITY),
        ("vae", VAE, "decoder.conv_out.bias", f32::NAN),
    ];
    for (component, file, tensor, value) in cases {
        let home = home();
        poison(&home.path(file), tensor, value);
        golden::run(&format!("weights_not_finite_{component}"), &home, &arguments(&[]));
        assert!(!home.path("berth.png").exists(), "{component}");
    }
    let home = home();
    poison(&home.path(VAE), "encoder.conv_out.bias", f32::NAN);
    let picture = fixture("pictures").join("rgb.png");
    let picture = picture.to_str().expect("a path of text");
    let ended = home.run(&[arguments(&[]).as_slice(), &["--init-image", picture]].concat());
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("the result of vae_encoder is not finite, so"),
        "{}",
        ended.stderr
    );
}
