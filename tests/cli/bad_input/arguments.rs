//! Arguments that make no sense, outputs that cannot be written, executors that do not run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::bad_input::case::{
    Case, ERROR, GENERATE, INFEASIBLE, assert_refused, contents, faults_of,
};
use crate::support::{Ended, Home, fixture};

#[test]
fn a_shape_outside_of_the_limits_is_refused() {
    let shapes: &[(&str, &str, &[&str])] = &[
        ("width 0", "--width 0 --height 64", &["--width must be a number ≥ 1, got 0; hint: "]),
        (
            "width 100",
            "--width 100 --height 64",
            &["width 100 is no multiple of 16; hint: use 96 or 112"],
        ),
        ("height 8", "--width 64 --height 8", &["height 8 is no multiple of 16; hint: use 16\n"]),
        ("width 16400", "--width 16400 --height 64", &["width 16400 is not within 1 to 16384"]),
        ("a negative width", "--width -64 --height 64", &["--width must be a number ≥ 1, got -64"]),
        ("a width beyond 32 bits", "--width 4294967360 --height 64", &["--width", "4294967360"]),
        (
            "steps 0",
            "--width 64 --height 64 --steps 0",
            &["--steps must be a number ≥ 1, got 0; hint: "],
        ),
        (
            "steps 1001",
            "--width 64 --height 64 --steps 1001",
            &["steps 1001 is not within 1 to 1000"],
        ),
        ("batch 0", "--width 64 --height 64 --batch 0", &["--batch must be a number ≥ 1, got 0"]),
        ("batch 65", "--width 64 --height 64 --batch 65", &["batch 65 is", "64"]),
        (
            "no text tokens",
            "--width 64 --height 64 --max-sequence-length 0",
            &["--max-sequence-length must be a number ≥ 1, got 0"],
        ),
        (
            "513 text tokens",
            "--width 64 --height 64 --max-sequence-length 513",
            &["max_sequence_length 513 is above this family's 512"],
        ),
        ("an unknown sampler", "--width 64 --height 64 --sampler ddim", &["ddim", "euler"]),
        (
            "guidance NaN",
            "--width 64 --height 64 --guidance-scale NaN",
            &["--guidance-scale must be a number ≥ 0, got NaN"],
        ),
        (
            "guidance inf",
            "--width 64 --height 64 --guidance-scale inf",
            &["--guidance-scale must be a number ≥ 0, got inf"],
        ),
        (
            "true CFG NaN",
            "--width 64 --height 64 --true-cfg-scale NaN",
            &["--true-cfg-scale must be a number ≥ 0, got NaN"],
        ),
        (
            "true CFG -1",
            "--width 64 --height 64 --true-cfg-scale -1",
            &["--true-cfg-scale must be a number ≥ 0, got -1"],
        ),
    ];
    for command in ["generate model --prompt a", "plan model --dry-run"] {
        assert_refused(
            shapes
                .iter()
                .map(|&(name, shape, says)| Case::of(name, &format!("{command} {shape}"), says)),
        );
    }
    assert_refused([
        Case::of(
            "the largest shape on little memory",
            "plan model --dry-run --width 16384 --height 16384 --batch 64 --host virtual-1x64m",
            &["does not fit", "hint: "],
        )
        .exits(INFEASIBLE),
        Case::of("no prompt", "generate model", &["--prompt"]),
        Case::of(
            "a negative seed",
            &format!("{GENERATE} --seed -2"),
            &["--seed must be a number ≥ 0, or random, got -2"],
        ),
    ]);
}

#[test]
fn a_budget_that_is_none_is_refused() {
    let says_zero: &[&str] = &["a budget of 0", "fits nothing; hint: leave it out"];
    let says_unreadable: &[&str] = &["is not an amount of memory; hint: write 8 or 8GiB"];
    let vram: &[(&str, &[&str])] = &[
        ("0", says_zero),
        ("0B", says_zero),
        ("0%", says_zero),
        ("-0", says_zero),
        ("abc", says_unreadable),
        ("NaN", says_unreadable),
        ("inf", says_unreadable),
        ("1e3", says_unreadable),
        ("8XB", says_unreadable),
        ("99999999999999999999GiB", says_unreadable),
        ("101%", &["`101%` is more than all of it", "hint: "]),
        ("cuda9=4", &["no device `cuda9`; hint: there is virtual0, virtual1"]),
        ("virtual0=1,virtual0=2", &["virtual0 has two amounts", "hint: "]),
        ("virtual0=0", says_zero),
        ("virtual0=2,4", &["`4` names no device", "hint: "]),
        ("virtual=2", &["`virtual` may be any of virtual0, virtual1", "hint: "]),
        ("4,host=2", &["`host` is not a device with memory of its own; hint: --max-ram"]),
    ];
    let plan = "plan model --dry-run --width 64 --height 64 --host virtual-2x2g";
    assert_refused(vram.iter().map(|&(cap, says)| {
        Case { name: cap, ..Case::of("", plan, says) }.and("--max-vram").and(cap)
    }));
    let ram = &vram[..11];
    assert_refused(ram.iter().map(|&(cap, says)| {
        Case { name: cap, ..Case::of("", plan, says) }.and("--max-ram").and(cap)
    }));
    assert_refused([
        Case::of("nothing", plan, says_unreadable).and("--max-vram").and(""),
        Case::of("a byte", plan, &["does not fit", "hint: --max-vram "])
            .exits(INFEASIBLE)
            .and("--max-vram")
            .and("1B"),
        Case::of("at once", &format!("{GENERATE} --max-vram 0"), says_zero),
        Case::of("of devices too", "devices --max-ram 0", says_zero),
    ]);
}

