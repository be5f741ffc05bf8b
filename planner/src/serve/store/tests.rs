//! What was written is there again, in order, over kills, damage and full disks.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::tables::EncodedChange;
use super::*;
use crate::serve::desk::job::{IdempotencyKey, JobState, KeptJson};
use crate::serve::testing::{CHILD, child, record};

/// Far longer than any write takes: only what hangs gets there.
const GRACE: Duration = Duration::from_secs(60);

struct Opened {
    store: JobStore,
    events: Receiver<DeskEvent>,
    restored: Restored,
}

fn opened(directory: &Path) -> Opened {
    let (sender, events) = mpsc::channel();
    let is_held = |error: &JobStoreError| matches!(error, JobStoreError::InUse { .. });
    let (store, restored) = once_free(|| open(directory, sender.clone()), is_held);
    Opened { store, events, restored }
}

fn opened_tables(directory: &Path) -> JobTables {
    once_free(|| JobTables::open(&directory.join(FILE)), |error| *error == TablesError::InUse)
}

/// Opens what this process has closed: another test that starts a process just now may hold it for
/// a moment longer, from the fork to the start of the other program.
fn once_free<T, E: std::fmt::Debug>(
    open: impl Fn() -> Result<T, E>,
    is_held: impl Fn(&E) -> bool,
) -> T {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if is_held(&error) && begun.elapsed() < GRACE => thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

impl Opened {
    /// Makes a change and waits for its answer.
    fn change(&self, number: u64, change: Change) -> Result<(), String> {
        self.store.change(WriteId(number), change);
        self.answer(number)
    }

    fn answer(&self, number: u64) -> Result<(), String> {
        match self.events.recv_timeout(GRACE).expect("an answer") {
            DeskEvent::Stored { write, result } => {
                assert_eq!(write, WriteId(number));
                result
            }
            event => panic!("{event:?}"),
        }
    }

    fn close(self) {
        assert!(self.store.close(GRACE));
    }
}

fn id(number: u64) -> String {
    format!("{number:026}")
}

fn put(number: u64) -> Change {
    Change::Put(Box::new(record(&id(number))))
}

fn numbers(restored: &Restored) -> Vec<u64> {
    restored.records.iter().map(|record| record.id.0.parse().unwrap()).collect()
}

#[test]
fn what_was_written_is_restored() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("serve");
    let store = opened(&directory);
    assert!(store.restored.records.is_empty() && store.restored.damaged.is_none());
    let mut job = record(&id(1));
    let key = IdempotencyKey { key: "k".to_owned(), body_sha256: "0f".to_owned() };
    job.order.idempotency = Some(key);
    store.change(1, Change::Put(Box::new(job.clone()))).unwrap();
    job.state = JobState::Running;
    job.attempts = 1;
    let settings = DeskSettings { paused: true, checkpoint: Some("demo".to_owned()) };
    store.change(2, Change::Put(Box::new(job.clone()))).unwrap();
    store.change(3, Change::Settings(settings.clone())).unwrap();
    store.change(4, put(2)).unwrap();
    store.change(5, put(3)).unwrap();
    store.change(6, Change::Remove(JobId(id(2)))).unwrap();
    store.close();
    let Restored { records, settings: found, removed, damaged, unread } =
        opened(&directory).restored;
    assert_eq!(records, [job, record(&id(3))]);
    assert_eq!((found, removed), (settings, vec![JobId(id(2))]));
    assert_eq!((damaged, unread.len()), (None, 0));
    for (path, mode) in [("", FOLDER_MODE), (FILE, PRIVATE_MODE), (LOCK, PRIVATE_MODE)] {
        let permissions = fs::metadata(directory.join(path)).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, mode, "{path}");
    }
}

#[test]
fn single_records_are_read_whole_while_it_is_open() {
    let home = tempfile::tempdir().unwrap();
    let store = opened(home.path());
    let mut job = record(&id(1));
    job.state = JobState::Done;
    job.plan = Some(KeptJson::of(&serde_json::json!({"feasible": true})));
    store.change(1, Change::Put(Box::new(job.clone()))).unwrap();
    store.change(2, put(2)).unwrap();
    let reader = store.store.reader();
    assert_eq!(reader.read(&JobId(id(1))), Ok(Some(job.clone())));
    assert_eq!(reader.read(&JobId(id(2))), Ok(Some(record(&id(2)))));
    store.change(3, Change::Remove(JobId(id(2)))).unwrap();
    assert_eq!(reader.read(&JobId(id(2))), Ok(None));
    // Who reads does not keep it open.
    store.close();
    assert!(reader.read(&JobId(id(1))).is_err_and(|because| because.contains("not open")));
    assert_eq!(opened(home.path()).restored.records, [job.brief()]);
}

