//! Pictures are written whole under names of their own, and nothing else is written or removed.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use ipc_channel::ipc::IpcSharedMemory;
use proptest::prelude::*;
use protocol::message::Image;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;
use crate::job::infotext::Settings;
use crate::media;
use crate::serve::desk::job::{ErrorCode, JobId};
use crate::serve::testing::{CHILD, child, record};

/// Far longer than any write takes: only what hangs gets there.
const GRACE: Duration = Duration::from_secs(60);

/// 2026-07-31 12:13:20 UTC.
const CREATED_AT: u64 = 1_785_500_000_000;
const DAY: &str = "2026-07-31";

const ID: &str = "01J4ABCDEFGHJKMNPQRSTVWXYZ";

struct Opened {
    files: PictureFiles,
    events: Receiver<DeskEvent>,
}

fn opened(directory: &Path) -> Opened {
    let (sender, events) = mpsc::channel();
    Opened { files: PictureFiles::open(directory, sender).unwrap(), events }
}

impl Opened {
    fn file(&self, order: FileOrder) -> (Vec<FiledPicture>, Option<String>) {
        let asked = order.job.clone();
        self.files.file(Box::new(order));
        match self.events.recv_timeout(GRACE).expect("an answer") {
            DeskEvent::Filed { job, pictures, error } => {
                assert_eq!(job, asked);
                (pictures, error)
            }
            event => panic!("{event:?}"),
        }
    }
}

fn made(index: u32) -> MadePicture {
    let (width, height) = (8, 4);
    let settings = Settings {
        prompt: "a größe, \"quoted\"".to_owned(),
        steps: Some(4),
        seed: Some(7 + u64::from(index)),
        size: Some([width, height]),
        version: Some(Settings::this_version()),
        ..Settings::default()
    };
    let pixels = Arc::new((0..3 * width * height).map(|level| (level + index) as u8).collect());
    MadePicture { index, seed: 7 + u64::from(index), width, height, pixels, settings }
}

fn order(id: &str, first: u32, count: u32) -> FileOrder {
    let pictures = (0..count).map(made).collect();
    FileOrder { job: JobId(id.to_owned()), created_at: CREATED_AT, first, pictures }
}

/// All files under a folder, by their paths in it.
fn all(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, found) } else { found.push(path) }
        }
    }
    let mut found = Vec::new();
    walk(folder, &mut found);
    let below = |path: &PathBuf| path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    let mut names: Vec<String> = found.iter().map(below).collect();
    names.sort();
    names
}

#[test]
fn a_picture_is_the_one_that_generate_writes() {
    let home = tempfile::tempdir().unwrap();
    let opened = opened(home.path());
    let (pictures, error) = opened.file(order(ID, 0, 2));
    assert_eq!((pictures.len(), error), (2, None));
    for (picture, index) in pictures.iter().zip(0..) {
        let MadePicture { seed, width, height, pixels, settings, .. } = made(index);
        let pixels = IpcSharedMemory::from_bytes(&pixels);
        let image = Image { index, seed, width, height, pixels };
        let text = infotext::write(&settings);
        // As the command line's `PictureFormats::encode` does it.
        let expected = PictureFormat::Png.encode(&image, Some(&text), QUALITY).unwrap().bytes;
        assert_eq!(*picture.png, expected);
        let path = opened.files.path(&picture.record).unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(path, home.path().join(format!("pictures/{DAY}/{ID}-{index}.png")));
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, PRIVATE_MODE);
        assert_eq!(media::settings(&expected).unwrap().as_deref(), Some(&*picture.record.infotext));
        let PictureRecord { size_bytes, seed, .. } = picture.record;
        assert_eq!((size_bytes, seed), (expected.len() as u64, 7 + u64::from(index)));
    }
}

#[test]
fn the_runs_of_a_job_count_on_and_its_settings_are_together() {
    let home = tempfile::tempdir().unwrap();
    let opened = opened(home.path());
    let mut records = Vec::new();
    for first in [0, 2, 2] {
        let (pictures, error) = opened.file(order(ID, first, 2));
        assert_eq!(error, None);
        records.extend(pictures.into_iter().map(|picture| picture.record));
    }
    let names =
        [".json", "-0.png", "-1.png", "-2.png", "-3.png"].map(|end| format!("{DAY}/{ID}{end}"));
    let mut names = names.to_vec();
    names.sort();
    assert_eq!(all(&home.path().join("pictures")), names);
    let text = fs::read(home.path().join(format!("pictures/{DAY}/{ID}.json"))).unwrap();
    let entry: gallery::GalleryEntry = serde_json::from_slice(&text).unwrap();
    assert_eq!((entry.job.as_str(), entry.created_at), (ID, CREATED_AT));
    assert_eq!(entry.pictures, records[..4]);
    // One that is damaged is written anew.
    fs::write(home.path().join(format!("pictures/{DAY}/{ID}.json")), "{").unwrap();
    opened.file(order(ID, 4, 1));
    let text = fs::read(home.path().join(format!("pictures/{DAY}/{ID}.json"))).unwrap();
    let entry: gallery::GalleryEntry = serde_json::from_slice(&text).unwrap();
    assert_eq!(entry.pictures.len(), 1);
}

