//! Files that have no end or no beginning where small ones are read: devices and pipes, by their
//! own names and behind links. Links to regular files are as good as these.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::fs::{CWD, Mode, mkfifoat};

use crate::bad_input::bounded;
use crate::bad_input::case::{ERROR, GENERATE, changes, contents, copy, faults_of, planned};
use crate::support::{Home, fixture, golden};

/// What never ends.
const ENDLESS: &str = "/dev/zero";

/// Puts a link to a device in a file's place.
fn link(path: &Path) {
    let _ = fs::remove_file(path);
    symlink(ENDLESS, path).expect("a link");
}

/// Puts a pipe, which nobody writes to, in a file's place.
fn pipe(path: &Path) {
    let _ = fs::remove_file(path);
    mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).expect("a pipe");
}

/// The faults of a run on a model in which one file was replaced by each of both.
fn faults(replaced: &str, arguments: &str, says: &[&str]) -> Vec<String> {
    let replace = |with: fn(&Path)| {
        let home = Home::new();
        copy(&fixture("flux_schnell"), &home.path("model"));
        let path = match replaced.strip_prefix("beside/") {
            Some(beside) => home.beside(beside),
            None => home.path(replaced),
        };
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder");
        with(&path);
        let arguments: Vec<&str> = arguments.split(' ').collect();
        // The home's programs make it.
        drop(home.berth(&[]));
        let before = contents(&home);
        let mut faults = faults_of(&bounded::run(&home, &arguments), ERROR, says);
        faults.extend(changes(&before, &contents(&home)));
        faults
    };
    [replace(link), replace(pipe)].concat()
}

#[test]
fn what_is_no_regular_file_is_refused_wherever_a_small_file_is_read() {
    const REFUSED: &str = "it is not a regular file";
    let plan = format!("{GENERATE} --plan p.toml");
    let profile = format!("{GENERATE} --host h.toml");
    let picture = format!("{GENERATE} --init-image p.png");
    let cases = [
        ("p.toml", plan.as_str(), &["cannot read the plan p.toml", REFUSED, "hint: "][..]),
        ("h.toml", &profile, &["cannot read the host profile h.toml", REFUSED, "hint: "]),
        ("berth.toml", GENERATE, &["cannot read the host profile berth.toml", REFUSED]),
        ("beside/config/berth/host.toml", GENERATE, &["config/berth/host.toml", REFUSED]),
        ("beside/system/host.toml", GENERATE, &["system/host.toml", REFUSED]),
        ("p.png", &picture, &["p.png is no picture"]),
        ("model/berth.toml", GENERATE, &["model/berth.toml", REFUSED]),
        ("model/model_index.json", GENERATE, &["model/model_index.json", REFUSED]),
        ("model/vae/config.json", GENERATE, &["model/vae/config.json", REFUSED]),
        ("model/scheduler/scheduler_config.json", GENERATE, &["scheduler_config.json", REFUSED]),
        ("model/tokenizer/vocab.json", GENERATE, &["tokenizer/vocab.json", REFUSED]),
        ("model/tokenizer/tokenizer_config.json", GENERATE, &["tokenizer_config.json", REFUSED]),
        ("model/tokenizer_2/tokenizer.json", GENERATE, &["tokenizer_2/tokenizer.json", REFUSED]),
    ];
    let faults: Vec<String> = cases
        .iter()
        .flat_map(|(replaced, arguments, says)| {
            let faults = faults(replaced, arguments, says);
            (!faults.is_empty()).then(|| format!("{replaced}:\n    {}", faults.join("\n    ")))
        })
        .collect();
    assert!(faults.is_empty(), "{} cases:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_plan_of_a_device_or_of_a_model_with_endless_defaults_is_told_with_a_hint() {
    let home = Home::new();
    copy(&fixture("flux_schnell"), &home.path("model"));
    let arguments = ["generate", "model", "--prompt", "a", "--plan", ENDLESS];
    let ended = bounded::run(&home, &arguments);
    golden::said("plan_of_a_device", &home, &arguments, &ended, &[]);

    link(&home.path("model/berth.toml"));
    let arguments = ["generate", "model", "--prompt", "a"];
    let ended = bounded::run(&home, &arguments);
    golden::said("defaults_of_a_device", &home, &arguments, &ended, &[]);
}

#[test]
fn a_calibration_that_is_no_regular_file_is_told_and_ignored() {
    for replace in [link, pipe] {
        let home = Home::new();
        copy(&fixture("flux_schnell"), &home.path("model"));
        let calibration = home.beside("state/berth/calibration.toml");
        fs::create_dir_all(calibration.parent().unwrap()).unwrap();
        replace(&calibration);
        let ended = bounded::run(&home, &GENERATE.split(' ').collect::<Vec<_>>());
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let says = "calibration.toml is ignored: it is not a regular file; hint: ";
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    }
}

#[test]
fn links_to_regular_files_are_read() {
    let (home, _) = planned();
    for file in ["plan.toml", "model/model_index.json", "model/tokenizer_2/tokenizer.json"] {
        let target = home.path("behind").join(file.replace('/', "-"));
        fs::create_dir_all(home.path("behind")).unwrap();
        fs::rename(home.path(file), &target).unwrap();
        symlink(&target, home.path(file)).unwrap();
    }
    let arguments = GENERATE.split(' ').chain(["--plan", "plan.toml"]);
    let ended = home.run(&arguments.collect::<Vec<_>>());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