#[test]
fn answers_come_in_order_and_many_changes_in_few_transactions() {
    let home = tempfile::tempdir().unwrap();
    let store = opened(home.path());
    let count = 3 * CHANGES_MAX as u64;
    for number in 0..count {
        store.store.change(WriteId(number), put(number % 100));
    }
    for number in 0..count {
        store.answer(number).unwrap();
    }
    store.close();
    assert_eq!(numbers(&opened(home.path()).restored), (0..100).collect::<Vec<_>>());
}

#[test]
fn closing_writes_what_waits() {
    let home = tempfile::tempdir().unwrap();
    let store = opened(home.path());
    (0..50).for_each(|number| store.store.change(WriteId(number), put(number)));
    store.close();
    assert_eq!(opened(home.path()).restored.records.len(), 50);
}

#[test]
fn a_second_daemon_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let first = opened(home.path());
    let second = |directory: &Path| open(directory, mpsc::channel().0).map(|_| ());
    let error = second(home.path()).unwrap_err();
    assert!(matches!(error, JobStoreError::InUse { .. }), "{error}");
    assert!(error.to_string().contains("another `berth serve` uses"), "{error}");
    first.change(1, put(1)).unwrap();
    first.close();
    opened(home.path()).close();
    // The database's own lock holds too, where the file system knows no other.
    let tables = opened_tables(home.path());
    let error = second(home.path()).unwrap_err();
    assert!(matches!(error, JobStoreError::InUse { .. }), "{error}");
    drop(tables);
}

#[test]
fn a_place_that_cannot_be_is_an_error_with_a_hint() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    fs::write(&file, "").unwrap();
    let told = |directory: &Path| open(directory, mpsc::channel().0).unwrap_err().to_string();
    assert!(told(&file.join("serve")).contains("; hint: BERTH_STATE_DIR"));
    fs::create_dir_all(home.path().join("a").join(FILE)).unwrap();
    let error = told(&home.path().join("a"));
    assert!(error.contains("cannot open the job store"), "{error}");
}

#[test]
fn removed_jobs_are_forgotten_in_time() {
    let home = tempfile::tempdir().unwrap();
    let tables = opened_tables(home.path());
    let removed = |now_ms| tables.restore(now_ms).unwrap().removed.len();
    let now_ms = 10 * REMOVED_MS;
    tables.write([EncodedChange::Remove(JobId(id(1)))].iter(), now_ms).unwrap();
    let later = now_ms + REMOVED_MS / 2;
    tables.write([EncodedChange::Remove(JobId(id(2)))].iter(), later).unwrap();
    assert_eq!(removed(now_ms + REMOVED_MS), 2);
    assert_eq!(removed(now_ms + REMOVED_MS + 1), 1);
    // The clock was put back by far: a day that never ends would be worse.
    assert_eq!(removed(0), 0);
}

#[test]
fn what_is_not_understood_is_kept_aside_and_told() {
    let home = tempfile::tempdir().unwrap();
    let good = record(&id(1));
    let text = serde_json::to_string(&good).unwrap();
    let entries = [
        (id(1), text.clone()),
        (id(2), text.replacen("\"v\":1", "\"v\":2", 1)),
        (id(3), "{\"v\":1".to_owned()),
        (id(4), text.clone()),
        (id(5), "{\"v\":1}".to_owned()),
    ];
    let tables = opened_tables(home.path());
    let changes = entries.map(|(id, text)| EncodedChange::Put(JobId(id), text.into_bytes()));
    let settings = EncodedChange::Settings(b"[".to_vec());
    tables.write(changes.iter().chain([&settings]), 0).unwrap();
    drop(tables);
    let store = opened(home.path());
    assert_eq!(store.restored.records, [good]);
    assert_eq!(store.restored.settings, DeskSettings::default());
    let told = store.restored.unread.join("\n");
    assert_eq!(store.restored.unread.len(), 5, "{told}");
    assert!(told.contains(&format!("job {} has a record of version 2", id(2))), "{told}");
    assert!(told.contains(&format!("job {} has the record of job {}", id(4), id(1))), "{told}");
    store.close();
    let tables = opened_tables(home.path());
    assert!(tables.restore(0).unwrap().unread.is_empty(), "told once");
    let kept = tables.unread().unwrap();
    let keys: Vec<&str> = kept.iter().map(|(key, _)| key.as_str()).collect();
    let expected = [2, 3, 4, 5].map(|number| format!("jobs/{}", id(number)));
    assert_eq!(keys[..4], expected);
    assert_eq!((keys[4], kept[1].1.as_slice()), ("meta/settings", &b"{\"v\":1"[..]));
}

