//! Sets of files that make no model: each ends in exit code 2, with what is wrong and what would be
//! right.

use safetensors::Dtype;

use crate::single_files::described::file;
use crate::support::Home;
use crate::support::bfl::{self, Tensors};

/// The arguments of a case, what is changed in the DiT's file first, and what must be said.
struct Case {
    name: &'static str,
    arguments: &'static str,
    change: fn(&mut Tensors),
    says: &'static [&'static str],
}

const fn case(name: &'static str, arguments: &'static str, says: &'static [&'static str]) -> Case {
    Case { name, arguments, change: |_| {}, says }
}

const fn changed(
    name: &'static str,
    change: fn(&mut Tensors),
    says: &'static [&'static str],
) -> Case {
    Case { name, arguments: "DEV --diffusion-model DIT", change, says }
}

/// Gives a tensor another shape, and zeros.
fn reshape(tensors: &mut Tensors, name: &str, shape: &[usize]) {
    let bytes = vec![0; 2 * shape.iter().product::<usize>()];
    tensors.insert(name.to_owned(), (Dtype::BF16, shape.to_vec(), bytes)).expect("it is there");
}

fn remove(tensors: &mut Tensors, name: &str) {
    tensors.remove(name).expect("it is there");
}

/// `DIT` is a file of the DiT by Black Forest Labs' names, of the widths of the directory `DEV`;
/// `AE`, `CLIP`, `T5` are those of another model, whose tokenizers are in `TOKENIZERS`.
const CASES: [Case; 26] = [
    case(
        "a VAE for the DiT",
        "DEV --diffusion-model AE",
        &[
            "flux_single_ae.safetensors does not hold the DiT",
            "found the VAE",
            "hint: name the right file with --diffusion-model",
        ],
    ),
    case(
        "the DiT for the VAE",
        "DEV --vae DIT",
        &["does not hold the VAE", "found the DiT", "--vae"],
    ),
    case("T5 for CLIP", "DEV --clip-l T5", &["does not hold CLIP-L", "found T5", "--clip-l"]),
    case("CLIP for T5", "DEV --t5xxl CLIP", &["does not hold T5", "found CLIP-L", "--t5xxl"]),
    case(
        "no DiT",
        "--vae AE --clip-l CLIP --t5xxl T5 --tokenizer-dir TOKENIZERS",
        &["no file gives the DiT", "hint: name one with --diffusion-model FILE"],
    ),
    case("a VAE alone as the model", "AE --clip-l CLIP", &["no file gives the DiT", "hint: "]),
    case(
        "no VAE",
        "DIT --clip-l CLIP --t5xxl T5 --tokenizer-dir TOKENIZERS",
        &["no file gives the VAE", "--vae FILE"],
    ),
    case(
        "no tokenizer of T5",
        "AE --clip-l CLIP --t5xxl T5 --diffusion-model DIT",
        &["no file gives T5's tokenizer", "--tokenizer-dir"],
    ),
    case(
        "the built-in vocabulary for a small CLIP",
        "AE --clip-l CLIP",
        &["knows 2002 tokens, CLIP-L's tokenizer has 49408", "--tokenizer-dir"],
    ),
    case(
        "a directory without tokenizers",
        "DEV --tokenizer-dir DEV/vae",
        &["neither tokenizer nor tokenizer_2", "hint: "],
    ),
    case(
        "a file that everything is taken away from",
        "AE --vae AE",
        &["gives nothing", "the VAE", "hint: leave one of them out"],
    ),
    case(
        "two files for one part",
        "DEV --vae AE --vae AE",
        &["cannot be used multiple times", "--vae"],
    ),
    case("a directory as a part", "DEV --vae DEV", &["is a directory", "hint: name a file"]),
    case(
        "a part that is not there",
        "DEV --t5xxl gone.gguf",
        &["there is no file at --t5xxl gone.gguf", "hint: "],
    ),
    case(
        "a model that is not there",
        "gone.safetensors",
        &["there is no model at gone.safetensors", "hint: "],
    ),
    case("a text as a part", "DEV --vae text", &["text", "hint: "]),
    case("a text as the model", "text", &["text", "hint: "]),
    case("an empty file as a part", "DEV --vae empty", &["empty is empty", "hint: "]),
    case(
        "parts of two models",
        "DEV --clip-l CLIP --tokenizer-dir TOKENIZERS",
        &["pooled_projection_dim is 32, the other parts give 64"],
    ),
    case(
        "a path that reads like an option",
        "DEV --vae odd",
        &["reads like an option", "hint: rename the file"],
    ),
    case(
        "positions of heads that no file tells",
        "DIT --vae AE",
        &["heads are 16 wide", "hint: give the directory"],
    ),
    changed(
        "a fused tensor of too few rows",
        |t| reshape(t, "double_blocks.0.img_attn.qkv.weight", &[128, 64]),
        &[
            "\"double_blocks.0.img_attn.qkv.weight\"",
            "has shape [128, 64], the model needs [192, 64]",
            "hint: ",
        ],
    ),
    changed(
        "a fused tensor of other columns",
        |t| reshape(t, "single_blocks.1.linear1.weight", &[448, 60]),
        &[
            "\"single_blocks.1.linear1.weight\"",
            "has shape [448, 60], the model needs [448, 64]",
            "hint: ",
        ],
    ),
    changed(
        "a fused bias gone",
        |t| remove(t, "single_blocks.0.linear1.bias"),
        &["has no tensor \"single_blocks.0.linear1.bias\""],
    ),
    changed(
        "a layer gone",
        |t| remove(t, "double_blocks.1.txt_mlp.2.weight"),
        &["has no tensor \"double_blocks.1.txt_mlp.2.weight\"", "hint: "],
    ),
    changed(
        "the last modulation gone",
        |t| remove(t, "final_layer.adaLN_modulation.1.weight"),
        &["has no tensor \"final_layer.adaLN_modulation.1.weight\""],
    ),
];

