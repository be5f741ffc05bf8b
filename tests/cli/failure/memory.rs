//! Memory that someone else takes: between the look at the devices and the plan's load, and while a
//! job runs. The job completes on a safer plan, and says so.

use protocol::Bytes;
use rustix::process::Signal;
use serde_json::Value;

use super::devices::{SLOWER, fast, picture, run};
use super::{assert_nothing_left, generate, pictures, profile};
use crate::support::watched::{PATIENCE, Watched};
use crate::support::{Ended, Home};

/// All memory of the device of [`halved`]: little more than the demo model's weights and largest
/// arena.
const TOTAL: Bytes = Bytes::mib(8);

/// Where that plan can meet less memory than it needs: the DiT's weights alone are more than half
/// of it.
const BEFORE_DECODING: [&str; 3] = ["load", "condition", "denoise"];

/// Runs the demo model's job on one device of [`TOTAL`], whose host only feeds it.
fn halved(home: &Home, keys: &str, pins: &[&str]) -> Ended {
    let text = format!(
        "name = \"slow\"\n[host]\ncompute = false\n[[device]]\nkind = \"virtual\"\n\
         link = \"1GiB/s\"\ntotal = \"{}B\"\n{keys}\n",
        TOTAL.0
    );
    std::fs::write(home.path("slow.toml"), text).unwrap();
    let arguments = [&["--prompt", "a large red circle", "--seed", "7"], pins].concat();
    Watched::start(generate(home, &arguments)).end(PATIENCE)
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of bytes"))
}

/// That a job completed on a safer plan, with the reason of each attempt before it, and said so.
fn assert_safer(ended: &Ended, phases: &[&str]) -> Value {
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    let document = ended.json();
    let attempts = bytes(&document["attempts"]);
    assert!((2..=3).contains(&attempts), "{}", ended.stderr);
    assert_eq!(document["plan"]["generation"], attempts);
    let failures = document["failures"].as_array().expect("a list");
    assert_eq!(failures.len() as u64, attempts - 1, "{document:#}");
    let phase = failures[0]["phase"].as_str().expect("it was loaded");
    assert!(phases.contains(&phase), "{document:#}");
    for (number, failure) in failures.iter().enumerate() {
        assert_eq!(failure["generation"], number as u64 + 1);
        assert_eq!(failure["device"], "virtual0", "{failure}");
        assert!(bytes(&failure["requested_bytes"]) > bytes(&failure["free_bytes"]), "{failure}");
        let reason = failure["reason"].as_str().expect("a reason");
        assert!(reason.contains("virtual0 is out of memory"), "{reason}");
    }
    let told = format!(
        "berth: completed by plan {attempts}, a safer one: plan 1 failed in the {phase} phase: \
         virtual0 is out of memory"
    );
    assert!(ended.stderr.contains(&told), "no {told:?} in {}", ended.stderr);
    document
}

/// The most that the plan of a finished job takes of the first device.
fn peak(document: &Value) -> u64 {
    bytes(&document["plan"]["devices"][0]["peak_bytes"])
}

/// What a job of [`halved`] is pinned to: nothing, or what keeps the picture the same, as tiles
/// make another one.
const PINS: [&[&str]; 2] = [&[], &["--vae-tile", "off"]];

/// Runs the job of [`halved`] while nobody takes anything: its document and picture.
fn undisturbed(home: &Home, pins: &[&str]) -> (Value, Vec<u8>) {
    let whole = halved(home, "", pins);
    let document = whole.json();
    assert_eq!(document["attempts"], 1, "{}", whole.stderr);
    assert_eq!(document["failures"], Value::Array(Vec::new()));
    assert!(!whole.stderr.contains("completed by plan"), "{}", whole.stderr);
    assert!(peak(&document) > TOTAL.0 / 2, "half of it must be too little");
    (document, picture(home))
}

