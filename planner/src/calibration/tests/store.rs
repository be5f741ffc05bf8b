//! The file's place: locks, damage, and directories that cannot be written.

use std::fs;
use std::sync::Barrier;

use super::super::limits::FILE_BYTES_MAX;
use super::*;

fn lesson(component: &str) -> MeasuredRatio {
    MeasuredRatio { device: None, component: component.to_owned(), ratio: 1.5 }
}

fn read(directory: &Path) -> Content {
    Store::under(directory).read().unwrap().unwrap()
}

#[test]
fn threads_that_learn_at_once_lose_nothing() {
    // Few enough that none of them waits for the lock until it gives up, on whatever machine.
    const THREADS: usize = 3;
    const RUNS: usize = 20;
    let directory = tempfile::tempdir().unwrap();
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (start, store) = (&start, Store::under(directory.path()));
            scope.spawn(move || {
                start.wait();
                for _ in 0..RUNS {
                    let lessons = [lesson(&format!("component {thread}")), lesson("shared")];
                    store.update(&machine(), |content| content.learn("model", &lessons)).unwrap();
                }
            });
        }
    });
    let corrections = read(directory.path()).host.correction;
    assert_eq!(corrections.len(), THREADS + 1);
    for correction in corrections {
        let threads = if correction.component == "shared" { THREADS } else { 1 };
        assert_eq!(correction.runs as usize, RUNS * threads, "{}", correction.component);
    }
    let mut left: Vec<String> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["calibration.lock", "calibration.toml"]);
}

#[test]
fn no_file_is_no_calibration() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::under(&directory.path().join("not/there"));
    let (calibration, ignored) = Calibration::read(machine(), Some(store));
    assert!(ignored.is_none());
    assert_eq!(calibration.content, Content::new(&machine()));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn damage_is_told_once_kept_by_runs_and_replaced_by_measuring() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::under(directory.path());
    let huge = "#".repeat(FILE_BYTES_MAX.as_usize() + 1);
    for damage in [b"format = ".as_slice(), b"\xff\xfe", b"", huge.as_bytes()] {
        fs::write(store.path(), damage).unwrap();
        let (calibration, ignored) = Calibration::read(machine(), Some(store.clone()));
        let ignored = ignored.unwrap().to_string();
        assert!(ignored.contains("calibration.toml is ignored"), "{ignored}");
        assert!(ignored.contains("berth calibrate"), "{ignored}");
        assert_eq!(calibration.content, Content::new(&machine()));
        assert!(!calibration.learns);
        assert!(store.update(&machine(), |_| {}).is_err());
        assert_eq!(fs::read(store.path()).unwrap(), damage);

        calibration.record(&with_gpu(), &answer(&with_gpu())).unwrap();
        assert_eq!(read(directory.path()), recorded(&with_gpu()));
    }
}

#[test]
fn another_versions_file_is_replaced_by_what_is_learned() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::under(directory.path());
    fs::write(store.path(), "format = 99\nberth = \"0.0.1\"\nwhatever = true\n").unwrap();
    let (calibration, ignored) = Calibration::read(machine(), Some(store.clone()));
    assert!(ignored.is_none() && calibration.learns);
    store.update(&machine(), |content| content.learn("model", &[lesson("dit")])).unwrap();
    assert_eq!(read(directory.path()).host.correction.len(), 1);
}

#[test]
fn a_place_that_cannot_be_used_is_an_error_with_a_hint() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let in_a_file = Store::under(&file).update(&machine(), |_| {}).unwrap_err().to_string();
    assert!(in_a_file.contains("cannot write the calibration"), "{in_a_file}");
    assert!(in_a_file.contains("hint: BERTH_STATE_DIR"), "{in_a_file}");

    let store = Store::under(directory.path());
    fs::create_dir(store.path()).unwrap();
    let ignored = store.read().unwrap_err().to_string();
    assert!(ignored.contains("not a regular file"), "{ignored}");
    assert!(store.replace(&machine(), |_| {}).is_err());
    let nowhere = Calibration::read(machine(), None).0;
    let error = nowhere.record(&with_gpu(), &answer(&with_gpu())).unwrap_err();
    assert!(matches!(error, StoreError::NoPlace));
}

#[test]
fn nonsense_of_the_executor_is_not_kept() {
    let directory = tempfile::tempdir().unwrap();
    let calibration = Calibration::read(machine(), Some(Store::under(directory.path()))).0;
    for nonsense in [f64::NAN, 0.0, -1.0, 1e30] {
        let mut answer = answer(&with_gpu());
        answer.devices[0].speeds.memory_bytes_per_s = nonsense;
        let error = calibration.record(&with_gpu(), &answer).unwrap_err();
        assert!(matches!(error, StoreError::Nonsense { .. }), "{error}");
        assert_eq!(Store::under(directory.path()).read().unwrap(), None);
    }
}
