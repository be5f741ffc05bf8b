//! Outputs that would destroy something, or cannot be: refused before anything runs, with nothing
//! changed.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::{GENERATE, generated, made};
use crate::support::damaged::copy;
use crate::support::{Home, fixture, golden};

/// Says what the golden file says of these outputs, and starts no executor.
fn refused(name: &str, home: &Home, outputs: &[&str]) {
    let arguments = [&GENERATE[..], outputs, &["--executor", "./never-started"]].concat();
    let ended = golden::run(&format!("outputs-{name}"), home, &arguments);
    assert_eq!(ended.code, Some(2), "{name}: {}", ended.stderr);
}

#[test]
fn what_is_no_file_is_refused() {
    let home = Home::new();
    let _listener = UnixListener::bind(home.path("socket.png")).unwrap();
    fs::create_dir(home.path("folder.png")).unwrap();
    symlink("round.png", home.path("about.png")).unwrap();
    symlink("about.png", home.path("round.png")).unwrap();
    refused("socket", &home, &["socket.png"]);
    refused("folder", &home, &["folder.png"]);
    refused("folder-slash", &home, &["new.png/"]);
    refused("missing-folder", &home, &["missing/x.png"]);
    refused("circle", &home, &["round.png"]);
    refused("descriptor", &home, &["/dev/fd/99"]);
    assert_eq!(made(&home), ["about.png", "folder.png", "round.png", "socket.png"]);
}

#[test]
fn what_the_job_reads_is_refused() {
    let home = Home::new();
    copy(&fixture("flux_schnell"), &home.path("model"));
    generated(&home, &["init.png", "--dump-tensors", "init.safetensors"]);
    let plan = home.run(&["plan", "--dry-run", "--output", "plan.toml"]);
    assert_eq!(plan.code, Some(0), "{}", plan.stderr);
    fs::copy(home.path("init.safetensors"), home.path("lora.safetensors")).unwrap();
    fs::write(home.path("berth.toml"), "").unwrap();
    fs::hard_link(home.path("model/vae/diffusion_pytorch_model.safetensors"), home.path("vae.png"))
        .unwrap();
    for name in ["lora.safetensors", "init.safetensors", "plan.toml", "berth.toml"] {
        symlink(name, home.path(&format!("{name}.png"))).unwrap();
    }
    let before = home.files();
    refused("reads-init-image", &home, &["init.png", "--init-image", "./init.png"]);
    refused("reads-lora", &home, &["lora.safetensors.png", "--lora", "lora.safetensors:0.5"]);
    let init_latents = ["init.safetensors.png", "--init-latents", "init.safetensors"];
    refused("reads-init-latents", &home, &init_latents);
    refused("reads-plan", &home, &["plan.toml.png", "--plan", "plan.toml"]);
    refused("reads-profile", &home, &["berth.toml.png"]);
    refused("reads-model", &home, &["vae.png", "model"]);
    let dumped = ["x.png", "model", "--dump-tensors", "model/text_encoder/model.safetensors"];
    refused("reads-model-dump", &home, &dumped);
    let part = ["vae.png", "--vae", "model/vae/diffusion_pytorch_model.safetensors"];
    refused("reads-part", &home, &part);
    let plan = ["plan", "--dry-run", "model", "--output", "model/model_index.json"];
    golden::run("outputs-reads-plan-model", &home, &plan);
    let profile = ["devices", "--profile", "--output", "berth.toml"];
    golden::run("outputs-reads-profile-devices", &home, &profile);
    assert_eq!(home.files(), before);
    assert_eq!(fs::read(home.path("berth.toml")).unwrap(), b"");
}

#[test]
fn one_file_for_two_outputs_is_refused() {
    let home = Home::new();
    symlink("a.png", home.path("link")).unwrap();
    refused("twice", &home, &["a.png", "--dump-tensors", "./a.png"]);
    refused("twice-link", &home, &["a.png", "--dump-tensors", "link"]);
    refused("twice-numbered", &home, &["a.png", "--batch", "2", "--dump-tensors", "a-2.png"]);
    refused("twice-stdout", &home, &["-", "--dump-tensors", "/dev/stdout"]);
    refused("stdout-json", &home, &["-", "--json"]);
    refused("stdout-batch", &home, &["-", "--batch", "2"]);
    assert_eq!(made(&home), ["link"]);
}

#[test]
fn a_file_that_is_there_stays_with_no_overwrite() {
    let home = Home::new();
    fs::write(home.path("a.png"), "old").unwrap();
    symlink("a.png", home.path("link.png")).unwrap();
    refused("no-overwrite", &home, &["a.png", "--no-overwrite"]);
    refused("no-overwrite-link", &home, &["link.png", "--no-overwrite"]);
    refused("no-overwrite-dump", &home, &["x.png", "--no-overwrite", "--dump-tensors", "a.png"]);
    assert_eq!(fs::read(home.path("a.png")).unwrap(), b"old");
    generated(&home, &["b.png", "--no-overwrite"]);
    assert_eq!(made(&home), ["a.png", "b.png", "link.png"]);
}