#[test]
fn a_prompt_that_cannot_be_used_is_refused() {
    let long = "a".repeat(65 << 10);
    assert_refused([
        Case::of(
            "negative without guidance",
            GENERATE,
            &["--cfg-scale above 1", "hint: add --cfg-scale"],
        )
        .and("--negative-prompt")
        .and("b"),
        Case::of(
            "65 KiB",
            "generate model --width 64 --height 64 --steps 1 --prompt",
            &["prompt is 66560 bytes long, more than 65536; hint: "],
        )
        .and(&long),
        Case::of("a long second prompt", GENERATE, &["second prompt is 66560 bytes long"])
            .and("--prompt-2")
            .and(&long),
        Case::of("a long negative prompt", GENERATE, &["negative prompt is 66560 bytes long"])
            .and("--true-cfg-scale=2")
            .and("--negative-prompt")
            .and(&long),
    ]);
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_work() {
    let said: &[&str] =
        &["cannot write", "hint: --output names a file in a directory that can be written"];
    let is_directory: &[&str] =
        &["cannot write model: it is a directory; hint: --output names a file, a FIFO, or -"];
    assert_refused([
        Case::of("a missing directory", &format!("{GENERATE} --output missing/a.png"), said),
        Case::of("a directory", &format!("{GENERATE} --output model"), is_directory),
        // Nobody can make a file there, whoever runs this.
        Case::of("a closed directory", &format!("{GENERATE} --output /proc/self/a.png"), said),
        Case::of(
            "a file in place of a directory",
            &format!("{GENERATE} --output model/model_index.json/a.png"),
            said,
        ),
        Case::of(
            "tensors to a missing directory",
            &format!("{GENERATE} --dump-tensors missing/a"),
            &["cannot write"],
        ),
        Case::of(
            "a plan to a missing directory",
            "plan model --dry-run --output missing/a.toml",
            said,
        ),
        Case::of("a plan to a directory", "plan model --dry-run --output model", is_directory),
    ]);
}

#[test]
fn a_directory_closed_to_its_user_is_refused() {
    let home = Home::new();
    let closed = home.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    let open_to_all = fs::write(closed.join("probe"), "").is_ok();
    let model = fixture("flux_schnell");
    let ended = home.run(&[
        "generate",
        model.to_str().unwrap(),
        "--prompt",
        "a",
        "--width",
        "64",
        "--height",
        "64",
        "--steps",
        "1",
        "--output",
        "closed/a.png",
    ]);
    if open_to_all {
        // The superuser is not kept out.
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        return;
    }
    let faults =
        faults_of(&ended, ERROR, &["cannot write closed/a.png", "ermission denied", "hint: "]);
    assert!(faults.is_empty(), "{faults:?}");
}

#[test]
fn an_executor_that_does_not_run_is_named() {
    let says_ended: &[&str] = &["cannot start the executor", "it ended at once, exit status"];
    assert_refused([
        Case::of(
            "no such program",
            &format!("{GENERATE} --executor /nothing/there"),
            &["cannot start the executor /nothing/there: No such file"],
        ),
        Case::of(
            "no program",
            &format!("{GENERATE} --executor model/model_index.json"),
            &["cannot start the executor model/model_index.json: Permission denied"],
        ),
        Case::of("one that fails", &format!("{GENERATE} --executor /bin/false"), says_ended),
        Case::of("one that ends", &format!("{GENERATE} --executor /bin/true"), says_ended),
        Case::of("of inspect too", "inspect model --executor /bin/false", says_ended),
    ]);
}

#[test]
fn the_demo_model_needs_a_cache_and_a_named_model_none() {
    let home = Home::new();
    fs::write(home.path("file"), "").unwrap();
    for cache in [home.path("file"), PathBuf::from("/proc/nothing")] {
        let before = contents(&home);
        let ended =
            Ended::of(home.berth(&["inspect"]).env("XDG_CACHE_HOME", &cache).output().unwrap());
        let faults = faults_of(
            &ended,
            ERROR,
            &["cannot write the demo model to", "hint: set XDG_CACHE_HOME, or name a model"],
        );
        assert!(faults.is_empty(), "{}: {faults:#?}", cache.display());
        let mut expected = before;
        expected.entry(home.path("./tmp")).or_insert(0);
        assert_eq!(contents(&home), expected, "{}", cache.display());
    }
    let model = fixture("flux_schnell");
    let mut without = home.berth(&["inspect", model.to_str().unwrap()]);
    let ended =
        Ended::of(without.env_remove("HOME").env_remove("XDG_CACHE_HOME").output().unwrap());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn without_arguments_the_help_is_shown() {
    let ended = Home::new().run(&[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(ERROR), ""));
    assert!(ended.stderr.contains("Usage: berth <COMMAND>"), "{}", ended.stderr);
    let ended = Home::new().run(&["paint"]);
    assert_eq!(
        faults_of(&ended, ERROR, &["unrecognized subcommand 'paint'"]),
        Vec::<String>::new()
    );
}