#[test]
fn erasing_removes_a_jobs_files_and_no_others() {
    let home = tempfile::tempdir().unwrap();
    let opened = opened(home.path());
    opened.file(order(ID, 0, 2));
    let day = home.path().join("pictures").join(DAY);
    let others = [
        format!("{ID}0-0.png"),
        format!("{ID}-x.png"),
        format!("{ID}-0.png.bak"),
        format!("{ID}-.png"),
        format!("x{ID}.json"),
        format!("{ID}.jsonl"),
    ];
    for name in &others {
        fs::write(day.join(name), "another's").unwrap();
    }
    let mut job = record(ID);
    job.created_at = CREATED_AT;
    // What a record says of files does not lead out of the folder, nor to another job's.
    let mut outside = crate::serve::testing::picture(0, 1);
    outside.file = Some("../../precious.png".to_owned());
    fs::write(home.path().join("precious.png"), "").unwrap();
    job.pictures = vec![outside];
    opened.files.erase(Box::new(job.clone()));
    assert!(opened.files.settle(GRACE));
    let mut left = others.to_vec();
    left.sort();
    assert_eq!(all(&day), left);
    assert!(home.path().join("precious.png").exists());
    for name in &others {
        fs::remove_file(day.join(name)).unwrap();
    }
    opened.file(order(ID, 0, 1));
    opened.files.erase(Box::new(job));
    assert!(opened.files.settle(GRACE));
    assert!(!day.exists(), "the day's folder goes with its last picture");
}

#[test]
fn what_cannot_be_written_is_still_given() {
    let home = tempfile::tempdir().unwrap();
    let opened = opened(home.path());
    fs::write(home.path().join("pictures").join(DAY), "in the way").unwrap();
    let (pictures, error) = opened.file(order(ID, 0, 2));
    assert!(pictures.iter().all(|p| p.record.file.is_none() && p.png.starts_with(b"\x89PNG")));
    let error = error.unwrap();
    assert!(error.contains("cannot write pictures to") && error.contains("; hint: "), "{error}");
    assert!(opened.files.path(&pictures[0].record).is_none());
    fs::remove_file(home.path().join("pictures").join(DAY)).unwrap();
    // Somebody removes everything: folders are made again.
    fs::remove_dir_all(home.path().join("pictures")).unwrap();
    let (pictures, error) = opened.file(order(ID, 0, 1));
    assert!(pictures[0].record.file.is_some() && error.is_none(), "{error:?}");
    // One picture that is none does not take the others along.
    let mut order = order(ID, 0, 2);
    order.pictures[0].height = 5;
    let (pictures, error) = opened.file(order);
    assert_eq!(pictures.iter().map(|p| p.record.index).collect::<Vec<_>>(), [1]);
    assert!(error.is_some_and(|error| error.contains("cannot encode picture 0")));
    for id in ["", "../x", "a/b", "a.b", &"x".repeat(65)] {
        let (pictures, error) = opened.file(super::tests::order(id, 0, 1));
        assert!(pictures[0].record.file.is_none() && error.is_some(), "{id}");
    }
    let never = FileOrder { created_at: u64::MAX, ..super::tests::order(ID, 0, 1) };
    assert!(opened.file(never).1.is_some_and(|error| error.contains("at no time")));
}

/// The part of the next test that meets the limit.
#[test]
fn child_with_a_full_disk() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let opened = opened(Path::new(&directory));
    let all = getrlimit(Resource::Fsize);
    let limit = |current| setrlimit(Resource::Fsize, Rlimit { current, ..all }).unwrap();
    limit(Some(16));
    let (pictures, error) = opened.file(order(ID, 0, 2));
    assert!(pictures.iter().all(|picture| picture.record.file.is_none()));
    assert!(error.is_some_and(|error| error.contains("hint: make room on its disk, where ")));
    let refused = opened.files.keep_picture(pictures[0].png.to_vec()).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Disk);
    assert_eq!(super::tests::all(Path::new(&directory)), [""; 0], "nothing is half written");
    limit(all.current);
    assert_eq!(opened.file(order(ID, 0, 2)).1, None);
    println!("it met the limit");
}

#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let home = tempfile::tempdir().unwrap();
    let test = "serve::files::tests::child_with_a_full_disk";
    let mut child = child(test, home.path().to_str().unwrap());
    let output = child.stdout(Stdio::piped()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("it met the limit"), "{told}");
    assert_eq!(all(&home.path().join("pictures")).len(), 3);
}

