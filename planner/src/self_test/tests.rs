//! Records: what they say, how they are kept, and what is none.

use std::fs;

use protocol::DeviceId;
use protocol::self_test::{ChangedByte, Difference, SelfTest, TestedCopy, TestedDevice};

use super::*;

fn key(uuid: &str, driver: &str, program: &str) -> GpuKey {
    let [uuid, driver, program] = [uuid, driver, program].map(str::to_owned);
    GpuKey { uuid, driver: Some(driver), program }
}

fn difference(operations: &[&str]) -> Difference {
    Difference {
        family: "linear_few".to_owned(),
        kernels: vec!["linear_few_q4_k_one".to_owned()],
        operations: operations.iter().map(|&name| name.to_owned()).collect(),
        element: 3,
        elements: 72,
        expected: 1.5,
        got: f32::NAN,
    }
}

/// Two GPUs, of which the first is wrong and changes what it sends.
fn found() -> SelfTest {
    let device = |id: &str, differences: Vec<Difference>| TestedDevice {
        id: DeviceId(id.to_owned()),
        families: vec!["linear_few".to_owned(), "norm".to_owned()],
        ms: 12.5,
        differences,
    };
    let [cuda0, cuda1] = ["cuda0", "cuda1"].map(|id| DeviceId(id.to_owned()));
    let changed = Some(ChangedByte { at: 7, expected: 1, got: 0x41 });
    SelfTest {
        devices: vec![
            device("cuda0", vec![difference(&["Norm", "Linear"]), difference(&["Linear"])]),
            device("cuda1", Vec::new()),
        ],
        copies: vec![
            TestedCopy { from: cuda0.clone(), to: cuda1.clone(), direct: true, changed },
            TestedCopy { from: cuda1, to: cuda0, direct: true, changed: None },
        ],
    }
}

fn keys(program: &str) -> [GpuKey; 2] {
    [key("GPU-a", "580", program), key("GPU-b", "580", program)]
}

#[test]
fn what_is_kept_is_what_was_found() {
    let directory = tempfile::tempdir().unwrap();
    let new = Records::of(&keys("p"), &found());
    Records::update(directory.path(), &new).unwrap();
    let read = Records::read(directory.path());
    assert_eq!(read, new);
    assert!(read.know_all(&keys("p")) && read.know_all(&keys("p")[1..]));
    // Another program, another driver, another GPU.
    assert!(!read.know_all(&keys("q")));
    assert!(
        !read.know_all(&[key("GPU-a", "581", "p")]) && !read.know_all(&[key("GPU-c", "580", "p")])
    );
    let text = fs::read_to_string(directory.path().join("self-test.toml")).unwrap();
    for said in [
        "linear_few (linear_few_q4_k_one): element 3 of 72 is NaN, the host computes 1.5",
        "byte 7 is 0x41, 0x01 was written",
    ] {
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn the_later_record_of_a_gpu_holds() {
    let mut records = Records::of(&keys("p"), &found());
    let good = TestedDevice { differences: Vec::new(), ..found().devices.remove(0) };
    let again = SelfTest { devices: vec![good], copies: Vec::new() };
    records.add(&Records::of(&keys("q")[..1], &again));
    assert!(records.know_all(&keys("q")[..1]) && records.know_all(&keys("p")[1..]));
    assert!(!records.know_all(&keys("p")[..1]));
    // A new GPU beside a known one: the copies between them are not known.
    assert!(!records.know_all(&[keys("q")[0].clone(), keys("p")[1].clone()]));
    for index in 0..100 {
        let key = key(&format!("GPU-{index}"), "580", "p");
        records.add(&Records::of(&[key], &again));
    }
    assert!(!records.know_all(&keys("p")[1..]), "only so many are kept");
    assert!(records.know_all(&[key("GPU-99", "580", "p")]));
}

#[test]
fn a_record_says_operations_once_and_the_first_differences() {
    let mut all = found();
    all.devices[0].differences.extend((0..4).map(|_| difference(&["Add"])));
    let directory = tempfile::tempdir().unwrap();
    let tests = SelfTests::under(Some(directory.path()));
    let to_test = ToTest { devices: Vec::new(), keys: keys("p").to_vec() };
    tests.keep(&to_test, &all).unwrap();
    let records = tests.records();
    assert_eq!(records, Records::read(directory.path()));
    let text = fs::read_to_string(tests.path().unwrap()).unwrap();
    assert_eq!(text.matches("told = ").count(), 6, "{text}");
    let first = records.first().unwrap();
    assert!(first.fails());
    assert_eq!(first.operations(), ["Add", "Linear", "Norm"]);
    assert!(first.told().ends_with("the host computes 1.5, and 3 more"), "{}", first.told());
}

#[test]
fn what_is_no_record_is_as_good_as_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("self-test.toml");
    for text in ["", "format = 2", "format = [", "format = 1\nmore = 3", "\u{0}"] {
        fs::write(&path, text).unwrap();
        assert!(!Records::read(directory.path()).know_all(&keys("p")), "{text:?}");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(Records::read(directory.path()), Records::default());
    // Nothing can be kept there, and what was found is known to this process nevertheless.
    let tests = SelfTests::under(Some(directory.path()));
    let to_test = ToTest { devices: Vec::new(), keys: keys("p").to_vec() };
    let error = tests.keep(&to_test, &found()).unwrap_err();
    assert!(error.contains("self-test.toml"), "{error}");
    assert!(tests.records().know_all(&keys("p")));
    let nowhere = SelfTests::under(None);
    nowhere.keep(&to_test, &found()).unwrap();
    assert!(nowhere.records().know_all(&keys("p")) && nowhere.path().is_none());
}