#[test]
fn a_record_that_could_not_be_read_again_is_refused_alone() {
    let home = tempfile::tempdir().unwrap();
    let store = opened(home.path());
    let mut endless = record(&id(2));
    endless.predicted_wait_ms = f64::INFINITY;
    store.store.change(WriteId(1), put(1));
    store.store.change(WriteId(2), Change::Put(Box::new(endless)));
    store.store.change(WriteId(3), put(3));
    let answers = [1, 2, 3].map(|number| store.answer(number));
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert!(answers[1].as_ref().is_err_and(|error| error.contains("an unreadable record")));
    store.close();
    assert_eq!(numbers(&opened(home.path()).restored), [1, 3]);
}

/// A file of some jobs.
fn filled(directory: &Path) -> Vec<u8> {
    let store = opened(directory);
    for number in 0..40 {
        store.change(number, put(number)).unwrap();
    }
    store.close();
    fs::read(directory.join(FILE)).unwrap()
}

/// Opens a directory whose file was damaged: it opens, and has either all of what was written, or a
/// beginning of it, or nothing and the file aside.
fn opens_after_damage(directory: &Path, what: &str) -> bool {
    let store = opened(directory);
    let found = numbers(&store.restored);
    assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>(), "{what}");
    let aside = fs::read_dir(directory).unwrap().flatten();
    let aside: Vec<PathBuf> = aside
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().contains("jobs.redb.damaged-"))
        .collect();
    assert_eq!(aside.len(), usize::from(store.restored.damaged.is_some()), "{what}");
    match &store.restored.damaged {
        Some(told) => {
            assert!(found.is_empty() && told.contains("; hint: the damaged file is "), "{told}");
            assert!(told.contains(&*aside[0].to_string_lossy()), "{told}");
        }
        None => assert!(found.len() >= 39, "{what}: {} of 40", found.len()),
    }
    store.change(99, put(99)).unwrap();
    let is_damaged = store.restored.damaged.is_some();
    store.close();
    let again = opened(directory);
    assert_eq!(numbers(&again.restored).last(), Some(&99), "{what}");
    is_damaged
}

#[test]
fn a_damaged_file_is_put_aside() {
    let home = tempfile::tempdir().unwrap();
    let whole = filled(&home.path().join("whole"));
    let mut damaged = 0;
    let mut count = 0;
    let mut check = |what: &str, bytes: &[u8]| {
        let directory = home.path().join(format!("{count}"));
        count += 1;
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(FILE), bytes).unwrap();
        damaged += usize::from(opens_after_damage(&directory, what));
        fs::remove_dir_all(&directory).unwrap();
    };
    for length in [0, 1, 9, 100, 4096, whole.len() / 2, whole.len() - 1] {
        check(&format!("cut at {length}"), &whole[..length]);
    }
    check("zeros", &vec![0; whole.len()]);
    check("text", b"this is no database");
    // Places all over the file, of which each run has the same.
    let mut place: u64 = 1;
    for round in 0..40 {
        let mut bytes = whole.clone();
        place =
            place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (place >> 20) as usize % bytes.len();
        let length = [1, 16, 4096][round % 3].min(bytes.len() - at);
        bytes[at..at + length].iter_mut().for_each(|byte| *byte ^= 0xa5);
        check(&format!("{length} bytes at {at}"), &bytes);
    }
    // The header, and both of its commit slots.
    for at in (0..64).step_by(3).chain((64..320).step_by(11)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        check(&format!("header byte {at}"), &bytes);
    }
    assert!(damaged > 20, "only {damaged} were seen to be damaged");
}