#[test]
fn each_is_refused_with_what_is_wrong_and_what_would_be_right() {
    let mut faults = Vec::new();
    for Case { name, arguments, change, says } in CASES {
        let home = Home::new();
        let mut tensors = bfl::read(file("single/flux_dev_bfl.safetensors").as_ref());
        change(&mut tensors);
        bfl::write(&home.path("dit.safetensors"), &tensors);
        std::fs::write(home.path("text"), "no tensors in here").expect("the home can be written");
        std::fs::write(home.path("empty"), "").expect("the home can be written");
        std::fs::write(home.path("x --clip-l y"), "odd").expect("the home can be written");
        let replaced = |argument: &str| match argument {
            "DIT" => "dit.safetensors".to_owned(),
            "odd" => "x --clip-l y".to_owned(),
            _ => argument
                .replace("DEV", &file("flux_dev"))
                .replace("AE", &file("single/flux_single_ae.safetensors"))
                .replace("CLIP", &file("single/flux_single_clip_l.safetensors"))
                .replace("T5", &file("single/flux_single_t5xxl.safetensors"))
                .replace("TOKENIZERS", &file("flux_single")),
        };
        let arguments: Vec<String> = arguments.split(' ').map(replaced).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        for command in [&["inspect"][..], &["generate", "--prompt", "a", "--output", "a.png"]] {
            let ended = home.run(&[command, &arguments].concat());
            // Only the first of several problems is an error's text; `inspect` lists them all.
            let said = if command.len() == 1 { ended.stdout + &ended.stderr } else { ended.stderr };
            // That a part is in no file is nothing wrong with those that are there.
            let lacks_only =
                said.contains("\nlacks for a whole model:") && !said.contains("berth: ");
            let code = if lacks_only { 0 } else { 2 };
            if ended.code != Some(code) {
                faults.push(format!("{name}: {command:?} exits with {:?}: {said}", ended.code));
            }
            let expected = if command.len() == 1 { says } else { &[][..] };
            let missing = expected.iter().filter(|text| !said.contains(**text));
            faults.extend(missing.map(|text| format!("{name}: does not say {text:?}: {said}")));
            if said.contains("panicked") || home.path("a.png").exists() {
                faults.push(format!("{name}: {command:?}: {said}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
