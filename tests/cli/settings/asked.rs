//! How a run is asked for: seeds, short flags, numbers that are none.

use crate::settings::{done, settings};
use crate::support::{Home, fixture, golden, pixels};

const CIRCLE: [&str; 3] = ["generate", "-p", "a large red circle on a white background"];

fn seeds(home: &Home, more: &[&str]) -> Vec<u64> {
    let document = home.json(&[&CIRCLE[..], &["--steps", "1", "--json"], more].concat());
    let seeds = document["seeds"].as_array().expect("seeds").iter();
    seeds.map(|seed| seed.as_u64().expect("a number")).collect()
}

#[test]
fn two_runs_make_two_pictures_and_tell_their_seeds() {
    let home = Home::new();
    let said = ["a.png", "b.png"].map(|output| {
        let said = done(&home, &[&CIRCLE[..], &["-o", output]].concat()).stdout;
        let seed = settings(&home, output)["seed"].as_u64().expect("a seed");
        assert!(seed <= u64::from(u32::MAX), "{seed} is beyond 32 bits");
        assert!(said.contains(&format!(", seed {seed}; ")), "{said}");
        seed
    });
    // One in four billion runs of this test draws the same twice.
    assert_ne!(said[0], said[1]);
    assert!(pixels(&home.path("a.png")) != pixels(&home.path("b.png")), "the same picture twice");
    let batch = done(&home, &[&CIRCLE[..], &["-b", "3", "-s", "7", "--steps", "1"]].concat());
    assert!(batch.stdout.contains(", seeds 7 to 9; "), "{}", batch.stdout);
}

#[test]
fn a_seed_is_random_or_given() {
    let home = Home::new();
    for random in [&[][..], &["-s", "-1"], &["--seed", "random"], &["--seed=-1"]] {
        let (first, second) = (seeds(&home, random), seeds(&home, random));
        assert_ne!(first, second, "{random:?}");
    }
    let many = seeds(&home, &["--batch", "3", "--seed", "18446744073709551615"]);
    assert_eq!(many, [u64::MAX, 0, 1]);
}

#[test]
fn short_flags_are_the_long_ones() {
    let home = Home::new();
    let short = "generate -p circle -n blue -o short.png -s 3 -W 64 -H 48 -b 1 --steps 2";
    let long = "generate --prompt circle --negative-prompt blue --output long.png --seed 3 --width 64 --height 48 --batch 1 --steps 2";
    for arguments in [short, long] {
        let arguments: Vec<&str> = arguments.split(' ').chain(["--true-cfg-scale", "2"]).collect();
        done(&home, &arguments);
    }
    let read = |name| std::fs::read(home.path(name)).unwrap();
    assert!(read("short.png") == read("long.png"));
}

#[test]
fn cfg_scale_is_the_guidance_that_the_model_has() {
    let home = Home::new();
    let (dev, schnell) = (fixture("flux_dev"), fixture("flux_schnell"));
    for (model, flag, key) in
        [(dev, "--guidance-scale", "guidance_scale"), (schnell, "--true-cfg-scale", "cfg_scale")]
    {
        let shape = ["generate", model.to_str().unwrap(), "-p", "a", "-W", "64", "-H", "64"];
        let run = |flag: &str, output: &str| {
            let more = ["--steps", "1", "-s", "1", flag, "2.5", "-o", output];
            done(&home, &[&shape[..], &more].concat());
            std::fs::read(home.path(output)).unwrap()
        };
        assert!(run("--cfg-scale", "one.png") == run(flag, "two.png"), "{flag}");
        assert_eq!(settings(&home, "one.png")[key], 2.5, "{flag}");
    }
    let both = home.run(&[&CIRCLE[..], &["--cfg-scale", "2", "--true-cfg-scale", "2"]].concat());
    assert_eq!(both.code, Some(2), "{}", both.stderr);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
}

#[test]
fn a_number_that_is_none_is_told_by_its_flag() {
    let home = Home::new();
    for (name, flag, value) in [
        ("steps", "--steps", "-3"),
        ("width", "-W", "-1"),
        ("cfg_scale", "--cfg-scale", "-1"),
        ("strength", "--strength", "-1"),
        ("seed", "--seed", "-2"),
    ] {
        golden::run(&format!("number_{name}"), &home, &["generate", "-p", "a", flag, value]);
    }
    for (flag, value, expected) in [
        ("--height", "0", "a number ≥ 1"),
        ("--batch", "-1", "a number ≥ 1"),
        ("--max-sequence-length", "-1", "a number ≥ 1"),
        ("--steps", "1.5", "a number ≥ 1"),
        ("--width", "99999999999", "a number ≤ 4294967295"),
        ("--guidance-scale", "-0.5", "a number ≥ 0"),
        ("--true-cfg-scale", "inf", "a number ≥ 0"),
        ("--strength", "1.01", "a number from 0 to 1"),
    ] {
        for command in [&["generate", "-p", "a"][..], &["plan", "--dry-run"], &["tune"]] {
            let ended = home.run(&[command, &[flag, value]].concat());
            let message = format!("berth: {flag} must be {expected}, got {value}; hint: ");
            assert_eq!(ended.code, Some(2), "{flag} {value}: {}", ended.stderr);
            assert!(ended.stderr.starts_with(&message), "{flag} {value}: {}", ended.stderr);
        }
    }
    let points = home.run(&["tune", "--points", "-1"]);
    let expected = "berth: --points must be a number from 2 to 4096, got -1; hint: ";
    assert!(points.stderr.starts_with(expected), "{}", points.stderr);
    let quality = home.run(&["generate", "-p", "a", "-o", "a.jpg", "--quality", "-1"]);
    let expected = "berth: --quality must be a number from 1 to 100, got -1; hint: ";
    assert!(quality.stderr.starts_with(expected), "{}", quality.stderr);
    for (flag, value) in [("--lookahead", "-1"), ("--vae-tile", "-5")] {
        let ended = home.run(&["generate", "-p", "a", flag, value]);
        assert_eq!(ended.code, Some(2), "{flag}: {}", ended.stderr);
        assert!(!ended.stderr.contains("'--"), "{flag}: {}", ended.stderr);
        assert!(ended.stderr.contains("; hint: write"), "{flag}: {}", ended.stderr);
    }
    assert!(!home.path("berth.png").exists());
}

#[test]
fn the_flags_of_stable_diffusion_cpp_stand_in_the_help() {
    let home = Home::new();
    for command in ["generate", "plan", "tune"] {
        let help = done(&home, &[command, "--help"]).stdout;
        let (_, section) = help
            .split_once("Flags of stable-diffusion.cpp:\n")
            .unwrap_or_else(|| panic!("{command} has no such heading: {help}"));
        let flags = ["--clip-on-cpu", "--vae-on-cpu", "--control-net-cpu", "--offload-to-cpu"];
        for flag in flags.into_iter().chain(["--vae-tiling"]) {
            assert!(section.contains(flag), "{command}: no {flag} in {section}");
        }
        let others = section.lines().filter(|line| line.trim_start().starts_with('-')).count();
        assert_eq!(others, 5, "{command}: other flags stand under the heading: {section}");
    }
}