/// The part of the next test that is killed.
#[test]
fn child_that_writes() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let store = opened(Path::new(&directory));
    let first = numbers(&store.restored).len() as u64;
    for number in first.. {
        // Several on their way at a time, so that kills meet transactions of many.
        store.store.change(WriteId(number), put(number));
        if let Some(stored) = number.checked_sub(first + 5) {
            store.answer(first + stored).unwrap();
            println!("stored {}", first + stored);
        }
    }
}

#[test]
fn a_kill_loses_nothing_that_was_answered() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().to_str().unwrap();
    let mut least = 0;
    for round in 0..12 {
        let mut child = child("serve::store::tests::child_that_writes", directory);
        let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let wanted = least + 1 + 7 * round;
        let mut last = None;
        while last.is_none_or(|last| last < wanted) {
            let line = lines.next().expect("it goes on").unwrap();
            last =
                line.strip_prefix("stored ").map(|number| number.parse::<u64>().unwrap()).or(last);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let told = lines.map_while(Result::ok);
        let told = told.filter_map(|line| line.strip_prefix("stored ")?.parse::<u64>().ok());
        let answered = told.last().or(last).unwrap();
        let store = opened(home.path());
        assert!(store.restored.damaged.is_none() && store.restored.unread.is_empty());
        let found = numbers(&store.restored);
        assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>(), "a beginning");
        assert!(found.len() as u64 > answered, "{} of {answered}", found.len());
        least = found.len() as u64;
        store.close();
    }
}

/// The part of the next test that meets the limit.
#[test]
fn child_with_a_full_disk() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let store = opened(Path::new(&directory));
    store.change(0, put(0)).unwrap();
    let all = getrlimit(Resource::Fsize);
    let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, ..all }).unwrap();
    let size = fs::metadata(Path::new(&directory).join(FILE)).unwrap().len();
    limit(Some(size));
    let mut large = record(&id(1));
    large.order.body = KeptJson::of(&serde_json::json!("x".repeat(4 << 20)));
    for number in 1..4 {
        let error = store.change(number, Change::Put(Box::new(large.clone()))).unwrap_err();
        assert!(error.contains("cannot write the job store"), "{error}");
        assert!(error.contains("; hint: is its disk full, or read-only?"), "{error}");
    }
    limit(all.current);
    store.change(4, put(4)).unwrap();
    store.close();
    println!("it met the limit");
}

/// The part of the next test that runs where `sh` has mounted a disk of a few megabytes.
#[test]
fn child_on_a_small_disk() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let store = opened(Path::new(&directory));
    store.change(0, put(0)).unwrap();
    let filler = Path::new(&directory).join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[7; 4096]).is_ok() {}
    drop(file);
    let mut large = record(&id(1));
    large.order.body = KeptJson::of(&serde_json::json!("x".repeat(1 << 20)));
    for number in 1..4 {
        let error = store.change(number, Change::Put(Box::new(large.clone()))).unwrap_err();
        assert!(error.contains("; hint: is its disk full, or read-only?"), "{error}");
    }
    fs::remove_file(&filler).unwrap();
    store.change(4, put(4)).unwrap();
    store.close();
    let store = opened(Path::new(&directory));
    assert!(store.restored.damaged.is_none());
    assert_eq!(numbers(&store.restored), [0, 4]);
    println!("it met the end of the disk");
}

/// Where nobody may mount in a namespace of its own, only the limit of the test beside it is met.
#[test]
fn a_full_disk_is_told_and_room_on_it_is_used_again() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().to_str().unwrap();
    let mount =
        "mount -t tmpfs -o size=8m none \"$BERTH_TEST_CHILD\" && echo mounted && exec \"$@\"";
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", mount, "sh"]).arg(program).env(CHILD, directory);
    command.args(["serve::store::tests::child_on_a_small_disk", "--exact", "--nocapture"]);
    let Ok(output) = command.output() else { return };
    let told = String::from_utf8_lossy(&output.stdout);
    if told.contains("mounted") {
        assert!(output.status.success() && told.contains("it met the end of the disk"), "{told}");
    }
}

#[test]
fn a_write_that_fails_is_told_and_the_next_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let mut child =
        child("serve::store::tests::child_with_a_full_disk", home.path().to_str().unwrap());
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(child.wait().unwrap().success() && told.contains("it met the limit"), "{told}");
    assert!(begun.elapsed() < GRACE);
    let store = opened(home.path());
    assert!(store.restored.damaged.is_none());
    assert_eq!(numbers(&store.restored), [0, 4]);
}
