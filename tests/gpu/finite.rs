//! Weights that are no numbers, on devices: values that are none stay none through all formats of
//! the kernels, and no picture is made of them. The host's are `cli`'s `told::finite`.

use crate::support::damaged::{copy, poison};
use crate::support::simulator::Machine;
use crate::support::{Home, fixture};

const JOB: &str = "generate model --prompt a --width 64 --height 64 --steps 2 --seed 1";

/// A component, the file of its weights, and one of them.
const CASES: [[&str; 3]; 8] = [
    ["clip", "text_encoder/model", "text_model.final_layer_norm.weight"],
    ["t5", "text_encoder_2/model", "encoder.block.0.layer.0.SelfAttention.v.weight"],
    // Queries and values of attention, which takes them in f16.
    ["dit", "transformer/diffusion_pytorch_model", "transformer_blocks.0.attn.to_q.bias"],
    ["dit", "transformer/diffusion_pytorch_model", "transformer_blocks.0.attn.to_v.bias"],
    ["dit", "transformer/diffusion_pytorch_model", "single_transformer_blocks.0.attn.to_v.bias"],
    // Inputs of convolutions, which take them in f16; the last is read without a norm.
    ["vae", "vae/diffusion_pytorch_model", "decoder.conv_in.bias"],
    ["vae", "vae/diffusion_pytorch_model", "decoder.mid_block.resnets.0.conv1.bias"],
    ["vae", "vae/diffusion_pytorch_model", "decoder.up_blocks.0.upsamplers.0.conv.bias"],
];

/// The job with one weight of a component that is no number.
#[track_caller]
fn refuses(machine: &Machine, [component, file, tensor]: [&str; 3], place: &[&str]) {
    let home = Home::new();
    copy(&fixture("flux_schnell"), &home.path("model"));
    poison(&home.path(&format!("model/{file}.safetensors")), tensor, f32::NAN);
    let home = home.with(machine.environment());
    let ended = home.run(&[&JOB.split(' ').collect::<Vec<_>>()[..], place].concat());
    let what = format!("{tensor} {place:?} {}", machine.value());
    assert_eq!(ended.code, Some(2), "{what}: {}", ended.stderr);
    let says = format!("the result of {component} is not finite");
    assert!(ended.stderr.contains(&says), "{what}: {}", ended.stderr);
    assert_eq!(ended.stderr.contains("in step 1 of 2"), component == "dit", "{}", ended.stderr);
    assert!(!home.path("berth.png").exists(), "{what}");
}

#[test]
fn weights_that_are_no_numbers_are_told_on_gpus() {
    for capability in ["8.6", "7.5"] {
        let machine = Machine::new(1).with("capability", capability);
        for case in CASES {
            refuses(&machine, case, &["--backend", "all=cuda0"]);
        }
    }
    let exactly = ["--backend", "all=cuda0", "--exact-matmul"];
    for case in [CASES[3], CASES[6]] {
        refuses(&Machine::new(1), case, &exactly);
    }
}

#[test]
fn weights_that_are_no_numbers_are_told_on_virtual_devices() {
    let place = ["--host", "virtual-2x2g", "--backend", "all=virtual0"];
    for case in [CASES[1], CASES[3], CASES[6]] {
        refuses(&Machine::new(1), case, &place);
    }
}