#[test]
fn what_a_daemon_left_half_written_goes() {
    let home = tempfile::tempdir().unwrap();
    let day = home.path().join("pictures").join(DAY);
    fs::create_dir_all(&day).unwrap();
    fs::create_dir_all(home.path().join("inputs")).unwrap();
    for folder in [&day, &home.path().join("inputs")] {
        fs::write(folder.join(".berth-1-abcdef.part"), "half").unwrap();
    }
    let opened = opened(home.path());
    assert_eq!(all(home.path()), [""; 0]);
    let free = opened.files.free_bytes().unwrap();
    assert!(free > Bytes::ZERO && free < Bytes(1 << 60), "{free}");
}

fn png(level: u8) -> Vec<u8> {
    let rows = RgbRows { width: 2, height: 1, pixels: &[level; 6] };
    PictureFormat::Png.encode(rows, None, QUALITY).unwrap().bytes
}

#[test]
fn a_picture_to_start_from_is_kept_once_by_its_content() {
    let home = tempfile::tempdir().unwrap();
    let files = opened(home.path()).files;
    let first = files.keep_picture(png(1)).unwrap();
    let hash = crate::fingerprint::sha256_of(&png(1));
    assert_eq!(first, home.path().join(format!("inputs/{hash}.png")));
    assert_eq!(fs::read(&first).unwrap(), png(1));
    assert_eq!(first.metadata().unwrap().permissions().mode() & 0o777, PRIVATE_MODE);
    assert_eq!(files.keep_picture(png(1)).unwrap(), first);
    let rows = RgbRows { width: 2, height: 1, pixels: &[9; 6] };
    let jpeg = PictureFormat::Jpeg.encode(rows, None, QUALITY).unwrap().bytes;
    let second = files.keep_picture(jpeg).unwrap();
    assert_eq!(second.extension().unwrap(), "jpg");
    assert_eq!(all(home.path()).len(), 2);
}

#[test]
fn only_pictures_within_the_limits_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let files = opened(home.path()).files;
    let whole = png(1);
    let mut wide = whole.clone();
    // Width and height of the header, with its checksum left wrong or right: refused either way.
    wide[16..24].copy_from_slice(&[0, 1, 0, 0, 0, 1, 0, 0]);
    let webp = {
        let rows = RgbRows { width: 2, height: 1, pixels: &[9; 6] };
        PictureFormat::WebP.encode(rows, None, QUALITY).unwrap().bytes
    };
    for (bytes, told) in [
        (Vec::new(), "neither PNG nor JPEG nor WebP"),
        (b"GIF89a".to_vec(), "neither PNG nor JPEG nor WebP"),
        (webp[..webp.len() - 2].to_vec(), "the picture is damaged"),
        (whole[..40].to_vec(), "the picture is damaged"),
        (whole[..whole.len() - 4].to_vec(), "the picture is damaged"),
        (wide, "the picture "),
    ] {
        let error = files.keep_picture(bytes).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadValue);
        assert!(error.message.contains(told) && error.message.contains("; hint: "), "{error:?}");
    }
    assert_eq!(all(home.path()), [""; 0]);
}

#[test]
fn pictures_that_no_job_uses_go_after_a_while() {
    let home = tempfile::tempdir().unwrap();
    let files = opened(home.path()).files;
    let [used, unused, fresh, again] =
        [1, 2, 3, 4].map(|level| files.keep_picture(png(level)).unwrap());
    let stranger = home.path().join("inputs/notes.png");
    fs::write(&stranger, "").unwrap();
    let old = SystemTime::now() - inputs::SPARED - Duration::from_secs(1);
    for path in [&used, &unused, &again, &stranger] {
        fs::File::options().append(true).open(path).unwrap().set_modified(old).unwrap();
    }
    // Sent again: it counts from now.
    assert_eq!(files.keep_picture(png(4)).unwrap(), again);
    files.sweep(std::slice::from_ref(&used)).unwrap();
    assert!([&used, &fresh, &again, &stranger].iter().all(|path| path.exists()));
    assert!(!unused.exists());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever a record says, no path leads out of the folder.
    #[test]
    fn paths_stay_in_their_folder(text in "[./a0-9-]{0,24}(\\.png)?") {
        let folder = PictureFolder::of("/nowhere".into());
        if let Some(path) = folder.path(&text) {
            let below = path.strip_prefix(folder.root()).unwrap();
            prop_assert_eq!(below.components().count(), 2);
            prop_assert!(!text.contains(".."));
        }
    }

    #[test]
    fn a_name_that_is_made_is_read_again(id in "[0-9A-Z]{1,26}", index: u32, created_at in 0..4_102_444_800_000_u64) {
        let folder = PictureFolder::of("/nowhere".into());
        let place = folder.place(&JobId(id), created_at).unwrap();
        let name = place.picture(index);
        prop_assert_eq!(folder.path(&place.below(&name)), Some(place.path(&name)));
    }
}
