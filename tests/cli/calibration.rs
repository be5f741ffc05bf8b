//! The calibration file from outside: measured, learned from runs, damaged, out of date, out of
//! reach, shared.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::support::{Ended, Home};
use serde_json::Value;

const GENERATE: [&str; 6] =
    ["generate", "--prompt", "a large red circle", "--steps", "2", "--output"];

/// The file in a home's state directory.
fn file(home: &Home) -> PathBuf {
    home.beside("state").join("berth/calibration.toml")
}

fn write(home: &Home, content: &[u8]) {
    let path = file(home);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// A calibration by hand: the disk's rate on this machine, as some version of Berth.
fn by_hand(home: &Home, berth: &str) -> String {
    let host = home.json(&["devices", "--json"])["host"].clone();
    let (cpu, cores) = (&host["cpu"], &host["cores"]);
    format!(
        "format = 1\nberth = \"{berth}\"\ncpu = {cpu}\ncores = {cores}\n\
         [host]\nstorage_bytes_per_s = 3e9\n"
    )
}

/// The disk's rate and how it is known.
fn storage(home: &Home) -> (f64, String) {
    let rate = home.json(&["devices", "--json"])["host"]["storage_bytes_per_s"].clone();
    (rate["value"].as_f64().unwrap(), rate["source"].as_str().unwrap().to_owned())
}

/// Of a plan's document, how a figure of a device is known.
fn known(document: &Value, device: &str, figure: &str) -> Value {
    let rates = document["rates"].as_array().unwrap();
    rates.iter().find(|rates| rates["device"] == device).unwrap()[figure].clone()
}

/// Where a plan's document puts each component.
fn placements(document: &Value) -> Vec<[Value; 3]> {
    let components = document["components"].as_array().unwrap().iter();
    components.map(|c| ["name", "placement", "residency"].map(|key| c[key].clone())).collect()
}

/// Makes a picture of the demo model, which must succeed.
fn generate(home: &Home, more: &[&str]) -> Ended {
    let ended = home.run(&[GENERATE.as_slice(), &["picture.png"], more].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(home.path("picture.png").exists());
    ended
}

/// Lines on standard error that name the calibration.
fn warnings(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| line.contains("calibration")).collect()
}

#[test]
fn a_file_that_cannot_be_used_is_told_of_once_and_changes_nothing() {
    let home = Home::new();
    let version = env!("CARGO_PKG_VERSION");
    let good = by_hand(&home, version);
    let clean = home.json(&["plan", "--dry-run", "--json"]);
    let huge = "# far too large\n".repeat(1 << 19);
    for damage in [
        b"".as_slice(),
        b"\x89PNG\r\n\x1a\n\x00\xff",
        b"name = \"a host profile\"\n",
        &good.as_bytes()[..good.len() - 5],
        good.replace("3e9", "nan").as_bytes(),
        good.replace("3e9", "-1.0").as_bytes(),
        good.replace("3e9", "0.0").as_bytes(),
        good.replace("3e9", "1e30").as_bytes(),
        good.replace("[host]", "[hose]").as_bytes(),
        huge.as_bytes(),
    ] {
        write(&home, damage);
        let ended = generate(&home, &[]);
        let told = warnings(&ended);
        assert_eq!(told.len(), 1, "{}", ended.stderr);
        assert!(told[0].contains(file(&home).to_str().unwrap()), "{}", told[0]);
        assert!(told[0].contains("is ignored: ") && told[0].contains("hint: delete it"));
        assert_eq!(std::fs::read(file(&home)).unwrap(), damage, "a run leaves it to be mended");

        let ended = home.run(&["plan", "--dry-run", "--json"]);
        assert_eq!((ended.code, warnings(&ended).len()), (Some(0), 1), "{}", ended.stderr);
        // Not the predicted times: they follow the page cache, from which files may be dropped.
        assert_eq!(ended.json()["rates"], clean["rates"]);
        assert_eq!(placements(&ended.json()), placements(&clean));
    }
    std::fs::remove_file(file(&home)).unwrap();
    std::fs::create_dir(file(&home)).unwrap();
    assert_eq!(warnings(&generate(&home, &[])).len(), 1);
}

#[test]
fn another_version_or_another_cpu_invalidates_it() {
    let home = Home::new();
    assert_eq!(storage(&home), (1e9, "assumed".to_owned()));
    let good = by_hand(&home, env!("CARGO_PKG_VERSION"));
    write(&home, good.as_bytes());
    assert_eq!(storage(&home), (3e9, "measured".to_owned()));
    let plan = home.json(&["plan", "--dry-run", "--json"]);
    assert_eq!(known(&plan, "host", "storage"), "measured");
    assert_eq!(known(&plan, "host", "compute"), "assumed");

    let cores = good.lines().find(|line| line.starts_with("cores")).unwrap();
    for outdated in [
        by_hand(&home, "0.0.1"),
        good.replace("format = 1", "format = 99"),
        good.replace("cpu = \"", "cpu = \"Another "),
        good.replace(cores, "cores = 4096"),
    ] {
        write(&home, outdated.as_bytes());
        let ended = home.run(&["devices", "--json"]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert_eq!(storage(&home), (1e9, "assumed".to_owned()), "{outdated}");
    }
    // A disk that a profile declares stays.
    write(&home, good.as_bytes());
    let declared = "name = \"mine\"\n[host]\nstorage_bandwidth = \"5GB/s\"\n";
    std::fs::write(home.path("mine.toml"), declared).unwrap();
    let devices = home.json(&["devices", "--json", "--host", "./mine.toml"]);
    assert_eq!(devices["host"]["storage_bytes_per_s"]["source"], "declared");
}

#[test]
fn calibrate_measures_and_the_next_plan_says_so() {
    let home = Home::new();
    write(&home, b"damaged");
    let arguments = ["calibrate", "--host", "virtual-2x2g", "--json", "--device", "virtual0"];
    let ended = home.run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document = ended.json();
    assert_eq!(document["file"], file(&home).to_str().unwrap());
    let figures = document["figures"].as_array().unwrap();
    let of = |device: &str| figures.iter().filter(|f| f["device"] == device).count();
    assert!(of("host") >= 6 && of("virtual0") >= 6 && of("virtual1") == 0, "{figures:?}");

    let plan = |host: &str| home.json(&["plan", "--dry-run", "--json", "--host", host]);
    let measured = plan("virtual-2x2g");
    assert_eq!(known(&measured, "host", "compute"), "measured");
    assert_eq!(known(&measured, "host", "page_cache"), "measured");
    assert_eq!(known(&measured, "virtual0", "compute"), "measured");
    // What is declared stays, and what was not measured is not said to be.
    assert_eq!(known(&measured, "virtual0", "link"), "declared");
    assert_eq!(known(&measured, "virtual1", "compute"), "assumed");
    assert_eq!(known(&plan("virtual-1x64m"), "virtual0", "compute"), "assumed");
    // A machine that is only imagined takes nothing from this one.
    let imagined = plan("rtx-4090-24g");
    for figure in ["compute", "memory", "storage"] {
        assert_ne!(known(&imagined, "host", figure), "measured", "{figure}");
    }
    let text = home.run(&["plan", "--dry-run", "--host", "virtual-2x2g"]).stdout;
    assert!(text.contains("rates: host: compute measured"), "{text}");

    // Another one, and all at once, keeps what is there.
    let table = home.run(&["calibrate", "--host", "virtual-1x64m"]);
    assert_eq!(table.code, Some(0), "{}", table.stderr);
    assert!(table.stdout.contains("declared, stays"), "{}", table.stdout);
    assert!(table.stderr.contains(file(&home).to_str().unwrap()), "{}", table.stderr);
    assert_eq!(known(&plan("virtual-2x2g"), "virtual0", "compute"), "measured");
    assert_eq!(known(&plan("virtual-1x64m"), "virtual0", "compute"), "measured");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let home = Home::new();
    for (arguments, says) in [
        (
            ["--host", "virtual-2x2g", "--device", "virtual7"],
            "hint: name one of virtual0, virtual1",
        ),
        (["--host", "rtx-4090-24g", "--device", "cuda0"], "cuda0 cannot be measured"),
    ] {
        let ended = home.run(&[["calibrate"].as_slice(), &arguments].concat());
        assert_eq!(ended.code, Some(2), "{}", ended.stdout);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
        assert!(!file(&home).exists());
    }
}

#[test]
fn a_run_teaches_the_next_plan() {
    let home = Home::new();
    let host = ["--host", "virtual-2x2g"];
    // Of a streamed component the time may be the link's, which says nothing of a processor.
    let ended = generate(&home, &[host.as_slice(), &["--params-backend", "all=device"]].concat());
    assert_eq!(ended.stderr, "");
    let text = std::fs::read_to_string(file(&home)).unwrap();
    assert!(text.starts_with("# What Berth measured"), "{text}");
    let plan = home.run(&[["plan", "--dry-run"].as_slice(), &host].concat()).stdout;
    assert!(plan.contains("; measured in runs: "), "{plan}");
    let plan = home.json(&[["plan", "--dry-run", "--json"].as_slice(), &host].concat());
    let learned = plan["rates"].as_array().unwrap().iter().map(|rates| &rates["runs_of"]);
    assert!(learned.clone().any(|runs| runs.as_array().unwrap().contains(&"dit".into())));
    // Of another model, as of one elsewhere, nothing is known.
    let elsewhere = home.path("elsewhere");
    copy(Path::new(plan["model"].as_str().unwrap()), &elsewhere);
    let elsewhere = [&["plan", elsewhere.to_str().unwrap(), "--dry-run", "--json"][..], &host];
    let other = home.json(&elsewhere.concat());
    assert!(other["rates"].as_array().unwrap().iter().all(|rates| rates["runs_of"] == no_runs()));
}

fn no_runs() -> Value {
    Value::Array(Vec::new())
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let place = to.join(entry.file_name());
        match entry.path() {
            folder if folder.is_dir() => copy(&folder, &place),
            file => drop(std::fs::copy(file, place).unwrap()),
        }
    }
}

#[test]
fn a_place_that_cannot_be_written_stops_no_run() {
    let home = Home::new();
    let run = |directory: &Path, arguments: &[&str]| {
        Ended::of(home.berth(arguments).env("BERTH_STATE_DIR", directory).output().unwrap())
    };
    let picture = [GENERATE.as_slice(), &["picture.png"]].concat();
    // No file can be made there, not even by root.
    let read_only = Path::new("/proc/self");
    std::fs::write(home.path("file"), "in the way").unwrap();
    for directory in [read_only, &home.path("file"), &home.path("file/below")] {
        let ended = run(directory, &picture);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert_eq!(warnings(&ended).len(), 1, "{}", ended.stderr);
        std::fs::remove_file(home.path("picture.png")).unwrap();
        let ended = run(directory, &["calibrate"]);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("hint: BERTH_STATE_DIR"), "{}", ended.stderr);
    }
    // None is wanted: nothing is kept, and nothing is missed.
    let ended = run(Path::new(""), &picture);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let ended = run(Path::new(""), &["calibrate"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("no directory for the calibration"), "{}", ended.stderr);
    assert!(!file(&home).exists());
}

#[test]
fn processes_that_run_at_once_lose_nothing() {
    const PROCESSES: usize = 3;
    let home = Home::new();
    // The demo model is written before they begin.
    home.json(&["plan", "--dry-run", "--json"]);
    let outputs: Vec<String> = (0..PROCESSES).map(|index| format!("{index}.png")).collect();
    let start = |output: &String| {
        let arguments = [GENERATE.as_slice(), &[output], &["--backend", "all=cpu"]].concat();
        let mut berth = home.berth(&arguments);
        berth.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running: Vec<_> = outputs.iter().map(start).collect();
    for process in running {
        let ended = Ended::of(process.wait_with_output().unwrap());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    }
    let text = std::fs::read_to_string(file(&home)).unwrap();
    let content: toml::Table = text.parse().unwrap();
    let corrections = content["host"]["correction"].as_array().unwrap();
    let names: Vec<&str> = corrections.iter().map(|c| c["component"].as_str().unwrap()).collect();
    assert!(["clip", "t5", "dit", "vae"].iter().all(|name| names.contains(name)), "{names:?}");
    for correction in corrections {
        assert_eq!(correction["runs"].as_integer(), Some(PROCESSES as i64), "{correction}");
    }
}
