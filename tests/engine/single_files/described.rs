//! What `inspect` says of files and parts.

use serde_json::{Value, json};

use crate::support::bfl;
use crate::support::{Home, fixture, golden};

/// A file under `tests/fixtures`.
pub fn file(name: &str) -> String {
    fixture(name).display().to_string()
}

fn inspect(home: &Home, arguments: &[&str], code: i32) -> Value {
    let ended = home.run(&[&["inspect", "--json"], arguments].concat());
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    ended.json()
}

#[test]
fn each_file_is_said_to_give_what_is_taken_from_it() {
    let home = Home::new();
    let (dit, vae) =
        (file("single/flux_dev_bfl.safetensors"), file("single/flux_single_ae.safetensors"));
    let directory = file("flux_dev");
    let parts = [&*directory, "--diffusion-model", &dit, "--vae", &vae];
    let description = inspect(&home, &parts, 0);
    assert_eq!(description["family"], "flux");
    assert_eq!(description["problems"], json!([]));
    let expected = json!([
        { "path": dit, "gives": ["dit"], "holds": [], "types": [
            { "name": "BF16", "tensors": 84, "bytes": 979968 } ] },
        { "path": vae, "gives": ["vae"], "holds": [], "types": [
            { "name": "F16", "tensors": 236, "bytes": 1053638 } ] },
    ]);
    assert_eq!(description["files"], expected);
    assert_eq!(description["model"], format!("{directory} --diffusion-model {dit} --vae {vae}"));
    let components = description["components"].as_array().expect("components");
    let of = |name: &str| components.iter().find(|c| c["name"] == name).expect("a component");
    // Of fused tensors each part counts for itself.
    assert_eq!((&of("dit")["tensors"], &of("dit")["tensor_bytes"]), (&json!(112), &json!(979968)));
    assert_eq!(
        (&of("dit")["unused_bytes"], &of("dit")["class"]),
        (&json!(0), &json!("FluxTransformer2DModel"))
    );
    assert_eq!(of("clip")["files"], json!([format!("{directory}/text_encoder/model.safetensors")]));
    assert_eq!(of("vae")["files"], json!([vae]));
    let plain = inspect(&home, &[&directory], 0);
    assert_eq!(plain["files"], json!([]));
    assert_eq!(plain["defaults"], description["defaults"]);
}

#[test]
fn what_lacks_is_named_with_the_flag_that_gives_it() {
    let home = Home::new();
    let clip = file("single/flux_single_clip_l.safetensors");
    // Its vocabulary is not CLIP-L's, which is a problem of its own.
    let description = inspect(&home, &["--clip-l", &clip], 2);
    assert_eq!(description["files"][0]["gives"], json!(["clip"]));
    assert_eq!(description["problems"].as_array().expect("a list").len(), 1);
    let lacks = description["lacks"].as_array().expect("a list");
    for flag in ["--diffusion-model FILE", "--vae FILE", "--t5xxl FILE", "--tokenizer-dir"] {
        let named = |lacks: &&Value| lacks.as_str().expect("a text").contains(flag);
        assert!(lacks.iter().any(|lacks| named(&lacks)), "{flag} is not in {lacks:#?}");
    }
    let text = home.run(&["inspect", "--clip-l", &clip]);
    assert!(text.stdout.contains("gives clip\n  F16: 36 tensors, 391 KiB\n"), "{}", text.stdout);
}

#[test]
fn a_sound_part_alone_is_no_error() {
    let home = Home::new();
    let vae = file("single/flux_single_ae.safetensors");
    std::fs::copy(vae, home.path("ae.safetensors")).expect("the home can be written");
    golden::run("inspect-vae", &home, &["inspect", "ae.safetensors"]);
    golden::run("generate-vae", &home, &["generate", "ae.safetensors", "--prompt", "a"]);
    assert_eq!(inspect(&home, &["ae.safetensors"], 0)["problems"], json!([]));
}

#[test]
fn each_problem_is_told_once() {
    let home = Home::new();
    std::fs::write(home.path("other.safetensors"), other()).expect("the home can be written");
    golden::run("inspect-unknown", &home, &["inspect", "other.safetensors"]);
    let clip = file("single/flux_single_clip_l.safetensors");
    std::fs::copy(clip, home.path("clip.safetensors")).expect("the home can be written");
    golden::run("inspect-clip", &home, &["inspect", "--clip-l", "clip.safetensors"]);
}

/// A file of no family.
fn other() -> Vec<u8> {
    let header = r#"{"ids":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 8]);
    bytes
}

#[test]
fn a_file_of_no_known_family_has_its_types_listed() {
    let home = Home::new();
    let tensor = |bytes: usize| (safetensors::Dtype::F32, vec![bytes / 4], vec![0; bytes]);
    let ids = (safetensors::Dtype::I64, vec![3], vec![0; 24]);
    let tensors = [("joint.a", tensor(64)), ("joint.b", tensor(32)), ("ids", ids)];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    let path = home.path("other.safetensors");
    bfl::write(&path, &tensors);
    let description = inspect(&home, &["other.safetensors"], 2);
    assert_eq!(description["family"], "unknown");
    // Another family's DiT beside a text encoder that several families have.
    let mut mixed = bfl::behind(
        "text_encoders.clip_l.transformer.",
        bfl::read(file("single/flux_single_clip_l.safetensors").as_ref()),
    );
    mixed.extend(bfl::behind("model.diffusion_model.", bfl::read(&path)));
    bfl::write(&home.path("mixed.safetensors"), &mixed);
    assert_eq!(inspect(&home, &["mixed.safetensors"], 2)["family"], "unknown");
    assert_eq!(description["components"], json!([]));
    let expected = json!([
        { "name": "F32", "tensors": 2, "bytes": 96 },
        { "name": "I64", "tensors": 1, "bytes": 24 },
    ]);
    assert_eq!(description["files"][0]["types"], expected);
    let problem = description["problems"][0].as_str().expect("a problem");
    for says in ["no known family", "double_blocks.0.img_mod.lin", "enc.blk.0.attn_q", "hint: "] {
        assert!(problem.contains(says), "{problem}");
    }
}
