//! What `--settings` cannot take: told with a hint, before anything runs.

use std::fs;
use std::os::unix::fs::symlink;

use crate::settings::{done, settings, write_png};
use crate::support::lora::write_lora;
use crate::support::wide::Wide;
use crate::support::{Home, fixture, golden};

/// What the web UI writes for a model that Berth does not have.
const OF_THE_WEB_UI: &str = "a red circle\nNegative prompt: blurry\nSteps: 3, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 1.5, Seed: 123456, Size: 48x32, Model hash: 6ce0161689, Model: v1-5-pruned, Denoising strength: 0.7, Lora hashes: \"fur: 12ab\", Version: v1.9.0";

#[test]
fn what_has_no_settings_is_refused() {
    let home = Home::new();
    fs::write(home.path("text.png"), "no picture").unwrap();
    fs::write(home.path("empty.png"), "").unwrap();
    fs::create_dir(home.path("folder.png")).unwrap();
    symlink("loop.png", home.path("loop.png")).unwrap();
    fs::copy(fixture("pictures/rgb.png"), home.path("rgb.png")).unwrap();
    fs::copy(fixture("pictures/baseline.jpg"), home.path("baseline.jpg")).unwrap();
    write_png(&home.path("comment.png"), Some("a photo: of a cat"));
    let large = fs::File::create(home.path("large.png")).unwrap();
    large.set_len((256 << 20) + 1).unwrap();
    let before = home.files();
    for name in ["missing", "text", "folder", "rgb", "comment", "large"] {
        let picture = format!("{name}.png");
        let ended =
            golden::run(&format!("settings_{name}"), &home, &["generate", "--settings", &picture]);
        assert_eq!(ended.code, Some(2), "{picture}");
    }
    for name in ["empty.png", "baseline.jpg", "loop.png"] {
        let ended = home.run(&["generate", "--settings", name]);
        assert_eq!(ended.code, Some(2), "{name}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("berth: "), "{name}: {}", ended.stderr);
    }
    write_png(&home.path("good.png"), Some("a\nSteps: 1, Seed: 1, Size: 64x64"));
    let bytes = fs::read(home.path("good.png")).unwrap();
    let itself = ["generate", "--settings", "good.png", "-o", "good.png"];
    golden::run("settings_overwritten", &home, &itself);
    assert!(fs::read(home.path("good.png")).unwrap() == bytes);
    fs::remove_file(home.path("good.png")).unwrap();
    let plan = home.run(&["generate", "--settings", "rgb.png", "--plan", "plan.toml"]);
    assert_eq!(plan.code, Some(2));
    assert!(plan.stderr.contains("cannot be used with"), "{}", plan.stderr);
    let mut after = home.files();
    after.retain(|name| name != "tmp" && name != "cache");
    assert_eq!(after, before);
}

#[test]
fn files_that_are_gone_or_changed_are_told() {
    let home = Home::new();
    Wide::bf16().write(&home.path("model")).expect("a file system with room");
    write_lora(&home.path("style.safetensors"), 1);
    fs::copy(fixture("pictures/rgb.png"), home.path("start.png")).unwrap();
    let run = ["generate", "model", "-p", "a red circle", "-W", "64", "-H", "48", "-o", "a.png"];
    let start = ["--steps", "1", "--init-image", "start.png", "--strength", "1", "-s", "1"];
    let lora = ["--lora", "style.safetensors:0.5", "--max-sequence-length", "32"];
    done(&home, &[&run[..], &start, &lora].concat());
    let refused = |name: &str| {
        let ended = golden::run(name, &home, &["generate", "--settings", "a.png", "-o", "b.png"]);
        assert_eq!(ended.code, Some(2), "{name}");
        assert!(!home.path("b.png").exists(), "{name}");
    };
    let moved = |name: &str, check: &dyn Fn()| {
        fs::rename(home.path(name), home.path("elsewhere")).unwrap();
        check();
        fs::rename(home.path("elsewhere"), home.path(name)).unwrap();
    };
    moved("style.safetensors", &|| refused("settings_lora_gone"));
    moved("start.png", &|| refused("settings_start_gone"));
    moved("model", &|| refused("settings_model_gone"));
    moved("style.safetensors", &|| {
        write_lora(&home.path("style.safetensors"), 2);
        refused("settings_lora_changed");
        // Named, it is taken as it is.
        let named = ["--lora", "style.safetensors:0.5", "-o", "c.png"];
        done(&home, &[&["generate", "--settings", "a.png"], &named[..]].concat());
    });
    moved("start.png", &|| {
        fs::copy(fixture("pictures/gray.png"), home.path("start.png")).unwrap();
        refused("settings_start_changed");
    });
    let configuration = home.path("model/transformer/config.json");
    let text = fs::read_to_string(&configuration).unwrap();
    fs::write(&configuration, text + "\n").unwrap();
    refused("settings_model_changed");
    let named = ["generate", "model", "--settings", "a.png", "-o", "d.png"];
    let ended = done(&home, &named);
    assert!(ended.stderr.contains("a.png was made with another model"), "{}", ended.stderr);
}

#[test]
fn settings_of_another_program_are_taken_as_far_as_they_go() {
    let home = Home::new();
    write_png(&home.path("web.png"), Some(OF_THE_WEB_UI));
    let ended = home.run(&["generate", "--settings", "web.png", "-o", "a.png"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let said = "berth: of the settings of web.png, these are not used: ";
    let unused = "Model hash, Lora hashes, Denoising strength, Model\n";
    assert_eq!(ended.stderr, format!("{said}{unused}"));
    let made = settings(&home, "a.png");
    assert_eq!((&made["prompt"], &made["seed"]), (&"a red circle".into(), &123_456.into()));
    assert_eq!((&made["steps"], &made["cfg_scale"]), (&3.into(), &1.5.into()));
    assert_eq!(made["size"], serde_json::json!([48, 32]));
    assert_eq!((&made["sampler"], &made["scheduler"]), (&"DPM++ 2M".into(), &"Karras".into()));
    assert_eq!(made["negative_prompt"], "blurry");
    // Escape sequences of a file do not reach the terminal.
    let hostile = "\u{1b}[2J\nSteps: 1, Seed: 2, Size: 64x64, Model path: \"\\u001b[2Jx\", Version: berth \u{1b}[2J";
    write_png(&home.path("hostile.png"), Some(hostile));
    for arguments in [&["generate", "--settings", "hostile.png"][..], &["inspect", "hostile.png"]] {
        let ended = home.run(arguments);
        assert!(
            !ended.stderr.contains('\u{1b}') && !ended.stdout.contains('\u{1b}'),
            "{arguments:?}"
        );
    }
}

#[test]
fn numbers_of_settings_are_held_against_the_limits() {
    let home = Home::new();
    for (line, said) in [
        ("Steps: 0, Seed: 1, Size: 64x64", "steps 0 is not within"),
        ("Steps: 1, Seed: 1, Size: 0x64", "width 0 is not within"),
        ("Steps: 1, Seed: 1, Size: 99999x64", "width 99"),
        ("Steps: 1, Seed: 1, Size: 64x64, Max sequence length: 4294967295", "max_sequence_length"),
        ("Steps: 1, Seed: 1, Batch size: 4294967295, Batch pos: 1", "4294967295"),
        ("Steps: 1, Seed: 1, VAE tile: \"a: b\"", "`a: b` is not a tile size; hint: "),
    ] {
        write_png(&home.path("a.png"), Some(&format!("a\n{line}, Version: berth 0.1.0")));
        let ended = home.run(&["generate", "--settings", "a.png", "-o", "b.png"]);
        assert_eq!(ended.code, Some(2), "{line}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{line}: {}", ended.stderr);
        assert!(!ended.stderr.contains("panicked"), "{line}: {}", ended.stderr);
    }
}