/// That a job on a safer plan made the same picture as the undisturbed one, where both compute the
/// same.
fn assert_same_picture(home: &Home, document: &Value, undisturbed: &(Value, Vec<u8>)) {
    let found = picture(home);
    let (before, expected) = undisturbed;
    if document["plan"]["options"] == before["plan"]["options"] {
        assert!(found == *expected, "another picture");
    }
}

#[test]
fn a_job_completes_where_half_of_the_memory_is_taken_between_plan_and_load() {
    let home = Home::new();
    for pins in PINS {
        let before = undisturbed(&home, pins);
        let taken = format!("taken = \"{}B\"", TOTAL.0 / 2);
        let document = assert_safer(&halved(&home, &taken, pins), &BEFORE_DECODING);
        assert!(peak(&document) <= TOTAL.0 / 2, "{document:#}");
        assert_same_picture(&home, &document, &before);
    }
}

#[test]
fn a_job_completes_where_half_of_the_memory_is_taken_while_it_runs() {
    let home = Home::new();
    for pins in PINS {
        let before = undisturbed(&home, pins);
        let taken = format!("taken = \"{}B\"\ntaken_in = \"denoise\"", TOTAL.0 / 2);
        let document = assert_safer(&halved(&home, &taken, pins), &["denoise"]);
        assert_same_picture(&home, &document, &before);
        let phases = document["plan"]["devices"][0]["phases"].as_array().expect("phases");
        let denoise = phases.iter().find(|entry| entry["phase"] == "denoise").expect("it is there");
        assert!(bytes(&denoise["peak_bytes"]) <= TOTAL.0 / 2, "{document:#}");
    }
}

#[test]
fn memory_that_someone_else_takes_leads_to_a_smaller_plan() {
    let home = Home::new();
    for taken in ["59MiB", "62MiB", "64MiB"] {
        let filled = fast(&format!("taken = \"{taken}\""));
        // Weights that are loaded early may be met while the prompt is encoded.
        assert_safer(&run(&home, &[&filled, SLOWER], &[]), &["load", "condition"]);
        picture(&home);
    }
}

#[test]
fn a_rehearsed_plan_tells_its_failures_too() {
    let home = Home::new();
    profile(&home, false, &[&fast("taken = \"62MiB\""), SLOWER], "");
    let plan = home.run(&["plan", "--host", "./slow.toml", "--json"]);
    let mut document = plan.json();
    // The plan's document is the whole one there.
    document["plan"] = document.clone();
    let stdout = document.to_string();
    assert_safer(&Ended { stdout, ..plan }, &["load"]);
    assert_nothing_left(&home, &[]);
}

#[test]
fn what_was_learnt_of_a_device_outlives_the_executor() {
    let home = Home::new();
    let keys = "flops = \"1TFLOP/s\"\nmemory_bandwidth = \"1TB/s\"\n";
    let slow = "link = \"8MiB/s\"\n";
    // Room for all weights but the last component's.
    let filled = format!("{slow}{keys}taken = \"59MiB\"\n");
    profile(&home, false, &[&filled, slow], "");
    // With all weights resident, the load is what fails.
    let resident = ["--optimize", "throughput"];
    let arguments = ["--prompt", "a large red circle", "--steps", "200", "--verbose"];
    let arguments = [arguments.as_slice(), &resident].concat();
    let mut berth = Watched::start(generate(&home, &arguments));
    let first = berth.executor();
    berth.line("berth: virtual0 is out of memory");
    berth.line("berth: denoise 2/200");
    first.send(Signal::KILL);
    let second = berth.executor();
    let ended = berth.end(PATIENCE);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let document = ended.json();
    assert_eq!(document["attempts"], 3);
    let failures = document["failures"].as_array().expect("a list");
    let of =
        |field: &str| failures.iter().map(|failure| failure[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("phase"), ["load", "denoise"]);
    assert_eq!(of("device"), [Value::from("virtual0"), Value::Null]);
    assert!(peak(&document) <= Bytes::mib(5).0, "{document:#}");
    assert_eq!(pictures(&home).len(), 1);
    std::fs::remove_file(home.path("picture.png")).unwrap();
    assert_nothing_left(&home, &[&first, &second]);
}
